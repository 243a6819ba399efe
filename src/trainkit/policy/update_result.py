"""Results of updates: priorities, mean metrics, and the detection of losses and gradients that are not finite."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainkit.core.errors import ConfigError, DivergedError
from trainkit.engine.device import CopyToCpu, DelayedRead, copy_stream
from trainkit.engine.gradient_step import Scalar, Taken

OnNan = Literal["raise", "skip"]

_MAX_SKIPPED_IN_A_ROW = 10
_ADVICE = "lower the learning rate or clip the reward"


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """The result of an update, on the device, where it lasts until the second update after it is started."""

    priority: Tensor | NDArray[np.float32] | None  # [B]
    is_lost: Tensor | None = None  # whether the update was skipped; None where it cannot be

    def read_priority(self) -> NDArray[np.float32] | None:
        """Wait for the device and return the priorities [B]; None if there are none or the update was skipped."""
        if isinstance(self.priority, Tensor) and not self.priority.is_cpu:
            return self._unpacked(self._packed(self.priority).cpu())
        if self.priority is None or (self.is_lost is not None and bool(self.is_lost)):
            return None
        return self.priority if isinstance(self.priority, np.ndarray) else self.priority.numpy()

    def copy_priority(self, *, in_order: bool = False) -> Callable[[], NDArray[np.float32] | None]:
        """Start to copy the priorities to the CPU; return `read_priority` of this copy, which waits for it alone.

        Args:
            in_order: copy them before the device starts with later updates, any number of which may be given to it
                before the read. If not, the copy does not delay the next update, and only one may be given to it.
        """
        if not isinstance(self.priority, Tensor) or self.priority.is_cpu:
            return self.read_priority
        stream = None if in_order else copy_stream(self.priority.device)
        copy = CopyToCpu(self._packed(self.priority), stream)
        return lambda: self._unpacked(copy.read())

    def _packed(self, priority: Tensor) -> Tensor:
        """Return the priorities [B] and, in the same tensor, whether the update was skipped, where it can be."""
        return priority if self.is_lost is None else torch.cat([priority, self.is_lost.view(1)])

    def _unpacked(self, packed: Tensor) -> NDArray[np.float32] | None:
        if self.is_lost is None:
            return packed.numpy()
        return None if packed[-1] else packed[:-1].numpy()


class MeanMetrics:
    """Means of named scalars since the last read; those on a device are summed there.

    Attributes:
        pending: scalars of the update in progress.
        n_updates: since the last read.
        device_sums: of the scalars on a device, where they stay until their names change; None before.
    """

    def __init__(self) -> None:
        self.pending: dict[str, Scalar] = {}
        self.n_updates = 0
        self._device_names: tuple[str, ...] = ()
        self.device_sums: Tensor | None = None
        self._delayed = DelayedRead()
        self._sums: dict[str, float] = {}  # of scalars on the CPU
        self._plain_sums: dict[str, float] = {}  # of scalars that count in skipped updates too

    def sum_up(self, metrics: Mapping[str, Scalar]) -> None:
        """Add scalars of an update that `count` has yet to count; in a CUDA graph this is recorded."""
        on_device: dict[str, Tensor] = {}
        for name, scalar in metrics.items():
            if isinstance(scalar, Tensor) and not scalar.is_cpu:
                on_device[name] = scalar
            else:
                self._sums[name] = self._sums.get(name, 0.0) + float(scalar)
        if not on_device:
            return
        values = torch.stack(list(on_device.values())).double()  # so that sums hardly depend on when they are read
        names = tuple(on_device)
        if self.device_sums is not None and names == self._device_names:
            self.device_sums += values
            return
        if self.n_updates and self.device_sums is not None:
            raise ConfigError(
                f"metrics must have the same names at every update, got {list(names)} after "
                f"{list(self._device_names)}: report the missing ones too"
            )
        self._device_names, self.device_sums = names, values

    def count(self, **plain: float) -> None:
        """Count an update whose scalars were added; `plain` are those that count in skipped updates too."""
        for name, number in plain.items():
            self._plain_sums[name] = self._plain_sums.get(name, 0.0) + number
        self.n_updates += 1

    def delayed_total(self, name: str) -> float:
        """Return the sum of a scalar as of the previous call, without waiting for the device; 0 at first."""
        if self.device_sums is None or not self.n_updates:
            return 0.0
        return self._delayed(self.device_sums[self._device_names.index(name)])

    def total(self, name: str) -> float:
        """Wait for the device and return the sum of a scalar since the last read."""
        return self._totals().get(name, 0.0)

    def read(self, skipped: str | None = None) -> dict[str, float]:
        """Wait for the device, return the means since the last read and reset them; empty after no update.

        `skipped` names the scalar that is 1 in skipped updates, whose other scalars are 0 and do not count.
        """
        if not self.n_updates:
            return {}
        sums = self._totals()
        n_counted = self.n_updates - (sums[skipped] if skipped is not None else 0)
        means = {name: total / n_counted for name, total in sums.items() if n_counted}
        if skipped is not None:
            means[skipped] = sums[skipped] / self.n_updates
        plain = {name: total / self.n_updates for name, total in self._plain_sums.items()}
        self._sums, self._plain_sums, self.n_updates = {}, {}, 0
        if self.device_sums is not None:
            self.device_sums.zero_()
        return {**means, **plain}

    def state_dict(self) -> dict[str, Any]:
        """Wait for the device and return all sums, and how many updates were counted."""
        names = [] if self.device_sums is None else list(self._device_names)
        return {
            "n_updates": self.n_updates,
            "sums": dict(self._totals()),
            "on_device": names,
            "plain": dict(self._plain_sums),
        }

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Continue from saved sums."""
        self.n_updates, sums = state["n_updates"], {name: float(total) for name, total in state["sums"].items()}
        self._plain_sums = {name: float(total) for name, total in state.get("plain", {}).items()}
        names = () if device.type == "cpu" else tuple(state.get("on_device", sums))  # older checkpoints have no names
        on_device = [sums.pop(name) for name in names]
        self._device_names = names
        self.device_sums = torch.tensor(on_device, dtype=torch.float64).to(device) if names else None
        self._sums = sums  # also those that a GPU summed up, where this is another device

    def _totals(self) -> dict[str, float]:
        if self.device_sums is None:
            return self._sums
        on_device = dict(zip(self._device_names, self.device_sums.tolist(), strict=True))
        return self._sums | {name: total + self._sums.get(name, 0.0) for name, total in on_device.items()}


class PeriodicMeans:
    """Means of some metrics over a fixed number of updates, which a policy decides by.

    Unlike those of reports they do not depend on when reports are due, and are saved, so that a resumed run decides by
    the same bits.

    Args:
        names: of the metrics.
        period: updates.

    Attributes:
        sums: since the last read.
    """

    def __init__(self, names: Sequence[str], period: int) -> None:
        self._names, self._period = names, period
        self.sums = MeanMetrics()

    @property
    def is_due(self) -> bool:
        """Whether all updates of a period were counted."""
        return self.sums.n_updates >= self._period

    def sum_up(self, metrics: Mapping[str, Scalar]) -> None:
        """Add those of an update's metrics that are wanted; in a CUDA graph this is recorded."""
        self.sums.sum_up({name: metrics[name] for name in self._names if name in metrics})

    def read(self) -> dict[str, float]:
        """Wait for the device, return the means since the last read and reset them."""
        return self.sums.read()


class DivergenceGuard:
    """Detection of updates whose loss or gradient is not finite; such updates are never applied.

    Args:
        subject: the policy's class, for errors.
        device: of the policy.

    Attributes:
        on_nan: "raise" `DivergedError`, or "skip" up to ten such updates in a row.
        slots: [B] of the current batch in its buffer, for errors; None if it is not from a buffer.
    """

    def __init__(self, subject: str, device: torch.device) -> None:
        self.on_nan: OnNan = "raise"
        self.slots: NDArray[np.int64] | None = None
        self._subject = subject
        self._n_in_a_row = torch.zeros((), device=device, dtype=torch.float32)
        self._longest = torch.zeros((), device=device, dtype=torch.float32)
        self._delayed = DelayedRead()

    @property
    def memory(self) -> tuple[Tensor, ...]:
        """The tensors that `mask_skipped` reads and writes."""
        return self._n_in_a_row, self._longest

    def error(self, taken: Taken, *, update: int, step: int, lr: float) -> DivergedError:
        """Return the error of a gradient step that was not applied."""
        loss, norm = float(taken.loss), float(taken.norm)
        error = DivergedError(
            f"{self._subject}: update {update} at step {step} has gradient norm {norm} and loss {loss} at lr {lr:g}; "
            f"it was not taken: {_ADVICE}"
        )
        error.facts = {"update": update, "step": step, "loss": loss, "grad_norm": norm, "lr": lr}
        if self.slots is not None:
            error.facts["slots"] = self.slots.copy()
        return error

    def error_among(self, first: int, last: int) -> DivergedError:
        """Return the error of an unknown one of several updates, on a device whose results were not waited for."""
        error = DivergedError(
            f"{self._subject}: a loss or gradient among updates {first} to {last} was not finite; those steps were not "
            f"taken: {_ADVICE}"
        )
        error.facts = {"first_update": first, "last_update": last}
        return error

    def mask_skipped(self, metrics: Mapping[str, Scalar]) -> dict[str, Tensor]:
        """Return an update's scalars, replaced by 0 if a step was skipped, and `skipped` as 1 or 0."""
        device = self._longest.device
        tensors = {
            name: value if isinstance(value, Tensor) else torch.full((), value, device=device, dtype=torch.float32)
            for name, value in metrics.items()
        }
        is_skipped = tensors["skipped"] > 0
        self._n_in_a_row.add_(1).mul_(is_skipped)
        torch.maximum(self._longest, self._n_in_a_row, out=self._longest)
        masked = {name: torch.where(is_skipped, 0.0, value) for name, value in tensors.items()}
        return masked | {"skipped": is_skipped.to(torch.float32)}

    def check_skipped(self, n_updates: int) -> None:
        """Raise `DivergedError` if too many updates in a row were skipped; on devices, those up to the last call."""
        longest = int(self._longest if self._longest.is_cpu else self._delayed(self._longest))
        if longest > _MAX_SKIPPED_IN_A_ROW:
            self._delayed = DelayedRead()
            self._n_in_a_row.zero_()
            self._longest.zero_()
            raise DivergedError(
                f"{self._subject}: {longest} updates in a row up to update {n_updates} had a loss or gradient that was "
                f"not finite; none was taken, and on_nan='skip' lets {_MAX_SKIPPED_IN_A_ROW} pass: {_ADVICE}"
            )
