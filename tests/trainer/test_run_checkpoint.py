"""Continuing from a checkpoint: the same bits as a run that was never stopped, and nothing that differs is silent."""

import logging
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import trainkit as tk
from tests.helpers.manifests import rewrite
from tests.trainer.runs import RUNS, make_run
from tests.trainer.toys import Walk, everything, make_policy, make_trainer, untimed


def received(result: Any) -> tuple[Any, ...]:
    return untimed(result), result.info.env_step, result.info.gradient_step, result.info.best_score


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("n_epochs", [4, pytest.param(10, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", RUNS)
def test_a_run_split_after_any_epoch_is_the_run_that_was_never_split(name: str, n_epochs: int, tmp_path: Path) -> None:
    straight = make_run(name, max_epoch=n_epochs)
    results = [received(result) for result in straight]
    final = everything(straight)
    saving = make_run(name, max_epoch=n_epochs, checkpoint=tk.Checkpoint(tmp_path, keep_last=n_epochs))
    assert [received(result) for result in saving] == results  # saving itself changes nothing
    for epoch in range(1, n_epochs):
        resumed = make_run(name, seed=99, max_epoch=n_epochs, resume_from=tmp_path / f"save-{epoch:06d}")
        assert [received(result) for result in resumed] == results[epoch:], f"split after epoch {epoch}"
        assert everything(resumed) == final, f"split after epoch {epoch}"


REST = """
import pickle, sys, torch
torch.set_num_threads(1)
from tests.trainer.runs import make_run
from tests.trainer.test_run_checkpoint import everything, received
runs = {name: make_run(name, max_epoch=3, resume_from=f"{sys.argv[1]}/{name}") for name in sys.argv[2:]}
ends = {name: ([received(result) for result in run], everything(run)) for name, run in runs.items()}
pickle.dump(ends, sys.stdout.buffer)
"""


def test_a_new_process_continues_to_the_same_bits(tmp_path: Path) -> None:
    expected = {}
    for name in RUNS:
        run = make_run(name, max_epoch=3, seed=5)
        results = [received(next(run)) for _ in range(2)]
        run.save(tmp_path / name)
        results += [received(result) for result in run]
        expected[name] = (results[2:], everything(run))
    done = subprocess.run([sys.executable, "-c", REST, tmp_path, *RUNS], capture_output=True, check=True)
    there = pickle.loads(done.stdout)  # noqa: S301 - our own words
    for name in RUNS:
        assert there[name] == expected[name], name


# ---- episodes that run ----


def made_of_vector(**options: Any) -> tk.OffpolicyTrainer:
    """Make a run in environments that seed themselves, and so cannot be played again."""
    envs = tk.make_envs(gym.vector.SyncVectorEnv([Walk, Walk]))
    policy = make_policy(envs)
    buffer = tk.PrioritizedReplayBuffer(60)
    own: dict[str, Any] = {"max_epoch": 4, "step_per_epoch": 24, "batch_size": 4, "seed": 1}
    quiet = {"verbose": False, "show_progress": False}
    return tk.OffpolicyTrainer(policy, tk.Collector(policy, envs, buffer), **own | quiet | options)


def test_where_episodes_cannot_be_played_again_that_is_said_once(tmp_path: Path, caplog: Any) -> None:
    first = made_of_vector()
    next(first)
    first.save(tmp_path)
    resumed = made_of_vector(resume_from=tmp_path)
    assert caplog.text.count("the episodes that ran are cut and others begin") == 1
    assert resumed.run().epoch == 4


def test_saved_at_an_episodes_end_both_runs_continue_equally(tmp_path: Path, caplog: Any) -> None:
    first = made_of_vector()
    next(first)
    first.save(tmp_path, at="episode_end")
    resumed = made_of_vector(resume_from=tmp_path)
    assert [received(result) for result in resumed] == [received(result) for result in first]
    assert everything(resumed) == everything(first)
    assert "the episodes that ran" not in caplog.text


def test_a_checkpoint_of_episode_ends_makes_every_split_exact(tmp_path: Path) -> None:
    ends: dict[str, Any] = {"at": "episode_end", "keep_last": 9, "keep_best": None}
    straight = made_of_vector(checkpoint=tk.Checkpoint(tmp_path / "straight", **ends))
    results = [received(result) for result in straight]
    for epoch in range(1, 4):
        split = tk.Checkpoint(tmp_path / str(epoch), **ends)
        resumed = made_of_vector(checkpoint=split, resume_from=tmp_path / "straight" / f"save-{epoch:06d}")
        assert [received(result) for result in resumed] == results[epoch:]


def test_what_callbacks_keep_of_running_episodes_comes_back_by_its_name(tmp_path: Path) -> None:
    class Jumps(tk.Callback):
        def __init__(self) -> None:
            self.received: list[tuple[int, int, float]] = []

        def on_episode_step(self, trainer: tk.Trainer, episode: tk.collector.Episode) -> None:
            episode.user_data["n"] = episode.user_data.get("n", 0) + 1

        def on_episode_end(self, trainer: tk.Trainer, episode: tk.collector.Episode) -> None:
            self.received.append((episode.user_data["n"], episode.length, episode.total_reward))

    straight, first, second = Jumps(), Jumps(), Jumps()
    make_trainer(callbacks=[straight], step_per_epoch=10).run()
    trainer = make_trainer(callbacks=[first], step_per_epoch=10)
    next(trainer)
    trainer.save(tmp_path)
    make_trainer(callbacks=[second], step_per_epoch=10, resume_from=tmp_path).run()
    assert first.received + second.received == straight.received
    assert all(n == length for n, length, _ in straight.received)


# ---- what differs ----


def warnings(caplog: Any) -> list[str]:
    return [record.message for record in caplog.records if record.levelno == logging.WARNING]


def test_changed_settings_are_listed_in_one_warning(tmp_path: Path, caplog: Any) -> None:
    make_trainer(max_epoch=1, policy={"lr": 1e-3}).save(tmp_path)
    make_trainer(
        max_epoch=9, update_per_step=0.25, policy={"lr": [(0, 1e-3), (50, 1e-4)], "gamma": 0.9}, resume_from=tmp_path
    )
    (warning,) = warnings(caplog)
    assert warning.startswith(f"the run continues from {tmp_path} with other settings: policy.gamma None -> 0.9, ")
    assert "policy.lr 0.001 -> [[0, 0.001], [50, 0.0001]]" in warning
    assert warning.endswith("update_per_step 0.5 -> 0.25")


def test_changed_parts_are_printed_as_code_without_defaults(tmp_path: Path, caplog: Any) -> None:
    def parts(lr: Any, target: Any, limit: float) -> dict[str, Any]:
        return {"optimizer": tk.Adam(lr=lr, eps=1e-5), "target": target, "clip": tk.Clip(limit)}

    make_trainer(policy=parts(tk.schedules.Piecewise([(0, 1e-3)]), None, 10.0)).save(tmp_path)
    changed = parts(tk.schedules.Piecewise([(0, 0.5), (9, 0.25)]), tk.Target(3, unit="updates"), 10.0)
    make_trainer(policy=changed, resume_from=tmp_path)
    (warning,) = warnings(caplog)
    assert warning.split(" with other settings: ")[1] == (
        "policy.optimizer Adam(lr=Piecewise(knots=[[0, 0.001]])) -> Adam(lr=Piecewise(knots=[[0, 0.5], [9, 0.25]])), "
        "policy.target None -> Target(every=3, unit='updates', tau=1.0)"
    )


class Scaled(tk.MaxBackup):
    """A backup of a user's."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale


def test_changed_parts_of_users_are_warned_of(tmp_path: Path, caplog: Any) -> None:
    make_trainer(policy={"backup": Scaled(1.0)}).save(tmp_path)
    make_trainer(policy={"backup": Scaled(1.0)}, resume_from=tmp_path)
    assert warnings(caplog) == []
    make_trainer(policy={"backup": Scaled(3.0)}, resume_from=tmp_path)
    make_trainer(policy={"backup": tk.MaxBackup()}, resume_from=tmp_path)
    assert [warning.split(" with other settings: ")[1] for warning in warnings(caplog)] == [
        "policy.backup Scaled() -> Scaled(scale=3.0)",
        "policy.backup Scaled() -> MaxBackup()",
    ]


def test_the_same_settings_are_not_worth_a_word(tmp_path: Path, caplog: Any) -> None:
    make_trainer(max_epoch=1).save(tmp_path)
    make_trainer(max_epoch=5, resume_from=tmp_path)
    assert warnings(caplog) == []


def test_another_seed_is_said_to_do_nothing(tmp_path: Path, caplog: Any) -> None:
    make_trainer(seed=5).save(tmp_path)
    assert make_trainer(seed=7, resume_from=tmp_path).seed == 5
    assert warnings(caplog) == ["the run continues with its own seed 5, not with 7"]


def test_a_stopped_run_stays_stopped_and_one_at_a_limit_continues(tmp_path: Path) -> None:
    class Stop(tk.Callback):
        def on_epoch_end(self, trainer: tk.Trainer, result: Any) -> None:
            trainer.stop("enough")

    first = make_trainer(callbacks=[Stop()], checkpoint=tmp_path / "stopped")
    first.run()
    resumed = make_trainer(resume_from=tmp_path / "stopped")
    assert (resumed.info.stop_reason, list(resumed)) == ("enough", [])
    make_trainer(max_env_step=24, checkpoint=tmp_path / "limited").run()
    assert make_trainer(resume_from=tmp_path / "limited").run().epoch == 3


def test_the_last_evaluation_comes_back(tmp_path: Path) -> None:
    trainer = make_trainer(test=True, max_epoch=1)
    trainer.run()
    trainer.save(tmp_path)
    assert make_trainer(test=True, resume_from=tmp_path).info.last_test == trainer.info.last_test


# ---- on-policy, in the middle of a rollout ----


def test_a_run_interrupted_while_it_learns_from_a_rollout_learns_on_and_is_saved_then(tmp_path: Path) -> None:
    class Stop(tk.Callback):
        n = 0

        def on_update_end(self, trainer: tk.Trainer) -> None:
            self.n += 1
            if self.n == 2:
                raise KeyboardInterrupt

    straight = make_run("ppo", max_epoch=2)
    straight.run()
    trainer = make_run("ppo", max_epoch=2, callbacks=[Stop()])
    with pytest.raises(KeyboardInterrupt):
        next(trainer)
    assert (trainer.gradient_step, len(trainer.buffer)) == (2, 10)
    trainer.save(tmp_path)
    assert len(trainer.buffer) == 0
    resumed = make_run("ppo", max_epoch=2, resume_from=tmp_path)
    for run in (resumed, trainer):
        run.run()
        assert everything(run) == everything(straight)


def test_saving_between_the_updates_of_a_rollout_is_refused(tmp_path: Path) -> None:
    class Save(tk.Callback):
        def on_update_end(self, trainer: tk.Trainer) -> None:
            trainer.save(tmp_path)

    with pytest.raises(
        tk.errors.CheckpointError, match="OnpolicyTrainer cannot be saved between the updates of a rollout"
    ):
        next(make_run("ppo", callbacks=[Save()]))


def test_a_complete_rollout_is_saved_and_learned_from_after_a_resume(tmp_path: Path) -> None:
    class Save(tk.Callback):
        def on_collect_end(self, trainer: tk.Trainer, stats: tk.CollectStats) -> None:
            trainer.save(tmp_path / str(trainer.env_step))

    straight = make_run("ppo", max_epoch=2, callbacks=[Save()])
    straight.run()
    folders = sorted(tmp_path.iterdir())
    assert len(folders) == 5
    for folder in folders:
        resumed = make_run("ppo", max_epoch=2, resume_from=folder)
        resumed.run()
        assert everything(resumed) == everything(straight), folder


def test_what_a_test_collector_has_seen_comes_back(tmp_path: Path) -> None:
    straight = make_run("dqn", max_epoch=4)
    recent = [result.stats.test.recent_returns for result in straight]
    trainer = make_run("dqn", max_epoch=4)
    next(trainer)
    resumed = make_run("dqn", max_epoch=4, resume_from=trainer.save(tmp_path))
    assert [result.stats.test.recent_returns for result in resumed] == recent[1:]
    assert np.isfinite(recent[0].mean)


def test_other_versions_are_logged(tmp_path: Path, caplog: Any) -> None:
    make_trainer().save(tmp_path)
    rewrite(tmp_path, versions=lambda versions: versions | {"torch": "1.0"})
    make_trainer(resume_from=tmp_path)
    (warning,) = warnings(caplog)
    assert warning.startswith(f"{tmp_path} was saved by other versions, the bits may differ: torch 1.0 -> 2.")


def test_another_number_of_threads_is_warned_of(tmp_path: Path, caplog: Any) -> None:
    saved = make_trainer(max_epoch=1, threads=1)
    saved.run()
    saved.save(tmp_path / "run")
    make_trainer(threads=1, resume_from=tmp_path / "run")
    assert "bits may differ" not in caplog.text
    make_trainer(threads=2, resume_from=tmp_path / "run")
    assert "was saved by a run on another machine, the bits may differ: threads 1 -> 2" in caplog.text


def test_changed_arguments_of_environments_are_warned_of(tmp_path: Path, caplog: Any) -> None:
    def pole(**env_options: Any) -> tk.Trainer:
        return tk.presets.dqn(
            "CartPole-v1", seed=1, hidden=(8,), n_envs=2, batch_size=16, n_test_envs=2, device="cpu", verbose=False,
            env_options=env_options,
        )  # fmt: skip

    pole(env_kwargs={"sutton_barto_reward": False}).save(tmp_path / "run")
    pole(env_kwargs={"sutton_barto_reward": False}).load(tmp_path / "run")
    assert "other settings" not in caplog.text
    pole(env_kwargs={"sutton_barto_reward": True}, max_episode_steps=9).load(tmp_path / "run")
    change = "{'sutton_barto_reward': False} -> {'sutton_barto_reward': True}"
    assert f"env_kwargs of the environments {change}" in caplog.text
    assert "max_episode_steps of the environments None -> 9" in caplog.text


def test_a_policy_saved_alone_is_no_run_and_the_error_says_what_it_is_for(tmp_path: Path) -> None:
    make_trainer().policy.save(tmp_path / "best")
    with pytest.raises(
        tk.errors.CheckpointError, match=r"best has a policy alone, no run: give load_policy\('.*best'\)"
    ):
        make_trainer(resume_from=tmp_path / "best")
