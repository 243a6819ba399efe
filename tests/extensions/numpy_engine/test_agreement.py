"""The numpy engine is as exact as torch: over random policies of every algorithm, and networks as users write them."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.extensions.numpy_engine.agreement import Agreement
from tests.extensions.numpy_engine.random_policies import (
    ACTIONS,
    BOUNDED,
    CHOICES,
    FORCE,
    MIXED,
    N_ALL,
    N_FAST,
    VECTOR,
    Draw,
    check,
    learn,
    learn_at_random,
    q_learner,
)
from tests.helpers.learning import Spaces, batch_of, observations
from tests.helpers.user_networks import USER_POLICIES
from trainkit import (
    A2CPolicy,
    DQNPolicy,
    PPOPolicy,
    ReinforcePolicy,
    SACPolicy,
)


def sac(draw: Draw) -> SACPolicy:
    """Make a soft actor-critic."""
    temperature = draw.one(["auto", 0.2, [(0, 1.0), (100, 0.1)]])
    options = {"hidden": draw.layers(), "temperature": temperature, "target": draw.target(), **draw.optimizer()}
    action_space = draw.one(BOUNDED)
    at = Spaces(draw.observation_space(action_space, masks=False), action_space)
    options["normalize_obs"] = draw.is_true(0.3)
    return SACPolicy.for_envs(at, device="cpu", seed=draw.number(1, 1000), engine="numpy", **options)


def actor_critic(draw: Draw, kind: Any) -> Any:
    """Make an on-policy learner."""
    action_space = draw.one(ACTIONS)
    options: dict[str, Any] = {"hidden": draw.layers(), "shared": draw.is_true(), **draw.optimizer()}
    if kind is PPOPolicy:
        options |= {"clip_value": draw.one([None, 0.2]), "entropy_weight": draw.one([0.0, 0.01])}
    if action_space in (*BOUNDED, MIXED) and draw.is_true():
        options["action_bound_method"] = "tanh"
    options |= {"normalize_obs": draw.is_true(0.3), "normalize_advantage": draw.is_true()}
    at = Spaces(draw.observation_space(action_space, masks=True), action_space)
    return kind.for_envs(at, device="cpu", seed=draw.number(1, 1000), engine="numpy", **options)


# The policies of the other remainders of a seed are those of an extension.
KINDS: dict[int, Callable[[Draw], Any]] = {
    0: q_learner,
    1: q_learner,
    2: q_learner,
    4: sac,
    6: lambda draw: actor_critic(draw, PPOPolicy),
    7: lambda draw: actor_critic(draw, A2CPolicy),
    8: lambda draw: actor_critic(draw, ReinforcePolicy),
}


@pytest.mark.no_cover  # many policies, whose lines other tests cover
def test_random_policies_are_as_exact_as_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    agreement = Agreement(monkeypatch)
    learn_at_random(KINDS, range(N_FAST))
    check(agreement)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [DQNPolicy, SACPolicy, PPOPolicy])
def test_activations_and_norms_are_as_exact_as_in_torch(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    agreement = Agreement(monkeypatch)
    at = Spaces(VECTOR, FORCE if kind is SACPolicy else CHOICES)
    for seed, (activation, norm) in enumerate([("silu", "layer"), ("elu", "rms"), ("gelu", "layer"), ("mish", None)]):
        how: dict[str, Any] = {"hidden": (17, 9), "activation": activation, "norm": norm}
        learn(kind.for_envs(at, device="cpu", seed=seed, engine="numpy", **how), Draw(seed))
    check(agreement)


@pytest.mark.slow
def test_many_random_policies_are_as_exact_as_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    agreement = Agreement(monkeypatch)
    learn_at_random(KINDS, range(N_FAST, N_ALL))
    check(agreement)


@pytest.mark.fast_cases(12)
@pytest.mark.global_rng
@pytest.mark.parametrize("name", USER_POLICIES)
def test_what_users_write_is_as_exact_as_in_torch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    agreement = Agreement(monkeypatch)
    policy = USER_POLICIES[name](device="cpu", seed=0, engine="numpy")
    for step, n_rows in enumerate((32, 32, 7)):
        policy.update(batch_of(n_rows, seed=step, space=policy.observation_space), step=step)
    if isinstance(policy, DQNPolicy):
        for n_obs in (1, 5):
            policy.act(observations(policy.observation_space, n_obs, n_obs))
    assert policy.engine.name == "numpy"
    check(agreement)
