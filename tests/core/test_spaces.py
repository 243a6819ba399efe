"""Spaces as the rooms need them: rows, stacks, masks, random actions."""

from typing import Any

import numpy as np
import pytest
from gymnasium import Space, spaces
from numpy.typing import NDArray

from trainkit.core.data import ACTION_MASK, ArraySpec
from trainkit.core.errors import ConfigError, NoLegalActionError
from trainkit.core.spaces import (
    array_specs,
    check_mask,
    check_spaces,
    legal_actions,
    masked_space,
    random_actions,
    random_legal,
    stacked_space,
    zeros_of,
)

IMAGE = spaces.Box(0, 255, (2, 2), np.uint8)
NESTED = spaces.Dict(image=IMAGE, pair=spaces.Tuple((spaces.Discrete(4, start=3), spaces.MultiBinary(5))))
WITH_MASK = spaces.Dict({"x": IMAGE, ACTION_MASK: spaces.MultiBinary(3)})


def spec(*shape: int, dtype: Any, stack: int = 1) -> ArraySpec:
    return ArraySpec(shape=shape, dtype=np.dtype(dtype), stack=stack)


def test_array_specs_mirror_the_space_and_leave_the_mask_unstacked() -> None:
    assert array_specs(NESTED) == {
        "image": spec(2, 2, dtype=np.uint8),
        "pair": (spec(dtype=np.int64), spec(5, dtype=np.int8)),
    }
    assert array_specs(WITH_MASK, stack=4) == {
        "x": spec(2, 2, dtype=np.uint8, stack=4),
        ACTION_MASK: spec(3, dtype=np.int8),
    }


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(np.array([-1, 0], np.float32), np.array([1, np.inf], np.float32)),
        IMAGE,
        spaces.Discrete(4, start=3),
        spaces.MultiDiscrete([2, 3], start=[5, 7]),
        spaces.MultiDiscrete([[2, 3], [4, 5]], dtype=np.int32),
        spaces.MultiBinary(3),
        spaces.MultiBinary([2, 3]),
        NESTED,
        WITH_MASK,
    ],
)
def test_a_stack_of_any_three_frames_belongs_to_the_stacked_space(space: Space[Any]) -> None:
    space.seed(0)
    stacked = stacked_space(space, 3)

    def stack(*frames: Any) -> Any:
        if isinstance(frames[0], dict):
            return {
                key: frames[-1][key] if key == ACTION_MASK else stack(*(frame[key] for frame in frames))
                for key in frames[0]
            }
        return tuple(map(stack, *frames)) if isinstance(frames[0], tuple) else np.stack(frames)

    for _ in range(5):
        assert stacked.contains(stack(*(space.sample() for _ in range(3))))
    assert array_specs(stacked) == array_specs_of_stacks(space, 3)


def array_specs_of_stacks(space: Space[Any], stack: int) -> Any:
    """Return the specs of whole stacks as rows."""

    def widen(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: widen(child) for key, child in node.items()}
        if isinstance(node, tuple):
            return tuple(map(widen, node))
        shape = (stack, *node.shape) if node.stack > 1 else node.shape
        return ArraySpec(shape=shape, dtype=node.dtype)

    return widen(array_specs(space, stack))


def test_a_stack_of_one_is_the_space_itself() -> None:
    assert stacked_space(NESTED, 1) is NESTED


def test_a_mask_is_added_to_a_bare_space_or_into_a_dict() -> None:
    actions = spaces.Discrete(3)
    assert masked_space(IMAGE, actions) == spaces.Dict({"obs": IMAGE, ACTION_MASK: spaces.MultiBinary(3)})
    assert masked_space(NESTED, actions) == spaces.Dict({**NESTED.spaces, ACTION_MASK: spaces.MultiBinary(3)})


@pytest.mark.parametrize(
    "mask", [spaces.MultiBinary(3), spaces.Box(0, 1, (3,), np.int8), spaces.Box(0, 1, (3,), np.bool_)]
)
def test_a_mask_of_bools_or_whole_numbers_is_accepted(mask: Space[Any]) -> None:
    check_spaces(spaces.Dict({ACTION_MASK: mask}), spaces.Discrete(3))


@pytest.mark.parametrize(
    ("dtype", "expected_type"), [(np.bool_, np.bool_), (np.int8, np.bool_), (np.uint8, np.bool_), (np.int64, np.bool_)]
)
def test_legal_actions_are_those_whose_mask_is_not_zero(dtype: Any, expected_type: Any) -> None:
    legal = legal_actions({"x": None, ACTION_MASK: np.array([[1, 0], [0, 1]], dtype)})
    assert legal is not None
    assert legal.dtype == expected_type
    np.testing.assert_array_equal(legal, [[True, False], [False, True]])


@pytest.mark.parametrize("obs", [np.ones((2, 3)), {"x": np.ones(2)}, (np.ones(2),)])
def test_without_a_mask_there_is_nothing_to_forbid(obs: Any) -> None:
    assert legal_actions(obs) is None


def test_an_empty_mask_is_rejected_by_the_name_of_its_environment() -> None:
    legal = np.array([[True, False], [False, False]])
    with pytest.raises(NoLegalActionError, match=r"env 7 allows no action: .* end the episode instead"):
        check_mask(legal, np.array([3, 7]))
    with pytest.raises(NoLegalActionError, match="env 1 allows no action"):
        check_mask(legal, None)
    check_mask(legal[:1], None)


def shares(actions: NDArray[Any], n: int) -> NDArray[np.float64]:
    """Return how often each of n actions was drawn."""
    return np.bincount(actions.ravel(), minlength=n) / actions.size


def test_random_legal_actions_are_uniform_over_the_legal_ones_and_drawn_row_by_row() -> None:
    legal = np.tile([[True, False, True, True], [False, True, False, False]], (30_000, 1))
    drawn = random_legal(legal, np.random.default_rng(0))
    np.testing.assert_allclose(shares(drawn[::2], 4), [1 / 3, 0, 1 / 3, 1 / 3], atol=0.01)
    assert (drawn[1::2] == 1).all()
    repeats = np.mean(drawn[:-2:2] == drawn[2::2])
    assert repeats == pytest.approx(1 / 3, abs=0.01)  # one coin for all rows would make this 1


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(5),
        spaces.MultiDiscrete([2, 3], start=[5, 7]),
        spaces.MultiDiscrete([[2], [3]], dtype=np.int32),
        spaces.MultiBinary([2, 2]),
        spaces.Box(-2, 3, (2,)),
        spaces.Box(0, 1, (3,), np.int8),
        spaces.Box(-np.inf, np.inf, (2,)),
        spaces.Box(np.array([5, -np.inf], np.float32), np.array([np.inf, -5], np.float32)),
    ],
)
def test_random_actions_belong_to_the_space_and_rows_differ(space: Space[Any]) -> None:
    drawn = random_actions(space, None, 50, np.random.default_rng(0))
    assert drawn.shape == (50, *(space.shape or ()))
    assert drawn.dtype == space.dtype
    assert all(space.contains(row) for row in drawn)
    assert len(np.unique(drawn, axis=0)) > 1
    assert random_actions(space, None, 0, np.random.default_rng(0)).shape == (0, *(space.shape or ()))


@pytest.mark.parametrize(
    ("space", "actions"),
    [
        (spaces.Discrete(4), 4),
        (spaces.MultiDiscrete([4, 4]), 4),
        (spaces.MultiBinary(3), 2),
        (spaces.Box(0, 3, (2,), np.uint8), 4),  # both ends included
    ],
)
def test_random_whole_numbers_are_uniform(space: Space[Any], actions: int) -> None:
    drawn = random_actions(space, None, 40_000, np.random.default_rng(1))
    np.testing.assert_allclose(shares(drawn, actions), 1 / actions, atol=0.01)


def test_random_reals_are_uniform_between_bounds_and_reach_beyond_a_single_one() -> None:
    low, high = np.array([-2, 5, -np.inf, -np.inf], np.float32), np.array([4, np.inf, 5, np.inf], np.float32)
    drawn = random_actions(spaces.Box(low, high), None, 40_000, np.random.default_rng(2))
    np.testing.assert_allclose(np.histogram(drawn[:, 0], 6, (-2, 4))[0] / 40_000, 1 / 6, atol=0.01)
    np.testing.assert_allclose(drawn.mean(axis=0), [1, 6, 4, 0], atol=0.05)
    np.testing.assert_allclose(drawn.std(axis=0), [np.sqrt(3), 1, 1, 1], atol=0.05)


def test_random_actions_are_legal_where_there_is_a_mask() -> None:
    obs = {ACTION_MASK: np.array([[0, 1, 0], [1, 0, 0], [0, 0, 1]], np.int8)}
    for seed in range(20):
        drawn = random_actions(spaces.Discrete(3), obs, 3, np.random.default_rng(seed))
        assert drawn.tolist() == [1, 0, 2]
    empty = {ACTION_MASK: np.array([[0, 1], [0, 0]], np.int8)}
    with pytest.raises(NoLegalActionError, match="env 9 allows no action"):
        random_actions(spaces.Discrete(2), empty, 2, np.random.default_rng(0), np.array([8, 9]))


def test_random_actions_need_a_space_of_one_array() -> None:
    with pytest.raises(ConfigError, match="random actions need a Discrete, MultiDiscrete, MultiBinary or Box space"):
        random_actions(NESTED, None, 1, np.random.default_rng(0))


def test_blank_rows_belong_to_the_space_and_allow_every_action() -> None:
    space = spaces.Dict({**NESTED.spaces, "far": spaces.Box(2, 3, (1,)), ACTION_MASK: spaces.Box(0, 1, (2,), np.bool_)})
    blank = zeros_of(space, 2)
    np.testing.assert_array_equal(blank["image"], np.zeros((2, 2, 2)))
    np.testing.assert_array_equal(blank["pair"][0], [3, 3])
    np.testing.assert_array_equal(blank["far"], [[2], [2]])
    np.testing.assert_array_equal(blank[ACTION_MASK], np.ones((2, 2)))
    one = {key: leaf[0] for key, leaf in blank.items() if key != "pair"}
    assert space.contains({**one, "pair": tuple(leaf[0] for leaf in blank["pair"])})
