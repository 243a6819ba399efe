"""What policies are tried on: spaces, made-up batches, and a plain module that draws from no global generator."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from gymnasium import Space, spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from trainkit import (
    CategoricalValue,
    DQNPolicy,
    EpsilonGreedy,
    ExpectedValue,
    HLGaussValue,
    ImplicitQuantileValue,
    MunchausenBackup,
    QuantileValue,
    Target,
    TransitionBatch,
)
from trainkit.core import tree
from trainkit.engine.loss import Objective
from trainkit.nets.weights import draw_parameters
from trainkit.policy.update_result import MeanMetrics

FOUR_NUMBERS = spaces.Box(-10.0, 10.0, (4,), np.float32)
THREE_ACTIONS = spaces.Discrete(3)
MASKED = spaces.Dict({"obs": FOUR_NUMBERS, "action_mask": spaces.MultiBinary(3)})
NEVER = Target(every=10**9)
PARTS: list[Any] = [
    pytest.param({}, id="dqn"),
    pytest.param({"double": True, "dueling": True, "lr": [(0, 1e-2), (20, 1e-3)]}, id="double dueling, lr knots"),
    pytest.param(
        {"double": True, "dueling": True, "noisy": True, "value": CategoricalValue(11, -3, 3), "n_step": 3},
        id="rainbow",
    ),
    pytest.param({"target": Target(every=1, unit="updates", tau=0.1)}, id="soft target"),
    pytest.param({"value": HLGaussValue(11, -3, 3), "double": True}, id="hl-gauss double"),
    pytest.param({"value": QuantileValue(8), "double": True}, id="quantile double"),
    pytest.param(
        {"value": ImplicitQuantileValue(4, target_quantiles=5, acting_quantiles=6), "dueling": True, "noisy": True},
        id="implicit dueling noisy",
    ),
    pytest.param(
        {"backup": MunchausenBackup(0.02, lowest=-0.1), "value": ExpectedValue(rescale=1e-3)}, id="munchausen rescaled"
    ),
]


class Spaces(NamedTuple):
    """What `for_envs` needs of environments."""

    observation_space: Space[Any] = FOUR_NUMBERS
    action_space: Space[Any] = THREE_ACTIONS


def objective(loss: Callable[[Any], Any], rows: Any) -> dict[str, Any]:
    """Return what a gradient step minimizes for rows, as "loss", and the loss's other results."""
    return Objective("loss", loss, lambda *_: rows)(rows)


def observations(space: Space[Any], n_rows: int, seed: int = 0) -> Any:
    """Draw K observations of a space, [K, ...] leaf by leaf; every mask allows something."""
    space.seed(seed)
    rows = [space.sample() for _ in range(n_rows)]
    obs = tree.map_tree(lambda *leaves: np.stack(leaves), rows[0], *rows[1:])
    if isinstance(obs, dict) and "action_mask" in obs:
        obs["action_mask"][:, 0] |= ~obs["action_mask"].any(axis=1)
    return obs


def batch_of(n_rows: int, *, seed: int = 0, space: Space[Any] = FOUR_NUMBERS, **columns: Any) -> TransitionBatch:
    """Make up B rows to learn from; `columns` replace what would be drawn."""
    rng = np.random.default_rng(seed)
    drawn: dict[str, Any] = {
        "obs": observations(space, n_rows, seed),
        "action": rng.integers(3, size=n_rows),
        "reward": rng.normal(size=n_rows).astype(np.float32),
        "discount": np.where(rng.random(n_rows) < 0.2, 0.0, 0.9).astype(np.float32),
        "next_obs": observations(space, n_rows, seed + 1),
        "weight": rng.uniform(0.1, 1.0, n_rows).astype(np.float32),
        "slots": np.arange(n_rows),
    }
    return TransitionBatch(**drawn | columns)


def linear(weight: Any, bias: Any = None) -> nn.Linear:
    """Make a linear layer of given numbers."""
    weights = torch.tensor(weight, dtype=torch.float32)
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, weights.shape[1], weights.shape[0])
    with torch.no_grad():
        layer.weight.copy_(weights)
        layer.bias.copy_(torch.zeros(len(weights)) if bias is None else torch.tensor(bias, dtype=torch.float32))
    return layer


def small_net(sizes: tuple[int, ...] = (4, 8, 3), seed: int = 0) -> nn.Sequential:
    """Make a plain torch network with tanh between linear layers, initialised by a generator of its own."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.utils.skip_init(nn.Linear, before, after), nn.Tanh()]
    net = nn.Sequential(*layers[:-1])
    draw_parameters(net, torch.Generator().manual_seed(seed))
    return net


def algorithm_1(probability: Sequence[float], support: Sequence[float], reward: float, discount: float) -> list[float]:
    """Project one row as Bellemare et al. (2017) write it, in float64; l = u when b is whole gets all of the mass."""
    v_min, v_max, last = support[0], support[-1], len(support) - 1
    gap = (v_max - v_min) / last
    mass = [0.0] * len(support)
    for p, z in zip(probability, support, strict=True):
        b = min(max((min(max(reward + discount * z, v_min), v_max) - v_min) / gap, 0), last)
        lower, upper = math.floor(b), math.ceil(b)
        if lower == upper:
            mass[lower] += p
        else:
            mass[lower] += p * (upper - b)
            mass[upper] += p * (b - lower)
    return mass


def parameters_of(module: nn.Module) -> dict[str, Tensor]:
    """Copy a module's parameters."""
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}


def assert_same(one: Any, other: Any) -> None:
    """Compare trees of tensors, arrays and plain values bit by bit."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for mine, theirs in zip(one, other, strict=True):
            assert_same(mine, theirs)
    elif isinstance(one, Tensor):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    else:
        np.testing.assert_array_equal(one, other)


def is_legal(action: NDArray[Any], mask: NDArray[Any]) -> bool:
    """Whether every action [K] is allowed by its row of the mask [K, A]."""
    return bool(mask[np.arange(len(action)), action].all())


def wide_net(width: int) -> nn.Module:
    """Make a network [B, 4] -> [B, 3, W]."""
    return nn.Sequential(small_net((4, 8, 3 * width)), nn.Unflatten(1, (3, width)))


def echo(**options: Any) -> DQNPolicy:
    """Make a policy whose action values are the observation itself."""
    return DQNPolicy(nn.Identity(), **{"device": "cpu", "exploration": EpsilonGreedy(0.0), "seed": 0} | options)


def made(space: Any = None, **options: Any) -> DQNPolicy:
    """Make a small policy of parts, by `for_envs`."""
    at = Spaces() if space is None else Spaces(space)
    return DQNPolicy.for_envs(at, **{"hidden": (8,), "device": "cpu", "seed": 0} | options)


def add_to(meter: MeanMetrics, metrics: Mapping[str, Any], **plain: float) -> None:
    """Add the scalars of one update to mean metrics."""
    meter.count(meter.add_to_sums(metrics), **plain)
