"""Critics that see more than their actors: leaves of the observation that change the value and nothing else."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import trainkit as tk
from tests.helpers.learning import assert_same
from tests.nets.critic_leaves import SPACE, check_that_a_leaf_of_the_critic_changes_the_value_and_no_output


class Hidden(gym.Env[Any, Any]):
    """One step; the reward is the state's first number, which the actor does not see."""

    observation_space, action_space = SPACE, spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        draw = self.np_random.uniform(-1, 1, 7).astype(np.float32)
        self.obs = {"obs": draw[:3], "state": draw[3:], "goal": np.int64(draw[0] > 0)}
        return self.obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.obs, float(self.obs["state"][0]), True, False, {}


@pytest.mark.parametrize("options", [{}, {"encoder": {"state": torch.nn.Linear(4, 5)}}], ids=str)
def test_a_leaf_of_the_critic_changes_the_value_and_no_output(options: dict[str, Any]) -> None:
    check_that_a_leaf_of_the_critic_changes_the_value_and_no_output(options)


def test_the_value_is_learned_from_what_the_actor_does_not_see(tmp_path: Path) -> None:
    envs = tk.make_envs(Hidden, 8, seed=0)
    policy = tk.PPOPolicy.for_envs(envs, hidden=(16,), critic_only=["state"], lr=1e-2, device="cpu")
    train = tk.Collector(policy, envs, tk.RolloutBuffer())
    quiet: dict[str, Any] = {"verbose": False, "show_progress": False, "seed": 1}
    trainer = tk.OnpolicyTrainer(
        policy,
        train,
        max_epoch=4,
        step_per_epoch=512,
        step_per_collect=128,
        repeat_per_collect=8,
        batch_size=32,
        **quiet,
    )
    losses = [stats["update/value_loss"] for _, stats, _ in trainer]
    assert losses[-1] < 0.02  # the variance of the reward is 1/3
    loaded: Any = tk.load_policy(policy.save(tmp_path / "policy"))
    assert loaded.network.critic_only == {"state"}
    assert_same(loaded.get_weights(), policy.get_weights())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"critic_only": ["stat"]}, r"critic_only names \['stat'\], and the observation has the leaves"),
        ({"critic_only": ["obs", "state", "goal"]}, "critic_only names all leaves"),
        ({"critic_only": "state"}, r"critic_only must be a list of leaves such as \['state'\]"),
        ({"critic_only": ["state"], "shared": True}, "needs a torso of its own"),
    ],
)
def test_wrong_leaves_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(tk.ConfigError, match=message):
        tk.PPOPolicy.for_envs(tk.make_envs(Hidden), **options)
