"""What is learned alongside peers, in numbers that all sides share, and how it is evaluated.

A side is a script that takes PAIRING TASK SEED, learns in an environment of its own, and prints one line of JSON:
`returns` of the evaluations, seconds of CPU without them, and `done`, which must be equal on all sides. This module
imports nothing of trainkit: peers have Python environments of their own.
"""

import itertools
import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import torch

from benchmarks.learning.memory_tasks import cartpole_positions

SB3, CONTRIB, TIANSHOU, PLAIN = "stable-baselines3", "sb3-contrib", "tianshou", "a plain loop"
BENCHMARL = "BenchMARL"
EPSILON = (1.0, 0.04)  # on a line over the first steps, then constant


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What both sides of a pairing learn a task with. What a learner does not have is None.

    Attributes:
        steps: of the environment, in all environments together.
        every: steps from one evaluation to the next, to the nearest rollout.
        steps_per_round: environment steps between rounds of updates.
        learning_starts: random steps before learning.
        target_every: environment steps from one copy of the target to the next.
        solved: the mean return of an evaluation that ends a run.
    """

    learner: Literal["dqn", "qrdqn", "sac", "td3", "tqc", "ppo", "recurrent_ppo", "mappo", "ippo"] = "dqn"
    steps: int
    every: int
    episodes: int = 30
    n_envs: int = 8
    hidden: tuple[int, ...] = (128, 128)
    lr: float = 1e-3
    batch: int = 64
    gamma: float = 0.99
    adam_eps: float = 1e-8
    max_grad_norm: float | None = None
    capacity: int | None = 50_000
    learning_starts: int | None = 1_000
    steps_per_round: int = 8
    updates_per_round: int | None = 4
    epsilon_steps: int | None = 8_000
    target_every: int | None = 200
    quantiles: int | None = None
    tau: float | None = None
    epochs: int | None = None
    lam: float | None = None
    clip_ratio: float | None = None
    value_weight: float | None = None
    entropy_weight: float | None = None
    solved: float | None = None

    @property
    def target_every_updates(self) -> int:
        """Updates from one copy of the target to the next; a round at least."""
        return max(self.target_every // self.steps_per_round, 1) * self.updates_per_round

    def n_updates(self, steps: int) -> int:
        """Count the updates of so many steps; a round more where the step that ends the random ones is learned at."""
        if self.epochs is not None:
            return steps * self.epochs // self.batch
        rounds = steps // self.steps_per_round - self.learning_starts // self.steps_per_round
        return max(rounds, 0) * self.updates_per_round

    @property
    def evaluated_at(self) -> list[int]:
        """The environment steps after which the policy is evaluated."""
        unit, parts = 1 if self.epochs is None else self.steps_per_round, self.steps // self.every
        return [round(part * self.steps / unit / parts) * unit for part in range(1, parts + 1)]

    def epsilon(self, step: int) -> float:
        """Return the share of random actions at an environment step."""
        first, last = EPSILON
        return first + (last - first) * min(step / self.epsilon_steps, 1.0)


@dataclass(frozen=True, kw_only=True)
class Pairing:
    """A peer and what both learn; `target_unit` is what the peer counts, `has_one_coin` its way of exploring.

    Attributes:
        has_one_coin: all environments of a vector step act at random together, or none does.
        seeds: of each task; those after the first are fresh ones, run when the first leaned to one side.
    """

    peer: str
    tasks: Mapping[str, Settings]
    seeds: Mapping[str, tuple[range, ...]]
    target_unit: Literal["updates", "env_steps"] = "updates"
    has_one_coin: bool = False


_DQN = Settings(steps=40_000, every=5_000)
_MINATAR = Settings(  # Young & Tian (2019) for DQN, at a quarter of their updates
    steps=200_000, every=20_000, lr=2.5e-4, batch=32, capacity=100_000, learning_starts=4_000, epsilon_steps=50_000,
    updates_per_round=2, target_every=1_000,
)  # fmt: skip
_LONG = {
    "LunarLander": Settings(  # rl-zoo's, at half its updates
        steps=100_000, every=10_000, lr=6.3e-4, batch=128, epsilon_steps=12_000, target_every=248
    ),
    "MinAtar-Breakout": _MINATAR,
    "MinAtar-Asterix": _MINATAR,
}
_CLASSIC = {"CartPole-v1": _DQN, "Acrobot-v1": _DQN}
_QUANTILES = replace(_DQN, learner="qrdqn", steps=30_000, batch=32, quantiles=50)
# Stable-Baselines3's defaults, for SAC with more random steps (5,000 for 100) and a smaller buffer (100,000 for 1e6).
_PPO = Settings(
    learner="ppo", steps=147 * 2_048, every=30_000, episodes=10, n_envs=1, hidden=(64, 64), lr=3e-4, adam_eps=1e-5,
    max_grad_norm=0.5, steps_per_round=2_048, epochs=10, lam=0.95, clip_ratio=0.2, value_weight=0.5, entropy_weight=0.0,
    capacity=None, learning_starts=None, updates_per_round=None, epsilon_steps=None, target_every=None,
)  # fmt: skip
# sb3-contrib's defaults, with fewer LSTM units, more environments and larger batches; not tuned for either side.
_RECURRENT_PPO = replace(
    _PPO, learner="recurrent_ppo", steps=13 * 8_192, every=8_192, episodes=20, n_envs=8, hidden=(64,), batch=256,
    steps_per_round=8 * 128,
)  # fmt: skip
# Steps are of games, as is the batch; of agents there are three times as many. Chosen on seed 101.
_MAPPO = replace(
    _PPO, learner="mappo", steps=60 * 800, every=16_000, episodes=200, n_envs=32, steps_per_round=32 * 25, epochs=5,
    batch=200, gamma=0.9, max_grad_norm=10.0, entropy_weight=0.01,
)  # fmt: skip
_SAC = Settings(
    learner="sac", steps=100_000, every=10_000, episodes=10, n_envs=1, hidden=(256, 256), lr=3e-4, batch=256, tau=0.005,
    capacity=100_000, learning_starts=5_000, steps_per_round=1, updates_per_round=1, epsilon_steps=None,
    target_every=None,
)  # fmt: skip
_TD3, _TQC = replace(_SAC, learner="td3"), replace(_SAC, learner="tqc", quantiles=25)
_RACE = Settings(  # rl-baselines3-zoo's for DQN on CartPole; the target is copied at every step but while updates run
    steps=196 * 256, every=1_024, n_envs=1, hidden=(256, 256), lr=2.3e-3, capacity=100_000, steps_per_round=256,
    updates_per_round=128, target_every=10, max_grad_norm=10.0, solved=475.0,
)  # fmt: skip


def _clipped(tasks: Mapping[str, Settings]) -> dict[str, Settings]:
    """Return settings with Stable-Baselines3's default clip of the gradient's norm."""
    return {task: replace(own, max_grad_norm=10.0) for task, own in tasks.items()}


_TEN, _FIVE, _FRESH = range(1, 11), range(1, 6), (range(1, 11), range(31, 51))
_LONG_SEEDS = dict.fromkeys(_LONG, (_FIVE,))
PAIRINGS = {
    "dqn-tianshou": Pairing(peer=TIANSHOU, tasks=_CLASSIC | _LONG, seeds=dict.fromkeys(_CLASSIC, _FRESH) | _LONG_SEEDS),
    "dqn-plain": Pairing(peer=PLAIN, tasks=_CLASSIC, seeds=dict.fromkeys(_CLASSIC, _FRESH)),
    "dqn-sb3": Pairing(
        peer=SB3,
        tasks=_clipped(_CLASSIC | _LONG),
        seeds=dict.fromkeys(_CLASSIC, (_TEN,)) | _LONG_SEEDS,
        target_unit="env_steps",
        has_one_coin=True,
    ),
    "qrdqn-sb3": Pairing(
        peer=CONTRIB,
        tasks=dict.fromkeys(_CLASSIC, _QUANTILES),
        seeds=dict.fromkeys(_CLASSIC, (_TEN, range(11, 31))),
        target_unit="env_steps",
        has_one_coin=True,
    ),
    "ppo-sb3": Pairing(peer=SB3, tasks={"HalfCheetah-v5": _PPO}, seeds={"HalfCheetah-v5": (_FIVE,)}),
    "sac-sb3": Pairing(
        peer=SB3,
        tasks=dict.fromkeys(("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5"), _SAC),
        seeds={"HalfCheetah-v5": (_FIVE,), "Hopper-v5": (range(1, 4),), "Walker2d-v5": (range(1, 4),)},
    ),
    "td3-sb3": Pairing(peer=SB3, tasks={"HalfCheetah-v5": _TD3}, seeds={"HalfCheetah-v5": (range(1, 4), range(4, 7))}),
    "tqc-sb3": Pairing(peer=CONTRIB, tasks={"HalfCheetah-v5": _TQC}, seeds={"HalfCheetah-v5": (range(1, 4),)}),
    "recurrent-ppo": Pairing(
        peer=CONTRIB, tasks={"CartPole-positions": _RECURRENT_PPO}, seeds={"CartPole-positions": (_FIVE,)}
    ),
    "mappo": Pairing(peer=BENCHMARL, tasks={"simple_spread": _MAPPO}, seeds={"simple_spread": (range(1, 4),)}),
    "ippo": Pairing(
        peer=BENCHMARL,
        tasks={"simple_spread": replace(_MAPPO, learner="ippo")},
        seeds={"simple_spread": (range(1, 4),)},
    ),
    "dqn-race": Pairing(peer=SB3, tasks={"CartPole-v1": _RACE}, seeds={"CartPole-v1": (_TEN,)}),
}
SIZES = {  # of observations, of actions
    "CartPole-v1": (4, 2), "Acrobot-v1": (6, 3), "LunarLander": (8, 4), "MinAtar-Breakout": (400, 6),
    "MinAtar-Asterix": (400, 6), "HalfCheetah-v5": (17, 6), "Hopper-v5": (11, 3), "Walker2d-v5": (17, 6),
    "CartPole-positions": (2, 2), "simple_spread": (18, 5),
}  # fmt: skip
GAME: dict[str, Any] = {"N": 3, "max_cycles": 25, "local_ratio": 0.5, "continuous_actions": False}
N_AGENTS, N_STATE = 3, 54


def n_parameters(task: str, own: Settings) -> int | None:
    """Count what the networks learn, from the task's sizes; None of games, where the sides' critics differ."""
    n_obs, n_actions = SIZES[task]
    if task == "simple_spread":
        return None
    if own.learner == "recurrent_ppo":  # an LSTM and a linear head each
        (size,) = own.hidden
        return 2 * (4 * size * (n_obs + size) + 8 * size) + (size + 1) * (n_actions + 1)
    if own.learner == "ppo":  # and a deviation per action
        return _dense(n_obs, *own.hidden, n_actions) + _dense(n_obs, *own.hidden, 1) + n_actions
    if own.learner == "sac":
        return _dense(n_obs, *own.hidden, 2 * n_actions) + 2 * _dense(n_obs + n_actions, *own.hidden, 1)
    if own.learner == "td3":
        return _dense(n_obs, *own.hidden, n_actions) + 2 * _dense(n_obs + n_actions, *own.hidden, 1)
    if own.learner == "tqc":
        critic = _dense(n_obs + n_actions, *own.hidden, own.quantiles)
        return _dense(n_obs, *own.hidden, 2 * n_actions) + 2 * critic
    return _dense(n_obs, *own.hidden, n_actions * (own.quantiles or 1))


def _dense(*sizes: int) -> int:
    return sum((before + 1) * after for before, after in itertools.pairwise(sizes))


def make(task: str) -> gym.Env:
    """Make an environment, by whatever Gymnasium a side has."""
    if task.startswith("MinAtar-"):
        return Grid(task.removeprefix("MinAtar-").lower())
    if task == "CartPole-positions":
        return cartpole_positions()
    if task == "LunarLander":
        return gym.make("LunarLander-v3" if "LunarLander-v3" in gym.registry else "LunarLander-v2")
    return gym.make(task)


def make_game() -> Any:
    """Make simple_spread, with PettingZoo's parallel API."""
    from mpe2 import simple_spread_v3

    return simple_spread_v3.parallel_env(**GAME)


class Grid(gym.Env):
    """A game of MinAtar, its grid in a row of zeros and ones: the same for all sides, whose Gymnasiums differ."""

    def __init__(self, game: str) -> None:
        from minatar import Environment

        self._game = Environment(game)
        self.observation_space = gym.spaces.Box(0.0, 1.0, (math.prod(self._game.state_shape()),), np.float32)
        self.action_space = gym.spaces.Discrete(self._game.num_actions())

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin a game; without a seed the generator continues."""
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
    """Play the greedy policy now and then, on the same episodes whichever side learns; keep the CPU time it took."""

    def __init__(self, task: str, own: Settings, seed: int) -> None:
        self.seed, self.solved, self._episodes = seed, own.solved, own.episodes
        self.returns: list[float] = []
        self.seconds = 0.0
        self._is_game = task == "simple_spread"
        self._envs = [make_game() if self._is_game else make(task) for _ in range(own.episodes)]
        self._keeps_rows = own.learner not in ("dqn", "qrdqn")  # whether ended episodes stay among the rows

    @property
    def is_over(self) -> bool:
        """Whether the last evaluation ends the run."""
        return self.solved is not None and bool(self.returns) and self.returns[-1] >= self.solved

    def play(self, act: Callable[[Any], Any]) -> None:
        """Note the mean return of `act`, which maps observations [K, ...] to actions [K, ...]: an episode per env.

        Of games they are observations [K, agents, ...] and actions [K, agents], and the return is the mean of agents.
        """
        began = time.process_time()
        drawn = np.random.SeedSequence([self.seed, len(self.returns)]).generate_state(self._episodes) % 2**31
        total = (self._play_games if self._is_game else self._play_episodes)(act, list(map(int, drawn)))
        self.returns.append(total / self._episodes)
        self.seconds += time.process_time() - began

    def _play_episodes(self, act: Callable[[Any], Any], seeds: list[int]) -> float:
        """Return the sum of all rewards."""
        is_discrete = isinstance(self._envs[0].action_space, gym.spaces.Discrete)
        obs = [env.reset(seed=seed)[0] for env, seed in zip(self._envs, seeds, strict=True)]
        total, running = 0.0, set(range(self._episodes))
        while running:
            shown = range(self._episodes) if self._keeps_rows else sorted(running)
            for k, action in zip(shown, act(np.stack([obs[k] for k in shown])), strict=True):
                if k in running:
                    taken = int(action) if is_discrete else np.clip(action, -1.0, 1.0)
                    obs[k], reward, terminated, truncated, _ = self._envs[k].step(taken)
                    total += float(reward)
                    if terminated or truncated:
                        running.remove(k)
        return total

    def _play_games(self, act: Callable[[Any], Any], seeds: list[int]) -> float:
        """Return the sum of all rewards, by the number of agents; only the time limit ends a game."""
        seen = [game.reset(seed=seed)[0] for game, seed in zip(self._envs, seeds, strict=True)]
        agents, total = self._envs[0].possible_agents, 0.0
        for _ in range(GAME["max_cycles"]):
            actions = act(np.array([[obs[agent] for agent in agents] for obs in seen], np.float32))
            for k, own in enumerate(actions):
                seen[k], rewards, *_ = self._envs[k].step(
                    {agent: int(one) for agent, one in zip(agents, own, strict=True)}
                )
                total += sum(rewards.values())
        return total / N_AGENTS


Learn = Callable[[Pairing, Settings, str, int, Judge], dict[str, int]]


def run_side(learn: Learn, *packages: str) -> None:
    """Learn as the arguments of the command say, and print the line of JSON.

    Args:
        learn: takes pairing, settings, task, seed and judge; returns env_steps, updates and parameters.
        packages: whose versions are named, besides torch and gymnasium.
    """
    name, task, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
    own = PAIRINGS[name].tasks[task]
    torch.set_num_threads(1)
    judge = Judge(task, own, seed)
    began = time.process_time()
    done = learn(PAIRINGS[name], own, task, seed, judge) | {"threads": torch.get_num_threads()}
    seconds = time.process_time() - began - judge.seconds
    versions = {package: version(package) for package in (*packages, "torch", "gymnasium")}
    print(json.dumps({"returns": judge.returns, "seconds": seconds, "done": done, "versions": versions}))


def n_weights(*modules: torch.nn.Module) -> int:
    """Count the numbers in modules."""
    return sum(parameter.numel() for module in modules for parameter in module.parameters())
