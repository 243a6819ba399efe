"""Recorded transitions, in time order: checked, completed, and parted into episodes."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit import tree
from trainkit.buffer.storage import Rings
from trainkit.data import Obs, RecordedEpisode, Transition
from trainkit.errors import ConfigError


def recorded(
    owner: str,
    *,
    obs: Obs,
    action: NDArray[Any],
    reward: NDArray[Any],
    terminated: NDArray[Any],
    truncated: NDArray[Any] | None,
    next_obs: Obs | None,
    ends: NDArray[Any] | None,
    extras: Mapping[str, NDArray[Any]],
) -> tuple[Transition, NDArray[np.bool_]]:
    """Return T rows of one environment, and which of them are their episode's last [T]."""
    n_steps = len(reward)
    for name, given in {"obs": obs, "next_obs": obs if next_obs is None else next_obs}.items():
        leaves = tree.leaves(given)
        if not leaves or not all(isinstance(leaf, np.ndarray) for leaf in leaves):
            raise ConfigError(f"{owner}.{name} must be an array, or a dict or tuple of arrays, got {given!r}")
    columns = [*tree.leaves(obs), *tree.leaves(next_obs), action, terminated, truncated, ends, *extras.values()]
    lengths = sorted({len(column) for column in columns if column is not None} | {n_steps})
    if lengths != [n_steps] or n_steps == 0:
        raise ConfigError(f"{owner} needs columns of one length >= 1, got lengths {lengths}")
    terminated = np.asarray(terminated, np.bool_)
    truncated = np.zeros(n_steps, np.bool_) if truncated is None else np.asarray(truncated, np.bool_)
    told, ends = ends, terminated | truncated
    if told is not None:
        ends |= np.asarray(told, np.bool_)
    if next_obs is None:
        if truncated.any() or not terminated[-1] or (ends & ~terminated).any():
            raise ConfigError(
                f"{owner} needs next_obs where an episode is truncated or left open: "
                "without it there is nothing to bootstrap from"
            )
        next_obs = tree.map_tree(lambda leaf: np.concatenate([leaf[1:], leaf[-1:]]), obs)
    for here, after in zip(tree.leaves(obs), tree.leaves(next_obs), strict=True) if told is None else ():
        axes = tuple(range(1, here.ndim))
        ends[:-1] |= (here[1:] != after[:-1]).any(axis=axes)
    reward = np.asarray(reward, np.float64)
    return Transition(obs, action, reward, next_obs, terminated, truncated, np.zeros(1, np.intp), extras), ends


def read_episodes(rings: Rings) -> Iterator[RecordedEpisode]:
    """Yield the episodes whose first row lives, ring by ring from the oldest; the last of a ring may be open."""
    for env in range(rings.n_envs):
        rows = rings.after(rings.heads.rows[env], np.arange(-rings.count[env], 0))
        begins = np.flatnonzero(rings.age[rows] == 0)
        for begin, end in zip(begins, [*begins[1:], len(rows)], strict=True):
            own = rows[begin:end]
            final = rings.next_obs_at(own[-1:])
            obs = tree.map_tree(lambda here, after: np.concatenate([here, after]), rings.obs_at(own), final)
            yield RecordedEpisode(
                obs=obs,
                action=rings.action[own],
                reward=rings.reward[own],
                terminated=bool(rings.terminated[own[-1]]),
                truncated=bool(rings.truncated[own[-1]]),
                extras={name: column[own] for name, column in rings.extras.items()},
            )


def count_episodes(rings: Rings | None) -> int:
    """Count the episodes that live rows are of, those that began before the oldest row and those that run included."""
    if rings is None:
        return 0
    has_rows = rings.count > 0
    head, count = rings.heads.rows[has_rows], rings.count[has_rows]
    newest, oldest = rings.episode[rings.after(head, -1)], rings.episode[rings.after(head, -count)]
    return int((newest - oldest + 1).sum())
