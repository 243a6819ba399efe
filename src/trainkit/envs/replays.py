"""Episodes that run, to be played again: where each began, and the actions since."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trainkit.core import tree
from trainkit.core.data import Obs
from trainkit.core.errors import EnvError
from trainkit.envs.backends import Ids, Options

if TYPE_CHECKING:
    from trainkit.envs.envs import Envs

_MOST_STEPS = 2**16  # vector steps looked back on: more would take minutes to play again
_MOST_BYTES = 16 * 2**20


class PlayedActions:
    """Keep the actions of the last vector steps in a ring, one write per step; who began where is known."""

    def __init__(self, n: int, *, keeps: bool) -> None:
        self._n = n
        self._keeps = keeps  # whether there is a point in it
        self._options: list[Options] = [None] * n  # of the reset it began with
        self._began = np.zeros(n, np.int64)  # [N], the vector step it began with
        self._n_steps = 0  # vector steps ever
        self._room = 0  # T, known with the first action
        self._actions: NDArray[Any]  # [T, N, ...]
        self._took: NDArray[np.bool_]  # [T, N], who acted

    def begin(self, env_ids: Ids, options: Options) -> None:
        """Note that episodes begin here, with the options of a reset."""
        if not self._keeps:
            return
        self._began[env_ids] = self._n_steps
        for env_id in env_ids.tolist():
            self._options[env_id] = options

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
        """Return how running episodes came to `obs` [N, ...]; None where that is not known.

        So it is where one is longer than what is kept, or began with other options than the rest.
        """
        first = int(self._began.min())
        is_known = self._keeps and obs is not None and self._n_steps - first <= self._room
        options = self._options[0]
        if not is_known or len({repr(other) for other in self._options}) > 1 or not _is_plain(options):
            return None
        state = {"options": options, "began": self._began - first, "obs": tree.leaves(obs)}
        if self._n_steps == first:
            return state | {"actions": np.zeros((0, self._n)), "took": np.zeros((0, self._n), np.bool_)}
        steps = np.arange(first, self._n_steps)
        took = self._took[steps % self._room] & (steps[:, None] >= self._began)
        actions = self._actions[steps % self._room]
        actions[~took] = 0
        return state | {"actions": actions, "took": took}

    def _claim(self, action: NDArray[Any]) -> None:
        row = (self._n, *action.shape[1:])
        n_bytes = action.dtype.itemsize * int(np.prod(row))
        self._room = max(1, min(_MOST_STEPS, _MOST_BYTES // n_bytes))
        self._actions = np.zeros((self._room, *row), action.dtype)
        self._took = np.zeros((self._room, self._n), np.bool_)


def play_again(envs: "Envs", state: dict[str, Any], have_returns: Callable[[NDArray[np.float64]], bool]) -> str | None:
    """Begin the last episodes again by their seeds and act as they did; say why that led elsewhere, None if it did not.

    Where it did, the environments must be reset.

    Args:
        envs: to bring back.
        state: of the environments, which they have taken over.
        have_returns: says whether these are their returns so far [N].
    """
    played = state["played"]
    if played is None:
        return "how the episodes that run came to be is not known"
    began = played["began"]
    returns = np.zeros(envs.n)
    own, envs.options = envs.options, played["options"]

    def begin_those_of(step: int) -> None:
        anew = np.flatnonzero(began == step)
        if step > 0 and len(anew):  # until here they may have been stepped idly
            envs.episodes[anew] -= 1
            envs.begin(anew)

    try:
        envs.episodes -= 1
        envs.reset()
        for step, (action, took) in enumerate(zip(played["actions"], played["took"], strict=True)):
            begin_those_of(step)
            env_ids = np.flatnonzero(took)
            outcome = envs.step(action[env_ids], env_ids)
            returns[outcome.env_ids] += outcome.reward
            for env_id, reward in outcome.late_rewards.items():
                returns[env_id] += reward
        begin_those_of(len(played["actions"]))
    except EnvError as error:
        return f"an episode cannot be played again: {error}"
    finally:
        envs.options = own
        envs.load_state_dict(state)  # episodes and what processors keep are as they were, whatever was played
    pairs = zip(tree.leaves(envs.obs), played["obs"], strict=True)
    if all(_are_same(*pair) for pair in pairs) and have_returns(returns):
        return None
    return "played again by its seed and actions, an episode went elsewhere"


def _is_plain(value: Any) -> bool:
    """Whether a file can hold it."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(child) for key, child in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


def _are_same(one: NDArray[Any], other: NDArray[Any]) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
