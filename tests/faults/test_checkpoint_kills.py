"""A run killed at any moment of a save: what is there is whole, and the next run resumes from it."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from trainkit.core.checkpoint import damage, find_checkpoints, read_manifest

# Runs with one save each, forked from one process so that torch is loaded once. A child counts every call that changes
# a file or a folder, dies before the k-th as if the machine lost its power, and is looked at by its parent.
AT_EACH_WRITE = """
import contextlib, io, json, os, shutil, sys, torch
from pathlib import Path
torch.set_num_threads(1)
import trainkit as tk
from tests.trainer.toys import make_trainer
from trainkit.core.checkpoint import damage, find_checkpoints, read_manifest

folder, n_runs = Path(sys.argv[1]), int(sys.argv[2])

def run(max_epoch):
    checkpoint = tk.Checkpoint(folder, keep_last=1)
    make_trainer(test=True, max_epoch=max_epoch, checkpoint=checkpoint, resume_from="auto").run()

def die_at(k):
    left = k
    def tick():
        nonlocal left
        left -= 1
        if left < 0:
            os._exit(9)
    def counted(owner, name):
        original = getattr(owner, name)
        def method(*args, **options):
            tick()
            return original(*args, **options)
        setattr(owner, name, method)
    class Counting(io.BufferedWriter):
        def write(self, content):
            tick()
            if left == 0:
                super().write(bytes(content)[: len(bytes(content)) // 2])  # and half of this one
                self.flush()
            return super().write(content)
    opened = Path.open
    def open_counting(path, mode="r", *args, **options):
        if "x" not in mode:
            return opened(path, mode, *args, **options)
        tick()
        return Counting(io.FileIO(path, mode.replace("b", "")))
    Path.open = open_counting
    for name in ("replace", "rename", "unlink", "mkdir"):
        counted(Path, name)
    for name in ("fsync", "rmdir", "unlink"):
        counted(os, name)
    return lambda: k - left

reader, writer = os.pipe()
if os.fork() == 0:
    run(1)
    count = die_at(10**9)
    run(2)
    os.write(writer, str(count()).encode())
    os._exit(0)
n_writes = int(os.read(reader, 20))
results = []
for k in sorted({round(place * (n_writes - 1) / (n_runs - 1)) for place in range(n_runs)}):
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)
    child = os.fork()
    if child == 0:
        run(1)  # whole
        die_at(k)
        run(2)
        os._exit(0)
    killed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    whole = [path for path in find_checkpoints(folder) if damage(path) is None]
    epoch = read_manifest(whole[0])["progress"]["epoch"] if whole else None
    child = os.fork()
    if child == 0:
        run(2)  # resumes from what is there
        os._exit(0)
    after = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    epochs = [read_manifest(path)["progress"]["epoch"] for path in find_checkpoints(folder)]
    left_over = [path.name for path in folder.rglob(".*")]
    results.append({"k": k, "killed": killed, "epoch": epoch, "after": after, "epochs": epochs, "left": left_over})
print(json.dumps(results))
"""


@pytest.mark.parametrize("n_runs", [3, pytest.param(180, marks=[pytest.mark.slow, pytest.mark.timeout(3_000)])])
def test_a_run_killed_before_any_write_resumes_from_a_whole_checkpoint(n_runs: int, tmp_path: Path) -> None:
    arguments = [str(tmp_path / "saved"), str(n_runs)]
    done = subprocess.run([sys.executable, "-c", AT_EACH_WRITE, *arguments], capture_output=True, text=True, check=True)
    result: list[dict[str, Any]] = json.loads(done.stdout)
    assert len(result) == n_runs
    assert sum(one["killed"] == 9 for one in result) == len(result)  # each died within its save
    for one in result:
        assert one["epoch"] in (1, 2), one
        assert one["after"] == 0, one
        assert one["epochs"] == [2], one
    assert {one["epoch"] for one in result} == {1, 2}  # the last ones died when the new one was whole


FOR_EVER = """
import sys, torch
torch.set_num_threads(1)
import trainkit as tk
from tests.trainer.toys import make_trainer
checkpoint = tk.Checkpoint(sys.argv[1], every=2, unit="env_steps", keep_last=2)
trainer = make_trainer(max_epoch=10**6, checkpoint=checkpoint, resume_from="auto")
print("ready", flush=True)
trainer.run()
"""


@pytest.mark.parametrize("times", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_a_run_that_saves_all_the_time_resumes_after_every_sigkill(times: int, tmp_path: Path) -> None:
    moments = random.Random(0)
    reached, newest = 0, None
    for _ in range(times):
        process = subprocess.Popen([sys.executable, "-c", FOR_EVER, str(tmp_path)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        while not (found := find_checkpoints(tmp_path)) or found[0] == newest:
            time.sleep(0.001)
        time.sleep(0.1 * moments.random())  # anywhere in the saves that follow
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        found = find_checkpoints(tmp_path)
        assert found
        assert damage(found[0]) is None
        env_step = read_manifest(found[0])["progress"]["env_step"]
        assert env_step > reached
        reached, newest = env_step, found[0]
