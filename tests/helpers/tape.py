"""A CUDA graph for the pretend device: records the operations of torch, and repeats them on the same memory.

What Python decided, and every number it read, stays as it was when it was recorded; what a capture of CUDA rejects is
rejected. So what learns by a tape as it learns without one will do so by a graph.
"""

import gc
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.helpers.accelerator import load_pretend_device
from tests.pretend import PretendDevice


class Tape(TorchDispatchMode):
    """Record calls; leave nothing of what they did."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, Any, Any, Any]] = []  # operation, its arguments, named ones, and its results
        self._own: set[int] = set()  # memory that was allocated while recording
        self._before: list[tuple[Tensor, Tensor]] = []  # other memory that was written, as it was

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        given = [one for one in tree_leaves((args, named)) if isinstance(one, Tensor)]
        is_batch_norm = operation is torch.ops.aten.native_batch_norm.default  # whose schema lacks what it writes
        for tensor in given if operation._schema.is_mutable or is_batch_norm else ():
            if tensor.untyped_storage().data_ptr() not in self._own:
                self._before.append((tensor, tensor.detach().clone()))
        results = operation(*args, **named)
        known = {tensor.untyped_storage().data_ptr() for tensor in given}
        self._own |= {memory for one in _tensors(results) if (memory := one.untyped_storage().data_ptr()) not in known}
        self._calls.append((operation, args, named, results))
        return results

    def rewind(self) -> None:
        """Put everything back as it was before the recording."""
        with torch.no_grad():
            for tensor, before in reversed(self._before):
                tensor.copy_(before)

    def play(self) -> None:
        """Do it again, each result where it was the first time."""
        with torch.no_grad():
            for operation, args, named, results in self._calls:
                for old, new in zip(_tensors(results), _tensors(operation(*args, **named)), strict=True):
                    if old.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():
                        old.copy_(new)


class TapeCapture:
    """Stand in for `cuda_graph.Capture`.

    Attributes:
        n_recorded: recordings so far.
        inside: operations of the last replay.
    """

    n_recorded = 0
    inside: ClassVar[Counter[str]] = Counter()

    def __init__(self, device: torch.device) -> None:
        self._device = PretendDevice.load()

    def warm_up(self, work: Callable[[], Any]) -> Any:
        return work()

    def rehearse(self, work: Callable[[], Any]) -> tuple[Any, str | None]:
        with self._device.counting() as counts:
            results = work()
        return results, next((line for _, line in counts.lines), None)

    def record(self, work: Callable[[], Any], generator: torch.Generator) -> tuple[Any, Callable[[], None]]:
        TapeCapture.n_recorded += 1
        assert not gc.isenabled(), "garbage may have another graph, whose destruction would break this recording"
        tape, state = Tape(), generator.get_state()
        with self._device.capturing(), tape:
            results = work()
        tape.rewind()
        generator.set_state(state)

        def replay() -> None:
            with self._device.counting() as counts:
                tape.play()
            TapeCapture.inside = counts.operations

        return results, replay


def _tensors(results: Any) -> list[Tensor]:
    return [one for one in tree_leaves(results) if isinstance(one, Tensor)]


def record_by_tapes(monkeypatch: pytest.MonkeyPatch) -> PretendDevice:
    """Let the pretend device record and repeat, and return it."""
    from trainkit.extensions.cuda import cuda_graph  # which may be missing where no test records

    pretend = load_pretend_device()
    monkeypatch.setitem(cuda_graph.CAPTURES, pretend.device.type, TapeCapture)
    monkeypatch.setattr(TapeCapture, "n_recorded", 0)
    return pretend
