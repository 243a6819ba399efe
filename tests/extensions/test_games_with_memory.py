"""Several policies of games, some or all of which have a memory."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainkit as tk
from examples.two_agents import TwoPoles
from tests.extensions.games.two_policies import (
    RIVALS,
    check_that_an_interrupted_run_continues,
    check_that_two_policies_equal_two_single_runs,
)

LSTM: dict[str, Any] = {"recurrent": "lstm", "sequences": tk.Sequences(6, 3)}
GRU: dict[str, Any] = {"recurrent": "gru", "sequences": tk.Sequences(6, 3), "hidden": (5,)}


def test_predict_carries_the_states_of_the_agents_that_have_a_memory_and_gives_extras() -> None:
    envs = tk.make_envs(TwoPoles, 1, seed=1)
    kinds = {"left": LSTM, "right": {}}
    own = {name: tk.DQNPolicy.for_envs(envs, hidden=(4,), seed=1, device="cpu", **how) for name, how in kinds.items()}
    policy = tk.MultiAgentPolicy(own)
    obs, state = dict.fromkeys(kinds, np.full(4, 0.1, np.float32)), {}
    for _ in range(3):
        expected = own["left"].predict(obs["left"], state=state.get("left"))
        received = policy.predict(obs, state=state)
        assert int(received["right"]) == own["right"].predict(obs["right"])
        np.testing.assert_array_equal(received["left"][1], expected[1])
        with_extra = policy.predict(obs, state=state, return_extra=True)
        assert [len(with_extra[name]) for name in ("left", "right")] == [3, 2]
        assert with_extra["right"][1]["q_values"].argmax() == received["right"]
        state = {"left": received["left"][1]}
    assert np.abs(state["left"]).max() > 0.0
    with pytest.raises(tk.ConfigError, match=r"predict\(state=\) has \['lefft'\], of which obs has none"):
        policy.predict(obs, state={"lefft": state["left"]})
    envs.close()


def test_two_policies_that_never_meet_equal_two_single_runs() -> None:
    check_that_two_policies_equal_two_single_runs(LSTM, RIVALS | GRU)


@pytest.mark.parametrize("options", [(LSTM, {}), (LSTM, GRU)], ids=["one_memory", "two_memories"])
def test_an_interrupted_run_continues_with_the_same_bits_after_another_policy_was_frozen(
    options: Any, tmp_path: Path
) -> None:
    check_that_an_interrupted_run_continues(options, tmp_path)
