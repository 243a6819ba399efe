"""Options without an effect: each option of each preset, changed once, changes a run or what it writes, or is rejected.

Options are found by introspection, and their annotations give other values, so that a new one is tested without being
listed here. A value is "rejected" where an error of trainkit names it.
"""

import functools
import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import gymnasium as gym
import numpy as np
import pytest
import torch
from typing_extensions import is_typeddict

import trainkit as tk
from examples.two_agents import TwoPoles
from tests.helpers.of_extensions import files_of_extensions
from tests.outside.test_assignments import digest
from trainkit import presets
from trainkit.core.signatures import union_members
from trainkit.core.typed_options import types_of

TINY: dict[str, Any] = {"device": "cpu", "seed": 1, "hidden": (8,), "max_epoch": 2, "zoo": False, "log_every": 10}
ONLINE: dict[str, Any] = TINY | {"n_envs": 2, "n_test_envs": 2, "episode_per_test": 2, "step_per_epoch": 40}
REPLAY: dict[str, Any] = ONLINE | {"step_per_collect": 2, "batch_size": 8, "learning_starts": 8, "update_per_step": 0.5}
OF_Q = REPLAY | {"target_every": 10, "env_options": {"max_episode_steps": 30}}
ROLLOUTS = ONLINE | {"step_per_collect": 20, "batch_size": 10, "repeat_per_collect": 2}
OFFLINE = {name: own for name, own in TINY.items() if name != "zoo"}
OFFLINE |= {"update_per_epoch": 25, "batch_size": 8, "episode_per_test": 2, "n_test_envs": 2}
HOW_A_RUN_IS_EXECUTED = {"device", "engine", "precision", "act_on", "threads", "overlap"}


def received(*_: object, **__: object) -> Any:
    raise tk.ConfigError("was received")


def failing(*_: object) -> None:
    raise RuntimeError("of the user")


class Fails(gym.Wrapper[Any, Any, Any, Any]):
    """An environment that fails in its 7th step, the first of a run."""

    n_steps = 0

    def step(self, action: Any) -> Any:
        self.n_steps += 1
        if self.n_steps == 7 and not Path("failed").exists():
            Path("failed").touch()
            raise RuntimeError("of the environment")
        return self.env.step(action)


class TwoPendulums(TwoPoles):
    """A game of two agents whose actions are in a Box."""

    def __init__(self) -> None:
        self._poles, self.agents = {name: gym.make("Pendulum-v1") for name in self.possible_agents}, []


@functools.cache
def dataset() -> tk.ReplayBuffer:
    envs = tk.make_envs("CartPole-v1", 2, seed=1)
    buffer = tk.ReplayBuffer(200, spaces=envs, seed=1)
    tk.Collector(tk.RandomPolicy(envs.action_space, seed=1), envs, buffer).collect(n_step=100)
    return buffer


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
ROLLOUT_RUNS: list[dict[str, Any]] = [
    ROLLOUTS,
    ROLLOUTS | {"recurrent": "gru", "sequences": tk.Sequences(4, 0)},
    ROLLOUTS | {"env": "Pendulum-v1"},
    *(ROLLOUTS | more for more in COMMON),
    ROLLOUTS | {"env": TwoPoles, "self_play": True},
]
EPISODES: dict[str, Any] = {"step_per_collect": None, "episode_per_collect": 2, "batch_size": None}
EPISODES |= {"step_per_epoch": 200}
RUNS: dict[str, list[dict[str, Any]]] = {
    "dqn": [*Q_RUNS, *(OF_Q | more for more in COMMON), OF_Q | {"env": TwoPoles, "self_play": True}],
    "ppo": ROLLOUT_RUNS,
    "a2c": ROLLOUT_RUNS,
    "reinforce": [run | EPISODES for run in ROLLOUT_RUNS],
    "sac": [
        REPLAY | {"env": "Pendulum-v1"},
        REPLAY | {"env": "Pendulum-v1", "buffer": "prioritized"},
        REPLAY | {"env": "Pendulum-v1", "recurrent": "gru", "sequences": tk.Sequences(4, 2), "batch_size": 4},
        *(REPLAY | {"env": "Pendulum-v1"} | more for more in COMMON),
        REPLAY | {"env": TwoPendulums, "self_play": True},
    ],
    "bc": [OFFLINE, *(OFFLINE | more for more in OF_BC)],
    "cql": [OFFLINE | more for more in ({"target_every": 5}, {"recurrent": "gru"}, *COMMON)],
    "bcq": [OFFLINE | more for more in ({"target_every": 5}, *COMMON)],
}
SPECIAL: dict[str, Any] = {
    "activation": "elu",
    "auxiliary": lambda features, rows: features.square().mean(dim=1),
    "buffer": "prioritized",
    "callbacks": tk.callbacks.StopAt(env_step=20),
    "callback_errors": "log",
    "critic_only": ("x",),
    "encoder": "impala",
    "env_options": {"max_episode_steps": 9},
    "evaluation": tk.Evaluation(duration=3),
    "exploration": tk.EpsilonGreedy(0.9),
    "rules": (received,),
    "log_every": 1_000,
    "max_env_step": 30,
    "max_epoch_seconds": 1e-9,
    "max_seconds": 1e-9,
    "n_test_envs": 1,
    "penalty": tk.ConservativePenalty(0.5),
    "optimizer": functools.partial(torch.optim.SGD, lr=0.1),
    "resume_from": "nowhere",
    "reward": 0.5,
    "sequences": tk.Sequences(3, 0, stored_state=False),
    "stop_return": -1e9,
    "test_env": "MountainCar-v0",
    "test_in_train": True,
}


@functools.cache
def all_runs() -> dict[str, list[dict[str, Any]]]:
    """Return the runs of each preset, those of extensions, too, whose files may import this one."""
    found = dict(RUNS)
    for extension in files_of_extensions("examples").values():
        found |= getattr(extension, "PRESETS", {})
    return found


def others(option: str, annotation: Any, current: Any) -> list[Any]:
    """Return other values of an option: those named here, else some that its annotation allows."""
    if option in SPECIAL:
        return [SPECIAL[option], *([0.5] if option == "exploration" else [])]
    values: list[Any] = []
    for member in union_members(annotation):
        origin = get_origin(member) or member
        if origin is Literal:
            values += [word for word in get_args(member) if word != current]
        elif origin is bool:
            values.append(not current)
        elif origin is int:
            values += [1 if current is None else current + 1, 3, 1] if not isinstance(current, tuple) else [3]
        elif origin is float:
            values += [0.25 if not isinstance(current, float) or not current else 0.5 * current, 1e-6]
        elif origin is tuple:
            values.append((5,))
        elif member is Path:
            values.append("here")
        elif "Callable" in str(origin):
            values.append(received)
    return values or ["here"]


def outcome(make: Callable[[], Any], capsys: Any, folder: Path, option: str = "") -> str:
    """Train a new trainer, and return a digest of what was learned, logged, printed and written; or of the rejection.

    What is no trainer is used when it is made, and its digest is of its arrays and plain values.
    """
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    dataset().seed(1)
    try:
        made = make()
        if not isinstance(made, tk.Trainer):
            return digest(made, files_in(folder))
        with made as trainer:
            trainer.run()
            timed = re.compile("second|durations|_ms$|^system/|^time/|memory/")
            history = [{k: v for k, v in row.items() if not timed.search(k)} for row in trainer.history]
            record = trainer.describe() if option in HOW_A_RUN_IS_EXECUTED else {}
            state = trainer.policy.get_weights(), trainer.gradient_step, trainer.env_step, trainer.stop_reason
            collector = trainer.train_collector
            if collector is not None and isinstance(trainer.buffer, tk.ReplayBuffer):
                state = *state, trainer.buffer.get(collector.collected_slots).extras
    except tk.errors.TrainkitError as error:
        return f"{'rejected' if isinstance(error, ValueError) else 'failed'}: {error}"
    except RuntimeError as error:
        return str(error)
    finally:
        shown = capsys.readouterr()
    return digest(state, history, record, shown.out.count("\n"), bool(shown.err), files_in(folder))


def files_in(folder: Path) -> list[tuple[str, Any]]:
    """Return the names of the files, with their lines or bytes where no times and no paths are in them."""

    def content(path: Path) -> Any:
        if path.suffix in (".csv", ".jsonl"):
            return len(path.read_text().splitlines())
        if path.suffix == ".npz" and path.parent.name == "data":
            return path.stat().st_size
        return path.read_bytes() if path.suffix in (".gif", ".mp4") else None

    paths = (path for path in folder.rglob("*") if path.is_file() and "tfevents" not in path.name)
    return sorted((str(path.relative_to(folder)), content(path)) for path in paths if "summary" not in path.name)


def cases() -> Iterator[tuple[str, str]]:
    """Yield (preset, option) of one preset of each kind; "group.option" are those in a group."""
    for name in all_runs():
        for option, annotation in presets.PRESETS[name].option_types.items():
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
