"""Segment trees do what an array, a cumulative sum and a linear search do."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from trainkit.buffer import MinTree, SumTree
from trainkit.core.errors import ConfigError

# One leaf, a top alone, one level of blocks below it, two, three; at and next to every border.
SIZES = [1, 2, 3, 16, 17, 1000, 4096, 4097, 5000, 65_535, 65_536, 65_537, 1_000_000, 1_048_577]


def slow_find(masses: NDArray[np.float64], point: float) -> int:
    """Return the first leaf whose cumulative sum exceeds the point, else the last that has mass."""
    exceeds = np.flatnonzero(np.cumsum(masses) > point)
    return int(exceeds[0] if len(exceeds) else np.flatnonzero(masses)[-1])


@st.composite
def writes(draw: st.DrawFn) -> tuple[int, list[tuple[list[int], list[int]]]]:
    """Draw a size and writes of whole masses, which add up exactly; slots repeat."""
    size = draw(st.sampled_from(SIZES) | st.integers(1, 70_000))
    near = st.integers(0, size - 1) | st.integers(max(0, size - 20), size - 1) | st.integers(0, min(20, size - 1))
    pairs = st.lists(st.tuples(near, st.integers(0, 4)), max_size=12)
    return size, [
        ([slot for slot, _ in many], [mass for _, mass in many]) for many in draw(st.lists(pairs, max_size=5))
    ]


@given(writes())
@settings(max_examples=30)
def test_a_sum_tree_is_an_array_with_a_cumulative_sum(case: tuple[int, list[tuple[list[int], list[int]]]]) -> None:
    size, batches = case
    tree, masses = SumTree(size), np.zeros(size)
    for slots, values in batches:
        tree[np.array(slots, np.int64)] = values
        for slot, value in zip(slots, values, strict=True):
            masses[slot] = value
        assert tree.total == masses.sum()
        np.testing.assert_array_equal(tree[slots], masses[slots])
        if masses.any():
            points = np.arange(-0.5, masses.sum() + 1.5, 0.5)[1:]
            np.testing.assert_array_equal(tree.find(points), [slow_find(masses, point) for point in points])


@given(writes())
@settings(max_examples=30)
def test_a_min_tree_is_an_array_with_a_minimum(case: tuple[int, list[tuple[list[int], list[int]]]]) -> None:
    size, batches = case
    tree, masses = MinTree(size), np.full(size, np.inf)
    for slots, values in batches:
        tree[np.array(slots, np.int64)] = values
        for slot, value in zip(slots, values, strict=True):
            masses[slot] = value
        assert tree.min == masses.min()


@pytest.mark.slow
@pytest.mark.timeout(1_200)  # the slow references add up a million numbers each time
@given(writes())
@settings(max_examples=10_000)
def test_trees_are_arrays_in_ten_thousand_programs(case: tuple[int, list[tuple[list[int], list[int]]]]) -> None:
    for check in (test_a_sum_tree_is_an_array_with_a_cumulative_sum, test_a_min_tree_is_an_array_with_a_minimum):
        check.hypothesis.inner_test(case)  # type: ignore[attr-defined]  # hypothesis keeps it there


@pytest.mark.parametrize("size", SIZES)
def test_a_leaf_of_a_full_tree_is_found_between_its_borders(size: int) -> None:
    tree = SumTree(size)
    tree[:] = np.arange(size) % 3 + 1
    leaves = np.arange(0, size, 1 + size // 50_000)
    begins = (np.cumsum(tree[:]) - tree[:])[leaves]
    np.testing.assert_array_equal(tree.find(begins), leaves)
    np.testing.assert_array_equal(tree.find(begins + 0.75), leaves)
    assert tree.total == tree[:].sum()


def test_a_point_on_a_border_belongs_to_the_next_leaf_with_mass() -> None:
    tree = SumTree(5)
    tree[:] = [1.0, 2.0, 0.0, 3.0, 0.0]
    points = [0.0, 0.5, 1.0, 2.5, 3.0, 5.5]
    np.testing.assert_array_equal(tree.find(points), [0, 0, 1, 1, 3, 3])


@pytest.mark.parametrize("size", SIZES)
def test_a_point_at_or_past_the_total_falls_to_the_last_leaf_with_mass(size: int) -> None:
    tree, last = SumTree(size), (size - 1) // 2
    tree[last] = 0.3
    tree[last // 2] = 0.1
    past = [tree.total, np.nextafter(tree.total, np.inf), 2 * tree.total, 1e30]
    np.testing.assert_array_equal(tree.find(past), [last] * len(past))


@pytest.mark.one_of_each
@pytest.mark.parametrize("rarity", [3, 20_000])
@pytest.mark.parametrize("size", SIZES)
def test_a_leaf_of_mass_zero_is_never_found(size: int, rarity: int) -> None:
    rng = np.random.default_rng(size)
    tree = SumTree(size)
    some = rng.permutation(size)[: size // rarity + 1]
    tree[some] = 10.0 ** rng.uniform(-9, 9, len(some))  # round-off everywhere
    borders = np.cumsum(tree[:])
    borders = rng.choice(borders[borders > 0], 2000)
    points = [
        borders,
        np.nextafter(borders, 0),
        np.nextafter(borders, np.inf),
        rng.uniform(0, tree.total, 10_000),
    ]
    assert (tree[tree.find(np.concatenate(points))] > 0).all()
    assert tree.total == pytest.approx(math.fsum(tree[:]), rel=1e-12)


def test_a_border_lost_in_round_off_does_not_lead_to_a_leaf_of_mass_zero() -> None:
    tree = SumTree(70_000)
    small = 0.6 * 2.0**-52  # added to 1.0 it is rounded up
    tree[[0, 16, 17]] = [small, 0.0, 1.0]
    assert (small + 1.0) - 1.0 > small
    assert tree.find(small) == 17


@pytest.mark.parametrize("size", [70_000, 65_536])  # of a short top and a long one
def test_a_million_writes_leave_no_drift_in_the_total(size: int) -> None:
    rng = np.random.default_rng(0)
    tree = SumTree(size)
    for _ in range(250):
        tree[rng.integers(size, size=4000)] = 10.0 ** rng.uniform(-12, 12, 4000)
    tree[:] = 1.0
    assert tree.total == size


@pytest.mark.parametrize("size", [70_000, 65_536])
def test_a_total_is_the_same_to_the_last_bit_whatever_else_is_written_at_once(size: int) -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        leaves, masses, totals = np.arange(16), rng.uniform(0, 1, 16), set()
        for n_others in range(9):
            tree, others = SumTree(size), 16 * np.arange(1, n_others + 1)
            tree.put(np.concatenate([others, leaves]), np.concatenate([np.zeros(n_others), masses]))
            totals.add(tree.total)
        assert len(totals) == 1


@pytest.mark.parametrize("kind", [SumTree, MinTree])
@pytest.mark.parametrize("size", [10, 70_001])
def test_slots_may_be_anything_that_indexes_an_array(kind: type[Any], size: int) -> None:
    masses = np.arange(size) % 5 + 1.0
    mask = masses == 3.0
    for slots, mass in [
        (slice(None), masses),
        (size - 1, 0.5),
        (mask, 7.0),
        (slice(2, 9, 3), 9.0),
        ([], 1.0),
        (np.int64(4), 0.25),
    ]:
        tree, expected = kind(size), np.full(size, 0.0 if kind is SumTree else np.inf)
        tree[slots] = mass
        expected[slots] = mass
        np.testing.assert_array_equal(tree[:], expected)
        assert (tree.total if kind is SumTree else tree.min) == (expected.sum() if kind is SumTree else expected.min())
    with pytest.raises(IndexError):
        kind(size)[size] = 1.0


def test_slots_may_be_of_any_whole_dtype() -> None:
    tree = SumTree(5_000)
    for dtype in (np.uint8, np.int32, np.uint64):
        tree[np.array([3, 200], dtype)] = 2.0
        assert tree.total == 4.0


def test_find_keeps_the_shape_of_its_points() -> None:
    tree = SumTree(5000)
    tree[:] = 1.0
    assert tree.find(4321.5).shape == ()
    assert tree.find(4321.5) == 4321
    np.testing.assert_array_equal(tree.find([[0.5, 1.5], [2.5, 4999.5]]), [[0, 1], [2, 4999]])
    assert tree.find([]).shape == (0,)
    many = np.arange(4999).reshape(-1, 1)  # more than are found at once
    np.testing.assert_array_equal(tree.find(many + 0.5), many)


def test_the_smallest_rises_again_when_its_leaf_does() -> None:
    tree = MinTree(5000)
    assert tree.min == np.inf
    tree[[7, 4999]] = [0.5, 0.25]
    assert tree.min == 0.25
    tree[4999] = 2.0
    assert tree.min == 0.5


def test_a_tree_of_a_million_costs_little_more_than_its_leaves() -> None:
    assert len(SumTree(1_000_000)) == 1_000_000
    assert 8e6 <= SumTree(1_000_000).nbytes <= 8.6e6


@pytest.mark.parametrize("kind", [SumTree, MinTree])
@pytest.mark.parametrize("size", [0, -1, 2.0, True])
def test_a_tree_needs_a_size(kind: type[Any], size: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{kind.__name__}.size must be a whole number >= 1, got {size}$"):
        kind(size)
