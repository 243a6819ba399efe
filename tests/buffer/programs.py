"""Random programs for a replay buffer and its slow reference, run in parallel."""

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from tests.buffer.reference import COLUMNS, SlowReplay, assert_same
from tests.buffer.stream import CONTINUES, FORMS, TERMINATES, Form, Stream
from trainkit.buffer import PrioritizedReplayBuffer, ReplayBuffer
from trainkit.core.data import Horizon, TransitionBatch
from trainkit.core.errors import EmptyBufferError

ALPHA, EPS = 0.6, 0.01

Operation = tuple[Any, ...]


@st.composite
def settings(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a small buffer of any kind: capacities that do not divide, stacks, observations of any form."""
    n_envs = draw(st.integers(1, 4))
    lo = draw(st.integers(1, 5))
    return {
        "kind": draw(st.sampled_from([ReplayBuffer, PrioritizedReplayBuffer])),
        "capacity": draw(st.integers(n_envs, 40)),
        "n_envs": n_envs,
        "stack": draw(st.integers(1, 4)),
        "form": draw(st.sampled_from(FORMS)),
        "n_step": draw(st.just(lo) | st.tuples(st.just(lo), st.integers(lo, 7))),
        "normalize": draw(st.sampled_from(["batch", "buffer"])),
    }


def operations(n_envs: int) -> st.SearchStrategy[list[Operation]]:
    """Draw programs: runs of steps with cuts, drops, rewrites, priorities, clears and saves between them."""
    some_envs = st.sets(st.integers(0, n_envs - 1)).map(sorted)
    n_steps, length = st.integers(1, 25), st.integers(0, 9)
    return st.lists(
        st.tuples(st.just("run"), some_envs | st.none(), n_steps, length)
        | st.tuples(st.sampled_from(["cut", "drop", "skip"]), some_envs)
        | st.tuples(st.sampled_from(["learn", "learn_late", "rewrite", "clear", "reload"])),
        min_size=1,
        max_size=12,
    )


class Run:
    """A buffer, its reference, and the stream that feeds both."""

    def __init__(
        self,
        kind: type[ReplayBuffer],
        capacity: int,
        n_envs: int,
        stack: int = 1,
        form: Form = "array",
        n_step: int | tuple[int, int] = 1,
        normalize: str = "batch",
    ) -> None:
        self.options: dict[str, Any] = {"n_envs": n_envs, "stack": stack}
        if kind is PrioritizedReplayBuffer:
            self.options |= {"alpha": ALPHA, "eps": EPS, "beta": 1.0, "normalize": normalize}
        self.kind, self.capacity, self.normalize = kind, capacity, normalize
        self.horizon = Horizon(n_step, gamma=0.5)
        self.buffer = kind(capacity, seed=1, **self.options)
        self.reference = SlowReplay(capacity, n_envs)
        self.stream = Stream(n_envs, form, stack)
        self.held: list[int] = []  # slots of an earlier batch, perhaps overwritten since

    def do(self, name: str, *arguments: Any) -> None:
        """Carry one operation out on both, and compare."""
        getattr(self, name)(*arguments)
        assert len(self.buffer) == len(self.reference)
        if len(self.reference):
            self.sample(16)
        else:
            with pytest.raises(EmptyBufferError):
                self.sample(16)

    def sample(self, batch_size: int) -> TransitionBatch:
        """Sample a batch and compare it with the reference."""
        batch = self.buffer.sample(batch_size, horizon=self.horizon, columns=COLUMNS)
        self.reference.assert_true(batch, self.horizon)
        if self.kind is PrioritizedReplayBuffer:
            masses = self.reference.masses(ALPHA, EPS)
            drawn = np.array([masses[slot] for slot in batch.slots.tolist()])
            smallest = drawn.min() if self.normalize == "batch" else min(masses.values())
            np.testing.assert_allclose(batch.weight, smallest / drawn, rtol=1e-6)
        else:
            np.testing.assert_array_equal(batch.weight, np.ones(batch_size))
        return batch

    def run(self, env_ids: list[int] | None, n_steps: int, length: int) -> None:
        """Make steps; environment e ends its episodes after `length + e` steps, in every way by turns; 0 is never."""
        ids = range(self.stream.n_envs) if env_ids is None else env_ids
        for _ in range(n_steps if ids else 0):
            ends = [
                TERMINATES + self.stream.episode[env] % 3
                if length and self.stream.step[env] + 1 >= length + env
                else CONTINUES
                for env in ids
            ]
            step = self.stream.next(ids, ends)
            self.reference.add(step, self.buffer.add(step))

    def cut(self, env_ids: list[int]) -> None:
        self.buffer.cut(env_ids)
        self.reference.cut(env_ids)
        self.stream.begin(env_ids)

    def drop(self, env_ids: list[int]) -> None:
        assert self.buffer.drop(env_ids) == self.reference.drop(env_ids)
        self.stream.begin(env_ids)

    def skip(self, env_ids: list[int]) -> None:
        """Leave rows out; not of stacks, whose frames before the next row would be missing."""
        if self.stream.stack == 1:
            self.stream.skip(env_ids, 2)

    def clear(self) -> None:
        self.buffer.clear()
        self.reference.clear()
        self.stream.begin(range(self.stream.n_envs))

    def rewrite(self) -> None:
        """Change rewards, some of rows that are gone."""
        rewards = [1.0 + k for k in range(len(self.held))]
        if self.held:
            self.buffer.rewrite(np.array(self.held), reward=rewards)
            self.reference.rewrite(self.held, rewards)

    def learn(self) -> None:
        """Write priorities for a batch just drawn, and hold it."""
        if len(self.reference):
            self.held = self.sample(8).slots.tolist()
            self.learn_late()

    def learn_late(self) -> None:
        """Write priorities for a batch drawn some time ago; a row named twice gets the last of its two."""
        priorities = [(3 * slot + k) % 11 / 4 for k, slot in enumerate(self.held)]
        if self.held:
            self.buffer.update_priorities(np.array(self.held), np.array(priorities))
            self.reference.update_priorities(self.held, priorities)

    def reload(self) -> None:
        """Continue with a copy made from a saved state, after checking that both would continue alike."""
        again = self.kind(self.capacity, seed=2, **self.options)
        again.load_state_dict(copy.deepcopy(self.buffer.state_dict()))
        for _ in range(2 if len(self.buffer) else 0):
            ours, theirs = (b.sample(5, horizon=self.horizon, columns=COLUMNS) for b in (self.buffer, again))
            for name in ("obs", "action", "reward", "discount", "next_obs", "weight", "slots", "extras"):
                assert_same(getattr(theirs, name), getattr(ours, name))
        self.buffer = again
