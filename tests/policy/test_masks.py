"""Masks from end to end: with any parts no illegal action is taken, and the best legal one is learned."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from trainkit import (
    CategoricalValue,
    Collector,
    DQNPolicy,
    EpsilonGreedy,
    ExpectedValue,
    Greedy,
    HLGaussValue,
    ImplicitQuantileValue,
    MunchausenBackup,
    QuantileValue,
    ReplayBuffer,
    SoftQ,
    Target,
    make_envs,
)

N_STATES, N_ACTIONS, GAMMA, TIME_LIMIT = 6, 6, 0.8, 10
LEGAL = np.array([[(action - state) % N_ACTIONS in (0, 2, 3) for action in range(N_ACTIONS)] for state in range(6)])
# The best paid action is another one than the best in the long run here and there; illegal ones would pay best of all.
REWARD = np.where(LEGAL, np.random.default_rng(10).integers(0, 5, LEGAL.shape) / 4.0, 100.0)
FOLLOWING = np.random.default_rng(8).integers(0, N_STATES, LEGAL.shape)


class Maze(gym.Env[Any, Any]):
    """Six states of six actions each, of which three are legal, others in every state."""

    observation_space = spaces.Dict({"obs": spaces.Discrete(N_STATES), "action_mask": spaces.MultiBinary(N_ACTIONS)})
    action_space = spaces.Discrete(N_ACTIONS)

    def __init__(self) -> None:
        self.taken: list[tuple[int, int]] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.state, self.t = int(self.np_random.integers(N_STATES)), 0
        return self.look(), {}

    def look(self) -> dict[str, Any]:
        return {"obs": self.state, "action_mask": LEGAL[self.state].astype(np.int8)}

    def step(self, action: Any) -> Any:
        self.taken.append((self.state, int(action)))
        reward = REWARD[self.state, action]
        self.state, self.t = int(FOLLOWING[self.state, action]), self.t + 1
        return self.look(), reward, False, self.t == TIME_LIMIT, {}


def q_star() -> np.ndarray:
    """Return the true values by value iteration over legal actions, -inf for the others."""
    q = np.where(LEGAL, 0.0, -np.inf)
    for _ in range(200):
        q = np.where(LEGAL, REWARD + GAMMA * q.max(axis=1)[FOLLOWING], -np.inf)
    return q


def test_the_maze_has_one_best_action_per_state_which_is_not_always_the_best_paid() -> None:
    ranked = np.sort(q_star(), axis=1)

    assert (ranked[:, -1] - ranked[:, -2]).min() > 0.3
    assert (q_star().argmax(axis=1) != np.where(LEGAL, REWARD, -1).argmax(axis=1)).any()
    assert (LEGAL.sum(axis=1) == 3).all()
    assert len(np.unique(LEGAL, axis=0)) == N_STATES


PARTS: dict[str, dict[str, Any]] = {
    "expected": {},
    "double": {"double": True},
    "dueling rescaled": {"dueling": True, "value": ExpectedValue(rescale=1e-2)},
    "noisy": {"noisy": True, "exploration": Greedy()},
    "categorical": {"value": CategoricalValue(31, 0.0, 6.0)},
    "hl-gauss": {"value": HLGaussValue(31, -0.5, 6.5)},
    "quantile": {"value": QuantileValue(16), "double": True},
    "implicit": {"value": ImplicitQuantileValue(8, target_quantiles=8, acting_quantiles=8), "dueling": True},
    "implicit noisy": {"value": ImplicitQuantileValue(8, target_quantiles=8, acting_quantiles=8), "noisy": True},
    "munchausen": {"backup": MunchausenBackup(0.03, alpha=0.5)},
    "munchausen quantile": {"backup": MunchausenBackup(0.03, alpha=0.5), "value": QuantileValue(16)},
}
WAYS = {"epsilon": EpsilonGreedy(0.5), "soft": SoftQ(1.0), "greedy": Greedy()}


def player(**options: Any) -> tuple[DQNPolicy, Collector, list[Maze]]:
    mazes = [Maze() for _ in range(4)]
    envs = make_envs([lambda maze=maze: maze for maze in mazes], seed=0)
    defaults: dict[str, Any] = {"hidden": (32,), "lr": 5e-3, "gamma": GAMMA, "target": Target(50, "updates")}
    policy = DQNPolicy.for_envs(envs, **defaults | {"device": "cpu", "seed": 0} | options)
    collector = Collector(policy, envs, ReplayBuffer(5000, seed=0))
    collector.seed(0)
    return policy, collector, mazes


def illegal(mazes: list[Maze]) -> list[tuple[int, int]]:
    return [pair for maze in mazes for pair in maze.taken if not LEGAL[pair]]


@pytest.mark.one_of_each
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("parts", PARTS)
def test_no_illegal_action_is_ever_taken(parts: str, way: str) -> None:
    policy, collector, mazes = player(**PARTS[parts] | {"exploration": WAYS[way]})
    collector.collect(n_step=100, random=True)
    collector.collect(n_step=100)
    for step in range(3):
        assert collector.buffer is not None
        policy.update(collector.buffer.sample(32, horizon=policy.horizon), step=step)
    collector.collect(n_step=100)
    collector.collect(n_episode=4, explore=False)

    assert sum(len(maze.taken) for maze in mazes) >= 340
    assert not illegal(mazes)


QUICK = {"double", "categorical", "implicit noisy", "munchausen quantile"}


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize(
    "parts", [pytest.param(parts, marks=() if parts in QUICK else pytest.mark.slow) for parts in PARTS]
)
def test_the_best_legal_actions_are_learned_everywhere(parts: str) -> None:
    policy, collector, mazes = player(**PARTS[parts])
    collector.collect(n_step=400, random=True)
    assert collector.buffer is not None
    for step in range(800):
        if step % 20 == 0:
            collector.collect(n_step=20, step=step)
        policy.update(collector.buffer.sample(64, horizon=policy.horizon), step=step)
    every = {"obs": np.arange(N_STATES), "action_mask": LEGAL.astype(np.int8)}

    np.testing.assert_array_equal(policy.act(every).action, q_star().argmax(axis=1))
    assert not illegal(mazes)
    if "munchausen" not in parts:  # whose values are those of another reward
        np.testing.assert_allclose(policy.action_values(every)[LEGAL], q_star()[LEGAL], atol=0.4)
