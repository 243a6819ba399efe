"""What is learnt beside peers, in numbers that all sides share, and how it is judged.

A side is a script that takes `--pairing --task --seed`, learns in an environment of its own, and prints one line of
JSON: `returns` are what the judge saw, `done` is what was done, which must be equal on all sides.
"""

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

TASKS = ("CartPole-v1", "Acrobot-v1")
SEEDS = tuple(range(1, 11))
MORE_SEEDS = tuple(range(11, 31))  # looked at by nobody before, to tell luck from a cause

N_ENVS = 8  # one vector step between rounds of updates
HIDDEN = (128, 128)
LR = 1e-3
ADAM_EPS = 1e-8
CAPACITY = 50_000
LEARNING_STARTS = 1_000  # acting at random until then
EPSILON = (1.0, 0.04)  # on a line over the first EPSILON_STEPS, then constant
EPSILON_STEPS = 8_000
GAMMA = 0.99
UPDATES_PER_ROUND = 4  # half an update per environment step
TARGET_EVERY = 200  # environment steps
TARGET_EVERY_UPDATES = TARGET_EVERY // N_ENVS * UPDATES_PER_ROUND
QUANTILES = 50

EVERY, EPISODES = 5_000, 30  # steps from one evaluation to the next, episodes in each


@dataclass(frozen=True)
class Pairing:
    """Who stands beside trainkit, at what."""

    peer: str
    max_grad_norm: float | None  # None where the peer cannot clip, or does not by default
    target_unit: str  # what the peer counts
    steps: int = 40_000
    batch: int = 64
    quantiles: int | None = None
    has_one_coin: bool = False  # all environments of a vector step act at random together, or none does

    @property
    def n_updates(self) -> int:
        """Updates of the peers; a round more where learning starts with the step that reaches its start."""
        return (self.steps - LEARNING_STARTS) // N_ENVS * UPDATES_PER_ROUND


PAIRINGS = {
    "dqn-tianshou": Pairing("tianshou", None, "updates"),
    "dqn-sb3": Pairing("stable-baselines3", 10.0, "env_steps", has_one_coin=True),
    "qrdqn-sb3": Pairing(
        "sb3-contrib", None, "env_steps", steps=30_000, batch=32, quantiles=QUANTILES, has_one_coin=True
    ),
}

SETTINGS = {
    "environment steps, DQN": PAIRINGS["dqn-sb3"].steps,
    "environment steps, QR-DQN": PAIRINGS["qrdqn-sb3"].steps,
    "environments": N_ENVS,
    "hidden layers, relu": list(HIDDEN),
    "Adam: lr": LR,
    "Adam: eps": ADAM_EPS,
    "batch, DQN": PAIRINGS["dqn-sb3"].batch,
    "batch, QR-DQN": PAIRINGS["qrdqn-sb3"].batch,
    "replay capacity, uniform": CAPACITY,
    "random steps before learning": LEARNING_STARTS,
    "epsilon, first and last": list(EPSILON),
    "epsilon falls over steps": EPSILON_STEPS,
    "gamma, 1-step": GAMMA,
    "updates per environment step": UPDATES_PER_ROUND / N_ENVS,
    "steps from target copy to target copy": TARGET_EVERY,
    "quantiles (QR-DQN), kappa 1": QUANTILES,
    "steps from evaluation to evaluation": EVERY,
    "episodes per evaluation": EPISODES,
}


def epsilon(step: int) -> float:
    """Return the share of random actions at an environment step."""
    first, last = EPSILON
    return first + (last - first) * min(step / EPSILON_STEPS, 1.0)


def n_parameters(task: str, quantiles: int | None) -> int:
    """Count what the network learns, from the task's sizes."""
    sizes = {"CartPole-v1": (4, 2), "Acrobot-v1": (6, 3)}
    n_inputs, n_actions = sizes[task]
    layers = [n_inputs, *HIDDEN, n_actions * (quantiles or 1)]
    return sum(a * b + b for a, b in itertools.pairwise(layers))


class Judge:
    """Play the greedy policy every so many steps, on the same episodes whoever learns, and keep the time it took."""

    def __init__(self, task: str, seed: int) -> None:
        self.seed = seed
        self.returns: list[float] = []
        self.seconds = 0.0
        self._envs = [gym.make(task) for _ in range(EPISODES)]

    def play(self, act: Callable[[Any], Any]) -> None:
        """Note the mean return of `act`, which maps observations [K, ...] to actions [K]: one episode in each env."""
        began = time.perf_counter()
        drawn = np.random.SeedSequence([self.seed, len(self.returns)]).generate_state(EPISODES)
        live = [(env, env.reset(seed=int(episode))[0]) for env, episode in zip(self._envs, drawn % 2**31, strict=True)]
        total = 0.0
        while live:
            actions = act(np.stack([obs for _, obs in live]))
            running = []
            for (env, _), action in zip(live, actions, strict=True):
                obs, reward, terminated, truncated, _ = env.step(int(action))
                total += float(reward)
                if not (terminated or truncated):
                    running.append((env, obs))
            live = running
        self.returns.append(total / EPISODES)
        self.seconds += time.perf_counter() - began
