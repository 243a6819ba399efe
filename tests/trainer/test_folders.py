"""Folders that runs write to: each has one owner, a fresh run replaces nothing, and what is killed blocks no one."""

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import trainkit as tk
from tests.trainer.toys import Walk, make_trainer
from trainkit.core.checkpoint import find_checkpoints
from trainkit.core.folders import FolderClaim

Make = Callable[[Path], tk.Callback]

OWNERS: dict[str, Make] = {
    "Checkpoint": tk.Checkpoint,
    "SaveBest": tk.callbacks.SaveBest,
    "SaveEvery": tk.callbacks.SaveEvery,
}


def content(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder but locks."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".lock"
    }


# ---- a fresh run ----


@pytest.mark.parametrize("name", OWNERS)
def test_a_fresh_run_into_a_folder_of_another_is_rejected_and_nothing_is_lost(name: str, tmp_path: Path) -> None:
    make_trainer(test=True, callbacks=[OWNERS[name](tmp_path / "run")]).run()
    before = content(tmp_path)
    assert before
    received = rf"^{name}.folder .*run already holds .* of another run: name another folder, .* resume_from= continues"
    with pytest.raises(tk.ConfigError, match=received):
        make_trainer(test=True, seed=2, callbacks=[OWNERS[name](tmp_path / "run")])
    assert content(tmp_path) == before


@pytest.mark.parametrize("name", OWNERS)
def test_a_run_that_is_resumed_continues_in_its_folder(name: str, tmp_path: Path) -> None:
    with make_trainer(test=True, max_epoch=1, callbacks=[OWNERS[name](tmp_path / "run")]) as trainer:
        trainer.run()
        state = trainer.save(tmp_path / "state")
    place = tmp_path / "run" if name == "Checkpoint" else state
    make_trainer(test=True, max_epoch=2, resume_from=place, callbacks=[OWNERS[name](tmp_path / "run")]).run()


def test_videos_of_another_run_are_not_replaced(tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg", reason="needs trainkit-rl[video]")

    class Drawn(Walk):
        render_mode = "rgb_array"

    (tmp_path / "step-000000024-episode-0.mp4").write_bytes(b"a video")
    with pytest.raises(tk.ConfigError, match=r"RecordVideo.folder .* already holds step-000000024-episode-0.mp4"):
        make_trainer(env=Drawn, test=True, callbacks=[tk.callbacks.RecordVideo(tmp_path)])


def test_a_checkpoint_of_another_run_does_not_make_a_folder_ones_own(tmp_path: Path) -> None:
    for name in "ab":
        make_trainer(max_epoch=1, checkpoint=tmp_path / name).run()
    with pytest.raises(tk.ConfigError, match="already holds save-000001 of another run"):
        make_trainer(checkpoint=tmp_path / "a", resume_from=tmp_path / "b")
    make_trainer(checkpoint=tmp_path / "c", resume_from=tmp_path / "b").run()


def test_all_folders_that_cannot_be_taken_are_named_in_one_error(tmp_path: Path) -> None:
    own = lambda: [make(tmp_path / name) for name, make in OWNERS.items()]  # noqa: E731
    make_trainer(test=True, callbacks=own()).run()
    with pytest.raises(tk.ConfigError) as caught:
        make_trainer(test=True, callbacks=own())
    assert [line.partition(".")[0] for line in str(caught.value).splitlines()] == [
        "SaveBest",
        "SaveEvery",
        "Checkpoint",
    ]


def test_a_run_that_is_rejected_leaves_no_folder_and_no_lock(tmp_path: Path) -> None:
    with pytest.raises(tk.errors.CheckpointError, match="holds no readable checkpoint"):
        make_trainer(checkpoint=tmp_path / "a" / "b", resume_from=tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []


# ---- two trainers of one process ----


def test_two_trainers_of_one_process_do_not_share_a_folder(tmp_path: Path) -> None:
    first = make_trainer(checkpoint=tmp_path)
    with pytest.raises(tk.ConfigError, match=r"belongs to another trainer of this process: close\(\) that one"):
        make_trainer(checkpoint=tmp_path)
    first.close()
    make_trainer(checkpoint=tmp_path).run()


def test_a_trainer_without_references_is_freed(tmp_path: Path) -> None:
    make_trainer(checkpoint=tmp_path)
    make_trainer(checkpoint=tmp_path).run()
    assert len(find_checkpoints(tmp_path)) == 1


def test_a_run_that_is_resumed_takes_over_and_the_former_trainer_saves_no_more(tmp_path: Path) -> None:
    former = make_trainer(checkpoint=tmp_path)
    next(former)
    resumed = make_trainer(checkpoint=tmp_path, resume_from="auto")
    before = content(tmp_path)
    with pytest.raises(tk.errors.CheckpointError, match="belongs to another trainer of this process"):
        next(former)
    assert content(tmp_path) == before
    assert resumed.run().epoch == 3


def test_a_run_may_log_and_save_in_one_folder(tmp_path: Path) -> None:
    loggers = [tk.JsonlLogger(tmp_path / "run"), tk.JsonlLogger(tmp_path / "run", resume=True)]
    with make_trainer(checkpoint=tmp_path / "run", logger=loggers) as trainer:
        trainer.run()
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        ".trainkit-run", "numbers.jsonl", "save-000003",
    ]  # fmt: skip


# ---- two processes ----

HOLDER = """
import sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
import trainkit as tk
from tests.trainer.toys import make_trainer
trainer = make_trainer(test=True, checkpoint=Path(sys.argv[1]), logger=tk.JsonlLogger(sys.argv[1]),
                       callbacks=[tk.callbacks.SaveBest(Path(sys.argv[1]) / "kept")],
                       env_options={"backend": "async"})
next(trainer)
print("ready", flush=True)
time.sleep(60)
"""


@contextmanager
def another_process(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a process that trains in a folder and then holds it."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]  # it is a pipe


def test_a_folder_that_another_process_uses_is_rejected_until_it_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with another_process(folder) as process:
        before = content(folder)
        received = (
            rf"Checkpoint.folder .* is in use by process {process.pid} on {socket.gethostname()} since .*: wait until"
        )
        for resume_from in ("auto", folder):
            with pytest.raises(tk.ConfigError, match=received):
                make_trainer(test=True, checkpoint=folder, resume_from=resume_from)
        with pytest.raises(tk.ConfigError, match=rf"logger .* is in use by process {process.pid}"):
            tk.JsonlLogger(folder, resume=True)
        saved = make_trainer(test=True).save(tmp_path / "other")
        with pytest.raises(tk.ConfigError, match=rf"SaveBest.folder .* is in use by process {process.pid}"):
            make_trainer(test=True, resume_from=saved, callbacks=[tk.callbacks.SaveBest(folder / "kept")])
        assert content(folder) == before
        process.send_signal(signal.SIGKILL)
        process.wait()
        resumed = make_trainer(
            test=True, checkpoint=folder, resume_from="auto", logger=tk.JsonlLogger(folder, resume=True),
            callbacks=[tk.callbacks.SaveBest(folder / "kept")],
        )  # fmt: skip
        assert resumed.epoch == 1
        resumed.run()
        resumed.close()
    assert not list(folder.rglob("*.lock"))


def test_a_forked_process_does_not_keep_the_lock_of_a_parent_that_was_killed(tmp_path: Path) -> None:
    code = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from trainkit.core.folders import FolderClaim\n"
        "claim = FolderClaim('Here', Path(sys.argv[1]), 'test', lambda folder: [])\n"
        "claim.take(continues=False)\n"
        "if os.fork() == 0:\n"
        "    print(os.getpid(), flush=True)\n"  # by the child: a fork returns to its parent before the child has run
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    own = FolderClaim("Here", tmp_path, "test", lambda folder: [])
    try:
        with pytest.raises(tk.ConfigError, match=f"in use by process {parent.pid}"):
            own.take(continues=False)
        parent.kill()
        parent.wait()
        os.kill(child, 0)  # it still runs
        own.take(continues=False)
        own.release()
    finally:
        os.kill(child, signal.SIGKILL)
        parent.stdout.close()


# ---- where there are no locks ----


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)


def write_owner(folder: Path, **owner: Any) -> None:
    (folder / ".checkpoints.lock").write_text(json.dumps({"since": "now", **owner}))


def test_without_locks_a_process_that_runs_here_is_the_owner(tmp_path: Path, no_locks: None) -> None:
    write_owner(tmp_path, pid=os.getppid(), host=socket.gethostname())
    with pytest.raises(tk.ConfigError, match=f"is in use by process {os.getppid()} on"):
        make_trainer(checkpoint=tmp_path)


@pytest.mark.parametrize("owner", [
    {"pid": 2**22 + 1, "host": socket.gethostname()}, {"pid": 1, "host": "another"}, {}, {"pid": "1", "host": [1]},
])  # fmt: skip
def test_without_locks_another_process_is_warned_of(
    tmp_path: Path, no_locks: None, owner: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    write_owner(tmp_path, **owner)
    make_trainer(checkpoint=tmp_path, max_epoch=1).run()
    assert "cannot be locked (No locks available): make sure that no run on another machine writes to" in caplog.text


def test_a_lock_file_that_is_no_json_locks_nothing(tmp_path: Path) -> None:
    (tmp_path / ".checkpoints.lock").write_bytes(b"[" * 2_000)
    make_trainer(checkpoint=tmp_path, max_epoch=1).run()


# ---- a folder that cannot be written ----


@pytest.mark.parametrize("make", OWNERS.values())
def test_a_folder_that_cannot_be_written_is_rejected_at_construction(make: Make, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file" / "below", Path("/proc/here")):
        with pytest.raises(tk.ConfigError, match=r"\.folder .* cannot be written \(.*\): name another folder"):
            make(folder)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_rejected_at_construction(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(tk.ConfigError, match="Permission denied"):
        tk.Checkpoint(tmp_path / "a")


def test_looking_whether_a_folder_can_be_written_leaves_nothing(tmp_path: Path) -> None:
    for make in OWNERS.values():
        make(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []
