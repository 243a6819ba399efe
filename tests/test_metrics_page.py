"""docs/metrics.md names every number a run writes, and no other, in tensorboard's order."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import trainkit as tk

PAGE = (Path(__file__).parents[1] / "docs" / "metrics.md").read_text()
MAIN, OTHERS = PAGE.split("## What other parts add")


def spread(tag: str) -> list[str]:
    """Return the tags that one with alternatives in braces stands for."""
    parts = [part.split(",") for part in re.split(r"[{}]", tag)]
    return ["".join(chosen) for chosen in itertools.product(*parts)]


def rows() -> list[list[str]]:
    """Return the tags of each row of the page's tables."""
    cells = re.findall(r"^\| (`[^|]+`) \|", MAIN, re.MULTILINE)
    return [[tag for own in re.findall("`([^`]+)`", cell) for tag in spread(own)] for cell in cells]


def documented() -> list[str]:
    """Return every tag of the page's tables."""
    return [tag for row in rows() for tag in row]


def written(folder: Path, preset: Any, env: str = "CartPole-v1", **settings: Any) -> set[str]:
    """Run shortly, and return the tags that both loggers wrote."""
    loggers = [tk.loggers.TensorboardLogger(folder / "events"), tk.JsonlLogger(folder / "lines")]
    trainer = preset(
        env, seed=1, device="cpu", verbose=False, max_epoch=2, step_per_epoch=160, step_per_collect=8,
        learning_starts=64, batch_size=16, hidden=(8,), n_test_envs=2, episode_per_test=2, log_every=100,
        logger=loggers, **settings,
    )  # fmt: skip
    with trainer:
        trainer.run()
    events = EventAccumulator(str(folder / "events"))
    events.Reload()
    lines = (folder / "lines" / "numbers.jsonl").read_text().splitlines()
    result = {tag for line in lines[1:] for tag in json.loads(line)} - {"step"}
    assert result == set(events.Tags()["scalars"])
    return result


def test_the_tables_name_what_rainbow_writes_and_nothing_else(tmp_path: Path) -> None:
    assert written(tmp_path, tk.presets.rainbow, value=tk.CategoricalValue()) == set(documented())


def test_what_other_parts_add_and_leave_out_is_as_the_page_says(tmp_path: Path) -> None:
    rows = [line.split("|")[2:4] for line in OTHERS.splitlines() if line.startswith("|")]
    added, left_out = ({tag for row in rows for tag in re.findall(r"`(\w+/\w+)`", row[side])} for side in (0, 1))
    logged = written(tmp_path / "epsilon", tk.presets.dqn)
    logged |= written(tmp_path / "soft", tk.presets.dqn, exploration=tk.SoftQ(1.0))
    logged |= written(tmp_path / "weights", tk.presets.dqn, exploration=tk.ParameterNoise(0.5))
    logged |= written(tmp_path / "skip", tk.presets.dqn, on_nan="skip")
    auxiliary = {"auxiliary": lambda features, rows: features.mean(dim=1)}
    logged |= written(tmp_path / "auxiliary", tk.presets.dqn, network=auxiliary)
    of_td3 = written(tmp_path / "td3", tk.presets.td3, "Pendulum-v1")
    logged |= {tag for tag in of_td3 if tag.startswith("explore/")}
    assert logged == set(documented()) - left_out | added


def test_the_tables_are_sorted_within_sorted_groups_and_name_a_tag_once() -> None:
    tags, firsts = documented(), [row[0] for row in rows()]
    assert firsts == sorted(firsts)
    assert all(row == sorted(row) for row in rows())
    assert len(tags) == len(set(tags))
    headings = re.findall(r"^## (\w+):", MAIN, re.MULTILINE)
    assert headings == list(dict.fromkeys(tag.split("/")[0] for tag in tags))


@pytest.mark.parametrize("row", re.findall(r"^\| `.*\|$", MAIN, re.MULTILINE))
def test_every_tag_has_a_meaning(row: str) -> None:
    _, _, meaning, _ = row.split("|")
    assert meaning.strip()
