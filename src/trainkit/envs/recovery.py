"""Recovery of the running episodes of environments when a run resumes.

A checkpoint cannot hold an environment. On resume its running episode is replayed by its seed and actions
(`PlayedActions`, `play_again`). Anything that earlier episodes left behind, such as an episode counter or the level of
a curriculum, is lost; comparing `fingerprint`s of the attributes saved with those after the replay detects this.
"""

import hashlib
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trainkit.core import tree
from trainkit.core.data import Obs
from trainkit.core.errors import EnvError
from trainkit.envs.backends import Fingerprint, Ids, Options

if TYPE_CHECKING:
    from trainkit.envs.envs import Envs

# ---- replay of running episodes ----

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

    def begin(self, env_ids: Ids, options: Options) -> None:
        """Record that episodes begin, with the options of their reset."""
        if not self._keeps:
            return
        self._began[env_ids] = self._n_steps
        for env_id in env_ids.tolist():
            self._options[env_id] = options

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

        It is not known if an episode is longer than the ring, or began with other options than the others. The last
        action of environments in flight is saved apart: it has no answer yet.
        """
        first = int(self._began.min())
        is_known = self._keeps and obs is not None and self._n_steps - first <= self._capacity
        options = self._options[0]
        if not is_known or len({repr(other) for other in self._options}) > 1 or not _is_plain(options):
            return None
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


def play_again(envs: "Envs", state: dict[str, Any], have_returns: Callable[[NDArray[np.float64]], bool]) -> str | None:
    """Replay running episodes from their seeds and actions; return None, or why they could not be restored.

    Where it did not, the environments must be reset.

    Args:
        envs: whose state is to be restored.
        state: of the environments, which they have loaded.
        have_returns: whether these are the returns so far [N] that were saved.
    """
    played = state["played"]
    if played is None:
        return "the actions of the running episodes are not known"
    began = played["began"]
    returns = np.zeros(envs.n)
    own_options, envs.options = envs.options, played["options"]

    def step(action: NDArray[Any], env_ids: Ids) -> None:
        outcome = envs.step(action, env_ids)
        returns[outcome.env_ids] += outcome.reward
        for env_id, reward in outcome.late_rewards.items():
            returns[env_id] += reward

    def begin_at(step: int) -> None:
        env_ids = np.flatnonzero(began == step)
        if step > 0 and len(env_ids):  # their earlier steps belong to no saved episode
            envs.episodes[env_ids] -= 1
            envs.begin(env_ids)

    try:
        envs.episodes[:] -= 1
        envs.reset()
        for index, (action, took) in enumerate(zip(played["actions"], played["took"], strict=True)):
            begin_at(index)
            step(action[took], np.flatnonzero(took))
            while len(envs.in_flight):
                step(action[:0], envs.all_ids[:0])
        begin_at(len(played["actions"]))
        if "in_flight" in played:
            envs.send_again(played["sent"], played["in_flight"])
    except EnvError as error:
        return f"an episode cannot be replayed: {error}"
    finally:
        envs.options = own_options
        envs.load_state_dict(state)  # the replay changed episode numbers and the processors' state
        envs.take_metrics()  # which were logged when the episodes were played first
    pairs = zip(tree.leaves(envs.obs), played["obs"], strict=True)
    if all(_are_identical(*pair) for pair in pairs) and have_returns(returns):
        return None
    return "replayed by its seed and actions, an episode differs"


def _is_plain(value: Any) -> bool:
    """Return whether a checkpoint can hold a value."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(child) for key, child in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


def _are_identical(one: NDArray[Any], other: NDArray[Any]) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


# ---- fingerprints of attributes ----

_MAX_ATTRIBUTES = 256  # per environment
_MAX_VALUES = 1_000  # per attribute, numbers and strings in nested containers; an array counts as one
_MAX_VALUE_BYTES = 2**16  # per array or string
# How windows are drawn differs from machine to machine; `np_random` is seeded by each reset.
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


def in_words(changed: dict[int, list[str]], kind: str = "env") -> str:
    """Describe differences, grouping environments with the same attributes; long lists are cut."""
    groups: dict[str, list[str]] = {}
    for index, names in changed.items():
        groups.setdefault(_joined(names), []).append(str(index))
    return "; ".join(f"{names} of {kind} {_joined(indices)}" for names, indices in groups.items())


def _joined(words: Sequence[str], most: int = 8) -> str:
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
        if isinstance(value, (str, bytes)) and len(value) > _MAX_VALUE_BYTES:
            raise _NotPlainError
        yield f"{value!r};".encode(errors="surrogatepass")
    elif isinstance(value, (np.ndarray, np.generic)):
        if value.nbytes > _MAX_VALUE_BYTES or value.dtype.hasobject:
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
