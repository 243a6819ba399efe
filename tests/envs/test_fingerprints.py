"""Fingerprints tell plain attributes apart, leave out everything else, and are bounded."""

import random
from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from trainkit.envs.fingerprints import described, differences, fingerprint


def changed(one: Any, other: Any) -> dict[int, list[str]]:
    """Compare environments whose attribute `x` is one or the other."""
    pair = [fingerprint(SimpleNamespace(y=0, x=value)) for value in (one, other)]
    return differences(pair[:1], pair[1:])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 2),
        (0.0, -0.0),
        (True, 1),
        ("a", "b"),
        (b"a", "a"),
        (None, 3),
        (np.float32(1), np.float64(1)),
        (np.zeros(3), np.array([0.0, 0.0, 1e-300])),
        (np.zeros((2, 3)), np.zeros((3, 2))),
        ([1, [2]], [1, 2]),
        ({"a": [1]}, {"a": [1, 1]}),
        ({1, 2}, {1, 3}),
        (deque([1]), deque([2])),
        (np.random.default_rng(1), np.random.default_rng(2)),
        (random.Random(1), random.Random(2)),
        ([0] * 900, [0] * 1100),  # it grew beyond what is compared
    ],
)
def test_other_values_differ_and_the_same_do_not(one: Any, other: Any) -> None:
    assert changed(one, other) == {0: ["x"]}
    assert changed(one, one) == changed(other, other) == {}


def test_values_that_are_equal_have_equal_digests() -> None:
    assert changed(float("nan"), float("nan")) == {}
    assert changed(np.array([1.5, np.nan]), np.array([1.5, np.nan])) == {}
    assert changed({"one", "two", "three"}, {"three", "two", "one"}) == {}


class Raises(list[int]):
    """Raise wherever it is looked into."""

    @property
    def unwrapped(self) -> Any:
        raise OSError("mine")

    def __iter__(self) -> Any:
        raise OSError("mine")


@pytest.mark.parametrize(
    "value",
    [
        object(),
        Raises([1]),
        [object()],
        {"a": object()},
        None,
        np.zeros(10_000),
        np.array([object()]),
        "a" * 100_000,
        list(range(2_000)),
        {(1, key) for key in range(2_000)},
    ],
)
def test_objects_and_large_values_are_left_out(value: Any) -> None:
    assert fingerprint(SimpleNamespace(x=value)) == {}


def test_a_container_that_holds_itself_is_left_out() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert fingerprint(SimpleNamespace(x=loop)) == {}


def test_generators_seeded_by_resets_and_windows_are_left_out() -> None:
    names = ("_np_random_seed", "render_mode", "screen_width", "window_size", "pygame_ready", "viewer")
    assert fingerprint(SimpleNamespace(**dict.fromkeys(names, 1))) == {}


def test_a_slotted_or_broken_environment_has_an_empty_fingerprint() -> None:
    assert fingerprint(object()) == fingerprint(Raises()) == {}


def test_attributes_are_bounded_in_number() -> None:
    assert len(fingerprint(SimpleNamespace(**{f"x{place}": place for place in range(1_000)}))) == 256


def test_wrappers_are_not_looked_at() -> None:
    assert set(fingerprint(SimpleNamespace(of_wrapper=1, unwrapped=SimpleNamespace(own=1)))) == {"own"}


def test_an_empty_fingerprint_is_unknown_and_not_compared() -> None:
    assert differences([{}, {"x": "1"}, {"x": "1"}], [{"x": "1"}, {}, {"x": "2"}]) == {2: ["x"]}


def test_differences_are_described_by_attribute_and_cut_where_long() -> None:
    assert described({0: ["x"], 1: ["x"], 3: ["x", "y"]}) == "x of env 0, 1; x, y of env 3"
    assert described({index: ["x"] for index in range(10)}, "game") == "x of game 0, 1, 2, 3, 4, 5, 6, 7 and 2 more"
