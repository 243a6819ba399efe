"""Actions of a Box: policy units and the units of the space, always inside it, the same in torch and numpy."""

import logging
import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

import trainkit as tk
from tests.helpers.engine import torch_only
from tests.helpers.learning import Spaces, observations
from tests.helpers.of_extensions import learners_of_extensions
from tests.helpers.rollouts import played

WIDE = spaces.Box(0.0, 1000.0, (1,), np.float32)
NARROW = spaces.Box(-0.01, 0.01, (2,), np.float32)
HALF_OPEN = spaces.Box(np.array([0.0, -3.0], np.float32), np.array([np.inf, 5.0], np.float32))
OPEN = spaces.Box(-np.inf, np.inf, (2,), np.float32)
FAR = spaces.Box(1e9, 1e9 + 1.0, (1,), np.float64)
INEXACT = spaces.Box(-0.1, 0.1, (2, 2), np.float64)  # float32(0.1) is above 0.1
EVERY = [WIDE, NARROW, HALF_OPEN, OPEN, FAR, INEXACT, spaces.Box(-2.0, 2.0, (), np.float32)]
BOUNDED = [space for space in EVERY if space.is_bounded()]
ACTORS = [tk.PPOPolicy, tk.SACPolicy]  # A2C and REINFORCE act as PPO
ACTORS += {kind for kind, space, _ in learners_of_extensions().values() if isinstance(space, spaces.Box)}
ON_POLICY = [tk.PPOPolicy, tk.A2CPolicy, tk.ReinforcePolicy]


def made(kind: Any, action_space: Any, **options: Any) -> Any:
    return kind.for_envs(Spaces(action_space=action_space), **{"hidden": (8,), "device": "cpu", "seed": 0} | options)


def all_of(space: spaces.Box, actions: Any) -> bool:
    """Return whether each action [K, ...] is in the space, as Gymnasium says."""
    return all(space.contains(np.asarray(action)) for action in actions)


class TestMap:
    def test_units_are_the_bounds_by_hand(self) -> None:
        scale = tk.nets.ActionScale(WIDE)
        units = np.array([[-1.0], [-0.8], [0.0], [1.0], [1.3], [-7.0]], np.float32)
        np.testing.assert_allclose(scale.to_space(units), [[0], [100], [500], [1000], [1000], [0]], rtol=1e-6)
        np.testing.assert_allclose(scale.to_unit(np.array([[100.0], [1000.0]], np.float32)), [[-0.8], [1.0]], rtol=1e-6)

    def test_a_dimension_with_an_infinite_bound_keeps_its_units(self) -> None:
        scale = tk.nets.ActionScale(HALF_OPEN)
        units = np.array([[3.0, 0.5], [-3.0, -2.0]], np.float32)
        np.testing.assert_array_equal(scale.to_space(units), [[3.0, 3.0], [0.0, -3.0]])
        np.testing.assert_array_equal(scale.to_unit(scale.to_space(units)), [[3.0, 0.5], [0.0, -1.0]])
        assert scale.is_scaled.tolist() == [False, True]

    def test_bounds_whose_difference_overflows_count_as_infinite(self) -> None:
        limit = np.finfo(np.float32).max
        scale = tk.nets.ActionScale(spaces.Box(-limit, limit, (1,), np.float32))
        assert scale.to_space(np.array([[0.25]], np.float32)).tolist() == [[0.25]]

    def test_a_dimension_of_one_value_has_that_value(self) -> None:
        scale = tk.nets.ActionScale(spaces.Box(np.array([0.0, 7.0], np.float32), np.array([1.0, 7.0], np.float32)))
        assert scale.to_space(np.array([[0.0, 0.9]], np.float32)).tolist() == [[0.5, 7.0]]
        assert scale.to_unit(np.array([[0.5, 7.0]], np.float32)).tolist() == [[0.0, 0.0]]

    def test_without_scaling_actions_are_only_clipped(self) -> None:
        scale = tk.nets.ActionScale(WIDE, scaling=False)
        assert scale.to_space(np.array([[3.5], [-1.0], [2000.0]], np.float32)).tolist() == [[3.5], [0.0], [1000.0]]
        assert scale.to_unit(np.array([[3.5]], np.float32)).tolist() == [[3.5]]

    @pytest.mark.parametrize("space", EVERY, ids=str)
    @settings(max_examples=30, deadline=None)
    @given(seed=st.integers(0, 2**31), size=st.sampled_from([0.1, 1.0, 100.0]))
    def test_actions_are_inside_the_space_and_the_same_in_torch(self, space: Any, seed: int, size: float) -> None:
        scale = tk.nets.ActionScale(space)
        units = (size * np.random.default_rng(seed).standard_normal((5, *space.shape))).astype(np.float32)
        actions = scale.to_space(units)
        assert actions.dtype == space.dtype
        assert all_of(space, actions)
        np.testing.assert_array_equal(scale.to_space(torch.from_numpy(units)).numpy(), actions)
        np.testing.assert_array_equal(scale.to_unit(torch.from_numpy(actions)).numpy(), scale.to_unit(actions))

    @pytest.mark.parametrize("space", BOUNDED, ids=str)
    def test_to_unit_is_the_inverse_inside_the_bounds(self, space: Any) -> None:
        scale = tk.nets.ActionScale(space)
        units = np.random.default_rng(0).uniform(-1, 1, (50, *space.shape)).astype(np.float32)
        np.testing.assert_allclose(scale.to_unit(scale.to_space(units)), units, atol=1e-6)

    @pytest.mark.parametrize("space", [spaces.Discrete(3), spaces.Box(0, 9, (1,), np.int64)], ids=str)
    def test_a_space_without_units_is_rejected(self, space: Any) -> None:
        with pytest.raises(tk.SpaceMismatchError, match="ActionScale needs actions in a Box of float32 or float64"):
            tk.nets.ActionScale(space)

    def test_an_infinite_bound_is_logged_once_per_policy(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING):
            policy = made(tk.PPOPolicy, HALF_OPEN)
            for _ in range(3):
                policy.predict(np.zeros(4, np.float32), explore=True)
        assert [record.message for record in caplog.records if "infinite bounds" in record.message] == [
            f"actions {HALF_OPEN} have infinite bounds: those dimensions keep their units and are only clipped; bounds "
            "of about the size of useful actions make learning easier (gymnasium.wrappers.TransformAction)"
        ]


@pytest.mark.parametrize("by_torch", [False, True], ids=["numpy", "torch"])
class TestActing:
    @pytest.mark.one_of_each
    @pytest.mark.parametrize("space", EVERY, ids=str)
    @pytest.mark.parametrize("kind", ACTORS)
    def test_predict_is_always_inside_the_space(self, kind: Any, space: Any, by_torch: bool) -> None:
        if kind is tk.SACPolicy and not space.is_bounded():
            pytest.skip("SAC needs bounds")
        policy = made(kind, space)
        if by_torch:
            torch_only(policy)
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter += 2.0  # far outside of [-1, 1]
        for explore in (False, True):
            for sign in (-1.0, 1.0):
                obs = 5.0 * sign * observations(Spaces().observation_space, 200)
                assert all_of(space, policy.predict(obs, explore=explore))
                assert space.contains(np.asarray(policy.predict(obs[0], explore=explore), space.dtype))

    @pytest.mark.parametrize("how", ["clip", "tanh"])
    @pytest.mark.parametrize("kind", ON_POLICY)
    def test_the_stored_log_probability_is_that_of_the_stored_policy_action(
        self, kind: Any, how: str, by_torch: bool
    ) -> None:
        policy = made(kind, NARROW, action_bound_method=how, log_std=-0.5)
        if by_torch:
            torch_only(policy)
        obs = observations(Spaces().observation_space, 50)
        output = policy.act(obs, explore=True)
        drawn = output.extras["policy_action"].astype(np.float64)
        with torch.no_grad():
            mean = policy.network(torch.from_numpy(obs)).outputs.numpy().astype(np.float64)
        std = math.exp(-0.5)
        u = np.arctanh(drawn) if how == "tanh" else drawn
        expected = -0.5 * ((u - mean) / std) ** 2 - math.log(std) - 0.5 * math.log(2 * math.pi)
        if how == "tanh":
            expected -= np.log(1.0 - drawn**2)  # the change of variables
        np.testing.assert_allclose(output.extras["log_prob"], expected.sum(axis=1), rtol=1e-4, atol=1e-3)
        np.testing.assert_allclose(output.action, np.clip(0.01 * drawn, -0.01, 0.01), rtol=1e-5)
        assert set(output.extras) == set(policy.extras_spec)


class TestLearning:
    @pytest.mark.one_of_each
    @pytest.mark.parametrize("how", ["clip", "tanh"])
    @pytest.mark.parametrize("by_torch", [False, True], ids=["numpy", "torch"])
    @pytest.mark.parametrize("kind", ON_POLICY)
    def test_an_update_does_not_depend_on_the_units_of_the_space(self, kind: Any, by_torch: bool, how: str) -> None:
        """A power of 2 changes no bit of the units; of the seeds every one draws the same."""
        weights = []
        for space in (spaces.Box(-1.0, 1.0, (2,)), spaces.Box(-(2.0**-9), 2.0**-9, (2,))):
            policy = made(kind, space, action_bound_method=how)
            if by_torch:
                torch_only(policy)
            for step in range(3):
                rollout = played(policy, Spaces().observation_space)
                assert all_of(space, rollout.action.reshape(-1, 2))
                list(policy.learn(rollout, step=step))
            weights.append(policy.get_weights())
        for name, own in weights[0].items():
            np.testing.assert_array_equal(own, weights[1][name])

    def test_a_collector_stores_what_the_environment_was_given(self) -> None:
        envs = tk.make_envs("Pendulum-v1", 2, seed=1)
        policy = tk.PPOPolicy.for_envs(envs, log_std=2.0, hidden=(8,), device="cpu", seed=1)  # most draws are outside
        rollouts = tk.RolloutBuffer()
        tk.Collector(policy, envs, rollouts).collect(n_step=100)
        rollout = rollouts.read()
        assert all_of(envs.action_space, rollout.action.reshape(-1, 1))
        drawn = rollout.extras["policy_action"]
        assert (np.abs(drawn) > 1).mean() > 0.5
        np.testing.assert_allclose(rollout.action, np.clip(2.0 * drawn, -2.0, 2.0))


class TestCheckpoints:
    def test_weights_of_other_units_are_rejected_by_name(self, tmp_path: Path) -> None:
        path = made(tk.PPOPolicy, WIDE, action_scaling=False).save(tmp_path)
        rule = r"PPOPolicy.action_scaling is True, but the checkpoint's weights .* with action_scaling=False"
        with pytest.raises(tk.errors.CheckpointError, match=rule):
            tk.load_policy(path, policy=made(tk.PPOPolicy, WIDE))
        unscaled = made(tk.PPOPolicy, WIDE, action_scaling=False)
        with pytest.raises(tk.errors.CheckpointError, match=r"make the policy .* with action_scaling=True"):
            unscaled.load_training_state(made(tk.PPOPolicy, WIDE).training_state())
        tk.load_policy(path, policy=unscaled)

    @pytest.mark.parametrize("scaling", [True, False])
    def test_how_actions_are_scaled_is_saved(self, scaling: bool, tmp_path: Path) -> None:
        policy = made(tk.A2CPolicy, WIDE, action_scaling=scaling)
        loaded = tk.load_policy(policy.save(tmp_path / "policy"), device="cpu")
        assert loaded.action_scale.scaling is scaling
        obs = observations(Spaces().observation_space, 9)
        np.testing.assert_array_equal(loaded.predict(obs), policy.predict(obs))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"action_bound_method": "tan"}, "action_bound_method must be one of"),
        ({"action_bound_method": None}, "action_bound_method must be one of"),
        ({"action_scaling": "yes"}, "action_scaling must be True or False, got 'yes'"),
    ],
)
def test_options_that_are_none_are_rejected(options: Any, message: str) -> None:
    with pytest.raises(tk.ConfigError, match=message):
        made(tk.PPOPolicy, WIDE, **options)


# ---- learning in a Box of any width ----


class Aim(gym.Env[Any, Any]):
    """One step, reward -abs(action - aim) / scale."""

    def __init__(self, low: float, high: float, aim: float, scale: float) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Box(low, high, (1,), np.float32)
        self._aim, self._scale = aim, scale

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), -abs(float(action[0]) - self._aim) / self._scale, True, False, {}


BOXES = {"wide": (0.0, 1000.0), "narrow": (-0.01, 0.01), "half-open": (0.0, math.inf)}
AIMS = [(box, low + share * (high - low), high - low) for box in ("wide", "narrow") for low, high in [BOXES[box]]
        for share in (0.1, 0.5, 0.9)] + [("half-open", 3.0, 3.0)]  # fmt: skip
# The presets' tables are for runs of 120,000 and of 490,000 steps: 20,000 want shorter rollouts and larger learning
# rates. A2C takes one gradient step per rollout: its deviations, which move by the learning rate a step, start small.
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {"step_per_collect": 512, "lr": tk.Linear(3e-3, 0.0)},
    "a2c": {"step_per_collect": 32, "lr": tk.Linear(3e-3, 0.0), "log_std": -1.0},
}


def error_after(preset: str, box: str, aim: float, scale: float, *, seed: int, n_steps: int = 20_000) -> float:
    """Return how far the greedy action is from the aim, in scales, after training."""
    trainer = getattr(tk.presets, preset)(
        lambda: Aim(*BOXES[box], aim, scale),
        **SETTINGS[preset],
        seed=seed,
        device="cpu",
        max_epoch=1,
        step_per_epoch=n_steps,
        n_test_envs=1,
        episode_per_test=1,
        verbose=False,
    )
    assert trainer.run().stop_reason == "max_epoch"
    action = trainer.policy.predict(np.zeros(1, np.float32))
    assert trainer.policy.action_space.contains(action)
    return float(abs(action[0] - aim) / scale)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("box", ["wide", "narrow"])
def test_ppo_moves_towards_an_aim_in_a_box_of_any_width(box: str) -> None:
    low, high = BOXES[box]
    aim = low + 0.9 * (high - low)
    assert error_after("ppo", box, aim, high - low, seed=1, n_steps=4_000) < 0.3  # 0.4 where it starts


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize(("box", "aim", "scale"), AIMS)
@pytest.mark.parametrize("preset", SETTINGS)
def test_one_step_tasks_are_learned_in_every_box(preset: str, box: str, aim: float, scale: float, seed: int) -> None:
    error = error_after(preset, box, aim, scale, seed=seed)
    logging.getLogger(__name__).info("%s %s %g seed %d: %.4f", preset, box, aim, seed, error)
    assert error <= 0.05
