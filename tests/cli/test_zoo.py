"""`trainkit zoo`: an entry is added, trained, listed and reported by commands."""

from pathlib import Path

import pytest

from trainkit.cli import main
from trainkit.cli import zoo as commands
from trainkit.presets.zoo_entry import read_entry
from trainkit.zoo import results

SMALL = {"max_epoch": 1, "step_per_epoch": 64, "n_envs": 2, "step_per_collect": 16, "batch_size": 16, "n_test_envs": 1}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of an empty zoo, which the commands use."""
    monkeypatch.setattr(commands, "ZOO", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def add(*words: str) -> int:
    settings = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
    given = ["--source", "a test", "--tuning-seeds", "102", "--episodes", "2", "--set", "lr=Linear(1e-3, 0.0)"]
    return main(["zoo", "add", "ppo", "CartPole-v1", *given, *settings, *words])


def test_an_entry_is_added_trained_listed_and_reported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert add() == 0
    entry = read_entry(folder / "ppo" / "CartPole-v1.toml", folder)
    assert (entry.source, entry.tuning_seeds, entry.settings["n_envs"]) == ("a test", (102,), 2)
    assert entry.settings["lam"] > 0  # of the general table
    assert main(["zoo", "list"]) == 0
    assert "not yet run" in capsys.readouterr().out
    assert main(["zoo", "train", "ppo", "CartPole-v1", "--seeds", "2", "--weights", "best"]) == 0
    entry = read_entry(entry.path, folder)
    assert entry.result is not None
    assert entry.result.seeds == (101, 103)
    assert main(["zoo", "report", "-o", "ZOO.md"]) == 0
    assert "## ppo/CartPole-v1" in Path("ZOO.md").read_text()

    capsys.readouterr()
    assert add() == 2
    assert "CartPole-v1.toml exists: give --replace, which also drops its result" in capsys.readouterr().err
    assert add("--replace") == 0
    assert read_entry(entry.path, folder).result is None
    assert not entry.weights.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["add", "bc", "CartPole-v1", "--source", "x"], "bc learns from a dataset"),
        (["add", "ppo", "CartPole-v1", "--source", "x", "--set", "lrr=1"], "unknown option 'lrr', did you mean 'lr'"),
        (["train", "ppo", "CartPole-v1"], "the zoo has nothing for ppo on 'CartPole-v1'"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zoo", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_zoo_of_ones_own_is_in_a_folder(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path_factory.mktemp("my") / "own zoo"
    assert add("--folder", str(mine)) == 0
    assert f"now: trainkit zoo train ppo CartPole-v1 --folder '{mine}'" in capsys.readouterr().out
    assert read_entry(mine / "ppo" / "CartPole-v1.toml", mine).source == "a test"
    assert main(["zoo", "report", "--folder", str(mine)]) == 0
    text = capsys.readouterr().out
    assert f"Written by `trainkit zoo report --folder '{mine}'` from the files below `{mine}`." in text
    assert f"Not yet run: `trainkit zoo train ppo CartPole-v1 --folder '{mine}'`." in text
    assert main(["zoo", "list"]) == 0
    assert "CartPole" not in capsys.readouterr().out
    assert main(["zoo", "list", "--folder", str(mine)]) == 0
    assert "CartPole" in capsys.readouterr().out


def test_an_interrupted_training_says_that_the_same_command_continues(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    assert add() == 0
    monkeypatch.setattr(results, "evaluate", interrupted)
    assert main(["zoo", "train", "ppo", "CartPole-v1", "--seeds", "1"]) == 130
    assert "stopped; runs/zoo has what was trained, and the same command continues" in capsys.readouterr().out
    monkeypatch.undo()
    monkeypatch.setattr(commands, "ZOO", folder)
    assert main(["zoo", "train", "ppo", "CartPole-v1", "--seeds", "1", "--quiet", "--folder", str(folder)]) == 0
    assert "epoch" not in capsys.readouterr().out
