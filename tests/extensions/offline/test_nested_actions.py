"""Nested actions and rows of discrete and Box columns: in datasets, and learned by BC and BCQ."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainkit as tk
from tests.helpers import nested_actions
from tests.helpers.nested_actions import HYBRID, Dials, Shot, Signals, Turrets, actions_taken
from trainkit.core.spaces import flat_actions, structure_of


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize(
    ("env", "kind"),
    [
        (Signals, tk.DiscreteBCQPolicy),
        (Signals, tk.BCPolicy),
        (Dials, tk.BCPolicy),
        (Turrets, tk.BCPolicy),
    ],
    ids=["bcq", "bc", "bc box", "bc hybrid"],
)
def test_predict_returns_nested_actions_that_the_space_contains(env: type[Signals], kind: Any, tmp_path: Path) -> None:
    nested_actions.check_that_predict_returns_nested_actions_that_the_space_contains(env, kind, {}, tmp_path)


def test_bcq_rejects_rows_of_both_kinds_and_names_what_learns_them() -> None:
    with pytest.raises(tk.SpaceMismatchError, match=r"DiscreteBCQPolicy needs .*: use PPOPolicy or A2CPolicy"):
        tk.DiscreteBCQPolicy.for_envs(Turrets())


def test_mean_squared_error_rejects_rows_of_both_kinds() -> None:
    with pytest.raises(tk.ConfigError, match="'mse' measures distances"):
        tk.BCPolicy.for_envs(Turrets(), loss="mse")


@pytest.mark.parametrize("env", [Signals, Dials, Turrets])
def test_a_dataset_keeps_nested_actions(env: type[Signals], tmp_path: Path) -> None:
    envs = tk.make_envs(env, 2, seed=1)
    collector = tk.Collector(tk.RandomPolicy(envs.action_space, seed=1), envs)
    with tk.callbacks.DatasetWriter(tmp_path).record(collector):
        collector.collect(n_episode=4)
    dataset = tk.load_dataset(tmp_path)
    structure = structure_of(dataset.action_space)
    assert structure is not None
    assert structure.nested == env.action_space
    rows = structure.pack(structure.unpack(dataset.sample(None, horizon=tk.Horizon(1)).action))  # in the leaves' dtypes
    own = sorted(structure.pack(action).tolist() for taken in actions_taken(collector) for action in taken)
    assert sorted(rows.tolist()) == own
    learner = tk.BCPolicy.for_envs(dataset, hidden=(8,))
    options: dict[str, Any] = {"max_epoch": 1, "update_per_epoch": 3, "batch_size": 8, "verbose": False}
    assert tk.OfflineTrainer(learner, dataset, seed=1, **options).run().gradient_step == 3


def test_a_dataset_with_a_choice_that_is_none_of_its_leaf_is_rejected() -> None:
    def columns(choice: float) -> dict[str, Any]:
        action = np.array([[0, 0, 1], [0, 0, choice]], np.float32)
        rows = {"obs": np.zeros((2, 3), np.float32), "action": action, "reward": np.zeros(2, np.float32)}
        return rows | {"terminated": np.array([False, True])}

    assert len(tk.ReplayBuffer.from_arrays(**columns(2), spaces=Turrets())) == 2
    with pytest.raises(tk.ConfigError, match=r"action must be in flat Dict.*, got 2.5 in row 1, index \(2,\)"):
        tk.ReplayBuffer.from_arrays(**columns(2.5), spaces=Turrets())
    learner = tk.BCPolicy.for_envs(Turrets(), hidden=(4,))
    options: dict[str, Any] = {"max_epoch": 1, "update_per_epoch": 1, "batch_size": 2, "verbose": False}
    with pytest.raises(tk.SpaceMismatchError, match="the policy's action space is flat Dict"):
        tk.OfflineTrainer(learner, tk.ReplayBuffer.from_arrays(**columns(2.5)), seed=1, **options).run()


def test_behavior_cloning_learns_both_parts_of_recorded_actions() -> None:
    signals = np.random.default_rng(0).integers(0, 3, 300)
    structure = structure_of(flat_actions(HYBRID))
    assert structure is not None
    aim = np.stack([signals * 5.0, 10.0 - signals], axis=1)
    buffer = tk.ReplayBuffer.from_arrays(
        obs=np.eye(3, dtype=np.float32)[signals],
        action=structure.pack({"aim": aim, "move": signals + 1}),
        reward=np.zeros(300, np.float32),
        terminated=np.ones(300, np.bool_),
        spaces=Turrets(),
    )
    policy = tk.BCPolicy.for_envs(buffer, hidden=(32,), lr=0.02, seed=1)
    options: dict[str, Any] = {"max_epoch": 1, "update_per_epoch": 200, "batch_size": 64, "verbose": False}
    tk.OfflineTrainer(policy, buffer, seed=1, threads=1, **options).run()
    policy.update(buffer.sample(64, horizon=policy.horizon), step=0)
    assert policy.read_metrics()["accuracy"] == 1  # of the moves: no drawn or predicted aim equals another
    action = policy.predict(np.eye(3, dtype=np.float32))
    assert action["move"].tolist() == [1, 2, 3]
    np.testing.assert_allclose(action["aim"], [[0, 10], [5, 9], [10, 8]], atol=0.5)


def test_the_preset_of_behavior_cloning_learns_from_rows_of_both_kinds() -> None:
    envs = tk.make_envs(Shot, 2, seed=1)
    train = tk.Collector(tk.RandomPolicy(envs.action_space, seed=1), envs, tk.ReplayBuffer(100, spaces=envs))
    train.collect(n_step=50)
    trainer = tk.presets.bc(train.buffer, Shot, seed=1, max_epoch=1, update_per_epoch=4, verbose=False)
    assert trainer.run().gradient_step == 4
