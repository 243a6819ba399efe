"""Random programs over every autoreset mode, with episodes of random lengths: what is stored is what happened."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.helpers.doubles import Ledger, Player
from tests.helpers.tagged import TaggedEnv, decode, is_terminated, is_truncated, reward
from tests.helpers.truth import assert_nothing_is_missing
from trainkit.collector import Collector
from trainkit.envs import Envs, make_envs

IN_PROCESS = ["sync", *(f"sync {mode.name}" for mode in AutoresetMode)]
IN_PROCESSES = ["async", *(f"async {mode.name}" for mode in AutoresetMode)]
# Python 3.12 warns of fork() in a process with threads, and gymnasium of workers that fail.
forks = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")

Lengths = list[list[int]]  # [N][episode], taken in turn


class Lasting:
    """Return an episode's length, by a table."""

    def __init__(self, lengths: Lengths) -> None:
        self.lengths = lengths

    def __call__(self, env: Any, episode: Any) -> int:
        row = self.lengths[env]
        return row[episode % len(row)]


def envs_of(way: str, lengths: Lengths) -> Envs:
    kind, _, mode = way.partition(" ")
    factories = [partial(TaggedEnv, env, "array", Lasting(lengths)) for env in range(len(lengths))]
    if not mode:
        return make_envs(factories, backend=kind)  # type: ignore[arg-type]  # a word of ours
    vector: Any = {"sync": SyncVectorEnv, "async": AsyncVectorEnv}[kind]
    return make_envs(vector(factories, autoreset_mode=AutoresetMode[mode]))


@st.composite
def tables(draw: st.DrawFn) -> Lengths:
    """Draw how long the episodes of 1 to 4 environments are, most of them a step or two."""
    length = st.sampled_from([1, 1, 1, 2, 2, 3, 5, 9])
    return draw(st.lists(st.lists(length, min_size=1, max_size=5), min_size=1, max_size=4))


programs = st.lists(
    st.tuples(st.sampled_from(["steps", "steps", "steps", "episodes"]), st.integers(1, 17))
    | st.tuples(st.just("reset"), st.just(0)),
    min_size=1,
    max_size=8,
)


def follow(way: str, lengths: Lengths, program: list[tuple[str, int]]) -> None:
    """Collect as a program says, and hold every row against the rules and the environments' own logs."""
    envs, ledger = envs_of(way, lengths), Ledger()
    collector = Collector(Player(), envs, ledger)
    n_over = 0
    for name, count in program:
        before = len(ledger)
        if name == "reset":
            collector.reset()
            continue
        requested = {"steps": "n_step", "episodes": "n_episode"}[name]
        stats = collector.collect(**{requested: count})  # type: ignore[arg-type]  # counts
        assert stats.n_step == len(ledger) - before
        if name == "episodes":
            assert stats.n_episode == count
        n_over += stats.n_episode
    assert collector.env_step == len(ledger)
    if ledger.steps:
        rows = ledger.rows()
        tags, after = decode(rows.obs), decode(rows.next_obs)
        env, episode, step = tags[:, :3].T
        np.testing.assert_array_equal(env, rows.env_ids)
        np.testing.assert_array_equal(after[:, :3], np.stack([env, episode, step + 1], axis=1))
        np.testing.assert_array_equal(after[:, 3], rows.action)
        np.testing.assert_array_equal(rows.reward, reward(env, episode, step))
        ends = step + 1 == lasting(lengths, env, episode)
        np.testing.assert_array_equal(rows.terminated, ends & is_terminated(env, episode))
        np.testing.assert_array_equal(rows.truncated, ends & is_truncated(env, episode))
        assert int(ends.sum()) == n_over
        assert_steps_follow_each_other(env, episode, step, ends)
        assert_nothing_is_missing(rows, envs.call("log"), has_extra_steps=way not in ("sync", "async"))
    envs.close()


def lasting(lengths: Lengths, env: NDArray[Any], episode: NDArray[Any]) -> NDArray[np.int64]:
    note = Lasting(lengths)
    return np.array([note(e, k) for e, k in zip(env.tolist(), episode.tolist(), strict=True)])


def assert_steps_follow_each_other(env: Any, episode: Any, step: Any, ends: Any) -> None:
    """Check in each environment that a row continues the one before, or begins a later episode."""
    for one in np.unique(env):
        here = env == one
        for (a, s, over), (b, t) in zip(
            zip(episode[here][:-1], step[here][:-1], ends[here][:-1], strict=True),
            zip(episode[here][1:], step[here][1:], strict=True),
            strict=True,
        ):
            assert (b, t) == (a, s + 1) if b == a else (b > a and t == 0)
            assert not (over and b == a)


@pytest.mark.parametrize("way", IN_PROCESS)
@settings(max_examples=25)
@given(tables(), programs)
def test_any_program_over_any_autoreset_stores_what_happened(
    way: str, lengths: Lengths, program: list[tuple[str, int]]
) -> None:
    follow(way, lengths, program)


@pytest.mark.parametrize("way", IN_PROCESSES)
@forks
@settings(max_examples=2)
@given(tables(), programs)
def test_any_program_over_processes_stores_what_happened(
    way: str, lengths: Lengths, program: list[tuple[str, int]]
) -> None:
    follow(way, lengths, program)


@pytest.mark.slow
@pytest.mark.parametrize("way", IN_PROCESS)
@settings(max_examples=2_500)  # in each of four ways
@given(tables(), programs)
def test_thousands_of_programs_over_any_autoreset_store_what_happened(
    way: str, lengths: Lengths, program: list[tuple[str, int]]
) -> None:
    follow(way, lengths, program)
