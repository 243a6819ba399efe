"""Several policies of games, some or all of which have a memory."""

from pathlib import Path
from typing import Any

import pytest

import trainkit as tk
from tests.extensions.games.test_multi_agent import (
    RIVALS,
    check_that_an_interrupted_run_continues,
    check_that_two_policies_equal_two_single_runs,
)

LSTM: dict[str, Any] = {"recurrent": "lstm", "sequences": tk.Sequences(6, 3)}
GRU: dict[str, Any] = {"recurrent": "gru", "sequences": tk.Sequences(6, 3), "hidden": (5,)}


def test_two_policies_that_never_meet_equal_two_single_runs() -> None:
    check_that_two_policies_equal_two_single_runs(LSTM, RIVALS | GRU)


@pytest.mark.parametrize("options", [(LSTM, {}), (LSTM, GRU)], ids=["one_memory", "two_memories"])
def test_an_interrupted_run_continues_with_the_same_bits_after_another_policy_was_frozen(
    options: Any, tmp_path: Path
) -> None:
    check_that_an_interrupted_run_continues(options, tmp_path)
