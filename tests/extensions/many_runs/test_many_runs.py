"""Many runs: the bits of one by one, failures that are named, and runs that continue when the script is repeated."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import trainkit as tk
from tests.cli.train import TINY
from tests.trainer.toys import everything
from trainkit.cli import main
from trainkit.extensions.many_runs.many_runs import train_in_folder
from trainkit.loggers.runs import RunFolder

SETTINGS: dict[str, Any] = {
    "step_per_epoch": 64,
    "step_per_collect": 8,
    "learning_starts": 30,
    "batch_size": 8,
    "hidden": (8,),
}
SCRIPT = """
import sys, time
import trainkit as tk

def make_trainer(seed, **options):
    return tk.presets.dqn(
        "CartPole-v1", seed=seed, max_epoch=400, step_per_epoch=200, learning_starts=30, hidden=(8,),
        evaluation=tk.Evaluation(duration=1), **options,
    )

tk.run(make_trainer, seeds=[1, 2, 3], jobs=2, folder="runs")
"""


def make_trainer(seed: int, **options: Any) -> tk.Trainer:
    if seed == 2:
        raise RuntimeError("no such seed")
    if seed == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return tk.presets.dqn("CartPole-v1", seed=seed, **{"max_epoch": 2, **SETTINGS, **options})


def state_of(folder: Path) -> dict[str, Any]:
    """Return every bit of a run's checkpoint but times."""
    trainer = make_trainer(1, logger=None, verbose=False)
    trainer.load(folder / "checkpoint")
    with trainer:
        return everything(trainer)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": []}, "run.seeds must be integers >= 0, and at least one, got []"),
        ({"seeds": [1, 1]}, "run.seeds must differ, got [1, 1]"),
        ({"seeds": [-1]}, "run.seeds must be integers >= 0"),
        ({"seeds": [1], "jobs": 0}, "run.jobs must be a whole number >= 1, got 0"),
        ({"seeds": [1], "backend": "thread"}, "run.backend must be one of"),
    ],
)
def test_options_that_cannot_work_are_rejected_before_any_run(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(tk.ConfigError) as caught:
        tk.run(make_trainer, folder=tmp_path / "runs", **options)
    assert message in str(caught.value)
    assert not (tmp_path / "runs").exists()


def test_a_function_receives_the_options_that_it_accepts(tmp_path: Path) -> None:
    epochs: list[tuple[int, int]] = []
    given: list[dict[str, Any]] = []

    def all_options(seed: int, **options: Any) -> tk.Trainer:
        given.append(options)
        return make_trainer(seed, **options)

    info = train_in_folder(all_options, 1, tmp_path, lambda *epoch: epochs.append(epoch))
    assert epochs == [(0, 2), (1, 2), (2, 2)]
    assert {*given[0]} == {"logger", "checkpoint", "resume_from", "verbose", "show_progress"}
    assert (info.epoch, RunFolder.read(tmp_path).rows[-1]["step"]) == (2, 128)
    assert info.run_dir == str(tmp_path)

    def seed_alone(seed: int) -> tk.Trainer:
        return make_trainer(seed, verbose=False)

    assert train_in_folder(seed_alone, 1, tmp_path / "none", lambda *epoch: None).run_dir is None
    longer = partial(all_options, max_epoch=3)
    assert train_in_folder(longer, 1, tmp_path, lambda *epoch: epochs.append(epoch)).env_step == 192
    assert epochs[3:] == [(2, 3), (3, 3)], "it continued"
    with pytest.raises(tk.ConfigError, match=r"run\.make_trainer must return a trainer, got 3"):
        train_in_folder(lambda seed: 3, 1, tmp_path, print)


def test_a_run_in_one_process_imports_no_optional_package_and_starts_no_process() -> None:
    code = """
import subprocess, sys, torch, trainkit as tk
subprocess.Popen = None
tk.presets.dqn(
    "CartPole-v1", seed=1, max_epoch=1, step_per_epoch=64, learning_starts=32, batch_size=8, hidden=(8,), verbose=False
).run()
print([name for name in ("ray", "optuna", "cloudpickle", "torch.distributed.run") if name in sys.modules])
print(torch.distributed.is_initialized())
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split("\n") == ["[]", "False", ""]


@pytest.mark.slow
def test_runs_at_the_same_time_have_the_bits_of_one_by_one_and_failures_are_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    came: list[str] = []
    results = tk.run(
        {"a": make_trainer, "b": partial(make_trainer, lr=1e-4)},
        seeds=[1, 2, 4],
        jobs=3,
        folder=tmp_path / "both",
        on_result=lambda result: came.append(result.name),
    )
    names = [f"{name}/seed{seed}" for name in "ab" for seed in (1, 2, 4)]
    assert ([one.name for one in results], sorted(came)) == (names, names)
    assert [one.error for one in results[:3]] == [None, "RuntimeError: no such seed", None]
    trace = (tmp_path / "both/a/seed2/error.txt").read_text()
    assert "RuntimeError: no such seed\n\nTraceback" in trace
    assert "in make_trainer" in trace
    assert "a/seed2: failed: RuntimeError: no such seed" in capfd.readouterr().out

    one_by_one = tk.run(make_trainer, seeds=[1, 3, 4], jobs=1, folder=tmp_path / "one", verbose=False)
    assert one_by_one[1].error == "the process of seed3 was killed by SIGKILL"
    for result, before in ((one_by_one[0], results[0]), (one_by_one[2], results[2])):
        assert result.info is not None
        assert state_of(result.folder) == state_of(before.folder)
        assert files_of(result.folder) == files_of(before.folder)
    again = tk.run(make_trainer, seeds=[1], folder=tmp_path / "one", verbose=False)
    assert again[0].info is not None
    assert (again[0].info.epoch, again[0].info.env_step) == (2, 128), "it had finished"


def files_of(folder: Path) -> dict[str, Any]:
    """Return the contents of a run's files: policies to the bit, logged numbers without times."""
    found: dict[str, Any] = {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.suffix == ".pt" else None
        for path in sorted(folder.rglob("*"))
    }
    lines = [json.loads(line) for line in (folder / "numbers.jsonl").read_text().splitlines()]
    return found | {"numbers.jsonl": [{k: v for k, v in line.items() if not _is_time(k)} for line in lines]}


def _is_time(tag: str) -> bool:
    is_measured = tag.startswith(("time/", "system/")) or "/durations/" in tag or tag == "settings"
    return is_measured or tag.endswith(("_ms", "seconds"))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_all_runs_saved_and_the_same_script_continues_them(tmp_path: Path, number: int) -> None:
    """Also when the script is killed: its runs notice that they have no owner, save and end."""
    (tmp_path / "script.py").write_text(SCRIPT)
    script = subprocess.Popen([sys.executable, "script.py"], cwd=tmp_path, start_new_session=True)
    _wait_until(lambda: len(list(tmp_path.glob("runs/*/checkpoint/save-*/manifest.json"))) >= 2)
    if number == signal.SIGINT:
        os.killpg(script.pid, number)  # as a terminal does
    else:
        script.send_signal(number)
    assert script.wait(60) in (1, 0, -signal.SIGKILL, 130, -signal.SIGINT)
    _wait_until(lambda: not _is_alive(script.pid))
    manifests = [json.loads(path.read_text()) for path in tmp_path.glob("runs/*/checkpoint/save-*/manifest.json")]
    assert len(manifests) == 2
    reasons = {manifest["progress"]["stop_reason"] for manifest in manifests}
    assert reasons <= {None, "SIGTERM"}
    shorter = partial(_short, last=max(manifest["progress"]["epoch"] for manifest in manifests) + 1)
    result = tk.run(shorter, seeds=[1], folder=tmp_path / "runs", verbose=False)[0]
    assert result.info is not None, result.error
    before = next(manifest for manifest in manifests if "seed1/" in manifest["progress"]["run_dir"] + "/")
    assert result.info.env_step > before["progress"]["env_step"]
    assert result.info.seconds > before["progress"]["seconds"]


def _short(seed: int, last: int, **options: Any) -> tk.Trainer:
    return tk.presets.dqn(
        "CartPole-v1", seed=seed, max_epoch=last, step_per_epoch=200, learning_starts=30, hidden=(8,),
        evaluation=tk.Evaluation(duration=1), **options,
    )  # fmt: skip


def _wait_until(is_so: Any) -> None:
    deadline = time.monotonic() + 100
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _is_alive(group: int) -> bool:
    """Return whether a process of a session is alive."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_the_command_line_trains_seeds_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny = [word for name, text in TINY.items() for word in ("--set", f"{name}={text}")]
    train = ["train", "dqn", "CartPole-v1", *tiny, "--seeds", "2", "--name", "x"]
    assert main([*train, "--jobs", "2"]) == 0
    assert RunFolder.read("runs/x/seed2").rows[-1]["step"] == 120
    assert main([*train, "--jobs", "2", "--set", "max_epoch=3"]) == 0
    assert RunFolder.read("runs/x/seed1").rows[-1]["step"] == 180, "it continued"
    failing = [*train[:-1], "y", "--set", "gamma=2.0"]
    assert main([*failing, "--jobs", "2"]) == 2
    captured = capsys.readouterr()
    assert "seed1: failed: ConfigError: Horizon.gamma must be in [0, 1], got 2.0" in captured.out
    assert "2 of 2 runs failed" in captured.err
    assert "Traceback" in Path("runs/y/seed1/error.txt").read_text()


def test_the_command_line_rejects_jobs_that_cannot_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "dqn", "CartPole-v1", "--jobs", "0"]) == 2
    assert "--jobs must be >= 1, got 0" in capsys.readouterr().err
    assert main(["train", "dqn", "CartPole-v1", "--backend", "ray"]) == 2
    assert "--backend ray needs --jobs" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.global_rng  # Ray draws from that of random
@pytest.mark.timeout(600)
def test_ray_trains_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    monkeypatch.setenv("RAY_worker_niceness", "0")  # so that a busy machine does not starve them
    ray.init(num_cpus=2, include_dashboard=False, configure_logging=False, log_to_driver=False)
    try:
        on_ray = tk.run(make_trainer, seeds=[1, 2], jobs=2, backend="ray", folder=tmp_path / "ray", verbose=False)
    finally:
        ray.shutdown()
    here = tk.run(make_trainer, seeds=[1], folder=tmp_path / "process", verbose=False)
    assert on_ray[1].error == "RuntimeError: no such seed"
    assert files_of(on_ray[0].folder) == files_of(here[0].folder)
