"""A walk so short, and learners so small, that a whole run takes some hundredths of a second."""

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray

import trainkit as tk
from trainkit.core.data import EpochResult
from trainkit.core.stats import scalars
from trainkit.trainer.callbacks.base import EVENTS

GOAL, LIMIT = 3, 12


class Walk(gym.Env[NDArray[np.float32], int]):
    """Step right (reward 1) or left (-1) from 0, with a slip drawn by the episode's seed; ends at +-3 or after 12."""

    observation_space = gym.spaces.Box(-GOAL - 2, LIMIT, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, on_step: Callable[[], None] = lambda: None) -> None:
        self._on_step = on_step

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._place, self._clock = 0.0, 0
        return self._obs(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._on_step()
        move = 1.0 if action else -1.0
        self._place += move + self.np_random.uniform(-0.5, 0.5)
        self._clock += 1
        return self._obs(), move, abs(self._place) >= GOAL, self._clock >= LIMIT, {}

    def _obs(self) -> NDArray[np.float32]:
        return np.array([self._place, self._clock], np.float32)


RAINBOW = {"double": True, "dueling": True, "value": tk.CategoricalValue(5, -5.0, 5.0)}  # and noise


def make_policy(envs: tk.Envs, **parts: Any) -> tk.DQNPolicy:
    """Make a small policy with everything random in it: initial weights, noise, and coins for epsilon."""
    own = {
        "hidden": (8,),
        "noisy": True,
        "n_step": 2,
        "exploration": tk.EpsilonGreedy([(0, 1.0), (100, 0.2)]),
        "target": tk.Target(10),
        "device": "cpu",
    }
    return tk.DQNPolicy.for_envs(envs, **own | parts)


def make_trainer(
    *,
    n_envs: int = 2,
    test: bool = False,
    env: type[Walk] = Walk,
    env_options: dict[str, Any] | None = None,
    evaluation: Any = None,
    policy: dict[str, Any] | None = None,
    buffer: tk.ReplayBuffer | None = None,
    on_step: Callable[[], None] = lambda: None,
    on_test_step: Callable[[], None] = lambda: None,
    **options: Any,
) -> tk.OffpolicyTrainer:
    """Make a quiet trainer of 3 epochs of 24 steps, one update per 2 steps."""
    envs = tk.make_envs(lambda: env(on_step), n_envs, **env_options or {})
    learner = make_policy(envs, **policy or {})
    buffer = tk.PrioritizedReplayBuffer(60, beta=[(0, 0.4), (100, 1.0)]) if buffer is None else buffer
    own: dict[str, Any] = {
        "max_epoch": 3,
        "step_per_epoch": 24,
        "update_per_step": 0.5,
        "batch_size": 4,
        "seed": 1,
        "verbose": False,
        "show_progress": False,
    }
    if test:
        own["test_collector"] = tk.Collector(learner, tk.make_envs(lambda: env(on_test_step), 2))
        own["episode_per_test"] = 3
    if evaluation is not None:  # a function that says what is played, or all of it
        if not isinstance(evaluation, tk.Evaluation):
            evaluation = tk.Evaluation(tk.Collector(learner, tk.make_envs(env, 2)), fn=evaluation)
        own["evaluation"] = evaluation
    return tk.OffpolicyTrainer(learner, tk.Collector(learner, envs, buffer), **own | options)


def make_onpolicy_trainer(
    *,
    n_envs: int = 2,
    test: bool = False,
    kind: type[tk.PPOPolicy] = tk.PPOPolicy,
    policy: dict[str, Any] | None = None,
    on_step: Callable[[], None] = lambda: None,
    on_test_step: Callable[[], None] = lambda: None,
    **options: Any,
) -> tk.OnpolicyTrainer:
    """Make a quiet trainer of 3 epochs of 24 steps, each two rollouts of 12 rows in 3 batches."""
    envs = tk.make_envs(lambda: Walk(on_step), n_envs)
    learner = kind.for_envs(envs, **{"hidden": (8,), "device": "cpu", "lr": [(0, 1e-2), (100, 1e-3)]} | (policy or {}))
    own: dict[str, Any] = {
        "max_epoch": 3,
        "step_per_epoch": 24,
        "batch_size": 4,
        "seed": 1,
        "verbose": False,
        "show_progress": False,
    }
    if options.get("episode_per_collect") is None:
        own["step_per_collect"] = 12
    if test:
        own["test_collector"] = tk.Collector(learner, tk.make_envs(lambda: Walk(on_test_step), 2))
        own["episode_per_test"] = 3
    return tk.OnpolicyTrainer(learner, tk.Collector(learner, envs, tk.RolloutBuffer()), **own | options)


class Log(tk.Callback):
    """Write every event down, with what came along."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.news: list[tuple[Any, ...]] = []

    def names(self, *wanted: str) -> list[str]:
        return [event for event in self.events if event in wanted]


def _hearer(event: str) -> Callable[..., None]:
    def receive(self: Log, trainer: tk.Trainer, *news: Any) -> None:
        self.events.append(event)
        self.news.append(news)

    return receive


for _event in EVENTS:
    setattr(Log, _event, _hearer(_event))


# ---- what a run left behind ----


def leaves(state: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, plain value) of a nested state; arrays and tensors as dtype, shape and bytes."""
    if isinstance(state, dict):
        for key, child in state.items():
            yield from leaves(child, f"{path}/{key}")
    elif isinstance(state, (list, tuple)):
        for position, child in enumerate(state):
            yield from leaves(child, f"{path}/{position}")
    elif isinstance(state, (np.ndarray, torch.Tensor)):
        array = np.asarray(state)
        yield path, (str(array.dtype), array.shape, array.tobytes())
    else:
        yield path, state


def everything(trainer: tk.Trainer) -> dict[str, Any]:
    """Take down every bit a run continues from: weights, moments, rows, priorities, counters, generators."""
    parts = {
        "policy": trainer.policy.training_state(),
        "buffer": trainer.buffer.state_dict(),
        "trainer": trainer.state_dict(),
    }
    if trainer.train_collector is not None:
        parts["collector"] = trainer.train_collector.state_dict()
    return {path: leaf for path, leaf in leaves(parts) if not is_apart(path)}


def is_apart(path: str) -> bool:
    """Return whether a leaf is a time, or of callbacks.

    So is how many calls in a row recorded a function: where nothing changes, the next call sets it to 0.
    """
    parts = ("/durations", "/rows/", "/collector/events/", "/engine/recorded/", "/engine/counts/")
    return path.endswith(("seconds", "_ms", "_per_second")) or any(part in path for part in parts)


def of_watchers(path: str) -> bool:
    """Whether a state is of callbacks, or of what they logged."""
    return path.startswith(("/trainer/callbacks/", "/trainer/metrics/"))


def untimed(result: EpochResult) -> dict[str, float]:
    """Return an epoch's numbers, but those a clock told."""
    clocks = ("time/", "system/", "train/durations", "test/durations")
    numbers = scalars(result.stats).items()
    return {tag: x for tag, x in numbers if not (tag.startswith(clocks) or tag.endswith(("_ms", "seconds")))}
