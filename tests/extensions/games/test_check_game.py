"""`check_env` names what is wrong with a game of several agents, and leaves a game that it is given open."""

import re
import time
from functools import partial
from typing import Any

import pytest

from tests.helpers.turns import Meetings, TicTacToe
from trainkit.envs import check_env


class Faulty(TicTacToe):
    """Tic-tac-toe with one fault."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault = fault

    def observe(self, agent: str) -> Any:
        seen = super().observe(agent)
        if self.fault == "mask" and len(self.moves) == 2:
            seen["action_mask"][:] = 0
        if self.fault == "board" and len(self.moves) == 2:
            seen["board"] = seen["board"][:8]
        if self.fault == "bounds":
            seen["board"] *= 2
        return seen

    def pay(self, mover: str, gains: dict[str, float]) -> None:
        if self.fault == "reward" and len(self.moves) == 4:
            gains = dict.fromkeys(gains, float("nan"))
        super().pay(mover, gains)
        if self.fault == "lost":
            self._cumulative_rewards = dict(self.rewards)
        if self.fault == "chance":
            self._cumulative_rewards[mover] += time.perf_counter()

    def take_out_dead(self, action: Any) -> bool:
        if self.fault == "haunted" and self.terminations[self.agent_selection]:
            return True
        return super().take_out_dead(action)

    def step(self, action: Any) -> None:
        if self.fault == "raises" and len(self.moves) == 3:
            raise KeyError("piece")
        super().step(action)


@pytest.mark.parametrize(
    ("fault", "level", "what"),
    [
        ("mask", "error", "env 0 allows no action: its action_mask is all False, at episode 0 .* of agent 'cross'"),
        (
            "board",
            "error",
            r"returned observation\['board'\] of shape \(8,\), the space says \(9,\), at",
        ),
        ("bounds", "warning", r"observation\[board\] at \[2\] is 2, outside its bounds -1 to 1"),
        ("reward", "error", "returned reward nan, at .* of agent "),
        ("lost", "warning", r"its rewards pay agent 'cross' .* in a game, and last\(\) gives"),
        ("chance", "warning", "two games with the same seed and actions differ"),
        ("haunted", "error", r"agent 'cross' has ended, but step\(None\) does not remove it from agents"),
        ("raises", "error", "raised KeyError in step: 'piece', at episode 0 .* of agent "),
    ],
)
def test_a_faulty_game_is_named_in_plain_words(fault: str, level: str, what: str) -> None:
    findings = check_env(partial(Faulty, fault))
    assert [one.level for one in findings if re.search(what, one.what)] == [level], findings


def test_a_game_without_a_fault_has_notes_alone_and_stays_open() -> None:
    game = TicTacToe()
    findings = check_env(game)
    assert {finding.level for finding in findings} == {"note"}
    assert any("agent 'nought' is paid when it has no open row" in finding.what for finding in findings)
    assert game.n_closed == 0
    assert check_env(Meetings)[-1].what.startswith("it renders nothing")
