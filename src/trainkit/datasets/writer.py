"""Episodes that run: vector steps on their way to whole episodes, environment by environment."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit.core import tree
from trainkit.core.arrays import any_true
from trainkit.core.data import ArraySpec, RecordedEpisode, Transition
from trainkit.core.spaces import array_specs
from trainkit.datasets.format import Header

_ROOM = 128  # vector steps to begin with


class OpenEpisodes:
    """Gather the steps of N environments; `add` and `cut` return the episodes that thereby ended.

    A vector step is one row of every column, written at once; an environment that takes no part in it leaves a gap
    there, which its episode skips.

    Args:
        header: of the dataset that the episodes go into.
        n_envs: N.
        begun: environments in the middle of an episode, of which nothing is kept until the next begins.
    """

    def __init__(self, header: Header, n_envs: int, begun: NDArray[np.intp]) -> None:
        self._n_envs, self._room = n_envs, _ROOM
        self._obs_specs: list[ArraySpec] = tree.leaves(array_specs(header.observation_space, header.stack))
        # [room + 1, N, ...]: an observation per step and the newest after it
        self._obs = tree.map_tree(self._column, array_specs(header.observation_space))
        self._action = self._column(array_specs(header.action_space))
        self._reward = np.zeros((self._room + 1, n_envs), np.float64)
        self._extras = {name: self._column(spec) for name, spec in header.extras.items()}
        self._gaps = np.zeros((self._room + 1, n_envs), np.bool_)  # who takes no part in a row
        self._now = 0  # the row of the next vector step
        self._first = np.zeros(n_envs, np.int64)  # [N], the open episode has no row before this one
        self._waiting = set(begun.tolist())  # environments, for their next episode to begin

    def add(self, step: Transition) -> list[RecordedEpisode]:
        """Take K steps in and return the episodes they ended."""
        if self._waiting:
            kept = np.array([env not in self._waiting for env in step.env_ids.tolist()], np.bool_)
            self._waiting.difference_update(step.env_ids[step.terminated | step.truncated].tolist())
            step = step.at(kept)
        if self._now == self._room:
            self._make_room()
        envs = step.env_ids
        here: Any = self._now
        after: Any = self._now + 1
        if len(envs) < self._n_envs:
            self._gaps[here] = True
            here, after = (here, envs), (after, envs)
            self._gaps[here] = False
        given = zip(tree.leaves(step.obs), tree.leaves(step.next_obs), strict=True)
        for column, spec, (obs, next_obs) in zip(tree.leaves(self._obs), self._obs_specs, given, strict=True):
            column[here] = obs[:, -1] if spec.stack > 1 else obs
            column[after] = next_obs[:, -1] if spec.stack > 1 else next_obs
        self._action[here] = step.action
        self._reward[here] = step.reward
        for name, column in self._extras.items():
            column[here] = step.extras[name]
        self._now += 1
        ended = step.terminated | step.truncated
        if not any_true(ended):
            return []
        flags = zip(envs[ended], step.terminated[ended], step.truncated[ended], strict=True)
        return [self._take(env, bool(terminated), bool(truncated)) for env, terminated, truncated in flags]

    def cut(self, env_ids: NDArray[np.intp]) -> list[RecordedEpisode]:
        """End the open episodes here without a flag, and return them; the next step begins one."""
        self._waiting.difference_update(env_ids.tolist())
        return [
            self._take(env, False, False) for env in env_ids if not self._gaps[self._first[env] : self._now, env].all()
        ]

    def drop(self, env_ids: NDArray[np.intp]) -> None:
        """Forget the open episodes of these environments; the next step begins one."""
        self._waiting.difference_update(env_ids.tolist())
        self._first[env_ids] = self._now

    def _take(self, env: int, terminated: bool, truncated: bool) -> RecordedEpisode:
        """Return an environment's episode: of columns that are written once as they lie here, of others copies."""
        first, now = int(self._first[env]), self._now
        gaps = self._gaps[first:now, env]
        rows: Any = slice(first, now)
        with_last: Any = slice(first, now + 1)
        if any_true(gaps):
            rows = first + np.flatnonzero(~gaps)
            with_last = np.append(rows, rows[-1] + 1)
        self._first[env] = now
        return RecordedEpisode(
            obs=tree.map_tree(lambda column: column[with_last, env].copy(), self._obs),
            action=self._action[rows, env],
            reward=self._reward[rows, env],
            terminated=terminated,
            truncated=truncated,
            extras={name: column[rows, env] for name, column in self._extras.items()},
        )

    def _column(self, spec: ArraySpec) -> NDArray[Any]:
        return np.zeros((self._room + 1, self._n_envs, *spec.shape), spec.dtype)

    def _make_room(self) -> None:
        """Move the open episodes to the front, into twice the room where they fill most of it; rare either way."""
        is_open = ~self._gaps[: self._now] & (np.arange(self._now)[:, None] >= self._first)  # [room, N]
        n_kept = self._now - int(np.append(is_open.any(axis=1), True).argmax())
        if n_kept > 3 * self._room // 4:
            self._room *= 2

        def moved(column: NDArray[Any]) -> NDArray[Any]:
            new = np.zeros((self._room + 1, *column.shape[1:]), column.dtype)
            new[: n_kept + 1] = column[self._now - n_kept : self._now + 1]
            return new

        self._obs = tree.map_tree(moved, self._obs)
        self._action, self._reward, self._gaps = moved(self._action), moved(self._reward), moved(self._gaps)
        self._extras = {name: moved(column) for name, column in self._extras.items()}
        self._first = np.maximum(self._first - (self._now - n_kept), 0)
        self._now = n_kept
