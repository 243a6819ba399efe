"""Entries of the zoo by name; mistakes are answered with what there is."""

import subprocess
import sys

import pytest

import trainkit as tk
from trainkit import zoo


def test_an_entry_is_found_by_its_names() -> None:
    entry = zoo.entry("dqn", "CartPole-v1")
    assert entry.name == "dqn/CartPole-v1"
    assert entry in zoo.list()


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("dqnn", "CartPole-v1"), "unknown option 'dqnn', did you mean 'dqn'"),
        (("dqn", "CartPol-v1"), "nothing for dqn on 'CartPol-v1', did you mean 'CartPole-v1'"),
        (("sac", "CartPole-v1"), r"nothing for sac on 'CartPole-v1'.*; a2c, .*rainbow.* have CartPole-v1: sac has"),
        (("bc", "CartPole-v1"), "bc has no environment; tk.zoo.list"),
    ],
)
def test_an_unknown_entry_is_answered_with_what_there_is(names: tuple[str, str], message: str) -> None:
    with pytest.raises(tk.ConfigError, match=message):
        zoo.load(*names)


@pytest.mark.parametrize("entry", zoo.list(), ids=lambda entry: entry.name)
def test_a_shipped_policy_loads_and_is_small_and_others_say_what_to_do(entry: zoo.ZooEntry) -> None:
    if not entry.weights.is_dir():
        with pytest.raises(tk.ConfigError, match=rf"settings for {entry.name}, but no weights: train it with"):
            zoo.load(entry.preset, entry.env)
        return
    assert sum(path.stat().st_size for path in entry.weights.iterdir()) <= 500_000
    assert isinstance(zoo.load(entry.preset, entry.env, device="cpu"), tk.Policy)


def test_the_zoo_is_imported_when_it_is_first_used() -> None:
    is_there = "print('trainkit.zoo' in sys.modules)"
    code = f"import sys, trainkit; {is_there}; trainkit.zoo.load; {is_there}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
