"""Keys of dict observations: every string comes back from the files of a dataset."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings

import trainkit as tk
from tests.core.observation_trees import assert_comes_back, space_of, trees
from trainkit.core import tree
from trainkit.core.data import RecordedEpisode
from trainkit.extensions.offline.format import Header, write_shard


@given(shape=trees)
@settings(max_examples=6, deadline=None)
def test_any_strings_are_keys_that_come_back_from_every_file(
    shape: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("keys")
    obs = tree.map_tree(lambda leaf: np.full((4, leaf % 3 + 1), leaf, np.uint8), shape)
    header = Header(env="a", observation_space=space_of(shape), action_space=gym.spaces.Discrete(2), extras={})
    episode = RecordedEpisode(
        obs=obs, action=np.arange(3) % 2, reward=np.arange(3.0), terminated=False, truncated=True, extras={}
    )
    for suffix in (".npz", ".hdf5"):
        write_shard(folder / f"data{suffix}", header, [episode])
        buffer = tk.load_dataset(folder / f"data{suffix}", seed=0)
        assert buffer.observation_space == header.observation_space
        assert_comes_back(buffer, episode, folder, suffix)
