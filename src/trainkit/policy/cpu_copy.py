"""A copy on the CPU of what turns observations into action values, which keeps up with an original on a device.

What has changed is asked before each answer, in some twenty microseconds where nothing has. The copy is among nobody's
modules: it is neither saved, nor counted among parameters, nor copied with its owner.
"""

import copy
import logging
from operator import is_
from types import BuiltinFunctionType, FunctionType
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trainkit.core.data import Obs
from trainkit.core.errors import Checks, ConfigError
from trainkit.engine.changes import Changes
from trainkit.engine.device import legal_mask
from trainkit.engine.engine import Engine
from trainkit.policy.draws import Draw, ask
from trainkit.policy.quantiles import DrawnFractions
from trainkit.policy.values import Value

_log = logging.getLogger(__name__)

ActOn = Literal["policy", "cpu"]
_CPU = torch.device("cpu")
_TABLES = frozenset(vars(nn.Module()))  # torch's own
_PLAIN = bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size
_FIXED = (*_PLAIN, type, FunctionType, BuiltinFunctionType)  # what may be replaced, and does not change by itself


Parts = tuple[nn.Module, nn.Module, Value]  # preprocess, network, value


class Acting(nn.Module):
    """What turns raw observations into action values, in this order."""

    def __init__(self, preprocess: nn.Module, network: nn.Module, value: Value) -> None:
        super().__init__()
        self.preprocess, self.network, self.value = preprocess, network, value

    def forward(self, given: Any) -> dict[str, Tensor]:
        """Return the expected returns [K, A] of raw observations, and noise [K, noise_size] or None."""
        obs, noise = given
        fractions = self.value.acting_fractions if isinstance(self.value, DrawnFractions) else None
        outputs = ask(self.network, Draw(noise, fractions))(self.preprocess(obs), legal_mask(obs))
        return {"q_values": self.value.mean(outputs.numbers)}


class CpuCopy:
    """Answer in the place of a Q-learner's parts.

    All tensors are copied at once where, since the last answer, an update was taken, torch counted a write to one of
    them, or one came to lie elsewhere; a new copy is made where a module, a tensor or an attribute was replaced. What
    torch does not count, as writes into `tensor.data`, is seen at the next update.
    """

    def __init__(self) -> None:
        self._original: _Original | None = None
        self._twin: _Twin | None = None

    @classmethod
    def wanted(cls, subject: str, act_on: ActOn, device: torch.device, *, can_copy: bool) -> "CpuCopy | None":
        """Return a copy to act by; None where the policy acts by itself, as one on the CPU always does.

        Args:
            subject: the policy's class, for errors.
            act_on: "policy" or "cpu".
            device: where the policy is.
            can_copy: whether its acting is what a copy does too.
        """
        checks = Checks(subject)
        if checks.one_of("act_on", act_on, ["policy", "cpu"]) and act_on != "policy":
            rule = f".act_on must be 'policy', got {act_on!r}: it acts in a way of its own, which is not copied"
            checks.require(can_copy, rule)
        checks.done()
        return None if act_on == "policy" or device.type == "cpu" else cls()

    def check(self, subject: str, parts: Parts, blank: Obs, *, n_updates: int) -> None:
        """Call the copy with a blank observation [1, ...]; warn where these parts are not copied.

        Raises:
            ConfigError: it does not work on the CPU.
        """
        if not self.takes(parts):
            _log.warning(
                "%s acts on its device: a copy is not taken where hooks wait for a pass, nor where a module of yours "
                "keeps what may change unseen, an array, a list, a tensor that is no buffer",
                subject,
            )
            return
        try:
            self.action_values(blank, None, n_updates=n_updates)
        except Exception as error:
            raise ConfigError(
                f"{subject}.act_on needs a network and preprocessing that can be copied to the CPU, and "
                f"these cannot answer there: leave act_on out. {type(error).__name__}: {error}"
            ) from error

    def takes(self, parts: Parts) -> bool:
        """Whether it may answer for these parts.

        It may not where hooks wait for what torch does with them, nor where a module of somebody else's keeps what may
        change unseen: an array, a list, a tensor that is no buffer.
        """
        if self._original is None or not self._original.is_of(parts):
            self._original, self._twin = _Original(parts), None
        return not (self._original.hides or self._original.watch.is_observed)

    def action_values(self, obs: Obs, noise: Tensor | None, *, n_updates: int) -> NDArray[np.float32]:
        """Return the expected returns [K, A] for raw observations [K, ...], as the parts that `takes` saw would now.

        Args:
            obs: as the environments gave them.
            noise: [K, noise_size] of noisy layers, on any device.
            n_updates: which the parts have had; a CUDA graph writes without torch's counting.
        """
        assert self._original is not None, "whose parts they are was asked before"
        if self._original.has_changed(n_updates):
            if self._twin is None or not self._twin.fits(self._original.tensors):
                self._twin = _Twin(self._original)
            else:
                self._twin.follow(self._original.tensors)
            self._original.note(n_updates)
        assert self._twin is not None, "a new original has changed"
        return self._twin.action_values(obs, noise)

    def __getstate__(self) -> dict[str, None]:
        """Leave out the copy: another owner has other originals."""
        return dict.fromkeys(vars(self))


class _Original:
    """Parts as they were when somebody looked: what they are made of, and how often it was written."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.acting = Acting(*parts)
        self.watch = Changes(self.acting)
        self.tensors = _tensors_of(self.acting)
        self.hides = [type(module).__name__ for module in self.acting.modules() if _hides(module)]
        self._written: list[tuple[Tensor, Tensor, int]] = []
        self._n_updates: int | None = None  # None: nobody has looked at the numbers

    def is_of(self, parts: Parts) -> bool:
        """Whether these are the parts, and every module, tensor and attribute of theirs is the one it was."""
        return all(map(is_, parts, self._parts)) and not self.watch.has_changed()

    def has_changed(self, n_updates: int) -> bool:
        """Whether any number may be another than at the last `note`."""
        if n_updates != self._n_updates:
            return True
        for tensor, kept, n_writes in self._written:
            if tensor._version != n_writes or tensor.data_ptr() != kept.data_ptr():
                return True
        return False

    def note(self, n_updates: int) -> None:
        """Note where the numbers are; their memory is kept, so that no other comes to lie there and passes for them."""
        self._written = [(tensor, tensor.detach(), tensor._version) for tensor in self.tensors]
        self._n_updates = n_updates


class _Twin:
    """The copy itself."""

    def __init__(self, original: _Original) -> None:
        value = original.acting.value
        kept: dict[int, Any] = {} if isinstance(value, nn.Module) else {id(value): value}
        self._parts = copy.deepcopy(original.acting, kept).to(_CPU).requires_grad_(False)
        self._tensors = _tensors_of(self._parts)
        for own, theirs in zip(self._tensors, original.tensors, strict=True):
            if theirs.is_cuda:
                own.data = own.data.pin_memory()  # so that nobody waits for each tensor by itself
        self._engine = Engine(self._parts, "auto", _CPU)

    def fits(self, tensors: list[Tensor]) -> bool:
        """Whether the original's tensors have the shapes and dtypes they had."""
        pairs = zip(self._tensors, tensors, strict=True)
        return all(own.shape == theirs.shape and own.dtype == theirs.dtype for own, theirs in pairs)

    @torch.no_grad()
    def follow(self, tensors: list[Tensor]) -> None:
        """Take over the numbers of the original's tensors, in place."""
        if not tensors:
            return
        torch._foreach_copy_(self._tensors, tensors, non_blocking=True)
        for device in {theirs.device for theirs in tensors if theirs.is_cuda}:
            torch.cuda.current_stream(device).synchronize()

    def action_values(self, obs: Obs, noise: Tensor | None) -> NDArray[np.float32]:
        given = obs, None if noise is None else noise.cpu()
        return self._engine.call("q_values", self._parts, given)["q_values"]


def _hides(module: nn.Module) -> bool:
    """Whether a module may change where nobody sees it: ours and torch's keep what they learn in tensors of torch's."""
    if type(module).__module__.startswith(("trainkit.", "torch.nn.")):
        return False
    own = [value for name, value in vars(module).items() if name not in _TABLES]
    return not all(isinstance(value, _FIXED) for value in own)


def _tensors_of(module: nn.Module) -> list[Tensor]:
    """List the parameters and buffers of a module."""
    tables: list[dict[str, Any]] = [t for part in module.modules() for t in (part._parameters, part._buffers)]
    return [tensor for table in tables for tensor in table.values() if tensor is not None]
