"""`inspect`, `compare` and `plot` of runs that were resumed, stopped early, were made twice or are no runs."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

import trainkit as tk
from tests.cli.train import train
from tests.helpers.run_folders import make_run
from trainkit.cli import main
from trainkit.loggers.runs import write_config


def test_inspect_shows_the_settings_that_a_run_resumed_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path, {"step": 1, "update/loss": 0.5})
    logger = tk.JsonlLogger(tmp_path, resume=True)
    logger.describe({"policy": "DQNPolicy", "max_epoch": 7})
    logger.close()
    with (tmp_path / "numbers.jsonl").open("a") as file:
        file.write('{"settings": {"max_ep')  # killed while it was writing
    assert main(["inspect", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "settings\n  policy     DQNPolicy\n  max_epoch  7\n" in output


def test_inspect_describes_a_saved_policy_and_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert train("--checkpoint-every", "1") == 0
    envs = tk.make_envs("CartPole-v1", 2)
    tk.DQNPolicy.for_envs(envs, hidden=(4,), seed=1).save("best")
    capsys.readouterr()
    assert main(["inspect", "best"]) == 0
    output = capsys.readouterr().out
    assert re.search(r"^best\n\nsaved     20.*\nversions  trainkit .*\n\nsettings\n  policy  DQNPolicy\n", output)
    assert "checkpoint best\n  whole, 0.0 MB: policy 0.0\n" in output
    for folder in ("checkpoint", "checkpoint/best"):
        assert main(["inspect", f"runs/dqn-CartPole-v1/seed1/{folder}"]) == 0
        output = capsys.readouterr().out
        assert re.search(r"^  batch_size +16$", output, re.MULTILINE)
        assert re.search(r"^  after epoch [12]: (60|120) steps, ", output, re.MULTILINE)


def test_inspect_of_a_damaged_policy_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tk.DQNPolicy.for_envs(tk.make_envs("CartPole-v1", 1), hidden=(4,), seed=1).save(tmp_path)
    (file,) = tmp_path.glob("policy-*.pt")
    file.write_bytes(b"cut")
    assert main(["inspect", str(tmp_path)]) == 0
    assert "whole" not in (output := capsys.readouterr().out)
    assert file.name in output
    (tmp_path / "manifest.json").write_text("{}")
    assert main(["inspect", str(tmp_path)]) == 2
    assert "holds no readable checkpoint" in capsys.readouterr().err


def score(folder: Path, number: float, *, seed: int = 1, env: str | None = "A", **config: Any) -> None:
    """Write a run of DQN that logged one return."""
    row = {"step": 1, "test/returns/mean": number}
    make_run(folder, row, **{"preset": "dqn", "env": env, "settings": {}, "seed": seed, **config})


@pytest.mark.parametrize("command", ["compare", "plot"])
def test_a_run_that_did_not_log_the_metric_is_skipped_with_a_note(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if command == "plot":
        pytest.importorskip("matplotlib", reason="needs trainkit-rl[plot]")
    monkeypatch.chdir(tmp_path)
    for seed in (1, 2):
        score(Path(f"runs/seed{seed}"), 5.0, seed=seed)
    make_run(Path("runs/seed3"), {"step": 1, "update/loss": 0.5}, preset="dqn", env="A", settings={}, seed=3)
    assert main([command, "runs"]) == 0
    captured = capsys.readouterr()
    assert captured.err == "note: skipped, without test/returns/mean: runs/seed3\n"
    assert re.search(r"^dqn +2 +5 " if command == "compare" else r"^curves.png$", captured.out, re.MULTILINE)
    assert main([command, "runs/seed3", "--tag", "update/los"]) == 2
    assert "runs/seed3 never logged 'update/los', did you mean 'update/loss'?" in capsys.readouterr().err


def test_a_run_without_an_environment_is_drawn_under_the_name_of_its_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="needs trainkit-rl[plot]")
    monkeypatch.chdir(tmp_path)
    score(Path("runs/a"), 5.0)
    for folder, config in (("b", {"env": None, "data": "../data/*.npz"}), ("c", {})):
        logger = tk.JsonlLogger(Path("runs") / folder)
        logger.describe({"trainer": "OfflineTrainer", "env": None, "update_per_epoch": 5})
        logger.write(5, {"test/returns/mean": 5.0})
        logger.close()
        if config:
            write_config(Path("runs") / folder, {"preset": "cql", "settings": {}, "seed": 1, **config})
    assert main(["plot", "runs"]) == 0
    assert capsys.readouterr().out.split() == ["curves-A.png", "curves-data_npz.png", "curves-offline.png"]


def test_a_seed_that_was_run_again_counts_once_by_its_newest_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    score(Path("runs/seed1"), 100.0, began="2026-01-01T11:00:00+0200")
    score(Path("runs/seed1_2"), 2.0, began="2026-01-01T10:00:00+0000")  # an hour later
    score(Path("runs/seed2"), 4.0, seed=2, began="2025-01-01T00:00:00+0000")
    score(Path("runs/other/seed1"), 8.0, env="B", began="2024-01-01T00:00:00+0000")  # another task's
    assert main(["compare", "runs"]) == 0
    captured = capsys.readouterr()
    assert captured.err == "note: dqn: a seed counts once, by its newest run; skipped: runs/seed1\n"
    assert re.search(r"^dqn +2 +3 +\[2, 4\]$", captured.out, re.MULTILINE)
    assert re.search(r"^dqn +1 +8$", captured.out, re.MULTILINE)


def test_runs_that_the_shell_did_not_make_are_as_new_as_their_last_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder, number, logged_at in (("seed4", 2.0, 2_000), ("seed4_2", 100.0, 1_000)):
        run = make_run(Path("mine") / folder, {"step": 1, "test/returns/mean": number})
        os.utime(run.path / "numbers.jsonl", (logged_at, logged_at))
    assert main(["compare", "mine"]) == 0
    captured = capsys.readouterr()
    assert captured.err.endswith("skipped: mine/seed4_2\n")
    assert re.search(r"^mine +1 +2$", captured.out, re.MULTILINE)


def test_a_picture_counts_a_seed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="needs trainkit-rl[plot]")
    monkeypatch.chdir(tmp_path)
    for folder, seed in (("seed1", 1), ("seed1_2", 1), ("seed2", 2)):
        score(Path("runs") / folder, 5.0, seed=seed)
    assert main(["plot", "runs", "-o", "curves.svg"]) == 0
    assert ">dqn (2 seeds)<" in Path("curves.svg").read_text()


def test_one_seed_has_no_interval_and_few_seeds_no_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for preset, numbers in (("dqn", (1.0, 3.0)), ("ppo", (5.0,)), ("sac", (7.0, 9.0))):
        for seed, number in enumerate(numbers):
            score(tmp_path / preset / str(seed), number, seed=seed, preset=preset)
    assert main(["compare", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert re.search(r"^dqn +2 +2 +\[1, 3\]$", output, re.MULTILINE)
    assert re.search(r"^ppo +1 +5 +\+3 +too few seeds to tell \(1 and 2 seeds\)$", output, re.MULTILINE)
    assert re.search(
        r"^sac +2 +8 +\[7, 9\] +\+6 +\[4, 8\] +too few seeds to tell \(2 and 2 seeds\)$", output, re.MULTILINE
    )
    assert "1 seed says little: below 5 an interval is too narrow, and of one there is none\n" in output
    assert main(["compare", str(tmp_path / "ppo"), str(tmp_path / "dqn")]) == 0
    assert "favors" not in capsys.readouterr().out


def test_groups_stand_in_the_order_in_which_they_were_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for preset in ("dqn", "sac"):
        for seed in range(5):
            score(tmp_path / preset / str(seed), seed + (10.0 if preset == "sac" else 0.0), seed=seed, preset=preset)
    folders = [str(tmp_path / preset) for preset in ("sac", "dqn")]
    assert main(["compare", *folders]) == 0
    output = capsys.readouterr().out
    assert "minus sac" in output
    assert re.search(r"^dqn .*favors sac \(p 0.0079, 5 and 5 seeds\)$", output, re.MULTILINE)
    assert main(["compare", *folders[::-1]]) == 0
    assert "minus dqn" in capsys.readouterr().out
