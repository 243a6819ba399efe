"""The side of `engine_speed` of commit 796b72f, where small networks learned in numpy written by hand."""

# ruff: noqa: I001 - some of its modules are not of this tree, and are sorted as if they were not ours

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

import trainkit as tk
from benchmarks.engine_work import serve
from trainkit.policy.base import Policy
from trainkit.policy.gradient_step import GradientStep, Taken
from trainkit.policy.rollout_rows import RolloutRows

FORCE = spaces.Box(-1.0, 1.0, (6,), np.float32)
PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "dqn": dict,
    "double dueling": lambda: {"double": True, "dueling": True},
    "munchausen": lambda: {"backup": tk.MunchausenBackup()},
    "c51": lambda: {"value": tk.CategoricalValue()},
    "qr-dqn": lambda: {"value": tk.QuantileValue(21)},
    "rainbow": lambda: {"value": tk.CategoricalValue(), "double": True, "dueling": True, "noisy": True},
    "iqn": lambda: {"value": tk.ImplicitQuantileValue(8, target_quantiles=8)},
    "cql": lambda: {"double": True, "penalty": tk.ConservativePenalty()},
}


def batch_of(n_rows: int, n_inputs: int, action_space: spaces.Space[Any]) -> tk.TransitionBatch:
    """Return random transitions."""
    rng = np.random.default_rng(0)
    if isinstance(action_space, spaces.Discrete):
        action: Any = rng.integers(action_space.n, size=n_rows)
    else:
        action = rng.uniform(-1.0, 1.0, (n_rows, *FORCE.shape)).astype(np.float32)
    return tk.TransitionBatch(
        obs=rng.normal(size=(n_rows, n_inputs)).astype(np.float32),
        action=action,
        reward=rng.normal(size=n_rows).astype(np.float32),
        discount=np.where(rng.random(n_rows) < 0.1, 0.0, 0.99).astype(np.float32),
        next_obs=rng.normal(size=(n_rows, n_inputs)).astype(np.float32),
        weight=rng.uniform(0.3, 1.0, n_rows).astype(np.float32),
        slots=None,
    )


def update_of(name: str, hidden: tuple[int, ...], n_rows: int) -> Callable[[], object]:
    """Return what takes one update of a policy."""
    is_box = name in ("sac", "ppo box")
    n_inputs, action_space = (17 if is_box or name == "ppo" else 8), (FORCE if is_box else spaces.Discrete(4))
    obs_space = spaces.Box(-10.0, 10.0, (n_inputs,), np.float32)
    envs: Any = SimpleNamespace(observation_space=obs_space, action_space=action_space)
    how: dict[str, Any] = {"device": "cpu", "seed": 0, "hidden": hidden}
    if name.startswith("ppo"):
        return _minibatch(tk.PPOPolicy.for_envs(envs, **how), n_rows)
    if name == "a2c":
        return _minibatch(tk.A2CPolicy.for_envs(envs, **how), n_rows)
    if name == "sac":
        policy: Any = tk.SACPolicy.for_envs(envs, **how)
    elif name == "bc":
        policy = tk.BCPolicy.for_envs(envs, **how)
    elif name == "bcq":
        policy = tk.DiscreteBCQPolicy.for_envs(envs, **how)
    else:
        policy = tk.DQNPolicy.for_envs(envs, **how, **PARTS[name]())
    batch = batch_of(n_rows, n_inputs, action_space)
    return lambda: policy.update(batch, step=2)


def _minibatch(policy: Any, n_rows: int) -> Callable[[], object]:
    """Return what learns from one minibatch of a rollout."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    n_inputs = policy.observation_space.shape[0]
    is_box = isinstance(policy.action_space, spaces.Box)
    action = normal(n_rows, *FORCE.shape) if is_box else torch.randint(0, 4, (n_rows,), generator=generator)
    log_prob = -1.4 + 0.1 * normal(n_rows)
    rows = RolloutRows(normal(n_rows, n_inputs), None, action, log_prob, *(normal(n_rows) for _ in range(3)))
    scheduled = {"entropy_weight": 0.0, **({"clip_ratio": 0.2} if isinstance(policy, tk.PPOPolicy) else {})}
    at_hand = policy._at_hand(rows)
    return lambda: policy.minimise("model", policy._objective(at_hand, scheduled), step=2)


@contextmanager
def step_left_out() -> Iterator[None]:
    """Have updates end with the gradients: no clip, no Adam, no statistics."""
    step, end_update = GradientStep._step, Policy.end_update
    GradientStep._step = lambda self, value, shown, lr: Taken(float(value), 0.0, 0.0, shown)
    Policy.end_update = lambda self, **_: None
    try:
        yield
    finally:
        GradientStep._step, Policy.end_update = step, end_update


def loop_of(name: str) -> Iterator[Any]:
    """Return a training run whose epochs are 1,000 steps on CartPole or Pendulum; one exploring action in ten."""
    endless: dict[str, Any] = {"max_epoch": 10**6, "step_per_epoch": 1_000, "verbose": False, "show_progress": False}
    if name == "ppo":
        envs = tk.make_envs("CartPole-v1", 8)
        policy: Any = tk.PPOPolicy.for_envs(envs, seed=1)
        collector = tk.Collector(policy, envs, tk.RolloutBuffer())
        return tk.OnpolicyTrainer(
            policy, collector, **endless, step_per_collect=1_000, repeat_per_collect=4, batch_size=64, seed=1
        )
    if name == "sac":
        envs = tk.make_envs("Pendulum-v1", 1)
        policy = tk.SACPolicy.for_envs(envs, hidden=(64, 64), seed=1)
        buffer: Any = tk.ReplayBuffer(20_000)
        options = {"batch_size": 64, "update_per_step": 1.0, "learning_starts": 200}
    else:
        envs = tk.make_envs("CartPole-v1", 10)
        is_plain = name == "dqn"
        parts: dict[str, Any] = {} if is_plain else {"n_step": 3, "double": True}
        if name == "rainbow":
            parts |= {"value": tk.CategoricalValue(51, 0, 100), "dueling": True, "noisy": True}
        else:
            parts["exploration"] = tk.EpsilonGreedy(0.1)
        policy = tk.DQNPolicy.for_envs(envs, seed=1, **parts)
        buffer = tk.ReplayBuffer(20_000) if is_plain else tk.PrioritizedReplayBuffer(20_000)
        options = {"batch_size": 64, "update_per_step": 0.1, "learning_starts": 500}
    collector = tk.Collector(policy, envs, buffer)
    return tk.OffpolicyTrainer(policy, collector, **endless, **options, seed=1)


if __name__ == "__main__":
    serve(update_of, loop_of, step_left_out)
