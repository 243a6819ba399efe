"""Making environments anew that failed: how often, after what pause, and what becomes of the episode they broke off."""

import hashlib
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from trainkit.core import tree
from trainkit.core.data import ActOutput, Obs
from trainkit.core.errors import EnvError
from trainkit.envs.backends import Fingerprint, Ids, Options

_log = logging.getLogger(__name__)

_LONGEST_S = 30.0  # between two attempts


class Restarts:
    """Allow environments to be made anew, each so often in a row, and count.

    Args:
        n_envs: N.
        max_restarts: of one environment in a row; an episode that ends well begins a new row. None: the first error
            is raised.
        delay_s: before the second in a row, doubled for each that follows, 30 s at most; the first is made at once.
        faulty: whether rows of an episode that was broken off are taken back ("drop") or kept ("cut").
    """

    def __init__(
        self,
        n_envs: int,
        max_restarts: int | None = None,
        *,
        delay_s: float = 0.1,
        faulty: Literal["drop", "cut"] = "drop",
    ) -> None:
        self.are_allowed = max_restarts is not None
        self.drops = faulty == "drop"
        self._remade: list[int] = []  # and not told yet
        self._n_failed_resets = 0  # and not told yet
        self._max, self._delay_s = max_restarts or 0, delay_s
        self._in_a_row = np.zeros(n_envs, np.int64)  # [N]

    def take_remade(self) -> list[int]:
        """Return which environments were made anew since this was last asked, each as often as it was."""
        remade, self._remade = self._remade, []
        return remade

    def reset_failed(self, n_resets: int) -> None:
        """Count episodes that could not begin."""
        self._n_failed_resets += n_resets

    def take_failed_resets(self) -> int:
        """Return how many resets failed since this was last called."""
        n_resets, self._n_failed_resets = self._n_failed_resets, 0
        return n_resets

    def forgive(self, env_ids: Iterable[int]) -> None:
        """Hear that episodes ended well."""
        for env_id in env_ids:
            self._in_a_row[env_id] = 0

    def allow(self, env_id: int, error: EnvError) -> None:
        """Wait as long as is due, or raise the error that made one restart too many.

        Raises:
            EnvError: of the same kind, with the same cause.
        """
        in_a_row = int(self._in_a_row[env_id])
        if in_a_row == self._max:
            self._in_a_row[env_id] = 0  # who goes on after the error has all of them again
            raise type(error)(f"{error}; {_why_no_more(in_a_row)}", env_id=env_id) from error.__cause__
        self._in_a_row[env_id] += 1
        self._remade.append(env_id)
        delay_s = 0.0 if in_a_row == 0 else min(self._delay_s * 2.0 ** (in_a_row - 1), _LONGEST_S)
        _log.warning("%s; made anew in %g s, restart %d of %d in a row", error, delay_s, in_a_row + 1, self._max)
        time.sleep(delay_s)


def _why_no_more(in_a_row: int) -> str:
    """Tell why an environment is not made anew once more."""
    if in_a_row == 0:
        return "max_restarts=0 lets no environment be made anew"
    times = "once" if in_a_row == 1 else f"{in_a_row} times in a row"
    return f"it was made anew {times} (max_restarts), and no episode ended in between"


def left(asked: Ids, answered: Ids, obs: Obs, output: ActOutput) -> tuple[Obs, ActOutput]:
    """Return the rows [K] of observations and actions whose environments answered."""
    keep = np.isin(asked, answered)
    extras = {name: column[keep] for name, column in output.extras.items()}
    kept = output._replace(action=output.action[keep], extras=extras)
    return tree.map_tree(lambda leaf: leaf[keep], obs), kept


_MAX_ATTRIBUTES = 256  # per environment
_MAX_VALUES = 1_000  # per attribute, numbers and strings in nested containers; an array counts as one
_MAX_BYTES = 2**16  # per array or string
# Drawing windows differs from machine to machine; `np_random` is seeded by each reset.
_SKIPPED = ("np_random", "render", "screen", "window", "pygame", "viewer")


class _NotPlainError(Exception):
    """A value is neither a number, a string, a small array, a generator, nor a small container of those."""


def fingerprint(env: Any) -> Fingerprint:
    """Return a digest for each plain attribute of an unwrapped environment; anything else is left out.

    None is left out as well: it often stands for an object that is created later.
    """
    try:
        attributes = dict(vars(getattr(env, "unwrapped", env)))
    except Exception:  # noqa: BLE001  # without __dict__, or a property that raises: nothing can be compared
        return {}
    digests: Fingerprint = {}
    for name in sorted(map(str, attributes))[:_MAX_ATTRIBUTES]:
        value = attributes.get(name)
        if value is None or any(part in name for part in _SKIPPED):
            continue
        try:
            digests[name] = _digest(value)
        except Exception:  # noqa: BLE001  # not plain, or an object of the user's that raises when it is read
            continue
    return digests


def differences(saved: Sequence[Fingerprint], own: Sequence[Fingerprint]) -> dict[int, list[str]]:
    """Return the names of attributes that differ, by environment index; an empty fingerprint counts as unknown."""
    changed: dict[int, list[str]] = {}
    for index, (before, now) in enumerate(zip(saved, own, strict=False)):
        names = [name for name in sorted(before.keys() | now.keys()) if before.get(name) != now.get(name)]
        if before and now and names:
            changed[index] = names
    return changed


def described(changed: dict[int, list[str]], kind: str = "env") -> str:
    """Return differences in words, environments with the same attributes together; long lists are cut."""
    groups: dict[str, list[str]] = {}
    for index, names in changed.items():
        groups.setdefault(_listed(names), []).append(str(index))
    return "; ".join(f"{names} of {kind} {_listed(indices)}" for names, indices in groups.items())


def _listed(words: Sequence[str], most: int = 8) -> str:
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more


def _digest(value: Any) -> str:
    hashed = hashlib.blake2b(digest_size=8)
    for n_values, part in enumerate(_parts(value)):
        if n_values == _MAX_VALUES:
            raise _NotPlainError
        hashed.update(part)
    return hashed.hexdigest()


def _parts(value: Any) -> Iterator[bytes]:
    """Yield the bytes of a value's numbers, strings and arrays in order; raise for anything else."""
    if isinstance(value, (bool, int, float, complex, str, bytes, type(None))):
        if isinstance(value, (str, bytes)) and len(value) > _MAX_BYTES:
            raise _NotPlainError
        yield f"{value!r};".encode(errors="surrogatepass")
    elif isinstance(value, (np.ndarray, np.generic)):
        if value.nbytes > _MAX_BYTES or value.dtype.hasobject:
            raise _NotPlainError
        yield f"array {value.dtype} {value.shape};".encode() + value.tobytes()
    elif isinstance(value, dict):
        yield f"{len(value)} items;".encode()
        for key, child in value.items():
            yield from _parts(key)
            yield from _parts(child)
    elif isinstance(value, (list, tuple, deque)):
        yield f"{len(value)} values;".encode()
        for child in value:
            yield from _parts(child)
    elif isinstance(value, (set, frozenset)):  # iterated in the order of hashes, which differs between processes
        if len(value) > _MAX_VALUES:
            raise _NotPlainError
        yield f"set {sorted(map(_digest, value))};".encode()
    elif isinstance(value, np.random.Generator):
        yield from _parts(value.bit_generator.state)
    elif isinstance(value, random.Random):
        yield from _parts(value.getstate())
    else:
        raise _NotPlainError


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
