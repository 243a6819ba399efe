"""Reading observations that a caller gives: arrays of the space's shapes and types, with values that the space has."""

import reprlib
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from trainkit.core import tree
from trainkit.core.data import ArraySpec, Lookup, Obs, is_finite
from trainkit.core.errors import SpaceMismatchError
from trainkit.core.spaces import array_specs, leaf_spaces, space_bounds

_UNREADABLE = (RuntimeError, TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError)
_DISCRETE = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class ObservationReader:
    """Read observations of one space; numbers are never rounded to integers, wrapped or clipped.

    Args:
        space: of one observation, as the policy sees it; None if it is unknown, and nothing can be checked.

    Attributes:
        space: as given.
    """

    def __init__(self, space: Space[Any] | None) -> None:
        self.space = space
        self._specs = None if space is None else array_specs(space)
        self._leaves = leaf_spaces(space)

    def fits(self, obs: Obs) -> bool:
        """Return whether these are rows [K, ...] in the space's types; values are not looked at."""
        return self._specs is None or _fits(self._specs, obs)

    def rows(self, caller: str, obs: Obs) -> Obs:
        """Return K observations as arrays [K, ...].

        Raises:
            SpaceMismatchError: they are one observation, or not of the space.
        """
        if self._specs is None:
            return obs
        rows, is_one = self.read(caller, obs)
        if is_one:
            raise SpaceMismatchError(
                f"{caller} needs K observations [K, ...], got one of shape {_shapes(rows)}: call predict(obs) for one "
                f"observation, or add the axis, obs[None]"
            )
        return rows

    def read(self, caller: str, obs: Any) -> tuple[Obs, bool]:
        """Return one observation, or K of them as [K, ...], as arrays, and whether it was one.

        Raises:
            SpaceMismatchError: keys, shapes, types or values are not those of the space.
        """
        assert self._specs is not None, "callers have a space"
        rule = (
            f"{caller} needs one observation of shape {tree.map_tree(lambda spec: spec.shape, self._specs)}, or K of "
            "them with K in front of each shape"
        )
        try:
            given = tree.map_tree(lambda _, leaf: _array(leaf), self._specs, obs)
        except _UNREADABLE as error:
            raise SpaceMismatchError(f"{rule}, got {reprlib.repr(obs)} ({error}): give it as in the space") from error
        specs = tree.leaves(self._specs)
        arrays = tree.leaves(given)
        if all(array.shape == spec.shape for spec, array in zip(specs, arrays, strict=True)):
            is_one = True
        else:
            is_one, first = False, arrays[0]
            pairs = zip(specs, arrays, strict=True)
            if first.ndim == 0 or any(array.shape != (len(first), *spec.shape) for spec, array in pairs):
                raise SpaceMismatchError(f"{rule}, got {_shapes(given)}: reshape it")
        paths = _paths(self._specs)
        return tree.map_tree(
            lambda path, leaf, array: _checked(caller, path, leaf, array), paths, self._leaves, given
        ), (is_one)


def exact_cast(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Return numbers in another type, floats rounded to shorter ones; None where integers would be other numbers."""
    if array.dtype == dtype:
        return array
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
    return cast if dtype.kind == "f" or bool((cast == array).all()) else None


def _fits(specs: Any, obs: Any) -> bool:
    if isinstance(specs, ArraySpec):
        return (
            isinstance(obs, (np.ndarray, Lookup))
            and obs.dtype == specs.dtype
            and obs.ndim == len(specs.shape) + 1
            and obs.shape[1:] == specs.shape
        )
    if isinstance(specs, dict):
        return (
            isinstance(obs, dict) and obs.keys() == specs.keys() and all(_fits(specs[key], obs[key]) for key in specs)
        )
    return isinstance(obs, tuple) and len(obs) == len(specs) and all(map(_fits, specs, obs))


def _array(leaf: Any) -> NDArray[Any]:
    array = np.asarray(leaf)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"values of type {array.dtype} are no numbers")
    return array


def _checked(caller: str, path: str, space: Space[Any], array: NDArray[Any]) -> NDArray[Any]:
    """Return the array of a leaf in the space's type; raise for a value that the space does not have."""
    if array.dtype.kind == "f" and not is_finite(array):
        raise SpaceMismatchError(f"{caller} needs finite observations, got {reprlib.repr(array)}: correct them")
    name = f"{caller}: observation[{path}]" if path else f"{caller}: the observation"
    dtype = np.dtype(space.dtype)
    cast = exact_cast(array, dtype)
    if cast is None:
        with np.errstate(all="ignore"):
            wrong = array[array.astype(dtype) != array].flat[0]
        remedy = "give it as the environment returns it"
        if isinstance(space, spaces.Box) and dtype == np.uint8:
            remedy += ", images from 0 to 255"
        raise SpaceMismatchError(f"{name} must hold numbers that {dtype} has, got {wrong} ({array.dtype}): {remedy}")
    if dtype.kind == "f" and not is_finite(cast):
        raise SpaceMismatchError(f"{name} has numbers that are too large for {dtype}: correct it")
    if isinstance(space, _DISCRETE):
        low, high = space_bounds(space)
        is_outside = (cast < low) | (cast > high)
        if is_outside.any():
            raise SpaceMismatchError(
                f"{name} must be in {space}, got {cast[is_outside].flat[0]}: give it as the environment returns it"
            )
    return cast


def _paths(specs: Any, path: str = "") -> Any:
    """Return the path of each leaf, in the structure of observations."""
    if isinstance(specs, dict):
        return {key: _paths(child, f"{path}.{key}" if path else key) for key, child in specs.items()}
    if isinstance(specs, tuple):
        return tuple(_paths(child, f"{path}.{at}" if path else str(at)) for at, child in enumerate(specs))
    return path


def _shapes(obs: Obs) -> Any:
    return tree.map_tree(lambda leaf: leaf.shape, obs)
