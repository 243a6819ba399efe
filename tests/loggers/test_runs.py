"""Run folders: what was logged is read back, torn ends and repetitions included."""

import json
from pathlib import Path

import pytest

import trainkit as tk
from tests.helpers.run_folders import make_run
from trainkit.loggers.runs import RunFolder, find_runs


def test_rows_are_what_the_logger_wrote_without_what_was_not_finite(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"step": 1, "a": 0.5, "b": float("nan")}, {"step": 2, "a": 1.5})
    assert run.rows == [{"step": 1, "a": 0.5}, {"step": 2, "a": 1.5}]
    steps, numbers = run.series("a")
    assert (steps.tolist(), numbers.tolist()) == ([1.0, 2.0], [0.5, 1.5])


def test_what_is_logged_again_after_a_resume_replaces_what_was_logged_before(tmp_path: Path) -> None:
    run = make_run(tmp_path, *({"step": step, "a": float(step)} for step in (1, 2, 3)))
    with (run.path / "numbers.jsonl").open("a") as file:
        for step in (2, 3, 4):
            file.write(json.dumps({"step": step, "a": 10.0 * step}) + "\n")
    assert RunFolder.read(tmp_path).series("a")[1].tolist() == [1.0, 20.0, 30.0, 40.0]


def test_a_last_line_torn_by_a_kill_is_left_out_and_any_other_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"step": 1, "a": 0.5})
    file = run.path / "numbers.jsonl"
    whole = file.read_text()
    file.write_text(whole + '{"step": 2, "a"')
    assert RunFolder.read(tmp_path).rows == [{"step": 1, "a": 0.5}]
    file.write_text('{"step": 2, "a"\n' + whole)
    with pytest.raises(tk.ConfigError, match=r"numbers.jsonl, line 1 cannot be read as JSON"):
        _ = RunFolder.read(tmp_path).rows


def test_task_and_seed_are_the_configs_else_the_settings(tmp_path: Path) -> None:
    result = make_run(tmp_path / "a", env="Moon", seed=7)
    untold = make_run(tmp_path / "b")
    assert (result.task, result.seed) == ("Moon", 7)
    assert (untold.task, untold.seed) == ("Walk", 4)


def test_a_tag_that_was_never_logged_is_rejected_with_the_nearest(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"step": 1, "update/loss": 0.5})
    with pytest.raises(tk.ConfigError, match=r"never logged 'update/los', did you mean 'update/loss'\?"):
        run.series("update/los")


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(tk.ConfigError, match=r"is no run: it has no numbers.jsonl"):
        RunFolder.read(tmp_path)
    with pytest.raises(tk.ConfigError, match=r"nowhere is no folder: name a folder that"):
        find_runs([tmp_path / "nowhere"])
    with pytest.raises(tk.ConfigError, match="holds no run"):
        find_runs([tmp_path])
    make_run(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(tk.ConfigError, match=r"config.json cannot be read as JSON"):
        RunFolder.read(tmp_path)


def test_runs_are_found_at_any_depth_in_order_each_once(tmp_path: Path) -> None:
    for name in ("b/seed1", "a/deep/seed2", "a/seed1"):
        make_run(tmp_path / name)
    found = find_runs([tmp_path, tmp_path / "b", str(tmp_path / "b" / "seed1")])
    assert [run.path.relative_to(tmp_path).as_posix() for run in found] == ["a/deep/seed2", "a/seed1", "b/seed1"]
