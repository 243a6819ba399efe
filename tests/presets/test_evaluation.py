"""Presets evaluate by default, and `evaluation=None` switches evaluation off."""

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import trainkit as tk
from tests.helpers.evaluation_options import as_evaluated
from tests.trainer.toys import Walk, columns
from trainkit import presets
from trainkit.cli import main
from trainkit.core.stats import RunWarning
from trainkit.loggers.runs import RunFolder

OFFLINE = ("bc", "cql", "bcq")


def made(name: str, **options: Any) -> Any:
    common: dict[str, Any] = {"seed": 1, "device": "cpu", "verbose": False, "hidden": (8,), "max_epoch": 1}
    if name in OFFLINE:
        buffer = tk.ReplayBuffer.from_arrays(**columns())
        return presets.PRESETS[name](buffer, Walk, **common, update_per_epoch=3, batch_size=4, **options)
    preset = presets.PRESETS[name]
    env = "Pendulum-v1" if preset.domains[0] == "continuous" else Walk
    return preset(env, **common, n_envs=2, step_per_epoch=20, **as_evaluated({"n_test_envs": 2} | options))


@pytest.mark.parametrize("name", presets.PRESETS)
def test_none_switches_evaluation_off(name: str) -> None:
    with made(name, evaluation=None) as trainer:
        assert trainer.test_collector is None
        _, stats, info = next(trainer)
    assert stats.test.is_empty
    assert stats.test.returns.mean is None
    assert info.last_test.is_empty


@pytest.mark.parametrize("name", presets.PRESETS)
def test_without_the_argument_a_preset_evaluates(name: str) -> None:
    with made(name) as trainer:
        assert trainer.test_collector is not None


@pytest.mark.parametrize("name", ["dqn", "ppo", "bc"])
@pytest.mark.parametrize("evaluation", [None, tk.Evaluation(duration=2, every=2)])
def test_an_evaluation_at_the_start_is_of_step_0(name: str, evaluation: tk.Evaluation | None) -> None:
    played = []
    options = {} if evaluation is None else {"evaluation": evaluation}
    count = tk.on(evaluate_end=lambda trainer, stats: played.append((trainer.clock, stats.n_episode)))
    with made(name, evaluate_at_start=True, episode_per_test=3, callbacks=count, **options) as trainer:
        trainer.run()
    n_episodes = 3 if evaluation is None else 2
    assert played == [(0, n_episodes), (trainer.clock, n_episodes)]
    with pytest.raises(
        tk.ConfigError, match=r"was given evaluate_at_start, and evaluation=None, which switches evaluation off"
    ):
        made(name, evaluate_at_start=True, evaluation=None)


def test_a_run_name_is_that_of_the_folder_below(tmp_path: Path) -> None:
    for max_epoch in (1, 2):  # the second resumes
        options = {"checkpoint": tmp_path / "checkpoint", "resume_from": "auto", "max_epoch": max_epoch}
        with tk.presets.dqn(Walk, logger=tmp_path / "runs", run_name="dqn-1", step_per_epoch=8, **options) as trainer:
            trainer.run()
        assert trainer.info.run_dir == str(tmp_path / "runs" / "dqn-1")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["dqn-1"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"logger": "runs", "run_name": "a/b"}, "run_name must be the name of a folder, such as \"dqn-1\", got 'a/b'"),
        ({"logger": "runs", "run_name": ".."}, "run_name must be the name of a folder"),
        ({"logger": "runs", "run_name": ""}, "run_name must be the name of a folder"),
        ({"run_name": "dqn-1"}, "run_name names a folder below logger's, got logger=None: give it a folder"),
    ],
)
def test_a_run_name_that_names_no_folder_is_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(tk.ConfigError, match=message):
        made("dqn", **options)


@pytest.mark.parametrize("options", [{"test_env": Walk}, {"n_test_envs": 4, "episode_per_test": 3}])
def test_options_of_an_evaluation_that_is_switched_off_are_rejected(options: dict[str, Any]) -> None:
    names = ", ".join(options)
    with pytest.raises(
        tk.ConfigError, match=f"dqn was given {names}, and evaluation=None, which switches evaluation off"
    ):
        presets.dqn(Walk, evaluation=None, **options)


def test_settings_of_the_table_are_no_options_of_an_evaluation_that_is_switched_off() -> None:
    settings = presets.dqn.settings() | {"max_epoch": 1, "step_per_epoch": 8}
    with presets.dqn(Walk, evaluation=None, verbose=False, **settings) as trainer:
        trainer.run()


def test_a_return_that_ends_the_run_needs_evaluations() -> None:
    with pytest.raises(tk.ConfigError, match=r"stop_fn needs evaluations"):
        made("dqn", stop_return=1.0, evaluation=None)


def test_environments_of_the_user_stay_open_offline() -> None:
    envs = tk.make_envs(Walk, 2, seed=1)
    trainer = presets.bc(tk.ReplayBuffer.from_arrays(**columns()), envs, evaluation=None, max_epoch=1, device="cpu")
    assert trainer.test_collector is None
    envs.reset()  # a closed one raises


def test_the_command_line_switches_evaluation_off(tmp_path: Path) -> None:
    settings = ["max_epoch=1", "step_per_epoch=60", "hidden=(8,)", "n_envs=2", "device=cpu", "evaluation=none"]
    words = [word for setting in settings for word in ("--set", setting)]
    assert main(["train", "dqn", "CartPole-v1", "--quiet", "--logdir", str(tmp_path), *words]) == 0
    lines = (tmp_path / "dqn-CartPole-v1" / "seed1" / "numbers.jsonl").read_text().splitlines()
    tags = {tag for line in lines for tag in json.loads(line)}
    assert "train/returns/mean" in tags
    assert not any(tag.startswith("test/") for tag in tags)
    assert RunFolder.read(tmp_path / "dqn-CartPole-v1" / "seed1").config["settings"]["evaluation"] == "none"


def test_a_wrapped_vector_environment_is_not_evaluated_without_its_wrapper() -> None:
    envs = gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")
    scaled = gym.wrappers.vector.TransformReward(envs, lambda reward: reward * 100.0)
    with pytest.raises(tk.ConfigError, match=r"cannot make .* again for evaluation: give test_env"):
        presets.ppo(scaled, seed=1, device="cpu", verbose=False)
    counted = gym.wrappers.vector.RecordEpisodeStatistics(gym.make_vec("CartPole-v1", num_envs=2))
    with presets.ppo(counted, seed=1, device="cpu", verbose=False) as trainer:
        assert trainer.test_collector is not None


def test_the_epoch_line_of_sac_has_both_of_its_losses(capsys: pytest.CaptureFixture[str]) -> None:
    with presets.sac(
        "Pendulum-v1", seed=1, device="cpu", hidden=(8,), max_epoch=1, step_per_epoch=40, learning_starts=20, n_envs=1,
        batch_size=8, evaluation=None, show_progress=False,
    ) as trainer:  # fmt: skip
        trainer.run()
    assert "| critic loss " in (line := capsys.readouterr().out)
    assert "| actor loss " in line


def test_a_warning_of_one_epoch_names_that_epoch() -> None:
    warning = RunWarning(name="no_updates", message="none", first_epoch=3, last_epoch=3)
    assert str(warning) == "no_updates, epoch 3: none"
