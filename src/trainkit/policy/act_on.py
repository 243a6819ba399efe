"""Where a Q-learner acts that learns on a device: there too, or by its copy on the CPU, as asked for or as measured."""

import logging
import time
from collections.abc import Callable
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trainkit.data import Obs
from trainkit.errors import Checks, ConfigError
from trainkit.policy.cpu_copy import CpuCopy, Parts
from trainkit.policy.values import Value
from trainkit.trial import Trial

_log = logging.getLogger(__name__)

ActOn = Literal["device", "cpu", "auto"]
Way = Literal["device", "cpu"]
_WAYS: tuple[Way, ...] = ("device", "cpu")
_UNMEASURED = 3  # turns of each way, in which the copy is made, and kernels are chosen


class Acting(Protocol):
    """A Q-learner as it acts."""

    preprocess: nn.Module
    value: Value
    n_updates: int

    @property
    def network(self) -> nn.Module: ...

    def values_here(self, obs: Obs, noise: Tensor | None) -> NDArray[np.float32]:
        """Return the expected returns [K, A] as they are found where the policy is."""
        ...


class ActingPlace:
    """Answer where it is wanted; with "auto" either way in turn at first, then the quicker one.

    A turn lasts from one update to the next, as the copy has to keep up once in each: what counts is a turn's seconds
    per act. Acts that do not explore are not measured, and stay on the device until it is decided.

    Attributes:
        by_copy: whether the copy on the CPU is to act.
    """

    def __init__(self, wanted: ActOn, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self.by_copy = wanted == "cpu"
        self._copy = CpuCopy()
        self._clock = clock
        self._trial = Trial(_WAYS, n_unmeasured=_UNMEASURED) if wanted == "auto" else None  # None where all is decided
        self._n_updates: int | None = None  # of this turn
        self._seconds, self._n_acts = 0.0, 0  # of this turn

    @classmethod
    def wanted(cls, subject: str, act_on: ActOn, device: torch.device, *, can_copy: bool) -> "ActingPlace | None":
        """Return the place to choose; None where there is but one, as for a policy on the CPU.

        Args:
            subject: whose option it is.
            act_on: where to act.
            device: where the policy is.
            can_copy: whether its acting is what a copy does too.
        """
        checks = Checks(subject)
        if checks.one_of("act_on", act_on, ["device", "cpu", "auto"]) and act_on != "device":
            rule = f".act_on must be 'device', got {act_on!r}: it acts in a way of its own, which is not copied"
            checks.require(can_copy, rule)
        checks.done()
        return None if act_on == "device" or device.type == "cpu" else cls(act_on)

    def action_values(self, policy: Acting, obs: Obs, noise: Tensor | None, *, explore: bool) -> NDArray[np.float32]:
        """Return the expected returns [K, A] for raw observations [K, ...], from where it is time to ask.

        Args:
            policy: whose they are.
            obs: as the environments gave them.
            noise: [K, noise_size] of noisy layers, on the policy's device.
            explore: whether this is an act of learning, which may be measured.
        """
        if self._trial is not None:
            if not explore:
                return policy.values_here(obs, noise)
            self._begin_turn(self._trial, policy.n_updates)
        began = self._clock()
        if self.by_copy and self._copy.takes(_parts_of(policy)):
            values = self._copy.action_values(obs, noise, n_updates=policy.n_updates)
        else:
            values = policy.values_here(obs, noise)
        self._seconds += self._clock() - began
        self._n_acts += 1
        return values

    def check(self, policy: Acting, blank: Obs) -> None:
        """See whether the policy's copy works on the CPU, by asking it about a blank observation [1, ...].

        Raises:
            ConfigError: it does not, and no other way was left open.
        """
        if not (self.by_copy or self._trial is not None):
            return
        if not self._copy.takes(_parts_of(policy)):
            _log.warning(
                "%s acts on its device: a copy is not taken where hooks wait for a pass, nor where a module of yours "
                "keeps what may change unseen, an array, a list, a tensor that is no buffer",
                type(policy).__name__,
            )
            return
        try:
            self._copy.action_values(blank, None, n_updates=policy.n_updates)
        except Exception as error:
            if self._trial is not None:
                _log.warning("%s acts on its device, as its copy cannot answer: %s", type(policy).__name__, error)
                self._trial, self.by_copy = None, False
                return
            raise ConfigError(
                f"{type(policy).__name__}.act_on needs a network and preprocessing that can be copied to the CPU, and "
                f"these cannot answer there: leave act_on out. {type(error).__name__}: {error}"
            ) from error

    def _begin_turn(self, trial: Trial[Way], n_updates: int) -> None:
        """Hear how many updates there were: with another one a turn is over; the first was before all learning."""
        if n_updates == self._n_updates:
            return
        if self._n_acts:
            trial.add(self._seconds / self._n_acts)
            self.by_copy = trial.next == "cpu"
        self._n_updates, self._seconds, self._n_acts = n_updates, 0.0, 0
        if trial.is_over:
            self._trial = None
            _log.info("an act takes %s: act_on=%r", trial, trial.next)
            if not self.by_copy:
                self._copy.forget()


def _parts_of(policy: Acting) -> Parts:
    return Parts(policy.preprocess, policy.network, policy.value)
