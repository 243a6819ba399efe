"""BC and BCQ of many kinds by the numpy engine, as by torch."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tests.extensions.numpy_engine.agreement import Agreement
from tests.extensions.numpy_engine.pairs import NESTED, TWO_NUMBERS, learn_alike
from tests.extensions.numpy_engine.random_policies import (
    ACTIONS,
    N_ALL,
    N_FAST,
    Draw,
    check,
    learn_at_random,
    q_learner,
)
from tests.helpers.learning import FOUR_NUMBERS, MASKED, Spaces, batch_of, observations
from trainkit import BCPolicy, CategoricalValue, DiscreteBCQPolicy
from trainkit.core.spaces import flat_actions

CLONED = [spaces.Discrete(3), TWO_NUMBERS, spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(3)]


@pytest.mark.parametrize("action_space", CLONED, ids=str)
@pytest.mark.parametrize("space", [FOUR_NUMBERS, NESTED])
def test_a_cloner_learns_as_by_torch(space: Any, action_space: Any) -> None:
    if space is NESTED and not isinstance(action_space, spaces.Discrete):
        pytest.skip("masks are of Discrete actions")
    mine, theirs = (
        BCPolicy.for_envs(Spaces(space, action_space), hidden=(8,), device="cpu", seed=0, engine=engine)
        for engine in ("numpy", "torch")
    )
    batches = [batch_of(16, seed=seed, space=space, action=observations(action_space, 16, seed)) for seed in range(10)]
    for batch in batches if space is NESTED else ():
        batch.obs["action_mask"][np.arange(16), batch.action] = 1
    learn_alike(mine, theirs, batches)


@pytest.mark.parametrize("parts", [{}, {"value": CategoricalValue(5, -2, 2), "dueling": True}, {"noisy": True}])
def test_bcq_learns_as_by_torch(parts: dict[str, Any]) -> None:
    mine, theirs = (
        DiscreteBCQPolicy.for_envs(Spaces(MASKED), hidden=(8,), device="cpu", seed=0, engine=engine, **parts)
        for engine in ("numpy", "torch")
    )
    batches = [batch_of(16, seed=seed, space=MASKED) for seed in range(10)]
    for batch in batches:
        batch.obs["action_mask"][np.arange(16), batch.action] = 1
    learn_alike(mine, theirs, batches, n_passes=2)


def imitator(draw: Draw) -> BCPolicy:
    """Make a policy that clones behavior."""
    action_space = draw.one(ACTIONS)
    is_box = isinstance(flat_actions(action_space), spaces.Box)
    options = {"hidden": draw.layers(), "loss": "mse" if is_box and draw.is_true() else "likelihood"}
    options |= {"normalize_obs": draw.is_true(0.3), **draw.optimizer()}
    at = Spaces(draw.observation_space(action_space, masks=True), action_space)
    return BCPolicy.for_envs(at, device="cpu", seed=draw.number(1, 1000), engine="numpy", **options)


def bcq(draw: Draw) -> DiscreteBCQPolicy:
    """Make a discrete BCQ of random parts."""
    policy: Any = q_learner(draw, DiscreteBCQPolicy)
    return policy


def check_random_policies(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    agreement = Agreement(monkeypatch)
    learn_at_random({3: bcq, 5: imitator}, seeds)
    check(agreement)


@pytest.mark.no_cover  # many policies, whose lines other tests cover
def test_random_policies_are_as_exact_as_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    check_random_policies(range(N_FAST), monkeypatch)


@pytest.mark.slow
def test_many_random_policies_are_as_exact_as_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    check_random_policies(range(N_FAST, N_ALL), monkeypatch)
