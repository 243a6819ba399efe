"""What a run made, as a digest, with another value of an option or without."""

import functools
import hashlib
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import gymnasium as gym
import numpy as np
import torch

import trainkit as tk
from trainkit.core.signatures import union_members


def digest(*values: Any) -> str:
    """Return a digest of arrays, tensors and plain values, nested in mappings and sequences."""
    found = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, dict):
            for key, own in value.items():
                found.update(str(key).encode())
                add(own)
        elif isinstance(value, (list, tuple)):
            for own in value:
                add(own)
        elif isinstance(value, torch.Tensor):
            add(value.detach().cpu().numpy())
        elif isinstance(value, np.ndarray):
            found.update(np.ascontiguousarray(value).tobytes())
        else:
            found.update(repr(value).encode())

    for value in values:
        add(value)
    return found.hexdigest()


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


@functools.cache
def dataset() -> tk.ReplayBuffer:
    envs = tk.make_envs("CartPole-v1", 2, seed=1)
    buffer = tk.ReplayBuffer(200, spaces=envs, seed=1)
    tk.Collector(tk.RandomPolicy(envs.action_space, seed=1), envs, buffer).collect(n_step=100)
    return buffer


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
