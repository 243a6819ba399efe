"""What an estimate says that the recorded episodes cannot support."""

import logging

import numpy as np
import pytest

import trainkit as tk
from trainkit.extensions.offline.fitted_q_evaluation import _rises
from trainkit.extensions.offline.off_policy_evaluation import per_decision


@pytest.mark.parametrize("is_weighted", [True, False])
def test_an_estimate_without_support_has_no_error_bar_and_warns(
    is_weighted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    ratios = [np.array([2.0, 0.0, 2.0]), np.array([2.0, 2.0, 0.0])]  # each leaves the target's actions once
    with caplog.at_level(logging.WARNING):
        found = per_decision(ratios, [np.ones(3), np.ones(3)], gamma=1.0, is_weighted=is_weighted)
    assert found.effective_sample_size == 0.0
    assert found.std_error is None
    assert "none of them could be the target policy's" in caplog.text
    assert "fitted_q_evaluation" in caplog.text


def test_an_estimate_that_rests_on_one_of_many_episodes_has_no_error_bar(caplog: pytest.LogCaptureFixture) -> None:
    ratios = [np.array([2.0, 2.0]), *[np.array([2.0, 0.0])] * 9]
    with caplog.at_level(logging.WARNING):
        found = per_decision(ratios, [np.array([1.0, 10.0])] * 10, gamma=1.0, is_weighted=True)
    assert found.std_error is None
    assert "they are worth 1 of the target policy's own" in caplog.text


def test_a_greedy_policy_is_not_evaluated_with_certainty_by_random_episodes(caplog: pytest.LogCaptureFixture) -> None:
    envs = tk.make_envs("CartPole-v1", 8, seed=0)
    dataset = tk.ReplayBuffer(5_000, spaces=envs)
    behavior = tk.RandomPolicy(envs.action_space, store_action_prob=True, seed=0)
    tk.Collector(behavior, envs, dataset).collect(n_episode=60)
    target = tk.DQNPolicy.for_envs(envs, hidden=(16,), seed=1)
    with caplog.at_level(logging.WARNING):
        found = tk.datasets.weighted_importance_sampling(target, dataset, gamma=0.99)
    assert found.effective_sample_size == pytest.approx(0.0)
    assert found.std_error is None
    assert "has no standard error" in caplog.text


@pytest.mark.parametrize(("n_updates", "rises"), [(1_200, True), (40, False)])
def test_a_fitted_loss_that_still_rises_is_said(n_updates: int, rises: bool, caplog: pytest.LogCaptureFixture) -> None:
    envs = tk.make_envs("CartPole-v1", 4, seed=0)
    dataset = tk.ReplayBuffer(2_000, spaces=envs)
    tk.Collector(tk.RandomPolicy(envs.action_space, seed=0), envs, dataset).collect(n_step=1_000)
    target = tk.DQNPolicy.for_envs(envs, hidden=(16,), seed=1)
    with caplog.at_level(logging.WARNING):
        found = tk.trainer.fitted_q_evaluation(target, dataset, gamma=0.999, n_updates=n_updates, hidden=(16,), lr=1e-2)
    assert _rises(list(found.losses)) == rises
    assert ("the loss still rises" in caplog.text) == rises
