"""The target network: a slower copy of the online one."""

import copy
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from trainkit.errors import Checks
from trainkit.schedules import Scheduled, as_schedule


@dataclass(frozen=True, slots=True)
class Target:
    """Specify when and how far the target follows: target = tau * online + (1 - tau) * target.

    tau = 1 every few hundred steps is the hard copy of Mnih et al. (2015); `Target(every=1, unit="updates",
    tau=0.005)` the soft one of Lillicrap et al. (2016).
    """

    every: int = 500
    unit: Literal["env_steps", "updates"] = "env_steps"
    tau: Scheduled = 1.0

    def __post_init__(self) -> None:
        checks = Checks("Target")
        checks.integer("every", self.every, low=1)
        checks.one_of("unit", self.unit, ["env_steps", "updates"])
        checks.gather(lambda: as_schedule("Target", "tau", self.tau, low=0, high=1, above_low=True))
        checks.done()


class TargetNetwork:
    """Keep `network` a delayed copy of `online`; its counters live in the learner's state."""

    def __init__(self, online: nn.Module, spec: Target) -> None:
        self.online = online
        self.spec = spec
        self._tau = as_schedule("Target", "tau", spec.tau, low=0, high=1, above_low=True)
        self.network = copy.deepcopy(online).requires_grad_(False)
        self.network.eval()
        self._periods_done: int | None = None  # whole periods of the clock that have been followed
        self.n_updates = 0

    def follow(self, *, step: int, n_updates: int) -> bool:
        """Follow the online network if another period of the clock is over; one call catches up with several."""
        periods = (step if self.spec.unit == "env_steps" else n_updates) // self.spec.every
        if self._periods_done is None and self.spec.unit == "env_steps":
            self._periods_done = periods  # learning starts in the middle of a period
        if periods <= (self._periods_done or 0):
            return False
        missed = periods - (self._periods_done or 0)
        self._periods_done = periods
        self.n_updates += 1
        self.copy(1.0 - (1.0 - self._tau(step)) ** missed)
        return True

    @torch.no_grad()
    def copy(self, tau: float = 1.0) -> None:
        """Move parameters by `tau` and copy buffers."""
        mine: list[Tensor] = list(self.network.parameters())
        theirs: list[Tensor] = list(self.online.parameters())
        if tau == 1.0:
            torch._foreach_copy_(mine, theirs)
        else:
            torch._foreach_lerp_(mine, theirs, tau)
        for own, online in zip(self.network.buffers(), self.online.buffers(), strict=True):
            own.copy_(online)

    def state_dict(self) -> dict[str, int | None]:
        """Return the counters; the weights are the policy's."""
        return {"periods_done": self._periods_done, "n_updates": self.n_updates}

    def load_state_dict(self, state: dict[str, int | None]) -> None:
        """Take over saved counters."""
        self._periods_done = state["periods_done"]
        self.n_updates = state["n_updates"] or 0
