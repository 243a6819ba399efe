"""The pages with all names of Tianshou and RLlib: no name is left out, and what they call ours is ours."""

import ast
import contextlib
import inspect
import json
import logging
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import trainkit as tk
from tests.outside.rival_pages import DOCS, PAGES, expanded, rows_of
from trainkit.core.errors import Checks
from trainkit.envs.envs_config import ProcessOptions

RIVALS = Path(__file__).parent / "rivals"
MODULES = [part for part in (getattr(tk, name) for name in tk.__all__) if inspect.ismodule(part)]
PUBLIC = {name: getattr(module, name) for module in [tk, *MODULES] for name in module.__all__}


# Options that mean the same in each of the groups that have them.
SAME_EVERYWHERE = {
    *("clip_loss_grad", "discount_factor", "estimation_step", "gamma", "is_double", "num_quantiles"),
    *("device", "reward_normalization", "target_update_freq"),
}


@pytest.mark.parametrize("library", PAGES)
def test_every_name_of_another_library_has_a_row_for_each_meaning(library: str) -> None:
    groups: dict[str, list[str]] = json.loads((RIVALS / f"{library}.json").read_text())["names"]
    found = Counter(name for _, theirs, _ in rows_of(PAGES[library]) for name in theirs)
    wanted = Counter(name for names in groups.values() for name in {*names})
    assert sorted(found) == sorted(wanted)
    assert [name for name, n in wanted.items() if name not in SAME_EVERYWHERE and found[name] < n] == []


@pytest.mark.parametrize("library", PAGES)
def test_a_row_names_ours_or_says_what_to_use(library: str) -> None:
    kinds = re.compile(r"`|the same(?=$|, )|leave out: .|not meant: [^()]+ \(use .+\)|to come \(today: .+\)")
    assert [ours for _, _, ours in rows_of(PAGES[library]) if not kinds.match(ours)] == []


# ---- what is called ours is ours ----


def trained() -> tuple[Any, Any, Any]:
    trainer = tk.presets.rainbow(
        "CartPole-v1", max_epoch=1, step_per_epoch=64, learning_starts=32, batch_size=16, hidden=(8,), verbose=False
    )
    _, stats, info = next(trainer)
    return trainer, stats, info


@pytest.fixture(scope="module")
def objects() -> dict[str, list[Any]]:
    """Return what the pages call `trainer`, `policy` and so on: real ones, of every kind that differs."""
    trainer, stats, info = trained()
    box = tk.make_envs("Pendulum-v1", 1)
    policies = [trainer.policy, tk.SACPolicy.for_envs(box, hidden=(8,)), tk.PPOPolicy.for_envs(box, hidden=(8,))]
    collectors, envs = [trainer.train_collector], [trainer.train_collector.envs, tk.envs]
    trainers = [trainer, tk.OnpolicyTrainer, tk.OfflineTrainer]
    return {
        "trainer": trainers,
        "policy": [*policies, tk.MultiAgentPolicy, tk.BCPolicy, tk.DiscreteBCQPolicy, tk.policy],
        "collector": [*collectors, tk.collector],
        "buffer": [trainer.buffer, tk.RolloutBuffer, tk.MixedBuffer, tk.buffer],
        "envs": envs,
        "stats": [stats, stats.train, stats.train.returns],
        "info": [info],
        "episode": [tk.collector.Episode, tk.policy.GameEpisode],
        "config": [tk.presets.dqn.config("CartPole-v1")],
        "logging": [logging],
        "os": [os],
        "tk": [tk],
        "Callback": [tk.Callback],
        **{name: [getattr(tk, name)] for name in ("presets", "callbacks", "nets", "datasets", "testing", "loggers")},
    }


def signature(call: Any) -> dict[str, Any]:
    try:
        return dict(inspect.signature(call).parameters)
    except (TypeError, ValueError):
        return {}


def known_options(objects: dict[str, list[Any]]) -> set[str]:
    """Return the parameters of everything public, and of the methods of public classes."""
    calls = [part for part in PUBLIC.values() if callable(part)]
    calls += [call for name in tk.presets.PRESETS for call in (getattr(tk.presets, name, None),) if call is not None]
    classes = [part for part in calls if inspect.isclass(part)]
    calls += [member for part in classes for name, member in inspect.getmembers(part, callable) if name[0] != "_"]
    calls += [getattr(part, "for_envs", None) for part in objects["policy"]]
    return {name for call in calls for name in signature(call)}


def members(owners: list[Any], name: str) -> list[Any]:
    """Return the attributes of this name, of those that have it."""
    found = []
    for one in owners:
        with contextlib.suppress(AttributeError, tk.ConfigError):  # ConfigError: a property that has no value yet
            found.append(getattr(one, name))
    return found


class Reader(ast.NodeVisitor):
    """Collect what an expression of a page names that is not ours."""

    def __init__(self, objects: dict[str, list[Any]], options: set[str]) -> None:
        self.objects, self.options, self.wrong = objects, options, list[str]()

    def found(self, node: ast.expr) -> list[Any]:
        """Return what an expression can be: the objects of that name, or their attributes."""
        if isinstance(node, ast.Name):
            public = [PUBLIC[node.id]] if node.id in PUBLIC else []
            return self.objects.get(node.id, []) + (public or members(self.all(), node.id))
        return members(self.found(node.value), node.attr) if isinstance(node, ast.Attribute) else []

    def all(self) -> list[Any]:
        """Return all objects, to look up a name that is written without its owner."""
        return [one for own in self.objects.values() for one in own if not inspect.ismodule(one)]

    def visit_Name(self, node: ast.Name) -> None:
        if not self.found(node) and node.id not in self.options:
            self.wrong.append(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if not self.found(node):
            self.wrong.append(ast.unparse(node))

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in ("next", "lambda"):
            return
        self.visit(node.func)
        parameters = [signature(call) for call in self.found(node.func)]
        for keyword in node.keywords:
            if not any(keyword.arg in one for one in parameters):
                self.wrong.append(f"{ast.unparse(node.func)}({keyword.arg}=)")
        for arg in node.args:
            if isinstance(arg, ast.Name) and not any(arg.id in one for one in parameters):
                self.wrong.append(f"{ast.unparse(node.func)}({arg.id})")

    def visit_Subscript(self, node: ast.Subscript) -> None:
        assert isinstance(node.slice, ast.Constant), ast.unparse(node)
        if str(node.slice.value) not in tags():
            self.wrong.append(str(node.slice.value))

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            if isinstance(target, ast.Attribute):
                self.visit(target)
            elif not (isinstance(target, ast.Name) and target.id in self.options):
                self.wrong.append(ast.unparse(target))


def tags() -> set[str]:
    """Return all tags of the pages on metrics, which are compared with runs by tests of their own."""
    pages = [DOCS / "metrics.md", DOCS / "offline_rl.md", *(DOCS / "algorithms").glob("*.md")]
    spans = [span for page in pages for span in re.findall(r"`([a-z_]+/[a-z_/{},]+)`", page.read_text())]
    return {tag for span in spans for tag in expanded(span)}


def not_ours(text: str, reader: Reader) -> list[str]:
    """Return the names in the code of a text that are not trainkit's."""
    reader.wrong.clear()
    for span in re.findall(r"`([^`]+)`", text):
        if re.fullmatch(r"[a-z_]+/[a-z_/]+", span):
            reader.wrong += [] if span in tags() else [span]
        else:
            reader.visit(ast.parse(span))
    return list(reader.wrong)


@pytest.mark.parametrize("library", PAGES)
def test_names_in_the_middle_column_are_ours(library: str, objects: dict[str, list[Any]]) -> None:
    reader = Reader(objects, known_options(objects))
    wrong = {}
    for section, theirs, ours in rows_of(PAGES[library]):
        same = " ".join(f"`{name}`" for name in theirs) if ours.startswith("the same") else ""
        if names := not_ours(f"{ours} {same}", reader):
            wrong[f"{section}: {theirs[0]}"] = names
    assert wrong == {}


@pytest.mark.parametrize("library", PAGES)
def test_every_backend_on_a_page_is_one_of_make_envs(library: str) -> None:
    words = re.findall(r'backend="(.*?)"', PAGES[library].read_text())
    assert words
    with Checks("make_envs") as checks:
        for word in words:
            ProcessOptions(word, None, None, {}).check(checks, 1, is_made=False)


@pytest.mark.parametrize(
    "text",
    [
        "`no_such_option`",
        "`make_envs(stacks=...)`",
        "`policy.no_such_method()`",
        '`stats["train/no_such"]`',
        "`Target(tua=0.5)`",
        "`QuantileValue(n)`",
        "`update/no_such`",
        "`presets.no_such`",
    ],
)
def test_a_name_that_does_not_exist_is_found(text: str, objects: dict[str, list[Any]]) -> None:
    assert not_ours(text, Reader(objects, known_options(objects))) != []
