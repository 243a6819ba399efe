"""Exact truth: on a small process with known values, every way of learning must find them, and only right ways do."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tests.helpers.learning import Spaces
from tests.helpers.mdp import Mdp
from trainkit import (
    CategoricalValue,
    DQNPolicy,
    ExpectedValue,
    HLGaussValue,
    ImplicitQuantileValue,
    MunchausenBackup,
    PrioritizedReplayBuffer,
    QuantileValue,
    ReplayBuffer,
    Target,
)

pytestmark = pytest.mark.no_cover  # thousands of updates, whose lines other tests cover
MDP = Mdp()
N_ENVS, N_STEPS = 1000, 1000
BATCH = 1024
BOUND = 0.05


def largest_error(
    buffer: ReplayBuffer,
    *,
    behavior: Any = MDP.at_random,
    lie: bool = False,
    n_updates: int = 1500,
    batch_size: int = BATCH,
    truth: Any = None,
    **options: Any,
) -> float:
    """Learn a value per state and action (linear in one-hot states) and return the worst one's distance from Q*.

    `truth` [S, A] stands in for Q* where something else is to be found.
    """
    MDP.fill(buffer, behavior, n_envs=N_ENVS, n_steps=N_STEPS, lie=lie)
    policy = DQNPolicy.for_envs(
        Spaces(spaces.Discrete(MDP.n_states), spaces.Discrete(MDP.n_actions)),
        **{
            "hidden": (),
            "gamma": MDP.gamma,
            "value": ExpectedValue("mse"),  # whose optimum is the mean; huber's is not
            "lr": [(0, 0.05), (n_updates * 2 // 5, 0.02), (n_updates * 2 // 3, 0.005), (n_updates, 0.0002)],
            "max_grad_norm": None,
            "target": Target(20, "updates"),
            "device": "cpu",
            "seed": 1,
        }
        | options,
    )
    for step in range(n_updates):
        batch = buffer.sample(batch_size, horizon=policy.horizon, step=step)
        priority = policy.update(batch, step=step).read_priority()
        if buffer.prioritized:
            buffer.update_priorities(batch.slots, priority)
    values = policy.action_values(np.arange(MDP.n_states))
    return float(np.abs(values - (MDP.q_star() if truth is None else truth)).max())


def uniform() -> ReplayBuffer:
    return ReplayBuffer(N_ENVS * N_STEPS, seed=2)


def prioritized(beta: float = 1.0) -> ReplayBuffer:
    return PrioritizedReplayBuffer(N_ENVS * N_STEPS, alpha=0.6, beta=beta, seed=2)


def test_uniform_replay_finds_the_truth() -> None:
    assert largest_error(uniform()) < BOUND


def test_prioritized_replay_with_full_weights_finds_the_truth() -> None:
    assert largest_error(prioritized()) < BOUND


@pytest.mark.slow
def test_prioritized_replay_without_weights_misses_the_truth() -> None:
    assert largest_error(prioritized(beta=0.0)) > 2 * BOUND


def test_truncation_taken_for_termination_misses_the_truth() -> None:
    assert largest_error(uniform(), lie=True) > 10 * BOUND


@pytest.mark.slow
def test_windows_of_2_to_5_steps_find_the_truth_on_data_of_the_best_policy() -> None:
    assert largest_error(uniform(), behavior=MDP.optimally, n_step=(2, 5)) < BOUND


@pytest.mark.slow
def test_means_of_distributions_find_the_truth() -> None:
    assert largest_error(uniform(), value=CategoricalValue(21, -5.0, 5.0)) < BOUND


@pytest.mark.slow
@pytest.mark.parametrize("target", ["hl_gauss", "two_hot"])
def test_means_of_histograms_find_the_truth(target: Any) -> None:
    assert largest_error(uniform(), value=HLGaussValue(21, -5.0, 5.0, target=target)) < BOUND


def test_means_of_quantiles_find_the_truth() -> None:
    assert largest_error(uniform(), value=QuantileValue(9, kappa=0.0), batch_size=256) < 2 * BOUND


@pytest.mark.slow
def test_a_cold_soft_backup_finds_the_truth() -> None:
    assert largest_error(uniform(), backup=MunchausenBackup(0.01, alpha=0.0)) < BOUND


def test_a_warm_soft_backup_with_its_bonus_finds_the_values_of_its_own_equation() -> None:
    truth = MDP.q_soft(0.1, alpha=0.9)
    assert np.abs(truth - MDP.q_star()).max() > 10 * BOUND  # the bonus is a large part of them

    assert largest_error(uniform(), backup=MunchausenBackup(0.1), truth=truth) < BOUND


@pytest.mark.slow
def test_a_warm_soft_backup_without_a_bonus_finds_the_soft_optimum() -> None:
    truth = MDP.q_soft(0.3)
    assert np.abs(truth - MDP.q_star()).max() > 3 * BOUND

    assert largest_error(uniform(), backup=MunchausenBackup(0.3, alpha=0.0), truth=truth) < BOUND


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"value": QuantileValue(21, kappa=0.0)},
        {
            "value": ImplicitQuantileValue(8, target_quantiles=8, kappa=0.05),
            "hidden": (64,),
            "lr": [(0, 2e-3), (1500, 1e-4)],
        },
    ],
    ids=["quantile", "implicit"],
)
def test_more_quantiles_find_the_truth_more_nearly(options: dict[str, Any]) -> None:
    assert largest_error(uniform(), **options) < BOUND


@pytest.mark.slow
@pytest.mark.parametrize(
    ("buffer", "options"),
    [
        (uniform, {"double": True}),
        (uniform, {"dueling": True}),
        (uniform, {"behavior": MDP.optimally}),
        (uniform, {"target": Target(1, "updates", tau=0.05)}),
        (prioritized, {"double": True, "value": CategoricalValue(21, -5.0, 5.0)}),
        (prioritized, {"double": True, "value": HLGaussValue(21, -5.0, 5.0)}),
        (prioritized, {"behavior": MDP.optimally, "n_step": (2, 5), "double": True, "dueling": True}),
    ],
    ids=[
        "double",
        "dueling",
        "n-step 1",
        "soft target",
        "categorical prioritized double",
        "hl-gauss prioritized double",
        "n-step prioritized",
    ],
)
def test_every_other_way_finds_the_truth_too(buffer: Any, options: dict[str, Any]) -> None:
    assert largest_error(buffer(), n_updates=4500, **options) < BOUND


@pytest.mark.slow
def test_windows_of_other_behavior_miss_the_truth() -> None:
    assert largest_error(uniform(), n_step=(2, 5)) > 10 * BOUND
