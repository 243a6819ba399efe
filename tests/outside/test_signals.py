"""SIGTERM where a run cannot act on it at once: in an environment that hangs, and in the body of the loop."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trainkit.core.checkpoint import find_checkpoints

HEAD = """
import os, signal, sys, time
import gymnasium as gym
import trainkit as tk
from trainkit.trainer import interrupt

interrupt.HANGS_S = 0.5
how = dict(zoo=False, seed=1, step_per_epoch=40, hidden=(8,), evaluation=None, checkpoint="runs", verbose=False)
how |= dict(n_envs=1, learning_starts=10, batch_size=8)
"""
HANGS = """
class Hangs(gym.Wrapper):
    def step(self, action):
        if sys.argv[1:] == ["hangs"]:
            print("hangs", flush=True)
            while True:
                time.sleep(0.05)
        return self.env.step(action)

tk.presets.dqn(lambda: Hangs(gym.make("CartPole-v1")), max_epoch=2, **how).run()
"""
BODY = """
with tk.presets.dqn("CartPole-v1", max_epoch=5, resume_from="auto", **how) as trainer:
    for epoch, stats, info in trainer:
        if epoch == 2 and "signal" in sys.argv:
            os.kill(os.getpid(), signal.SIGTERM)
            print("continued", flush=True)
    print(trainer.info.epoch, trainer.info.stop_reason, flush=True)
"""
LEFT = """
trainer = tk.presets.dqn("CartPole-v1", max_epoch=5, **how)
for epoch, stats, info in trainer:
    break
os.kill(os.getpid(), signal.SIGTERM)
print("deferred", flush=True)
END
print("not here", flush=True)
"""


def start(folder: Path, script: str, *arguments: str) -> "subprocess.Popen[str]":
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", HEAD + script, *arguments], cwd=folder, text=True, **pipes)


def test_a_later_sigterm_ends_a_run_whose_environment_hangs(tmp_path: Path) -> None:
    with start(tmp_path, HANGS, "hangs") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "hangs\n"
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)  # several at a time are as one
        time.sleep(0.2)
        assert process.poll() is None
        time.sleep(0.8)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == -signal.SIGTERM
    assert "the run ends here, without saving" in errors


def test_sigterm_in_the_loops_body_saves_and_ends_the_run_at_the_next_next(tmp_path: Path) -> None:
    output, errors = start(tmp_path, BODY, "signal").communicate(timeout=60)
    assert output.split() == ["continued", "2", "SIGTERM"], errors
    assert len(find_checkpoints(tmp_path / "runs")) >= 1
    output, errors = start(tmp_path, BODY).communicate(timeout=60)
    assert output.split() == ["5", "max_epoch"], errors


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGTERM)", "trainer.close()"])
def test_after_a_break_a_second_sigterm_or_close_ends_the_process(end: str, tmp_path: Path) -> None:
    process = start(tmp_path, LEFT.replace("END", end))
    output, _ = process.communicate(timeout=60)
    assert output == "deferred\n"
    assert process.returncode == -signal.SIGTERM
