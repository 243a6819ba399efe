"""SimbaV2 (Lee et al., 2025, arXiv 2502.15280), to measure beside XQC: networks of one's own for `ActorCriticPolicy`.

Activations and weights are on the unit sphere. With c = 3 appended and l2(x) = x / |x|,

    h = l2(scaler(W l2([x, c])))
    h = l2(h + alpha * (l2(W2 relu(scaler(W1 h))) - h))    per block, W1 four times as wide
    outputs = W4 scaler(W3 h) + b

where scalers and alphas are learned factors per unit, and the weights of each unit are projected to the norm 1 after
every step. It differs from the authors' code: one head for means and log standard deviations, which are clipped to
-20..2; the gradient steps' order is the policy's; rewards are scaled by the deviation of returns, without their bound.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import trainkit as tk
from trainkit.nets.actor_critic_networks import StackedLinear
from trainkit.nets.weights import SeededModule, draw_parameters

SHIFT = 3.0


def l2(x: Tensor) -> Tensor:
    """Return vectors [..., F] of norm 1."""
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp(min=1e-8)


class Scaler(nn.Module):
    """A learned factor per unit of C networks, which starts at `start`; its parameter starts at `scale`."""

    def __init__(self, n_networks: int, width: int, start: float, scale: float) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.full((n_networks, 1, width), scale))
        self._ratio = start / scale

    def forward(self, x: Tensor) -> Tensor:
        return x * (self.factor * self._ratio)


class HypersphericalMLP(SeededModule):
    """C networks of inputs [B, in] to outputs [C, B, out].

    Args:
        n_networks: C.
        n_inputs: after which c is appended.
        width: of the hidden layers.
        n_blocks: of residual blocks.
        n_outputs: of the last layer.
    """

    def __init__(self, n_networks: int, n_inputs: int, width: int, n_blocks: int, n_outputs: int) -> None:
        super().__init__()
        usual, self.n_networks = math.sqrt(2 / width), n_networks
        self.first = StackedLinear(n_networks, n_inputs + 1, width, bias=False)
        self.scale = Scaler(n_networks, width, usual, usual)
        self.wide = nn.ModuleList([StackedLinear(n_networks, width, 4 * width, bias=False) for _ in range(n_blocks)])
        self.scales = nn.ModuleList([Scaler(n_networks, 4 * width, usual / 2, usual / 2) for _ in range(n_blocks)])
        self.narrow = nn.ModuleList([StackedLinear(n_networks, 4 * width, width, bias=False) for _ in range(n_blocks)])
        step = 1 / (n_blocks + 1), 1 / math.sqrt(width)
        self.steps = nn.ModuleList([Scaler(n_networks, width, *step) for _ in range(n_blocks)])
        self.head = StackedLinear(n_networks, width, width, bias=False)
        self.head_scale = Scaler(n_networks, width, 1.0, 1.0)
        self.last = StackedLinear(n_networks, width, n_outputs)
        self.draw()

    def forward(self, x: Tensor) -> Tensor:
        x = l2(torch.cat([x, torch.full_like(x[:, :1], SHIFT)], dim=1))
        h = l2(self.scale(self.first(x.expand(self.n_networks, *x.shape))))
        for wide, scale, narrow, step in zip(self.wide, self.scales, self.narrow, self.steps, strict=True):
            h = l2(h + step(l2(narrow(torch.relu(scale(wide(h))))) - h))
        outputs: Tensor = self.last(self.head_scale(self.head(h)))
        return outputs

    def constrained(self, parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the weights of each unit with the norm 1."""
        return {name: l2(weight) for name, weight in parameters.items() if name.endswith(".weight")}

    def _initialize(self, generator: torch.Generator) -> None:
        draw_parameters(self, generator)
        own = dict(self.named_parameters())
        with torch.no_grad():
            for name, projected in self.constrained(own).items():
                own[name].copy_(projected)


class Actor(HypersphericalMLP):
    """Features [B, F] -> [B, width]."""

    def forward(self, features: Tensor) -> Tensor:
        return super().forward(features)[0]


class Critics(HypersphericalMLP):
    """(Features [B, F], actions [B, D]) -> [B, C, W]."""

    def forward(self, features: Tensor, action: Tensor) -> Tensor:  # type: ignore[override]  # with an action
        return super().forward(torch.cat([features, action], dim=1)).transpose(0, 1)


class HypersphericalNetworks:
    """An actor and critics of blocks: `hidden=(128, 128)` are two blocks 128 wide."""

    def actor(self, shapes: Any, width: int, *, hidden: Sequence[int], **_: Any) -> nn.Module:
        """Return the actor."""
        return Actor(1, math.prod(shapes), hidden[0], len(hidden), width)

    def critics(
        self, shapes: Any, n_dimensions: int, *, n_critics: int, width: int | None, hidden: Sequence[int], **_: Any
    ) -> nn.Module:
        """Return the critics."""
        return Critics(n_critics, math.prod(shapes) + n_dimensions, hidden[0], len(hidden), width or 1)


class SimbaV2Policy(tk.ActorCriticPolicy):
    """XQC's preset with the networks of SimbaV2, and their usual passes: give `policy_class=SimbaV2Policy`."""

    @classmethod
    def for_envs(cls, envs: Any, **options: Any) -> Any:
        """Make a policy for environments."""
        own = {"networks": HypersphericalNetworks(), "critic_pass": tk.policy.SeparatePasses()}
        return super().for_envs(envs, **options | own)
