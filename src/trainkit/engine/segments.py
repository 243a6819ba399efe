"""Parameters laid out flat: each, its gradient and its moments are views of one tensor for all that move together."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from trainkit.core.errors import ConfigError


def parts_of(module: nn.Module) -> list[tuple[dict[str, Any], str, object]]:
    """List all modules and parameters within a module: (where it is kept, its name, what it is)."""
    tables: list[dict[str, Any]] = [t for part in module.modules() for t in (part._modules, part._parameters)]
    return [(table, name, child) for table in tables for name, child in table.items()]


class Place(NamedTuple):
    """A parameter of a module."""

    parameter: nn.Parameter
    path: str  # from the module


def places_of(module: nn.Module) -> list[Place]:
    """Find all parameters, in the order of `module.parameters()`, each once."""
    seen: set[int] = set()
    places: list[Place] = []
    for prefix, part in module.named_modules():
        for name, parameter in part._parameters.items():
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                places.append(Place(parameter, f"{prefix}.{name}" if prefix else name))
    return places


def lay_flat(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Make parameters of one dtype and device views of one new tensor [N], in their order, and return it."""
    with torch.no_grad():
        flat = torch.cat([parameter.reshape(-1) for parameter in parameters])
        pieces = torch.split(flat, [parameter.numel() for parameter in parameters])
        for parameter, piece in zip(parameters, pieces, strict=True):
            parameter.data = piece.view_as(parameter)
    return flat


def joined(*columns: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
    """Return columns of equal length with as few rows: those that are neighbors in memory in all columns are one.

    Rows of one tensor per column come back as they are, without gradient, longer ones as a view [N] of each column.
    """
    runs: list[list[tuple[Tensor, ...]]] = []
    for row in zip(*columns, strict=True):
        if runs and all(map(_is_next, runs[-1][-1], row)):
            runs[-1].append(row)
        else:
            runs.append([row])
    return [tuple(map(_whole, zip(*run, strict=True))) for run in runs]


def _is_next(before: Tensor, tensor: Tensor) -> bool:
    """Return whether a tensor begins in memory where the one before ends."""
    return (
        before.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
        and before.dtype == tensor.dtype
        and before.is_contiguous()
        and tensor.is_contiguous()
        and before.storage_offset() + before.numel() == tensor.storage_offset()
    )


def _whole(neighbors: Sequence[Tensor]) -> Tensor:
    """Return neighbors in memory as one view, a single tensor as it is."""
    first = neighbors[0].detach()
    if len(neighbors) == 1:
        return first
    return first.as_strided((sum(tensor.numel() for tensor in neighbors),), (1,))


_ONE = np.ones((), np.float32)  # numpy is quicker with it than with Python's


class Segment:
    """The flat layout of parameters that move together: each is a view of one piece of every tensor here."""

    def __init__(
        self,
        places: Sequence[Place],
        indices: Sequence[int],
        moments: Mapping[int, Mapping[str, Tensor]],
        count: float,
    ) -> None:
        self.indices = list(indices)
        self._moved = [places[i].parameter for i in indices]
        sizes = [p.numel() for p in self._moved]
        self.layout = {places[i].path: (places[i].parameter.numel(), places[i].parameter.shape) for i in indices}
        first = self._moved[0]
        if any(p.dtype != first.dtype or p.device != first.device for p in self._moved):
            raise ConfigError("GradientStep needs parameters of one dtype on one device: move the module as a whole")
        self.flat = lay_flat(self._moved)
        self.gradient = torch.zeros_like(self.flat)
        self.mean = torch.zeros_like(self.flat)  # Adam's first moment
        self.square = torch.zeros_like(self.flat)  # Adam's second moment
        self.count = torch.tensor(count, dtype=torch.float32, device=first.device)  # steps taken
        self._here = self.gradient.numpy() if first.is_cpu and first.dtype == torch.float32 else None
        self._count_here = self.count.numpy() if first.is_cpu else None  # numpy's calls are the cheaper ones
        self._views: list[tuple[Tensor, Tensor, Tensor]] = []  # of gradient, mean and square, in a parameter's shape
        with torch.no_grad():
            columns = (self.gradient, self.mean, self.square)
            pieces = zip(*(torch.split(column, sizes) for column in columns), strict=True)
            for i, parameter, piece in zip(indices, self._moved, pieces, strict=True):
                gradient, mean, square = (flat.view_as(parameter) for flat in piece)
                if parameter.grad is not None:
                    gradient.copy_(parameter.grad)
                if i in moments:
                    mean.copy_(moments[i]["exp_avg"])
                    square.copy_(moments[i]["exp_avg_sq"])
                parameter.grad = gradient
                self._views.append((gradient, mean, square))
        self._addresses = [parameter.data_ptr() for parameter in self._moved]

    def is_live(self) -> bool:
        """Whether the parameters still are the views made here, and so are their gradients."""
        for parameter, address, (gradient, _, _) in zip(self._moved, self._addresses, self._views, strict=True):
            if parameter.data_ptr() != address or parameter.grad is not gradient:
                return False
        return True

    def square_norm(self) -> float:
        """Return the squared norm of the gradient, which is on the CPU."""
        if self._here is not None:
            square = float(self._here.dot(self._here))
            if math.isfinite(square):  # else it may be the square alone that is not
                return square
        norm = float(torch.linalg.vector_norm(self.gradient, dtype=torch.float64))
        return norm * norm

    def count_step(self, skipped: Tensor | None) -> None:
        """Count a step, unless it is skipped where nobody looks."""
        if skipped is None and self._count_here is not None:
            self._count_here += _ONE
        else:
            self.count.add_(1.0 if skipped is None else 1.0 - skipped)

    def clip_numbers(self, limit: float) -> None:
        """Clip each number of the gradient."""
        self.gradient.clamp_(-limit, limit)

    def clip_norms(self, limit: float) -> None:
        """Clip the norm of each parameter's gradient."""
        for gradient, _, _ in self._views:
            norm = torch.linalg.vector_norm(gradient)
            gradient.mul_((limit / (norm + 1e-6)).clamp_(max=1.0))

    def moments(self) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """Yield (parameter's index, its step, exp_avg and exp_avg_sq)."""
        for i, (_, mean, square) in zip(self.indices, self._views, strict=True):
            yield i, {"step": self.count.clone(), "exp_avg": mean, "exp_avg_sq": square}
