"""One pass tells finite arrays from others, whatever their sizes."""

import numpy as np
import pytest

from trainkit.finite import is_finite


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_bad_number_anywhere_is_seen(dtype: type, bad: float) -> None:
    for at in range(6):
        array = np.zeros((3, 2), dtype)
        array.flat[at] = bad
        assert not is_finite(array)
        assert not is_finite(array.T)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numbers_whose_squares_overflow_are_finite(dtype: type) -> None:
    assert is_finite(np.full(4, np.finfo(dtype).max, dtype))


def test_nothing_is_finite() -> None:
    assert is_finite(np.zeros((0, 3)))
