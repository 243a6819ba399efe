"""Whether numbers are finite, asked of every array that comes from outside."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray


def is_finite(array: NDArray[Any]) -> bool:
    """Say whether there is no nan or infinity: a sum of squares tells it in one pass, when it does not overflow."""
    return math.isfinite(np.vdot(array, array)) or bool(np.isfinite(array).all())
