"""Names of trainkit 0.1 work with a warning that has the new place; unknown names get a hint."""

import json
import re
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch

import trainkit as tk
from tests.helpers.learning import Spaces
from trainkit.core.former_names import MOVED, RENAMED, REPLACED_OPTIONS
from trainkit.core.names import CLASSES_ELSEWHERE
from trainkit.core.signatures import checked

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
from trainkit.data import Rollout
from trainkit import MLP
assert trainkit.logger.JsonlLogger is tk.JsonlLogger and MLP is tk.nets.MLP and tk.stats.RunInfo is tk.trainer.RunInfo
"""
    with pytest.warns(DeprecationWarning, match="is now") as caught:
        exec(code, {"tk": tk})  # noqa: S102  # a user's imports
    assert any(str(one.message).startswith("trainkit.data.Rollout is now trainkit.buffer.Rollout") for one in caught)


@checked
def former(
    *,
    engine: str = "auto",
    act_on: str = "policy",
    threads: int | None = None,
    action_bound_method: str = "clip",
    n_dimensions: int = 1,
    target_return: float | None = None,
    proportions: float = 1.0,
    failed_episodes: object = "drop",
) -> tuple[object, ...]:
    return engine, act_on, threads, action_bound_method, n_dimensions, target_return, proportions, failed_episodes


@pytest.mark.parametrize(
    ("old", "value", "new", "current"),
    [
        (old, value, new, current)
        for old, (new, values) in REPLACED_OPTIONS.items()
        for value, current in ({2: 2} if values is None else values).items()
    ],
)
def test_a_replaced_option_is_the_new_one_with_a_warning(old: str, value: object, new: str, current: object) -> None:
    remedy = "leave it out" if current is None else f"give {new}={current!r}"
    with pytest.warns(DeprecationWarning, match=rf"^former: {old}={value!r} was replaced .*: {remedy}$") as caught:
        options = former(**{old: value})  # type: ignore[arg-type]  # not in its signature any more
    assert caught[0].filename == __file__
    assert options == former(**({} if current is None else {new: current}))  # type: ignore[arg-type]


def test_replaced_options_work_in_policies_and_presets() -> None:
    options: dict[str, Any] = {"compile": False, "device": "cpu", "hidden": (4,)}
    for call, arguments in (
        (tk.DQNPolicy.for_envs, {"envs": Spaces(), "act_on": "device", **options}),
        (tk.presets.dqn, {"env": "CartPole-v1", "threads": "auto", "evaluation": None, "verbose": False, **options}),
    ):
        with pytest.warns(DeprecationWarning, match=r"was replaced and will be removed"):
            assert call(**arguments)


def test_replaced_options_are_unknown_where_the_new_one_is() -> None:
    with pytest.raises(tk.ConfigError, match="unknown option 'compile'"):
        tk.ReplayBuffer(10, compile=True)  # type: ignore[call-arg]  # that is the mistake


def test_the_page_has_every_replaced_option() -> None:
    for old, (new, values) in REPLACED_OPTIONS.items():
        if values is None:
            assert re.search(rf"\({old}=\)` \| `\w+\({new}=\)` \|", PAGE)
        for value, current in (values or {}).items():
            spelled = f"`{old}={json.dumps(value) if isinstance(value, str) else value}`"
            row = next(line for line in PAGE.splitlines() if spelled in line)
            assert current is None or f'`{new}="{current}"`' in row


def test_the_page_has_every_name_that_moved() -> None:
    rows = re.findall(r"^\| `(trainkit[\w.]*)` \| (.+?) \| `(trainkit[\w.]*)` \|$", PAGE, re.MULTILINE)
    assert [(old, re.findall(r"`(\w+)`", names), new) for old, names, new in rows] == [
        (old, [name for name, place in names.items() if place == new], new)
        for old, names in MOVED.items()
        for new in dict.fromkeys(names.values())
    ]


def instance_of(name: str) -> Any:
    """Return an object of the class that `RENAMED` names."""
    if name == "Estimate":
        names = [item.name for item in fields(tk.datasets.Estimate)]
        return tk.datasets.Estimate(**dict.fromkeys(names, 1))
    if name == "Callback":
        return tk.Callback()
    if name == "RunFolder":
        return tk.loggers.RunFolder(path=Path(), config={})
    if name == "MixedBuffer":
        return tk.MixedBuffer({tk.ReplayBuffer(1): 1.0})
    if name == "Prediction":
        return tk.nets.Prediction(torch.ones(1, 2, 1))
    if name == "Value":
        return tk.HLGaussValue()
    if name == "SACPolicy":
        continuous = Spaces(action_space=gym.spaces.Box(-1.0, 1.0, (2,)))
        return tk.SACPolicy.for_envs(continuous, hidden=(4,), device="cpu")
    return tk.DQNPolicy.for_envs(Spaces(), device="cpu")


@pytest.mark.parametrize(("name", "old", "new"), [(name, *pair) for name in RENAMED for pair in RENAMED[name].items()])
def test_a_renamed_member_is_the_new_one_with_a_warning(name: str, old: str, new: str) -> None:
    owner = instance_of(name)
    with pytest.warns(DeprecationWarning, match=rf"^{name}\.{old} is now {new}: .* in trainkit 0\.3$") as caught:
        former = getattr(owner, old)
    assert caught[0].filename == __file__
    assert former is getattr(owner, new) or former == getattr(owner, new)
    assert f"| `{name}.{old}` | `{new}` |" in PAGE


def test_a_class_that_defines_a_member_by_its_former_name_is_rejected() -> None:
    class Former(tk.ExpectedValue):
        def goal(self, after: Any, reward: Any, discount: Any) -> Any: ...

    class FormerPolicy(tk.DQNPolicy):
        def study(self, dataset: object) -> None: ...

    with pytest.raises(tk.ConfigError, match=r"^FormerCallback defines hears, which is receives since trainkit 0"):

        class FormerCallback(tk.Callback):
            def hears(self, event: str) -> bool: ...

    with pytest.raises(tk.ConfigError, match=r"^Former defines goal, which is target since trainkit 0\.2: rename it$"):
        tk.DQNPolicy.for_envs(Spaces(), value=Former(), device="cpu")
    with pytest.raises(tk.ConfigError, match=r"^FormerPolicy defines study, which is fit_statistics since trainkit 0"):
        FormerPolicy.for_envs(Spaces(), device="cpu")


def test_a_class_may_have_a_member_by_both_names() -> None:
    class Both(tk.ExpectedValue):
        def target(self, after: Any, reward: Any, discount: Any) -> Any: ...

        goal = target

    assert tk.DQNPolicy.for_envs(Spaces(), value=Both(), device="cpu")


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
