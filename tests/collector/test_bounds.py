"""An observation outside its bounds is warned of once per run: FAULTS 7."""

import logging
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from trainkit.collector.bounds import BoundsWatch

BOX = gym.spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, np.inf], np.float32))
TREE = gym.spaces.Dict({"a": gym.spaces.Tuple((BOX, gym.spaces.Discrete(3))), "mask": gym.spaces.MultiBinary(2)})


def rows(*numbers: float) -> Any:
    return np.array([[0.0, 1.0], numbers], np.float32)


def messages(watch: BoundsWatch, *looks: Any, caplog: pytest.LogCaptureFixture) -> list[str]:
    with caplog.at_level(logging.WARNING):
        for look in looks:
            watch.look(look)
    return [record.message for record in caplog.records]


def test_the_first_that_is_outside_is_told_with_its_bounds_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    (told,) = messages(BoundsWatch(BOX), *[rows(0.0, -2.0)] * 2_500, caplog=caplog)
    assert told.startswith("observation is -2.0 at index (1,), and the space says [0.0, inf]")


def test_what_is_within_its_bounds_or_on_them_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    assert messages(BoundsWatch(BOX), rows(1.0, 0.0), rows(-1.0, 1e9), caplog=caplog) == []


def test_every_thousandth_look_is_one(caplog: pytest.LogCaptureFixture) -> None:
    watch = BoundsWatch(BOX)
    assert messages(watch, rows(0, 0), *[rows(9, 9)] * 999, caplog=caplog) == []
    assert len(messages(watch, rows(9, 9), caplog=caplog)) == 1


def test_a_leaf_is_named_by_its_path(caplog: pytest.LogCaptureFixture) -> None:
    obs = {"a": (rows(7, 0), np.array([0, 9])), "mask": np.array([[1, 1], [5, 5]])}
    (told,) = messages(BoundsWatch(TREE), obs, caplog=caplog)
    assert told.startswith("observation[a.0] is 7.0 at index (0,)")
