"""A side of `engine`: updates and loops of the trainkit of a checkout; the argument names the engine.

It reads "CELL|SIZE|ROWS" or "loop|NAME" per line, and answers with the CPU seconds of a call.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

import trainkit as tk
from trainkit.engine.gradient_step import GradientStep, Taken
from trainkit.policy.advantages import RolloutRows
from trainkit.policy.base import Policy

SECONDS = 0.02  # of a block
WARM_UP = 5  # epochs of a loop before it is measured
LOOPS = "dqn", "prioritized", "rainbow", "ppo", "sac"
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


def update_of(name: str, hidden: tuple[int, ...], n_rows: int, how: dict[str, Any]) -> Callable[[], object]:
    """Return what takes one update of a policy."""
    is_box = name in ("sac", "ppo box")
    n_inputs, action_space = (17 if is_box or name == "ppo" else 8), (FORCE if is_box else spaces.Discrete(4))
    obs_space = spaces.Box(-10.0, 10.0, (n_inputs,), np.float32)
    envs: Any = SimpleNamespace(observation_space=obs_space, action_space=action_space)
    how = {"device": "cpu", "seed": 0, "hidden": hidden, **how}
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
    columns = rows.in_arrays().columns()
    return lambda: policy._learning.update(columns, n_rows, step=2)


@contextmanager
def step_left_out() -> Iterator[None]:
    """Have updates end with the gradients: no clip, no Adam, no statistics."""
    apply, end_update = GradientStep.apply, Policy.end_update
    GradientStep.apply = lambda self, loss, outputs, **_: Taken(float(loss), 0.0, 0.0, outputs)  # type: ignore[method-assign,assign,return-value]
    Policy.end_update = lambda self, **_: None  # type: ignore[method-assign,assign,return-value]
    try:
        yield
    finally:
        GradientStep.apply, Policy.end_update = apply, end_update  # type: ignore[method-assign]


def loop_of(name: str, how: dict[str, Any]) -> Iterator[Any]:
    """Return a training run whose epochs are 1,000 steps on CartPole or Pendulum; one exploring action in ten."""
    endless: dict[str, Any] = {"max_epoch": 10**6, "step_per_epoch": 1_000, "verbose": False, "show_progress": False}
    if name == "ppo":
        envs = tk.make_envs("CartPole-v1", 8)
        policy: Any = tk.PPOPolicy.for_envs(envs, seed=1, **how)
        collector = tk.Collector(policy, envs, tk.RolloutBuffer())
        return tk.OnpolicyTrainer(
            policy, collector, **endless, step_per_collect=1_000, repeat_per_collect=4, batch_size=64, seed=1
        )
    if name == "sac":
        envs = tk.make_envs("Pendulum-v1", 1)
        policy = tk.SACPolicy.for_envs(envs, hidden=(64, 64), seed=1, **how)
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
        policy = tk.DQNPolicy.for_envs(envs, seed=1, **parts, **how)
        buffer = tk.ReplayBuffer(20_000) if is_plain else tk.PrioritizedReplayBuffer(20_000)
        options = {"batch_size": 64, "update_per_step": 0.1, "learning_starts": 500}
    collector = tk.Collector(policy, envs, buffer)
    return tk.OffpolicyTrainer(policy, collector, **endless, **options, seed=1)


def serve(how: dict[str, Any]) -> None:
    """Answer every line; `how` are options of all policies."""
    torch.set_num_threads(1)
    work: dict[str, tuple[Callable[[], object], int]] = {}
    for line in sys.stdin:
        word = line.strip()
        name, *rest = word.split("|")
        with nullcontext() if name == "loop" else step_left_out():
            if word not in work and name == "loop":
                work[word] = _warm(loop_of(rest[0], how)), 1
            elif word not in work:
                call = update_of(name, tuple(map(int, rest[0].split("-"))), int(rest[1]), how)
                work[word] = call, max(int(SECONDS / _seconds(call, 20, 10)), 2)
            call, n_calls = work[word]
            print(json.dumps({"seconds": _seconds(call, 1, n_calls), "done": {}}), flush=True)


def _warm(loop: Iterator[Any]) -> Callable[[], object]:
    for _ in range(WARM_UP):
        next(loop)
    return lambda: next(loop)


def _seconds(call: Callable[[], object], n_before: int, n_calls: int) -> float:
    """Return the CPU seconds of a call, after some that are not measured."""
    for _ in range(n_before):
        call()
    started = time.process_time()
    for _ in range(n_calls):
        call()
    return (time.process_time() - started) / n_calls


if __name__ == "__main__":
    serve({"engine": sys.argv[1]} if sys.argv[1:] else {})
