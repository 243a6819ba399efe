"""The record of a run: every effective setting, read from the live parts of a trainer, flat and in plain values."""

import os
import platform
import subprocess
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trainkit.core import checkpoint as checkpoints
from trainkit.core.config import Plain, flatten
from trainkit.core.signatures import options_of
from trainkit.core.versions import versions
from trainkit.trainer.callbacks.base import Callback, EventFunctions
from trainkit.trainer.callbacks.history import History
from trainkit.trainer.options import OptionFunctions, TrainerOptions

if TYPE_CHECKING:
    from trainkit.trainer.base import Trainer

_PARTS = (  # options that are described apart, or have no effect on the run
    *("policy", "train_collector", "buffer", "test_collector", "evaluation", "episode_per_test", "callbacks"),
    *("checkpoint", "logger", "resume_from", "verbose", "show_progress", "threads", "training_intensity"),
)
_GIT = ("git", "status", "--porcelain=v2", "--branch", "--untracked-files=no")


def record_of(trainer: "Trainer[Any]", options: TrainerOptions, callbacks: Sequence[Callback]) -> dict[str, Plain]:
    """Return every effective setting of a run: {"batch_size": 32, "policy/lr": 0.001, "buffer/alpha": 0.5, ...}.

    A part of the user's own is described like ours: by its class, and the arguments of its constructor that it keeps.
    """
    train, test = trainer.train_collector, trainer.test_collector
    policy, envs = trainer.policy, None if train is None else train.envs
    evaluation = trainer.evaluation_schedule.evaluation
    parts = [one for one in (trainer, policy, trainer.buffer, train, test, envs, evaluation) if one is not None]

    def flat(name: str, part: object) -> dict[str, Plain]:
        own = flatten(name, part, known=[one for one in parts if one is not part])
        return {path: value for path, value in own.items() if not path.endswith(("/seed", "/name"))}

    record = _of_trainer(trainer, options)
    record |= flat("policy", policy.settings())
    for name, part in (("buffer", trainer.buffer), ("env", envs), ("collector", train), ("evaluation", evaluation)):
        record |= {} if part is None else flat(name, part)
    record |= {} if test is None else {"evaluation/n_envs": test.envs.n}
    for callback in callbacks:
        if isinstance(callback, (History, OptionFunctions)):
            continue
        if isinstance(callback, EventFunctions):
            record |= flatten("", callback.functions)
        else:
            record |= flat(f"callbacks/{type(callback).__name__}", callback)
    record["preset"] = None if trainer.config is None else trainer.config["preset"]
    return {**trainer.settings(), **record, **trainer.settings(), **_of_machine(trainer)}


def _of_trainer(trainer: "Trainer[Any]", options: TrainerOptions) -> dict[str, Plain]:
    """Return the options of a trainer, without the parts that are described apart."""
    own = {**vars(trainer), **options}
    flat: dict[str, Plain] = {}
    for name in options_of(type(trainer)):
        value = own.get(name, own.get(f"_{name}"))
        if name not in _PARTS:
            flat |= flatten(name, value)
    return flat


def _of_machine(trainer: "Trainer[Any]") -> dict[str, Plain]:
    """Return versions, the machine and its process, and the commit of the user's repository."""
    packages = {"python": platform.python_version(), **versions()}
    threads = getattr(trainer.policy, "n_threads", None)
    machine = {"system": platform.system(), "threads": threads, **checkpoints.processor()}
    machine |= {"host": platform.node(), "pid": os.getpid()}
    return {
        **{f"versions/{name}": number for name, number in packages.items()},
        **{f"machine/{name}": value for name, value in machine.items()},
        **flatten("git", repository()),
    }


def repository() -> dict[str, Plain]:
    """Return {"commit", "dirty"} of the git repository that this process runs in: whether files differ from it.

    Empty outside of a repository, and where git is missing or does not answer within two seconds.
    """
    try:
        found = subprocess.run(_GIT, capture_output=True, text=True, timeout=2, check=True, env=_git_environment())
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}
    lines = found.stdout.splitlines()
    commits = [line.split()[-1] for line in lines if line.startswith("# branch.oid ")]
    is_changed = any(not line.startswith("#") for line in lines)
    return {"commit": commits[0], "dirty": is_changed} if commits else {}


def _git_environment() -> dict[str, str]:
    """Return the environment of git: it takes no lock, and prompts for nothing."""
    return {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
