"""Kernels: products in the parts that their sizes call for, and a relu's backward pass bit by bit."""

import types
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from trainkit.extensions.numpy_engine import kernels

Array = NDArray[Any]


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def transposed(x: Array) -> Array:
    """Return the same numbers, which lie in memory as those of the transposed matrices would."""
    return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)


def multiplied(x: Array, y: Array) -> tuple[Array, int]:
    """Return what a kernel computes, and in how many parts."""
    out = np.full((*x.shape[:-1], y.shape[-1]), np.nan, np.float32)
    kernel = kernels.product if x.ndim == 2 else kernels.stacked_product
    ((function, arguments),) = kernel(out, x, y)
    function(*arguments)
    is_cut = function is np.matmul and arguments[0].ndim > x.ndim
    return out, arguments[0].shape[x.ndim - 2] if is_cut else 1


CUTS = [  # rows x sums x units, after the number of stacked ones; parts of rows in order, and of transposed ones
    pytest.param((64, 100, 128), 1, 1, id="small"),
    pytest.param((64, 128, 128), 2, 2, id="halves"),
    pytest.param((2, 64, 128, 128), 2, 2, id="stacked"),
    pytest.param((8, 16, 128, 128), 1, 1, id="small ones stacked"),
    pytest.param((63, 128, 128), 1, 1, id="nothing divides"),
    pytest.param((256, 128, 128), 8, 8, id="eight"),
    pytest.param((3, 256, 256, 256), 32, 1, id="too many of transposed ones"),
    pytest.param((256, 512, 512), 1, 1, id="too many"),
    pytest.param((32, 2048, 128), 1, 1, id="too large to be read for each part"),
    pytest.param((64, 1, 128), 1, 1, id="one sum"),
    pytest.param((2, 64, 1, 128), 1, 1, id="one sum, stacked"),
]


@pytest.mark.one_of_each
@pytest.mark.parametrize("is_spared", [True, False], ids=["packing spared", "packed"])
@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize(("shape", "n_parts", "n_transposed"), CUTS)
def test_rows_are_multiplied_in_parts_of_a_million_at_most(
    shape: tuple[int, ...],
    n_parts: int,
    n_transposed: int,
    is_transposed: bool,
    is_spared: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernels, "spares_packing", lambda: is_spared)
    *stack, n_rows, n_sums, width = shape
    x, y = normal(*stack, n_rows, n_sums), normal(*stack, n_sums, width, seed=1)
    x = transposed(x) if is_transposed else x
    product, n = multiplied(x, y)
    np.testing.assert_allclose(product, x.astype(np.float64) @ y, rtol=1e-3, atol=2e-4)
    assert n == ((n_transposed if is_transposed else n_parts) if is_spared else 1)
    product, n = multiplied(x, transposed(y))
    np.testing.assert_allclose(product, x.astype(np.float64) @ y, rtol=1e-3, atol=2e-4)
    assert n == 1 or 1 in (n_sums, width)


def test_openblas_is_known_by_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    for kinds, is_spared in (([], False), (["Haswell"], False), ([None], False), ([None, "SkylakeX"], True)):
        found = [types.SimpleNamespace(**({} if kind is None else {"architecture": kind})) for kind in kinds]
        monkeypatch.setattr(kernels, "blas_libraries", lambda found=found: found)
        assert kernels.spares_packing.__wrapped__() is is_spared
    assert all(isinstance(getattr(one, "architecture", ""), str) for one in kernels.blas_libraries())


@pytest.mark.parametrize("shape", [(8, 9), (2, 8, 9)])
def test_a_relu_lets_a_gradient_through_where_it_let_a_number_through(shape: tuple[int, ...]) -> None:
    numbers = [-np.inf, -1.0, -1e-45, -0.0, 0.0, 1e-45, 1e-38, 1.0, np.inf]
    gradients = [-np.inf, -3.0, -1e-45, -0.0, 0.0, 1e-45, 0.1, np.inf]
    x = np.resize(np.array(numbers, np.float32), shape)
    grad = np.resize(np.repeat(np.array(gradients, np.float32), 9), shape)
    y, out = np.empty_like(x), np.empty_like(x)
    for calls in (
        kernels.relu(y, x, np.zeros_like(x)),
        kernels.relu_backward(out, grad, y, np.ones(shape, np.int32)),
    ):
        for function, arguments in calls:
            function(*arguments)
    np.testing.assert_array_equal(y, np.maximum(x, np.float32(0.0)))
    np.testing.assert_array_equal(out, np.where(x > 0.0, grad, np.float32(0.0)))
