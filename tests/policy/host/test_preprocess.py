"""Preprocessing in numpy: torch's features to the last bit, joined as the encoder joins them."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tests.helpers.learning import observations
from trainkit import Preprocess
from trainkit.policy.device import to_device
from trainkit.policy.host.preprocess import HostPreprocess
from trainkit.policy.preprocess import WithoutMask, feature_leaves

CPU = torch.device("cpu")
SPACES = [
    spaces.Box(-1, 1, (3,), np.float32),
    spaces.Box(-1, 1, (), np.float32),
    spaces.Box(-1, 1, (2, 3), np.float64),
    spaces.Box(0, 255, (2, 3), np.uint8),
    spaces.Box(0, 1, (4,), np.bool_),
    spaces.Box(-5, 5, (2,), np.int64),
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


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("space", SPACES, ids=str)
def test_features_are_torchs(space: Any, normalize: bool) -> None:
    preprocess = Preprocess(space, normalize=normalize, clip=1.5)
    twin = HostPreprocess.for_module(preprocess, CPU)
    assert twin is not None
    for seed in range(3):
        obs = observations(space, 7, seed)
        expected = torch.cat(feature_leaves(preprocess(to_device(obs, CPU))), dim=1)
        np.testing.assert_array_equal(twin(obs), expected.numpy())
        assert twin(obs).dtype == np.float32
        if preprocess.observes:  # and again by other statistics
            preprocess.observe(to_device(obs, CPU))
            preprocess.fold()


def test_observations_are_left_alone() -> None:
    preprocess = Preprocess(spaces.Box(-9, 9, (2,), np.float32), normalize=True)
    twin = HostPreprocess.for_module(preprocess, CPU)
    assert twin is not None
    preprocess.observe(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
    preprocess.fold()
    obs = np.array([[1.0, 2.0]], np.float32)
    twin(obs)
    assert obs.tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize("number", [-1, 3, 7])
def test_a_number_outside_its_space_is_refused(number: int) -> None:
    twin = HostPreprocess.for_module(Preprocess(spaces.Discrete(3)), CPU)
    assert twin is not None
    with pytest.raises(ValueError, match=f"outside its space: {number}"):
        twin(np.array([0, number]))


def test_where_nothing_is_known_of_a_space_vectors_alone_are_taken() -> None:
    module = WithoutMask()
    twin = HostPreprocess.for_module(module, CPU)
    assert twin is not None
    vectors = np.zeros((3, 2), np.float32)
    assert twin.takes(vectors, module)
    assert twin.takes({"obs": vectors, "action_mask": np.ones((3, 2))}, module)
    assert twin({"obs": vectors, "action_mask": np.ones((3, 2))}) is vectors
    for other in (vectors.astype(np.float64), vectors[0], (vectors, vectors), {"a": vectors}):
        assert not twin.takes(other, module)


def test_images_modules_of_ones_own_and_other_devices_have_no_twin() -> None:
    image = spaces.Box(0, 255, (40, 40), np.uint8)
    assert HostPreprocess.for_module(Preprocess(image), CPU) is None
    assert HostPreprocess.for_module(torch.nn.Flatten(), CPU) is None
    assert HostPreprocess.for_module(Preprocess(spaces.Discrete(3)), torch.device("meta")) is None
