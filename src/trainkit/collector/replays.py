"""Episodes that run, to be played again: the seeds they began with and the actions since."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trainkit import tree
from trainkit.collector.backends import Ids
from trainkit.data import Obs
from trainkit.errors import EnvError

if TYPE_CHECKING:
    from trainkit.collector.envs import Envs

_MOST_STEPS = 2**16  # vector steps looked back on: more would take minutes to play again
_MOST_BYTES = 16 * 2**20


class PlayedActions:
    """Keep the actions of the last vector steps in a ring, one write per step; who began where is known."""

    def __init__(self, n: int, *, keeps: bool) -> None:
        self._n = n
        self._keeps = keeps  # whether there is a point in it
        self._seeds = [0] * n  # of the episode that runs
        self._began = np.zeros(n, np.int64)  # [N], the vector step it began with
        self._n_steps = 0  # vector steps ever
        self._room = 0  # T, known with the first action
        self._actions: NDArray[Any]  # [T, N, ...]
        self._took: NDArray[np.bool_]  # [T, N], who acted

    def begin(self, env_ids: Ids, seeds: Sequence[int]) -> None:
        """Note that episodes begin here."""
        self._began[env_ids] = self._n_steps
        for env_id, seed in zip(env_ids.tolist(), seeds, strict=True):
            self._seeds[env_id] = seed

    def add(self, action: NDArray[Any], env_ids: Ids) -> None:
        """Note one vector step's actions [K, ...]."""
        if not self._keeps:
            return
        if self._room == 0:
            self._claim(action)
        at = self._n_steps % self._room
        if len(env_ids) == self._n:
            self._actions[at] = action
            self._took[at] = True
        else:
            self._actions[at, env_ids] = action
            self._took[at] = False
            self._took[at, env_ids] = True
        self._n_steps += 1

    def state_dict(self, obs: Obs) -> dict[str, Any] | None:
        """Return how running episodes came to `obs` [N, ...]; None where one is longer than what is kept."""
        first = int(self._began.min())
        if not self._keeps or obs is None or self._n_steps - first > self._room:
            return None
        state = {"seeds": list(self._seeds), "began": self._began - first, "obs": tree.leaves(obs)}
        if self._n_steps == first:
            return state | {"actions": np.zeros((0, self._n)), "took": np.zeros((0, self._n), np.bool_)}
        kept = np.arange(first, self._n_steps) % self._room
        return state | {"actions": self._actions[kept], "took": self._took[kept]}

    def _claim(self, action: NDArray[Any]) -> None:
        row = (self._n, *action.shape[1:])
        n_bytes = action.dtype.itemsize * int(np.prod(row))
        self._room = max(1, min(_MOST_STEPS, _MOST_BYTES // n_bytes))
        self._actions = np.zeros((self._room, *row), action.dtype)
        self._took = np.zeros((self._room, self._n), np.bool_)


def play_again(envs: "Envs", played: dict[str, Any]) -> NDArray[np.float64] | None:
    """Begin episodes by their seeds, act as they did, and return their returns so far [N].

    None where that leads elsewhere than it did: then the environments must be reset.
    """
    seeds, began = np.array(played["seeds"], np.int64), played["began"]
    returns = np.zeros(envs.n)

    def begin_those_of(step: int) -> None:
        anew = np.flatnonzero(began == step)
        if step > 0 and len(anew):  # until here they may have been stepped idly
            envs.begin(anew, seeds=seeds[anew].tolist())

    try:
        envs.reset(seeds=seeds.tolist())
        for step, (action, took) in enumerate(zip(played["actions"], played["took"], strict=True)):
            begin_those_of(step)
            env_ids = np.flatnonzero(took & (began <= step))
            returns[env_ids] += envs.step(action[env_ids], env_ids).reward
        begin_those_of(len(played["actions"]))
    except EnvError:
        return None
    pairs = zip(tree.leaves(envs.obs), played["obs"], strict=True)
    return returns if all(_are_same(*pair) for pair in pairs) else None


def _are_same(one: NDArray[Any], other: NDArray[Any]) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
