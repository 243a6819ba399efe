"""Offline training: a clock of updates, rows refused before anything runs, goings-on to the bit, no collects."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from numpy.typing import NDArray

import trainkit as tk
from tests.trainer.keyboard import Keyboard
from tests.trainer.toys import (
    N_ROWS,
    Log,
    Raising,
    Walk,
    columns,
    is_apart,
    leaves,
    make_offline_trainer,
    make_policy,
    untimed,
)
from trainkit.core.data import ArraySpec, RowSpec


def everything(trainer: tk.OfflineTrainer) -> dict[str, Any]:
    """Take down every bit a run continues from."""
    parts = {
        "policy": trainer.policy.training_state(),
        "buffer": trainer.buffer.state_dict(),
        "trainer": trainer.state_dict(),
    }
    return {path: leaf for path, leaf in leaves(parts) if not is_apart(path)}


# ---- the clock ----


def test_an_offline_epoch_has_the_given_updates_and_no_environment_step() -> None:
    results = list(make_offline_trainer())
    assert [result.info.gradient_step for result in results] == [6, 12, 18]
    assert [result.info.env_step for result in results] == [0, 0, 0]
    assert all(result.stats.train.is_empty for result in results)
    assert [result.info.n_episode for result in results] == [0] * 3


def test_epochs_count_from_the_updates_that_the_policy_has_when_the_first_begins(tmp_path: Path) -> None:
    policy = make_offline_trainer().policy
    trainers = [make_offline_trainer(policy=policy) for _ in range(2)]
    assert [info.gradient_step for trainer in trainers for _, _, info in trainer] == [6, 12, 18, 24, 30, 36]
    assert trainers[1].state_dict()["metrics"]["updates"][0]["n_updates"] == {"": 6}
    trainers[0].save(tmp_path, include=["policy"])
    loaded = make_offline_trainer()
    loaded.load(tmp_path, include=["policy"])
    results = list(loaded)
    assert [info.gradient_step for _, _, info in results] == [42, 48, 54]
    info = results[-1].info
    assert info.updates_per_second == pytest.approx(18 / info.update_seconds)


def test_a_policy_that_is_loaded_in_the_middle_of_a_run_moves_no_epoch(tmp_path: Path) -> None:
    trainer = make_offline_trainer()
    trainer.save(tmp_path, include=["policy"])
    next(trainer)
    trainer.load(tmp_path, include=["policy"])
    assert [(epoch, info.gradient_step) for epoch, _, info in trainer] == [(2, 6), (3, 12)]
    assert trainer.info.updates_per_second == pytest.approx(18 / trainer.info.update_seconds)


def test_schedules_of_policy_and_buffer_read_updates() -> None:
    learner = make_policy(tk.make_envs(Walk, 2), optimizer=tk.Adam([(0, 0.0), (100, 1e-2)]))
    results = list(make_offline_trainer(policy=learner))
    # updates 0 to 5, 6 to 11, 12 to 17 of a rate of 1e-4 per update
    assert [result.stats["update/lr"] for result in results] == pytest.approx([2.5e-4, 8.5e-4, 14.5e-4])
    assert [result.stats["buffer/beta"] for result in results] == pytest.approx([0.6, 0.8, 1.0])


def test_reports_are_written_at_updates() -> None:
    class Written:
        folder = None

        def __init__(self) -> None:
            self.steps: list[int] = []

        def write(self, step: int, numbers: Any) -> None:
            self.steps.append(step)

        def describe(self, settings: Any) -> None:
            self.settings = settings

        def close(self) -> None: ...

    logger = Written()
    make_offline_trainer(logger=logger, log_every=4).run()
    assert logger.steps == [4, 6, 10, 12, 16, 18]
    received = {"trainer": "OfflineTrainer", "update_per_epoch": 6, "batch_size": 4, "n_rows": 50, "env": None}
    assert received.items() <= logger.settings.items()
    assert "step_per_epoch" not in logger.settings


def test_max_env_step_and_the_best_count_updates() -> None:
    trainer = make_offline_trainer(test=True, max_env_step=8)
    results = list(trainer)
    assert [result.info.gradient_step for result in results] == [6, 8]
    assert trainer.stop_reason == "max_env_step"
    assert trainer.info.best_env_step in (6, 8)


def test_a_line_per_epoch_speaks_of_updates_alone(capfd: pytest.CaptureFixture[str]) -> None:
    make_offline_trainer(verbose=True, max_epoch=1).run()
    line, last = capfd.readouterr().out.splitlines()
    assert last.startswith("ended: max_epoch after 6 updates")
    parts = line.split(" | ")
    assert parts[:2] == ["epoch 1", "6 updates"]
    assert parts[2].startswith("loss")
    assert parts[3].endswith("updates/s")


# ---- events, priorities ----


def test_hooks_come_in_order_and_none_of_collecting() -> None:
    log = Log()
    make_offline_trainer(test=True, max_epoch=2, update_per_epoch=2, callbacks=[log]).run()
    epoch = ["on_train_batch", "on_update_end"] * 2 + ["on_evaluate_start", "on_evaluate_end", "on_epoch_end"]
    epoch.append("on_epoch_reported")
    delivered = [
        event for event in log.events if event not in ("on_best", "on_env_created") and "on_episode_" not in event
    ]
    assert delivered == ["on_train_start", *epoch, *epoch, "on_train_end"]
    assert "on_best" in log.events


def test_priorities_are_written_back() -> None:
    trainer = make_offline_trainer()
    before = dict(leaves(trainer.buffer.state_dict()["sampler"]))
    trainer.run()
    assert dict(leaves(trainer.buffer.state_dict()["sampler"])) != before


def test_a_batch_may_be_larger_than_the_dataset() -> None:
    assert make_offline_trainer(batch_size=2 * N_ROWS).run().gradient_step == 18


# ---- determinism and goings-on ----


def test_the_seed_fills_policy_and_buffer_and_decides_everything() -> None:
    runs = []
    for seed in (1, 1, 2):
        trainer = make_offline_trainer(seed=seed, test=True)
        numbers = [untimed(result) for result in trainer]
        runs.append((numbers, everything(trainer)))
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_evaluating_and_logging_change_nothing(tmp_path: Path) -> None:
    alone, watched = make_offline_trainer(), make_offline_trainer(test=True, logger=tmp_path, log_every=1)
    alone.run()
    watched.run()
    mine, theirs = everything(alone), everything(watched)
    assert {path: mine[path] for path in mine if not path.startswith("/trainer")} == {
        path: theirs[path] for path in theirs if not path.startswith("/trainer")
    }


@pytest.mark.parametrize("n_before", [1, 2])
def test_resuming_from_a_checkpoint_is_the_same_to_the_bit(tmp_path: Path, n_before: int) -> None:
    straight, first = make_offline_trainer(test=True), make_offline_trainer(test=True)
    expected = [untimed(result) for result in straight]
    numbers = [untimed(next(first)) for _ in range(n_before)]
    first.save(tmp_path)
    again = make_offline_trainer(test=True, seed=77, resume_from=tmp_path)
    assert again.clock == 6 * n_before
    numbers += [untimed(result) for result in again]
    assert numbers == expected
    assert everything(again) == everything(straight)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("mine")])
def test_what_a_callback_raises_loses_no_update(error: BaseException) -> None:
    straight, broken = make_offline_trainer(), make_offline_trainer(callbacks=[Raising(error, at=4)])
    expected = [untimed(result) for result in straight]
    with pytest.raises(type(error)):
        next(broken)
    assert broken.gradient_step == 4
    assert [untimed(result) for result in broken] == expected
    assert everything(broken) == everything(straight)


def test_ctrl_c_waits_for_the_update_that_runs() -> None:
    keyboard = Keyboard([4])
    straight, broken = make_offline_trainer(), make_offline_trainer(callbacks=[keyboard])
    expected = [untimed(result) for result in straight]
    with pytest.raises(KeyboardInterrupt):
        next(broken)
    assert broken.gradient_step == 3
    assert [untimed(result) for result in broken] == expected


# ---- what is refused ----


def with_nan(name: str, value: float = np.nan) -> dict[str, Any]:
    changed: NDArray[Any] = columns()[name].copy()
    changed[17] = value
    return columns(**{name: changed})


@pytest.mark.parametrize("name", ["obs", "next_obs", "reward"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_refused_by_column_before_training(name: str, value: float) -> None:
    buffer = tk.ReplayBuffer(N_ROWS)  # rows added one by one, which are not looked at as those of from_arrays are
    obs, action = (ArraySpec(shape=s, dtype=np.dtype(d)) for s, d in (((2,), np.float32), ((), np.int64)))
    buffer.bind(RowSpec(n_envs=1, obs=obs, action=action, extras={}))
    own = with_nan(name, value) | {"truncated": np.zeros(N_ROWS, np.bool_)}
    for i in range(N_ROWS):
        row = {column: values[i : i + 1] for column, values in own.items()}
        buffer.add(tk.Transition(**row, env_ids=np.zeros(1, np.intp), extras={}))
    with pytest.raises(tk.ConfigError, match=rf"OfflineTrainer.buffer must hold finite numbers, but {name}.* is"):
        make_offline_trainer(buffer=buffer)


@pytest.mark.parametrize(
    ("changed", "received"),
    [
        ({"obs": np.zeros((N_ROWS, 3), np.float32), "next_obs": np.zeros((N_ROWS, 3), np.float32)}, r"float32\[3\]"),
        ({"obs": np.zeros((N_ROWS, 2)), "next_obs": np.zeros((N_ROWS, 2))}, r"float64\[2\], the policy's .* float32"),
        ({"action": np.full(N_ROWS, 2)}, r"in \[2, 2\], the policy's action space is Discrete\(2\)"),
        ({"action": np.full(N_ROWS, -1)}, r"in \[-1, -1\]"),
        ({"action": np.zeros(N_ROWS)}, r"actions float64\[\]"),
        ({"action": np.zeros((N_ROWS, 1), np.int64)}, r"actions int64\[1\]"),
    ],
)
def test_rows_of_other_spaces_are_refused_by_name(changed: dict[str, Any], received: str) -> None:
    with pytest.raises(tk.SpaceMismatchError, match=received):
        make_offline_trainer(rows=columns(**changed))


def test_an_action_that_was_illegal_is_refused() -> None:
    space = gym.spaces.Dict({"obs": Walk.observation_space, "action_mask": gym.spaces.MultiBinary(2)})
    mask = np.ones((N_ROWS, 2), np.int8)
    obs, after = ({"obs": columns()[name], "action_mask": mask} for name in ("obs", "next_obs"))

    class Spaces:
        observation_space, action_space = space, Walk.action_space

    learner = tk.DQNPolicy.for_envs(Spaces(), hidden=(4,), device="cpu")
    make_offline_trainer(policy=learner, rows=columns(obs=obs, next_obs=after)).run()
    mask[9, columns()["action"][9]] = 0
    with pytest.raises(tk.ConfigError, match="illegal by the mask"):
        make_offline_trainer(policy=learner, rows=columns(obs=obs, next_obs=after))


@pytest.mark.parametrize(
    ("options", "received"),
    [
        ({"buffer": tk.ReplayBuffer(10)}, "OfflineTrainer.buffer is empty"),
        (
            {"buffer": tk.RolloutBuffer()},
            "draws from a replay buffer, got .*: use ReplayBuffer, or give it what buffer.Dataset has: episodes, "
            "is_seeded, prioritized, sample, seed, transitions, update_priorities",
        ),
        ({"buffer": [1, 2]}, r"OfflineTrainer.buffer must be a Dataset, got \[1, 2\]"),
        ({"batch_size": 0}, "OfflineTrainer.batch_size must be a whole number >= 1"),
        ({"update_per_epoch": 0}, "OfflineTrainer.update_per_epoch must be a whole number >= 1"),
        ({"max_epoch": -1}, "OfflineTrainer.max_epoch must be a whole number >= 0"),
        ({"train_fn": print}, "OfflineTrainer.train_fn is about collecting"),
        ({"test_in_train": True, "stop_fn": bool}, "OfflineTrainer.test_in_train is about collecting"),
        ({"step_per_epoch": 5}, "unknown option 'step_per_epoch'"),
        ({"stop_fn": bool}, "stop_fn needs evaluations"),
    ],
)
def test_what_cannot_work_is_refused_at_construction(options: dict[str, Any], received: str, tmp_path: Path) -> None:
    with pytest.raises(tk.ConfigError, match=received):
        make_offline_trainer(**options, logger=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_policy_that_cannot_learn_from_rows_is_refused() -> None:
    learner: Any = tk.PPOPolicy.for_envs(tk.make_envs(Walk, 1), hidden=(4,), device="cpu")
    with pytest.raises(tk.ConfigError, match="PPOPolicy has no update"):
        make_offline_trainer(policy=learner)


def test_a_policy_without_spaces_is_rejected() -> None:
    learner = tk.DQNPolicy(tk.nets.QNetwork((2,), 2), device="cpu")
    with pytest.raises(tk.ConfigError, match="policy must know its spaces"):
        make_offline_trainer(policy=learner)


def test_a_network_that_does_not_fit_the_spaces_is_refused() -> None:
    spaces = {"observation_space": Walk.observation_space, "action_space": Walk.action_space}
    with pytest.raises(tk.SpaceMismatchError, match="gives outputs"):
        make_offline_trainer(policy=tk.DQNPolicy(tk.nets.QNetwork((2,), 3), **spaces, device="cpu"))


def test_every_row_is_observed_whichever_collector_stored_it() -> None:
    """Rows of several environments, wrapped around, in chunks of any size."""
    envs = tk.make_envs(Walk, 3)
    learner = make_policy(envs)
    buffer = tk.ReplayBuffer(31)
    tk.Collector(learner, envs, buffer).collect(n_step=100)
    for size in (1, 7, 31, 1_000):
        chunks = list(buffer.transitions(size))
        assert [len(chunk.reward) for chunk in chunks] == [size] * (31 // size) + [31 % size] * (31 % size > 0)
        slots = np.concatenate([chunk.obs for chunk in chunks])
        drawn = buffer.sample(2_000, horizon=tk.Horizon())
        stored = {row.tobytes() for row in slots}
        assert {row.tobytes() for row in drawn.obs} == stored
    assert next(iter(tk.ReplayBuffer(5).transitions()), None) is None


def test_without_a_batch_size_every_update_learns_from_all_rows() -> None:
    seen: list[int] = []

    class Seen(tk.Callback):
        def on_train_batch(self, trainer: tk.Trainer, batch: tk.TransitionBatch) -> None:
            assert len(np.unique(batch.slots)) == N_ROWS
            seen.append(len(batch))

    trainer = make_offline_trainer(batch_size=None, callbacks=[Seen()])
    trainer.run()
    assert seen == [N_ROWS] * 18
    assert trainer.settings()["batch_size"] is None


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize("moment", [1, 2, 6, 7, 13, 18])
def test_a_save_within_on_train_batch_continues_to_the_same_bits(moment: int, tmp_path: Path) -> None:
    class Save(tk.Callback):
        n_batches = 0

        def on_train_batch(self, trainer: tk.Trainer, batch: Any) -> None:
            self.n_batches += 1
            if self.n_batches == moment:
                trainer.save(tmp_path / "run")

    straight = make_offline_trainer(callbacks=[Save()])
    straight.run()
    resumed = make_offline_trainer(resume_from=tmp_path / "run")
    resumed.run()
    assert everything(resumed) == everything(straight)
