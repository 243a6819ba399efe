"""What an update does on the device, recorded once as a raw CUDA graph and played back by one launch.

A graph repeats the same work on the same memory. So whatever it reads must come into tensors that stay where they are,
whatever it says lies where it was said before, and nothing may look at a number on the device, or change in Python
alone. `CudaGraph` sees to the first two, and records anew when what it stands on has moved.
"""

import copy
import weakref
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from trainkit.core import tree
from trainkit.core.errors import ConfigError

_N_WARM_UPS = 3  # calls before one is recorded: libraries choose their kernels, parameters are laid out


def check_cuda_graph(subject: str, device: torch.device) -> None:
    """Raise `ConfigError` for a device that has no graphs."""
    if device.type != "cuda":
        raise ConfigError(f"{subject}.engine='cuda_graph' needs a policy on CUDA, got device {device}: use 'auto'")


class Capture:
    """Torch's side of it: a stream on which work is warmed up and recorded."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def warm_up(self, work: Callable[[], Any]) -> Any:
        """Do the work, on the stream it will be recorded on."""
        here = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            done = work()
        here.wait_stream(self._stream)
        return done

    def record(self, work: Callable[[], Any], generator: torch.Generator) -> tuple[Any, Callable[[], None]]:
        """Return (what the work returns, in tensors without numbers yet; what does it), having done nothing."""
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(generator)  # else every replay would draw the same
        back = torch.cuda.stream(torch.cuda.current_stream(self._device))  # torch stays away from it where this fails
        with torch.cuda.device(self._device), back, torch.cuda.graph(graph, stream=self._stream):
            told = work()
        return told, graph.replay


class CudaGraph:
    """Call a function of tensors as a graph, one for each set of shapes, from its fourth call on.

    Every call does the function's work exactly once: the first ones as it stands, to warm up; the fourth records it,
    which does nothing on the device, and plays it back, as all later ones do. What is returned is overwritten by the
    next call.

    Args:
        function: a tree of tensors or None, and what lies still -> a tree of tensors, from these, the policy's tensors
            and generator, and what lies still as long as the policy's tensors do. Words it is told besides are for its
            errors alone.
        policy: where one of its modules, tensors or generators has been replaced, the next calls warm up again.
    """

    def __init__(self, function: Callable[..., Any], policy: Any) -> None:
        self._function, self._policy = function, policy
        self._capture = Capture(policy.device)
        self._n_calls: dict[Hashable, int] = {}  # of each set of shapes
        self._recordings: dict[Hashable, _Recording] = {}
        self._ground: _Ground | None = None  # of all recordings

    def __call__(self, given: Any, still: Any = None, **words: Any) -> Any:
        """Return what the function returns for tensors on the device, or in pinned memory on their way there.

        What lies `still` is read where it is, and equal for as long: other things are warmed up with anew.
        """
        if self._ground is not None and not self._ground.holds(still):
            self._forget()
        shapes = tuple((path, leaf.shape, leaf.dtype) for path, leaf in tree.named_leaves(given) if leaf is not None)
        recording = self._recordings.get(shapes)
        if recording is None:
            return self._first(shapes, given, still, words)
        torch._foreach_copy_(recording.inputs, _tensors_of(given), non_blocking=True)
        recording.replay()
        return recording.told

    def _first(self, shapes: Hashable, given: Any, still: Any, words: Mapping[str, Any]) -> Any:
        """Call the function while it warms up; record it after that."""
        device, policy = self._policy.device, self._policy

        def copied(leaf: Tensor | None) -> Tensor | None:
            return None if leaf is None else leaf.to(device, non_blocking=True, copy=True)

        own = tree.map_tree(copied, given)
        work = partial(self._function, own, still, **words)
        n_calls = self._n_calls.get(shapes, 0)
        if n_calls < _N_WARM_UPS:
            told = self._capture.warm_up(work)
            self._n_calls[shapes] = n_calls + 1
            return told
        try:
            told, replay = self._capture.record(work, policy.generator)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self._forget()  # as gradients may be left in what was recorded
            raise ConfigError(
                f"{type(policy).__name__}.engine='cuda_graph' cannot record an update: a part of it waits for the "
                "device, or makes a tensor of Python's numbers. Choose another engine, or fix the part. torch says: "
                f"{error}"
            ) from error
        self._ground = _Ground(policy, still)
        self._recordings[shapes] = _Recording(_tensors_of(own), told, replay)
        replay()
        return told

    def _forget(self) -> None:
        """Begin anew with all shapes."""
        self._n_calls, self._recordings, self._ground = {}, {}, None

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copy all but what was recorded, which is of the original's tensors."""
        twin = copy.copy(self)
        twin._function, twin._policy = copy.deepcopy((self._function, self._policy), memo)
        twin._forget()
        return twin


def _tensors_of(given: Any) -> list[Tensor]:
    """List the leaves that are there."""
    return [leaf for leaf in tree.leaves(given) if leaf is not None]


class _Recording(NamedTuple):
    """A function at work on memory of its own."""

    inputs: list[Tensor]  # where arguments are read from
    told: Any  # where results are written to
    replay: Callable[[], None]


class _Ground:
    """All that recordings stand on: modules, their tensors, the generator, and what lies still: as and where they were.

    The tensors' memory is kept, so that no other tensor comes to lie there and passes for what was recorded.
    """

    def __init__(self, policy: Any, still: Any) -> None:
        tables: list[dict[str, Any]] = []
        for part in policy.modules():
            tables += (part._modules, part._parameters, part._buffers)
        self._parts = [(table, name, child) for table in tables for name, child in table.items()]
        tensors = [child for _, _, child in self._parts if isinstance(child, Tensor)]
        self._places = [(tensor, tensor.detach(), tensor.requires_grad) for tensor in tensors]
        plain = (vars(policy), "backup"), (vars(policy), "penalty")  # parts that need not be modules
        self._parts += [(table, name, table.get(name)) for table, name in plain]
        self._policy, self._generator = policy, policy.generator
        self._still = [None if leaf is None else weakref.ref(leaf) for leaf in tree.leaves(still)]  # not kept for us

    def holds(self, still: Any) -> bool:
        """Whether everything is where it was."""
        now = tree.leaves(still)
        if [ref and ref() for ref in self._still] != now:
            return False
        for table, name, child in self._parts:
            if table.get(name) is not child:
                return False
        for tensor, kept, learns in self._places:
            if tensor.data_ptr() != kept.data_ptr() or tensor.requires_grad is not learns:
                return False
        return self._policy.generator is self._generator
