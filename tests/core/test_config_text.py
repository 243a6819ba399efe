"""Settings as text: what is parsed is what was formatted, and no text is run."""

import tomllib
from typing import Any

import pytest
import torch

import trainkit as tk
from trainkit.core.config import Part, from_text, from_toml, to_text, to_toml
from trainkit.presets import PRESETS


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        (" 7", 7),
        ("(64, 64)", (64, 64)),
        ("[(0, 1.0), (8_000, 0.04)]", [(0, 1.0), (8_000, 0.04)]),
        ("true", True),
        ("False", False),
        ("none", None),
        ("Linear(0.4, 1.0)", tk.Linear(0.4, 1.0)),
        ("Linear(0.4, 1.0, 0.5)", tk.Linear(0.4, 1.0, 0.5)),
        ("{'a': [Linear(0.4, 1.0), (1,)]}", {"a": [tk.Linear(0.4, 1.0), (1,)]}),
        ("{**{}}", "{**{}}"),
        ("EpsilonGreedy(Linear(1.0, 0.1).over(9))", "EpsilonGreedy(Linear(1.0, 0.1).over(9))"),
        ("Greedy(1, 2)", "Greedy(1, 2)"),
        ("sign", "sign"),
        ("'1'", "1"),
        ("print(1)", "print(1)"),
        ("__import__('os').getcwd()", "__import__('os').getcwd()"),
        ("", ""),
    ],
)
def test_a_setting_is_read_as_a_literal_or_a_word_and_never_run(text: str, value: Any) -> None:
    assert from_text(text) == value
    assert type(from_text(text)) is type(value)


@pytest.mark.parametrize("name", PRESETS)
def test_every_default_that_is_listed_can_be_given_back(name: str) -> None:
    for domain in PRESETS[name].domains:
        for setting, value in PRESETS[name].settings(domain).items():
            assert repr(from_text(to_text(value))) == repr(value), setting


@pytest.mark.parametrize("name", PRESETS)
def test_every_default_that_is_plain_can_be_written_to_toml_and_read(name: str) -> None:
    for domain in PRESETS[name].domains:
        for setting, value in PRESETS[name].settings(domain).items():
            assert repr(from_toml(tomllib.loads(f"x = {to_toml(value)}")["x"])) == repr(value), setting


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (tk.Linear(1e-3, 1e-5), '"Linear(0.001, 1e-05)"'),
        (((0, 1.0), (100_000, 0.05)), "[[0, 1.0], [100_000, 0.05]]"),
        (None, '"none"'),
        (
            {"type": "ReplayBuffer", "beta": tk.Linear(0.4, 1.0, 0.5)},
            '{"type" = "ReplayBuffer", "beta" = "Linear(0.4, 1.0, 0.5)"}',
        ),
        (True, "true"),
    ],
)
def test_a_toml_file_holds_schedules_and_what_is_nested_readably(value: Any, text: str) -> None:
    assert to_toml(value) == text
    assert from_toml(tomllib.loads(f"x = {text}")["x"]) == value


@pytest.mark.parametrize(
    "part",
    [
        tk.DoubleBackup(),
        tk.QuantileValue(7, kappa=0.5),
        tk.SoftQ(0.3),
        tk.EpsilonGreedy([(0, 1.0), (9, 0.1)]),
    ],
)
def test_a_part_is_written_as_the_call_of_its_constructor(part: Part) -> None:
    for again in (from_text(to_text(part)), from_toml(tomllib.loads(f"x = {to_toml(part)}")["x"])):
        assert repr(again) == repr(part)
    assert repr(from_toml(tomllib.loads(f"x = {to_toml([part])}")["x"])) == f"({part!r},)"


class OwnBackup(tk.DoubleBackup):
    """A part that trainkit does not export."""


def test_a_part_of_the_users_own_is_a_word_in_text_and_no_value_of_toml() -> None:
    assert from_text("OwnBackup()") == "OwnBackup()"
    with pytest.raises(tk.ConfigError, match=r"^a TOML file holds .*, got OwnBackup\(\)$"):
        to_toml(OwnBackup())


@pytest.mark.parametrize("value", [object(), float("nan"), {1: 2}, [OwnBackup()], tk.TorchOptimizer(torch.optim.SGD)])
def test_what_is_not_plain_is_not_written_to_toml(value: Any) -> None:
    with pytest.raises(
        tk.ConfigError, match="a TOML file holds numbers, words, schedules and collections of these, got"
    ):
        to_toml(value)
