"""An observation outside its bounds is warned of once per run: FAULTS 7."""

import logging
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from tests.helpers.doubles import Still
from trainkit.collector import Collector
from trainkit.core.errors import BadEnvDataError
from trainkit.envs import check_env, make_envs
from trainkit.envs.backends import ListInfos
from trainkit.envs.validation import StepValidator

BOX = gym.spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, np.inf], np.float32))
TREE = gym.spaces.Dict({"a": gym.spaces.Tuple((BOX, gym.spaces.Discrete(3))), "mask": gym.spaces.MultiBinary(2)})


def rows(*numbers: float) -> Any:
    return np.array([[0.0, 1.0], numbers], np.float32)


def validator(space: gym.Space[Any]) -> StepValidator:
    return StepValidator(space, gym.spaces.Discrete(2))


def messages(own: StepValidator, *observations: Any, caplog: pytest.LogCaptureFixture) -> list[str]:
    with caplog.at_level(logging.WARNING):
        for obs in observations:
            own.frames(obs, ListInfos([{}, {}]), np.arange(2), str)
    return [record.message for record in caplog.records]


def test_the_first_that_is_outside_is_told_with_its_bounds_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    (told,) = messages(validator(BOX), *[rows(0.0, -2.0)] * 2_500, caplog=caplog)
    assert told.startswith("observation is -2.0 at index (1,), and the space says [0.0, inf]")


def test_what_is_within_its_bounds_or_on_them_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    assert messages(validator(BOX), rows(1.0, 0.0), rows(-1.0, 1e9), caplog=caplog) == []


def test_every_thousandth_look_is_one(caplog: pytest.LogCaptureFixture) -> None:
    box = validator(BOX)
    assert messages(box, rows(0, 0), *[rows(9, 9)] * 999, caplog=caplog) == []
    assert len(messages(box, rows(9, 9), caplog=caplog)) == 1


def test_a_leaf_is_named_by_its_path(caplog: pytest.LogCaptureFixture) -> None:
    obs = {"a": (rows(7, 0), np.array([0, 2])), "mask": np.array([[1, 1], [5, 5]])}
    (told,) = messages(validator(TREE), obs, caplog=caplog)
    assert told.startswith("observation[a.0] is 7.0 at index (0,)")


# ---- Discrete observations ----

DISCRETE = {
    "Discrete": (gym.spaces.Discrete(4, start=2), [2, 5], [1, 6]),
    "MultiDiscrete": (gym.spaces.MultiDiscrete([3, 2]), [[0, 0], [2, 1]], [[0, 2], [3, 0], [-1, 0]]),
}


class Given(gym.Env[Any, Any]):
    """Give observations from a list, one for each reset and step."""

    def __init__(self, space: gym.Space[Any], given: list[Any]) -> None:
        self.observation_space, self.action_space = space, gym.spaces.Discrete(2)
        self.given = list(given)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self.given.pop(0), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.given.pop(0), 0.0, False, False, {}


@pytest.mark.parametrize("wrap", ["bare", "dict", "tuple"])
@pytest.mark.parametrize("kind", DISCRETE)
def test_a_discrete_observation_out_of_range_is_told_with_its_environment(kind: str, wrap: str) -> None:
    space, inside, outside = DISCRETE[kind]
    box = gym.spaces.Box(0, 1, (1,), np.float32)
    wrapped: dict[str, tuple[gym.Space[Any], Any, str]] = {
        "bare": (space, lambda value: value, "observation"),
        "dict": (gym.spaces.Dict(a=space, b=box), lambda value: {"a": value, "b": [0.5]}, r"observation\[.*a.*\]"),
        "tuple": (gym.spaces.Tuple([box, space]), lambda value: ([0.5], value), r"observation\[.*1.*\]"),
    }
    spaces, as_given, name = wrapped[wrap]
    good = [as_given(np.asarray(value)) for value in inside]
    for value in outside:
        bad = as_given(np.asarray(value))
        for before, when in (([], "episode 0 step 0,"), (good, r"episode 0 step 2 \(action 0\)")):
            envs = make_envs([partial(Given, spaces, good * 2), partial(Given, spaces, [*before, bad])])
            with pytest.raises(BadEnvDataError, match=rf"^env 1: returned {name} outside {kind}.*: -?\d+.*, at {when}"):
                Collector(Still(), envs).collect(n_step=6)
        (finding, *_) = check_env(Given(spaces, [good[0], bad] * 2), n_steps=1)
        assert finding.level == "error"
        assert f"is outside {kind}" in finding.what
