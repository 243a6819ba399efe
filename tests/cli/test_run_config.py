"""Settings are written as text and read back, and a config makes the same run again."""

import json
import platform
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

import trainkit as tk
from trainkit.cli.commands import build_parser, main
from trainkit.cli.run_config import RunConfig, read_settings
from trainkit.core.config import from_plain, from_text
from trainkit.loggers.runs import RunFolder


def test_words_count_more_than_the_file(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text(
        'lr = 1e-3\nhidden = [8, 8]\nepsilon = "Linear(0.4, 1.0)"\nreward = "sign"\nnetwork = {dueling = true}\n'
    )
    settings = read_settings(file, ["lr=2e-3", "gamma=0.9"])
    assert {name: from_text(text) for name, text in settings.items()} == {
        "lr": 2e-3, "hidden": (8, 8), "epsilon": tk.Linear(0.4, 1.0), "reward": "sign", "gamma": 0.9,
        "network": {"dueling": True},
    }  # fmt: skip


def test_what_is_no_setting_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("lr = = 1")
    with pytest.raises(tk.ConfigError, match=r"a.toml cannot be read as TOML"):
        read_settings(tmp_path / "a.toml", [])
    for word in ("lr", "=1", "a b=1"):
        with pytest.raises(tk.ConfigError, match=r"--set needs name=value, or group\.item=value, got"):
            read_settings(None, [word])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"preset": "dqnn"}, "no preset is called 'dqnn', did you mean 'dqn'?: see trainkit presets"),
        ({"settings": {"logger": "x"}}, "--set logger is the command's own: use --logdir"),
        ({"preset": "cql"}, "cql learns from a dataset: give --data, the path of a dataset or a Minari id"),
        ({"data": "x"}, "dqn learns from an environment: leave --data out"),
        ({"env": None}, "dqn needs an environment: trainkit train dqn CartPole-v1"),
    ],
)
def test_a_recipe_that_cannot_work_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(tk.ConfigError) as caught:
        RunConfig(**{"preset": "dqn", "env": "CartPole-v1", "seed": 1, **given})
    assert str(caught.value) == message


def test_the_command_repeats_the_recipe_and_config_json_holds_all_of_it() -> None:
    settings = {"hidden": "(8, 8)", "reward": "sign", "epsilon": "Linear(0.4, 1.0)", "device": "cpu", "zoo": "False"}
    config = RunConfig(preset="rainbow", env="CartPole-v1", seed=7, settings=settings)
    program, *words = shlex.split(config.command)
    assert program == "trainkit"
    options = build_parser().parse_args(words)
    assert read_settings(options.config, options.set) == settings
    assert (options.preset, options.env, options.seed, options.seeds) == ("rainbow", "CartPole-v1", 7, 1)
    with config.trainer(verbose=False) as trainer:
        plain = config.to_plain(trainer)
    assert plain["command"] == config.command
    assert plain["versions"]["torch"]
    assert plain["versions"]["python"] == platform.python_version()
    names = ("preset", "env", "seed", "data", "settings")
    assert RunConfig(**{name: plain[name] for name in names}) == config
    given = {name: from_text(text) for name, text in settings.items()}
    table = {**tk.presets.rainbow.settings("classic"), **given}
    complete = {name: from_plain(own) for name, own in plain["complete"].items()}
    options_of_trainer = {"log_every", "smoothed_reports", "test_in_train", "callback_errors", "episode_per_test"}
    assert complete.keys() <= table.keys() | options_of_trainer
    names_of_both = sorted(complete.keys() - options_of_trainer)
    assert [repr(complete[name]) for name in names_of_both] == [repr(table.get(name)) for name in names_of_both]
    assert {"lr", "gamma", "capacity", "buffer", "n_envs", "update_per_step", "hidden"} <= complete.keys()
    assert table.keys() - complete.keys() == {"self_play", "run_name"}  # off; and the command's own


TINY = (
    "max_epoch=2 step_per_epoch=120 step_per_collect=8 learning_starts=40 batch_size=8 hidden=(8,) n_envs=2 "
    "n_test_envs=1 device=cpu"
)


def train(folder: Path, *words: str, settings: str = TINY) -> Path:
    """Train quietly into a folder, and return that of the run."""
    given = [word for setting in settings.split() for word in ("--set", setting)]
    assert main(["train", *words, "--logdir", str(folder), "--name", "run", "--quiet", *given]) == 0
    (config,) = folder.rglob("config.json")
    return config.parent


def outcome(run: Path) -> tuple[list[dict[str, float]], dict[str, Any]]:
    """Return a run's numbers without times, and its weights."""
    clocks = ("time/", "train/durations", "test/durations", "system/")
    rows = [
        {tag: x for tag, x in row.items() if not (tag.startswith(clocks) or tag.endswith(("_ms", "/seconds")))}
        for row in RunFolder.read(run).rows
    ]
    return rows, tk.load_policy(run / "checkpoint", device="cpu").state_dict()


def test_a_runs_config_json_repeats_it_to_the_bit(tmp_path: Path) -> None:
    settings = f"{TINY} episode_per_test=1 lr=Linear(0.00123456789,1e-5) reward=(-1,1) n_step=(1,3)"
    first = train(tmp_path / "first", "rainbow", "CartPole-v1", "--seed", "3", settings=settings)
    again = train(tmp_path / "again", "--config", str(first / "config.json"), settings="")
    (rows, weights), (rows_again, weights_again) = outcome(first), outcome(again)
    assert rows == rows_again
    assert rows[-1]["test/returns/mean"] > 0
    assert all(torch.equal(weight, weights_again[name]) for name, weight in weights.items())
    one, other = (RunFolder.read(run).config for run in (first, again))
    assert one["complete"] == other["complete"]
    assert one["settings"] == other["settings"]


def test_a_run_is_repeated_whatever_the_defaults_are_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    run = train(tmp_path / "first", "dqn", "CartPole-v1", settings=f"{TINY} max_epoch=1 episode_per_test=1")
    table = {
        domain: {**own, "gamma": 0.5, "backup": tk.DoubleBackup()} for domain, own in tk.presets.dqn._tables.items()
    }
    monkeypatch.setattr(tk.presets.dqn, "_tables", table)
    words = ["--config", str(run / "config.json"), "--seed", "4"]
    again = RunFolder.read(train(tmp_path / "again", *words, settings="lr=1e-3"))
    assert (again.config["seed"], again.config["settings"]["lr"]) == (4, "1e-3")
    names = ("policy/lr", "policy/gamma", "policy/backup", "policy/hidden", "seed")
    assert [again.settings[name] for name in names] == [1e-3, 0.99, "MaxBackup", [8], 4]
    assert "note" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "changes", "message"),
    [
        ([], {"env": "os:System"}, "names the environment 'os:System', which is not an id in Gymnasium's registry"),
        ([], {"complete": {"test_env": "os:System"}}, "names the environment 'os:System', which is not an id"),
        ([], {"complete": {"env_options": {"mapping": {"wrappers": ["os"]}}}}, "may not set 'wrappers' from a file"),
        ([], {"complete": {"env_options": 7}}, "env_options must be a dict, got 7"),
        ([], {"complete": {"lr": {"part": "System", "of": {}}}}, "config.json: lr cannot be read as a setting"),
        ([], {"complete": {"gama": 0.9}}, "presets.dqn: unknown option 'gama', did you mean 'gamma'?"),
        ([], {"complete": {"gamma": "x"}}, "presets.dqn.gamma must be a number, got 'x'"),
        ([], {"complete": [1]}, "config.json.complete must be dict, got"),
        (["ppo"], {}, "config.json is of a run of dqn, not ppo: leave one out"),
        ([], {"preset": "dqnn"}, "no preset is called 'dqnn'"),
    ],
)
def test_a_config_json_that_cannot_be_repeated_is_refused(
    tmp_path: Path, capsys: Any, words: list[str], changes: dict[str, Any], message: str
) -> None:
    plain: dict[str, Any] = {"preset": "dqn", "env": "CartPole-v1", "seed": 1, "data": None, "settings": {}}
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**plain, "complete": {"gamma": 0.9}, **changes}))
    assert main(["train", *words, "--config", str(file), "--logdir", str(tmp_path / "runs")]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.rglob("numbers.jsonl"))


def test_train_needs_a_preset_or_a_config_json(capsys: Any) -> None:
    assert main(["train"]) == 2
    assert "trainkit train needs a PRESET, or --config RUN/config.json to repeat a run" in capsys.readouterr().err


def test_arrays_of_a_toml_file_are_tuples(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text("reward = [-1, 1]\nn_step = [1, 3]\nhidden = [8]\n")
    settings = {name: from_text(text) for name, text in read_settings(file, []).items()}
    assert settings == {"reward": (-1, 1), "n_step": (1, 3), "hidden": (8,)}


def test_a_finished_run_that_is_resumed_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "dqn", "CartPole-v1", "--max-epoch=1", "--step-per-epoch=64", "--n-envs=2", "--hidden=8"]
    words += ["--step-per-collect=2", "--learning-starts=16", "--n-test-envs=1", "--episode-per-test=1"]
    words += ["--logdir", str(tmp_path), "--quiet"]
    assert main(words) == 0
    capsys.readouterr()
    assert main([*words, "--resume"]) == 0
    printed = capsys.readouterr()
    assert "finished before, after 64 steps: raise --max-epoch to go on" in printed.out
    assert "None" not in printed.out + printed.err
