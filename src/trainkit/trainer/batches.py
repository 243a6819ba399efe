"""Learning from a replay buffer: the updates that are pending, their batches, and how both are saved."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import fields
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit.core import tree
from trainkit.core.data import Batch
from trainkit.core.protocols import Learner, RoundBuffer

ReadPriority = Callable[[], NDArray[np.float32] | None]  # waits for the device


class PendingUpdates:
    """The updates that the environment steps so far call for, exactly: a ratio of 0.3 gives 300 in 1,000 steps.

    Args:
        ratio: updates per step.

    Attributes:
        n_steps: environment steps that call for updates.
        n_updates: updates that were performed, or canceled; less than 0 by those pending from another ratio.
    """

    def __init__(self, ratio: float | Fraction) -> None:
        exact = ratio if isinstance(ratio, Fraction) else Fraction(str(ratio))
        self._numerator, self._denominator = exact.numerator, exact.denominator
        self.n_steps = 0
        self.n_updates = 0

    @property
    def count(self) -> int:
        """Number of complete pending updates."""
        return self.count_after(0)

    def count_after(self, n_steps: int) -> int:
        """Return the number of complete pending updates after further steps."""
        return (self.n_steps + n_steps) * self._numerator // self._denominator - self.n_updates

    def use_ratio(self, ratio: Fraction) -> None:
        """Let further steps call for updates at another ratio; those that are pending stay."""
        if ratio != Fraction(self._numerator, self._denominator):
            self.n_steps, self.n_updates = 0, -self.count
            self._numerator, self._denominator = ratio.numerator, ratio.denominator

    def state_dict(self) -> dict[str, Any]:
        """Return the ratio and the counts."""
        ratio = [self._numerator, self._denominator]
        return {"n_steps": self.n_steps, "n_updates": self.n_updates, "ratio": ratio}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore saved counts; those of another ratio leave the updates that are pending."""
        self.n_steps, self.n_updates = state["n_steps"], state["n_updates"]
        own = Fraction(self._numerator, self._denominator)
        self._numerator, self._denominator = state["ratio"]
        self.use_ratio(own)


class UpdateQueue:
    """The updates of one learner: how many are pending, their batches, and priorities to be written.

    Args:
        learner: the policy, its buffer and its clock.
        ratio: updates per step of the policy.
        learns_from: the step from which updates follow.

    Attributes:
        learns_from: may be set.
        pending: the updates that steps so far call for.
        batches: drawn and not learned from yet: a round that has begun.
        unwritten: slots, and their priorities when read.
    """

    def __init__(self, learner: Learner, ratio: Fraction, learns_from: int, n_per_round: int) -> None:
        self.learner, self.learns_from = learner, learns_from
        self.pending = PendingUpdates(ratio)
        self.batches: deque[Batch] = deque()
        self.unwritten: list[tuple[NDArray[np.int64], ReadPriority]] = []
        self._learning_starts, self._n_per_round = learns_from, n_per_round
        self._collect_start = learner.clock.env_step

    def start_at(self, learning_starts: int) -> None:
        """Learn from another step on, unless it learns already."""
        if self.learner.clock.env_step < self.learns_from:
            self.learns_from += learning_starts - self._learning_starts
        self._learning_starts = learning_starts

    def start_collect(self) -> None:
        """Note the clock before a collect."""
        self._collect_start = self.learner.clock.env_step

    def end_collect(self) -> None:
        """Add the steps of the collect that has ended, from which updates follow at the ratio."""
        if self.learner.clock.env_step >= self.learns_from:
            self.pending.n_steps += self.learner.clock.env_step - self._collect_start

    @property
    def n_ready(self) -> int:
        """The remaining updates of a started round, and the pending updates that fill complete rounds."""
        n_drawn = len(self.batches)
        n_rounds = max(0, self.pending.count - n_drawn) // self._n_per_round
        if n_rounds and not len(self.learner.buffer):  # a failed environment may take all rows with it
            return n_drawn
        return n_drawn + n_rounds * self._n_per_round

    @property
    def has_rest(self) -> bool:
        """Whether an update is left that does not fill a complete round."""
        return bool(self.batches) or (self.pending.count > 0 and len(self.learner.buffer) > 0)

    def sample(self, batch_size: int | None) -> None:
        """Sample a batch, or a round of them."""
        learner, step = self.learner, self.learner.clock.env_step
        n_batches = min(self.pending.count, self._n_per_round)
        if n_batches == 1:
            self.batches.append(learner.policy.sample_batch(learner.buffer, batch_size, step=step))
        else:
            assert isinstance(learner.buffer, RoundBuffer), "`check_replay` rejects other buffers"
            assert batch_size is not None, "`check_replay` rejects rounds of it"
            how: dict[str, Any] = {"horizon": learner.policy.horizon, "step": step, "columns": learner.policy.columns}
            self.batches.extend(learner.buffer.sample_round(n_batches, batch_size, **how))

    def write_priorities(self, n_written: int) -> None:
        """Write the new priorities of the oldest updates; a row sampled twice keeps its last one."""
        read = [(slots, read_priority()) for slots, read_priority in self.unwritten[:n_written]]
        del self.unwritten[:n_written]
        known = [(slots, priority) for slots, priority in read if priority is not None]
        if known:
            slots, priorities = zip(*known, strict=True)
            self.learner.buffer.update_priorities(np.concatenate(slots), np.concatenate(priorities))

    def discard(self, learning_starts: int) -> None:
        """Learn again `learning_starts` rows from here; a fraction of a pending update stays."""
        self.learns_from = self.learner.clock.env_step + learning_starts
        self.pending.n_updates += self.pending.count
        self.batches.clear()
        self.unwritten.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return the pending updates, and sampled batches and priorities that are not used yet."""
        unwritten = [{"slots": slots, "priority": read_priority()} for slots, read_priority in self.unwritten]
        return {
            "pending": self.pending.state_dict(),
            "batches": [batch_to_plain(batch) for batch in self.batches],
            "unwritten": unwritten,
            "learns_from": self.learns_from,
            "learning_starts": self._learning_starts,
            "collect_start": self._collect_start,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        self.pending.load_state_dict(state["pending"])
        self.batches = deque(batch_from_plain(self.learner.policy.batch_type, plain) for plain in state["batches"])
        self.unwritten = [(one["slots"], partial(_same, one["priority"])) for one in state["unwritten"]]
        self.learns_from, own = state["learns_from"], self._learning_starts
        self._learning_starts = state["learning_starts"]
        self.start_at(own)  # where it differs
        self._collect_start = state["collect_start"]


def _same(priority: NDArray[np.float32] | None) -> NDArray[np.float32] | None:
    return priority


# ---- batches ----


def batch_to_plain(batch: Batch) -> dict[str, Any]:
    """Return a batch as values that a checkpoint can contain."""
    given: Any = batch
    plain = {one.name: getattr(batch, one.name) for one in fields(given)}
    trees = {name: tree.to_plain(tree.map_tree(np.asarray, plain[name])) for name in batch.obs_fields}
    return plain | trees


def batch_from_plain(kind: type[Batch], plain: Mapping[str, Any]) -> Batch:
    """Return the batch of a checkpoint, of a class."""
    return kind(**{**plain, **{name: tree.from_plain(plain[name]) for name in kind.obs_fields}})
