"""What running statistics are for: a task whose observations are badly scaled is learned like the plain one."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from numpy.typing import NDArray

import trainkit as tk

SCALES = np.array([1e3, 1e-3, 1e3, 1e-3], np.float32)
N_STEPS = {"ppo": 60_000, "dqn": 50_000}


class Scaled(gym.ObservationWrapper[NDArray[np.float32], int, NDArray[np.float32]]):
    """A pole in millimetres, kilometres per second, thousandths of a radian and thousands of them per second."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)

    def observation(self, observation: NDArray[np.float32]) -> NDArray[np.float32]:
        return observation * SCALES


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_a_badly_scaled_pole_is_learned_with_normalization_only(algorithm: str) -> None:
    returns = {
        normalize: learn(algorithm, normalize_obs=normalize, wrappers=wrappers)
        for normalize, wrappers in ((True, (Scaled,)), (False, (Scaled,)))
    }
    plain = learn(algorithm, normalize_obs=False, wrappers=())
    assert plain >= 400
    assert returns[True] >= 400
    assert returns[False] <= 250  # that scale is what made it hard


def learn(algorithm: str, *, normalize_obs: bool, wrappers: Any) -> float:
    """Train, reload the policy in another, see that it acts the same, and return how it fared at its best."""
    n_steps = N_STEPS[algorithm]
    envs = tk.make_envs("CartPole-v1", 8, wrappers=wrappers)
    settings: dict[str, Any] = {"normalize_obs": normalize_obs, "device": "cpu"}
    options: dict[str, Any] = {"max_epoch": 25, "step_per_epoch": n_steps // 25, "stop_fn": lambda score: score >= 400}
    options |= {"threads": 1, "seed": 0, "verbose": False, "show_progress": False}
    if algorithm == "ppo":
        policy: Any = tk.PPOPolicy.for_envs(envs, lr=[(0, 1e-3), (n_steps, 0.0)], **settings)
        trainer: tk.Trainer = tk.OnpolicyTrainer(
            policy, tk.Collector(policy, envs, tk.RolloutBuffer()), evaluation=evaluation(policy, wrappers),
            step_per_collect=1024, repeat_per_collect=10, batch_size=256, **options,
        )  # fmt: skip
    else:
        settings |= {"hidden": (256, 256), "norm": "layer", "n_step": 3, "value": tk.ExpectedValue(loss="mse")}
        settings |= {"lr": [(0, 6.3e-4), (n_steps, 0.0)], "exploration": tk.EpsilonGreedy([(0, 1.0), (7_500, 0.02)])}
        policy = tk.DQNPolicy.for_envs(envs, target=tk.Target(256, unit="updates"), max_grad_norm=10.0, **settings)
        trainer = tk.OffpolicyTrainer(
            policy, tk.Collector(policy, envs, tk.ReplayBuffer(10_000)), evaluation=evaluation(policy, wrappers),
            batch_size=128, step_per_collect=256, update_per_step=0.5, learning_starts=1_000, **options,
        )  # fmt: skip
    with trainer:
        info = trainer.run()
    again = type(policy).for_envs(tk.make_envs("CartPole-v1", 1, wrappers=wrappers), **settings)
    again.load_weights(policy.state_dict())
    obs = np.random.default_rng(0).normal(size=(1_000, 4)).astype(np.float32) * SCALES
    np.testing.assert_array_equal(again.predict(obs), policy.predict(obs))
    assert info.best_score is not None
    return info.best_score


def evaluation(policy: Any, wrappers: Any) -> tk.Evaluation:
    """Evaluate every two thousand steps or so: where a DQN stands at the very last is a matter of luck."""
    return tk.Evaluation(tk.Collector(policy, tk.make_envs("CartPole-v1", 10, wrappers=wrappers)), duration=30)
