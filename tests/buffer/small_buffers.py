"""Buffers of few rows, and what they hold."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.buffer.stream import CONTINUES, IS_TRUNCATED, TERMINATES, Form, Stream
from trainkit import Horizon, ReplayBuffer, Transition
from trainkit.core.data import TransitionBatch


def tape(rewards: Sequence[float], ends: Mapping[int, int] | None = None, capacity: int = 100) -> ReplayBuffer:
    """Fill a buffer with one environment's steps; `ends` says how some of them end their episode."""
    buffer, stream = ReplayBuffer(capacity, seed=1), Stream(1)
    for t, reward in enumerate(rewards):
        step = stream.next(ends=(ends or {}).get(t, CONTINUES))
        buffer.add(step._replace(reward=np.array([reward])))
    return buffer


def filled(kind: type[ReplayBuffer], form: Form = "array", stack: int = 1, **options: Any) -> ReplayBuffer:
    """Return a buffer of two environments, with episodes that ended either way, and unequal priorities."""
    buffer, stream = kind(24, n_envs=2, stack=stack, seed=3, **options), Stream(2, form, stack)
    for step in range(15):
        ends = TERMINATES if step == 4 else IS_TRUNCATED if step == 9 else 0
        slots = buffer.add(stream.next(ends=[ends, 0]))
        buffer.update_priorities(slots, np.array([step / 5, 1.0]))
    return buffer


def fields_of(batch: TransitionBatch) -> dict[str, Any]:
    """Return all but the weight."""
    return {name: getattr(batch, name) for name in TransitionBatch.__slots__ if name != "weight"}


def row(obs: Any, next_obs: Any, env_ids: Any = (0,), *, reward: float = 1.0, terminated: bool = False) -> Transition:
    """Make one row per environment of observations that are given as they are."""
    ids = np.array(env_ids, np.intp)
    flags = np.full(len(ids), terminated)
    return Transition(obs, ids, np.full(len(ids), reward), next_obs, flags, np.zeros_like(flags), ids, {})


def number(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)[:, None]


def successors(buffer: Any, **how: Any) -> dict[float, tuple[float, float]]:
    """Return {observation: (next observation, discount)} of all rows."""
    batch = buffer.sample(200, horizon=Horizon(gamma=0.5, **how))
    columns = (batch.obs[:, 0], batch.next_obs[:, 0], batch.discount)
    return {obs: (after, discount) for obs, after, discount in zip(*(c.tolist() for c in columns), strict=True)}
