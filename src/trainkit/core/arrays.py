"""Checks of whole arrays that run in every step, and comparisons of rows; bools are compared as bytes of 0 and 1."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def is_finite(array: NDArray[Any]) -> bool:
    """Return whether an array has no nan or infinity."""
    return 0 not in np.isfinite(array).tobytes()


def all_true(flags: NDArray[np.bool_]) -> bool:
    """Return whether all flags are set."""
    return 0 not in flags.tobytes()


def any_true(flags: NDArray[np.bool_]) -> bool:
    """Return whether any flag is set."""
    return 1 in flags.tobytes()


_SMALL = 4096  # bytes up to which two arrays are compared as bytes


def is_equal(own: NDArray[Any], given: NDArray[Any]) -> bool:
    """Return whether two arrays [K, ...] have the same values, bit by bit where small; `given` is cast to `own`'s type.

    False is preliminary: `equal_rows` knows that nan is nan and 0.0 is -0.0.
    """
    cast = np.asarray(given, own.dtype)
    if own.nbytes <= _SMALL:
        return own.tobytes() == cast.tobytes()
    return bool((own == cast).all())


def equal_rows(own: NDArray[Any], given: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which rows [K] of two arrays [K, ...] have the same values, nan included; `given` is cast as above."""
    cast = np.asarray(given, own.dtype)
    same = own == cast
    if own.dtype.kind in "fcmM":
        same |= (own != own) & (cast != cast)
    equal: NDArray[np.bool_] = same.reshape(len(own), int(np.prod(own.shape[1:]))).all(axis=1)
    return equal
