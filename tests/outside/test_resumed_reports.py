"""Reports after a run was resumed within an epoch: those of the run that was not interrupted."""

import json
from pathlib import Path
from typing import Any

import pytest

import trainkit as tk


def reported(folder: Path, after: int) -> list[dict[str, float]]:
    """Return the metrics of updates in the reports after a step."""
    rows = [json.loads(line) for line in (folder / "numbers.jsonl").read_text().splitlines()[1:]]
    return [
        {"step": row["step"]} | {name: x for name, x in row.items() if name.startswith("update/")}
        for row in rows
        if row["step"] > after
    ]


def make(preset: str, folder: Path, log: str, **more: Any) -> tk.Trainer:
    common: dict[str, Any] = {"seed": 1, "n_envs": 2, "max_epoch": 2, "hidden": (8,), "evaluation": None}
    if preset == "dqn":
        common |= {"learning_starts": 20, "step_per_collect": 8, "batch_size": 8, "zoo": False}
    else:
        common |= {"step_per_collect": 16, "batch_size": 16}
    logger = tk.JsonlLogger(folder / log)
    make_one = getattr(tk.presets, preset)
    trainer: tk.Trainer = make_one(
        "CartPole-v1", step_per_epoch=240, log_every=40, logger=logger, verbose=False, **common, **more
    )
    return trainer


@pytest.mark.parametrize("preset", ["dqn", "ppo"])
@pytest.mark.parametrize("every", [104, 136])  # between two reports, in the first epoch
def test_reports_of_updates_do_not_depend_on_where_a_run_was_saved(preset: str, every: int, tmp_path: Path) -> None:
    saves = tk.Checkpoint(tmp_path / "saves", every=every, unit="env_steps", keep_last=100)
    make(preset, tmp_path, "whole", checkpoint=saves).run()
    first = next(path for path in sorted((tmp_path / "saves").iterdir()) if path.name == "save-000001")
    resumed = make(preset, tmp_path, "rest", resume_from=first)
    at = resumed.env_step
    assert 0 < at < 240
    resumed.run()
    rest, whole = reported(tmp_path / "rest", at), reported(tmp_path / "whole", at)
    for row in (*rest, *whole):
        row.pop("update/replay_ratio", None)  # over the collects since the save
    assert len(rest) > 5
    assert rest == whole
