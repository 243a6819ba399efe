"""Fitted Q evaluation and doubly robust estimates, against values solved for, and as a callback."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray

import trainkit as tk
from tests.trainer.runs import make_run
from tests.trainer.toys import Walk, everything
from trainkit.callbacks import OffPolicyEvaluation
from trainkit.datasets import doubly_robust, importance_sampling
from trainkit.trainer import fitted_q_evaluation


class Chain(gym.Env[Any, int]):
    """States 0 to 7 from 3: right or left, the other way with probability 0.2; -0.1 a step, 5 at 7, 0 at 0."""

    n_states, start, slip = 8, 3, 0.2
    observation_space: Any = gym.spaces.Discrete(8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = self.start
        return self.obs(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        moves = self.moves(action)
        self.state += int(self.np_random.choice([move for move, _ in moves], p=[chance for _, chance in moves]))
        return self.obs(), self.reward(self.state), self.is_end(self.state), False, {}

    def obs(self) -> Any:
        return self.state

    def moves(self, action: int) -> list[tuple[int, float]]:
        ahead = 1 if action else -1
        return [(ahead, 1 - self.slip), (-ahead, self.slip)]

    def reward(self, state: int) -> float:
        return {0: 0.0, 7: 5.0}.get(state, -0.1)

    def is_end(self, state: int) -> bool:
        return state in (0, 7)


class Road(Chain):
    """States 0 to 6 in a Box: move on with probability 0.9 by action 1, else stay; rewards are the next states."""

    n_states, start = 7, 0
    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)

    def obs(self) -> NDArray[np.float32]:
        return np.array([self.state / 6], np.float32)

    def moves(self, action: int) -> list[tuple[int, float]]:
        return [(1, 0.9), (0, 0.1)] if action else [(0, 1.0)]

    def reward(self, state: int) -> float:
        return float(state) - 2

    def is_end(self, state: int) -> bool:
        return state == 6


class Mostly:
    """Action 1 with one probability."""

    last_step = 0

    def __init__(self, chance: float) -> None:
        self.probability = np.array([1 - chance, chance])

    def action_probability(self, obs: Any, *, step: int = 0, explore: bool = False) -> NDArray[np.float64]:
        return np.tile(self.probability, (len(obs), 1))


def true_value(env: Chain, target: Mostly, gamma: float) -> float:
    """Solve v = r + gamma P v, with 0 at the ends."""
    transition, reward = np.zeros((env.n_states, env.n_states)), np.zeros(env.n_states)
    for state in range(env.n_states):
        for action, share in enumerate(target.probability):
            for move, chance in [] if env.is_end(state) else env.moves(action):
                reward[state] += share * chance * env.reward(state + move)
                transition[state, state + move] += share * chance
    return float(np.linalg.solve(np.eye(env.n_states) - gamma * transition, reward)[env.start])


def recorded(env: type[Chain], n_episode: int, seed: int) -> tk.ReplayBuffer:
    """Record episodes of random actions."""
    envs = tk.make_envs(env, 8, seed=seed)
    rows = tk.ReplayBuffer(20_000, spaces=envs)
    tk.Collector(tk.RandomPolicy(envs.action_space, store_action_prob=True, seed=seed), envs, rows).collect(
        n_episode=n_episode
    )
    return rows


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("env", "hidden", "lr"), [(Chain, (), 0.1), (Road, (32, 32), 3e-3)])
def test_estimates_are_near_the_true_value_and_narrower(env: type[Chain], hidden: Any, lr: float) -> None:
    """20 seeds of 2 times 100 episodes: action values fitted to each half are the control variate of the other one."""
    gamma, target = 0.95, Mostly(0.8)
    truth = true_value(env(), target, gamma)
    fitted, robust, sampled = [], [], []
    for seed in range(20):
        halves = recorded(env, 100, seed), recorded(env, 100, 100 + seed)
        how: Any = {"n_updates": 8_000, "batch_size": 128, "hidden": hidden, "lr": lr, "seed": seed}
        models = [fitted_q_evaluation(target, half, gamma=gamma, **how) for half in halves]
        own = [doubly_robust(target, half, q, gamma=gamma) for half, q in zip(halves, models[::-1], strict=True)]
        fitted.append(np.mean([q.estimate.value for q in models]))
        robust.append(mean_and_error(own))
        sampled.append(mean_and_error([importance_sampling(target, half, gamma=gamma) for half in halves]))
    (estimates, errors), (_, wider) = np.array(robust).T, np.array(sampled).T
    for values in (fitted, estimates):
        assert abs(np.mean(values) - truth) <= 2 * np.std(values, ddof=1) / np.sqrt(20), (np.mean(values), truth)
        assert np.std(values) < np.std(sampled, axis=0)[0] / 2
    assert np.mean(np.abs(estimates - truth) <= 2 * errors) >= 0.85  # 17 of 20: fewer have a probability of 2 %
    assert np.mean(errors < wider) >= 0.9


def mean_and_error(halves: list[Any]) -> tuple[float, float]:
    """Return the mean return of the episodes of both halves, and its standard error."""
    per_episode = np.concatenate([half.per_episode for half in halves])
    return float(per_episode.mean()), float(per_episode.std(ddof=1) / np.sqrt(len(per_episode)))


def test_a_deterministic_chain_has_its_exact_values() -> None:
    class Sure(Chain):
        slip = 0.0

    gamma, target = 0.9, Mostly(0.5)
    rows = recorded(Sure, 40, 0)
    before = rows.state_dict()
    q = fitted_q_evaluation(target, rows, gamma=gamma, n_updates=1_200, batch_size=64, hidden=(), lr=0.2)
    assert_allclose(q.estimate.value, true_value(Sure(), target, gamma), atol=0.02)
    values = q.action_values(np.array([6, 1]))
    assert_allclose([values[0, 1], values[1, 0]], [5, 0], atol=0.02)  # the two steps that end an episode
    assert q.losses[-1] < q.losses[0] / 100
    assert str(rows.state_dict()) == str(before)  # its random stream was not used


def test_the_options_are_checked() -> None:
    rows = recorded(Chain, 4, 0)
    for wrong, text in (
        ({"gamma": 2}, "gamma"),
        ({"n_updates": 0}, "n_updates"),
        ({"double": True}, "sets double itself"),
    ):
        with pytest.raises(tk.ConfigError, match=text):
            fitted_q_evaluation(Mostly(0.5), rows, **{"gamma": 0.9} | wrong)
    for wrong, text in (
        ({"estimators": "wis"}, "estimators must be"),
        ({"estimators": ()}, "needs an estimator"),
        ({"fit": {"n_updates": 3}}, "fit has no effect"),
    ):
        with pytest.raises(tk.ConfigError, match=text):
            OffPolicyEvaluation(rows, **wrong)


def test_the_callback_logs_estimates_and_changes_no_bit_of_the_run(tmp_path: Any) -> None:
    envs = tk.make_envs(Walk, 2, seed=3)
    rows = tk.ReplayBuffer(500, spaces=envs)
    tk.Collector(tk.RandomPolicy(envs.action_space, store_action_prob=True, seed=3), envs, rows).collect(n_episode=12)
    names = ["importance_sampling", "weighted_importance_sampling", "fitted_q_evaluation", "doubly_robust"]
    estimated = OffPolicyEvaluation(rows, estimators=names, every=2, fit={"n_updates": 30, "hidden": (8,)})
    best = tk.Checkpoint(tmp_path, keep_best="custom/off_policy/doubly_robust")
    trainer = make_run("cql", callbacks=estimated, checkpoint=best, max_epoch=2)
    trainer.run()
    plain = make_run("cql", max_epoch=2)
    plain.run()
    ours = {path: leaf for path, leaf in everything(trainer).items() if not path.startswith("/trainer")}
    assert ours == {path: leaf for path, leaf in everything(plain).items() if not path.startswith("/trainer")}
    assert "custom/off_policy/behavior" not in trainer.history[0]
    for name in names:
        expected = estimated.estimate(trainer.policy)[name]
        assert trainer.history[1][f"custom/off_policy/{name}"] == pytest.approx(expected.value)
    assert (tmp_path / "best").is_dir()
