"""A copy on the CPU of the parts that map observations to action values, kept equal to the originals on a device.

Changes are looked for before each call. The copy is not a submodule of the policy: it is neither saved, nor counted
among the parameters, nor copied with its owner.
"""

import copy
import logging
from operator import is_
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trainkit.core.data import Obs
from trainkit.core.errors import ConfigError
from trainkit.engine.changes import Changes
from trainkit.engine.engine import engine_for
from trainkit.engine.loss import legal_mask
from trainkit.nets.networks import Prediction, RandomInputs
from trainkit.policy.acting_copy import Parts
from trainkit.policy.values import DrawnFractions, Value

_log = logging.getLogger(__name__)

_CPU = torch.device("cpu")
_TABLES = frozenset(vars(nn.Module()))  # torch's own
_PLAIN = bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size
_FIXED = (*_PLAIN, type, FunctionType, BuiltinFunctionType)  # immutable


def predict(preprocess: nn.Module, network: nn.Module, value: Value, obs: Any, noise: Tensor | None) -> Prediction:
    """Call a network of action values with raw observations on its device, at the fractions to act at."""
    fractions = value.acting_fractions if isinstance(value, DrawnFractions) else None
    return RandomInputs(noise, fractions).fixed_in(network)(preprocess(obs), legal_mask(obs))


class ActingModel(nn.Module):
    """The parts that map raw observations to action values."""

    def __init__(self, preprocess: nn.Module, network: nn.Module, value: Value) -> None:
        super().__init__()
        self.preprocess, self.network, self.value = preprocess, network, value

    def forward(self, given: Any) -> dict[str, Tensor]:
        """Return the expected returns [K, A] of raw observations and noise [K, noise_size] or None."""
        prediction = predict(self.preprocess, self.network, self.value, *given)
        return {"q_values": self.value.mean(prediction.outputs)}


class CpuCopy:
    """Action values by a copy of a Q-learner's parts on the CPU.

    All tensors are copied if, since the last call, an update was taken, torch counted a write to one of them, or one
    was moved in memory; a new copy is made if a module, a tensor or an attribute was replaced. Writes that torch does
    not count, as into `tensor.data`, are noticed at the next update.
    """

    def __init__(self) -> None:
        self._original: _Original | None = None
        self._copy: _Copy | None = None

    def check(self, subject: str, parts: Parts, blank: Obs, *, n_updates: int) -> None:
        """Call the copy with a blank observation [1, ...]; warn if these parts are not copied.

        Raises:
            ConfigError: it fails on the CPU.
        """
        if not self.supports(parts):
            _log.warning(
                "%s acts on its device: parts with hooks are not copied, nor modules of yours with attributes whose "
                "changes are not noticed: an array, a list, a tensor that is no buffer",
                subject,
            )
            return
        try:
            self.action_values(blank, None, n_updates=n_updates)
        except Exception as error:
            raise ConfigError(
                f"{subject}.act_on needs a network and preprocessing that can be copied to the CPU, and "
                f"these fail there: leave act_on out. {type(error).__name__}: {error}"
            ) from error

    def supports(self, parts: Parts) -> bool:
        """Return whether these parts can be copied: they have no hooks, and all changes to them can be detected."""
        if self._original is None or not self._original.is_of(parts):
            self._original, self._copy = _Original(parts), None
        return not (self._original.hides or self._original.watch.is_observed)

    def action_values(self, obs: Obs, noise: Tensor | None, *, n_updates: int) -> NDArray[np.float32]:
        """Return the expected returns [K, A] for raw observations [K, ...], by the parts last given to `supports`.

        Args:
            obs: as the environments returned them.
            noise: [K, noise_size] of noisy layers, on any device.
            n_updates: of the policy so far, as torch does not count the writes of a CUDA graph.
        """
        assert self._original is not None, "supports was called before"
        if self._original.has_changed(n_updates):
            if self._copy is None or not self._copy.fits(self._original.tensors):
                self._copy = _Copy(self._original)
            else:
                self._copy.follow(self._original.tensors)
            self._original.note(n_updates)
        assert self._copy is not None, "has_changed is true at first"
        return self._copy.action_values(obs, noise)

    def __getstate__(self) -> dict[str, None]:
        """Leave out the copy, as a copied owner has other parts."""
        return dict.fromkeys(vars(self))


def copy_for(device: torch.device) -> CpuCopy | None:
    """Return a copy to act with for a policy on a device; None if the policy acts itself, as on the CPU."""
    return None if device.type == "cpu" else CpuCopy()


class _Original:
    """The parts as they were last seen: their modules, tensors and attributes, and the writes to tensors."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.acting = ActingModel(*parts)
        self.watch = Changes(self.acting)
        self.tensors = _tensors_of(self.acting)
        self.hides = [type(module).__name__ for module in self.acting.modules() if _hides(module)]
        self._written: list[tuple[Tensor, Tensor, int]] = []
        self._n_updates: int | None = None  # at the last `note`

    def is_of(self, parts: Parts) -> bool:
        """Return whether these are the parts, and none of their modules, tensors and attributes was replaced."""
        return all(map(is_, parts, self._parts)) and not self.watch.has_changed()

    def has_changed(self, n_updates: int) -> bool:
        """Return whether a tensor may have changed since the last `note`."""
        if n_updates != self._n_updates:
            return True
        for tensor, kept, n_writes in self._written:
            if tensor._version != n_writes or tensor.data_ptr() != kept.data_ptr():
                return True
        return False

    def note(self, n_updates: int) -> None:
        """Remember the tensors' versions and memory, which is kept so that no other tensor can be stored there."""
        self._written = [(tensor, tensor.detach(), tensor._version) for tensor in self.tensors]
        self._n_updates = n_updates


class _Copy:
    """The copy itself."""

    def __init__(self, original: _Original) -> None:
        value = original.acting.value
        kept: dict[int, Any] = {} if isinstance(value, nn.Module) else {id(value): value}
        self._parts = copy.deepcopy(original.acting, kept).to(_CPU).requires_grad_(False)
        self._tensors = _tensors_of(self._parts)
        for own, theirs in zip(self._tensors, original.tensors, strict=True):
            if not theirs.is_cpu:
                own.data = own.data.pin_memory()  # for asynchronous copies
        self._engine = engine_for(self._parts, "auto", _CPU)

    def fits(self, tensors: list[Tensor]) -> bool:
        """Return whether the original's tensors have the shapes and dtypes they had."""
        pairs = zip(self._tensors, tensors, strict=True)
        return all(own.shape == theirs.shape and own.dtype == theirs.dtype for own, theirs in pairs)

    @torch.no_grad()
    def follow(self, tensors: list[Tensor]) -> None:
        """Copy the values of the original's tensors in place."""
        if not tensors:
            return
        torch._foreach_copy_(self._tensors, tensors, non_blocking=True)
        for device in {theirs.device for theirs in tensors} - {_CPU}:
            torch.accelerator.current_stream(device).synchronize()

    def action_values(self, obs: Obs, noise: Tensor | None) -> NDArray[np.float32]:
        given = obs, None if noise is None else noise.cpu()
        return self._engine.call("q_values", self._parts, given)["q_values"]


def _hides(module: nn.Module) -> bool:
    """Return whether a user's module has attributes that may change unnoticed."""
    if type(module).__module__.startswith(("trainkit.", "torch.nn.")):
        return False
    own = [value for name, value in vars(module).items() if name not in _TABLES]
    return not all(isinstance(value, _FIXED) for value in own)


def _tensors_of(module: nn.Module) -> list[Tensor]:
    """List the parameters and buffers of a module."""
    tables: list[dict[str, Any]] = [t for part in module.modules() for t in (part._parameters, part._buffers)]
    return [tensor for table in tables for tensor in table.values() if tensor is not None]
