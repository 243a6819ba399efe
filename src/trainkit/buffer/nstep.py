"""The return of a window of steps, computed when it is read, from one-step rows."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainkit import tree
from trainkit.buffer.storage import Rings, Rows
from trainkit.data import Horizon, Obs


class Windows(NamedTuple):
    """B windows of up to n steps each."""

    reward: NDArray[np.float32]  # [B], sum of gamma**i * reward_i over the m real steps
    discount: NDArray[np.float32]  # [B], gamma**m, or 0 after a termination
    n_steps: NDArray[np.int64]  # [B], m: n, or fewer at an episode's end and at the write head
    last: Rows  # [B], the row of each window's last step


def read_windows(rings: Rings, rows: Rows, horizon: Horizon, rng: np.random.Generator) -> Windows:
    """Sum each row's window: it stops at the end of its episode, whatever ended it, and at the newest row.

    Only a termination drops the bootstrap; at a truncation, a cut or the head the window is shorter and its
    discount is that of the steps it really has (Sutton & Barto, 2018, section 7.1, with m for n).
    """
    wanted = horizon.n_step
    if isinstance(wanted, tuple):
        wanted = rng.integers(wanted[0], wanted[1], size=len(rows), endpoint=True)
    step = np.arange(horizon.longest)[:, None]  # [n, 1]
    window = rings.after(rows, step)  # [n, B]
    reward = _shape(horizon.reward, rings, window)
    if horizon.longest == 1:
        last, n_steps, total = rows, np.ones(len(rows), np.int64), reward[0]
    else:
        reach = np.minimum(wanted, rings.steps_to_head(rows))  # [B], steps not past the head
        counts = step < reach  # [n, B], whether a step belongs to its window
        counts[1:] &= np.logical_and.accumulate(rings.final[window[:-1]] < 0, axis=0)
        n_steps = counts.sum(axis=0)
        total = (reward * counts * horizon.gamma**step).sum(axis=0)
        last = window[n_steps - 1, np.arange(len(rows))]
    discount = np.where(rings.terminated[last], 0.0, horizon.gamma**n_steps)
    return Windows(total.astype(np.float32), discount.astype(np.float32), n_steps, last)


class _Columns(Mapping[str, NDArray[Any]]):
    """The columns of a window, [n, B, ...], read only when a reward function asks for them."""

    def __init__(self, rings: Rings, window: NDArray[np.int64]) -> None:
        columns: dict[str, Callable[[], NDArray[Any]]] = {
            "reward": lambda: rings.reward[window],
            "action": lambda: rings.action[window],
            "terminated": lambda: rings.terminated[window],
            "truncated": lambda: rings.truncated[window],
            "t": lambda: rings.age[window],
            "obs": lambda: _fold(rings.obs_at(window.ravel()), window.shape),
            "next_obs": lambda: _fold(rings.next_obs_at(window.ravel()), window.shape),
        }
        self._columns = columns | {
            name: (lambda column=column: column[window])  # type: ignore[misc]  # bound now, not at the loop's end
            for name, column in rings.extras.items()
        }

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._columns[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


def _fold(obs: Obs, shape: tuple[int, ...]) -> Obs:
    """Turn [n * B, ...] leaves into [n, B, ...]."""
    return tree.map_tree(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), obs)


def _shape(rule: Any, rings: Rings, window: NDArray[np.int64]) -> NDArray[np.float64]:
    """Apply a horizon's reward rule row by row, before any sum: the clip of a sum is not the sum of clips."""
    if callable(rule):
        shaped: NDArray[np.float64] = rule(_Columns(rings, window))
        return shaped
    reward = rings.reward[window]
    if rule is None:
        return reward
    if rule == "sign":
        return np.sign(reward)
    if isinstance(rule, tuple):
        return np.clip(reward, *rule)
    return reward * rule
