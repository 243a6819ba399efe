"""Options without an effect: each option of each preset, changed once, changes a run or what it writes, or is rejected.

Options are found by introspection, and their annotations give other values, so that a new one is tested without being
listed here. A value is "rejected" where an error of trainkit names it.
"""

import functools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from typing_extensions import is_typeddict

import trainkit as tk
from examples.two_agents import TwoPoles
from tests.helpers.of_extensions import files_of_extensions
from tests.outside.outcomes import (
    HOW_A_RUN_IS_EXECUTED,
    Fails,
    dataset,
    failing,
    others,
    outcome,
)
from trainkit import presets
from trainkit.core.typed_options import types_of
from trainkit.presets.zoo_entry import root_of

TINY: dict[str, Any] = {"device": "cpu", "seed": 1, "hidden": (8,), "max_epoch": 2, "zoo": False, "log_every": 10}
ONLINE: dict[str, Any] = TINY | {"n_envs": 2, "n_test_envs": 2, "episode_per_test": 2, "step_per_epoch": 40}
REPLAY: dict[str, Any] = ONLINE | {"step_per_collect": 2, "batch_size": 8, "learning_starts": 8, "update_per_step": 0.5}
OF_Q = REPLAY | {"target_every": 10, "env_options": {"max_episode_steps": 30}}
ROLLOUTS = ONLINE | {"step_per_collect": 20, "batch_size": 10, "repeat_per_collect": 2}
OFFLINE = {name: own for name, own in TINY.items() if name != "zoo"}
OFFLINE |= {"update_per_epoch": 25, "batch_size": 8, "episode_per_test": 2, "n_test_envs": 2}


class TwoPendulums(TwoPoles):
    """A game of two agents whose actions are in a Box."""

    def __init__(self) -> None:
        self._poles, self.agents = {name: gym.make("Pendulum-v1") for name in self.possible_agents}, []


# Runs of each kind of preset, in one of which an option must matter: some need another option.
Q_RUNS: list[dict[str, Any]] = [
    OF_Q,
    OF_Q | {"buffer": "prioritized", "n_step": 3},
    OF_Q | {"recurrent": "gru", "sequences": tk.Sequences(4, 2), "batch_size": 4},
]
COMMON: list[dict[str, Any]] = [
    {"callbacks": tk.on(epoch_end=failing)},
    {"callbacks": tk.on(epoch_end=lambda trainer, result: trainer.log("threads", torch.get_num_threads()))},
    {"reward": lambda columns: columns["reward"] * np.nan},
    {"checkpoint": "checkpoints"},
    {"resumed": True},
    {"env_options": {"wrappers": (Fails,), "on_error": "restart", "restart_delay_s": 0.0, "max_restarts": 100}},
]
OF_BC = [more for more in COMMON if "reward" not in more]


def with_common(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return runs, and the first again with what options of every preset that collects need in order to matter."""
    first = runs[0]
    game = TwoPendulums if first.get("env") == "Pendulum-v1" else TwoPoles
    of_two = first | {"env": game, "self_play": True, "env_options": {}}  # which may limit episodes of one
    return [*runs, *(first | more for more in COMMON), of_two]


ROLLOUT_RUNS = with_common(
    [ROLLOUTS, ROLLOUTS | {"recurrent": "gru", "sequences": tk.Sequences(4, 0)}, ROLLOUTS | {"env": "Pendulum-v1"}]
)
EPISODES: dict[str, Any] = {"step_per_collect": None, "episode_per_collect": 2, "batch_size": None}
EPISODES |= {"step_per_epoch": 200}
RUNS: dict[str, list[dict[str, Any]]] = {
    "dqn": with_common(Q_RUNS),
    "ppo": ROLLOUT_RUNS,
    "a2c": ROLLOUT_RUNS,
    "reinforce": [run | EPISODES for run in ROLLOUT_RUNS],
    "sac": with_common(
        [
            REPLAY | {"env": "Pendulum-v1"},
            REPLAY | {"env": "Pendulum-v1", "buffer": "prioritized"},
            REPLAY | {"env": "Pendulum-v1", "recurrent": "gru", "sequences": tk.Sequences(4, 2), "batch_size": 4},
        ]
    ),
    "bc": [OFFLINE, *(OFFLINE | more for more in OF_BC)],
    "cql": [OFFLINE | more for more in ({"target_every": 5}, {"recurrent": "gru"}, *COMMON)],
    "bcq": [OFFLINE | more for more in ({"target_every": 5}, *COMMON)],
}


@functools.cache
def all_runs() -> dict[str, list[dict[str, Any]]]:
    """Return the runs of each preset, those of extensions, too, whose files may import this one."""
    files = files_of_extensions("examples").values()
    return RUNS | {name: with_common(runs) for file in files for name, runs in getattr(file, "PRESETS", {}).items()}


def cases() -> Iterator[tuple[str, str]]:
    """Yield (preset, option) of one preset of each kind; "group.option" are those in a group.

    Without entries in the zoo the option that selects them has no effect.
    """
    for name in all_runs():
        without = set() if (root_of(name) / name).is_dir() else {"zoo"}
        for option, annotation in presets.PRESETS[name].option_types.items():
            if option in without:
                continue
            own = types_of(annotation) if is_typeddict(annotation) else {}
            yield from ((name, f"{option}.{inner}") for inner in own)
            if not own:
                yield name, option


def annotated(preset: Any, option: str, base: dict[str, Any]) -> tuple[Any, Any]:
    """Return the annotation of an option, and its value in a run."""
    group, _, inner = option.partition(".")
    table = base[group] if group in base else preset.settings().get(group, preset.table().get(group))
    kind = preset.option_types[group]
    return (types_of(kind)[inner], table.get(inner)) if inner else (kind, table)


def made(preset: Any, options: dict[str, Any]) -> tk.Trainer:
    """Make a trainer, "resumed" one that continues a run with the same options."""
    given = dict(options)
    if given.pop("resumed", False):
        with made(preset, given) as first:
            first.run(epochs=1)
            given["resume_from"] = first.save("saved")
    data = (dataset(),) if preset.learns_from_data else ()
    trainer: tk.Trainer = preset(*data, given.pop("env", "CartPole-v1"), **given)
    return trainer


def has_effect(name: str, option: str, capsys: Any, folder: Path, known: dict[Any, str]) -> bool:
    """Return whether any other value of an option changes the outcome of any run."""
    preset = presets.PRESETS[name]
    group, _, inner = option.partition(".")
    for position, run in enumerate(all_runs()[name]):
        base = {key: own for key, own in run.items() if key in ("env", "resumed", *preset.option_types)}
        key = name, position, option in HOW_A_RUN_IS_EXECUTED
        if key not in known:
            known[key] = outcome(functools.partial(made, preset, base), capsys, folder, option)
            assert not known[key].startswith("rejected"), f"{name}, {run}: {known[key]}"
        for value in others(inner or option, *annotated(preset, option, base)):
            given = {group: {**base.get(group, {}), inner: value} if inner else value}
            changed = outcome(functools.partial(made, preset, base | given), capsys, folder, option)
            if changed != known[key]:
                return True
    return False


def problems(chosen: list[tuple[str, str]], capsys: Any, folder: Path) -> list[str]:
    known: dict[Any, str] = {}
    return [f"{name}({option}=)" for name, option in chosen if not has_effect(name, option, capsys, folder, known)]


def test_runs_with_equal_options_are_equal(capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("dqn", "ppo", "cql"):
        run = all_runs()[name][0]
        one, other = (outcome(functools.partial(made, presets.PRESETS[name], run), capsys, tmp_path) for _ in range(2))
        assert one == other
        assert not one.startswith("rejected"), one


def test_a_fortieth_of_all_options_has_an_effect_or_is_rejected(
    capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    every = [*cases()]
    assert problems(random.Random(0).sample(every, len(every) // 40), capsys, tmp_path) == []


@pytest.mark.slow
def test_every_option_has_an_effect_or_is_rejected(
    capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert problems([*cases()], capsys, tmp_path) == []


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: presets.sac("Pendulum-v1", buffer={"alpha": 0.5}), "ReplayBuffer: unknown option 'alpha'"),
        (
            lambda: presets.sac("Pendulum-v1", temperature=0.2, initial_temperature=3.0),
            "SACPolicy.initial_temperature needs temperature='auto', got 0.2",
        ),
        (
            lambda: presets.dqn("CartPole-v1", refresh_priorities="late"),
            "refresh_priorities 'late' needs a prioritized buffer, ReplayBuffer is not",
        ),
        (
            lambda: presets.ppo("CartPole-v1", action_scaling=False),
            "action_scaling has no effect: actions are Discrete",
        ),
    ],
)
def test_options_without_an_effect_are_named(make: Any, message: str) -> None:
    with pytest.raises(tk.ConfigError, match=message):
        make()
