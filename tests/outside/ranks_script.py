"""A rank of a small run, for the tests of ranks: `ranks_script.py FOLDER CASE`, with torchrun's variables."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import trainkit as tk

RANK = int(os.environ["RANK"])
CASES: dict[str, dict[str, Any]] = {  # what rank 1 has otherwise
    "max_epoch": {"max_epoch": 5},
    "step_per_epoch": {"step_per_epoch": 96},
    "hidden": {"hidden": (16,)},
    "env": {"env": "Acrobot-v1"},
    "preset": {"preset": "ppo", "step_per_collect": 64, "learning_starts": None},
    "killed": {},
    "raises": {},
}


class EndsAtEpoch(tk.Callback):
    """Ends rank 1 at the end of its first epoch."""

    def __init__(self, case: str) -> None:
        self._case = case

    def on_epoch_end(self, trainer: Any, result: Any) -> None:
        if RANK == 1 and self._case == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if RANK == 1 and self._case == "raises":
            raise RuntimeError("the cluster took this rank")


def main(folder: Path, case: str) -> None:
    given: dict[str, Any] = {"preset": "dqn", "env": "CartPole-v1", "hidden": (8,), "seed": 3, "zoo": False}
    given |= {"max_epoch": 3, "step_per_epoch": 64, "learning_starts": 32, "batch_size": 16}
    given |= CASES[case] if RANK == 1 else {}
    preset: Any = getattr(tk.presets, given.pop("preset"))
    options = {name: value for name, value in given.items() if value is not None}
    began = time.monotonic()
    try:
        with preset(options.pop("env"), verbose=False, evaluation=None, callbacks=EndsAtEpoch(case), **options) as run:
            run.run()
        error = "none"
    except Exception as caught:  # noqa: BLE001  # whatever comes is written down
        error = f"{type(caught).__name__}: {caught}"
    (folder / f"rank{RANK}").write_text(f"{time.monotonic() - began:.1f}\n{error}")
    os._exit(0)  # without waiting for the others


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
