"""Dict observations of any keys, and the check that a buffer gives them back."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

import trainkit as tk
from trainkit.core import tree
from trainkit.core.checkpoint import load_checkpoint, save_checkpoint
from trainkit.core.data import RecordedEpisode

SPECIAL = [
    "", ".", "..", "a.b", "a", "b", "/", "../../x", "$array", "$$array", "array_0", "%", "%2E", "0", "dict", "\n",
    "skeleton", "kind", "é", "\ud800", "\\", "\0", "obs", "meta", "action_mask.", " ", "A", "a%2Eb", "leaf", "file",
]  # fmt: skip
keys = st.sampled_from(SPECIAL) | st.text(st.characters(exclude_categories=()), max_size=4)
trees = st.recursive(
    st.integers(0, 255),
    lambda inner: (
        st.dictionaries(keys, inner, min_size=1, max_size=3) | st.lists(inner, min_size=1, max_size=2).map(tuple)
    ),
    max_leaves=6,
).filter(lambda one: isinstance(one, dict))


def space_of(shape: Any) -> gym.spaces.Space[Any]:
    """Return the space of a tree of numbers, each leaf of another width."""
    if isinstance(shape, dict):
        return gym.spaces.Dict({key: space_of(child) for key, child in shape.items()})
    if isinstance(shape, tuple):
        return gym.spaces.Tuple([space_of(child) for child in shape])
    return gym.spaces.Box(0, 255, (shape % 3 + 1,), np.uint8)


def assert_comes_back(buffer: tk.ReplayBuffer, episode: RecordedEpisode, folder: Path, suffix: str) -> None:
    """Save a buffer of one episode in a file and in a checkpoint, and compare what is loaded."""
    buffer.save(folder / f"buffer{suffix}")
    plain = {"tree": tree.to_plain(episode.obs)}
    save_checkpoint(folder / suffix, {"buffer": buffer.state_dict(), "obs": plain}, {})
    other = tk.ReplayBuffer(3, n_envs=1, seed=1)
    components = load_checkpoint(folder / suffix)
    other.load_state_dict(components["buffer"])
    for one in (buffer, tk.ReplayBuffer.load(folder / f"buffer{suffix}"), other):
        assert one.spaces is None or one.observation_space == buffer.observation_space
        (got,) = one.episodes()
        for here, there in zip(tree.leaves(got.obs), tree.leaves(episode.obs), strict=True):
            assert here.dtype == there.dtype
            assert_array_equal(here, there)
        assert_array_equal(got.action, episode.action)
        assert_array_equal(got.reward, episode.reward)
        assert (got.terminated, got.truncated) == (episode.terminated, episode.truncated)
    tree.map_tree(assert_array_equal, tree.from_plain(components["obs"]["tree"]), episode.obs)
