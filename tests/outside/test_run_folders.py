"""What a run writes to a folder, and what the commands and the plots read from it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import trainkit as tk
from trainkit.cli import main

TINY: dict[str, Any] = {
    "max_epoch": 2, "step_per_epoch": 60, "learning_starts": 32, "batch_size": 16, "hidden": (8,), "zoo": False,
    "n_envs": 2, "step_per_collect": 2, "n_test_envs": 2, "episode_per_test": 2, "device": "cpu", "verbose": False,
    "show_progress": False,
}  # fmt: skip


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in a folder of one's own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trained(seed: int, **options: Any) -> tk.OffpolicyTrainer:
    with tk.presets.dqn("CartPole-v1", seed=seed, **{**TINY, **options}) as trainer:
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
    results = tk.run({"dqn": tiny, "again": tiny}, seeds=[1, 2], folder="runs", verbose=False)
    assert labels(tk.plot.curves(results)) == ["dqn (2 seeds)", "again (2 seeds)"]
    assert labels(tk.plot.curves({"one": results[:2]})) == ["one (2 seeds)"]


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
