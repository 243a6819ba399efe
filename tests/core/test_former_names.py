"""Names of trainkit 0.1 work with a warning that has the new place; unknown names get a hint."""

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import trainkit as tk
from trainkit.core.former_names import MOVED
from trainkit.core.names import CLASSES_ELSEWHERE

PAGE = (Path(__file__).parents[2] / "docs" / "from_0_1.md").read_text()
ALL = [(old, name, new) for old, names in MOVED.items() for name, new in names.items()]


@pytest.mark.parametrize(("old", "name", "new"), ALL)
def test_a_former_name_is_the_new_one_with_a_warning(old: str, name: str, new: str) -> None:
    with pytest.warns(
        DeprecationWarning, match=rf"^{old}\.{name} is now {new}\.{name}: .* in trainkit 0\.3$"
    ) as caught:
        former = getattr(import_module(old), name)
    assert caught[0].filename == __file__
    assert former is getattr(import_module(new), name)


def test_former_modules_can_be_imported_and_reached_as_attributes() -> None:
    code = """
import trainkit.logger
import trainkit as tk
from trainkit.data import Rollout
from trainkit.nets import MLP
assert trainkit.logger.JsonlLogger is tk.JsonlLogger and MLP is tk.nets.MLP and tk.stats.RunInfo is tk.trainer.RunInfo
"""
    done = subprocess.run([sys.executable, "-W", "always", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "trainkit.data.Rollout is now trainkit.buffer.Rollout" in done.stderr


def test_the_page_has_every_name_that_moved() -> None:
    rows = re.findall(r"^\| `(trainkit[\w.]*)` \| (.+?) \| `(trainkit[\w.]*)` \|$", PAGE, re.MULTILINE)
    assert [(old, re.findall(r"`(\w+)`", names), new) for old, names, new in rows] == [
        (old, [name for name, place in names.items() if place == new], new)
        for old, names in MOVED.items()
        for new in dict.fromkeys(names.values())
    ]


def test_former_names_are_not_listed() -> None:
    assert not set(dir(tk)) & set(MOVED["trainkit"])


@pytest.mark.parametrize("name", CLASSES_ELSEWHERE)
def test_a_class_of_another_library_is_answered_with_ours(name: str) -> None:
    assert not hasattr(tk, name)
    meant = CLASSES_ELSEWHERE[name]
    with pytest.raises(AttributeError, match=rf"'trainkit' has no attribute '{name}', did you mean tk\.{meant}\?"):
        getattr(tk, name)
    found: object = tk
    for part in meant.split("."):
        found = getattr(found, part)
    assert callable(found)


@pytest.mark.parametrize(
    ("name", "meant"), [("DQNPolcy", "DQNPolicy"), ("Preproces", "nets.Preprocess"), ("evalute", "evaluate")]
)
def test_a_misspelled_name_is_answered_with_the_nearest(name: str, meant: str) -> None:
    with pytest.raises(AttributeError, match=rf"did you mean tk\.{meant}\?"):
        getattr(tk, name)


@pytest.mark.parametrize("name", ["__wrapped__", "_private", "xyzzy"])
def test_a_name_near_nothing_gets_no_hint(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"^module 'trainkit' has no attribute '{name}'$"):
        getattr(tk, name)
