"""Acting by the numpy engine: what torch answers on the same noise, for any observations, and nothing is written to."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tests.extensions.numpy_engine.numpy_passes import note_numpy_passes
from tests.helpers.learning import FOUR_NUMBERS, MASKED, PARTS, Spaces, assert_same, observations
from tests.helpers.of_extensions import learners_of_extensions
from tests.helpers.sac import PUSH
from trainkit import (
    A2CPolicy,
    CategoricalValue,
    DQNPolicy,
    Policy,
    PPOPolicy,
    ReinforcePolicy,
    SACPolicy,
)
from trainkit.core import tree
from trainkit.engine.device import CPU, to_device
from trainkit.errors import DivergedError
from trainkit.nets import QNetwork

NESTED = spaces.Dict({"place": spaces.Discrete(3), "speed": FOUR_NUMBERS, "action_mask": spaces.MultiBinary(3)})

IMAGES = spaces.Box(0, 255, (2, 40, 36), np.uint8)
CHOICES = spaces.MultiDiscrete([2, 3], start=[1, 5])
CASES: list[Any] = [
    *(pytest.param(DQNPolicy, FOUR_NUMBERS, None, one.values[0], id=f"q {one.id}") for one in PARTS),
    pytest.param(DQNPolicy, MASKED, None, {"dueling": True, "noisy": True, "head": (6,)}, id="q masked noisy"),
    pytest.param(DQNPolicy, NESTED, None, {"normalize_obs": True}, id="q nested normalised"),
    pytest.param(DQNPolicy, IMAGES, None, {"hidden": None, "head": (8,)}, id="q images"),
    pytest.param(DQNPolicy, FOUR_NUMBERS, None, {"hidden": (256, 256)}, id="q wide"),
    pytest.param(DQNPolicy, FOUR_NUMBERS, CHOICES, {}, id="q joint actions"),
    *(pytest.param(kind, MASKED, None, {"hidden": (16, 8)}, id=kind.__name__) for kind in (PPOPolicy, A2CPolicy)),
    pytest.param(ReinforcePolicy, NESTED, None, {"normalize_obs": True}, id="reinforce nested normalised"),
    pytest.param(PPOPolicy, FOUR_NUMBERS, None, {"hidden": (), "shared": True}, id="ppo without layers"),
    pytest.param(PPOPolicy, FOUR_NUMBERS, PUSH, {"shared": True}, id="ppo box"),
    pytest.param(PPOPolicy, FOUR_NUMBERS, PUSH, {"action_bound_method": "tanh"}, id="ppo squashed"),
    *(pytest.param(kind, FOUR_NUMBERS, *own, id=name) for name, (kind, *own) in learners_of_extensions().items()),
    pytest.param(SACPolicy, FOUR_NUMBERS, PUSH, {"hidden": (16, 8)}, id="sac"),
    pytest.param(SACPolicy, FOUR_NUMBERS, PUSH, {"hidden": ()}, id="sac without layers"),
    pytest.param(SACPolicy, FOUR_NUMBERS, PUSH, {"normalize_obs": True}, id="sac normalised"),
]


def pair(kind: Any, space: Any, action_space: Any, options: dict[str, Any]) -> tuple[Any, Any]:
    """Make equal policies for numpy and for torch, which have observed the same."""
    at = Spaces(space) if action_space is None else Spaces(space, action_space)
    own = {"hidden": (8,), "device": "cpu", "seed": 1} | options
    both = kind.for_envs(at, engine="numpy", **own), kind.for_envs(at, engine="torch", **own)
    for policy in both if options.get("normalize_obs") else ():
        policy.preprocess.observe(to_device(observations(space, 50), CPU))
        policy.preprocess.fold()
    return both


def assert_act_alike(mine: Policy, theirs: Policy, obs: Any, *, explore: bool) -> None:
    """Compare what two policies do by equal streams, and what they do it by."""
    for policy in (mine, theirs):
        policy.start_streams(5)
    one, other = mine.act(obs, explore=explore, step=10**6), theirs.act(obs, explore=explore, step=10**6)
    assert one.action.dtype == other.action.dtype
    np.testing.assert_allclose(one.action, other.action, rtol=1e-4, atol=1e-5)
    assert one.extras.keys() == other.extras.keys()
    for name, column in one.extras.items():
        assert column.dtype == other.extras[name].dtype
        np.testing.assert_allclose(column, other.extras[name], rtol=1e-3, atol=1e-4)
    if isinstance(mine, DQNPolicy):
        for policy in (mine, theirs):
            policy.start_streams(6)
        q, expected = (policy.action_values(obs, explore=explore) for policy in (mine, theirs))
        assert q.dtype == expected.dtype == np.float32
        np.testing.assert_allclose(q, expected, rtol=1e-4, atol=1e-5)
    assert_same(mine.generator.get_state(), theirs.generator.get_state())


@pytest.mark.fast_cases(10)
@pytest.mark.parametrize(("kind", "space", "action_space", "options"), CASES)
def test_policies_act_as_by_torch(kind: Any, space: Any, action_space: Any, options: Any) -> None:
    mine, theirs = pair(kind, space, action_space, options)
    sizes = (5, 1, 64, 65, 5) if space is not IMAGES else (3, 1)
    for n_rows in sizes:
        obs = observations(space, n_rows, seed=n_rows)
        before = copy.deepcopy(obs)
        for explore in (False, True):
            assert_act_alike(mine, theirs, obs, explore=explore)
        assert_same(obs, before)


@pytest.mark.parametrize(("kind", "space", "action_space", "options"), CASES[:3] + CASES[-3:])
def test_what_was_returned_stays_as_it_is(kind: Any, space: Any, action_space: Any, options: Any) -> None:
    policy, _ = pair(kind, space, action_space, options)
    first = policy.act(observations(space, 5, seed=1), explore=True)
    before = copy.deepcopy(first)
    policy.act(observations(space, 5, seed=2), explore=True)
    assert_same([first.action, first.extras], [before.action, before.extras])


def test_without_a_space_observations_of_any_dtype_and_shape_are_acted_on() -> None:
    class Flat(torch.nn.Module):
        """Take any numbers in any shape."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = QNetwork((4,), 3, hidden=(8,))
            self.inner.draw(3)

        def forward(self, obs: Any) -> Any:
            leaves = [leaf.float().flatten(1) for leaf in tree.leaves(obs)]
            return self.inner(torch.cat(leaves, dim=1)).outputs

    network = Flat()
    mine, theirs = (
        DQNPolicy(copy.deepcopy(network), action_space=spaces.Discrete(3), device="cpu", engine=engine)
        for engine in ("numpy", "torch")
    )
    vectors = observations(FOUR_NUMBERS, 6)
    for obs in (
        vectors,
        vectors.astype(np.float64),
        vectors.astype(np.int64),
        vectors.astype(np.uint8),
        vectors.reshape(6, 2, 2),
        vectors[:, ::-1],
        vectors[::2],
        np.asfortranarray(vectors),
        {"a": vectors[:, :1], "b": vectors[:, 1:]},
        (vectors[:, :2], vectors[:, 2:]),
    ):
        np.testing.assert_allclose(mine.action_values(obs), theirs.action_values(obs), rtol=1e-5, atol=1e-5)


def test_no_rows_are_acted_on() -> None:
    for kind, space, action_space, options in (CASES[0].values, CASES[2].values, CASES[-3].values):
        mine, theirs = pair(kind, space, action_space, options)
        for n_rows in (0, 3, 0):
            assert_act_alike(mine, theirs, observations(space, 3)[:n_rows], explore=True)


def test_a_read_only_observation_is_acted_on() -> None:
    policy, _ = pair(DQNPolicy, FOUR_NUMBERS, None, {})
    obs = observations(FOUR_NUMBERS, 5)
    expected = policy.action_values(obs)
    obs.setflags(write=False)
    np.testing.assert_array_equal(policy.action_values(obs), expected)


@pytest.mark.parametrize("log_std", [2.0, 5.0])
def test_an_actors_deviation_stays_in_its_bounds(log_std: float) -> None:
    policies = pair(SACPolicy, FOUR_NUMBERS, PUSH, {"hidden": ()})
    for policy in policies:
        with torch.no_grad():
            for name, parameter in policy.actor.named_parameters():
                parameter[2:] = log_std if name.endswith("bias") else 0.0
    assert_act_alike(*policies, 0.1 * observations(FOUR_NUMBERS, 5), explore=True)


@pytest.mark.parametrize("n_before", [0, 3])
def test_actions_that_are_not_finite_are_rejected(n_before: int) -> None:
    policy, _ = pair(SACPolicy, FOUR_NUMBERS, PUSH, {})
    obs = observations(FOUR_NUMBERS, 5)
    for _ in range(n_before):
        policy.act(obs)
    with torch.no_grad():
        policy.actor.head.layers[0].bias[0] = np.nan
    with pytest.raises(DivergedError, match=r"SACPolicy gives .* for env 0"):
        policy.act(obs)


def test_a_copy_acts_by_its_own_weights() -> None:
    policy, theirs = pair(DQNPolicy, FOUR_NUMBERS, None, {})
    obs = observations(FOUR_NUMBERS, 5)
    policy.action_values(obs)
    reference = copy.deepcopy(policy)
    reference.network.draw(99)
    assert_act_alike(policy, theirs, obs, explore=False)
    theirs.network.draw(99)
    assert_act_alike(reference, theirs, obs, explore=False)


def test_every_number_of_rows_is_derived_once(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, _ = pair(DQNPolicy, FOUR_NUMBERS, None, {"value": CategoricalValue(7, 0.0, 6.0)})
    passes: list[int] = []
    note_numpy_passes(monkeypatch, lambda: passes.append(1))
    for _ in range(4):
        for n_rows in (1, 2, 3):
            policy.act(observations(FOUR_NUMBERS, n_rows))
    assert len(passes) == 12
    (function,) = policy.engine._functions.values()
    assert len(function._derived) == 3
