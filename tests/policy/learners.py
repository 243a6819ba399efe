"""Policies of all kinds that have learned from made-up rows."""

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from numpy.testing import assert_array_equal
from torch import Tensor, nn

import trainkit as tk
from tests.helpers.learning import FOUR_NUMBERS, THREE_ACTIONS, Spaces, batch_of, observations
from tests.helpers.of_extensions import learners_of_extensions
from tests.helpers.rollouts import played
from trainkit import (
    A2CPolicy,
    CategoricalValue,
    ConservativePenalty,
    DQNPolicy,
    ImplicitQuantileValue,
    PPOPolicy,
    ReinforcePolicy,
    SACPolicy,
)
from trainkit.nets import MLP, register_encoder

FORCE = spaces.Box(-1.0, 1.0, (2,), np.float32)
LEARNERS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "dqn": (DQNPolicy, THREE_ACTIONS, {}),
    "rainbow": (DQNPolicy, THREE_ACTIONS, {"dueling": True, "noisy": True, "head": (5,), "value": CategoricalValue(5)}),
    "iqn": (DQNPolicy, THREE_ACTIONS, {"value": ImplicitQuantileValue(3)}),
    "cql": (DQNPolicy, THREE_ACTIONS, {"penalty": ConservativePenalty(0.1)}),
    "sac": (SACPolicy, FORCE, {}),
    "ppo": (PPOPolicy, FORCE, {}),
    "a2c": (A2CPolicy, THREE_ACTIONS, {"shared": True}),
    "reinforce": (ReinforcePolicy, THREE_ACTIONS, {}),
    **learners_of_extensions(),
}
every_learner = pytest.mark.parametrize("name", LEARNERS)


class Squares(nn.Module):
    """An encoder of a user's for vectors."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.layer = nn.Linear(*shape, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).square()


register_encoder("test_squares", Squares)


def learned(name: str, space: Any = FOUR_NUMBERS, n_updates: int = 1, **options: Any) -> Any:
    """Make a policy and let it learn from made-up rows."""
    kind, action_space, own = LEARNERS[name]
    at = Spaces(space, action_space)
    policy = kind.for_envs(at, **{"hidden": (8,), "device": "cpu", "seed": 3} | own | options)
    for seed in range(n_updates):
        if "learn" in policy.learning_methods:
            list(policy.learn(played(policy, space, (6, 6), seed=seed), step=seed))
        else:
            rng = np.random.default_rng(seed)
            action = rng.integers(3, size=12) if action_space is THREE_ACTIONS else rng.uniform(-1, 1, (12, 2))
            policy.update(batch_of(12, seed=seed, space=space, action=action), step=seed)
    return policy


def assert_acts_alike(one: Any, other: Any, space: Any = FOUR_NUMBERS) -> None:
    obs = observations(space, 5)
    for name, column in one.predict(obs, return_extra=True)[1].items():
        assert_array_equal(column, other.predict(obs, return_extra=True)[1][name])


class RewardModel(nn.Module):
    """The squared error of a prediction of the sum of each observation."""

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self.head = MLP((n_features, 1))

    def forward(self, features: Tensor, rows: Any) -> Tensor:
        return (self.head(features).squeeze(1) - rows.obs.sum(dim=1)).square()


# ---- of other spaces, and by other options ----

BOX = gym.spaces.Box(-1, 1, (3,), np.float32)
FEW = gym.spaces.Discrete(4)
PLACES = Spaces(observation_space=BOX, action_space=FEW)
PUSHES = Spaces(observation_space=BOX, action_space=gym.spaces.Box(-2, 2, (2,), np.float32))
SEEN = Spaces(
    observation_space=gym.spaces.Dict(
        {"obs": gym.spaces.Tuple([BOX, gym.spaces.Discrete(5)]), "action_mask": gym.spaces.MultiBinary(4)}
    ),
    action_space=FEW,
)

MADE: dict[str, Any] = {
    "dqn": lambda: tk.DQNPolicy.for_envs(PLACES, hidden=(8,), device="cpu", seed=3),
    "rainbow": lambda: tk.DQNPolicy.for_envs(
        PLACES, hidden=(8,), head=[4], dueling=True, noisy=True, double=True, n_step=(1, 3), device="cpu", seed=3,
        value=tk.CategoricalValue(7, -3.0, 3.0, priority="ce"), lr=[(0, 1e-3), (9, 1e-4)], target=tk.Target(9, tau=0.5),
    ),
    "quantiles": lambda: tk.DQNPolicy.for_envs(
        PLACES, hidden=(8,), value=tk.QuantileValue(9, kappa=0.5, rescale=1e-3), exploration=tk.SoftQ([(0, 1), (9, 2)]),
        backup=tk.MunchausenBackup(0.1, alpha=0.5), reward=(-1.0, 1.0), device="cpu", seed=3,
    ),
    "implicit": lambda: tk.DQNPolicy.for_envs(
        PLACES, hidden=(8,), value=tk.ImplicitQuantileValue(5, target_quantiles=6, acting_quantiles=7), device="cpu",
        exploration=tk.EpsilonGreedy(0.1, per_env=[1, 0.5]), penalty=tk.ConservativePenalty(0.5), seed=3,
    ),
    "normalised": lambda: tk.DQNPolicy.for_envs(
        PLACES, hidden=(8,), normalize_obs=True, reward="return_scale", optimizer=tk.Adam([(0, 1e-3), (5, 0)]),
        clip=tk.Clip(1.0, by="value"), device="cpu", seed=3,
    ),
    "ppo": lambda: tk.PPOPolicy.for_envs(PUSHES, hidden=(8,), normalize_obs=True, log_std=-1.0, device="cpu", seed=3),
    "squashed ppo": lambda: tk.PPOPolicy.for_envs(
        PUSHES, action_bound_method="tanh", shared=True, device="cpu", seed=3
    ),
    "a2c": lambda: tk.A2CPolicy.for_envs(PLACES, hidden=(8,), device="cpu", seed=3),
    "reinforce": lambda: tk.ReinforcePolicy.for_envs(PLACES, hidden=(8,), device="cpu", seed=3),
    "sac": lambda: tk.SACPolicy.for_envs(PUSHES, hidden=(8,), temperature=0.5, device="cpu", seed=3),
    **{
        name: partial(kind.for_envs, Spaces(BOX, space), hidden=(8,), device="cpu", seed=3, **own)
        for name, (kind, space, own) in learners_of_extensions().items()
    },
}  # fmt: skip
