"""Target networks: delayed copies of online networks."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from trainkit.core.config import Part
from trainkit.core.errors import Checks, ConfigError
from trainkit.core.schedules import Scheduled, as_schedule
from trainkit.core.signatures import checked
from trainkit.engine.parameter_storage import Placement, joined, lay_out


@checked
@dataclass(frozen=True, slots=True)
class Target(Part):
    """When and how far a target network moves: target = tau * online + (1 - tau) * target.

    tau = 1 every few hundred steps is the hard copy of Mnih et al. (2015); `Target(every=1, unit="updates",
    tau=0.005)` the soft one of Lillicrap et al. (2016).
    """

    every: int = 500
    unit: Literal["env_steps", "updates"] = "env_steps"
    tau: Scheduled = 1.0

    def __post_init__(self) -> None:
        with Checks("Target") as checks:
            checks.integer("every", self.every, low=1)
            checks.one_of("unit", self.unit, ["env_steps", "updates"])
            with checks.gather():
                as_schedule("Target", "tau", self.tau, low=0, high=1, above_low=True)


class TargetNetwork:
    """A target network, `network`, which follows `online`; its counters are in the policy's training state."""

    def __init__(self, online: nn.Module, spec: Target) -> None:
        self.online = online
        self.spec = spec
        self._tau = as_schedule("Target", "tau", spec.tau, low=0, high=1, above_low=True)
        self.network = copy.deepcopy(online).requires_grad_(False)
        self.network.eval()
        lay_out(self.network.parameters())
        self._pairs: _Pairs | None = None
        self._periods_done: int | None = None  # periods of the clock until the last move
        self.n_updates = 0
        self.last_update: int | None = None  # the environment step of the last one

    def follow(self, *, step: int, n_updates: int) -> bool:
        """Update the target network if a period of the clock has ended; return whether it was updated."""
        periods = (step if self.spec.unit == "env_steps" else n_updates) // self.spec.every
        if self._periods_done is None and self.spec.unit == "env_steps":
            self._periods_done = periods  # learning may start within a period
        if periods <= (self._periods_done or 0):
            return False
        missed = periods - (self._periods_done or 0)
        self._periods_done = periods
        self.n_updates += 1
        self.last_update = step
        self.copy(1.0 - (1.0 - self._tau(step)) ** missed)
        return True

    @torch.no_grad()
    def copy(self, tau: float = 1.0) -> None:
        """Move parameters by `tau` and copy buffers."""
        if self._pairs is None or not self._pairs.placement.is_current():
            self._pairs = _Pairs(self.network, self.online)
        pairs = self._pairs
        if tau == 1.0:
            torch._foreach_copy_(pairs.own, pairs.online)
        else:
            torch._foreach_lerp_(pairs.own, pairs.online, tau)
        for own, online in pairs.buffers:
            own.copy_(online)

    def state_dict(self) -> dict[str, int | None]:
        """Return the counters; the weights are in the policy's state."""
        return {"periods_done": self._periods_done, "n_updates": self.n_updates, "last_update": self.last_update}

    def load_state_dict(self, state: dict[str, int | None]) -> None:
        """Load saved counters."""
        self._periods_done = state["periods_done"]
        self.n_updates = state["n_updates"] or 0
        self.last_update = state.get("last_update")  # older files have none

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the pairs, as a copy has other tensors."""
        return vars(self) | {"_pairs": None}


class _Pairs:
    """Tensors of a target network and the online network, paired by name.

    Parameters adjacent in memory in both are one pair: `GradientStep` lays out the trainable parameters of the online
    network in one tensor.
    """

    def __init__(self, network: nn.Module, online: nn.Module) -> None:
        lay_out(network.parameters())
        self.placement = Placement(network, online)
        parameters = _paired(dict(network.named_parameters()), dict(online.named_parameters()))
        self.buffers = _paired(dict(network.named_buffers()), dict(online.named_buffers()))
        # These views keep the memory, so that no other parameter is stored there.
        pairs = joined([own for own, _ in parameters], [followed for _, followed in parameters])
        self.own, self.online = [own for own, _ in pairs], [followed for _, followed in pairs]


def _paired(own: Mapping[str, Tensor], online: Mapping[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Return (tensor of the target, tensor of the online network) by name; raise if names or shapes differ."""
    followed, following = (
        {name: str(tuple(tensor.shape)) for name, tensor in tensors.items()} for tensors in (online, own)
    )
    for name in followed | following:
        here, there = (shapes.get(name, "no such tensor") for shapes in (followed, following))
        if here != there:
            raise ConfigError(
                f"Target: {name} must be alike in both networks, got {here} in the online network and {there} in the "
                "target network: change the layers of both"
            )
    return [(tensor, online[name]) for name, tensor in own.items()]
