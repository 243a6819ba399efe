"""Policies of all kinds that have learned from made-up rows."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from numpy.testing import assert_array_equal
from torch import Tensor, nn

from tests.helpers.learning import FOUR_NUMBERS, THREE_ACTIONS, Spaces, batch_of, observations
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
from trainkit.nets import register_encoder

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
