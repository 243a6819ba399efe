"""The workloads that `peers` measures, as numbers that every side shares.

All environments have episodes of one length, whatever a policy does: 200 steps of MountainCar, which nobody solves
within a measurement, of Pendulum, and of `Images`. A better policy cannot look faster because its episodes are longer.
"""

import itertools
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium as gym
import numpy as np

COLLECT, LOOP = "collect", "loop"
IMAGES = "benchmarks/Images-v0"
EPISODE = 200  # steps
ATOMS, RETURNS = 51, (-10.0, 10.0)  # of Rainbow
ALPHA, BETA = 0.6, 0.4  # of prioritized replay
TAU = 0.005  # of SAC, TD3 and TQC
DELAY, NOISE, QUANTILES, DROPPED = 2, 0.1, 25, 2  # of TD3's actor and exploration; of TQC's two critics
CONTINUOUS = "sac", "td3", "tqc"
LAMBDA, CLIP_RATIO, VALUE_WEIGHT, ADAM_EPS = 0.95, 0.2, 0.5, 1e-5  # of PPO; its entropy weight is 0
EPOCHS, ROLLOUT_STEPS = 10, 128  # of PPO: passes over a rollout, its steps per environment

PLAIN, PLAIN_FAST = "plain", "plain, fused"
SB3, TIANSHOU, TIANSHOU2, RLLIB = "SB3", "Tianshou 1.2", "Tianshou 2.0", "RLlib"
EVERY = (PLAIN, SB3, TIANSHOU, TIANSHOU2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One workload: its environments, its learner, and how often the learner updates.

    Attributes:
        rate: the whole training loop, or collecting alone: stepping, acting and storing.
        block: environment steps of one measurement.
        sides: that are compared with trainkit; the others have no such learner.
        steps_per_update: environment steps, a multiple of `n_envs`.
        convolutions: (channels, kernel, stride) of each, below the `hidden` layers.
        clip: of the gradient's norm, where a side can clip at all.
        warmup: environment steps without updates, before anything is measured.
    """

    rate: Literal["loop", "collect"] = "loop"
    block: int = 1_600
    sides: tuple[str, ...] = EVERY
    learner: Literal["dqn", "rainbow", "sac", "td3", "tqc", "ppo"] = "dqn"
    env: str = "MountainCar-v0"
    shape: tuple[int, ...] = (2,)  # of an observation
    n_outputs: int = 3  # actions, or their dimensions
    n_envs: int = 10
    steps_per_update: int = 10
    convolutions: tuple[tuple[int, int, int], ...] = ()
    hidden: tuple[int, ...] = (128, 128, 128)
    batch: int = 64
    gamma: float = 0.9
    lr: float = 1e-3
    epsilon: float = 0.1
    clip: float | None = 10.0
    n_step: int = 1
    double: bool = False
    prioritized: bool = False
    target_every: int = 320  # updates
    capacity: int = 20_000
    warmup: int = 1_280

    @property
    def loss(self) -> Literal["huber", "mse"]:
        """The loss of a Q-learner; Tianshou's Huber loss ignores the weights of prioritized replay."""
        return "mse" if self.prioritized else "huber"

    @property
    def n_features(self) -> int:
        """The number of inputs of the first dense layer."""
        if not self.convolutions:
            return self.shape[0]
        size = self.shape[1]
        for _, kernel, stride in self.convolutions:
            size = (size - kernel) // stride + 1
        return self.convolutions[-1][0] * size * size

    @property
    def n_parameters(self) -> int:
        """Count the trained parameters from the sizes alone."""
        if self.learner in CONTINUOUS:
            actor = _dense(self.n_features, *self.hidden, (1 if self.learner == "td3" else 2) * self.n_outputs)
            width = QUANTILES if self.learner == "tqc" else 1
            return actor + 2 * _dense(self.n_features + self.n_outputs, *self.hidden, width)
        if self.learner == "ppo":
            return _dense(self.n_features, *self.hidden, self.n_outputs) + _dense(self.n_features, *self.hidden, 1)
        if self.learner == "rainbow":  # heads of advantages and a value, each weight with the scale of its noise
            return _dense(self.n_features, *self.hidden) + 2 * _dense(self.hidden[-1], (self.n_outputs + 1) * ATOMS)
        channels = [self.shape[0], *(channels for channels, _, _ in self.convolutions)]
        kernels = [kernel for _, kernel, _ in self.convolutions]
        pairs = zip(itertools.pairwise(channels), kernels, strict=True) if kernels else ()
        convolutions = sum((inputs * kernel**2 + 1) * outputs for (inputs, outputs), kernel in pairs)
        return convolutions + _dense(self.n_features, *self.hidden, self.n_outputs)

    @property
    def n_updates(self) -> int:
        """The optimizer steps of one block: for SAC and its relatives, those of the critics."""
        if self.rate == COLLECT:
            return 0
        return self.block * EPOCHS // self.batch if self.learner == "ppo" else self.block // self.steps_per_update

    @property
    def done(self) -> dict[str, Any]:
        """What every side must report of each block."""
        return {
            "env": self.env,
            "envs": self.n_envs,
            "steps": self.block,
            "updates": self.n_updates,
            "parameters": self.n_parameters,
            "gamma": self.gamma,
            "threads": 1,
        }


def _dense(*sizes: int) -> int:
    return sum((before + 1) * after for before, after in itertools.pairwise(sizes))


class Images(gym.Env[Any, Any]):
    """Random images of a fixed pool in turn, at no cost; the reward is the action."""

    action_space = gym.spaces.Discrete(4)

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.observation_space = gym.spaces.Box(0, 255, shape, np.uint8)
        self._pool = np.random.default_rng(0).integers(0, 256, (64, *shape), np.uint8)
        self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        return self._pool[self._step % 64], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Return the next image."""
        self._step += 1
        return self._pool[self._step % 64], float(action), False, False, {}


gym.register(IMAGES, Images, max_episode_steps=EPISODE)


def make_env(work: Work) -> gym.Env[Any, Any]:
    """Make one environment of a workload, by `gym.make`."""
    return gym.make(work.env, **({"shape": work.shape} if work.env == IMAGES else {}))


def _dqn(*hidden: int, batch: int, **options: Any) -> Work:
    return Work(hidden=hidden, batch=batch, **options)


def _images(size: int, *convolutions: tuple[int, int, int], hidden: int, **options: Any) -> Work:
    pixels = {
        "env": IMAGES,
        "shape": (4, size, size),
        "n_outputs": 4,
        "convolutions": convolutions,
        "hidden": (hidden,),
    }
    return Work(**pixels, n_envs=8, steps_per_update=8, batch=32, capacity=4_000, warmup=400, **options)


def _collect(n_envs: int, block: int) -> Work:
    return Work(rate="collect", n_envs=n_envs, steps_per_update=n_envs, block=block)


_CONTINUOUS = {"env": "Pendulum-v1", "shape": (3,), "n_outputs": 1, "n_envs": 1, "steps_per_update": 1, "clip": None}
_CHEETAH = {**_CONTINUOUS, "env": "HalfCheetah-v5", "shape": (17,), "n_outputs": 6}
_LARGE = {"hidden": (256, 256), "batch": 256, "block": 20, "sides": (SB3,)}
_PPO = {"n_envs": 8, "block": 8 * ROLLOUT_STEPS, "hidden": (64, 64), "gamma": 0.99, "lr": 3e-4, "clip": 0.5}

WORKS = {
    "DQN 64-64, batch 32": _dqn(64, 64, batch=32),
    "DQN 64-64, batch 256": _dqn(64, 64, batch=256),
    "DQN 64-64, batch 32, 1 environment, an update every 4 steps": _dqn(
        64, 64, batch=32, n_envs=1, steps_per_update=4, block=800
    ),
    "DQN 128-128-128, batch 64": _dqn(128, 128, 128, batch=64, sides=(*EVERY, RLLIB)),
    "DQN 128-128-128, batch 64, 64 environments": _dqn(
        128, 128, 128, batch=64, n_envs=64, steps_per_update=64, block=3_200
    ),
    "DQN 128-128-128, batch 1,024": _dqn(128, 128, 128, batch=1_024, block=400),
    "DQN 256-256, batch 64": _dqn(256, 256, batch=64),
    "DQN 256-256, batch 1,024": _dqn(256, 256, batch=1_024, block=400),
    "DQN 512-512, batch 32": _dqn(512, 512, batch=32, block=800),
    "DQN 512-512, batch 256": _dqn(512, 512, batch=256, block=400),
    "Prioritized double DQN, 3-step, 128-128-128, batch 64": _dqn(
        128, 128, 128, batch=64, n_step=3, double=True, prioritized=True, sides=(PLAIN, TIANSHOU, TIANSHOU2)
    ),
    "Rainbow, 128-128, batch 32": _dqn(
        128,
        128,
        batch=32,
        learner="rainbow",
        n_step=3,
        double=True,
        prioritized=True,
        sides=(TIANSHOU, TIANSHOU2),
        epsilon=0.0,
        clip=None,
    ),
    "DQN on images of 10x10x4, batch 32": _images(10, (16, 3, 1), hidden=128, block=800),
    "DQN on images of 84x84x4, Nature CNN, batch 32": _images(
        84, (32, 8, 4), (64, 4, 2), (64, 3, 1), hidden=512, block=64
    ),
    "SAC 64-64, batch 64": Work(learner="sac", hidden=(64, 64), block=100, **_CONTINUOUS),
    "SAC 256-256, batch 256": Work(learner="sac", hidden=(256, 256), batch=256, block=20, **_CONTINUOUS),
    "TD3 256-256, batch 256": Work(learner="td3", **_CONTINUOUS, **_LARGE),
    "TQC 256-256, batch 256": Work(learner="tqc", **_CONTINUOUS, **_LARGE),
    "TD3 on HalfCheetah, 256-256, batch 256": Work(learner="td3", **_CHEETAH, **_LARGE),
    "TQC on HalfCheetah, 256-256, batch 256": Work(learner="tqc", **_CHEETAH, **_LARGE),
    "PPO 64-64, batch 64": Work(learner="ppo", batch=64, **_PPO),
    "PPO 64-64, batch 256": Work(learner="ppo", batch=256, **_PPO),
    "Collecting, 1 environment": _collect(1, 800),
    "Collecting, 8 environments": _collect(8, 3_200),
    "Collecting, 64 environments": _collect(64, 6_400),
    "Collecting, 256 environments": _collect(256, 12_800),
}
