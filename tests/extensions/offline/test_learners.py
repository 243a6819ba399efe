"""Learners of offline learning: options, observations and units of actions; `learners.py` has what all tests share."""

import numpy as np
import pytest
from gymnasium import spaces

import trainkit as tk
from tests.helpers.learning import Spaces, batch_of


def test_misspelled_options_of_both_networks_are_named() -> None:
    with pytest.raises(tk.ConfigError, match="did you mean 'threshold'"):
        tk.DiscreteBCQPolicy.for_envs(Spaces(), thresold=1)
    assert tk.DiscreteBCQPolicy.for_envs(Spaces(), hidden=(4,), threshold=0.2, dueling=True, seed=1)


def test_for_envs_sees_grids_as_dqn_does() -> None:
    board = Spaces(spaces.Box(0, 1, (10, 10, 4), np.bool_))
    one, other = (
        [tuple(weight.shape) for weight in kind.for_envs(board, device="cpu", seed=0).network.parameters()]
        for kind in (tk.BCPolicy, tk.DQNPolicy)
    )
    assert one == other


@pytest.mark.parametrize("loss", ["likelihood", "mse"])
def test_cloning_learns_data_in_units_of_the_space(loss: str) -> None:
    at = Spaces(action_space=spaces.Box(0.0, 1000.0, (1,), np.float32))
    policy = tk.BCPolicy.for_envs(at, hidden=(8,), device="cpu", seed=0, loss=loss, lr=1e-2)
    obs = np.repeat(np.eye(4, dtype=np.float32)[:2], 16, axis=0)
    action = np.repeat(np.array([[100.0], [900.0]], np.float32), 16, axis=0)
    for step in range(150):
        policy.update(batch_of(32, obs=obs, action=action), step=step)
    np.testing.assert_allclose(policy.predict(obs), action, atol=20.0)


def test_the_preset_of_cloning_may_leave_the_units_of_the_space() -> None:
    envs = tk.make_envs("Pendulum-v1", 1, seed=1)
    buffer = tk.ReplayBuffer(100)
    tk.Collector(tk.RandomPolicy(envs.action_space, seed=1), envs, buffer).collect(n_step=100)
    for scaling in (True, False):
        trainer = tk.presets.bc(buffer, "Pendulum-v1", action_scaling=scaling, max_epoch=1, update_per_epoch=1)
        assert trainer.policy.action_scale.scaling is scaling
