"""Tournaments: results on all sides, intervals by Wilson's formula, and ratings by the odds that they say."""

from typing import Any

import numpy as np
import pytest

import trainkit as tk
from tests.helpers.matrix_games import MatrixGame
from trainkit.extensions.games.tournament import WinRate, elo_ratings, lead_of


def always(action: int) -> tk.Policy:
    return tk.policy.ScriptedPolicy(lambda obs: np.full(len(obs), action))


def test_scissors_lose_to_rock_on_both_sides() -> None:
    players = {"rock": always(0), "paper": always(1), "scissors": always(2), "random": tk.RandomPolicy(
        MatrixGame().action_space("row"), seed=1)}  # fmt: skip
    table = tk.trainer.tournament(players, MatrixGame, n_episode=30, seed=0)
    assert table.win_rate("rock", "scissors") == WinRate(wins=30, draws=0, losses=0)
    assert table.win_rate("rock", "paper") == WinRate(wins=0, draws=0, losses=30)
    assert table.win_rate("paper", "scissors").losses == 30
    played = table.win_rate("random", "rock")
    assert played.n_games == 30
    assert min(played.wins, played.draws, played.losses) > 3
    assert max(table.elo.values()) - min(table.elo.values()) < 60  # each loses as often as it wins
    assert "rock against scissors: 1.000" in str(table)
    with pytest.raises(tk.ConfigError, match="has no games of 'rock' against 'well'"):
        table.win_rate("rock", "well")


def test_four_agents_with_equal_returns_draw() -> None:
    class Shared(MatrixGame):
        possible_agents = ("a", "b", "c", "d")  # type: ignore[assignment]  # four

        def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
            self.agents = []
            ends, cuts = dict.fromkeys(actions, True), dict.fromkeys(actions, False)
            rewards = dict.fromkeys(actions, 0.1)  # the computed mean of three is larger
            return self._obs(), rewards, ends, cuts, {name: {} for name in actions}

    table = tk.trainer.tournament({"one": always(0), "other": always(1)}, Shared, n_episode=8, seed=0)
    assert table.win_rate("one", "other") == WinRate(wins=0, draws=8, losses=0)


@pytest.mark.parametrize(
    ("own", "others", "sign"),
    [(0.1 + 0.2, 0.3, 0), (0.1 + 0.2 - 0.3, 0.0, 0), (1.0, 1.0 - 1e-6, 1), (-1e6, 1 - 1e6, -1), (0.0, 1e-6, -1)],
)
def test_returns_that_are_equal_up_to_rounding_are_a_draw(own: float, others: float, sign: int) -> None:
    assert np.sign(lead_of(own, others)) == sign


def test_intervals_are_wilsons() -> None:
    # Wilson (1927): 8 of 10 give 0.4902 to 0.9433, 10 of 10 give 0.7225 to 1 (as tabulated by Newcombe, 1998).
    np.testing.assert_allclose(WinRate(wins=8, draws=0, losses=2).interval, (0.4902, 0.9433), atol=1e-4)
    np.testing.assert_allclose(WinRate(wins=10, draws=0, losses=0).interval, (0.7225, 1.0), atol=1e-4)
    assert WinRate(wins=3, draws=4, losses=3).rate == 0.5


def test_a_rating_of_400_more_wins_ten_times_as_often() -> None:
    results = {
        ("a", "b"): WinRate(wins=100_000, draws=0, losses=10_000),
        ("b", "c"): WinRate(wins=1, draws=0, losses=1),
    }
    elo = elo_ratings(["a", "b", "c"], results)
    assert elo["a"] - elo["b"] == pytest.approx(400.0, abs=0.1)
    assert elo["b"] == pytest.approx(elo["c"])
    assert sum(elo.values()) == pytest.approx(3_000.0)
    assert next(iter(elo)) == "a"


def test_games_of_one_agent_and_single_policies_are_rejected() -> None:
    with pytest.raises(tk.ConfigError, match=r"policies must be a dict of two or more"):
        tk.trainer.tournament({"one": always(0)}, MatrixGame)
    with pytest.raises(tk.ConfigError, match=r"plays games of several agents, and CartPole-v1 has one"):
        tk.trainer.tournament({"one": always(0), "other": always(1)}, "CartPole-v1")


def test_results_are_counted_by_side() -> None:
    players = {"rock": always(0), "paper": always(1)}
    won_by_the_row = [[1, 1, 1]] * 3
    table = tk.trainer.tournament(players, lambda: MatrixGame(won_by_the_row), n_episode=5, seed=0)
    assert table.win_rate("rock", "paper") == WinRate(wins=3, draws=0, losses=2)
    assert table.win_rate("rock", "paper", agent="row") == WinRate(wins=3, draws=0, losses=0)
    assert table.win_rate("rock", "paper", agent="column") == WinRate(wins=0, draws=0, losses=2)
    assert table.win_rate("paper", "rock", agent="row") == WinRate(wins=2, draws=0, losses=0)
    with pytest.raises(tk.ConfigError, match="in which 'paper' alone controlled 'left'"):
        table.win_rate("paper", "rock", agent="left")
