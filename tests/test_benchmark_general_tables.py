"""What the page of the general tables says of runs: bars, random play, warnings, and what was not run."""

import sys
from pathlib import Path
from typing import Any

import pytest

import trainkit as tk
from benchmarks import pages
from benchmarks.learning import general_tables
from benchmarks.learning.general_tables import MAIN, PAIRS, RANDOM, TASKS, report, settings, verdict


def run(seed: int, final: float, **warnings: list[int]) -> dict[str, Any]:
    """A run of two epochs."""
    return {
        "seed": seed,
        "returns": [9.0, 9.0, final],
        "steps": 1_000,
        "seconds": 2.0,
        "commit": "1234567",
        "warnings": warnings,
    }


def page_of(runs: Any) -> str:
    """The page of some runs."""
    return "\n".join(report(runs))


def test_the_mean_over_seeds_must_reach_the_bar() -> None:
    task = TASKS["cartpole"]
    whole = [run(201, 500.0), run(202, 400.0), *(run(seed, 450.0) for seed in (203, 204, 205))]
    assert verdict(task, "dqn", whole, 20.0) == "450 met"
    assert verdict(task, "dqn", [*whole[:4], run(205, 449.0)], 20.0) == "450 **missed**"


def test_a_verdict_on_fewer_seeds_than_were_planned_names_their_number() -> None:
    assert verdict(TASKS["cartpole"], "dqn", [run(201, 500.0), run(202, 400.0)], 20.0) == "450 met by 2 of 5 seeds"


def test_a_seed_that_is_worse_than_random_is_named_although_the_mean_reaches_the_bar() -> None:
    runs = [run(201, 5_000.0), run(202, 19.0), run(203, 21.0)]
    assert verdict(TASKS["cartpole"], "dqn", runs, 20.0) == "**worse than random**: 202"


def test_presets_without_a_bar_must_be_better_than_random() -> None:
    assert verdict(TASKS["cartpole"], "a2c", [run(201, 21.0)], 20.0) == "better than random"
    assert verdict(TASKS["mountaincar"], "dqn", [run(201, -200.0)], -200.0) == "random"


def test_the_page_has_the_warnings_of_the_last_epoch_and_what_was_not_run() -> None:
    page = page_of(
        {
            ("acrobot", RANDOM): [run(201, -499.0)],
            ("acrobot", "ppo"): [run(201, -80.0, collapsed_entropy=[1, 2]), run(202, -84.0, no_progress=[1, 1])],
        }
    )
    assert "random actions return -499." in page
    assert (
        "| ppo | 1,000 | -82 [-84, -80] | 201: -80, 202: -84 | -90 met by 2 of 5 seeds | collapsed_entropy (201) | 2 |"
        in page
    )
    assert "## CartPole-v1" not in page
    (line,) = [line for line in page.splitlines() if line.startswith("- Acrobot-v1: ")]
    assert "ppo" not in line.split(": ")[1].split(", ")
    assert "rainbow" in line


def test_the_page_has_all_warnings_of_a_seed_that_is_no_better_than_random() -> None:
    runs = [run(201, -200.0, constant_returns=[1, 1]), run(202, -99.0, constant_returns=[1, 1])]
    page = page_of({("mountaincar", RANDOM): [run(201, -200.0)], ("mountaincar", "dqn"): runs})
    assert "| random | constant_returns (201, epochs 1 to 1 of 2) | 2 |" in page


def test_a_run_depends_on_the_table_and_its_steps() -> None:
    own, table = settings("breakout", "ppo"), tk.presets.ppo.table("grid")
    assert own["epochs"] == str(200_000 // table["step_per_epoch"])
    assert own["hidden"] == str(table["hidden"])
    assert settings("cartpole", "dqn") != settings("breakout", "dqn")  # another table
    assert settings("cartpole", "dqn") == settings("acrobot", "dqn")  # general: the same


def test_every_bar_is_of_a_pair_that_is_run() -> None:
    for name, task in TASKS.items():
        assert task.bar is None or {(name, preset) for preset in MAIN} <= {*PAIRS}
    assert ("pendulum", "sac") in PAIRS
    assert ("pendulum", "dqn") not in PAIRS
    assert ("cartpole", "sac") not in PAIRS


def test_finished_runs_are_kept_and_those_of_other_settings_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = []

    def learn(name: str, preset: str, seed: int) -> dict[str, Any]:
        trained.append((name, preset, seed))
        return {name: value for name, value in run(seed, 480.0).items() if name not in ("seed", "commit")}

    monkeypatch.setattr(general_tables, "learn", learn)
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    monkeypatch.setattr(general_tables, "CACHE", tmp_path / "general_tables.jsonl")
    monkeypatch.setattr(sys, "argv", ["general_tables", "--tasks", "cartpole", "--presets", "ppo", "a2c", "sac"])
    general_tables.main()
    assert trained == [
        ("cartpole", RANDOM, 201),
        *(("cartpole", "ppo", seed) for seed in range(201, 206)),
        *(("cartpole", "a2c", seed) for seed in range(201, 204)),
    ]
    assert "| ppo | 1,000 | 480 [480, 480] |" in (tmp_path / "general_tables.md").read_text()
    general_tables.main()
    assert len(trained) == 9
    monkeypatch.setattr(tk.presets.ppo, "_tables", {"classic": tk.presets.ppo.table("grid")})
    general_tables.main()
    assert [preset for _, preset, _ in trained[9:]] == ["ppo"] * 5


def test_a_run_is_of_the_general_table_and_ends_with_unseen_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    step_per_epoch = tk.presets.reinforce.table()["step_per_epoch"]
    short = general_tables.Task(env="CartPole-v1", episodes=3, steps=step_per_epoch)  # one epoch
    monkeypatch.setitem(TASKS, "cartpole", short)
    result = general_tables.learn("cartpole", "reinforce", 201)
    assert len(result["returns"]) == 2
    assert step_per_epoch <= result["steps"] < 1.5 * step_per_epoch
    assert general_tables.learn("cartpole", RANDOM, 201)["returns"][0] < 60.0
