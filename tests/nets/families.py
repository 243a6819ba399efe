"""Distributions of every kind of action space, and a network that has one."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from trainkit.engine.device import CPU
from trainkit.engine.engine import EngineName, engine_for
from trainkit.nets.distributions import Distribution, Gaussian, SquashedGaussian, distribution_for

SPACES: list[Any] = [
    pytest.param(spaces.Discrete(3, start=5), id="Discrete"),
    pytest.param(spaces.MultiDiscrete([2, 3], start=[7, -1]), id="MultiDiscrete"),
    pytest.param(spaces.MultiDiscrete([[2, 3], [4, 2]]), id="MultiDiscrete 2 x 2"),
    pytest.param(spaces.MultiBinary(3), id="MultiBinary"),
    pytest.param(spaces.MultiBinary([2, 2]), id="MultiBinary 2 x 2"),
    pytest.param(spaces.Box(-1, 1, (3,)), id="Box"),
    pytest.param(spaces.Box(-1, 1, (2, 2)), id="Box 2 x 2"),
]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def numbers_for(family: Distribution, n_rows: int) -> Tensor:
    """Draw numbers [B, width]."""
    return torch.randn(n_rows, family.width, generator=generator(1))


NARROW = spaces.Box(np.array([-2.0, 10.0], np.float32), np.array([4.0, 11.0], np.float32))
FAMILIES: list[Any] = [
    *(pytest.param(lambda space=one.values[0]: distribution_for(space), id=one.id) for one in SPACES),
    pytest.param(lambda: Gaussian(NARROW, log_std=-1.0), id="Box of other deviations"),
    pytest.param(lambda: SquashedGaussian(NARROW, log_std=-0.5), id="squashed"),
    pytest.param(lambda: SquashedGaussian(NARROW, log_std=None), id="squashed, deviations of the network"),
]


class Actor(nn.Module):
    """Act by network outputs that are given, as a policy does."""

    def __init__(self, family: Any, engine: EngineName) -> None:
        super().__init__()
        self.family = family
        self.engine = engine_for(self, engine, CPU)

    def forward(self, given: Any) -> dict[str, Tensor]:
        numbers, legal, noise = given
        sampled = self.family.mode(numbers, legal) if noise is None else self.family.sample(numbers, legal, noise)
        return {"action": sampled, "log_prob": self.family.log_prob(numbers, sampled, legal)}

    def act(self, numbers: Tensor, legal: Tensor | None, noise: Tensor | None) -> tuple[Any, Any]:
        answer = self.engine.call("act", self, (numbers, legal, noise))
        return answer["action"], answer["log_prob"]
