"""A policy of a critic, an actor and a copy that learn by steps of their own."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrizations

from tests.helpers.learning import Spaces, small_net
from trainkit import Adam, Policy, Target
from trainkit.engine import Loss, TensorBatch


class Regression(Policy):
    """Two steps: a critic regresses rewards, and an actor, at every second update, follows what the critic gives.

    Args:
        make: returns the critic, [B, 4] -> [B, 1].
        how: options of the critic's step.
    """

    def __init__(self, make: Callable[[], nn.Module] = lambda: small_net((4, 8, 1)), *, every: int = 2, **how: Any):
        self.of_step = {"every": 1, "optimizer": Adam(1e-2), **how.pop("of_step", {})}
        super().__init__(**{**Spaces()._asdict(), "device": "cpu", "seed": 0, **how})
        self.critic, self.actor = make(), small_net((4, 4))
        self.to(self.device)
        self.add_gradient_step("critic", self.critic, loss=self.critic_loss, **self.of_step)
        self.copy = small_net((4, 4), seed=1)
        self.add_gradient_step("actor", self.actor, Adam(1e-2), loss=self.actor_loss, every=every)
        self.add_gradient_step("copy", self.copy, Adam(), loss=self.copy_loss, every=every, reads="actor")
        self.target_actor = self.add_target("actor", self.actor, Target(every=every, unit="updates", tau=0.1))
        self.modes: list[tuple[str, bool, bool]] = []

    def critic_loss(self, rows: TensorBatch) -> Loss:
        self.modes.append(("critic", self.critic.training, self.actor.training))
        error = (self.critic(rows.obs).squeeze(1) - rows.reward).square()
        return Loss(error, error.detach(), {"error": error.mean()})

    def actor_loss(self, rows: TensorBatch) -> Loss:
        self.modes.append(("actor", self.critic.training, self.actor.training))
        place = self.actor(rows.obs)
        return Loss(-self.critic(place).squeeze(1), metrics={"place": place.mean()}, outputs={"place": place})

    def copy_loss(self, rows: TensorBatch) -> Loss:
        return Loss((self.copy(rows.obs) - rows.inputs["place"]).square().mean(dim=1))


def with_batch_norm() -> nn.Module:
    net = small_net((4, 8, 1))
    return nn.Sequential(net[0], nn.BatchNorm1d(8), nn.ReLU(), net[2])


def with_spectral_norm() -> nn.Module:
    net = small_net((4, 8, 1))
    with torch.random.fork_rng(devices=[]):  # from which its vectors are drawn
        return nn.Sequential(parametrizations.spectral_norm(net[0]), nn.ReLU(), net[2])
