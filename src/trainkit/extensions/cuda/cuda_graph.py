"""CUDA graphs: work on the device, recorded once and replayed by one launch.

A graph repeats the same work on the same memory. So its inputs are copied to fixed tensors, its results are written to
fixed tensors, and nothing recorded may read a number on the CPU or change Python objects. `CudaGraph` copies the
inputs, and records again when a tensor that the graph uses was replaced or moved.
"""

import contextlib
import gc
import warnings
import weakref
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from operator import is_
from threading import Lock, RLock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainkit.core import tree, user_code
from trainkit.core.errors import ConfigError, DeviceError, TrainkitError
from trainkit.engine.changes import Changes
from trainkit.engine.device import BatchMemory, PinnedBatch, convolutions_timed, to_device
from trainkit.engine.recording_engine import GaveUpError

_N_WARM_UPS = 3  # calls before a recording: libraries choose their kernels, parameters are laid out
_MOST_RECORDINGS = 32  # of one function, each for other shapes
_MOST_IN_A_ROW = 8  # times that recordings are dropped before a second replay
_N_KEPT = 2  # replays for which kept results last
_IS_SLOT = [np.arange(_N_KEPT) == slot for slot in range(_N_KEPT)]


class Capture:
    """A stream on which work is warmed up and recorded, and the memory that its recordings share."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def warm_up(self, work: Callable[[], Any]) -> Any:
        """Run the work on the stream on which it will be recorded."""
        here = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream), convolutions_timed(self._device):
            results = work()
        here.wait_stream(self._stream)
        return results

    def rehearse(self, work: Callable[[], Any]) -> tuple[Any, str | None]:
        """Warm up for the last time; return (its results, the line that waits for the device or None)."""
        with _waits() as lines:
            results = self.warm_up(work)
        return results, lines[0] if lines else None

    def record(self, work: Callable[[], Any], generator: torch.Generator) -> tuple[Any, Callable[[], None]]:
        """Record the work without running it; return (its results, which replays write; the function that replays)."""
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(generator)  # else every replay would draw the same numbers
        back = torch.cuda.stream(torch.cuda.current_stream(self._device))  # torch does not restore it after an error
        # Other threads may allocate in the meantime, which the default mode takes for an error of the recording.
        how: dict[str, Any] = {"pool": self._pool, "stream": self._stream, "capture_error_mode": "thread_local"}
        with torch.cuda.device(self._device), back, torch.cuda.graph(graph, **how):
            results = work()
        return results, graph.replay


@contextlib.contextmanager
def _waits() -> Iterator[list[str]]:
    """Collect the lines inside the block at which the CPU waits for the device."""
    lines: list[str] = []
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield lines
        finally:
            torch.cuda.set_sync_debug_mode(before)
    for one in caught:
        if "called a synchronizing" in str(one.message):
            lines.append(f"{one.filename}:{one.lineno}")
        elif "Synchronization debug mode is a prototype" not in str(one.message):
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)


CAPTURES: dict[str, Callable[[torch.device], Capture]] = {"cuda": Capture}  # by type of device


class KeptGarbage:
    """A context in which Python's garbage collector is off, of all threads together.

    A graph that is recorded breaks when another one is destroyed in its thread, such as that of a former policy, which
    is part of a reference cycle.
    """

    def __init__(self) -> None:
        self._lock, self._n_inside, self._was_on = Lock(), 0, False

    def __enter__(self) -> None:
        with self._lock:
            if not self._n_inside:
                self._was_on = gc.isenabled()
                gc.disable()
            self._n_inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._n_inside -= 1
            if not self._n_inside and self._was_on:
                gc.enable()


garbage_kept = KeptGarbage()


class CudaGraph:
    """A function that is replayed as a graph, one for each set of shapes, from its fourth call on.

    Every call does the function's work exactly once: the first three call it, to warm up; the fourth records it, which
    does nothing on the device, and replays it, as all later ones do. The third also finds out whether the function
    waits for the device: then it cannot be recorded, and after a failed recording torch may not recover.

    Args:
        name: of the function, for errors.
        policy: where something of it changed that `Changes` watches, or its generator, the next calls warm up again.
        ignored: attributes of the policy that the function does not read.
        keeps: whether the function returns results to keep.

    Attributes:
        lock: for calls from several threads, held until the results were read.
        n_recordings: how many it has now, at most 32; others replace the one that was used least recently.
        is_recording: whether the function is being recorded now, so that nothing may wait or free memory.
    """

    def __init__(self, name: str, policy: Any, ignored: frozenset[str], *, keeps: bool) -> None:
        self._name, self._policy, self.lock = name, policy, RLock()
        self._changes = Changes(policy, ignored)
        self.is_recording = False
        self._n_dropped = 0  # times in a row that recordings were dropped before a second replay
        self._keeps, self._slot = keeps, 0  # of the last call's kept results
        self._start()

    def _start(self) -> None:
        """Start without recordings."""
        self._capture = CAPTURES[self._policy.device.type](self._policy.device)  # also frees shared memory
        self._warm_ups: dict[Hashable, _WarmUp] = {}  # of each set of shapes
        self._recordings: dict[Hashable, _Recording] = {}  # the least recently used first
        self._generator: torch.Generator | None = None  # of all recordings
        self._fixed: list[weakref.ref[Any] | None] = []  # of all recordings

    @property
    def n_recordings(self) -> int:
        return len(self._recordings)

    @property
    def reason_for_torch(self) -> str | None:
        """Why torch executes the function now; None where a graph does, or will."""
        return f"a hook is registered, so torch executes {self._name}" if self._changes.has_hooks() else None

    def __call__(
        self,
        function: Callable[[Any, Any], tuple[Any, Any]],
        inputs: Any,
        fixed: Any = None,
        *,
        memory: BatchMemory | None = None,
        variant: Hashable = None,
    ) -> tuple[Any, Any]:
        """Return a function's results: those that it keeps for two calls, and others, which the next call overwrites.

        Args:
            function: (inputs on the device, fixed) -> (a tree of tensors to keep, other results).
            inputs: a tree of arrays, numbers, tensors on the device and None.
            fixed: a tree of objects that are read where they are; after other ones, calls warm up again.
            memory: has some of the arrays in pinned memory already.
            variant: what else a recording depends on.

        Raises:
            GaveUpError: the function cannot be recorded; it has the call's results.
            DeviceError: a recording does not fit into the device's memory.
            ConfigError: a recording has failed.
        """
        if self._has_changed(fixed):
            self._n_dropped += 1
            changed = self._changes.first()
            self._start()
            self._changes.remember()
            if self._n_dropped > _MOST_IN_A_ROW:
                reason = f"{changed or 'the memory that it uses'} changes between all calls of {self._name}"
                raise GaveUpError(reason, function(to_device(inputs, self._policy.device), fixed))
        if self._changes.is_observed:
            with user_code.running():
                return function(to_device(inputs, self._policy.device), fixed)
        self._slot = (self._slot + 1) % _N_KEPT
        given = PinnedBatch((inputs, _IS_SLOT[self._slot] if self._keeps else None), memory)
        key = variant, given.layout
        recording = self._recordings.pop(key, None)
        if recording is None:
            warm_up = self._warm_ups.setdefault(key, _WarmUp())
            if warm_up.n_calls < _N_WARM_UPS:
                return self._warm_up(warm_up, lambda: function(given.on(self._policy.device)[0], fixed))
            recording = self._record(function, given, fixed, warm_up)
            del self._warm_ups[key]
            if len(self._recordings) == _MOST_RECORDINGS:
                del self._recordings[next(iter(self._recordings))]
        else:
            self._n_dropped = 0
        self._recordings[key] = recording
        return recording(given, self._slot)

    def _warm_up(self, warm_up: "_WarmUp", work: Callable[[], Any]) -> tuple[Any, Any]:
        """Call the function before it is recorded; the last time, find out whether that will be possible."""
        line: str | None = None
        if warm_up.n_calls < _N_WARM_UPS - 1:
            results = self._capture.warm_up(work)
        else:
            results, line = self._capture.rehearse(work)
            warm_up.kept = tree.map_tree(lambda one: one.new_empty((_N_KEPT, *one.shape)), results[0])
        warm_up.n_calls += 1
        self._changes.remember()  # a first call makes what later ones read
        user_code.has_run()
        if line is not None:
            reason = f"{self._name} waits for the device, or makes a tensor from Python numbers, at {line}"
            raise GaveUpError(reason, results)
        kept, others = results
        return kept, others

    @torch.inference_mode(False)
    def _record(
        self, function: Callable[[Any, Any], tuple[Any, Any]], given: PinnedBatch, fixed: Any, warm_up: "_WarmUp"
    ) -> "_Recording":
        """Record the function on memory of its own."""
        block = given.block.to(self._policy.device, non_blocking=True, copy=True)
        tensors = [tensor.detach().clone() for tensor in given.tensors]
        inputs, is_slot = given.views(block, tensors)

        def work() -> Any:
            results, others = function(inputs, fixed)
            with torch.no_grad():
                for one, kept in zip(tree.leaves(results), tree.leaves(warm_up.kept), strict=True):
                    assert is_slot is not None, "the function keeps results"
                    torch.where(is_slot.view(-1, *[1] * one.dim()), one, kept, out=kept)
            return others

        self.is_recording = True
        try:
            with garbage_kept:
                others, replay = self._capture.record(work, self._policy.generator)
        except RuntimeError as error:
            self._start()  # as gradients may be left in the failed recording
            if isinstance(error, TrainkitError):
                raise
            raise self._failure(error) from error
        finally:
            self.is_recording = False
            user_code.has_run()
        self._generator = self._policy.generator
        self._fixed = [None if leaf is None else weakref.ref(leaf) for leaf in tree.leaves(fixed)]
        kept = [tree.map_tree(lambda one, i=i: one[i], warm_up.kept) for i in range(_N_KEPT)]
        return _Recording(block, tensors, kept, others, replay)

    def _failure(self, error: RuntimeError) -> Exception:
        """Return the error to raise for an error of a recording."""
        subject = f"{type(self._policy).__name__}: a CUDA graph of {self._name} cannot be recorded"
        remedy = "start the process again with engine='torch'"
        if isinstance(error, torch.OutOfMemoryError):
            return DeviceError(
                f"{subject}, as it does not fit into the device's memory: lower batch_size, or {remedy}. torch says: "
                f"{error}"
            )
        return ConfigError(f"{subject}: fix the part that torch names, or {remedy}. torch says: {error}")

    def _has_changed(self, fixed: Any) -> bool:
        """Return whether an object that recordings use was replaced, or moved in memory."""
        if self._changes.has_changed():
            return True
        if not self._recordings:
            return False
        if self._generator is not self._policy.generator:
            return True
        before, now = list(map(_referred, self._fixed)), tree.leaves(fixed)
        return len(before) != len(now) or not all(map(is_, before, now))


@dataclass(slots=True)
class _WarmUp:
    """Calls of one set of shapes before its recording."""

    n_calls: int = 0
    kept: Any = None  # memory of the kept results, each [2, ...]


class _Recording:
    """A recorded function on memory of its own."""

    def __init__(
        self, block: Tensor, tensors: list[Tensor], kept: list[Any], others: Any, replay: Callable[[], None]
    ) -> None:
        self.block, self.tensors = block, tensors  # from which it reads
        self._kept, self._others = kept, others  # to which it writes
        self._replay = replay

    def __call__(self, given: PinnedBatch, slot: int) -> tuple[Any, Any]:
        """Repeat the work with other inputs; slot is that of the kept results it overwrites."""
        if len(self.block):
            self.block.copy_(given.block, non_blocking=True)
        if self.tensors:
            torch._foreach_copy_(self.tensors, given.tensors)
        self._replay()
        return self._kept[slot], self._others


def _referred(reference: "weakref.ref[Any] | None") -> Any:
    return None if reference is None else reference()
