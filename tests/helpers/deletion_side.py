"""A process that tries copies of the package from which files were deleted, each in a fork of its own.

It reads a line of JSON per copy: the arguments of `try_copy`. It answers with a line: what failed, "" where nothing
did. What the package needs is imported once, before; the package itself is imported by each fork from its copy alone.
"""

import json
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium  # noqa: F401 - imported for the forks
import numpy as np
import torch


def trainer_of(tk: Any, name: str) -> Any:
    """Make the trainer of a preset: one epoch of some steps and updates."""
    small = {"seed": 1, "device": "cpu", "verbose": False, "show_progress": False, "hidden": (8,), "max_epoch": 1}
    preset = tk.presets.PRESETS[name]
    if preset.learns_from_data:
        rng, ends = np.random.default_rng(0), np.arange(60) % 6 == 5
        columns = {"obs": rng.normal(size=(60, 4)).astype(np.float32), "action": rng.integers(2, size=60)}
        buffer = tk.ReplayBuffer.from_arrays(**columns, reward=np.ones(60), terminated=ends)
        return preset(buffer, "CartPole-v1", **small, update_per_epoch=3, batch_size=4, evaluation=None)
    if name not in ("dqn", "ppo", "sac"):  # recording one of each kind is enough: it takes longer than the rest
        small["engine"] = "torch"
    if "learning_starts" in preset.settings():
        small |= {"step_per_epoch": 24, "learning_starts": 16, "batch_size": 4}
        small |= {"step_per_collect": 8, "update_per_step": 0.25}
    elif name == "reinforce":  # whose rollouts are whole episodes
        small |= {"step_per_epoch": 32}
    else:
        small |= {"step_per_epoch": 32, "step_per_collect": 32, "repeat_per_collect": 1}
    env = "Pendulum-v1" if preset.domains[0] == "continuous" else "CartPole-v1"
    return preset(env, **small, n_envs=2, evaluation=None)


def try_copy(copy: str, train: bool, save: str = "", load: str = "", missing: Sequence[str] = ()) -> None:
    """Import a copy, list its zoo, train each of its presets and load policies.

    Args:
        copy: of the package, the folder to import it from.
        train: whether each preset makes a short run.
        save: policies that were trained into this folder.
        load: each policy in this folder; one that needs what is `missing` raises an error that names it.
        missing: names of extensions.
    """
    sys.path.insert(0, copy)
    import trainkit as tk

    assert Path(tk.__file__).is_relative_to(copy), tk.__file__
    for name in tk.__all__:
        getattr(tk, name)
    assert {entry.preset for entry in tk.zoo.list()} <= tk.presets.PRESETS.keys()
    for name in tk.presets.PRESETS if train else ():
        with trainer_of(tk, name) as trainer:
            trainer.run()
            assert trainer.policy.n_updates > 0, name
            if save:
                trainer.policy.save(Path(save) / name)
    for folder in sorted(Path(load).iterdir()) if load else ():
        try:
            tk.load_policy(folder, device="cpu")
        except tk.TrainkitError as error:
            if not any(name in str(error) for name in missing):
                raise AssertionError(f"{folder.name} cannot be loaded") from error


def in_fork(requested: dict[str, Any]) -> str:
    """Try a copy in a fork, and return the text of what failed."""
    reads, writes = os.pipe()
    if not (child := os.fork()):
        try:
            try_copy(**requested)
            text = ""
        except BaseException:  # noqa: BLE001 - whatever it is, it is the answer
            text = traceback.format_exc()
        os.write(writes, text[-60_000:].encode())  # a pipe holds 64 KiB
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as pipe:
        text = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return text if status == 0 else f"{text}the process ended with status {status}"


def main() -> None:
    """Answer every line."""
    torch.set_num_threads(1)
    for line in sys.stdin:
        print(json.dumps({"failed": in_fork(json.loads(line))}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
