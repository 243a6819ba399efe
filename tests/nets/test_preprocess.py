"""Preprocessing: what each kind of space turns into, by hand-made observations."""

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import Space, spaces
from torch import Tensor

from tests.helpers.learning import observations
from trainkit.core import tree
from trainkit.engine.device import to_device
from trainkit.engine.engine import Engine, EngineName
from trainkit.nets import Preprocess
from trainkit.nets.preprocess import WithoutMask, feature_sizes

CPU = torch.device("cpu")


def features(space: Space[Any], *rows: Any) -> Any:
    """Preprocess rows of a space of arrays."""
    return Preprocess(space)(to_device(np.stack([np.asarray(row, space.dtype) for row in rows]), CPU))


def image(*shape: int) -> spaces.Box:
    return spaces.Box(0, 255, shape, np.uint8)


def test_a_vector_stays_as_it_is() -> None:
    space = spaces.Box(-1, 1, (3,), np.float32)

    assert features(space, [0.5, -1, 0], [1, 1, 1]).tolist() == [[0.5, -1, 0], [1, 1, 1]]


def test_a_scalar_becomes_a_vector_of_one() -> None:
    assert features(spaces.Box(-1, 1, (), np.float32), 0.5, -1).tolist() == [[0.5], [-1]]


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.int8, np.uint8, np.bool_])
def test_numbers_of_any_dtype_become_float32(dtype: Any) -> None:
    space = spaces.Box(0, 1, (2,), dtype)
    got = features(space, [0, 1])

    assert got.dtype == torch.float32
    assert got.tolist() == [[0, 1]]


def test_numbers_of_another_dtype_than_the_space_become_float32_too() -> None:
    got = Preprocess(spaces.Box(-1, 1, (2,), np.float32))(torch.tensor([[0.5, 1.0]], dtype=torch.float64))

    assert got.dtype == torch.float32


def test_a_grid_is_flattened_and_not_scaled() -> None:
    assert features(image(2, 3), [[1, 2, 3], [4, 5, 255]]).tolist() == [[1, 2, 3, 4, 5, 255]]


def test_floats_of_an_images_shape_are_flattened() -> None:
    assert Preprocess(spaces.Box(0, 1, (40, 50), np.float32)).shapes == (2000,)


def test_a_discrete_number_becomes_one_hot() -> None:
    assert features(spaces.Discrete(3), 0, 2, 1).tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0]]


def test_a_discrete_space_may_start_anywhere() -> None:
    assert features(spaces.Discrete(3, start=-1), -1, 1).tolist() == [[1, 0, 0], [0, 0, 1]]


def test_digits_become_one_hot_one_after_the_other() -> None:
    assert features(spaces.MultiDiscrete([2, 3]), [1, 0], [0, 2]).tolist() == [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]


def test_digits_may_form_a_grid_and_start_anywhere() -> None:
    space = spaces.MultiDiscrete(np.array([[2, 3], [1, 2]]), start=np.array([[5, 0], [7, -1]]))

    assert features(space, [[6, 1], [7, -1]]).tolist() == [[0, 1, 0, 1, 0, 1, 1, 0]]


def test_bits_become_numbers() -> None:
    assert features(spaces.MultiBinary((2, 2)), [[0, 1], [1, 1]]).tolist() == [[0, 1, 1, 1]]


@pytest.mark.parametrize("number", [-1, 3, 7])
def test_a_number_outside_its_space_is_rejected(number: int) -> None:
    with pytest.raises(IndexError, match="index out of range"):
        features(spaces.Discrete(3), 0, number)
    with pytest.raises(IndexError, match="index out of range"):
        features(spaces.MultiDiscrete([2, 3]), [1, number])


PLACES = [
    pytest.param((36, 40), lambda s, y, x, c: (y, x), (1, 36, 40), lambda s, c: 0, id="H,W"),
    pytest.param((36, 40, 3), lambda s, y, x, c: (y, x, c), (3, 36, 40), lambda s, c: c, id="H,W,C"),
    pytest.param((3, 36, 40), lambda s, y, x, c: (c, y, x), (3, 36, 40), lambda s, c: c, id="C,H,W"),
    pytest.param((4, 36, 40), lambda s, y, x, c: (s, y, x), (4, 36, 40), lambda s, c: s, id="S,H,W"),
    pytest.param((4, 36, 40, 3), lambda s, y, x, c: (s, y, x, c), (12, 36, 40), lambda s, c: 3 * s + c, id="S,H,W,C"),
    pytest.param((4, 3, 36, 40), lambda s, y, x, c: (s, c, y, x), (12, 36, 40), lambda s, c: 3 * s + c, id="S,C,H,W"),
]


@pytest.mark.parametrize(("shape", "place", "expected_shape", "channel"), PLACES)
def test_an_image_becomes_channels_first_in_0_to_1(
    shape: tuple[int, ...], place: Any, expected_shape: tuple[int, ...], channel: Any
) -> None:
    frame = np.zeros(shape, np.uint8)
    frame[place(2, 30, 35, 1)] = 51
    frame[place(0, 1, 2, 0)] = 255
    expected = torch.zeros(1, *expected_shape)
    expected[0, channel(2, 1), 30, 35] = 0.2
    expected[0, channel(0, 0), 1, 2] = 1.0

    space = image(*shape)
    assert Preprocess(space).shapes == expected_shape
    assert Preprocess(space).sees_images
    torch.testing.assert_close(features(space, frame), expected)


@pytest.mark.parametrize("shape", [(35, 84), (84,), (2, 2, 2, 84, 84), (36, 36, 36), (10, 10, 4)])
def test_what_a_convolution_cannot_see_is_no_image(shape: tuple[int, ...]) -> None:
    preprocess = Preprocess(image(*shape))

    assert not preprocess.sees_images
    assert preprocess.shapes == (int(np.prod(shape)),)


def test_a_dict_and_a_tuple_keep_their_structure() -> None:
    space = spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.MultiBinary(1)])})
    obs = {"b": torch.tensor([1]), "a": (torch.tensor([[0.5, 0.25]]), torch.tensor([[1]]))}
    got = Preprocess(space)(obs)

    assert got["b"].tolist() == [[0, 1]]
    assert [leaf.tolist() for leaf in got["a"]] == [[[0.5, 0.25]], [[1]]]
    assert Preprocess(space).shapes == {"a": ((2,), (1,)), "b": (2,)}


def test_the_mask_is_taken_out_of_a_dict() -> None:
    space = spaces.Dict({"x": spaces.Discrete(2), "y": spaces.Discrete(2), "action_mask": spaces.MultiBinary(3)})
    obs = {"x": torch.tensor([0]), "y": torch.tensor([1]), "action_mask": torch.tensor([[1, 0, 1]])}

    assert Preprocess(space)(obs).keys() == {"x", "y"}
    assert Preprocess(space).shapes == {"x": (2,), "y": (2,)}


def test_a_dict_of_nothing_but_obs_and_mask_becomes_the_obs() -> None:
    space = spaces.Dict({"obs": spaces.Box(-1, 1, (2,)), "action_mask": spaces.MultiBinary(3)})
    obs = {"obs": torch.tensor([[0.5, -0.5]]), "action_mask": torch.tensor([[1, 0, 1]])}

    assert Preprocess(space)(obs).tolist() == [[0.5, -0.5]]
    assert Preprocess(space).shapes == (2,)


def test_a_dict_of_one_other_leaf_and_a_mask_stays_a_dict() -> None:
    assert WithoutMask()({"x": torch.zeros(1), "action_mask": torch.ones(1, 3)}).keys() == {"x"}


def test_a_dict_without_a_mask_stays_as_it_is() -> None:
    obs = {"obs": torch.zeros(1)}

    assert WithoutMask()(obs) is obs


def test_the_observation_itself_keeps_its_mask() -> None:
    obs = {"obs": torch.zeros(1, 2), "action_mask": torch.ones(1, 3)}
    Preprocess(spaces.Dict({"obs": spaces.Box(-1, 1, (2,)), "action_mask": spaces.MultiBinary(3)}))(obs)

    assert obs.keys() == {"obs", "action_mask"}


def test_sizes_and_leaves_come_in_the_same_order() -> None:
    inner = spaces.Dict(OrderedDict(c=spaces.MultiBinary(5), b=spaces.Discrete(6)))  # an OrderedDict is left unsorted
    outer = {"z": spaces.Discrete(2), "camera": image(36, 36, 3), "a": spaces.Tuple([spaces.Discrete(7), inner])}
    space = spaces.Dict(OrderedDict(outer))
    preprocess = Preprocess(space)
    leaves: list[Tensor] = tree.leaves(preprocess(to_device(observations(space, 2), CPU)))

    assert feature_sizes(preprocess.shapes) == [tuple(leaf.shape[1:]) for leaf in leaves]
    assert feature_sizes(preprocess.shapes) == [(7,), (6,), (5,), (3, 36, 36), (2,)]


# ---- by the numpy engine ----

SPACES = [
    spaces.Box(-1, 1, (3,), np.float32),
    spaces.Box(-1, 1, (), np.float32),
    spaces.Box(-1, 1, (2, 3), np.float64),
    spaces.Box(0, 255, (2, 3), np.uint8),
    spaces.Box(0, 1, (4,), np.bool_),
    spaces.Box(-5, 5, (2,), np.int64),
    spaces.Box(-5, 5, (2,), np.int8),
    spaces.Box(0, 255, (40, 40), np.uint8),
    spaces.Discrete(5),
    spaces.Discrete(3, start=-1),
    spaces.MultiDiscrete([2, 3], start=[1, -1]),
    spaces.MultiDiscrete([[2, 3], [4, 5]]),
    spaces.MultiBinary(3),
    spaces.MultiBinary((2, 2)),
    spaces.Dict({"b": spaces.Discrete(3), "a": spaces.Box(-1, 1, (2,), np.float32), "c": spaces.Discrete(2)}),
    spaces.Dict({"obs": spaces.Box(-1, 1, (2,), np.float32), "action_mask": spaces.MultiBinary(3)}),
    spaces.Dict({"x": spaces.Discrete(2), "y": spaces.Discrete(3), "action_mask": spaces.MultiBinary(3)}),
    spaces.Tuple([spaces.Discrete(3), spaces.Dict({"x": spaces.Box(-9, 9, (2,), np.float32)})]),
]


class Features(torch.nn.Module):
    """Return features by name, by an engine."""

    def __init__(self, preprocess: torch.nn.Module, engine: EngineName) -> None:
        super().__init__()
        self.preprocess = preprocess
        self.engine = Engine(self, engine, CPU)

    def forward(self, obs: Any) -> dict[str, Tensor]:
        return {str(i): leaf for i, leaf in enumerate(tree.leaves(self.preprocess(obs)))}

    def of(self, obs: Any) -> dict[str, Any]:
        return self.engine.call("features", self, obs)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("space", SPACES, ids=str)
def test_features_of_both_engines_are_equal(space: Any, normalize: bool) -> None:
    preprocess = Preprocess(space, normalize=normalize, clip=1.5)
    mine, theirs = Features(preprocess, "numpy"), Features(preprocess, "torch")
    for n_rows in (7, 1, 7):
        obs = observations(space, n_rows, seed=n_rows)
        features, expected = mine.of(obs), theirs.of(obs)
        assert features.keys() == expected.keys()
        for name, leaf in features.items():
            np.testing.assert_array_equal(leaf, expected[name])
            assert leaf.dtype == np.float32
        if preprocess.observes:  # and again by other statistics
            preprocess.observe(to_device(obs, CPU))
            preprocess.fold()


@pytest.mark.parametrize("n_before", [0, 1])
@pytest.mark.parametrize("number", [-1, 3, 7])
def test_the_numpy_engine_rejects_a_number_outside_its_space(number: int, n_before: int) -> None:
    module = Features(Preprocess(spaces.Discrete(3)), "numpy")
    for _ in range(n_before):
        module.of(np.array([0, 1]))
    with pytest.raises(IndexError, match=rf"index out of range|must be in 0 ... 2, got {number}"):
        module.of(np.array([0, number]))


def test_observations_are_left_alone() -> None:
    preprocess = Preprocess(spaces.Box(-9, 9, (2,), np.float32), normalize=True)
    preprocess.observe(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
    preprocess.fold()
    module, obs = Features(preprocess, "numpy"), np.array([[1.0, 2.0]], np.float32)
    for _ in range(3):
        module.of(obs)
        assert obs.tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_what_is_not_preprocessed_is_the_same_by_both_engines(space: Any) -> None:
    obs = observations(space, 5)
    leaves, expected = (Features(WithoutMask(), engine).of(obs) for engine in ("numpy", "torch"))
    for name, leaf in leaves.items():
        np.testing.assert_array_equal(leaf, expected[name])
        assert leaf.dtype == expected[name].dtype
