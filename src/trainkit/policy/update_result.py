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


@dataclass(slots=True, eq=False)
class DeviceSums:
    """Sums of the same scalars over some updates, on their device."""

    names: tuple[str, ...]
    total: Tensor  # of each, in float64 so that sums hardly depend on when they are read
    n_updates: int = 0


class MeanMetrics:
    """Means of named scalars over the updates since the last read that had them; those on a device are summed there.

    Scalars on a device are summed by kind of update, that is, by the gradient steps it takes, and by their names: where
    an update has others than those before, both have sums of their own.

    Attributes:
        pending: scalars of the update in progress.
        n_updates: since the last read.
    """

    def __init__(self) -> None:
        self.pending: dict[str, Scalar] = {}
        self.n_updates = 0
        self._on_device: dict[tuple[tuple[str, ...], tuple[str, ...]], DeviceSums] = {}  # by kind of update, and names
        self._delayed = DelayedRead()
        self._sums: dict[str, list[Any]] = {}  # [sum, number of updates] of scalars on the CPU
        self._plain: dict[str, list[Any]] = {}  # of scalars that count in skipped updates too

    def add_to_sums(
        self, metrics: Mapping[str, Scalar], kind: tuple[str, ...] = (), *, is_recording: bool = False
    ) -> DeviceSums | None:
        """Add scalars of an update; return the sums on the device, which `count` counts it in, None for the CPU.

        Of an update that was skipped, whose `skipped` is above 0, nothing else counts. A CUDA graph records this, with
        `is_recording`; each replay adds to the same sums.

        Raises:
            ConfigError: names are new in an update that is recorded.
        """
        skipped = metrics.get("skipped", 0.0)
        if (not isinstance(skipped, Tensor) or skipped.is_cpu) and skipped > 0:
            metrics = {"skipped": skipped}
        on_device: dict[str, Tensor] = {}
        for name, scalar in metrics.items():
            if isinstance(scalar, Tensor) and not scalar.is_cpu:
                on_device[name] = scalar
            else:
                _add(self._sums, name, float(scalar))
        if not on_device:
            return None
        values, names = torch.stack(list(on_device.values())), tuple(on_device)
        sums = self._on_device.get((kind, names))
        if sums is not None:
            sums.total += values
            return sums
        if is_recording:
            before = [list(names) for own, names in self._on_device if own == kind]
            raise ConfigError(
                f"metrics must have the same names when a CUDA graph records an update as in those before it, got "
                f"{list(names)} after {', '.join(map(str, before))}: report the missing ones too, or use engine='torch'"
            )
        unused = [key for key, one in self._on_device.items() if key[0] == kind and not one.n_updates]
        for key in unused:
            del self._on_device[key]
        sums = self._on_device[kind, names] = DeviceSums(names, values.double())
        return sums

    def on_device(self, kind: tuple[str, ...]) -> tuple[Tensor, ...]:
        """Return the sums of a kind of update, which stay where they are, for each set of names so far."""
        return tuple([sums.total for (own, _), sums in self._on_device.items() if own == kind])

    def count(self, sums: DeviceSums | None = None, **plain: float) -> None:
        """Count an update whose scalars were added to `sums`; `plain` are those that count in skipped updates too."""
        for name, number in plain.items():
            _add(self._plain, name, number)
        if sums is not None:
            sums.n_updates += 1
        self.n_updates += 1

    def delayed_total(self, name: str) -> float:
        """Return the sum of a scalar as of the previous call, without waiting for the device; 0 at first."""
        sums = [one.total[one.names.index(name)] for one in self._on_device.values() if name in one.names]
        return self._delayed(torch.stack(sums).sum()) if sums and self.n_updates else 0.0

    def total(self, name: str) -> float:
        """Wait for the device and return the sum of a scalar since the last read."""
        total: float = self._totals().get(name, (0.0, 0))[0]
        return total

    def read(self) -> dict[str, float]:
        """Wait for the device, return the means since the last read and reset them; empty after no update."""
        if not self.n_updates:
            return {}
        totals = self._totals()
        means = {name: total / n for name, (total, n) in {**totals, **self._plain}.items() if n}
        self._sums, self._plain, self.n_updates = {}, {}, 0
        for sums in self._on_device.values():
            sums.total.zero_()
            sums.n_updates = 0
        return means

    def state_dict(self) -> dict[str, Any]:
        """Wait for the device and return all sums, and how many updates were counted."""
        return {
            "n_updates": self.n_updates,
            "sums": {name: list(own) for name, own in self._sums.items()},
            "plain": {name: list(own) for name, own in self._plain.items()},
            "on_device": [
                [list(kind), list(one.names), one.total.tolist(), one.n_updates]
                for (kind, _), one in self._on_device.items()
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Continue from saved sums, those of a device on another type of device, too."""
        self.n_updates = state["n_updates"]
        self._sums = {name: list(own) for name, own in state["sums"].items()}
        self._plain = {name: list(own) for name, own in state["plain"].items()}
        self._on_device = {}
        for kind, names, totals, n_updates in state["on_device"]:
            if device.type != "cpu":
                on_device = torch.tensor(totals, dtype=torch.float64).to(device)
                self._on_device[tuple(kind), tuple(names)] = DeviceSums(tuple(names), on_device, n_updates)
                continue
            for name, total in zip(names, totals, strict=True):
                _add(self._sums, name, total, n_updates)

    def _totals(self) -> dict[str, tuple[float, int]]:
        """Return (sum, number of updates) by name; those that were skipped count for `skipped` alone."""
        totals: dict[str, list[Any]] = {}
        for sums in self._on_device.values():
            of_kind = dict(zip(sums.names, sums.total.tolist(), strict=True))
            n_skipped = int(of_kind.get("skipped", 0.0))
            for name, total in of_kind.items():
                _add(totals, name, total, sums.n_updates - (0 if name == "skipped" else n_skipped))
        for name, (total, n) in self._sums.items():
            _add(totals, name, total, n)
        return {name: (total, n) for name, (total, n) in totals.items()}


def _add(sums: dict[str, list[Any]], name: str, number: float, n_updates: int = 1) -> None:
    """Add a number to a sum, and to the number of updates that it is of."""
    own = sums.get(name)
    if own is None:
        sums[name] = [0.0 + number, n_updates]
    else:
        own[0] += number
        own[1] += n_updates


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

    def add_to_sums(
        self, metrics: Mapping[str, Scalar], kind: tuple[str, ...], *, is_recording: bool = False
    ) -> DeviceSums | None:
        """Add those of an update's metrics that are wanted; see `MeanMetrics.add_to_sums`."""
        wanted = {name: metrics[name] for name in self._names if name in metrics}
        return self.sums.add_to_sums(wanted, kind, is_recording=is_recording)

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
