"""Minari's datasets, made on the spot: every row, and every final observation, is what the environment gave."""

import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from tests.helpers.tagged import Form, TaggedEnv, decode, is_terminated, is_truncated, length, reward
from trainkit import ConfigError, PrioritizedReplayBuffer
from trainkit.core import tree
from trainkit.core.data import Horizon
from trainkit.datasets import from_minari

minari: Any = pytest.importorskip("minari", reason="the extra `minari` is not installed")
pytest.importorskip("h5py", reason="the extra `minari` is not installed")

from minari.data_collector import EpisodeBuffer  # noqa: E402 - only where minari is

N_EPISODES = 9


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have Minari keep its datasets here."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    return tmp_path


def lists(*rows: Any) -> Any:
    """Turn observations into an observation of lists, as Minari gathers them."""
    return tree.map_tree(lambda *leaves: list(leaves), *rows)


def play(form: Form, first_action: int = 0) -> Any:
    """Let Minari write tagged episodes; the last one is left open."""
    env = TaggedEnv(1, form)
    episodes = []
    for number in range(N_EPISODES):
        seen, steps = [env.reset()[0]], []
        for step in range(length(1, number) if number < N_EPISODES - 1 else 2):
            obs, *outcome, _ = env.step((number + step) % 3)
            seen.append(obs)
            steps.append(((number + step) % 3 + first_action, *outcome))
        action, gain, terminated, truncated = map(list, zip(*steps, strict=True))
        episodes.append(EpisodeBuffer(None, None, None, lists(*seen), action, gain, terminated, truncated, {}))
    with warnings.catch_warnings(action="ignore"):  # of everything missing about authors
        return minari.create_dataset_from_buffers(
            dataset_id="tagged/test-v0",
            buffer=episodes,
            observation_space=env.observation_space,
            action_space=gym.spaces.Discrete(3, start=first_action),
        )


@pytest.fixture(params=["array", "dict", "masked"])
def made(request: Any) -> Any:
    return play(request.param)


def assert_is_what_was_played(buffer: Any) -> None:
    episodes = list(buffer.episodes())
    assert len(episodes) == N_EPISODES
    for number, episode in enumerate(episodes):
        tags, t = decode(episode.obs), np.arange(len(episode))
        is_open = number == N_EPISODES - 1
        assert len(episode) == (2 if is_open else length(1, number))
        assert_array_equal(tags[:, 2], np.arange(len(episode) + 1))  # the final observation, too
        assert_array_equal(tags[:, 1], number)
        assert_array_equal(episode.action, (number + t) % 3)
        assert_array_equal(episode.reward, reward(1, number, t))
        assert episode.terminated == (not is_open and is_terminated(1, number))


def test_a_dataset_is_read_by_id_by_folder_and_as_it_is(made: Any, folder: Path) -> None:
    for source in (made, "tagged/test-v0", folder / "tagged" / "test-v0", str(folder / "tagged/test-v0/data")):
        buffer = from_minari(source, seed=0)
        assert_is_what_was_played(buffer)
        assert buffer.observation_space == made.observation_space
        assert buffer.action_space == gym.spaces.Discrete(3)


@pytest.mark.parametrize("storage", ["hdf5", "one that only Minari reads"])
def test_a_dataset_of_some_episodes_gives_those(storage: str, made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = made.filter_episodes(lambda episode: episode.id % 2 == 1)
    monkeypatch.setattr(type(made.storage), "FORMAT", storage)
    episodes = list(from_minari(odd, seed=0).episodes())
    assert [decode(episode.obs)[0, 1] for episode in episodes] == [1, 3, 5, 7]
    for number, episode in zip((1, 3, 5, 7), episodes, strict=True):
        assert_array_equal(episode.reward, reward(1, number, np.arange(length(1, number))))


def test_truncation_keeps_its_bootstrap_and_termination_does_not(made: Any) -> None:
    buffer = from_minari(made, seed=0)
    batch = buffer.sample(2000, horizon=Horizon(1, gamma=0.5), columns=["episode", "truncated"])
    here, after = decode(batch.obs), decode(batch.next_obs)
    last = here[:, 2] + 1 == np.array([length(1, number) for number in range(N_EPISODES)])[batch.extras["episode"]]

    assert_array_equal(after[:, 1], here[:, 1])
    assert_array_equal(after[:, 2], here[:, 2] + 1)
    has_next = here[:, 1] < N_EPISODES - 1
    ends = has_next & last & is_terminated(1, here[:, 1])
    assert_array_equal(batch.discount, np.where(ends, 0.0, 0.5))
    assert_array_equal(batch.extras["truncated"], has_next & last & is_truncated(1, here[:, 1]))


def test_options_reach_the_buffer_and_actions_count_from_0() -> None:
    buffer = from_minari(play("array", first_action=5), into=PrioritizedReplayBuffer, alpha=0.5, capacity=900)

    assert isinstance(buffer, PrioritizedReplayBuffer)
    assert buffer.capacity == 900
    assert_is_what_was_played(buffer)
    assert buffer.action_space == gym.spaces.Discrete(3)


def test_an_id_without_a_dataset_is_rejected(folder: Path) -> None:
    for nothing in ("no/such-v0", folder):
        with pytest.raises(ConfigError, match=r"from_minari cannot open .*: give a local id, the folder of one"):
            from_minari(nothing)
