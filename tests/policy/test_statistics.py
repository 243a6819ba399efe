"""Standard deviations of sampled actions, those of a parameter and those of outputs."""

import copy
import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import trainkit as tk
from tests.helpers.engine import engines
from tests.trainer.runs import Slide, make_sac
from tests.trainer.toys import make_onpolicy_trainer, make_trainer
from trainkit.core.stats import NO_VALUES
from trainkit.nets.distributions import Gaussian, SquashedGaussian
from trainkit.policy.statistics import ActionStd


def predicted(policy: tk.SACPolicy, obs: Any) -> Any:
    """Return the deviations that the actor predicts for observations, by torch and by the definition."""
    with torch.no_grad():
        numbers = policy.actor(policy.features(obs))
    return numbers[:, 1:].clamp(-20.0, 2.0).exp().numpy()  # one dimension


@pytest.mark.parametrize("log_std", [0.0, -1.5])
def test_ppos_are_its_parameter(log_std: float) -> None:
    envs = tk.make_envs(Slide, 2)
    policy = tk.PPOPolicy.for_envs(envs, hidden=(8,), log_std=log_std, device="cpu", seed=1)
    stats = tk.Collector(policy, envs, tk.RolloutBuffer()).collect(n_step=10)
    assert (stats.action_std.mean, stats.action_std.std) == pytest.approx((math.exp(log_std), 0.0))


@pytest.mark.parametrize("engine", engines("torch", "numpy"))
def test_sacs_are_those_predicted_for_each_observation(engine: Any) -> None:
    envs = tk.make_envs(Slide, 2)
    policy = tk.SACPolicy.for_envs(envs, hidden=(8,), device="cpu", seed=1, engine=engine)
    collector = tk.Collector(policy, envs, buffer := tk.ReplayBuffer(1_000))
    policy.act(np.full((2, 2), 9.0, np.float32), explore=True)  # of no collect
    stats = collector.collect(n_step=600)  # more draws than are kept
    assert policy.engine.name == engine
    (rows,) = buffer.transitions()
    expected = predicted(policy, rows.obs)
    assert expected.std() > 1e-4
    shown = stats.action_std
    assert shown.count == len(expected) == 600
    assert (shown.mean, shown.min, shown.max) == pytest.approx((expected.mean(), expected.min(), expected.max()))
    assert shown.std == pytest.approx(expected.std(), rel=1e-3)


def test_there_are_none_where_no_action_was_drawn_from_a_normal_distribution() -> None:
    envs = tk.make_envs(Slide, 2)
    policy = tk.SACPolicy.for_envs(envs, hidden=(8,), device="cpu")
    collector = tk.Collector(policy, envs)
    assert collector.collect(n_step=4, explore=False).action_std.is_empty
    assert collector.collect(n_step=4, random=True).action_std.is_empty
    assert not collector.collect(n_step=4, explore=True).action_std.is_empty
    assert next(make_trainer())[1]["train/action_std/mean"] is None
    assert next(make_onpolicy_trainer())[1]["train/action_std/mean"] is None


def test_an_epoch_shows_those_of_its_collects_and_an_evaluation_none() -> None:
    stats = next(make_sac())[1]
    assert stats.train.action_std.count == 24 - 10  # ten random steps come first
    assert stats["train/action_std/mean"] > 0
    assert stats["test/action_std/mean"] is None


def test_logarithms_are_clipped_as_the_distribution_clips_them() -> None:
    box = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_std = ActionStd(SquashedGaussian(box, log_std=None))
    action_std.add(np.array([[0.0, 5.0], [0.0, math.log(0.5)]], np.float32))
    shown = action_std.read()
    assert (shown.min, shown.max, shown.count) == pytest.approx((0.5, math.exp(2.0), 2))
    assert action_std.read() == NO_VALUES


def test_a_parameters_are_those_at_the_first_draw_of_an_interval_in_a_copy_too() -> None:
    distribution = Gaussian(gym.spaces.Box(-1, 1, (1,), np.float32))
    assert distribution.log_std is not None
    action_std = ActionStd(distribution)
    for log_std in (0.5, 0.1, 2.0):
        distribution.log_std.data.fill_(log_std)
        action_std.add(np.zeros((4, 1), np.float32))
    for one in (copy.deepcopy(action_std), action_std):
        shown = one.read()
        assert (shown.mean, shown.count) == pytest.approx((math.exp(0.5), 1))
        assert one.read() == NO_VALUES
