"""The return of a window of steps, computed when it is read, from one-step rows."""

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainkit.buffer.heads import Rows
from trainkit.buffer.storage import Records, Rings
from trainkit.core import tree
from trainkit.core.data import Horizon, Obs, RewardRule
from trainkit.core.errors import ConfigError

_NO_REWARD = np.zeros(())  # of a step outside its window; numpy is quicker with it than with 0.0


class Windows(NamedTuple):
    """B windows of up to n steps each."""

    reward: NDArray[np.float32]  # [B], sum of gamma**i * reward_i over the m real steps
    discount: NDArray[np.float32]  # [B], gamma**m, or 0 after a termination
    n_steps: NDArray[np.int64] | int  # [B], m: n, or fewer at an episode's end and at the write head; 1 for n = 1
    last: Rows  # [B], the row of each window's last step
    final: NDArray[np.int32]  # [B], where the observation after it lies, as the rings say
    first: Records  # [B], of each window's first step


def read_windows(rings: Rings, rows: Rows, horizon: Horizon, rng: np.random.Generator) -> Windows:
    """Sum each row's window: it stops at the end of its episode, whatever ended it, and at the newest row.

    Only a termination drops the bootstrap; at a truncation, a cut or the head the window is shorter and its
    discount is that of the steps it really has (Sutton & Barto, 2018, section 7.1, with m for n).
    """
    if horizon.longest == 1:
        first = rings.records.take(rows)
        reward = first["reward"]
        if horizon.reward is not None:
            reward = _shape(horizon.reward, rings, rows[None], reward[None])[0]
        discount = _after_a_step(horizon.gamma)[first["terminated"].astype(np.intp)]
        return Windows(reward.astype(np.float32), discount, 1, rows, first["final"], first)
    step = _steps(horizon.longest)
    window = rings.after(rows, step)  # [n, B]
    records = rings.records.take(window)
    counts = np.ones(window.shape, np.bool_)  # whether a step belongs to its window
    counts[1:] = (records["final"][:-1] < 0) & (records["stamp"][1:] >= 0)  # no end before it, not the head
    if isinstance(horizon.n_step, tuple):
        counts &= step < rng.integers(*horizon.n_step, size=len(rows), endpoint=True)
    np.logical_and.accumulate(counts, axis=0, out=counts)
    n_steps = np.add.reduce(counts, axis=0)
    last = rings.after(rows, n_steps - 1)
    powers = _powers(horizon.gamma, horizon.longest)
    seen = np.where(counts, window, last) if callable(horizon.reward) else window  # a function sees its window alone
    reward = np.where(counts, _shape(horizon.reward, rings, seen, records["reward"]), _NO_REWARD)
    total = np.add.reduce(reward * powers[:-1, None], axis=0)
    discount = powers[n_steps] * ~rings.terminated[last]
    return Windows(total.astype(np.float32), discount.astype(np.float32), n_steps, last, rings.final[last], records[0])


_BLOCK = 64  # steps of all rows that are read at once


def read_return_to_go(rings: Rings, rows: Rows, horizon: Horizon) -> NDArray[np.float32]:
    """Return the discounted sum of each row's and all later rewards of its episode [B], without a bootstrap.

    nan where it is not known: the episode is still open, or was cut, so that rewards are missing.
    """
    total = np.zeros(len(rows))
    unread = np.arange(len(rows))  # of `rows`, whose episode goes on behind the rows read so far
    powers = _powers(horizon.gamma, _BLOCK)
    factor = 1.0
    at = rows
    while len(at):
        window = rings.after(at, _steps(_BLOCK))  # [n, B]
        records = rings.records.take(window)
        counts = records["stamp"] >= 0
        counts[1:] &= records["final"][:-1] < 0
        np.logical_and.accumulate(counts, axis=0, out=counts)
        n_steps = np.add.reduce(counts, axis=0)
        last = rings.after(at, n_steps - 1)
        seen = np.where(counts, window, last) if callable(horizon.reward) else window
        reward = np.where(counts, _shape(horizon.reward, rings, seen, records["reward"]), _NO_REWARD)
        total[unread] += factor * np.add.reduce(reward * powers[:-1, None], axis=0)
        ended = rings.terminated[last] | rings.truncated[last]
        follows = rings.after(last, 1)
        goes_on = (n_steps == _BLOCK) & (rings.final[last] < 0) & (rings.stamp[follows] >= 0)
        total[unread[~ended & ~goes_on]] = np.nan
        unread, at, factor = unread[goes_on], follows[goes_on], factor * horizon.gamma**_BLOCK
    return total.astype(np.float32)


@lru_cache
def _after_a_step(gamma: float) -> NDArray[np.float32]:
    """Return the discount after a step that goes on, and after one that terminates."""
    return np.array([gamma, 0.0], np.float32)


@lru_cache
def _steps(longest: int) -> NDArray[np.int64]:
    """Return 0, 1, ... longest - 1, [n, 1]."""
    return np.arange(longest)[:, None]


@lru_cache
def _powers(gamma: float, longest: int) -> NDArray[np.float64]:
    """Return gamma to the 0, 1, ... longest."""
    powers: NDArray[np.float64] = np.power(gamma, np.arange(longest + 1))
    return powers


class Columns(Mapping[str, Any]):
    """Columns of rows by name, read only when a reward function asks for them."""

    def __init__(self, columns: Mapping[str, Callable[[], Any]]) -> None:
        self._columns = columns

    def __getitem__(self, name: str) -> Any:
        return self._columns[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


def _shape(rule: Any, rings: Rings, window: NDArray[np.int64], reward: NDArray[np.float64]) -> NDArray[np.float64]:
    """Apply a horizon's reward rule row by row, before any sum: the clip of a sum is not the sum of clips."""
    return shape_reward(rule, reward, lambda: _columns(rings, window))


def _columns(rings: Rings, window: NDArray[np.int64]) -> Columns:
    """Return the columns of a window, [n, B, ...]."""
    return Columns(
        {
            "reward": lambda: rings.reward[window],
            "action": lambda: rings.action[window],
            "terminated": lambda: rings.terminated[window],
            "truncated": lambda: rings.truncated[window],
            "t": lambda: rings.age[window],
            "obs": lambda: _fold(rings.obs_at(window.ravel()), window.shape),
            "next_obs": lambda: _fold(rings.next_obs_at(window.ravel()), window.shape),
            **{name: partial(column.__getitem__, window) for name, column in rings.extras.items()},
        }
    )


def _fold(obs: Obs, shape: tuple[int, ...]) -> Obs:
    """Turn [n * B, ...] leaves into [n, B, ...]."""
    return tree.map_tree(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), obs)


def shape_reward(
    rule: RewardRule | None, reward: NDArray[np.float64], columns: Callable[[], Mapping[str, Any]]
) -> NDArray[np.float64]:
    """Apply a horizon's reward rule to rewards [...]; a function of the rule sees the columns [..., ...]."""
    if rule is None:
        return reward
    if callable(rule):
        shaped = np.asarray(rule(columns()))
        if shaped.shape != reward.shape:
            raise ConfigError(f"Horizon.reward must give one reward per row {list(reward.shape)}, got {shaped.shape}")
        return shaped
    if rule == "return_scale":
        raise ConfigError("Horizon.reward 'return_scale' is learnt by a policy: draw with policy.horizon")
    if isinstance(rule, str):
        return np.sign(reward)
    if isinstance(rule, tuple):
        return np.clip(reward, *rule)
    scaled: NDArray[np.float64] = reward * rule
    return scaled
