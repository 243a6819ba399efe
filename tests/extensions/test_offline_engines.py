"""BC and BCQ by every engine, as by torch, with options that other extensions have."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import trainkit as tk
from tests.extensions.cuda.frames_and_arrays import STACKED, Source
from tests.extensions.cuda.frames_and_arrays import learn_alike as learn_from_both
from tests.extensions.cuda.graph_learners import (
    by_spaces,
    check_that_acting_has_the_bits_of_torch_and_waits_once,
    check_that_updates_are_those_of_torch_in_one_copy_and_one_launch,
)
from tests.extensions.numpy_engine import pairs
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
from tests.helpers.sac import PUSH
from tests.helpers.updates import batches
from tests.helpers.updates import learn_alike as learn_updates_alike
from trainkit import BCPolicy, CategoricalValue, DiscreteBCQPolicy
from trainkit.core.spaces import flat_actions

# ---- numpy ----


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize(
    ("kind", "space", "action_space"),
    [
        pytest.param(DiscreteBCQPolicy, MASKED, None, id="bcq"),
        *(
            pytest.param(BCPolicy, FOUR_NUMBERS, space, id=f"bc {space}")
            for space in (spaces.Discrete(3), PUSH, pairs.CHOICES, spaces.MultiBinary(3))
        ),
    ],
)
def test_policies_act_as_by_torch(kind: Any, space: Any, action_space: Any) -> None:
    pairs.check_that_policies_act_alike(kind, space, action_space, {})


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


# ---- compile ----


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
def test_a_cloner_learns_as_without() -> None:
    options: dict[str, Any] = {"hidden": (8,), "device": "cpu", "seed": 0}
    compiled, plain = (BCPolicy.for_envs(Spaces(), engine=engine, **options) for engine in ("compile", "auto"))
    learn_updates_alike(compiled, plain, batches(6))


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
def test_every_gradient_step_of_a_policy_is_compiled() -> None:
    options: dict[str, Any] = {"hidden": (8,), "device": "cpu", "seed": 0}
    compiled, plain = (DiscreteBCQPolicy.for_envs(Spaces(), engine=engine, **options) for engine in ("compile", "auto"))
    learn_updates_alike(compiled, plain, batches(3))
    assert compiled.engine._compiled_graphs.keys() == set(compiled.gradient_steps.values())


# ---- graphs, and frames on the device ----

BY_GRAPHS = {
    "bcq": by_spaces(DiscreteBCQPolicy),
    "bc": by_spaces(BCPolicy),
    "bc mse": by_spaces(BCPolicy, PUSH, loss="mse"),
}


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("name", BY_GRAPHS)
def test_updates_by_a_graph_are_those_of_torch_in_one_copy_and_one_launch(
    name: str, taped: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_that_updates_are_those_of_torch_in_one_copy_and_one_launch(BY_GRAPHS[name], taped, monkeypatch)


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("name", BY_GRAPHS)
def test_acting_by_a_graph_has_the_bits_of_torch_and_waits_once(name: str, taped: Any) -> None:
    check_that_acting_has_the_bits_of_torch_and_waits_once(BY_GRAPHS[name], taped)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("kind", [BCPolicy, DiscreteBCQPolicy])
def test_a_learner_of_places_learns_as_one_of_arrays(kind: Any) -> None:
    def make() -> Any:
        return kind.for_envs(Spaces(STACKED), hidden=(8,), device="cpu", seed=0)

    learn_from_both(make(), make(), Source(STACKED), 3)


def test_acting_of_ones_own_is_not_copied() -> None:
    with pytest.raises(tk.ConfigError, match=r"\.act_on must be 'policy', got 'cpu': it has its own action_values"):
        DiscreteBCQPolicy.for_envs(Spaces(), hidden=(8,), device="cpu", act_on="cpu")
    DiscreteBCQPolicy.for_envs(Spaces(), hidden=(8,), device="cpu", act_on="policy")
