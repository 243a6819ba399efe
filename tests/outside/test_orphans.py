"""Processes that a run has started end with it, also where it is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc, and the death signal, are Linux's")

LIMIT_S = 2.0
KINDS = {
    "workers": 'envs = tk.make_envs("CartPole-v1", 2, backend="async", seed=1)\nenvs.reset(seed=1)',
    "actors": 'envs = tk.make_envs("CartPole-v1", 2, backend=tk.envs.Actors(2), seed=1)\nenvs.reset(seed=1)',
    "fragment actors": """
envs = tk.make_envs("CartPole-v1", 2, backend=tk.envs.Actors(2, fragment=8), seed=1)
policy = tk.DQNPolicy.for_envs(envs, hidden=(8,), seed=1)
tk.Collector(policy, envs, tk.ReplayBuffer(100)).collect(n_step=16)
""",
    "evaluation in the background": """
evaluation = tk.BackgroundEvaluation(duration=1_000_000)
trainer = tk.presets.dqn("CartPole-v1", zoo=False, max_epoch=1, step_per_epoch=50, evaluation=evaluation, verbose=False)
import threading
threading.Timer(12.0, lambda: print("ready", flush=True)).start()
trainer.run()
""",
}


def children_of(pid: int) -> set[int]:
    """Return the processes below a process."""
    found = set()
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(file.read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):  # it has ended
            continue
        if parent == pid:
            found |= {int(file.parent.name), *children_of(int(file.parent.name))}
    return found


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_killed_run_has_started_ends_within_two_seconds(kind: str) -> None:
    script = f'import time\nimport trainkit as tk\n{KINDS[kind]}\nprint("ready", flush=True)\ntime.sleep(600)'
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        children = children_of(process.pid)
        process.kill()
        process.wait()
    assert len(children) >= (1 if "evaluation" in kind else 2)
    ends = time.monotonic() + LIMIT_S
    while (left := [pid for pid in children if is_running(pid)]) and time.monotonic() < ends:
        time.sleep(0.05)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []
