"""Importing trainkit again, after an import that was interrupted, as a cell of a notebook is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import importlib, importlib.abc, sys
import gymnasium, torch

class Interrupt(importlib.abc.MetaPathFinder):
    n, at = 0, None
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "trainkit":
            self.n += 1
            if self.n == self.at:
                raise KeyboardInterrupt

def use():
    import trainkit as tk
    tk.OffpolicyTrainer, tk.presets.dqn, tk.callbacks.OffPolicyEvaluation, tk.zoo.list
    return tk

interrupt = Interrupt()
sys.meta_path.insert(0, interrupt)
use()
n_modules = interrupt.n
for position in range(1, N_POINTS + 1):
    for name in [name for name in sys.modules if name.partition(".")[0] == "trainkit"]:
        del sys.modules[name]
    interrupt.n, interrupt.at = 0, position * n_modules // (N_POINTS + 1)
    try:
        use()
    except KeyboardInterrupt:
        tk = use()
    else:
        raise AssertionError("was not interrupted")
    dqn = tk.presets.dqn
    assert importlib.reload(tk) is tk and tk.presets.dqn is dqn
print("imported again")
"""


@pytest.mark.parametrize("n_points", [5, pytest.param(60, marks=pytest.mark.slow)])
def test_an_import_works_after_one_that_was_interrupted(n_points: int) -> None:
    script = SCRIPT.replace("N_POINTS", str(n_points))
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False)
    assert done.stdout == "imported again\n", done.stderr
