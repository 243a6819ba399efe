"""Keys of dict observations: every string comes back from every file, anything else raises where parts are made."""

import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings

import trainkit as tk
from tests.core.observation_trees import assert_comes_back, space_of, trees
from trainkit.core import tree
from trainkit.core.data import ArraySpec, RecordedEpisode, RowSpec
from trainkit.core.spaces import Spaces


@given(shape=trees)
@settings(max_examples=30)
def test_no_two_leaves_have_one_path(shape: Any) -> None:
    paths = [path for path, _ in tree.named_leaves(shape)]
    assert len(set(paths)) == len(paths)
    assert not any(set(path) & set("/\\\0\ud800") for path in paths)


@given(shape=trees)
@settings(max_examples=6, deadline=None)
def test_any_strings_are_keys_that_come_back_from_every_file(
    shape: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("keys")
    space = space_of(shape)
    obs = tree.map_tree(lambda leaf: np.full((4, leaf % 3 + 1), leaf, np.uint8), shape)
    episode = RecordedEpisode(
        obs=obs, action=np.arange(3) % 2, reward=np.arange(3.0), terminated=False, truncated=True, extras={}
    )
    before, after = (tree.map_tree(lambda leaf, rows=rows: leaf[rows], obs) for rows in (slice(3), slice(1, 4)))
    ends = {"terminated": np.zeros(3, np.bool_), "truncated": np.arange(3) == 2}
    buffer = tk.ReplayBuffer.from_arrays(
        obs=before, next_obs=after, action=episode.action, reward=episode.reward, **ends,
        spaces=Spaces(observation_space=space, action_space=gym.spaces.Discrete(2)), seed=0,
    )  # fmt: skip
    assert_comes_back(buffer, episode, folder, ".npz")
    assert_comes_back(buffer, episode, folder, ".hdf5")


class Keyed(gym.Env[Any, Any]):
    """Observe one number under a key."""

    def __init__(self, key: Any) -> None:
        self.observation_space = gym.spaces.Dict({key: gym.spaces.Box(-1, 1, (2,), np.float32)})
        self.action_space = gym.spaces.Discrete(2)
        self._obs, self._t = {key: np.zeros(2, np.float32)}, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._t = 0
        return self._obs, {}

    def step(self, action: Any) -> Any:
        self._t += 1
        return self._obs, 1.0, self._t == 5, False, {}


@pytest.mark.parametrize("key", ["$array", "a.b", "../x", ".", "%"])
def test_a_run_with_a_special_key_trains_saves_and_loads(key: str, tmp_path: Path) -> None:
    def make() -> tk.OffpolicyTrainer[Any]:
        envs = tk.make_envs(lambda: Keyed(key), 2, seed=0)
        policy = tk.DQNPolicy.for_envs(envs, hidden=(4,), device="cpu")
        collector = tk.Collector(policy, envs, tk.ReplayBuffer(100))
        quiet: Any = {"verbose": False, "seed": 0, "evaluation": None}
        return tk.OffpolicyTrainer(
            policy, collector, max_epoch=1, step_per_epoch=40, batch_size=8, update_per_step=0.1, **quiet
        )

    trainer = make()
    trainer.run()
    trainer.save(tmp_path / "run")
    other = make()
    other.load(tmp_path / "run")
    assert len(other.buffer) == 40
    obs = {key: np.ones(2, np.float32)}
    assert tk.load_policy(tmp_path / "run", device="cpu").predict(obs) == trainer.policy.predict(obs)


@pytest.mark.parametrize("key", [0, 7, None, True, ("a", "b"), 1.5, b"a"])
def test_keys_that_are_no_strings_raise_where_parts_are_made(key: Any) -> None:
    rule = rf"must have strings as keys, got {re.escape(repr(key))}: rename it to "
    box = gym.spaces.Box(-1, 1, (2,), np.float32)
    spaces = gym.spaces.Dict()
    spaces.spaces = {key: box}
    spec = RowSpec(
        n_envs=1,
        obs={key: ArraySpec(shape=(2,), dtype=np.dtype(np.float32))},
        action=ArraySpec(shape=(), dtype=np.dtype(np.int64)),
        extras={},
    )
    both = Spaces(observation_space=spaces, action_space=gym.spaces.Discrete(2))
    columns: Any = {"action": np.zeros(2), "reward": np.zeros(2), "terminated": np.ones(2, np.bool_)}
    for make in (
        lambda: tk.make_envs(lambda: Keyed(key), 1),
        lambda: tk.ReplayBuffer(9).bind(spec),
        lambda: tk.RolloutBuffer().bind(spec),
        lambda: tk.ReplayBuffer(9, spaces=both),
        lambda: tk.ReplayBuffer.from_arrays(obs={key: np.zeros((2, 1))}, **columns),
        lambda: tk.DQNPolicy.for_envs(both, hidden=(4,), device="cpu"),
        lambda: tk.PPOPolicy.for_envs(both, hidden=(4,), device="cpu"),
        lambda: tk.DQNPolicy(
            tk.nets.QNetwork((2,), 2, hidden=(4,)),
            observation_space=spaces,
            action_space=gym.spaces.Discrete(2),
            device="cpu",
        ),
    ):
        with pytest.raises(tk.ConfigError, match=rule):
            make()


def test_rows_added_by_hand_with_other_keys_raise() -> None:
    obs, none = {0: np.zeros((1, 2), np.float32)}, np.zeros(1, np.bool_)
    ids, numbers = np.zeros(1, np.intp), np.zeros(1)
    step = tk.Transition(obs, numbers, numbers, obs, none, none, ids, {})
    with pytest.raises(tk.ConfigError, match="must have strings as keys, got 0"):
        tk.ReplayBuffer(9).add(step)
