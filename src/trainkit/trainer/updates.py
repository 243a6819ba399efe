"""Updates from a replay buffer: when batches are drawn, and when the priorities they taught are written."""

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trainkit.core import tree
from trainkit.core.data import TransitionBatch
from trainkit.core.errors import Checks, ConfigError
from trainkit.core.protocols import Buffer, FrameStore, Learner, RoundBuffer, UpdateResult

Refresh = Literal["update", "late", "round"]


class ReplayUpdates:
    """Draw batches, learn from each, write what it taught: in an order that is fixed, without threads.

    Args:
        policy: learns.
        buffer: has the rows, and priorities perhaps.
        batch_size: rows per update; None is every row of the buffer, once.
        refresh: when priorities are written: after each "update"; "late", when the next batch has been drawn; or
            after a "round" of updates, whose batches are drawn in one pass.
        per_round: updates of a round, 1 where there are none.
        refine: called with every batch before it is learnt from; what it returns is learnt from instead.
        timed: measures a part by its name, "sample" or "priorities".
    """

    def __init__(
        self,
        policy: Learner,
        buffer: Buffer,
        batch_size: int | None,
        refresh: Refresh,
        per_round: int,
        refine: Callable[[TransitionBatch], TransitionBatch] = lambda batch: batch,
        timed: Callable[[str], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        _refuse_other_device(policy, buffer)
        self._policy, self._buffer, self._batch_size = policy, buffer, batch_size
        self._rounds = buffer if isinstance(buffer, RoundBuffer) else None  # looked at once: it takes 90 us
        self._refine, self._timed = refine, timed
        self._is_late = refresh == "late"
        self.per_round = per_round
        self._drawn: deque[TransitionBatch] = deque()  # and not learnt from yet
        self._learnt: list[tuple[NDArray[np.int64], UpdateResult]] = []  # slots and results not written yet

    @property
    def n_drawn(self) -> int:
        """Updates whose batches are drawn already: a round that has begun."""
        return len(self._drawn)

    def update(self, owed: int, *, step: int) -> int:
        """Learn from one batch and return its number of rows; of those `owed` a round draws as many as it has."""
        if not self._drawn:
            with self._timed("sample"):
                self._draw(min(owed, self.per_round), step)
            if self._is_late:
                self._write()
        batch = self._refine(self._drawn[0])
        self._drawn.popleft()  # only now: what raises must not lose it
        result = self._policy.update(batch, step=step)
        if self._buffer.prioritized:
            self._learnt.append((batch.slots, result))
        if not (self._drawn or self._is_late):
            self._write()
        return len(batch.reward)

    def _draw(self, n_batches: int, step: int) -> None:
        asked: dict[str, Any] = {"horizon": self._policy.horizon, "step": step, "columns": self._policy.columns}
        if n_batches == 1:
            self._drawn.append(self._buffer.sample(self._batch_size, **asked))
        else:
            assert self._rounds is not None, "`check_refresh` has seen to it"
            assert self._batch_size is not None, "`OffpolicyTrainer` has seen to it"
            self._drawn.extend(self._rounds.sample_round(n_batches, self._batch_size, **asked))

    def _write(self) -> None:
        """Write all priorities there are, at once; of a row that was drawn twice the last one stays."""
        if not self._learnt:
            return
        with self._timed("priorities"):
            read = [(slots, result.read_priority()) for slots, result in self._learnt]
            self._learnt.clear()
            told = [(slots, priority) for slots, priority in read if priority is not None]
            if told:
                slots, priorities = zip(*told, strict=True)
                self._buffer.update_priorities(np.concatenate(slots), np.concatenate(priorities))

    def state_dict(self) -> dict[str, Any]:
        """Return what a round or a late write has in hand."""
        drawn = [{one.name: getattr(batch, one.name) for one in fields(batch)} for batch in self._drawn]
        for batch in drawn:
            arrays = {name: tree.map_tree(np.asarray, batch[name]) for name in ("obs", "next_obs")}
            batch |= {name: tree.to_plain(leaves) for name, leaves in arrays.items()}
        learnt = [{"slots": slots, "priority": result.read_priority()} for slots, result in self._learnt]
        return {"drawn": drawn, "learnt": learnt}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with what was in hand."""
        self._drawn.clear()
        for batch in state["drawn"]:
            trees = {name: tree.from_plain(batch[name]) for name in ("obs", "next_obs")}
            self._drawn.append(TransitionBatch(**batch | trees))
        self._learnt = [(one["slots"], _Read(one["priority"])) for one in state["learnt"]]


class _Read:
    """The result of an update that a checkpoint kept."""

    def __init__(self, priority: NDArray[np.float32] | None) -> None:
        self._priority = priority

    def read_priority(self) -> NDArray[np.float32] | None:
        return self._priority


def _refuse_other_device(policy: object, buffer: object) -> None:
    """Refuse a policy that is elsewhere than the images it shall learn from."""
    store = getattr(buffer, "frames", None)
    if isinstance(store, FrameStore):
        theirs, own = str(store.device), str(getattr(policy, "device", store.device))
        if theirs != own:
            raise ConfigError(
                f"{type(buffer).__name__}.frames are on {theirs}, {type(policy).__name__} is on {own}: give both the "
                "same device"
            )


def check_refresh(checks: Checks, buffer: object, refresh: object, per_round: object) -> None:
    """Note an order of draws and writes that is none, or that the buffer does not know."""
    checks.one_of("refresh_priorities", refresh, ["update", "late", "round"])
    if not checks.integer("updates_per_round", per_round, low=1):
        return
    has_rounds = refresh == "round"
    checks.require(
        has_rounds == (per_round != 1),
        f".updates_per_round above 1 goes with refresh_priorities='round' and with no other, got {per_round} and "
        f"{refresh!r}: 16 is a good number",
    )
    if has_rounds:
        told = f".refresh_priorities 'round' needs a buffer with sample_round, {type(buffer).__name__} has none"
        checks.require(isinstance(buffer, RoundBuffer), told)
