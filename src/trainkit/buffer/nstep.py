"""N-step returns, computed from one-step rows when they are read."""

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainkit.buffer.rings import Rows
from trainkit.buffer.storage import Storage
from trainkit.core import tree
from trainkit.core.data import Horizon, Obs, RewardRule
from trainkit.core.errors import ConfigError


class Windows(NamedTuple):
    """B windows of up to n steps each."""

    reward: NDArray[np.float32]  # [B], sum of gamma**i * reward_i over the m real steps
    discount: NDArray[np.float32]  # [B], gamma**m, or 0 after a termination
    n_steps: NDArray[np.int64] | int  # [B], m: n, or fewer at an episode's end and at the write cursor; 1 for n = 1
    last: Rows  # [B], the row of each window's last step
    final: NDArray[np.int32]  # [B], the field `final` of the last steps
    first: NDArray[np.void]  # [B], the records of the first steps


def read_windows(storage: Storage, rows: Rows, horizon: Horizon, rng: np.random.Generator) -> Windows:
    """Compute the return of each row's window, which stops at the end of its episode and at the newest row.

    Only a termination drops the bootstrap; at a truncation, a cut or the newest row the window is shorter and its
    discount is that of the steps it really has (Sutton & Barto, 2018, section 7.1, with m for n).
    """
    n_step, gamma = horizon.longest, horizon.gamma
    if n_step == 1:
        first = storage.records.array.take(rows)
        reward = first["reward"]
        if horizon.reward is not None:
            reward = shape_reward(horizon.reward, reward[None], lambda: _columns(storage, rows[None]))[0]
        discount = gamma * ~first["terminated"]
        return Windows(reward.astype(np.float32), discount.astype(np.float32), 1, rows, first["final"], first)
    longest = None
    if isinstance(horizon.n_step, tuple):
        longest = rng.integers(*horizon.n_step, size=len(rows), endpoint=True)
    powers = _powers(gamma, n_step)
    total, n_steps, first = _sum_windows(storage, rows, powers, horizon.reward, longest)
    last = storage.rings.after(rows, n_steps - 1)
    terminated, final = storage.records.terminated[last], storage.records.final[last]
    discount = powers[n_steps] * ~terminated
    return Windows(total.astype(np.float32), discount.astype(np.float32), n_steps, last, final, first)


def read_return_to_go(storage: Storage, rows: Rows, horizon: Horizon, at_once: int = 64) -> NDArray[np.float32]:
    """Return the discounted sum of each row's and all later rewards of its episode [B], without a bootstrap.

    nan where it is not known: the episode is still open, or was cut, so that rewards are missing. Episodes are read
    `at_once` steps at a time.
    """
    rings, records = storage.rings, storage.records
    total = np.zeros(len(rows))
    unread = np.arange(len(rows))  # indices of the rows whose episodes continue after what was read so far
    powers = _powers(horizon.gamma, at_once)
    factor, here = 1.0, rows
    while len(here):
        part, n_steps, _ = _sum_windows(storage, here, powers, horizon.reward)
        total[unread] += factor * part
        last = rings.after(here, n_steps - 1)
        after = rings.after(last, 1)
        has_ended = records.terminated[last] | records.truncated[last]
        continues = (n_steps == at_once) & (records.final[last] < 0) & (records.stamp[after] >= 0)
        total[unread[~has_ended & ~continues]] = np.nan
        unread, here, factor = unread[continues], after[continues], factor * horizon.gamma**at_once
    return total.astype(np.float32)


def read_return_range(storage: Storage, horizon: Horizon) -> tuple[float, float]:
    """Return the smallest and the largest of 0, all n-step rewards and all returns-to-go of the live rows.

    A return-to-go is the discounted sum of the rewards from a row to the last row stored of its episode, without a
    bootstrap. It is the sum of the first 1, 2, 4, 8 ... rewards, each by adding two sums of half as many.
    """
    rings, records = storage.rings, storage.records
    rows = rings.live_rows(np.arange(rings.n_live))  # ring by ring from the oldest, so that episodes are consecutive
    total = shape_reward(horizon.reward, records.reward[rows][None], lambda: _columns(storage, rows[None]))[0]
    total = total.astype(np.float64)
    is_last = (records.final[rows] >= 0) | (records.stamp[rings.after(rows, 1)] < 0)
    (last,) = is_last.nonzero()
    n_later = last[np.cumsum(is_last) - is_last] - np.arange(len(rows))  # rows of the episode after each
    reach = 1
    while (begins := (n_later >= reach).nonzero()[0]).size:
        total[begins] += horizon.gamma**reach * total[begins + reach]
        reach *= 2
    low, high = min(0.0, float(total.min())), max(0.0, float(total.max()))
    for n_step in range(
        horizon.n_step[0] if isinstance(horizon.n_step, tuple) else horizon.n_step, horizon.longest + 1
    ):
        (begins,) = (n_later >= n_step).nonzero()
        if len(begins):
            windows = total[begins] - horizon.gamma**n_step * total[begins + n_step]
            low, high = min(low, float(windows.min())), max(high, float(windows.max()))
    return low, high


def _sum_windows(
    storage: Storage,
    rows: Rows,
    powers: NDArray[np.float64],
    rule: RewardRule | None,
    longest: NDArray[np.int64] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.void]]:
    """Return (the sum of powers[i] * reward_i [B], the number of steps m [B], the records of the first steps [B]).

    The n = len(powers) - 1 steps from each row on are read; of these the first m are summed, before which no episode
    ended, which are live rows and at most `longest` [B]. A reward rule is applied to each reward before the sum: the
    clip of a sum is not the sum of clips.
    """
    step = np.arange(len(powers) - 1)[:, None]
    window = storage.rings.after(rows, step)  # [n, B]
    records = storage.records.array.take(window)
    is_inside = np.ones(window.shape, np.bool_)
    is_inside[1:] = (records["final"][:-1] < 0) & (records["stamp"][1:] >= 0)
    if longest is not None:
        is_inside &= step < longest
    np.logical_and.accumulate(is_inside, axis=0, out=is_inside)
    n_steps = np.add.reduce(is_inside, axis=0)
    reward = records["reward"]
    if rule is not None:
        seen = np.where(is_inside, window, storage.rings.after(rows, n_steps - 1))  # never rows outside of the window
        reward = shape_reward(rule, reward, lambda: _columns(storage, seen))
    total: NDArray[np.float64] = np.add.reduce(np.where(is_inside, reward, 0.0) * powers[:-1, None], axis=0)
    return total, n_steps, records[0]


@lru_cache
def _powers(gamma: float, n_step: int) -> NDArray[np.float64]:
    """Return gamma**i for i = 0 ... n_step."""
    powers: NDArray[np.float64] = np.power(gamma, np.arange(n_step + 1))
    return powers


class LazyColumns(Mapping[str, Any]):
    """Columns of rows by name, each read when a reward function uses it."""

    def __init__(self, columns: Mapping[str, Callable[[], Any]]) -> None:
        self._columns = columns

    def __getitem__(self, name: str) -> Any:
        return self._columns[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


def _columns(storage: Storage, window: NDArray[np.int64]) -> LazyColumns:
    """Return the columns of windows, [n, B, ...] each."""
    rows = window.ravel()
    fields = {"reward": "reward", "action": "action", "terminated": "terminated", "truncated": "truncated", "t": "age"}

    def split(obs: Obs) -> Obs:
        return tree.map_tree(lambda leaf: leaf.reshape(*window.shape, *leaf.shape[1:]), obs)

    return LazyColumns(
        {
            **{name: partial(storage.records.array[field].__getitem__, window) for name, field in fields.items()},
            "obs": lambda: split(storage.obs_at(rows)),
            "next_obs": lambda: split(storage.next_obs_at(rows, storage.records.final[rows])),
            **{name: partial(column.__getitem__, window) for name, column in storage.extras.items()},
        }
    )


def shape_reward(
    rule: RewardRule | None, reward: NDArray[np.float64], columns: Callable[[], Mapping[str, Any]]
) -> NDArray[np.float64]:
    """Apply a horizon's reward rule to rewards [...]; a rule that is a function receives the columns [..., ...]."""
    if rule is None:
        return reward
    if callable(rule):
        shaped = np.asarray(rule(columns()))
        if shaped.shape != reward.shape:
            raise ConfigError(f"Horizon.reward must give one reward per row {list(reward.shape)}, got {shaped.shape}")
        return shaped
    if rule == "return_scale":
        raise ConfigError("Horizon.reward 'return_scale' is learned by a policy: sample with policy.horizon")
    if isinstance(rule, str):
        return np.sign(reward)
    if isinstance(rule, tuple):
        return np.clip(reward, *rule)
    scaled: NDArray[np.float64] = reward * rule
    return scaled
