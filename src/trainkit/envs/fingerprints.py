"""Fingerprints of environments: digests of their attributes, which show what a replay does not restore."""

import hashlib
import random
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from trainkit.envs.backends import Fingerprint

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
