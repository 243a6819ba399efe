"""Noisy linear layers (Fortunato et al., 2018), whose noise is an argument of the forward pass."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainkit.core import seeding
from trainkit.core.errors import Checks
from trainkit.core.signatures import checked
from trainkit.nets.weights import draw_uniform


@checked
class NoisyLinear(nn.Module):
    """Noisy linear layer: y = (w + s_w * e_w) x + b + s_b * e_b, with factorized noise.

    `forward(x [B, in], noise [R, in + out] | None)`: `noise` holds f(e_in) and f(e_out), f(e) = sign(e) sqrt|e|, of
    e_w = f(e_out) f(e_in)^T and e_b = f(e_out). R = B gives each row its own noise (acting), R = 1 all rows the same
    (learning); None is the mean network. Equations 9 to 11; w and b start uniform in +-1/sqrt(in), s_w and s_b at
    sigma0/sqrt(in).
    """

    def __init__(self, in_features: int, out_features: int, *, sigma0: float = 0.5) -> None:
        with Checks("NoisyLinear") as checks:
            checks.integer("in_features", in_features, low=1)
            checks.integer("out_features", out_features, low=1)
            checks.number("sigma0", sigma0, low=0)
        super().__init__()
        self.in_features, self.out_features, self.sigma0 = in_features, out_features, sigma0
        self.weight = nn.Parameter(torch.empty(out_features, in_features, dtype=torch.float32))
        self.weight_sigma = nn.Parameter(torch.empty(out_features, in_features, dtype=torch.float32))
        self.bias = nn.Parameter(torch.empty(out_features, dtype=torch.float32))
        self.bias_sigma = nn.Parameter(torch.empty(out_features, dtype=torch.float32))
        self.draw_parameters(torch.Generator().manual_seed(seeding.fresh_root()))

    @property
    def noise_size(self) -> int:
        """Number of noise values per row."""
        return self.in_features + self.out_features

    def draw_parameters(self, generator: torch.Generator) -> None:
        """Initialize as in the paper, section 3.2."""
        bound = 1.0 / math.sqrt(self.in_features)
        draw_uniform(self.weight, bound, generator)
        draw_uniform(self.bias, bound, generator)
        with torch.no_grad():
            self.weight_sigma.fill_(self.sigma0 * bound)
            self.bias_sigma.fill_(self.sigma0 * bound)

    def forward(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return outputs [B, out] for inputs [B, in] and noise [B or 1, noise_size]; None is the mean network."""
        if noise is None:
            return functional.linear(x, self.weight, self.bias)
        noise = noise.to(self.weight.dtype)  # bfloat16 where a policy learns in it
        noise_in, noise_out = noise[:, : self.in_features], noise[:, self.in_features :]
        if len(noise) == 1:  # the same weights for all rows
            weight = torch.addcmul(self.weight, self.weight_sigma, noise_out.T * noise_in)
            return functional.linear(x, weight, torch.addcmul(self.bias, self.bias_sigma, noise_out[0]))
        mean = functional.linear(x, self.weight, self.bias)
        return mean + functional.linear(x * noise_in, self.weight_sigma, self.bias_sigma) * noise_out


def initial_noise(noisy: bool | float) -> float | None:
    """Return sigma0 for the option `noisy` of networks, of which True is the paper's 0.5; None is without noise."""
    if isinstance(noisy, bool):
        return 0.5 if noisy else None
    return noisy


def check_noise(checks: Checks, noisy: object) -> None:
    """Check the option `noisy` of networks."""
    if not isinstance(noisy, bool):
        checks.number("noisy", noisy, low=0)


def sample_noise(rows: int, size: int, generator: torch.Generator) -> Tensor:
    """Sample f(e) for standard normal e, [R, size], on the generator's device."""
    return _factors(torch.randn(rows, size, generator=generator, device=generator.device, dtype=torch.float32))


def sample_noises(n: int, size: int, generator: torch.Generator) -> Sequence[Tensor]:
    """Return n samples [1, size] as `sample_noise` draws them one after the other."""
    how: dict[str, Any] = {"generator": generator, "device": generator.device, "dtype": torch.float32}
    return _factors(torch.cat([torch.randn(1, size, **how) for _ in range(n)])).chunk(n)


def _factors(normal: Tensor) -> Tensor:
    """Return f(e) = sign(e) sqrt|e|."""
    return torch.copysign(normal.abs().sqrt_(), normal)
