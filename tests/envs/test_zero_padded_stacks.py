"""Stacks of frames with zeros before an episode's first frame, next to those of Gymnasium's wrapper."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import trainkit as tk
from tests.helpers.padded import Flicker, assert_same_rows, by_gymnasium, collected


@pytest.mark.one_of_each
@pytest.mark.parametrize("way", ["sync", "async", "vector"])
@pytest.mark.parametrize("n_steps", [(50,), (7, 1, 150)])  # the second fills the ring more than once
def test_stacks_are_those_of_gymnasiums_wrapper(way: Any, n_steps: tuple[int, ...]) -> None:
    if way == "vector":
        made = tk.make_envs(gym.vector.SyncVectorEnv([Flicker] * 2), stack=4, pad="zero")
        rows = collected(made, *n_steps).sample(None, horizon=tk.Horizon())
        ages = (np.asarray(rows.obs) != 0).all(axis=(2, 3)).sum(axis=1)  # frames that are there
        assert set(ages.tolist()) == {1, 2, 3, 4}
        assert (np.asarray(rows.obs)[ages == 1, :3] == 0).all()
        return
    own = collected(tk.make_envs(Flicker, 2, seed=3, backend=way, stack=4, pad="zero"), *n_steps)
    assert own[:].obs.shape == (len(own), 4, 24, 22)
    assert_same_rows(own, by_gymnasium(*n_steps))


def test_rows_added_by_hand_that_continue_stay_one_episode() -> None:
    source = tk.make_envs(Flicker, 2, seed=3, stack=4, pad="zero")
    buffer = tk.ReplayBuffer(60, seed=1)
    collector = tk.Collector(tk.RandomPolicy(source.action_space, seed=1), source, buffer)
    for _ in range(30):
        collector.collect(n_step=2)
        source.obs = np.array(source.obs)
    assert_same_rows(buffer, by_gymnasium(60))


def test_a_saved_buffer_keeps_the_zeros(tmp_path: Path) -> None:
    buffer = collected(tk.make_envs(Flicker, 2, seed=3, stack=4, pad="zero"), 50)
    buffer.save(tmp_path / "buffer")
    assert_same_rows(tk.ReplayBuffer.load(tmp_path / "buffer"), buffer)


def test_a_policy_is_evaluated_in_environments_with_the_same_zeros() -> None:
    envs = tk.make_envs(Flicker, 2, stack=4, pad="zero")
    assert envs.for_evaluation()["env_options"] == {"stack": 4, "pad": "zero"}
    assert envs.made_with["pad"] == "zero"
    assert "pad" not in tk.make_envs(Flicker, 2, stack=4).made_with


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pad": "zero"}, 'make_envs.pad="zero" is for stacks of frames: give stack'),
        ({"stack": 4, "pad": "zeros"}, r"make_envs.pad must be one of \['repeat', 'zero'\], got 'zeros'"),
    ],
)
def test_what_cannot_be_padded_is_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(tk.ConfigError, match=message):
        tk.make_envs(Flicker, 2, **options)
