"""Programs that misuse environments end: each gets an error within seconds, and leaves no process behind."""

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRELUDE = """
    import os, multiprocessing, sys
    import trainkit as tk
    def envs():
        return tk.make_envs("CartPole-v1", 2, seed=0, backend={backend!r})
    here = envs()
    policy = tk.DQNPolicy.for_envs(here, hidden=(8,), device="cpu", seed=0)
    train = tk.Collector(policy, here, tk.ReplayBuffer(2_000))
    train.collect(n_step=100)
    def report(use):
        try:
            use()
        except tk.TrainkitError as error:
            print(type(error).__name__, str(error)[:60], flush=True)
        else:
            print("went well", flush=True)
    def trainer():
        test = tk.Evaluation(tk.Collector(policy, envs()), duration=2)
        return tk.OffpolicyTrainer(policy, train, max_epoch=1, step_per_epoch=20, batch_size=8, evaluation=test,
                                   verbose=False, show_progress=False)
    import time
    began = time.monotonic()
"""

CASES = {
    "evaluate in a collector's": ("report(lambda: tk.evaluate(policy, here, n_episode=2))", ["ConfigError"]),
    "a second collector": ("report(lambda: tk.Collector(policy, here))", ["ConfigError"]),
    "collect after close": ("train.close(); report(lambda: train.collect(n_step=10))", ["ConfigError"]),
    "call after close": ("here.close(); report(lambda: here.call('spec'))", ["ConfigError"]),
    "evaluate twice in the same": (
        "mine = envs(); report(lambda: tk.evaluate(policy, mine, n_episode=2)); "
        "report(lambda: tk.evaluate(policy, mine, n_episode=2))",
        ["went well", "went well"],
    ),
    "evaluate in closed ones": (
        "mine = envs(); mine.close(); report(lambda: tk.evaluate(policy, mine, n_episode=2))",
        ["ConfigError"],
    ),
    "a trainer after with": (
        "own = trainer()\nwith own: own.run()\nreport(own.evaluate); own.reset(); report(own.run)",
        ["ConfigError", "ConfigError"],
    ),
    "a fork collects": (
        "sys.stdout.flush()\n"
        "if os.fork() == 0:\n    report(lambda: train.collect(n_step=10)); train.close(); sys.exit()\n"
        "os.wait(); report(lambda: train.collect(n_step=100))",
        {"sync": ["went well", "went well"], "async": ["BusyError", "went well"]},
    ),
    "a child process collects": (
        "child = multiprocessing.get_context('fork').Process(target=report, args=(lambda: train.collect(n_step=10),))\n"
        "child.start(); child.join(); report(lambda: train.collect(n_step=100))",
        {"sync": ["went well", "went well"], "async": ["BusyError", "went well"]},
    ),
}


@pytest.mark.parametrize("backend", ["sync", "async"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.slow  # most of their seconds go into importing torch
def test_a_program_that_misuses_environments_gets_an_error_and_ends(case: str, backend: str) -> None:
    code, expected = CASES[case]
    ending = "\nprint('ended', time.monotonic() - began, flush=True)\n"
    script = textwrap.dedent(PRELUDE).format(backend=backend) + code + ending
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env=environ,
        cwd=ROOT,
    )
    total_s = time.monotonic() - began
    *lines, last = done.stdout.splitlines()
    assert done.stderr == ""
    assert done.returncode == 0
    names = expected[backend] if isinstance(expected, dict) else expected
    assert [line.split(" the ")[0] if "went" in line else line.split()[0] for line in lines] == names
    assert float(last.split()[1]) < 5
    assert total_s < 60
