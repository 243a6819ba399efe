"""Where parameters that move together, and their gradients, are in memory.

On the CPU they are views of one tensor, and their gradients of another: a call into torch takes longer than its work
on a small tensor, and one call does for all of them. On other devices every parameter keeps memory and strides of its
own, as libraries of convolutions and recurrent layers want them, and its gradient is the tensor that autograd returns.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import is_
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trainkit.core.errors import ConfigError


def lay_out(parameters: Iterable[nn.Parameter]) -> None:
    """Make parameters on the CPU neighbors in memory, those of each dtype; those that are already stay there."""
    groups: dict[torch.dtype, list[nn.Parameter]] = {}
    for parameter in parameters:
        if parameter.is_cpu and parameter.is_contiguous():
            groups.setdefault(parameter.dtype, []).append(parameter)
    for group in groups.values():
        in_one(group)


def in_one(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Return the tensor [N] that parameters of one dtype and device are views of; see `lay_flat`.

    Those that are neighbors in memory already stay there.
    """
    (first, *rest) = joined(parameters)
    return lay_flat(parameters) if rest or not first[0].is_contiguous() else first[0].view(-1)


def lay_flat(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Convert parameters of one dtype and device to views of one new tensor [N], in their order, and return it."""
    with torch.no_grad():
        flat = torch.cat([parameter.reshape(-1) for parameter in parameters])
        pieces = torch.split(flat, [parameter.numel() for parameter in parameters])
        for parameter, piece in zip(parameters, pieces, strict=True):
            parameter.data = piece.view_as(parameter)
    return flat


def joined(*columns: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
    """Join rows of tensors that are neighbors in memory in every column; columns have equal lengths.

    A single row is returned as it is, without gradient, several as one row of views [N].
    """
    runs: list[list[tuple[Tensor, ...]]] = []
    for row in zip(*columns, strict=True):
        if runs and all(map(_is_next, runs[-1][-1], row)):
            runs[-1].append(row)
        else:
            runs.append([row])
    return [tuple(map(_whole, zip(*run, strict=True))) for run in runs]


def _is_next(before: Tensor, tensor: Tensor) -> bool:
    """Return whether a tensor starts in memory where the previous one ends."""
    return (
        before.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
        and before.dtype == tensor.dtype
        and before.is_contiguous()
        and tensor.is_contiguous()
        and before.storage_offset() + before.numel() == tensor.storage_offset()
    )


def _whole(neighbors: Sequence[Tensor]) -> Tensor:
    """Return tensors that are adjacent in memory as one view, and a single tensor unchanged."""
    first = neighbors[0].detach()
    if len(neighbors) == 1:
        return first
    return first.as_strided((sum(tensor.numel() for tensor in neighbors),), (1,))


class Placement:
    """Which modules, parameters and buffers some networks have, and where their parameters are in memory."""

    def __init__(self, *networks: nn.Module) -> None:
        modules = [module for network in networks for module in network.modules()]
        self._tables: list[dict[str, Any]] = [t for m in modules for t in (m._modules, m._parameters, m._buffers)]
        self._children = [child for table in self._tables for child in table.values()]
        parameters = [parameter for network in networks for parameter in network.parameters()]
        self._addresses = [(parameter, parameter.data_ptr()) for parameter in parameters]

    def is_current(self) -> bool:
        """Return whether no module or tensor of the networks was replaced or moved in memory."""
        now = chain.from_iterable(map(dict.values, self._tables))
        if sum(map(len, self._tables)) != len(self._children) or not all(map(is_, now, self._children)):
            return False
        return all(parameter.data_ptr() == address for parameter, address in self._addresses)


class ParameterGroup:
    """Parameters that move together, each in memory of its own, and their gradients.

    Args:
        named: the parameters of a module, with their paths.
        indices: of the group's parameters among them.

    Attributes:
        indices: of these parameters among the module's.
        members: the parameters.
        stored: the tensors that they are stored in, one for each.
        gradients: their gradients, stored alike; other tensors at every step.
    """

    stored: list[Tensor]
    gradients: list[Tensor]
    _pieces: Sequence[Tensor]  # of the gradients

    def __init__(self, named: Sequence[tuple[str, nn.Parameter]], indices: Sequence[int]) -> None:
        self.indices = list(indices)
        self.members = [named[i][1] for i in indices]
        first = self.members[0]
        if any(p.dtype != first.dtype or p.device != first.device for p in self.members):
            raise ConfigError("GradientStep needs parameters of one dtype on one device: move the module as a whole")
        for i in indices:
            path, gradient = named[i][0], named[i][1].grad
            if gradient is not None and gradient.is_sparse:
                raise ConfigError(
                    f"GradientStep needs dense gradients, but that of {path} is sparse: make its module with "
                    "sparse=False"
                )
        self._store()
        self._pieces = self.pieces(self.gradients)
        with torch.no_grad():
            for parameter, own in zip(self.members, self._pieces, strict=True):
                if parameter.grad is not None:
                    own.copy_(parameter.grad)
                parameter.grad = own
        self._addresses = [parameter.data_ptr() for parameter in self.members]

    def _store(self) -> None:
        """Make room for the gradients."""
        self.stored = [parameter.detach() for parameter in self.members]
        self.gradients = [torch.zeros_like(parameter) for parameter in self.stored]

    def pieces(self, stored: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return tensors that are stored as the parameters are, one for each of them."""
        return stored

    def is_current(self) -> bool:
        """Return whether the parameters still are where they were."""
        return all(p.data_ptr() == address for p, address in zip(self.members, self._addresses, strict=True))

    # ---- gradients ----

    def set_gradients(self, gradients: Mapping[nn.Parameter, Tensor]) -> None:
        """Set the gradients by parameter, 0 for one that has none."""
        own: list[Tensor] = []
        addresses: set[int] = set()  # autograd may return one tensor for two parameters that are added
        for parameter in self.members:
            gradient = _as_stored(gradients.get(parameter), parameter)
            own.append(gradient.clone() if gradient.data_ptr() in addresses else gradient)
            addresses.add(gradient.data_ptr())
        self.show(own)

    def show(self, gradients: list[Tensor]) -> None:
        """Make tensors that are stored as the parameters are their gradients."""
        if gradients is not self.gradients:
            self.gradients = self._pieces = gradients
            for parameter, gradient in zip(self.members, gradients, strict=True):
                parameter.grad = gradient

    def joined_gradients(self) -> Tensor:
        """Return all gradients as one tensor [N]; `split_gradients` takes it when it was changed."""
        return torch.cat([gradient.reshape(-1) for gradient in self.gradients])

    def split_gradients(self, joined: Tensor) -> None:
        """Set all gradients from one tensor [N]."""
        pieces = torch.split(joined, [gradient.numel() for gradient in self.gradients])
        shaped = [piece.view(own.shape) for piece, own in zip(pieces, self.gradients, strict=True)]
        torch._foreach_copy_(self.gradients, shaped)

    def square_norm(self) -> float:
        """Return the squared norm of the gradients, read on the CPU."""
        return sum(float(torch.linalg.vector_norm(one, dtype=torch.float64)) ** 2 for one in self.gradients)

    def clip_values(self, limit: float) -> None:
        """Clip each element of the gradients."""
        torch._foreach_clamp_max_(self.gradients, limit)
        torch._foreach_clamp_min_(self.gradients, -limit)

    def clip_norms(self, limit: float) -> None:
        """Clip the norm of each parameter's gradient."""
        for gradient in self._pieces:
            norm = torch.linalg.vector_norm(gradient)
            gradient.mul_((limit / (norm + 1e-6)).clamp_(max=1.0))


class FlatGroup(ParameterGroup):
    """Parameters on the CPU that are views of one tensor [N], `stored[0]`, as their gradients are of `gradients[0]`."""

    def _store(self) -> None:
        flat = in_one(self.members)
        self.stored, self.gradients = [flat], [torch.zeros_like(flat)]
        self._gradient_array = self.gradients[0].numpy() if flat.dtype == torch.float32 else None

    def pieces(self, stored: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return views of one tensor [N] in the shapes of the parameters."""
        pieces = torch.split(stored[0], [p.numel() for p in self.members])
        return [piece.view_as(p) for piece, p in zip(pieces, self.members, strict=True)]

    def is_current(self) -> bool:
        """Return whether the parameters and their gradients still are the views made here."""
        for parameter, address, gradient in zip(self.members, self._addresses, self._pieces, strict=True):
            if parameter.data_ptr() != address or parameter.grad is not gradient:
                return False
        return True

    def set_gradients(self, gradients: Mapping[nn.Parameter, Tensor]) -> None:
        """Write the gradients by parameter, 0 for one that has none, by one operation."""
        pieces = [gradients[p] if p in gradients else torch.zeros_like(p) for p in self.members]
        torch.cat([piece.reshape(-1) for piece in pieces], out=self.gradients[0])

    def joined_gradients(self) -> Tensor:
        """Return the tensor that all gradients are views of."""
        return self.gradients[0]

    def split_gradients(self, joined: Tensor) -> None:
        """Do nothing, as the gradients are views of the tensor that was changed."""

    def square_norm(self) -> float:
        """Return the squared norm of the gradients."""
        if self._gradient_array is not None:
            with np.errstate(over="ignore"):
                square = float(self._gradient_array.dot(self._gradient_array))
            if math.isfinite(square):  # else only the square may have overflowed
                return square
        norm = float(torch.linalg.vector_norm(self.gradients[0], dtype=torch.float64))
        return norm * norm


def group_of(named: Sequence[tuple[str, nn.Parameter]], indices: Sequence[int]) -> ParameterGroup:
    """Return a group of parameters as their device stores it: flat on the CPU."""
    return (FlatGroup if named[indices[0]][1].is_cpu else ParameterGroup)(named, indices)


def _as_stored(gradient: Tensor | None, parameter: nn.Parameter) -> Tensor:
    """Return a gradient with the strides of its parameter, which Adam's fused call needs; 0 if there is none."""
    if gradient is None:
        return torch.zeros_like(parameter)
    if gradient.stride() == parameter.stride() and gradient.dtype == parameter.dtype:
        return gradient
    return torch.empty_like(parameter).copy_(gradient)
