"""A policy names stored columns, and every trainer brings them to its updates."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

import trainkit as tk
from tests.trainer.doubling import assert_columns_are_of_their_rows, options, parts
from tests.trainer.toys import Walk


@pytest.mark.one_of_each
@pytest.mark.parametrize(
    ("kind", "how"),
    [
        (tk.ReplayBuffer, {}),
        (tk.PrioritizedReplayBuffer, {}),
        (tk.PrioritizedReplayBuffer, {"refresh_priorities": "late"}),
        (tk.ReplayBuffer, {"refresh_priorities": "round", "updates_per_round": 4}),
        (tk.PrioritizedReplayBuffer, {"refresh_priorities": "round", "updates_per_round": 4}),
    ],
    ids=["uniform-update", "prioritized-update", "prioritized-late", "uniform-round", "prioritized-round"],
)
def test_every_off_policy_update_gets_the_columns_it_names(kind: type[tk.ReplayBuffer], how: dict[str, Any]) -> None:
    policy, train = parts(kind(100))
    tk.OffpolicyTrainer(policy, train, **options(**how)).run()

    assert_columns_are_of_their_rows(policy)


def test_every_offline_update_gets_them_too() -> None:
    policy, train = parts(tk.ReplayBuffer(100))
    train.collect(n_step=60)
    trainer = tk.OfflineTrainer(
        policy, train.buffer, max_epoch=1, update_per_epoch=20, batch_size=8, seed=1, verbose=False, show_progress=False
    )
    trainer.run()

    assert_columns_are_of_their_rows(policy)


def test_columns_are_on_the_device_with_the_batchs_other_tensors() -> None:
    policy, train = parts(tk.ReplayBuffer(100))
    train.collect(n_step=20)
    assert train.buffer is not None
    batch = train.buffer.sample(8, horizon=policy.horizon, columns=policy.columns)  # type: ignore[attr-defined]
    rows = policy.tensors(batch)

    assert isinstance(rows.extras["doubled"], torch.Tensor)
    assert_array_equal(rows.extras["doubled"].numpy(), 2 * batch.obs)


def test_a_batch_without_the_columns_is_rejected_with_the_remedy() -> None:
    policy, train = parts(tk.ReplayBuffer(100))
    train.collect(n_step=20)
    assert train.buffer is not None
    batch = train.buffer.sample(8, horizon=policy.horizon)  # type: ignore[attr-defined]

    with pytest.raises(tk.ConfigError, match=r"columns names \['doubled', 't'\].*columns=policy.columns"):
        policy.tensors(batch)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            ("dubled",),
            r"Doubling.columns names 'dubled', which the buffer does not have, only .* did you mean 'doubled'\?",
        ),
        ("doubled", r"Doubling.columns must be a sequence of names"),
    ],
)
def test_columns_that_are_not_stored_fail_at_construction(columns: Any, message: str) -> None:
    policy, train = parts(tk.ReplayBuffer(100))
    policy.columns = columns
    with pytest.raises(tk.ConfigError, match=message):
        tk.OffpolicyTrainer(policy, train, **options())
    train.collect(n_step=20)
    with pytest.raises(tk.ConfigError, match=message):
        tk.OfflineTrainer(policy, train.buffer, max_epoch=1, update_per_epoch=2, batch_size=8)  # type: ignore[arg-type]


class Watching(tk.PPOPolicy):
    """Remember the columns of every batch of rows."""

    columns = ("t", "return_to_go", "env_id")

    def __init__(self, *parts: Any, **words: Any) -> None:
        super().__init__(*parts, **words)
        self.seen: list[tuple[NDArray[Any], Mapping[str, Any]]] = []

    def loss(self, rows: Any) -> Any:
        self.seen.append((rows.features.numpy(), {name: column.numpy() for name, column in rows.extras.items()}))
        return super().loss(rows)


def test_on_policy_losses_get_the_columns_in_the_order_of_their_rows() -> None:
    envs = tk.make_envs(Walk, 2, seed=1)
    policy = Watching.for_envs(envs, hidden=(8,), device="cpu", gamma=0.5, engine="torch")  # calls loss every time
    train = tk.Collector(policy, envs, tk.RolloutBuffer())
    tk.OnpolicyTrainer(policy, train, **options(step_per_collect=20)).run()

    assert len(policy.seen) > 3
    for features, extras in policy.seen:
        assert set(extras) == {"t", "return_to_go", "env_id"}
        assert_array_equal(extras["t"], features[:, 1])  # the walk's clock
        assert set(extras["env_id"].tolist()) <= {0, 1}
    known = np.concatenate([extras["return_to_go"] for _, extras in policy.seen])
    assert 0 < np.isfinite(known).sum() < len(known)  # episodes that were still open are nan


def test_an_on_policy_column_that_is_not_there_fails_at_construction() -> None:
    envs = tk.make_envs(Walk, 2, seed=1)
    policy = Watching.for_envs(envs, hidden=(8,), device="cpu")
    policy.columns = ("n",)
    train = tk.Collector(policy, envs, tk.RolloutBuffer())
    with pytest.raises(tk.ConfigError, match=r"Watching.columns names 'n', which the buffer does not have"):
        tk.OnpolicyTrainer(policy, train, **options(step_per_collect=20))


def test_a_round_saved_half_way_keeps_its_columns(tmp_path: Path) -> None:
    how = {"refresh_priorities": "round", "updates_per_round": 6}

    class Save(tk.Callback):
        def on_update_end(self, trainer: Any) -> None:
            if trainer.gradient_step == 8:
                trainer.save(tmp_path / "half")

    policy, train = parts(tk.PrioritizedReplayBuffer(100))
    tk.OffpolicyTrainer(policy, train, **options(**how, callbacks=[Save()])).run()
    resumed, train = parts(tk.PrioritizedReplayBuffer(100))
    tk.OffpolicyTrainer(resumed, train, **options(**how, resume_from=tmp_path / "half")).run()

    assert len(resumed.batches) == len(policy.batches) - 8
    for ours, theirs in zip(policy.batches[8:], resumed.batches, strict=True):
        for name in ("doubled", "t"):
            assert_array_equal(ours.extras[name], theirs.extras[name])


class TestReturnToGo:
    def episode(self, length: int, **flags: bool) -> tk.ReplayBuffer:
        buffer = tk.ReplayBuffer(2 * length, n_envs=1, seed=0)
        for t in range(length):
            now, last = np.array([[float(t)]]), t == length - 1
            flag = {name: np.array([last and flags.get(name, False)]) for name in ("terminated", "truncated")}
            obs = {"obs": now, "action": np.array([0]), "reward": np.array([1.0]), "next_obs": now + 1}
            buffer.add(tk.Transition(**obs, **flag, env_ids=np.array([0]), extras={}))
        return buffer

    @pytest.mark.parametrize("length", [1, 63, 64, 65, 128, 129, 300])
    def test_is_the_discounted_sum_to_the_episodes_end_however_long(self, length: int) -> None:
        for flag in ("terminated", "truncated"):
            batch = self.episode(length, **{flag: True}).sample(
                200, horizon=tk.Horizon(1, gamma=0.99), columns=("return_to_go", "t")
            )
            left = length - batch.extras["t"]
            assert_allclose(batch.extras["return_to_go"], (1 - 0.99**left) / 0.01, rtol=1e-5)

    @pytest.mark.parametrize("length", [1, 63, 64, 65, 128, 300])
    def test_is_nan_where_the_episode_is_open_or_cut(self, length: int) -> None:
        for cuts in (False, True):
            buffer = self.episode(length)
            if cuts:
                buffer.cut(0)
            batch = buffer.sample(50, horizon=tk.Horizon(1), columns=("return_to_go",))
            assert np.isnan(batch.extras["return_to_go"]).all()

    def test_shapes_rewards_as_the_horizon_says(self) -> None:
        buffer = self.episode(3, terminated=True)
        batch = buffer.sample(50, horizon=tk.Horizon(1, gamma=0.5, reward=10.0), columns=("return_to_go", "t"))
        assert_array_equal(batch.extras["return_to_go"], np.array([17.5, 15.0, 10.0])[batch.extras["t"]])
