"""Checks of whole arrays of any size and strides."""

import numpy as np
import pytest

from trainkit.core.arrays import any_true, is_finite


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


@pytest.mark.parametrize("size", [1, 10, 1_000])
def test_one_flag_anywhere_is_seen(size: int) -> None:
    for at in (0, size // 2, size - 1):
        flags = np.zeros(2 * size, np.bool_)
        flags[2 * at] = True
        assert any_true(flags)
        assert any_true(flags[::2])
        assert not any_true(flags[1::2])


def test_no_flag_is_none_set() -> None:
    assert not any_true(np.zeros(0, np.bool_))
