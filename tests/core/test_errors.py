"""Errors say what is wrong, all of it, and are of the built-in kind too."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from trainkit.core import errors
from trainkit.core.errors import Checks, ConfigError, TrainkitError, reject_unknown

KINDS = {
    "ConfigError": ValueError,
    "SpaceMismatchError": ConfigError,
    "MissingExtraError": (ConfigError, ImportError),
    "EnvError": RuntimeError,
    "BadEnvDataError": (errors.EnvError, ValueError),
    "NoLegalActionError": errors.EnvError,
    "EmptyBufferError": LookupError,
    "MissingRowError": IndexError,
    "PriorityError": ValueError,
    "DivergedError": ArithmeticError,
    "CheckpointError": RuntimeError,
    "DeviceError": RuntimeError,
    "RankError": RuntimeError,
    "BusyError": RuntimeError,
}


def test_every_error_is_one_of_ours_and_of_the_built_in_kind() -> None:
    found = {
        name: kind for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, TrainkitError)
    }
    assert found.keys() == KINDS.keys() | {"TrainkitError"}
    for name, bases in KINDS.items():
        for base in bases if isinstance(bases, tuple) else (bases,):
            assert issubclass(found[name], base)


def test_the_tree_drawn_at_the_top_names_every_error() -> None:
    drawn = str(errors.__doc__)
    assert [name for name in KINDS if name not in drawn] == []


def problems(check: Callable[[Checks], object], error: type[Exception] = ConfigError) -> list[str]:
    """Return the lines of the error of a `Checks` block."""

    def block() -> None:
        with Checks("Thing", errors.SpaceMismatchError) as checks:
            check(checks)

    with pytest.raises(error) as caught:
        block()
    return str(caught.value).splitlines()


def test_all_problems_of_an_object_are_raised_at_once() -> None:
    def check(checks: Checks) -> None:
        assert not checks.integer("size", 0, low=1)
        assert checks.integer("depth", 3, low=1)
        assert not checks.number("rate", -1, low=0, high=1)
        assert not checks.require(False, " needs a hat, got none")

    assert problems(check) == [
        "Thing.size must be a whole number >= 1, got 0",
        "Thing.rate must be in [0, 1], got -1",
        "Thing needs a hat, got none",
    ]


def test_no_problem_raises_nothing() -> None:
    with Checks("Thing") as checks:
        assert checks.require(True, " is fine")


def test_a_more_special_error_may_be_requested() -> None:
    assert problems(lambda checks: checks.require(False, " is odd"), errors.SpaceMismatchError) == ["Thing is odd"]


def test_problems_that_a_block_raises_are_gathered() -> None:
    def check(checks: Checks) -> None:
        checks.require(False, " needs a hat")
        with checks.gather():
            raise ConfigError("no dog")
        checks.require(False, " needs a cat")

    assert problems(check) == ["Thing needs a hat", "no dog", "Thing needs a cat"]


def test_an_error_of_another_kind_ends_the_block_at_once() -> None:
    def check(checks: Checks) -> None:
        checks.require(False, " needs a hat")
        raise KeyError("key")

    assert problems(check, KeyError) == ["'key'"]


def test_a_block_may_stop_at_the_first_problems() -> None:
    def check(checks: Checks) -> None:
        checks.require(False, " needs a hat")
        checks.done()
        raise AssertionError

    assert problems(check) == ["Thing needs a hat"]


@pytest.mark.parametrize("value", [1, 5, np.int32(3), np.uint8(1)])
def test_whole_numbers_pass(value: Any) -> None:
    assert Checks("Thing").integer("size", value, low=1)


@pytest.mark.parametrize("value", [0, True, False, 1.0, "1", None, np.float64(2), np.bool_(True), [1]])
def test_what_is_no_whole_number_or_too_low_does_not(value: Any) -> None:
    checks = Checks("Thing")
    assert not checks.integer("size", value, low=1)
    assert checks.problems == [f"Thing.size must be a whole number >= 1, got {value!r}"]


def test_a_whole_number_may_have_no_lower_bound() -> None:
    checks = Checks("Thing")
    assert checks.integer("size", -7)
    checks.integer("size", 0.5)
    assert checks.problems == ["Thing.size must be a whole number, got 0.5"]


@pytest.mark.parametrize("value", [0, 0.0, 1, 0.5, np.float32(1), np.int64(0)])
def test_numbers_in_a_closed_range_pass_with_its_ends(value: Any) -> None:
    assert Checks("Thing").number("rate", value, low=0, high=1)


@pytest.mark.parametrize("value", [-0.01, 1.01, float("nan"), float("inf"), True, "0.5", None, 1j])
def test_what_is_no_finite_number_in_the_range_does_not(value: Any) -> None:
    checks = Checks("Thing")
    assert not checks.number("rate", value, low=0, high=1)
    remedy = ", a str: give a number" if value == "0.5" else ""
    assert checks.problems == [f"Thing.rate must be in [0, 1], got {value!r}{remedy}"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_number_without_bounds_is_finite(value: float) -> None:
    assert not Checks("Thing").number("rate", value)


@pytest.mark.parametrize(
    ("options", "written"),
    [
        ({}, "(-inf, inf)"),
        ({"low": 0}, "[0, inf)"),
        ({"low": 0, "above_low": True}, "(0, inf)"),
        ({"high": 2.5}, "(-inf, 2.5]"),
        ({"low": 0, "high": 1, "above_low": True}, "(0, 1]"),
    ],
)
def test_a_range_is_written_as_it_is_meant(options: dict[str, Any], written: str) -> None:
    checks = Checks("Thing")
    checks.number("rate", "x", **options)
    assert checks.problems == [f"Thing.rate must be in {written}, got 'x', a str: give a number"]
    if options.get("above_low"):
        assert not checks.number("rate", 0, **options)


def test_none_passes_where_an_option_is_optional() -> None:
    checks = Checks("Thing")
    assert not checks.integer("size", None)
    assert not checks.number("rate", None)
    assert not checks.flag("quick", None)
    assert checks.integer("size", None, optional=True)
    assert checks.number("rate", None, optional=True)
    assert checks.flag("quick", None, optional=True)
    assert not checks.integer("size", 0.5, optional=True)


def test_one_of_a_few_words_with_the_nearest() -> None:
    checks = Checks("Thing")
    assert checks.one_of("mode", "fast", ["fast", "slow"])
    checks.one_of("mode", "slwo", ["fast", "slow"])
    checks.one_of("mode", 3, ["fast", "slow"])
    assert checks.problems == [
        "Thing.mode must be one of ['fast', 'slow'], got 'slwo', did you mean 'slow'?",
        "Thing.mode must be one of ['fast', 'slow'], got 3",
    ]


def test_unknown_options_are_rejected_with_the_nearest_known() -> None:
    reject_unknown("dqn", {"lr": 1, "gamma": 2}, {"lr", "gamma", "alpha"})
    with pytest.raises(ConfigError) as caught:
        reject_unknown("dqn", {"lr": 1, "gama": 2, "zzz": 3}, {"lr", "gamma", "alpha"})
    assert str(caught.value) == "dqn: unknown option 'gama', did you mean 'gamma'?\ndqn: unknown option 'zzz'"
