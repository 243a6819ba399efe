"""Running games are restored by replaying their seeds and actions; what a game keeps between episodes is named."""

from typing import Any

import pytest

import trainkit as tk
from examples.two_agents import TwoPoles
from tests.envs.restored_episodes import check_that_episodes_continue, collector_of, warnings_of


@pytest.mark.parametrize("n_step", [1, 7, 31])
def test_running_games_are_restored_and_continue_the_same(n_step: int, tmp_path: Any) -> None:
    check_that_episodes_continue(n_step, tmp_path, spec=TwoPoles, n=2)


def test_a_game_that_keeps_something_is_named(caplog: Any) -> None:
    class Counting(TwoPoles):  # type: ignore[misc]
        n_games = 0

        def reset(self, *args: Any, **options: Any) -> Any:
            self.n_games += 1
            return super().reset(*args, **options)

    first, second = (collector_of(tk.make_envs(Counting, 2, seed=5)) for _ in range(2))
    first.collect(n_step=400)
    second.load_state_dict(first.state_dict())
    (warning,) = warnings_of(caplog)
    assert "n_games of game 0, 1." in warning
