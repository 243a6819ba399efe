"""The actions of running episodes, which are kept to replay them when a run resumes.

A checkpoint cannot hold an environment: on resume its running episode is replayed by its seed and these actions.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit.core import tree
from trainkit.core.data import Obs
from trainkit.envs.backends import EachOptions, Ids, Options

_MAX_STEPS = 2**16  # vector steps that are kept: a longer replay would take minutes
_MAX_BYTES = 16 * 2**20


class PlayedActions:
    """The actions of the last vector steps in a ring, and where the running episodes began.

    Args:
        n: number of environments.
        keeps: whether episodes can be replayed; if not, nothing is kept.
    """

    def __init__(self, n: int, *, keeps: bool) -> None:
        self._n = n
        self._keeps = keeps
        self._options: list[Options] = [None] * n  # of each running episode's reset
        self._began = np.zeros(n, np.int64)  # [N], the vector step at which it began
        self._n_steps = 0  # vector steps so far
        self._capacity = 0  # T, known with the first action
        self._actions: NDArray[Any]  # [T, N, ...]
        self._took: NDArray[np.bool_]  # [T, N], which environments acted

    def begin(self, env_ids: Ids, options: EachOptions) -> None:
        """Record that episodes [K] begin, with the options of their resets."""
        if not self._keeps:
            return
        self._began[env_ids] = self._n_steps
        for env_id, own in zip(env_ids.tolist(), options, strict=True):
            self._options[env_id] = own

    def add(self, action: NDArray[Any], env_ids: Ids) -> None:
        """Record the actions [K, ...] of one vector step."""
        if not self._keeps:
            return
        if self._capacity == 0:
            row = (self._n, *action.shape[1:])
            self._capacity = max(1, min(_MAX_STEPS, _MAX_BYTES // (action.dtype.itemsize * int(np.prod(row)))))
            self._actions = np.zeros((self._capacity, *row), action.dtype)
            self._took = np.zeros((self._capacity, self._n), np.bool_)
        index = self._n_steps % self._capacity
        if len(env_ids) == self._n:
            self._actions[index], self._took[index] = action, True
        else:
            self._actions[index, env_ids] = action
            self._took[index] = False
            self._took[index, env_ids] = True
        self._n_steps += 1

    def state_dict(self, obs: Obs, in_flight: Ids) -> dict[str, Any] | None:
        """Return the data that replay the running episodes up to `obs` [N, ...], None if they are unknown.

        It is not known if an episode is longer than the ring. The last action of environments in flight is saved apart:
        it has no answer yet.
        """
        first = int(self._began.min())
        is_known = self._keeps and obs is not None and self._n_steps - first <= self._capacity
        if not is_known or not _is_plain(self._options):
            return None
        options = self._options if len(set(map(repr, self._options))) > 1 else self._options[0]
        state = {"options": options, "began": self._began - first, "obs": tree.leaves(obs)}
        if self._n_steps == first:
            return state | {"actions": np.zeros((0, self._n)), "took": np.zeros((0, self._n), np.bool_)}
        steps = np.arange(first, self._n_steps)
        took = self._took[steps % self._capacity] & (steps[:, None] >= self._began)
        actions = self._actions[steps % self._capacity]
        if len(in_flight):
            last = len(steps) - 1 - took[::-1, in_flight].argmax(axis=0)
            state |= {"in_flight": in_flight, "sent": actions[last, in_flight]}
            took[last, in_flight] = False
        actions[~took] = 0
        return state | {"actions": actions, "took": took}


def _is_plain(value: Any) -> bool:
    """Return whether a checkpoint can hold a value."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(child) for key, child in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))
