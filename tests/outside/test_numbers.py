"""Numbers that no run should have: rewards near the largest float, masses and slots that do not exist."""

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import trainkit as tk
from trainkit.buffer import PrioritizedReplayBuffer, SumTree
from trainkit.core.data import ReturnScale, Transition
from trainkit.core.stats import Summary
from trainkit.errors import DivergedError, MissingRowError, PriorityError


class Paying(gym.Env[Any, Any]):
    """Pay the same in each of five steps."""

    observation_space = gym.spaces.Box(0, 100, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, reward: float) -> None:
        self.reward = reward

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return np.zeros(1, np.float32), self.reward, self.count >= 5, False, {}


@pytest.mark.filterwarnings("ignore:overflow encountered in add:RuntimeWarning")  # of the episode's return
@pytest.mark.parametrize("reward", [1e155, 1e200, -1e308])
def test_rewards_too_large_for_their_deviation_are_an_error_that_says_so(reward: float) -> None:
    trainer = tk.presets.ppo(
        lambda: Paying(reward),
        reward="return_scale",
        max_epoch=1,
        step_per_epoch=64,
        step_per_collect=64,
        verbose=False,
    )
    with pytest.raises(DivergedError, match=r"ReturnScale: returns up to .* scale rewards in the environment"):
        trainer.run()


def test_large_rewards_whose_squares_fit_are_scaled() -> None:
    scale = ReturnScale(0.0)
    scale.observe(np.array([1e150, -1e150]), np.zeros(2, np.bool_), np.arange(2))
    np.testing.assert_allclose(scale({"reward": np.array([1e150])}), [1.0])


@pytest.mark.parametrize("size", [1e99, 1e101, 1e200, 1.7e308])
def test_statistics_of_finite_numbers_are_finite(size: float) -> None:
    whole = Summary.of([size, -size, size, 0.0])
    parts = Summary.merge([Summary.of([size, -size]), Summary.of([size, 0.0])])
    for summary in (whole, parts):
        np.testing.assert_allclose(summary.mean, size / 4)
        np.testing.assert_allclose(summary.std, size * math.sqrt(11 / 16))
        assert (summary.min, summary.max) == (-size, size)


def test_statistics_of_infinite_returns_raise_nothing() -> None:
    with np.errstate(invalid="ignore"):
        assert Summary.merge([Summary.of([1.0]), Summary.of([math.inf])]).max == math.inf


def test_a_tree_takes_no_mass_that_is_none_and_no_index_from_the_end() -> None:
    tree = SumTree(4)
    tree[np.arange(4)] = 1.0
    for mass in (math.nan, math.inf, -1.0, [0.0, math.nan]):
        with pytest.raises(PriorityError, match="masses must be finite and >= 0"):
            tree[[0, 1]] = mass
    for leaf in (-1, 4):
        with pytest.raises(MissingRowError, match="leaves 0 to 3"):
            tree[leaf] = 2.0
    assert tree.total == 4.0


@pytest.mark.parametrize("slot", [-1, 10**9])
def test_slots_that_no_row_ever_had_are_rejected(slot: int) -> None:
    buffer = PrioritizedReplayBuffer(16)
    obs, flag = np.zeros((1, 1), np.float32), np.zeros(1, np.bool_)
    for _ in range(40):  # the first slots are gone
        slots = buffer.add(Transition(obs, np.zeros(1, np.int64), np.zeros(1), obs, flag, flag, np.arange(1), {}))
    buffer.update_priorities(np.array([0, slots[0]]), np.ones(2))
    with pytest.raises(MissingRowError, match=f"update_priorities: slot {slot} is none that add or sample returned"):
        buffer.update_priorities(np.array([slots[0], slot]), np.ones(2))


@pytest.mark.parametrize("limit", [1e-40, 5e-324])
def test_a_clip_of_gradients_below_the_numbers_of_float32_is_rejected(limit: float) -> None:
    with pytest.raises(tk.ConfigError, match=r"Clip.limit must be a normal number of float32"):
        tk.DQNPolicy.for_envs(tk.make_envs("CartPole-v1", 1), hidden=(4,), max_grad_norm=limit)


@pytest.mark.parametrize("preset", ["dqn", "a2c"])
def test_the_smallest_clip_of_gradients_trains(preset: str) -> None:
    options: dict[str, Any] = {"learning_starts": 40, "step_per_collect": 4} if preset == "dqn" else {}
    make = getattr(tk.presets, preset)
    trainer = make("CartPole-v1", max_grad_norm=1.2e-38, max_epoch=1, step_per_epoch=200, verbose=False, **options)
    assert trainer.run().gradient_step > 0


def test_returns_too_large_for_a_categorical_value_are_rejected_with_the_remedy() -> None:
    trainer = tk.presets.rainbow(
        lambda: Paying(1e39),
        max_epoch=1,
        step_per_epoch=200,
        learning_starts=40,
        step_per_collect=4,
        evaluation=None,
        hidden=(4,),
        verbose=False,
    )
    with pytest.raises(tk.ConfigError, match=r"too large for float32: let reward= of the horizon scale or clip"):
        trainer.run()
