"""Features by the numpy engine: what torch computes, and nothing is written to."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from tests.helpers.learning import observations
from trainkit.core import tree
from trainkit.engine.device import CPU, to_device
from trainkit.engine.engine import EngineName, engine_for
from trainkit.nets.preprocess import Preprocess, WithoutMask

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
        self.engine = engine_for(self, engine, CPU)

    def forward(self, obs: Any) -> dict[str, Tensor]:
        return {str(i): leaf for i, leaf in enumerate(tree.leaves(self.preprocess(obs)))}

    def of(self, obs: Any) -> dict[str, Any]:
        return self.engine.call("features", self, obs)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("space", SPACES, ids=str)
def test_features_of_both_engines_are_equal(space: Any, normalize: bool) -> None:
    preprocess = Preprocess(space, normalize=True, clip=1.5) if normalize else Preprocess(space)
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
