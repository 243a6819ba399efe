"""Processes of environments: none remains, none receives a signal that is not for it, no answer is another's."""

import contextlib
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from tests.helpers.doubles import Ledger, Player, Still
from tests.helpers.scripted_env import ScriptedEnv
from tests.helpers.tagged import TaggedEnv
from tests.helpers.truth import assert_rows_are_real
from trainkit.collector import Collector
from trainkit.core.errors import ConfigError, EnvError
from trainkit.core.worker_protocol import CLOSING_S, stop_all
from trainkit.envs import make_envs, process
from trainkit.envs.worker import EnvWorker

ROOT = Path(__file__).parents[2]
# Python 3.12 warns of fork() in a process with threads.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


@pytest.fixture(autouse=True)
def no_process_stays() -> Iterator[None]:
    yield
    assert multiprocessing.active_children() == []


def is_there(pid: int) -> bool:
    """Whether a process lives; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_until(holds: Callable[[], bool], seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


class Slow(TaggedEnv):
    """Take a while for every step, and keep the id of the process."""

    def __init__(self, env: int, seconds: float) -> None:
        super().__init__(env)
        self.seconds = seconds
        self.pid = os.getpid()

    def slow_down(self, seconds: float) -> None:
        self.seconds = seconds

    def step(self, action: Any) -> Any:
        time.sleep(self.seconds)
        return super().step(action)


class Stubborn(ScriptedEnv):
    """Never close."""

    def close(self) -> None:
        time.sleep(1_000)


def test_closing_takes_no_more_than_five_seconds() -> None:
    assert CLOSING_S + 1 < 5
    processes = [process.EnvProcess(env_id, Stubborn) for env_id in range(3)]
    for one in processes:
        EnvWorker(one, 0, 1, None).made(0, 1)
    began = time.monotonic()
    stop_all(processes, 0.2)
    assert 0.2 <= time.monotonic() - began < 2


def test_environments_close_themselves_where_they_can(tmp_path: Path) -> None:
    class Leaving(ScriptedEnv):
        def close(self) -> None:
            (tmp_path / str(os.getpid())).touch()

    envs = make_envs(Leaving, 3, backend="async")
    envs.close()
    envs.close()
    assert len(list(tmp_path.iterdir())) == 3


def test_unclosed_environments_end_when_they_are_garbage_collected() -> None:
    envs = make_envs(lambda: Slow(0, 0.0), 2, backend="async")
    pids = envs.call("pid")
    del envs
    gc.collect()
    assert wait_until(lambda: not any(map(is_there, pids)))


def test_a_restart_leaves_no_descriptor_and_no_process_behind() -> None:
    envs = make_envs(lambda: Slow(0, 0.0), 2, backend="async", on_error="restart", restart_delay_s=0.0)
    collector = Collector(Player(), envs)
    collector.collect(n_step=10)
    counts = []
    for _ in range(3):
        os.kill(envs.call("pid")[1], signal.SIGKILL)
        stats = collector.collect(n_step=40)
        assert (stats.n_env_restarts, stats.n_faulty_episodes) == (1, 1)
        counts.append((len(os.listdir("/proc/self/fd")), len(multiprocessing.active_children())))
    envs.close()
    assert len(set(counts)) == 1
    assert counts[0][1] == 2


def test_a_process_that_dies_between_two_requests_raises_at_the_next() -> None:
    envs = make_envs(lambda: Slow(0, 0.0), 2, backend="async")
    collector = Collector(Player(), envs)
    collector.collect(n_step=2)
    pid = envs.call("pid")[1]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_there(pid))
    began = time.monotonic()
    with pytest.raises(EnvError, match=r"^env 1 died in step: its process was killed by SIGKILL, at episode 1 step 1"):
        collector.collect(n_step=2)
    assert time.monotonic() - began < 1
    assert collector.collect(n_step=20).n_step >= 20  # a caller that continues has a new one
    envs.close()


@pytest.mark.parametrize("seconds", [0.05, pytest.param(0.2, marks=pytest.mark.slow)])
def test_an_exception_while_waiting_leaves_no_answer_to_be_taken_for_another(seconds: float) -> None:
    ledger = Ledger()
    envs = make_envs([lambda: Slow(0, 0.002), lambda: Slow(1, 0.01)], backend="async")
    collector = Collector(Player(), envs, ledger)
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    try:
        for _ in range(4):
            timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGUSR1))
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                collector.collect(n_step=60)
            timer.join()
            collector.reset()
    finally:
        signal.signal(signal.SIGUSR1, before)
    collector.collect(n_step=20)
    envs.close()
    rows = ledger.rows()
    assert len(rows.obs) > 20
    # Tags come from the environments themselves: an answer to an older request would show another step.
    np.testing.assert_array_equal(rows.next_obs[:, :3] - rows.obs[:, :3], [[0, 0, 1]] * len(rows.obs))
    np.testing.assert_array_equal(rows.next_obs[:, 3], rows.action)


def test_an_exception_in_the_middle_of_a_message_costs_one_process_and_no_more() -> None:
    class Torn:
        """Give the first bytes of an answer away."""

        def __init__(self, pipe: Any) -> None:
            self.pipe = pipe

        def __getattr__(self, name: str) -> Any:
            return getattr(self.pipe, name)

        def recv_bytes(self) -> bytes:
            os.read(self.pipe.fileno(), 4)
            raise KeyboardInterrupt

    ledger = Ledger()
    envs = make_envs([lambda: Slow(0, 0.0), lambda: Slow(1, 0.0)], backend="async", step_timeout_s=5)
    collector = Collector(Player(), envs, ledger)
    collector.collect(n_step=10)
    first, second = envs.call("pid")
    backend: Any = envs.runner
    backend._processes[0].pipe = Torn(backend._processes[0].pipe)
    with pytest.raises(KeyboardInterrupt):
        collector.collect(n_step=10)
    assert collector.resume().n_step >= 10
    assert envs.call("pid")[0] != first
    assert envs.call("pid")[1] == second
    envs.close()


def test_programs_that_an_environment_starts_receive_signals() -> None:
    class Starting(ScriptedEnv):
        def ended(self) -> int:
            with subprocess.Popen(["sleep", "60"]) as program:
                program.terminate()
                return program.wait()

    envs = make_envs(Starting, backend="async", step_timeout_s=10)
    assert envs.call("ended") == [-signal.SIGTERM]
    envs.close()


@contextlib.contextmanager
def running(script: str) -> Iterator[subprocess.Popen[str]]:
    """Run a script in a process group of its own."""
    prelude = """
        import os, signal, sys, threading, time
        from tests.faults.test_processes import Slow
        from tests.helpers.doubles import Player, Still
        from trainkit.collector import Collector
        from trainkit.envs import make_envs
    """
    code = textwrap.dedent(prelude) + textwrap.dedent(script)
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    command = [sys.executable, "-W", "ignore", "-c", code]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True, env=environ, cwd=ROOT
    ) as process:
        yield process
        process.kill()


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


slow = pytest.mark.slow  # most of their seconds go into importing torch


@pytest.mark.parametrize(
    ("in_thread", "seconds", "number"),
    [
        (False, 1_000.0, signal.SIGINT),
        pytest.param(False, 0.0, signal.SIGTERM, marks=slow),
        pytest.param(True, 0.0, signal.SIGINT, marks=slow),
    ],
)
def test_processes_ignore_signals_to_their_group_and_end_with_their_parent(
    in_thread: bool, seconds: float, number: signal.Signals
) -> None:
    """They end even in the middle of a step, if the main thread started them; else when they wait for a request."""
    with running(f"""
        seen = []
        signal.signal({int(number)}, lambda *_: seen.append(1))
        def make():
            global envs
            envs = make_envs([lambda: Slow(0, 0.001), lambda: Slow(1, 0.001)], backend="async", step_timeout_s=2_000)
        if {in_thread}:
            thread = threading.Thread(target=make)
            thread.start()
            thread.join()
        else:
            make()
        collector = Collector(Player(), envs)
        pids = envs.call("pid")
        print(*pids, flush=True)
        while len(seen) < 3:
            collector.collect(n_step=10)
        collector.collect(n_step=100)
        assert envs.call("pid") == pids
        envs.call("slow_down", {seconds})
        print("whole", flush=True)
        collector.collect(n_step=1_000_000_000)
    """) as parent:
        pids = [int(pid) for pid in read_line(parent).split()]
        for _ in range(3):
            time.sleep(0.1)
            os.killpg(parent.pid, number)
        assert read_line(parent) == "whole"
        time.sleep(0.3)
        assert all(map(is_there, pids))
        parent.kill()
        parent.wait()
        assert wait_until(lambda: not any(map(is_there, pids)))


@slow
def test_a_program_that_forgets_to_close_ends_all_the_same() -> None:
    with running("""
        import weakref; weakref.finalize(sys, print)  # registered first, as by any library
        envs = make_envs([lambda: Slow(0, 0.0)] * 2, backend="async")
        print(*envs.call("pid"), flush=True)
    """) as parent:
        pids = [int(pid) for pid in read_line(parent).split()]
        assert parent.wait(timeout=20) == 0
        assert not any(map(is_there, pids))


# ---- how they are started ----


@pytest.mark.parametrize("accelerator", ["cuda", "xpu"])
def test_a_fork_is_not_for_processes_in_which_an_accelerator_runs(
    accelerator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Running:
        @staticmethod
        def is_initialized() -> bool:
            return True

    assert process.start_method() == "fork"
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device(accelerator))
    assert process.start_method() == "fork"
    monkeypatch.setattr(torch, accelerator, Running)
    assert process.start_method() == "forkserver"


@slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_process_that_is_no_fork_is_as_good(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "start_method", lambda: method)
    number = 3
    ledger = Ledger()
    envs = make_envs([lambda: TaggedEnv(0), lambda: TaggedEnv(number - 2)], backend="async")  # no plain pickle's
    Collector(Player(), envs, ledger).collect(n_step=60)
    envs.close()
    assert_rows_are_real(ledger.rows(), 2)


def test_a_factory_that_cannot_be_sent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "start_method", lambda: "forkserver")
    lock = threading.Lock()
    with pytest.raises(ConfigError, match=r"the factory of env 0 cannot be sent to a process \(forkserver\): .*lock"):
        make_envs(lambda: ScriptedEnv(made=lock), backend="async")  # type: ignore[arg-type]  # anything would do


def test_an_exception_that_cannot_be_pickled_is_replaced_by_its_text() -> None:
    class OddError(Exception):
        def __init__(self, first: int, second: int) -> None:
            super().__init__(f"{first} and {second}")

    def factory() -> gym.Env[Any, Any]:
        return ScriptedEnv(steps=[OddError(1, 2)])

    envs = make_envs(factory, backend="async")
    with pytest.raises(EnvError, match=r"^env 0 raised OddError in step: 1 and 2, at") as caught:
        Collector(Still(), envs).collect(n_step=1)
    envs.close()
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert str(caught.value.__cause__) == "OddError: 1 and 2"
