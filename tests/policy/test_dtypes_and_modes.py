"""Learning by hand: batches of any number type, and torch's global modes, in numpy and in torch alike."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import trainkit as tk
from tests.helpers.engine import torch_only
from tests.helpers.learning import Spaces, batch_of, observations
from tests.helpers.of_extensions import learners_of_extensions
from tests.helpers.rollouts import played
from trainkit.core import tree

OBS = spaces.Box(-1.0, 1.0, (4,), np.float32)
BOX = spaces.Box(-2.0, 2.0, (2,), np.float32)
CHOICE = spaces.Discrete(3)
OFF_POLICY: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "dqn": (tk.DQNPolicy, CHOICE, {}),
    "c51": (tk.DQNPolicy, CHOICE, {"value": tk.CategoricalValue(5, -1, 1), "double": True}),
    "hl-gauss": (tk.DQNPolicy, CHOICE, {"value": tk.HLGaussValue(5, -1, 1)}),
    "quantiles": (tk.DQNPolicy, CHOICE, {"value": tk.QuantileValue(4), "noisy": True}),
    "implicit": (tk.DQNPolicy, CHOICE, {"value": tk.ImplicitQuantileValue(4)}),
    "munchausen": (tk.DQNPolicy, CHOICE, {"backup": tk.MunchausenBackup()}),
    "cql": (tk.DQNPolicy, CHOICE, {"penalty": tk.ConservativePenalty(1.0)}),
    "sac": (tk.SACPolicy, BOX, {}),
    "sac, temperature by schedule": (tk.SACPolicy, BOX, {"temperature": [(0, 1.0), (9, 0.1)]}),
    **learners_of_extensions(),
}
ON_POLICY: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "ppo": (tk.PPOPolicy, CHOICE, {"clip_ratio": [(0, 0.2), (9, 0.1)]}),
    "ppo of a Box": (tk.PPOPolicy, BOX, {}),
    "ppo, tanh": (tk.PPOPolicy, BOX, {"action_bound_method": "tanh"}),
    "a2c": (tk.A2CPolicy, CHOICE, {}),
    "reinforce": (tk.ReinforcePolicy, BOX, {}),
}
EVERY = [pytest.param(how, by_torch, id=f"{how}, {'torch' if by_torch else 'numpy'}")
         for how in (*OFF_POLICY, *ON_POLICY) for by_torch in (False, True)]  # fmt: skip
every = pytest.mark.parametrize(("how", "by_torch"), EVERY)


def made(how: str, by_torch: bool) -> Any:
    kind, action_space, options = (OFF_POLICY | ON_POLICY)[how]
    policy = kind.for_envs(Spaces(OBS, action_space), hidden=(8,), device="cpu", seed=0, **options)
    return torch_only(policy) if by_torch else policy


def in_dtype(rows: Any, dtype: Any) -> Any:
    """Return a batch or rollout whose columns of floats, observations apart, are of another dtype."""

    def cast(leaf: Any) -> Any:
        return leaf.astype(dtype) if isinstance(leaf, np.ndarray) and leaf.dtype.kind == "f" else leaf

    columns = {field.name: getattr(rows, field.name) for field in dataclasses.fields(rows)}
    skipped = ("obs", "next_obs", "last_obs") if dtype is np.int64 else ()
    return dataclasses.replace(
        rows, **{name: tree.map_tree(cast, column) for name, column in columns.items() if name not in skipped}
    )


def update(policy: Any, dtype: Any = None) -> Any:
    """Learn once from made-up rows and return all weights."""
    if hasattr(policy, "learn"):
        rollout = played(policy, OBS)
        list(policy.learn(rollout if dtype is None else in_dtype(rollout, dtype), step=0))
    else:
        rng = np.random.default_rng(0)
        is_box = isinstance(policy.action_space, spaces.Box)
        action = rng.uniform(-2, 2, (16, 2)).astype(np.float32) if is_box else rng.integers(3, size=16)
        batch = batch_of(16, space=OBS, action=action)
        policy.update(batch if dtype is None else in_dtype(batch, dtype), step=0)
    return policy.get_weights()


def assert_same(one: Any, other: Any) -> None:
    for name, weight in one.items():
        np.testing.assert_array_equal(weight, other[name], err_msg=name)


@pytest.fixture
def default_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.one_of_each
@every
def test_a_batch_in_float64_is_learned_from_as_one_in_float32(how: str, by_torch: bool) -> None:
    assert_same(update(made(how, by_torch), np.float64), update(made(how, by_torch)))


@pytest.mark.one_of_each
@pytest.mark.parametrize("by_torch", [False, True], ids=["numpy", "torch"])
@pytest.mark.parametrize("how", OFF_POLICY)
def test_rewards_and_weights_may_be_integers(how: str, by_torch: bool) -> None:
    one, other = made(how, by_torch), made(how, by_torch)
    action = np.zeros((8, 2), np.float32) if isinstance(one.action_space, spaces.Box) else np.zeros(8, np.int64)
    batch = batch_of(8, space=OBS, action=action, reward=np.ones(8, np.float32), weight=np.ones(8, np.float32))
    one.update(batch, step=0)
    other.update(dataclasses.replace(batch, reward=np.ones(8, np.int64), weight=np.ones(8, np.int64)), step=0)
    assert_same(one.get_weights(), other.get_weights())


@pytest.mark.parametrize("by_torch", [False, True], ids=["numpy", "torch"])
@pytest.mark.parametrize("how", ["dqn", "cql", *learners_of_extensions("TD_LEARNERS")])
def test_discrete_actions_that_are_no_integers_are_rejected(how: str, by_torch: bool) -> None:
    policy = made(how, by_torch)
    rule = rf"{type(policy).__name__}: actions of Discrete\(3\) must be integers, got float64: cast them"
    with pytest.raises(tk.ConfigError, match=rule):
        policy.update(batch_of(4, space=OBS, action=np.zeros(4)), step=0)


@pytest.mark.parametrize("how", ON_POLICY)
def test_a_rollout_without_a_column_the_policy_stored_is_rejected_by_name(how: str) -> None:
    policy = made(how, by_torch=False)
    rollout = played(policy, OBS)
    for name in policy.extras_spec:
        rest = {other: column for other, column in rollout.extras.items() if other != name}
        with pytest.raises(tk.ConfigError, match=f"{type(policy).__name__} needs the columns \\['{name}'\\]"):
            list(policy.learn(dataclasses.replace(rollout, extras=rest), step=0))


@pytest.mark.one_of_each
@every
def test_inside_no_grad_an_update_is_the_same(how: str, by_torch: bool) -> None:
    one, other = made(how, by_torch), made(how, by_torch)
    with torch.no_grad():
        inside = update(one)
        assert not torch.is_grad_enabled()
    assert_same(inside, update(other))


@pytest.mark.one_of_each
@every
def test_inside_inference_mode_an_update_is_rejected_and_acting_is_not(how: str, by_torch: bool) -> None:
    policy = made(how, by_torch)
    before = policy.get_weights()
    with torch.inference_mode():
        policy.act(observations(OBS, 3), explore=True)
        with pytest.raises(tk.ConfigError, match=r"cannot learn inside torch.inference_mode\(\)"):
            update(policy)
    assert_same(before, policy.get_weights())
    update(policy)


@pytest.mark.one_of_each
@every
def test_with_all_parameters_frozen_an_update_is_rejected(how: str, by_torch: bool) -> None:
    policy = made(how, by_torch)
    for parameter in policy.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(tk.ConfigError, match=r"the loss of \w+ has no gradient, .* unfreeze one"):
        update(policy)
    for parameter in policy.parameters():
        parameter.requires_grad_(True)
    update(policy)


@pytest.mark.one_of_each
@every
@pytest.mark.usefixtures("default_float64")
def test_torchs_default_dtype_changes_nothing(how: str, by_torch: bool) -> None:
    policy = made(how, by_torch)
    action = policy.act(observations(OBS, 5), explore=True).action
    after = update(policy)
    torch.set_default_dtype(torch.float32)
    other = made(how, by_torch)
    np.testing.assert_array_equal(action, other.act(observations(OBS, 5), explore=True).action)
    assert_same(after, update(other))
    assert {parameter.dtype for parameter in policy.parameters()} == {torch.float32}


@pytest.mark.global_rng
def test_a_network_of_another_dtype_is_rejected_with_the_remedy() -> None:
    network = torch.nn.Linear(4, 3, dtype=torch.float64)
    with pytest.raises(tk.ConfigError, match=r"weight must be float32, .* got torch.float64: call float\(\) on"):
        tk.DQNPolicy(network, observation_space=OBS, action_space=CHOICE, device="cpu")


@pytest.mark.global_rng
def test_a_network_made_inside_inference_mode_is_rejected() -> None:
    with torch.inference_mode():
        network = torch.nn.Linear(4, 3)
    with pytest.raises(tk.ConfigError, match=r"was made inside torch.inference_mode\(\)"):
        tk.DQNPolicy(network, observation_space=OBS, action_space=CHOICE, device="cpu")
