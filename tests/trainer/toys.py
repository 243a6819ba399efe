"""A walk so short, and learners so small, that a whole run takes some hundredths of a second."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray

import trainkit as tk
from trainkit.core.data import EpochResult
from trainkit.core.stats import CollectStats, Summary, scalars
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


class Clock(tk.Callback):
    """Write down the environment step of every collect's end and every update."""

    def __init__(self) -> None:
        self.collects: list[int] = []
        self.updates: list[int] = []

    def on_collect_end(self, trainer: tk.Trainer, stats: tk.CollectStats) -> None:
        self.collects.append(trainer.env_step)

    def on_update_end(self, trainer: tk.Trainer) -> None:
        self.updates.append(trainer.env_step)


class Raising(tk.Callback):
    """Raise a given error at the n-th update."""

    def __init__(self, error: BaseException, at: int = 5) -> None:
        self.error, self.at, self.n = error, at, 0

    def on_update_end(self, trainer: tk.Trainer) -> None:
        self.n += 1
        if self.n == self.at:
            raise self.error


class Numbers:
    """A logger that keeps everything."""

    folder = None

    def __init__(self) -> None:
        self.written: list[tuple[int, dict[str, float]]] = []
        self.settings: list[dict[str, Any]] = []
        self.n_closed = 0

    def write(self, step: int, numbers: dict[str, float]) -> None:
        self.written.append((step, dict(numbers)))

    def describe(self, settings: dict[str, Any]) -> None:
        self.settings.append(settings)

    def close(self) -> None:
        self.n_closed += 1


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


def epoch_steps(trainer: tk.Trainer) -> list[int]:
    """Return the steps of each epoch."""
    return np.diff([0, *(result.info.env_step for result in trainer)]).tolist()


def untimed(result: EpochResult) -> dict[str, float]:
    """Return an epoch's numbers, but those a clock told."""
    clocks = ("time/", "system/", "train/durations", "test/durations")
    numbers = scalars(result.stats).items()
    return {tag: x for tag, x in numbers if not (tag.startswith(clocks) or tag.endswith(("_ms", "seconds")))}


# ---- made-up rows and numbers ----

N_ROWS = 50


def columns(**changed: Any) -> dict[str, Any]:
    """Make 50 random rows of the walk's spaces, in episodes of 10."""
    rng = np.random.default_rng(0)
    own: dict[str, Any] = {
        "obs": rng.normal(size=(N_ROWS, 2)).astype(np.float32),
        "next_obs": rng.normal(size=(N_ROWS, 2)).astype(np.float32),
        "action": rng.integers(0, 2, N_ROWS),
        "reward": rng.normal(size=N_ROWS),
        "terminated": np.arange(N_ROWS) % 10 == 9,
    }
    return own | changed


def collect_stats(**changed: Any) -> CollectStats:
    """Make the numbers of a collect."""
    stats = CollectStats(
        n_step=30,
        n_episode=2,
        returns=Summary.of([10.0, 20.0]),
        lengths=Summary.of([5, 25]),
        durations=Summary.of([0.5, 1.5]),
        recent_returns=Summary.of([10.0, 20.0, 60.0]),
        seconds=2.0,
        n_vector_step=10,
        n_faulty_episodes=0,
        n_env_restarts=1,
        env_ms=3.0,
        act_ms=2.0,
        store_ms=1.0,
        other_ms=0.5,
    )
    return replace(stats, **changed)


def make_offline_trainer(
    *,
    test: bool = False,
    rows: dict[str, Any] | None = None,
    buffer: Any = None,
    policy: tk.Policy | None = None,
    **options: Any,
) -> tk.OfflineTrainer:
    """Make a quiet trainer of 3 epochs of 6 updates from made-up rows."""
    envs = tk.make_envs(Walk, 2)
    learner: Any = make_policy(envs) if policy is None else policy
    if buffer is None:
        buffer = tk.PrioritizedReplayBuffer.from_arrays(**columns() if rows is None else rows, beta=[(0, 0.4), (18, 1)])
    own: dict[str, Any] = {
        "max_epoch": 3,
        "update_per_epoch": 6,
        "batch_size": 4,
        "seed": 1,
        "verbose": False,
        "show_progress": False,
    }
    if test:
        own["test_collector"] = tk.Collector(learner, envs)
        own["episode_per_test"] = 3
    return tk.OfflineTrainer(learner, buffer, **own | options)
