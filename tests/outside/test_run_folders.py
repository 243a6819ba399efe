"""What a run writes to a folder, and what the commands and the plots read from it."""

from pathlib import Path
from typing import Any

import pytest

import trainkit as tk
from tests.helpers.evaluation_options import as_evaluated
from trainkit.cli import main

TINY: dict[str, Any] = {
    "max_epoch": 2, "step_per_epoch": 60, "learning_starts": 32, "batch_size": 16, "hidden": (8,), "zoo": False,
    "n_envs": 2, "step_per_collect": 2, "n_test_envs": 2, "episode_per_test": 2, "device": "cpu", "verbose": False,
    "show_progress": False,
}  # fmt: skip


def trained(seed: int, **options: Any) -> tk.OffpolicyTrainer:
    with tk.presets.dqn("CartPole-v1", seed=seed, **as_evaluated({**TINY, **options})) as trainer:
        trainer.run()
    return trainer


def tiny(seed: int, **options: Any) -> tk.Trainer:
    return tk.presets.dqn("CartPole-v1", seed=seed, **{**TINY, **options})


def labels(figure: Any) -> list[str]:
    legend = figure.axes[0].get_legend()
    return [] if legend is None else [text.get_text() for text in legend.get_texts()]


# ---- logger="runs/x" ----


def test_a_folder_as_logger_is_read_by_plot_compare_and_inspect(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in (1, 2):
        trained(seed, logger=f"runs/mine/seed{seed}")
    assert main(["compare", "runs"]) == 0
    assert main(["plot", "runs", "-o", "curves.svg"]) == 0
    assert main(["inspect", "runs"]) == 0
    shown = capsys.readouterr()
    assert "CartPole-v1: test/returns/mean" in shown.out
    assert shown.err == ""
    assert (here / "curves.svg").is_file()


def test_a_folder_as_logger_has_the_files_of_the_commands_run(here: Path) -> None:
    trained(1, logger="runs/mine")
    sets = [
        word for name, value in TINY.items() if name not in ("verbose", "show_progress") for word in given(name, value)
    ]
    assert main(["train", "dqn", "CartPole-v1", "--name", "theirs", "--quiet", *sets]) == 0
    mine, theirs = here / "runs" / "mine", here / "runs" / "theirs" / "seed1"
    ours = {path.relative_to(mine).parts[0] for path in mine.rglob("*") if path.is_file()}
    assert ours == {".trainkit-run", "numbers.jsonl", "events"}
    assert ours <= {path.name for path in theirs.iterdir()}
    assert [path.name.split(".")[:3] for path in (mine / "events").glob("events*")] == [["events", "out", "tfevents"]]


def given(name: str, value: object) -> list[str]:
    return ["--set", f"{name}={value!r}" if not isinstance(value, str) else f"{name}={value}"]


def test_a_resumed_run_continues_both_logs_of_its_folder(here: Path) -> None:
    trained(1, logger="runs/mine", checkpoint="runs/mine/checkpoint", max_epoch=1)
    trained(1, logger="runs/mine", checkpoint="runs/mine/checkpoint", resume_from="auto")
    assert sorted(path.name for path in (here / "runs").iterdir()) == ["mine"]
    assert [row["step"] for row in tk.loggers.RunFolder.read("runs/mine").rows] == [60, 120]
    assert sorted(path.name for path in (here / "runs" / "mine").glob("events*")) == ["events"]


# ---- tk.plot.curves ----


def test_curves_takes_the_results_of_run(here: Path) -> None:
    results = tk.run({"dqn": tiny, "again": tiny}, seeds=[1], folder="runs", verbose=False)  # a process each
    assert labels(tk.plot.curves(results)) == ["dqn", "again"]
    assert labels(tk.plot.curves({"one": results})) == ["one (2 seeds)"]


def test_curves_takes_folders_of_runs(here: Path) -> None:
    for name, lr in (("slow", 1e-4), ("fast", 1e-3)):
        for seed in (1, 2):
            trained(seed, lr=lr, logger=f"runs/{name}/seed{seed}")
    assert labels(tk.plot.curves("runs")) == ["fast (2 seeds)", "slow (2 seeds)"]
    assert labels(tk.plot.curves({"slow": "runs/slow"})) == ["slow (2 seeds)"]
    with pytest.raises(tk.ConfigError, match="nowhere is no folder"):
        tk.plot.curves("nowhere")


def test_curves_of_several_environments_are_an_error_as_their_returns_differ(here: Path) -> None:
    trained(1, logger="runs/pole")
    with tk.presets.dqn("MountainCar-v0", seed=1, logger="runs/car", **TINY) as trainer:
        trainer.run()
    with pytest.raises(tk.ConfigError, match=r"runs has runs in 2 environments, CartPole-v1 and MountainCar-v0"):
        tk.plot.curves("runs")


def test_curves_leaves_out_results_of_runs_that_failed(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    def failing(seed: int, **options: Any) -> tk.Trainer:
        if seed == 2:
            raise OSError("no such seed")
        return tiny(seed, **options)

    results = tk.run(failing, seeds=[1, 2], folder="runs", verbose=False)
    assert len(tk.plot.curves(results).axes[0].lines) == 1
    assert "skipped, they failed: seed2" in caplog.text
    with pytest.raises(tk.ConfigError, match="at least one run per label"):
        tk.plot.curves(results[1:])


def test_a_misspelled_tag_names_the_nearest_one_wherever_it_is_plotted(here: Path) -> None:
    trainer = trained(1, logger="runs/mine")
    for run in ("runs/mine", trainer, trainer.history):
        with pytest.raises(tk.ConfigError, match="did you mean 'test/returns/mean'"):
            tk.plot.curves(run, tag="test/return/mean")
    with pytest.raises(KeyError, match="did you mean 'test/returns/mean'"):
        trainer.history.plot("test/return/mean")


# ---- trainkit plot --per-seed ----


def test_plot_per_seed_draws_a_line_for_each_seed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in (1, 2):
        trained(seed, logger=f"runs/mine/seed{seed}")
    assert main(["plot", "runs", "--per-seed", "-o", "curves.svg"]) == 0
    picture = (here / "curves.svg").read_text()
    assert [f"mine, seed {seed}" in picture for seed in (1, 2)] == [True, True]
    assert main(["plot", "runs", "--per-seed", "--band", "std"]) == 2
    assert "--per-seed" in capsys.readouterr().err


# ---- what is saved is found: load_policy, eval, export, resume ----


def at(folder: str | Path) -> dict[str, str]:
    """Return the options of a run that logs and saves in a folder, as `trainkit train` does."""
    return {"logger": str(folder), "checkpoint": f"{folder}/checkpoint"}


def test_load_policy_takes_the_folder_of_any_run(here: Path) -> None:
    sets = [
        word for name, value in TINY.items() if name not in ("verbose", "show_progress") for word in given(name, value)
    ]
    assert main(["train", "dqn", "CartPole-v1", "--name", "shell", "--quiet", *sets]) == 0
    trainer = trained(1, **at("runs/mine"))
    trained(1, logger="runs/one", checkpoint="runs/one")
    tk.run(tiny, seeds=[1], folder="runs/many", verbose=False)
    obs = [[0.1, -0.2, 0.3, -0.4]]
    for folder in ("runs/mine", "runs/one", "runs/many/seed1", "runs/shell/seed1"):
        loaded = tk.load_policy(folder)
        assert (loaded.action_values(obs) == trainer.policy.action_values(obs)).all(), folder


def test_load_policy_of_a_file_in_a_checkpoint_names_the_folder(here: Path) -> None:
    trained(1, **at("runs/mine"))
    (file,) = Path("runs/mine/checkpoint").glob("save-*/policy*")
    with pytest.raises(
        tk.errors.CheckpointError,
        match=f"is a file, and a checkpoint is a folder, such as {file.resolve().parent}: name it, or load weights",
    ):
        tk.load_policy(file)


@pytest.mark.parametrize("place", ["runs/mine", "runs/mine/checkpoint", "runs/mine/checkpoint/save-000002"])
def test_eval_plays_what_a_run_from_python_saved(here: Path, place: str, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = trained(1, env_options={"max_episode_steps": 7}, **at("runs/mine"))
    assert main(["eval", place, "--episodes", "3"]) == 0
    out = capsys.readouterr().out
    assert "DQNPolicy after 120 steps, 3 episodes of CartPole-v1" in out
    stats = tk.evaluate(trainer.policy, "CartPole-v1", n_episode=3, seed=0, max_episode_steps=7)
    assert f"length  mean {stats.lengths.mean:.5g}" in out
    assert "max 7" in out


def test_eval_plays_the_best_of_a_run_from_python(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained(1, **at("runs/mine"))
    assert main(["eval", "runs/mine", "--best", "--episodes", "1"]) == 0
    assert "DQNPolicy after " in capsys.readouterr().out
    assert main(["eval", "runs/mine/checkpoint/save-000002", "--best"]) == 2
    assert "--best is of a run" in capsys.readouterr().err
    trained(1, evaluation=None, **at("runs/unjudged"))
    assert main(["eval", "runs/unjudged", "--best"]) == 2
    assert "runs/unjudged has no best policy: it needs evaluations" in capsys.readouterr().err


def test_eval_of_own_environments_names_the_flag_that_supplies_them(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from gymnasium.envs.classic_control import CartPoleEnv  # as a class of the user's

    with tk.presets.dqn(CartPoleEnv, seed=1, **TINY, **at("runs/own")) as trainer:
        trainer.run()
    assert main(["eval", "runs/own"]) == 2
    error = capsys.readouterr().err
    assert "--env" in error
    assert "tk.evaluate(tk.load_policy('runs/own'), env)" in error
    assert main(["eval", "runs/own", "--env", "gymnasium.envs.classic_control.CartPoleEnv", "--episodes", "1"]) == 0


def test_eval_in_wrapped_environments_is_an_error_as_no_file_holds_the_wrapper(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import gymnasium as gym

    trained(1, env_options={"wrappers": [lambda env: gym.wrappers.TransformReward(env, float)]}, **at("runs/mine"))
    assert main(["eval", "runs/mine"]) == 2
    assert "'CartPole-v1' with ['wrappers'], which no file can hold" in capsys.readouterr().err
    assert main(["eval", "runs/mine", "--env", "CartPole-v1", "--episodes", "1"]) == 0


def test_eval_of_a_run_that_saves_elsewhere_names_that_folder(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained(1, logger="runs/mine", checkpoint="saves")
    assert main(["eval", "runs/mine"]) == 2
    assert "runs/mine has the log of a run and no checkpoint, which it saved to 'saves'" in capsys.readouterr().err
    assert main(["eval", "saves", "--episodes", "1"]) == 0
    trained(1, logger="runs/unsaved")
    assert main(["eval", "runs/unsaved"]) == 2
    assert "checkpoint='runs/unsaved/checkpoint'" in capsys.readouterr().err


def test_eval_of_a_saved_policy_needs_the_environment_only(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained(1).policy.save("policy")
    assert main(["eval", "policy"]) == 2
    assert "--env CartPole-v1" in capsys.readouterr().err
    assert main(["eval", "policy", "--env", "CartPole-v1", "--episodes", "1"]) == 0


def test_a_run_from_python_that_played_itself_is_evaluated_against_random_actions(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pettingzoo")
    game = "pettingzoo/classic/tictactoe_v3"
    with tk.presets.dqn(game, seed=1, self_play=True, **TINY, **at("runs/game")) as trainer:
        trainer.run()
    assert main(["eval", "runs/game", "--episodes", "4", "--env", game]) == 0
    assert "games won" in capsys.readouterr().out


def test_a_run_resumes_from_its_folder(here: Path) -> None:
    straight = trained(1)
    trained(1, **at("runs/mine"), max_env_step=60)
    resumed = trained(1, **at("runs/mine"), resume_from="runs/mine")
    obs = [[0.1, -0.2, 0.3, -0.4]]
    assert resumed.epoch == 2
    assert (resumed.policy.action_values(obs) == straight.policy.action_values(obs)).all()
