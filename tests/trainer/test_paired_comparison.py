"""Two policies on the same episodes."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import trainkit as tk
from trainkit.trainer import PairedComparison


class Luck(gym.Env[Any, Any]):
    """Two steps, whose rewards are what the seed draws, times 10, plus the action."""

    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.n_steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.n_steps += 1
        luck = 10.0 * float(self.np_random.random())
        return np.zeros(1, np.float32), luck + int(action), self.n_steps == 2, False, {}


def always(action: int) -> tk.Policy:
    return tk.policy.ScriptedPolicy(lambda obs: np.full(len(obs), action))


def test_both_play_the_same_episodes_so_that_luck_cancels() -> None:
    found = tk.compare(always(2), always(0), Luck, n_episode=20, seed=3)
    assert np.std(found.returns) > 1.0
    np.testing.assert_allclose(found.differences, 4.0, atol=1e-5)
    assert found.mean == pytest.approx(4.0)
    assert found.std_error == pytest.approx(0.0, abs=1e-6)


def test_the_standard_error_is_that_of_the_differences() -> None:
    found = PairedComparison(returns=(3.0, 5.0, 10.0), baseline_returns=(1.0, 5.0, 6.0))
    assert found.differences == (2.0, 0.0, 4.0)
    assert found.mean == 2.0
    assert found.std_error == pytest.approx(2.0 / 3**0.5)
    assert found.interval == pytest.approx((2.0 - 4.303 * 2 / 3**0.5, 2.0 + 4.303 * 2 / 3**0.5))
    assert str(found) == "6 against 4, difference +2 (95 % interval -2.969 to +6.969), better in 2 of 3 episodes"


@pytest.mark.parametrize(("n_episode", "t"), [(2, 12.706), (10, 2.262), (11, 2.228), (31, 2.042), (121, 1.980)])
def test_the_interval_of_a_difference_is_students(n_episode: int, t: float) -> None:
    """Against tables of Student's t distribution."""
    found = PairedComparison(returns=tuple(map(float, range(n_episode))), baseline_returns=(0.0,) * n_episode)
    assert found.interval[1] - found.mean == pytest.approx(t * found.std_error, rel=5e-4)


def test_a_seed_gives_the_same_comparison() -> None:
    first, second = (tk.compare(always(1), always(0), Luck, n_episode=3, seed=5) for _ in range(2))
    assert first == second
    assert first != tk.compare(always(1), always(0), Luck, n_episode=3, seed=6)


def test_one_episode_has_no_error() -> None:
    with pytest.raises(tk.ConfigError, match=r"compare\.n_episode must be .*>= 2"):
        tk.compare(always(1), always(0), Luck, n_episode=1)
