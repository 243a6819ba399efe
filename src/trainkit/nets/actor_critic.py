"""The network of an actor-critic: numbers that choose a distribution of actions, and one value."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trainkit.core.errors import Checks
from trainkit.core.signatures import checked
from trainkit.nets.networks import MLP, Encoder
from trainkit.nets.weights import SeededModule, draw_orthogonal


class Judged(NamedTuple):
    """What an actor-critic says about B observations."""

    numbers: Tensor  # [B, width], for the distribution
    value: Tensor  # [B]


@checked
class ActorCriticNetwork(SeededModule):
    """Give `width` numbers and a value per observation, from one torso or from one each.

    Layers start orthogonal: hidden ones times sqrt(2), the actor's last times 0.01, the critic's times 1 (Andrychowicz
    et al., 2021: a first policy that hardly depends on the observation matters most).

    Args:
        shapes: the features' shapes, as `Preprocess(space).shapes` tells them.
        width: numbers that choose a distribution, as it tells.
        hidden: layers, of each torso.
        shared: let actor and critic share one torso.
        activation: after each hidden layer.
    """

    def __init__(
        self,
        shapes: Any,
        width: int,
        *,
        hidden: Sequence[int] = (64, 64),
        shared: bool = False,
        activation: Callable[[Tensor], Tensor] = torch.tanh,
    ) -> None:
        checks = Checks("ActorCriticNetwork")
        checks.integer("width", width, low=1)
        for size in hidden:
            checks.integer("hidden sizes", size, low=1)
        checks.done()
        super().__init__()
        self.actor_torso = Encoder(shapes, hidden, activation)
        self.critic_torso = None if shared else Encoder(shapes, hidden, activation)
        self.actor = MLP([self.actor_torso.n_features, width])
        self.critic = MLP([self.actor_torso.n_features, 1])
        self.draw()

    def forward(self, features: Any) -> Judged:
        x = self.actor_torso(features)
        y = x if self.critic_torso is None else self.critic_torso(features)
        return Judged(self.actor(x), self.critic(y).squeeze(1))

    def values(self, features: Any) -> Tensor:
        """Return the values [B] alone."""
        torso = self.actor_torso if self.critic_torso is None else self.critic_torso
        values: Tensor = self.critic(torso(features)).squeeze(1)
        return values

    def _initialise(self, generator: torch.Generator) -> None:
        draw_orthogonal(self, generator, gain=2**0.5)
        draw_orthogonal(self.actor, generator, gain=0.01)
        draw_orthogonal(self.critic, generator, gain=1.0)
