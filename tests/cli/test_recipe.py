"""Settings are written as text and read back, and a recipe makes the same run again."""

import shlex
from pathlib import Path
from typing import Any

import pytest

import trainkit as tk
from trainkit.cli.main import build_parser
from trainkit.cli.recipe import Recipe, read_settings
from trainkit.core.setting_texts import parse_value


def test_words_count_more_than_the_file(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('lr = 1e-3\nhidden = [8, 8]\nbeta = "Linear(0.4, 1.0)"\nreward = "sign"\ndueling = true\n')
    settings = read_settings(file, ["lr=2e-3", "gamma=0.9"])
    assert {name: parse_value(text) for name, text in settings.items()} == {
        "lr": 2e-3, "hidden": [8, 8], "beta": tk.Linear(0.4, 1.0), "reward": "sign", "dueling": True, "gamma": 0.9,
    }  # fmt: skip


def test_what_is_no_setting_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("lr = = 1")
    with pytest.raises(tk.ConfigError, match=r"a.toml cannot be read as TOML"):
        read_settings(tmp_path / "a.toml", [])
    for word in ("lr", "=1", "a b=1"):
        with pytest.raises(tk.ConfigError, match="--set needs name=value, got"):
            read_settings(None, [word])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"preset": "dqnn"}, "no preset is called 'dqnn', did you mean 'dqn'?: see trainkit presets"),
        ({"settings": {"logger": "x"}}, "--set logger is the command's own: use --logdir"),
        ({"preset": "cql"}, "cql learns from a dataset: give --data, files that DatasetWriter wrote"),
        ({"data": "x"}, "dqn learns from an environment: leave --data out"),
        ({"env": None}, "dqn needs an environment: trainkit train dqn CartPole-v1"),
    ],
)
def test_a_recipe_that_cannot_work_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(tk.ConfigError) as caught:
        Recipe(**{"preset": "dqn", "env": "CartPole-v1", "seed": 1, **given})
    assert str(caught.value) == message


def test_the_command_repeats_the_recipe_and_config_json_holds_all_of_it() -> None:
    settings = {"hidden": "(8, 8)", "reward": "sign", "beta": "Linear(0.4, 1.0)"}
    recipe = Recipe(preset="rainbow", env="CartPole-v1", seed=7, settings=settings)
    program, *words = shlex.split(recipe.command)
    assert program == "trainkit"
    options = build_parser().parse_args(words)
    assert read_settings(options.config, options.set) == settings
    assert (options.preset, options.env, options.seed, options.seeds) == ("rainbow", "CartPole-v1", 7, 1)
    plain = recipe.to_plain()
    assert plain["command"] == recipe.command
    assert plain["versions"]["torch"]
    names = Recipe.__dataclass_fields__
    assert Recipe(**{name: plain[name] for name in names}) == recipe
