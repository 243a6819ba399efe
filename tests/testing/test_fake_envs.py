"""Fake environments: the same rows again and again, and a run that takes no time with them."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import trainkit as tk
from trainkit.testing import FakeVectorEnv

IMAGE = gym.spaces.Box(0, 255, (1, 36, 36), np.uint8)
NESTED = gym.spaces.Dict({"where": gym.spaces.Box(-1, 1, (3,)), "what": gym.spaces.Discrete(4)})
TWO = gym.spaces.Discrete(2)


@pytest.mark.parametrize("space", [IMAGE, NESTED], ids=["image", "nested"])
def test_a_learner_trains_on_it_with_episodes_of_the_given_length(space: Any) -> None:
    envs = tk.make_envs(FakeVectorEnv(space, TWO, 3, episode_length=10))
    policy = tk.DQNPolicy.for_envs(envs, hidden=(8,), device="cpu", seed=0)
    collector = tk.Collector(policy, envs, tk.ReplayBuffer(300))
    stats = collector.collect(n_step=90)
    assert stats.n_episode == 9
    assert (stats.lengths.min, stats.lengths.max) == (10, 10)
    assert stats.returns.mean == 10.0
    batch = collector.buffer.sample(8, horizon=policy.horizon)  # type: ignore[union-attr]  # it has one
    policy.update(batch, step=0)


def test_the_observations_are_drawn_once_and_by_the_seed() -> None:
    first, same, other = (FakeVectorEnv(IMAGE, TWO, 2, seed=seed) for seed in (1, 1, 2))
    obs, _ = first.reset()
    np.testing.assert_array_equal(obs, first.step(np.zeros(2))[0])
    np.testing.assert_array_equal(obs, same.reset()[0])
    assert (obs != other.reset()[0]).any()


@pytest.mark.parametrize(
    ("options", "received"), [({"n": 0}, "n must be"), ({"n": 1, "episode_length": 0}, "episode_length")]
)
def test_what_cannot_be_is_refused(options: dict[str, Any], received: str) -> None:
    with pytest.raises(tk.ConfigError, match=f"FakeVectorEnv.{received}"):
        FakeVectorEnv(IMAGE, TWO, **options)
