"""`predict` as users of stable-baselines3 call it."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import trainkit as tk

BOX = gym.spaces.Box(-1, 1, (2,), np.float32)
OBS = np.zeros(3, np.float32)


@pytest.fixture
def policy() -> Any:
    def act(obs: Any) -> Any:
        return np.tile(np.array([0.25, -0.5], np.float32), (len(obs), 1))

    return tk.policy.ScriptedPolicy(act, observation_space=gym.spaces.Box(-1, 1, (3,), np.float32), action_space=BOX)


def test_an_action_of_two_parts_is_not_split_into_action_and_state(policy: Any) -> None:
    with pytest.raises(tk.ConfigError, match=r"predict returns the action alone.*action = policy.predict\(obs\)"):
        _action, _ = policy.predict(OBS)
    with pytest.raises(tk.ConfigError, match="returns the action alone"):
        _actions, _states = policy.predict([OBS, OBS])


def test_the_two_parts_of_an_action_can_be_named(policy: Any) -> None:
    steer, gas = policy.predict(OBS)
    assert (steer, gas) == (0.25, -0.5)
    np.testing.assert_array_equal(list(policy.predict(OBS)), [0.25, -0.5])
    np.testing.assert_array_equal(policy.predict([OBS, OBS]), [[0.25, -0.5]] * 2)
    (action,) = (policy.predict(OBS) for _ in range(1))
    assert action.shape == (2,)


def test_pairs_that_predict_returns_are_unpacked() -> None:
    envs = tk.make_envs("CartPole-v1", 1)
    policy = tk.DQNPolicy.for_envs(envs, hidden=(4,), seed=1, device="cpu")
    action, _ = policy.predict(np.zeros((2, 4), np.float32), return_extra=True)
    assert action.shape == (2,)
