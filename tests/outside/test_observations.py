"""Observations that users give by hand: whatever reads one says what does not fit, and changes no number."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import trainkit as tk
from tests.helpers.learning import FOUR_NUMBERS, Spaces
from trainkit.core.data import Transition

IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)
CELL = spaces.Box(-128, 127, (2,), np.int8)
SWITCHES = spaces.MultiBinary(3)
READERS = ["predict", "action_values", "greedy_values", "return_distribution", "action_probability"]


def dqn(space: Any, **options: Any) -> Any:
    return tk.DQNPolicy.for_envs(Spaces(space, spaces.Discrete(3)), device="cpu", seed=0, **options)


@pytest.mark.parametrize("method", [*READERS, "act"])
@pytest.mark.parametrize(
    ("space", "obs"),
    [
        pytest.param(IMAGE, np.full((1, 36, 36, 1), 0.5, np.float32), id="image of 0 to 1"),
        pytest.param(IMAGE, np.full((1, 36, 36, 1), 300), id="image of 300"),
        pytest.param(CELL, np.array([[200, 0]]), id="int8 of 200"),
        pytest.param(spaces.Discrete(5), np.array([3.7]), id="half a state"),
        pytest.param(spaces.Discrete(5), np.array([5]), id="state outside"),
        pytest.param(spaces.Discrete(5), np.array([-1]), id="state -1"),
        pytest.param(SWITCHES, np.array([[0, 5, 1]]), id="switch of 5"),
        pytest.param(FOUR_NUMBERS, np.array([["1", "2", "3", "4"]]), id="words"),
        pytest.param(FOUR_NUMBERS, np.array([[1e300, 0.0, 0.0, 0.0]]), id="too large for float32"),
        pytest.param(FOUR_NUMBERS, np.zeros((2, 5), np.float32), id="another shape"),
    ],
)
def test_whatever_reads_an_observation_rejects_one_of_another_space(space: Any, obs: Any, method: str) -> None:
    with pytest.raises(tk.SpaceMismatchError, match=rf"DQNPolicy\.{method}"):
        getattr(dqn(space), method)(obs)


@pytest.mark.parametrize("kind", [tk.PPOPolicy, tk.SACPolicy, tk.BCPolicy])
def test_each_policy_reads_observations_alike(kind: Any) -> None:
    policy = kind.for_envs(Spaces(IMAGE, spaces.Box(-1.0, 1.0, (2,), np.float32)), device="cpu", seed=0)
    for method in ("predict", "act"):
        with pytest.raises(tk.SpaceMismatchError, match=r"must hold numbers that uint8 has, got 0\.5"):
            getattr(policy, method)(np.full((2, 36, 36, 1), 0.5))


def test_the_greedy_action_is_that_of_the_largest_value_in_any_integer_type() -> None:
    policy = dqn(CELL)
    rows = np.random.default_rng(0).integers(-128, 128, (50, 2))
    np.testing.assert_array_equal(policy.predict(rows), policy.action_values(rows).argmax(axis=1))
    np.testing.assert_array_equal(policy.act(rows).action, policy.act(rows.astype(np.int8)).action)


@pytest.mark.parametrize("method", READERS)
def test_values_of_a_list_and_of_one_observation_are_those_of_a_row(method: str) -> None:
    policy = dqn(FOUR_NUMBERS, value=tk.QuantileValue(5))
    obs = [0.5, -0.5, 1.0, 0.0]
    of_row, of_rows = getattr(policy, method)(obs), getattr(policy, method)([obs, obs])
    for one, many in zip(*(x if isinstance(x, tuple) else (x,) for x in (of_row, of_rows)), strict=True):
        assert np.shape(many) == (2, *np.shape(one))
        np.testing.assert_allclose(many[1], one, rtol=1e-4, atol=1e-6)


def test_act_takes_rows_and_names_predict_for_one_observation() -> None:
    for policy in (dqn(FOUR_NUMBERS), tk.PPOPolicy.for_envs(Spaces(FOUR_NUMBERS, spaces.Discrete(3)), device="cpu")):
        with pytest.raises(tk.SpaceMismatchError, match=r"act needs K observations.*call predict\(obs\)"):
            policy.act(np.zeros(4, np.float32))
        assert policy.act([[0.0] * 4]).action.shape == (1,)


def test_a_policy_is_not_called_as_a_network_is() -> None:
    with pytest.raises(tk.ConfigError, match=r"DQNPolicy is not called itself: use predict\(obs\)"):
        dqn(FOUR_NUMBERS)(np.zeros(4, np.float32))


def test_a_buffer_rejects_rows_whose_numbers_its_type_does_not_have() -> None:
    buffer = tk.ReplayBuffer(10)

    def add(value: Any, dtype: Any) -> None:
        obs, flag = np.full((1, 2), value, dtype), np.zeros(1, np.bool_)
        buffer.add(Transition(obs, np.zeros(1, np.int64), np.zeros(1), obs, flag, flag, np.arange(1), {}))

    add(255, np.uint8)
    add(7, np.int64)
    with pytest.raises(tk.ConfigError, match="obs has int64 numbers that the first rows' uint8 does not have"):
        add(300, np.int64)
    assert len(buffer) == 2
