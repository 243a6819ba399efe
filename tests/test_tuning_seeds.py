"""No benchmark of learning trains a seed on which the settings were chosen."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

import trainkit as tk
from benchmarks.learning import cartpole as learning
from benchmarks.learning.training import check_fresh, tuning_seeds

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
EVALUATES = "cartpole general_tables guard hl_gauss offline".split()


def test_the_zoo_and_the_list_are_joined() -> None:
    assert {11, 12, 13, 14, 15, 101, 1001} <= tuning_seeds("dqn", "CartPole-v1")
    assert {1, 2} <= tuning_seeds("dqn", "LunarLander-v3")
    assert not {1, 2, 3, 4, 5, 121} & tuning_seeds("dqn", "CartPole-v1")
    for entry in tk.zoo.list():
        assert {*entry.tuning_seeds} <= tuning_seeds(entry.preset, entry.env)


def test_a_tuning_seed_is_named() -> None:
    check_fresh(["dqn", "ppo"], "CartPole-v1", [1, 2])
    with pytest.raises(SystemExit, match="settings of c51 for CartPole-v1 were chosen on seeds 11, 15, which must not"):
        check_fresh(["ppo", "c51"], "CartPole-v1", [11, 15, 16])


def test_the_benchmark_of_learning_trains_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("it was trained")

    monkeypatch.setattr(learning, "learn", never)
    monkeypatch.setattr(learning, "CACHE", tmp_path / "runs.jsonl")
    monkeypatch.setattr(sys, "argv", ["learning", "--presets", "dqn", "--seeds", "11"])
    with pytest.raises(SystemExit, match="settings of dqn for CartPole-v1 were chosen on seeds 11"):
        learning.main()


@pytest.mark.parametrize("name", EVALUATES)
def test_every_benchmark_of_learning_checks_its_seeds(name: str) -> None:
    text = (BENCHMARKS / "learning" / f"{name}.py").read_text()
    assert re.search(r"^ +check_fresh\(", text, re.MULTILINE)
