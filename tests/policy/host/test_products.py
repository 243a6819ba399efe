"""Products of matrices in numpy: right, and made in the parts, the memory and by the threads that their sizes say."""

import numpy as np
import pytest
import torch

from trainkit.policy.host import products
from trainkit.policy.host.products import multiply, spares_packing, turned
from trainkit.policy.host.tape import Array, Tape
from trainkit.threads import libraries


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def turn(x: Array) -> Array:
    """Return the same numbers, which lie in memory as those of the turned matrices would."""
    return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)


def assert_is_product(product: Array, x: Array, y: Array) -> None:
    np.testing.assert_allclose(product, x.astype(np.float64) @ y, rtol=1e-3, atol=2e-4)


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note in how many parts numpy multiplies each time, and let torch have one thread."""
    noted: list[int] = []
    matmul, whole = np.matmul, products.multiply_whole

    def note(x: Array, y: Array, out: Array | None = None) -> Array:
        is_cut = x.ndim > y.ndim or (y.ndim > 2 and y.shape[-3] == 1)
        noted.append(x.shape[-3] if is_cut else 1)
        product: Array = matmul(x, y, out=out)
        return product

    def note_whole(x: Array, y: Array, out: Array | None) -> Array:
        n_before = len(noted)
        product = whole(x, y, out)
        noted[n_before:] = [1]  # and not what `matmul`, which makes stacks, has noted besides
        return product

    monkeypatch.setattr(np, "matmul", note)
    monkeypatch.setattr(products, "multiply_whole", note_whole)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    return noted


CUTS = [  # rows x sums x units, after how many side by side; parts of rows as they lie, and of turned ones
    pytest.param((64, 100, 128), 1, 1, id="small"),
    pytest.param((64, 128, 128), 2, 2, id="halves"),
    pytest.param((2, 64, 128, 128), 2, 2, id="stacked"),
    pytest.param((8, 16, 128, 128), 1, 1, id="small ones stacked"),
    pytest.param((63, 128, 128), 1, 1, id="nothing divides"),
    pytest.param((256, 128, 128), 8, 8, id="eight"),
    pytest.param((3, 256, 256, 256), 32, 1, id="too many of turned ones"),
    pytest.param((256, 512, 512), 1, 1, id="too many"),
]


@pytest.mark.parametrize(("shape", "n_parts", "n_turned"), CUTS)
@pytest.mark.parametrize("is_turned", [False, True])
def test_rows_are_multiplied_in_parts_of_a_million_at_most(
    shape: tuple[int, ...], n_parts: int, n_turned: int, is_turned: bool, parts: list[int]
) -> None:
    *stack, n_rows, n_sums, width = shape
    x, y = numbers(*stack, n_rows, n_sums), numbers(*stack, n_sums, width, seed=1)
    x = turn(x) if is_turned else x
    assert_is_product(multiply(x, y, None), x, y)
    room = np.empty((*stack, n_rows, width), np.float32)
    assert np.shares_memory(multiply(x, y, room), room)
    assert_is_product(room, x, y)
    assert parts == [n_turned if is_turned else n_parts] * 2


def test_they_are_not_where_the_second_matrix_is_turned(parts: list[int]) -> None:
    x, y = numbers(64, 128), numbers(128, 128, seed=1)
    assert_is_product(multiply(x, turn(y), None), x, y)
    assert parts == [1]


@pytest.mark.parametrize("packing_is_spared", [False], indirect=True)
def test_nor_where_each_part_would_be_packed(parts: list[int]) -> None:
    x, y = numbers(64, 128), numbers(128, 128, seed=1)
    assert_is_product(multiply(x, y, None), x, y)
    assert parts == [1]


@pytest.mark.parametrize("n_rows", [64, 256])  # whole or in parts by numpy, and by torch's threads
@pytest.mark.parametrize("n_threads", [1, 2])
def test_stacks_and_shared_matrices_are_multiplied_with_each_other(
    n_rows: int, n_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: n_threads)
    shared, stack = numbers(n_rows, 256), numbers(2, 256, 128, seed=1)
    for x, y in (
        (shared, stack),
        (turn(shared), stack),
        (stack.swapaxes(1, 2), shared.T),
        (stack, numbers(128, n_rows)),
    ):
        for room in (None, np.empty((2, x.shape[-2], y.shape[-1]), np.float32)):
            product = multiply(x, y, room)
            assert room is None or np.shares_memory(product, room)
            assert_is_product(product, x, y)


@pytest.mark.parametrize("shape", [(8, 4), (2, 3, 5), (512, 64), (2, 256, 128), (1, 1)])
def test_turned_matrices_lie_in_order_large_ones_in_kept_memory(shape: tuple[int, ...]) -> None:
    x, tape = numbers(*shape), Tape()
    once = turned(x, tape)
    again = turned(x + 1.0, tape.rewind())
    assert again.flags.c_contiguous
    np.testing.assert_array_equal(again, x.swapaxes(-1, -2) + 1.0)
    assert np.shares_memory(once, again) == (x.size >= 2**15)


def test_openblas_is_known_by_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        def __init__(self, architecture: str | None) -> None:
            if architecture is not None:
                self.architecture = architecture

    for kinds, is_spared in (([], False), (["Haswell"], False), ([None], False), ([None, "SkylakeX"], True)):
        monkeypatch.setattr(products, "libraries", lambda kinds=kinds: [Library(kind) for kind in kinds])
        assert spares_packing.__wrapped__() is is_spared
    assert all(isinstance(getattr(one, "architecture", ""), str) for one in libraries())
