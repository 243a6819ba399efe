"""Environments of nested actions, which pay for each right part of an action."""

import copy
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

import trainkit as tk
from trainkit.core.spaces import (
    flat_actions,
)

CHOICES = spaces.Dict(
    {
        "move": spaces.Discrete(3, start=1),
        "arm": spaces.Tuple([spaces.MultiBinary(2), spaces.MultiDiscrete([2, 2], start=[0, 4])]),
    }
)
HYBRID = spaces.Dict({"aim": spaces.Box(0, 10, (2,), np.float32), "move": spaces.Discrete(3, start=1)})
BOXES = spaces.Dict({"a": spaces.Box(0, 100, (2,), np.float32), "b": spaces.Box(-1, 1, (1,), np.float64)})


class Signals(gym.Env[NDArray[np.float32], Any]):
    """Show one of three signals; each right part of the action pays 1, of at most 3 per step, 10 steps long."""

    observation_space = spaces.Box(0, 1, (3,), np.float32)
    action_space: spaces.Space[Any] = CHOICES

    def __init__(self) -> None:
        self.taken: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.n_steps = 0
        return self.look(), {}

    def look(self) -> NDArray[np.float32]:
        self.signal = int(self.np_random.integers(3))
        return np.eye(3, dtype=np.float32)[self.signal]

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self.taken.append(copy.deepcopy(action))
        self.n_steps += 1
        return self.look_after(action), self.pay, False, self.n_steps >= 10, {}

    def look_after(self, action: Any) -> NDArray[np.float32]:
        self.pay = self.reward(action)
        return self.look()

    def reward(self, action: Any) -> float:
        bits, pair = action["arm"]
        right = action["move"] == self.signal + 1, bits[0] == (self.signal == 0), pair[1] == 4 + (self.signal == 2)
        return float(sum(map(bool, right)))


class Dials(Signals):
    """Pay for two dials that are set to what the signal says."""

    action_space = BOXES

    def reward(self, action: Any) -> float:
        return -abs(float(action["a"][0]) / 100 - self.signal / 2) - abs(float(action["b"][0]) - 0.5)


class Turrets(Signals):
    """Pay for the move and the aim that the signal says."""

    action_space = HYBRID

    def reward(self, action: Any) -> float:
        return float(action["move"] == self.signal + 1) - abs(float(action["aim"][0]) / 10 - self.signal / 2)


def actions_taken(collector: tk.Collector) -> list[list[Any]]:
    return collector.envs.call("taken")


def check_that_predict_returns_nested_actions_that_the_space_contains(
    env: type[Signals], kind: Any, options: dict[str, Any], tmp_path: Path
) -> None:
    made = env()  # the environment itself says its spaces, nested
    policy = kind.for_envs(made, hidden=(8,), seed=1, **options)
    obs = np.eye(3, dtype=np.float32)
    for explore in (False, True):
        one = policy.predict(obs[0], explore=explore)
        assert made.action_space.contains(one)
        many = policy.predict(obs, explore=explore)
        for row in range(3):
            assert made.action_space.contains(_row(many, row))
    policy.save(tmp_path / "policy")
    loaded = tk.load_policy(tmp_path / "policy")
    assert loaded.action_space == flat_actions(made.action_space)
    np.testing.assert_equal(loaded.predict(obs), policy.predict(obs))
    stats = tk.evaluate(policy, env, n_episode=2, seed=1)
    assert stats.n_step == 20


def _row(action: Any, row: int) -> Any:
    if isinstance(action, dict):
        return {key: _row(child, row) for key, child in action.items()}
    if isinstance(action, tuple):
        return tuple(_row(child, row) for child in action)
    return action[row]


class Shot(gym.Env[NDArray[np.float32], Any]):
    """One step long: move 2 pays 1, and the distance of the aim from 0.3 costs."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Dict(move=spaces.Discrete(3), aim=spaces.Box(-1, 1, (1,), np.float32))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        reward = float(action["move"] == 2) - abs(float(action["aim"][0]) - 0.3)
        return np.ones(1, np.float32), reward, True, False, {}
