"""What holds of every policy holds of BC and BCQ: dtypes, modes, masks, networks, files, and units of actions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from torch import nn

import trainkit as tk
from tests.helpers.learning import Spaces, batch_of
from tests.nets import test_action_scale
from tests.policy import (
    learners,
    test_dtypes_and_modes,
    test_exploration,
    test_load,
    test_network_options,
    test_no_legal_action,
    test_predict,
)
from tests.policy.test_dtypes_and_modes import BOX, CHOICE

BY_TORCH = pytest.mark.parametrize("by_torch", [False, True], ids=["numpy", "torch"])
DISCRETE = {"bcq": (tk.DiscreteBCQPolicy, CHOICE, {}), "bc": (tk.BCPolicy, CHOICE, {})}
LEARNERS: dict[str, Any] = {**DISCRETE, "bc of a Box": (tk.BCPolicy, BOX, {})}
NETWORKS: dict[str, Any] = {
    "bcq": (tk.DiscreteBCQPolicy, learners.THREE_ACTIONS, {}),
    "bc": (tk.BCPolicy, learners.FORCE, {}),
}
SAVED = {
    "bc": lambda: tk.BCPolicy.for_envs(learners.PLACES, hidden=(8,), device="cpu", seed=3),
    "bcq": lambda: tk.DiscreteBCQPolicy.for_envs(learners.PLACES, hidden=(8,), threshold=0.2, device="cpu", seed=3),
}


@pytest.fixture(autouse=True)
def cases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the policies to those that the tests of all policies know."""
    monkeypatch.setattr(test_dtypes_and_modes, "OFF_POLICY", test_dtypes_and_modes.OFF_POLICY | LEARNERS)
    monkeypatch.setattr(learners, "LEARNERS", learners.LEARNERS | NETWORKS)
    monkeypatch.setitem(test_no_legal_action.PARTS, "bcq", (tk.DiscreteBCQPolicy, {}))
    for name, make in SAVED.items():
        monkeypatch.setitem(learners.MADE, name, make)


# ---- dtypes and modes ----


@pytest.mark.one_of_each
@BY_TORCH
@pytest.mark.parametrize("how", LEARNERS)
@pytest.mark.parametrize(
    "check",
    [
        test_dtypes_and_modes.test_a_batch_in_float64_is_learned_from_as_one_in_float32,
        test_dtypes_and_modes.test_rewards_and_weights_may_be_integers,
        test_dtypes_and_modes.test_inside_no_grad_an_update_is_the_same,
        test_dtypes_and_modes.test_inside_inference_mode_an_update_is_rejected_and_acting_is_not,
        test_dtypes_and_modes.test_with_all_parameters_frozen_an_update_is_rejected,
    ],
)
def test_dtypes_and_modes_of_torch_change_nothing(check: Any, how: str, by_torch: bool) -> None:
    check(how, by_torch)


@pytest.mark.one_of_each
@BY_TORCH
@pytest.mark.parametrize("how", LEARNERS)
@pytest.mark.usefixtures("default_float64")
def test_torchs_default_dtype_changes_nothing(how: str, by_torch: bool) -> None:
    test_dtypes_and_modes.test_torchs_default_dtype_changes_nothing(how, by_torch)


default_float64 = test_dtypes_and_modes.default_float64


@BY_TORCH
@pytest.mark.parametrize("how", DISCRETE)
def test_discrete_actions_that_are_no_integers_are_rejected(how: str, by_torch: bool) -> None:
    test_dtypes_and_modes.test_discrete_actions_that_are_no_integers_are_rejected(how, by_torch)


@BY_TORCH
def test_no_legal_action_is_learned_from_like_a_termination(by_torch: bool) -> None:
    test_no_legal_action.test_it_is_learned_from_like_a_termination("bcq", by_torch)


# ---- acting ----


@pytest.mark.parametrize("explore", [False, True])
@pytest.mark.parametrize(
    ("kind", "action_space", "shapes"),
    [
        pytest.param(tk.DiscreteBCQPolicy, CHOICE, {"q_values": (3,), "action_prob": ()}, id="bcq"),
        pytest.param(tk.BCPolicy, CHOICE, {"probability": (3,), "action_prob": ()}, id="bc"),
        pytest.param(tk.BCPolicy, BOX, {"numbers": (2,)}, id="bc of a Box"),
    ],
)
def test_extras_have_the_shape_of_the_call_and_change_no_action(
    kind: Any, action_space: Any, shapes: Any, explore: bool
) -> None:
    check = test_predict.test_extras_have_the_shape_of_the_call_and_change_no_action
    check(kind, action_space, {}, shapes, explore)


@pytest.mark.parametrize("explore", ["no", None, 0, 1.0])
def test_what_is_neither_true_nor_false_is_rejected_as_explore(explore: Any) -> None:
    policy, methods = tk.BCPolicy.for_envs(Spaces(), seed=1), ("act", "predict", "action_probability")
    check = test_exploration.test_what_is_neither_true_nor_false_is_refused_wherever_a_policy_takes_explore
    check(policy, methods, explore)


# ---- networks ----


@pytest.mark.global_rng  # a module of the user's
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(
    "options",
    [
        {"norm": "layer", "activation": nn.SiLU},
        {"norm": "rms"},
        {"encoder": learners.Squares},
    ],
    ids=lambda options: "-".join(options),
)
def test_a_policy_learns_with_network_options_and_is_loaded_by_their_names(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    check = test_network_options.test_every_policy_learns_with_them_and_is_loaded_by_their_names
    check(name, options, tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoder": "impalla"}, "got 'impalla', did you mean 'impala'"),
        ({"encoder": "nature"}, "encoder 'nature' is for images"),
        ({"activation": "rellu"}, "got 'rellu', did you mean 'relu'"),
        ({"norm": "batch"}, "norm must be 'layer' or 'rms' or None, got 'batch'"),
        ({"nrom": "layer"}, "unknown option 'nrom', did you mean 'norm'"),
    ],
)
def test_what_is_misspelled_is_named(options: dict[str, Any], message: str) -> None:
    test_network_options.test_what_is_misspelled_is_named("bc", options, message)


def test_misspelled_options_of_both_networks_are_named() -> None:
    with pytest.raises(tk.ConfigError, match="did you mean 'threshold'"):
        tk.DiscreteBCQPolicy.for_envs(Spaces(), thresold=1)
    assert tk.DiscreteBCQPolicy.for_envs(Spaces(), hidden=(4,), threshold=0.2, dueling=True, seed=1)


def test_for_envs_sees_grids_as_dqn_does() -> None:
    board = Spaces(spaces.Box(0, 1, (10, 10, 4), np.bool_))
    one, other = (
        [tuple(weight.shape) for weight in kind.for_envs(board, device="cpu", seed=0).network.parameters()]
        for kind in (tk.BCPolicy, tk.DQNPolicy)
    )
    assert one == other


@pytest.mark.parametrize("kind", SAVED)
def test_a_loaded_policy_acts_as_it_did(kind: str, tmp_path: Path) -> None:
    test_load.test_a_policy_acts_as_it_did(kind, tmp_path)


# ---- units of actions ----


@pytest.mark.one_of_each
@pytest.mark.parametrize("by_torch", [False, True], ids=["numpy", "torch"])
@pytest.mark.parametrize("space", test_action_scale.EVERY, ids=str)
def test_predict_is_always_inside_the_space(space: Any, by_torch: bool) -> None:
    test_action_scale.TestActing().test_predict_is_always_inside_the_space(tk.BCPolicy, space, by_torch)


@pytest.mark.parametrize("loss", ["likelihood", "mse"])
def test_cloning_learns_data_in_units_of_the_space(loss: str) -> None:
    policy = test_action_scale.made(tk.BCPolicy, test_action_scale.WIDE, loss=loss, lr=1e-2)
    obs = np.repeat(np.eye(4, dtype=np.float32)[:2], 16, axis=0)
    action = np.repeat(np.array([[100.0], [900.0]], np.float32), 16, axis=0)
    for step in range(150):
        policy.update(batch_of(32, obs=obs, action=action), step=step)
    np.testing.assert_allclose(policy.predict(obs), action, atol=20.0)


def test_the_preset_of_cloning_may_leave_the_units_of_the_space() -> None:
    envs = tk.make_envs("Pendulum-v1", 1, seed=1)
    buffer = tk.ReplayBuffer(100)
    tk.Collector(tk.RandomPolicy(envs.action_space, seed=1), envs, buffer).collect(n_step=100)
    for scaling in (True, False):
        trainer = tk.presets.bc(buffer, "Pendulum-v1", action_scaling=scaling, max_epoch=1, update_per_epoch=1)
        assert trainer.policy.action_scale.scaling is scaling
