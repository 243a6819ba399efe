"""Data of environments match their spaces, API and bounds, or are rejected."""

import logging
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
import torch

from tests.helpers.doubles import Still
from trainkit.collector import Collector
from trainkit.core.errors import BadEnvDataError
from trainkit.envs import check_env, make_envs
from trainkit.envs.backends import ListInfos
from trainkit.envs.validation import RowReader, StepValidator

ONE_TO_SIX = np.arange(1.0, 7.0, dtype=np.float32).reshape(2, 3)
SPACE = gym.spaces.Box(-9, 9, (2, 3), np.float32)


def written(space: gym.Space[Any], obs: Any) -> Any:
    """Return one observation as a row of its own."""
    reader = RowReader(space)
    rows = reader.empty(1)
    reader.write(rows, 0, obs)
    return rows


@pytest.mark.parametrize(
    "obs",
    [
        pytest.param(ONE_TO_SIX, id="as it should be"),
        pytest.param(np.asfortranarray(ONE_TO_SIX), id="Fortran order"),
        pytest.param(ONE_TO_SIX[::-1, ::-1].copy()[::-1, ::-1], id="negative strides"),
        pytest.param(np.repeat(ONE_TO_SIX, 2, axis=1)[:, ::2], id="with gaps"),
        pytest.param(np.broadcast_to(ONE_TO_SIX, (2, 3)), id="read-only"),
        pytest.param(torch.arange(1.0, 7.0).reshape(2, 3), id="a tensor on the CPU"),
        pytest.param(ONE_TO_SIX.astype(np.int16), id="whole numbers"),
        pytest.param([[1, 2, 3], [4, 5, 6]], id="a list"),
    ],
)
def test_an_observation_is_copied_whatever_its_layout(obs: Any) -> None:
    rows = written(SPACE, obs)
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(rows[0], ONE_TO_SIX)
    assert not np.shares_memory(rows, ONE_TO_SIX)


@pytest.mark.parametrize(
    ("space", "obs", "message"),
    [
        (SPACE, ONE_TO_SIX[0], r"observation of shape \(3,\), the space says \(2, 3\)"),
        (
            SPACE,
            np.float32(1),
            r"observation of shape \(\), the space says \(2, 3\)",
        ),  # gymnasium's Async broadcasts it
        (SPACE, [[1, 2], [3]], "inhomogeneous"),
        (SPACE, np.full((2, 3), None), "observation of dtype object, the space says float32"),
        (SPACE, np.full((2, 3), "a"), "observation of dtype <U1"),
        (
            gym.spaces.Box(0, 255, (2,), np.uint8),
            np.array([1, 256]),
            r"array\(\[  1, 256\]\), which does not fit .* uint8",
        ),
        (gym.spaces.Box(0, 255, (2,), np.uint8), np.array([1, -1]), "does not fit the space's uint8"),
        (gym.spaces.Box(0, 255, (2,), np.uint8), np.array([1, 0.5]), "does not fit the space's uint8"),
        (gym.spaces.Box(0, 255, (2,), np.uint8), np.array([1, np.nan]), "does not fit the space's uint8"),
        (gym.spaces.Discrete(3), 0.5, "does not fit the space's int64"),
        (gym.spaces.Dict(a=SPACE), ONE_TO_SIX, r"observation with keys ndarray, the space says \['a'\]"),
        (gym.spaces.Dict(a=SPACE), {"b": ONE_TO_SIX}, r"observation with keys \['b'\], the space says \['a'\]"),
        (gym.spaces.Dict(a=SPACE), {"a": ONE_TO_SIX[0]}, r"observation\['a'\] of shape \(3,\)"),
        (gym.spaces.Tuple((SPACE, SPACE)), (ONE_TO_SIX,), "the space says a tuple of 2"),
        (gym.spaces.Dict(a=gym.spaces.Tuple((SPACE,))), {"a": (0,)}, r"observation\['a'\]\[0\] of shape \(\)"),
    ],
)
def test_an_observation_that_is_not_as_the_space_says_is_rejected(space: Any, obs: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        written(space, obs)


def test_float64_is_cast_and_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    reader = RowReader(SPACE)
    rows = reader.empty(2)
    with caplog.at_level(logging.WARNING):
        reader.write(rows, 0, ONE_TO_SIX.astype(np.float64))
        reader.write(rows, 1, ONE_TO_SIX.astype(np.float64))
    np.testing.assert_array_equal(rows, [ONE_TO_SIX, ONE_TO_SIX])
    assert caplog.messages == ["observation is float64 and is cast to the space's float32"]


def test_a_number_too_large_for_float32_becomes_infinite_in_silence() -> None:
    # Infinity is rejected a moment later, by the name of its environment.
    assert np.isinf(written(gym.spaces.Box(-np.inf, np.inf, (1,), np.float32), np.array([1e300]))).all()


def test_nested_observations_are_written_leaf_by_leaf() -> None:
    space = gym.spaces.Dict(
        image=gym.spaces.Box(0, 255, (2,), np.uint8), pair=gym.spaces.Tuple((gym.spaces.Discrete(5), SPACE))
    )
    rows = written(space, {"image": np.array([7, 8]), "pair": [np.int32(4), ONE_TO_SIX]})
    assert rows["image"].dtype == np.uint8
    np.testing.assert_array_equal(rows["image"], [[7, 8]])
    np.testing.assert_array_equal(rows["pair"][0], [4])
    np.testing.assert_array_equal(rows["pair"][1], [ONE_TO_SIX])


@pytest.mark.parametrize("reward", [2, 2.0, np.float32(2), np.int8(2), np.array(2.0), np.array([2]), np.array([[2.0]])])
def test_a_reward_is_any_one_number(reward: Any) -> None:
    assert RowReader(SPACE).reward(reward) == 2.0


@pytest.mark.parametrize("reward", [None, "2", "nan", np.array([1.0, 2.0]), np.array([]), [2.0], 2j, np.complex64(2)])
def test_a_reward_that_is_no_number_is_rejected(reward: Any) -> None:
    with pytest.raises(TypeError, match=r"returned reward .*, which is not a number"):
        RowReader(SPACE).reward(reward)


@pytest.mark.parametrize("flag", [True, np.True_, 1, np.int64(1), np.uint8(1)])
def test_a_flag_may_be_numpys_or_a_one(flag: Any) -> None:
    assert RowReader(SPACE).flag("terminated", flag) is True


@pytest.mark.parametrize("flag", [None, 2, -1, float("nan"), 1.0, "True", np.array([True]), [True]])
def test_a_flag_that_is_no_bool_is_rejected(flag: Any) -> None:
    with pytest.raises(TypeError, match=r"returned truncated = .*, which is not a bool"):
        RowReader(SPACE).flag("truncated", flag)


@pytest.mark.parametrize(
    ("result", "got"),
    [((0, 1.0, False, {}), "4 values"), ([0, 1.0, False, False, {}], "a list of 5 values"), (None, "NoneType")],
)
def test_the_old_four_values_of_a_step_are_rejected_by_the_name_of_the_api(result: Any, got: str) -> None:
    with pytest.raises(TypeError, match=f"returned {got}.* from step, not .*Gymnasium API .>= 0.26"):
        RowReader(SPACE).unpack_step(result)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (ONE_TO_SIX, r"returned ndarray from reset, not \(obs, info\)"),
        ((ONE_TO_SIX,), r"returned 1 values from reset, not \(obs, info\)"),
        ((ONE_TO_SIX, None), "returned info None from reset, which is not a dict"),
        ((ONE_TO_SIX, {}, 0), r"returned 3 values from reset, not \(obs, info\)"),
        ([ONE_TO_SIX, {}], r"returned a list of 2 values from reset, not \(obs, info\)"),
    ],
)
def test_a_reset_without_its_info_is_rejected_by_the_name_of_the_api(result: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message + ": .*Gymnasium API .>= 0.26"):
        RowReader(SPACE).unpack_reset(result)


def test_a_named_tuple_is_a_tuple() -> None:
    class Answer(NamedTuple):
        obs: Any = ONE_TO_SIX
        reward: float = 1.5
        terminated: bool = True
        truncated: bool = False
        info: Any = {}  # noqa: RUF012  # only read

    class Begun(NamedTuple):
        obs: Any = ONE_TO_SIX
        info: Any = {}  # noqa: RUF012  # only read

    assert RowReader(SPACE).unpack_step(Answer())[1:4] == (1.5, True, False)
    assert RowReader(SPACE).unpack_reset(Begun())[1] == {}


def test_rows_of_a_vector_are_copies_in_the_order_requested() -> None:
    reader = RowReader(gym.spaces.Dict(x=gym.spaces.Box(0, 9, (1,), np.float32)))
    column = np.array([[0.0], [1.0], [2.0]], np.float32)
    everyone, some = (reader.rows({"x": column}, 3, np.array(ids))["x"] for ids in ([0, 1, 2], [0, 2]))
    column[:] = 9
    np.testing.assert_array_equal(everyone, [[0], [1], [2]])
    np.testing.assert_array_equal(some, [[0], [2]])


# ---- bounds of Box observations ----

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


def test_the_first_value_outside_its_bounds_is_reported_with_them_and_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (message,) = messages(validator(BOX), *[rows(0.0, -2.0)] * 2_500, caplog=caplog)
    assert message.startswith("observation is -2.0 at index (1,), and the space says [0.0, inf]")


def test_what_is_within_its_bounds_or_on_them_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    assert messages(validator(BOX), rows(1.0, 0.0), rows(-1.0, 1e9), caplog=caplog) == []


def test_every_thousandth_look_is_one(caplog: pytest.LogCaptureFixture) -> None:
    box = validator(BOX)
    assert messages(box, rows(0, 0), *[rows(9, 9)] * 999, caplog=caplog) == []
    assert len(messages(box, rows(9, 9), caplog=caplog)) == 1


def test_a_leaf_is_named_by_its_path(caplog: pytest.LogCaptureFixture) -> None:
    obs = {"a": (rows(7, 0), np.array([0, 2])), "mask": np.array([[1, 1], [0, 1]])}
    (message,) = messages(validator(TREE), obs, caplog=caplog)
    assert message.startswith("observation[a.0] is 7.0 at index (0,)")


# ---- Discrete observations ----

DISCRETE = {
    "Discrete": (gym.spaces.Discrete(4, start=2), [2, 5], [1, 6]),
    "MultiDiscrete": (gym.spaces.MultiDiscrete([3, 2]), [[0, 0], [2, 1]], [[0, 2], [3, 0], [-1, 0]]),
    "MultiBinary": (gym.spaces.MultiBinary(2), [[0, 0], [1, 0]], [[0, 5], [-1, 0]]),
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
def test_a_discrete_observation_out_of_range_is_reported_with_its_environment(kind: str, wrap: str) -> None:
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
