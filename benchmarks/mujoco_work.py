"""What is learnt in MuJoCo beside a peer, in numbers that both sides share, and how it is judged.

A side is a script that takes `--algorithm --task --seed`, learns in an environment of its own, and prints one line of
JSON: `returns` are what the judge saw, `done` is what was done, which must be equal on both sides.
"""

import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

SIZES = {"HalfCheetah-v5": (17, 6), "Hopper-v5": (11, 3), "Walker2d-v5": (17, 6)}  # of observations, of actions
SEEDS = {("ppo", "HalfCheetah-v5"): (1, 2, 3, 4, 5), ("sac", "HalfCheetah-v5"): (1, 2, 3, 4, 5)}
SEEDS |= {("sac", "Hopper-v5"): (1, 2, 3), ("sac", "Walker2d-v5"): (1, 2, 3)}
PARTS, EPISODES = 10, 10  # evaluations in a run, evenly spread, and episodes in each

# Stable-Baselines3's defaults; normalised as its VecNormalize does by default.
PPO: dict[str, Any] = {
    "rollouts": 147,  # of one environment: the fewest that make 300,000 steps
    "steps per rollout": 2_048,
    "hidden layers, tanh, for actor and critic each": [64, 64],
    "first log of the deviation, a parameter per action": 0.0,
    "epochs over each rollout": 10,
    "batch": 64,
    "Adam: lr": 3e-4,
    "Adam: eps": 1e-5,
    "gradients' norm clipped at": 0.5,
    "gamma": 0.99,
    "lambda": 0.95,
    "ratio clipped at": 0.2,
    "value weight": 0.5,
    "entropy weight": 0.0,
    "observations": "(obs - running mean) / running deviation, clipped at 10",
    "rewards": "reward / running deviation of the discounted return so far, clipped at 10",
}

# Stable-Baselines3's defaults, but for the two that are named.
SAC: dict[str, Any] = {
    "environment steps, of one environment": 100_000,
    "hidden layers, relu": [256, 256],
    "random steps before learning (the peer's default: 100)": 5_000,
    "replay capacity, uniform (the peer's default: 1,000,000)": 100_000,
    "updates per environment step": 1,
    "batch": 256,
    "Adam: lr, of actor, critics and temperature": 3e-4,
    "Adam: eps": 1e-8,
    "gamma, 1-step": 0.99,
    "tau, every update": 0.005,
    "temperature": "",  # in `settings`
    "observations, rewards": "as they are",
}

ALGORITHMS = "ppo", "sac"
STEPS = {
    "ppo": PPO["rollouts"] * PPO["steps per rollout"],
    "sac": SAC["environment steps, of one environment"],
}
N_UPDATES = {
    "ppo": PPO["rollouts"] * PPO["epochs over each rollout"] * PPO["steps per rollout"] // PPO["batch"],
    "sac": STEPS["sac"] - SAC["random steps before learning (the peer's default: 100)"],
}


def settings(algorithm: str, task: str) -> dict[str, Any]:
    """Return what both sides are given."""
    if algorithm == "ppo":
        return PPO
    return SAC | {"temperature": f"learnt, from 1.0, for an entropy of -{SIZES[task][1]}"}


def n_parameters(algorithm: str, task: str) -> int:
    """Return how many numbers both sides learn."""
    n_obs, n_actions = SIZES[task]
    if algorithm == "ppo":
        return 2 * _torso(n_obs, 64) + 64 * n_actions + n_actions + 64 + 1 + n_actions
    return _torso(n_obs, 256) + 2 * (256 + 1) * n_actions + 2 * (_torso(n_obs + n_actions, 256) + 256 + 1)


def _torso(n_inputs: int, width: int) -> int:
    return n_inputs * width + width + width * width + width


def judged_at(algorithm: str) -> list[int]:
    """Return the environment steps after which the judge plays: each tenth, to the nearest rollout."""
    unit = PPO["steps per rollout"] if algorithm == "ppo" else 1
    return [round(part * STEPS[algorithm] / unit / PARTS) * unit for part in range(1, PARTS + 1)]


class Judge:
    """Play the mean actions now and then, on the same episodes whoever learns, and keep the CPU time it took."""

    def __init__(self, task: str, seed: int) -> None:
        self.seed = seed
        self.returns: list[float] = []
        self.seconds = 0.0
        self._envs = [gym.make(task) for _ in range(EPISODES)]

    def play(self, act: Callable[[Any], Any]) -> None:
        """Note the mean return of `act`, which maps observations [K, D] to actions [K, A]: one episode in each env."""
        began = time.process_time()
        drawn = np.random.SeedSequence([self.seed, len(self.returns)]).generate_state(EPISODES)
        obs = np.stack([env.reset(seed=int(one))[0] for env, one in zip(self._envs, drawn % 2**31, strict=True)])
        total, running = 0.0, set(range(EPISODES))
        while running:  # all at once; an episode that has ended is not stepped
            actions = np.clip(act(obs), -1.0, 1.0)
            for k in sorted(running):
                obs[k], reward, terminated, truncated, _ = self._envs[k].step(actions[k])
                total += float(reward)
                if terminated or truncated:
                    running.remove(k)
        self.returns.append(total / EPISODES)
        self.seconds += time.process_time() - began
