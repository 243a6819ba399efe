"""What is written for Minari is what Minari, and we, read."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from numpy.testing import assert_array_equal

import trainkit as tk
from trainkit.core import tree
from trainkit.datasets import from_minari, load_dataset, to_minari

minari: Any = pytest.importorskip("minari", reason="the extra `minari` is not installed")
pytest.importorskip("h5py", reason="the extra `minari` is not installed")

IMAGES = spaces.Dict({"image": spaces.Box(0, 255, (36, 40, 3), np.uint8), "speed": spaces.Box(-1, 1, (), np.float64)})
NESTED = spaces.Dict({"move": spaces.Discrete(3), "push": spaces.Box(-1, 1, (2,), np.float32)})


class Random(gym.Env[Any, Any]):
    """Draws observations; episodes end, or are truncated, in turn."""

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self.n_episodes = self.t = 0
        observation_space.seed(5)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.n_episodes, self.t = self.n_episodes + 1, 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        is_last = self.t == 3 + self.n_episodes % 3
        ends = (is_last and self.n_episodes % 2 == 0, is_last and self.n_episodes % 2 == 1)
        return self.observation_space.sample(), float(self.t), *ends, {}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have Minari keep its datasets here."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path


def collected(observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> tk.ReplayBuffer:
    envs = tk.make_envs(lambda: Random(observation_space, action_space), 2, seed=1)
    buffer = tk.ReplayBuffer(200, seed=1, spaces=envs)
    tk.Collector(tk.RandomPolicy(envs.action_space, seed=1), envs, buffer).collect(n_step=42)
    return buffer


@pytest.mark.parametrize(
    ("observation_space", "action_space"),
    [
        (spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(4)),
        (spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(4, start=-2)),
        (IMAGES, spaces.Box(-2, 2, (2,), np.float32)),
        (spaces.Tuple([spaces.Discrete(5), spaces.MultiBinary(2)]), NESTED),
    ],
)
def test_minari_reads_what_was_written_and_so_do_we(
    observation_space: gym.Space[Any], action_space: gym.Space[Any]
) -> None:
    buffer = collected(observation_space, action_space)
    to_minari(buffer, "random/test-v0", author="us", algorithm_name="random")
    theirs, ours = minari.load_dataset("random/test-v0"), from_minari("random/test-v0")
    assert theirs.observation_space == observation_space
    assert theirs.action_space == action_space
    assert theirs.storage.metadata["author"] in ("us", ["us"], {"us"})
    wanted = list(buffer.episodes())
    assert len(wanted) > 6
    assert {episode.terminated for episode in wanted} == {True, False}
    assert {episode.truncated for episode in wanted} == {True, False}
    structure = getattr(buffer.action_space, "structure", None)
    for episode, found, again in zip(wanted, theirs.iterate_episodes(), ours.episodes(), strict=True):
        tree.map_tree(assert_array_equal, found.observations, episode.obs)
        tree.map_tree(assert_array_equal, again.obs, episode.obs)
        actions = episode.action if structure is None else structure.unpack(episode.action)
        tree.map_tree(assert_array_equal, found.actions, actions)
        assert_array_equal(again.action, episode.action)
        assert_array_equal(found.rewards, episode.reward)
        assert_array_equal(again.reward, episode.reward)
        assert (found.terminations[-1], found.truncations[-1]) == (episode.terminated, episode.truncated)
        assert not found.terminations[:-1].any()
        assert not found.truncations[:-1].any()
        assert (again.terminated, again.truncated) == (episode.terminated, episode.truncated)


def test_load_dataset_takes_the_id_of_a_local_dataset(folder: Path) -> None:
    buffer = collected(spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(4))
    to_minari(buffer, "random/test-v1")
    assert len(load_dataset("random/test-v1")) == sum(map(len, buffer.episodes()))
    with pytest.raises(tk.ConfigError, match=r"from_minari cannot open 'random/test-v2' .*: give a local id"):
        load_dataset("random/test-v2")


def test_a_dataset_that_is_there_is_not_overwritten_and_nothing_is_no_dataset() -> None:
    buffer = collected(spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(4))
    to_minari(buffer, "random/test-v0")
    with pytest.raises(tk.ConfigError, match="to_minari cannot write 'random/test-v0'"):
        to_minari(buffer, "random/test-v0")
    buffer.clear()
    with pytest.raises(tk.ConfigError, match="no whole episode"):
        to_minari(buffer, "random/empty-v0")
    with pytest.raises(tk.ConfigError, match=r"to_minari\.buffer must be a ReplayBuffer, got 'recorded/'"):
        to_minari("recorded/", "random/a-v0")  # type: ignore[arg-type]  # what is tested


def test_recorded_files_become_a_minari_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    envs = tk.make_envs("CartPole-v1", 2, seed=0)
    collector = tk.Collector(tk.RandomPolicy(envs.action_space, seed=0), envs)
    with tk.callbacks.DatasetWriter(tmp_path / "data").record(collector):
        collector.collect(n_episode=4)
    data = load_dataset(tmp_path / "data")
    written = to_minari(data, "cartpole/random-v0", env="CartPole-v1", author="A. Name")
    assert (written.total_episodes, written.total_steps) == (4, collector.env_step)
    assert "A. Name" in minari.load_dataset("cartpole/random-v0").storage.metadata["author"]
    own, theirs = (list(one.episodes()) for one in (data, from_minari("cartpole/random-v0")))
    for one, other in zip(own, theirs, strict=True):
        assert_array_equal(one.obs, other.obs)
        assert_array_equal(one.reward, other.reward)
