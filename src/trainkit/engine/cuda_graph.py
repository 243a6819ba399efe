"""CUDA graphs: the work of an update on the device, recorded once and replayed by one launch.

A graph repeats the same work on the same memory. So its inputs must be copied to fixed tensors, its outputs are written
to fixed tensors, and nothing recorded may read a number on the CPU or change Python objects. `CudaGraph` copies the
inputs, and records again when a tensor that the graph uses was replaced or moved.
"""

import contextlib
import copy
import warnings
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from trainkit.core import tree
from trainkit.core.errors import ConfigError, DeviceError, TrainkitError
from trainkit.engine.changes import Changes
from trainkit.engine.device import PinnedBatch, convolutions_timed

_N_WARM_UPS = 3  # calls before a recording: libraries choose their kernels, parameters are laid out


def check_cuda_graph(subject: str, device: torch.device) -> None:
    """Raise `ConfigError` for a device that has no graphs."""
    if device.type != "cuda":
        raise ConfigError(f"{subject}.engine='cuda_graph' needs a policy on CUDA, got device {device}: use 'auto'")


class Capture:
    """A stream on which work is warmed up and recorded."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def warm_up(self, work: Callable[[], Any], *, forbids_waits: bool = False) -> Any:
        """Run the work on the stream on which it will be recorded; let torch raise where it waits for the device."""
        here = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(here)
        watch = _waits_raise() if forbids_waits else contextlib.nullcontext()
        with torch.cuda.stream(self._stream), watch, convolutions_timed(self._device):
            results = work()
        here.wait_stream(self._stream)
        return results

    def record(self, work: Callable[[], Any], generator: torch.Generator) -> tuple[Any, Callable[[], None]]:
        """Record the work without running it; return (its results, which replays write; the function that replays)."""
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(generator)  # else every replay would draw the same numbers
        back = torch.cuda.stream(torch.cuda.current_stream(self._device))  # torch does not restore it after an error
        # Other threads may allocate in the meantime, which the default mode takes for an error of the recording.
        recording = torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local")
        with torch.cuda.device(self._device), back, recording:
            results = work()
        return results, graph.replay


@contextlib.contextmanager
def _waits_raise() -> Iterator[None]:
    """Let torch raise where the CPU waits for the device."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


class CudaGraph:
    """A function of tensors that is replayed as a graph, one for each set of shapes, from its fourth call on.

    Every call does the function's work exactly once: the first three call it, to warm up; the fourth records it, which
    does nothing on the device, and replays it, as all later ones do. The results are overwritten by the next call.

    Args:
        function: (inputs, fixed, **facts) -> a tree of tensors. Inputs are a tree of tensors or None; `fixed` is a tree
            of objects that keep their memory, as the policy's tensors do; facts are for the function's errors alone.
        policy: where something of it changed that `Changes` watches, or its generator, the next calls warm up again.
        ignored: attributes of the policy that the function does not read.

    Attributes:
        is_recording: whether the function is being recorded now, so that nothing may wait or free memory.
    """

    def __init__(self, function: Callable[..., Any], policy: Any, ignored: frozenset[str]) -> None:
        self._function, self._policy, self._ignored = function, policy, ignored
        self._capture = Capture(policy.device)
        self.is_recording = False
        self._n_calls: dict[Hashable, int] = {}  # of each set of shapes
        self._recordings: dict[Hashable, _Recording] = {}
        self._changes: Changes | None = None  # since the last recording
        self._generator: torch.Generator | None = None  # of all recordings
        self._fixed: list[weakref.ref[Any] | None] = []  # of all recordings

    def __call__(self, inputs: Any, fixed: Any = None, **facts: Any) -> Any:
        """Return the function's results for inputs: tensors on the device, possibly with a `PinnedBatch` among them.

        `fixed` objects are read where they are; after other ones, calls warm up again.
        """
        if self._changes is not None and self._has_changed(self._changes, fixed):
            self._forget()
        shapes = tuple((path, *_shape_of(leaf)) for path, leaf in tree.named_leaves(inputs) if leaf is not None)
        recording = self._recordings.get(shapes)
        if recording is None:
            return self._warm_up_or_record(shapes, inputs, fixed, facts)
        torch._foreach_copy_(recording.inputs, _tensors_of(inputs), non_blocking=True)
        recording.replay()
        return recording.results

    def _warm_up_or_record(self, shapes: Hashable, inputs: Any, fixed: Any, facts: Mapping[str, Any]) -> Any:
        """Call the function while it warms up; record it after that."""
        device, policy = self._policy.device, self._policy

        def copied(leaf: Any) -> Tensor | None:
            source = leaf.block if isinstance(leaf, PinnedBatch) else leaf
            return None if source is None else source.to(device, non_blocking=True, copy=True)

        own = tree.map_tree(copied, inputs)
        work = partial(self._function, tree.map_tree(_as_given, inputs, own), fixed, **facts)
        n_calls = self._n_calls.get(shapes, 0)
        if n_calls < _N_WARM_UPS - 1:
            self._n_calls[shapes] = n_calls + 1
            return self._capture.warm_up(work)
        try:
            if n_calls < _N_WARM_UPS:  # the last time: after a failed recording torch may not recover
                results = self._capture.warm_up(work, forbids_waits=True)
                self._n_calls[shapes] = n_calls + 1
                return results
            self.is_recording = True
            results, replay = self._capture.record(work, policy.generator)
        except RuntimeError as error:
            if isinstance(error, TrainkitError):
                raise
            raise self._failure(error) from error
        finally:
            self.is_recording = False
        self._changes, self._generator = Changes(policy, self._ignored), policy.generator
        self._fixed = [None if leaf is None else weakref.ref(leaf) for leaf in tree.leaves(fixed)]
        self._recordings[shapes] = _Recording(_tensors_of(own), results, replay)
        replay()
        return results

    def _failure(self, error: RuntimeError) -> Exception:
        """Return the error to raise for an error of the last warm-up or of the recording."""
        self._forget()  # as gradients may be left in the failed recording
        subject = f"{type(self._policy).__name__}.engine='cuda_graph' cannot record an update"
        remedy = " and start the process again" if self.is_recording else ""
        if isinstance(error, torch.OutOfMemoryError):
            return DeviceError(
                f"{subject}, which does not fit into the device's memory: lower batch_size, or choose another "
                f"engine{remedy}. torch says: {error}"
            )
        return ConfigError(
            f"{subject}: a part of it waits for the device, or makes a tensor from Python numbers. Choose another "
            f"engine, or fix the part{remedy}. torch says: {error}"
        )

    def _has_changed(self, changes: Changes, fixed: Any) -> bool:
        """Return whether an object that recordings use was replaced, or moved in memory."""
        if changes.has_changed() or self._generator is not self._policy.generator:
            return True
        return [ref and ref() for ref in self._fixed] != tree.leaves(fixed)

    def _forget(self) -> None:
        """Warm up and record again for all shapes."""
        self._n_calls, self._recordings, self._changes = {}, {}, None

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copy all but the recordings, which use the original's tensors."""
        clone = copy.copy(self)
        clone._function, clone._policy = copy.deepcopy((self._function, self._policy), memo)
        clone._forget()
        return clone


def _tensors_of(inputs: Any) -> list[Tensor]:
    """List the leaves that are not None; a `PinnedBatch` is represented by its block."""
    return [leaf.block if isinstance(leaf, PinnedBatch) else leaf for leaf in tree.leaves(inputs) if leaf is not None]


def _as_given(leaf: Any, copy: Any) -> Any:
    """Return the recording's copy of an input, as the same type as the input."""
    return leaf.views(copy) if isinstance(leaf, PinnedBatch) else copy


def _shape_of(leaf: Any) -> tuple[Any, ...]:
    """Return the properties of an input that a recording depends on."""
    return (leaf.layout,) if isinstance(leaf, PinnedBatch) else (leaf.shape, leaf.dtype)


class _Recording(NamedTuple):
    """A recorded function on memory of its own."""

    inputs: list[Tensor]  # from which it reads
    results: Any  # to which it writes
    replay: Callable[[], None]
