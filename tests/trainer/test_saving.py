"""Going on from a checkpoint: the same bits as a run that was never stopped, and nothing that differs is silent."""

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import trainkit as tk
from tests.trainer.runs import RUNS, make_run
from tests.trainer.toys import everything, untimed

N_EPOCHS = 10


def told(result: Any) -> tuple[Any, ...]:
    return untimed(result), result.info.env_step, result.info.gradient_step, result.info.best_score


@pytest.mark.parametrize("name", RUNS)
def test_a_run_split_after_any_epoch_is_the_run_that_was_never_split(name: str, tmp_path: Path) -> None:
    straight = make_run(name, max_epoch=N_EPOCHS)
    results = [told(result) for result in straight]
    final = everything(straight)
    saving = make_run(name, max_epoch=N_EPOCHS, checkpoint=tk.Checkpoint(tmp_path, keep_last=N_EPOCHS))
    assert [told(result) for result in saving] == results  # saving itself changes nothing
    for epoch in range(1, N_EPOCHS):
        resumed = make_run(name, seed=99, max_epoch=N_EPOCHS, resume_from=tmp_path / f"save-{epoch:06d}")
        assert [told(result) for result in resumed] == results[epoch:], f"split after epoch {epoch}"
        assert everything(resumed) == final, f"split after epoch {epoch}"


REST = """
import pickle, sys, torch
torch.set_num_threads(1)
from tests.trainer.runs import make_run
from tests.trainer.test_saving import everything, told
runs = {name: make_run(name, max_epoch=4, resume_from=f"{sys.argv[1]}/{name}") for name in sys.argv[2:]}
ends = {name: ([told(result) for result in run], everything(run)) for name, run in runs.items()}
pickle.dump(ends, sys.stdout.buffer)
"""


def test_a_new_process_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    expected = {}
    for name in RUNS:
        run = make_run(name, max_epoch=4, seed=5)
        results = [told(next(run)) for _ in range(2)]
        run.save(tmp_path / name)
        results += [told(result) for result in run]
        expected[name] = (results[2:], everything(run))
    done = subprocess.run([sys.executable, "-c", REST, tmp_path, *RUNS], capture_output=True, check=True)
    there = pickle.loads(done.stdout)  # noqa: S301 - our own words
    for name in RUNS:
        assert there[name] == expected[name], name
