"""What is learnt beside peers, in numbers that all sides share, and how it is judged.

A side is a script that takes `--pairing --task --seed`, learns in an environment of its own, and prints one line of
JSON: `returns` are what the judge saw, `done` is what was done, which must be equal on all sides.
"""

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

SEEDS = tuple(range(1, 11))
LONG_SEEDS = SEEDS[:5]  # of the longer tasks

N_ENVS = 8  # one vector step between rounds of updates
HIDDEN = (128, 128)
ADAM_EPS = 1e-8
EPSILON = (1.0, 0.04)  # on a line over the first steps, then constant
EPISODES = 30  # in each evaluation


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What all sides of a pairing learn a task with."""

    steps: int  # in all environments together
    lr: float = 1e-3
    batch: int = 64
    capacity: int = 50_000
    learning_starts: int = 1_000  # acting at random until then
    epsilon_steps: int = 8_000
    gamma: float = 0.99
    updates_per_round: int = 4  # half an update per environment step
    target_every: int = 200  # environment steps
    quantiles: int | None = None
    every: int = 5_000  # steps from one evaluation to the next

    @property
    def target_every_updates(self) -> int:
        """Updates from one copy of the target to the next."""
        return self.target_every // N_ENVS * self.updates_per_round

    @property
    def n_updates(self) -> int:
        """Updates of the peers; a round more where learning starts with the step that reaches its start."""
        return (self.steps - self.learning_starts) // N_ENVS * self.updates_per_round

    def epsilon(self, step: int) -> float:
        """Return the share of random actions at an environment step."""
        first, last = EPSILON
        return first + (last - first) * min(step / self.epsilon_steps, 1.0)


@dataclass(frozen=True, kw_only=True)
class Pairing:
    """Who stands beside trainkit, at what, and what the peer does its own way."""

    peer: str
    classic: Settings  # for CartPole and Acrobot
    learns_long: bool = True  # whether the longer tasks are learnt, too
    max_grad_norm: float | None  # None where the peer cannot clip, or does not by default
    target_unit: str  # what the peer counts
    has_one_coin: bool = False  # all environments of a vector step act at random together, or none does


_DQN = Settings(steps=40_000)
_QRDQN = Settings(steps=30_000, batch=32, quantiles=50)
PAIRINGS = {
    "dqn-tianshou": Pairing(peer="tianshou", classic=_DQN, max_grad_norm=None, target_unit="updates"),
    "dqn-plain": Pairing(
        peer="a plain loop", classic=_DQN, learns_long=False, max_grad_norm=None, target_unit="updates"
    ),
    "dqn-sb3": Pairing(
        peer="stable-baselines3", classic=_DQN, max_grad_norm=10.0, target_unit="env_steps", has_one_coin=True
    ),
    "qrdqn-sb3": Pairing(
        peer="sb3-contrib",
        classic=_QRDQN,
        learns_long=False,
        max_grad_norm=None,
        target_unit="env_steps",
        has_one_coin=True,
    ),
}

CLASSIC = ("CartPole-v1", "Acrobot-v1")
_MINATAR = Settings(  # Young & Tian (2019) for DQN, at a quarter of their updates
    steps=200_000,
    lr=2.5e-4,
    batch=32,
    capacity=100_000,
    learning_starts=4_000,
    epsilon_steps=50_000,
    updates_per_round=2,
    target_every=1_000,
    every=20_000,
)
LONG = {
    "LunarLander": Settings(
        steps=100_000, lr=6.3e-4, batch=128, epsilon_steps=12_000, target_every=248, every=10_000
    ),  # rl-zoo's, at half its updates
    "MinAtar-Breakout": _MINATAR,
    "MinAtar-Asterix": _MINATAR,
}
TASKS = (*CLASSIC, *LONG)
FRESH_SEEDS = {  # run once after the first seeds leaned to one side, to tell luck from a cause
    ("dqn-tianshou", "CartPole-v1"): tuple(range(31, 51)),
    ("dqn-tianshou", "Acrobot-v1"): tuple(range(31, 51)),
    ("dqn-plain", "CartPole-v1"): tuple(range(31, 51)),
    ("dqn-plain", "Acrobot-v1"): tuple(range(31, 51)),
    ("qrdqn-sb3", "CartPole-v1"): tuple(range(11, 31)),
    ("qrdqn-sb3", "Acrobot-v1"): tuple(range(11, 31)),
}
_SIZES = {  # inputs, actions
    "CartPole-v1": (4, 2),
    "Acrobot-v1": (6, 3),
    "LunarLander": (8, 4),
    "MinAtar-Breakout": (400, 6),
    "MinAtar-Asterix": (400, 6),
}


def settings(pairing: str, task: str) -> Settings:
    """Return what a task is learnt with."""
    return LONG[task] if task in LONG else PAIRINGS[pairing].classic


def n_parameters(task: str, quantiles: int | None) -> int:
    """Count what the network learns, from the task's sizes."""
    n_inputs, n_actions = _SIZES[task]
    layers = [n_inputs, *HIDDEN, n_actions * (quantiles or 1)]
    return sum(a * b + b for a, b in itertools.pairwise(layers))


def make(task: str) -> gym.Env:
    """Make an environment, by whatever Gymnasium a side has."""
    if task.startswith("MinAtar-"):
        return Grid(task.removeprefix("MinAtar-").lower())
    if task == "LunarLander":
        return gym.make("LunarLander-v3" if "LunarLander-v3" in gym.registry else "LunarLander-v2")
    return gym.make(task)


class Grid(gym.Env):
    """A game of MinAtar, its grid in a row of zeros and ones: the same for all sides, whose Gymnasiums differ."""

    def __init__(self, game: str) -> None:
        from minatar import Environment

        self._game = Environment(game)
        self.observation_space = gym.spaces.Box(0.0, 1.0, (math.prod(self._game.state_shape()),), np.float32)
        self.action_space = gym.spaces.Discrete(self._game.num_actions())

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin a game; what is drawn in it follows the seed, or goes on where the last one ended."""
        if seed is not None:
            self._game.seed(seed)
        self._game.reset()
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Play a frame."""
        reward, is_over = self._game.act(int(action))
        return self._seen(), float(reward), bool(is_over), False, {}

    def _seen(self) -> Any:
        return self._game.state().astype(np.float32).ravel()


class Judge:
    """Play the greedy policy every so many steps, on the same episodes whoever learns, and keep the time it took."""

    def __init__(self, task: str, seed: int) -> None:
        self.seed = seed
        self.returns: list[float] = []
        self.seconds = 0.0
        self._envs = [make(task) for _ in range(EPISODES)]

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
