"""Running episodes, gathered step by step, compared with lists that do the same row by row."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from trainkit.core.data import ArraySpec, RecordedEpisode, Transition
from trainkit.extensions.offline import writer
from trainkit.extensions.offline.format import Header
from trainkit.extensions.offline.writer import OpenEpisodes

HEADER = Header(
    env="Rows-v0",
    observation_space=spaces.Dict({"row": spaces.Box(-1e6, 1e6, (2,)), "n": spaces.Discrete(1_000_000)}),
    action_space=spaces.Discrete(1_000_000),
    extras={"twice": ArraySpec(shape=(), dtype=np.dtype(np.float64))},
)


class Reference:
    """The same in lists, one environment after the other."""

    def __init__(self, n_envs: int, begun: list[int]) -> None:
        self.open: list[list[tuple[Any, ...]]] = [[] for _ in range(n_envs)]
        self.waits = set(begun)

    def add(self, step: Transition) -> list[Any]:
        ended = []
        for row, env in enumerate(step.env_ids.tolist()):
            is_last = bool(step.terminated[row] or step.truncated[row])
            if env not in self.waits:
                self.open[env].append((step.obs["n"][row], step.action[row], step.reward[row], step.next_obs["n"][row]))
                if is_last:
                    ended.append(self.take(env, bool(step.terminated[row]), bool(step.truncated[row])))
            if is_last:
                self.waits.discard(env)
        return ended

    def cut(self, envs: list[int]) -> list[Any]:
        self.waits -= set(envs)
        return [self.take(env, False, False) for env in envs if self.open[env]]

    def drop(self, envs: list[int]) -> None:
        self.waits -= set(envs)
        for env in envs:
            self.open[env] = []

    def take(self, env: int, terminated: bool, truncated: bool) -> Any:
        rows, self.open[env] = self.open[env], []
        obs = [row[0] for row in rows] + [rows[-1][3]]
        return obs, [row[1] for row in rows], [row[2] for row in rows], terminated, truncated


def plain(episode: RecordedEpisode) -> Any:
    """Return what a reference would, after a look at the columns it leaves out."""
    n = episode.obs["n"]
    assert_array_equal(episode.obs["row"], np.stack([n, -n], axis=1))
    assert_array_equal(episode.extras["twice"], 2 * episode.reward)
    columns = n.tolist(), episode.action.tolist(), episode.reward.tolist()
    return *columns, episode.terminated, episode.truncated


class Stream:
    """Environments whose observations count on, also from one episode to the next, so that no two are alike."""

    def __init__(self, n_envs: int) -> None:
        self.n = 1_000 * np.arange(n_envs)

    def step(self, env_ids: Any, ends: Any) -> Transition:
        envs = np.array(env_ids)
        before, after = self.n[envs], self.n[envs] + 1
        self.n[envs] += 2  # what begins next is not what was seen last, where an episode ended
        flags = np.array(ends, np.int64).reshape(len(envs))
        self.n[envs[flags == 0]] -= 1
        reward = before + 0.5
        obs, next_obs = ({"row": np.stack([n, -n], axis=1).astype(np.float32), "n": n} for n in (before, after))
        extras = {"twice": 2 * reward}
        return Transition(obs, before + 7, reward, next_obs, (flags & 1) > 0, (flags & 2) > 0, envs, extras)


@settings(deadline=None, max_examples=40)
@given(st.data(), st.integers(1, 4))
def test_episodes_equal_those_of_the_reference(data: st.DataObject, n_envs: int) -> None:
    everyone = list(range(n_envs))
    some = st.lists(st.sampled_from(everyone), unique=True).map(sorted)
    begun = data.draw(some)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "_N_STEPS", 4)
        episodes, reference = OpenEpisodes(HEADER, n_envs, np.array(begun, np.intp)), Reference(n_envs, begun)
    stream = Stream(n_envs)
    given_: list[tuple[Any, Any]] = []
    for _ in range(data.draw(st.integers(1, 40))):
        what = data.draw(st.sampled_from(["all", "all", "all", "some", "cut", "drop"]))
        ids = everyone if what == "all" else data.draw(some)
        envs = np.array(ids, np.intp)
        if what == "drop":
            episodes.drop(envs)
            reference.drop(ids)
        elif what == "cut":
            given_ += zip(episodes.cut(envs), reference.cut(ids), strict=True)
        else:
            ends = data.draw(st.lists(st.sampled_from([0, 0, 0, 0, 1, 2, 3]), min_size=len(ids), max_size=len(ids)))
            step = stream.step(envs, ends)
            given_ += zip(episodes.add(step), reference.add(step), strict=True)
    given_ += zip(episodes.cut(np.array(everyone)), reference.cut(everyone), strict=True)
    for episode, wanted in given_:  # only now: nothing that came later has written into them
        assert plain(episode) == wanted


def test_the_capacity_follows_the_longest_episode_only() -> None:
    episodes, stream = OpenEpisodes(HEADER, 2, np.zeros(0, np.intp)), Stream(2)
    episodes.add(stream.step([0, 1], [0, 1]))
    for _ in range(20):  # the first environment rests, in the middle of nothing, while the other continues
        episodes.drop(np.array([0]))
        for _ in range(99):
            episodes.add(stream.step([1], [0]))
        episodes.add(stream.step([1], [1]))
    assert len(episodes._reward) <= 2 * 128 + 1
    for _ in range(1_000):
        episodes.add(stream.step([0, 1], [0, 0]))
    (first, second) = episodes.cut(np.arange(2))
    assert (len(first), len(second)) == (1_000, 1_000)
    assert len(episodes._reward) <= 2 * 1_024 + 1
