"""A CUDA graph for the CPU: records what torch is asked to do, and does the same again on the same memory.

What Python decided, and every number it looked up, stays as it was when it was recorded; looking at a number on the
way is refused, as CUDA refuses it. So what learns by a tape as it learns without one will do so by a graph.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_LOOKS = {"aten::_local_scalar_dense", "aten::is_nonzero", "aten::nonzero", "aten::equal", "aten::lift_fresh"}


class Tape(TorchDispatchMode):
    """Record calls; leave nothing of what they did."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, Any, Any, Any]] = []  # what, its arguments, named ones, and what came of it
        self._own: set[int] = set()  # memory that came to be while recording
        self._before: list[tuple[Tensor, Tensor]] = []  # other memory that was written, as it was

    def __torch_dispatch__(self, what: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if what._schema.name in _LOOKS:
            raise RuntimeError(f"{what} is not permitted while recording: somebody looks at a number")
        named = kwargs or {}
        given = [one for one in tree_leaves((args, named)) if isinstance(one, Tensor)]
        for tensor in given if what._schema.is_mutable else ():
            if tensor.untyped_storage().data_ptr() not in self._own:
                self._before.append((tensor, tensor.detach().clone()))
        told = what(*args, **named)
        known = {tensor.untyped_storage().data_ptr() for tensor in given}
        self._own |= {place for one in _tensors(told) if (place := one.untyped_storage().data_ptr()) not in known}
        self._calls.append((what, args, named, told))
        return told

    def rewind(self) -> None:
        """Put everything back as it was before the recording."""
        with torch.no_grad():
            for tensor, before in reversed(self._before):
                tensor.copy_(before)

    def play(self) -> None:
        """Do it again, each result where it was the first time."""
        with torch.no_grad():
            for what, args, named, told in self._calls:
                for old, new in zip(_tensors(told), _tensors(what(*args, **named)), strict=True):
                    if old.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():
                        old.copy_(new)


class TapeCapture:
    """Stand in for `cuda_graph.Capture`."""

    n_recorded = 0

    def __init__(self, device: torch.device) -> None:
        pass

    def warm_up(self, work: Callable[[], Any], *, forbids_waits: bool = False) -> Any:
        return work()

    def record(self, work: Callable[[], Any], generator: torch.Generator) -> tuple[Any, Callable[[], None]]:
        type(self).n_recorded += 1
        tape, state = Tape(), generator.get_state()
        with tape:
            told = work()
        tape.rewind()
        generator.set_state(state)
        return told, tape.play


def _tensors(told: Any) -> list[Tensor]:
    return [one for one in tree_leaves(told) if isinstance(one, Tensor)]
