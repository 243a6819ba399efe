"""Live objects are described by their classes and the arguments that they keep, whichever wrote them."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import trainkit as tk
from trainkit.core.config import flatten
from trainkit.core.schedules import as_schedule


class Inner:
    def __init__(self, size: int) -> None:
        self.size = size


class Outer:
    def __init__(self, rate: float, inner: Inner, forgotten: int = 3, *rest: int, label: str = "x") -> None:
        self._rate, self.inner, self.label = rate, inner, label


class Named:
    def arguments(self) -> dict[str, Any]:
        return {"alpha": 0.5}


def test_an_object_is_its_class_and_the_arguments_it_keeps_at_any_depth() -> None:
    assert flatten("part", Outer(0.5, Inner(3), label="y")) == {
        "part": "Outer", "part/rate": 0.5, "part/inner": "Inner", "part/inner/size": 3, "part/label": "y",
    }  # fmt: skip
    assert flatten("part", Named()) == {"part": "Named", "part/alpha": 0.5}


def test_slotted_parts_of_trainkit_are_read_too() -> None:
    expected = {"h": "Horizon", "h/n_step": [1, 3], "h/gamma": 0.9, "h/reward": None}
    assert flatten("h", tk.Horizon((1, 3), 0.9)) == expected


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (None, None),
        (True, True),
        (np.float32(0.5), 0.5),
        (np.array([1, 2]), [1, 2]),
        (np.zeros(100, np.float32), "float32[100]"),
        (Path("a"), "a"),
        ((64, (1, 2)), [64, [1, 2]]),
        (tk.schedules.Constant(0.5), 0.5),
        (as_schedule("A", "b", [(0, 1.0), (9, 0.5)], low=0), [[0, 1.0], [9, 0.5]]),
        (Inner, "tests.core.test_config_flat.Inner"),
        (np.mean, "numpy.mean"),
    ],
)
def test_plain_values_schedules_and_functions_are_one_value(value: Any, plain: Any) -> None:
    assert flatten("a", value) == {"a": plain}


def test_a_factory_of_an_optimizer_is_its_path_and_its_options() -> None:
    optimizer = tk.TorchOptimizer(partial(torch.optim.SGD, momentum=0.9), lr=0.25)
    assert flatten("o", optimizer) == {
        "o": "TorchOptimizer", "o/factory": "torch.optim.sgd.SGD", "o/factory/momentum": 0.9, "o/lr": 0.25,
    }  # fmt: skip


def test_a_schedule_that_is_a_function_is_its_name() -> None:
    def decay(step: int) -> float:
        return 1.0

    (own,) = flatten("a", as_schedule("A", "b", decay, low=0)).values()
    assert str(own).endswith("test_a_schedule_that_is_a_function_is_its_name.<locals>.decay")


def test_collections_are_listed_with_the_objects_in_them() -> None:
    assert flatten("a", [1, Inner(2)]) == {"a": [1, "Inner"], "a/1": "Inner", "a/1/size": 2}
    assert flatten("a", {"b": {"c": 1}}) == {"a/b/c": 1}
    assert flatten("", {"b": Inner(1)}) == {"b": "Inner", "b/size": 1}
    assert flatten("a", partial(Inner, size=7)) == {"a": "tests.core.test_config_flat.Inner", "a/size": 7}


def test_an_object_that_contains_itself_or_is_known_is_described_once() -> None:
    inner = Inner(1)
    inner.size = inner  # type: ignore[assignment]  # a cycle
    assert flatten("a", inner) == {"a": "Inner"}
    known = Inner(2)
    assert flatten("a", Outer(0.5, known), known=[known]) == {"a": "Outer", "a/rate": 0.5, "a/label": "x"}
