"""envpool's environments as they are: exact rows, and the page about them; a fake has its API where it is missing."""

import re
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.testing import assert_allclose, assert_array_equal

import trainkit as tk
from tests.helpers import fake_envpool

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "envpool.md"
pytestmark = pytest.mark.filterwarnings(
    "ignore:EnvPool seeds are fixed",
    "ignore:.*precision lowered by casting",  # which envpool's spaces do
)


@pytest.fixture(params=["fake", "real"])
def envpool(request: pytest.FixtureRequest) -> ModuleType:
    if request.param == "fake":
        return fake_envpool
    return pytest.importorskip("envpool", reason="envpool is not installed")


def test_the_fake_has_the_api_of_envpool(envpool: Any) -> None:
    pool = envpool.make_gymnasium("CartPole-v1", num_envs=3, seed=7, max_episode_steps=4)
    assert isinstance(pool, VectorEnv)
    assert isinstance(pool, gym.Env)
    assert pool.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert pool.single_observation_space == pool.observation_space
    assert not hasattr(pool.spec, "id")
    assert pool.config["batch_size"] == 3
    with pytest.warns(UserWarning, match="EnvPool seeds are fixed when the environment is created"):
        obs, info = pool.reset(seed=1)
    assert (obs.shape, obs.dtype) == ((3, 4), np.float32)
    assert set(info) == {"env_id", "players", "elapsed_step"}
    truncated, elapsed, rewards = [], [], []
    for step in range(6):
        obs, reward, terminated, cut, info = pool.step(np.full(3, step % 2))
        assert (reward.dtype, terminated.any()) == (np.float32, False)
        assert_array_equal(info["env_id"], [0, 1, 2])
        truncated.append(cut.tolist()), elapsed.append(info["elapsed_step"][0]), rewards.append(reward[0])
    assert truncated == [[False] * 3] * 3 + [[True] * 3] + [[False] * 3] * 2
    assert elapsed == [1, 2, 3, 4, 0, 1]
    assert rewards == [1, 1, 1, 1, 0, 1]
    pool.close()


def test_every_row_is_a_step_and_none_is_a_reset(envpool: Any) -> None:
    envs = tk.make_envs(envpool.make_gymnasium("CartPole-v1", num_envs=3, seed=7, max_episode_steps=15))
    buffer = tk.ReplayBuffer(1_000)
    stats = tk.Collector(tk.RandomPolicy(envs.action_space, seed=0), envs, buffer).collect(n_step=150)

    batch = buffer.sample(500, horizon=tk.Horizon(1, 0.99))
    obs, following = np.asarray(batch.obs), np.asarray(batch.next_obs)
    assert_allclose(following[:, 0], obs[:, 0] + 0.02 * obs[:, 1], atol=1e-6)  # Euler's step, which no reset is
    assert_allclose(batch.reward, 1.0)
    assert stats.n_step == len(buffer) >= 150
    ended = batch.discount == 0
    assert_array_equal(ended, (np.abs(following[:, 2]) > 12 * np.pi / 180) | (np.abs(following[:, 0]) > 2.4))
    assert max(stats.episode_lengths) == 15
    envs.close()


def test_a_smaller_batch_is_refused(envpool: Any) -> None:
    envs = tk.make_envs(envpool.make_gymnasium("CartPole-v1", num_envs=4, batch_size=2))
    collector = tk.Collector(tk.RandomPolicy(envs.action_space, seed=0), envs)
    with pytest.raises(tk.errors.BadEnvDataError, match=r"observations of shape \(2, 4\), the space says \(4, 4\)"):
        collector.collect(n_step=8)


def test_the_page_runs(envpool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", envpool)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    with warnings.catch_warnings():
        names: dict[str, Any] = {}
        exec(compile(code, str(PAGE), "exec"), names)  # noqa: S102  # our own page
    assert names["train"].env_step >= 640
