"""Independent tasks, such as the runs of several seeds: each in a process of its own, or as a task of Ray.

A task computes on one thread, so that its results do not depend on the number of tasks that run at the same time.
"""

import contextlib
import math
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from trainkit.core.extras import connected_ray
from trainkit.core.worker_process import ONE_THREAD, Inbox, WorkerProcess, packed, unpacked
from trainkit.core.worker_protocol import Raised, answer_by

Backend = Literal["process", "ray"]
Report = Callable[[int, int], None]  # (epoch, max_epoch)
ShowProgress = Callable[["Progress"], None]

_LOOK_S = 0.1  # between two looks for messages, and for signals
_STOPPING_S = 60.0  # for runs to save themselves
_PROGRESS, _OUTCOME = 0, 1  # the numbers of a task's answers
TRACEBACK, OUTPUT = "error.txt", "output.txt"  # files in a task's folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A piece of work: its name, the folder of its output and traceback, and a function of a `Report`."""

    name: str
    folder: Path
    work: Callable[[Report], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of a task: its result, or the line and the traceback of its error."""

    name: str
    result: Any = None
    error: str | None = None
    trace: str = ""


@dataclass(slots=True)
class Progress:
    """How far the tasks are.

    Attributes:
        n_tasks: in all.
        n_ended: those that have ended.
        epochs: {name: (epoch, max_epoch)} of those that run.
    """

    n_tasks: int
    n_ended: int = 0
    epochs: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def done(self) -> float:
        """The number of tasks that are done, with fractions."""
        return self.n_ended + sum(epoch / max(last, 1) for epoch, last in self.epochs.values())


def run_tasks(
    tasks: Sequence[Task], jobs: int, *, backend: Backend = "process", show: ShowProgress = lambda progress: None
) -> Iterator[Outcome]:
    """Execute tasks, `jobs` at a time, and yield their outcomes as they end.

    A task that fails, or whose process dies, is an outcome: its traceback is in its folder. On SIGTERM and Ctrl-C no
    other starts, and those that run receive a SIGTERM, by which a trainer saves and ends, and after a minute a SIGKILL.
    Ctrl-C is raised when they have ended; a second one ends them at once.

    Args:
        tasks: with different names.
        jobs: how many run at the same time.
        backend: "process" or "ray", whose cluster needs the tasks' folders on a shared file system.
        show: called whenever a task reports an epoch or ends.

    Raises:
        ConfigError: a task cannot be sent to another process.
        MissingExtraError: Ray is not installed.
    """
    messages = [packed(task.work, "run", f"the function of {task.name}") for task in tasks]
    progress = Progress(len(tasks))
    outcomes = (_on_ray if backend == "ray" else _in_processes)(tasks, messages, jobs, progress, show)
    with contextlib.closing(outcomes):
        for task, outcome in outcomes:
            progress.n_ended += 1
            progress.epochs.pop(task.name, None)
            _write_traceback(task, outcome)
            show(progress)
            yield outcome


def _write_traceback(task: Task, outcome: Outcome) -> None:
    """Keep the traceback of a task that failed, and remove an earlier one; an empty output is removed."""
    if outcome.error is not None:
        task.folder.mkdir(parents=True, exist_ok=True)
        (task.folder / TRACEBACK).write_text(f"{outcome.error}\n\n{outcome.trace}")
    else:
        (task.folder / TRACEBACK).unlink(missing_ok=True)
    output = task.folder / OUTPUT
    if output.is_file() and output.stat().st_size == 0:
        output.unlink()


# ---- processes ----


def _in_processes(
    tasks: Sequence[Task], messages: Sequence[bytes], jobs: int, progress: Progress, show: ShowProgress
) -> Generator[tuple[Task, Outcome]]:
    """Yield outcomes of tasks in processes, one for each."""
    waiting = list(zip(tasks, messages, strict=True))[::-1]
    running: dict[Any, tuple[Task, WorkerProcess]] = {}  # by pipe
    with _StopSignal() as stop:
        try:
            while running or (waiting and not stop.was_received):
                while waiting and len(running) < jobs and not stop.was_received:
                    task, message = waiting.pop()
                    process = _start(task, message)
                    running[process.pipe] = task, process
                if stop.is_due():
                    for _, process in running.values():
                        process.signal(signal.SIGKILL if stop.is_late else signal.SIGTERM)
                for pipe in wait(list(running), _LOOK_S):
                    task, process = running[pipe]
                    outcome = _received(task, process, progress)
                    if outcome is not None:
                        del running[pipe]
                        process.close()
                        yield task, outcome
                    else:
                        show(progress)
            stop.raise_interrupt()
        finally:
            for _, process in running.values():
                process.stop(0.0)


def _start(task: Task, message: bytes) -> WorkerProcess:
    """Start the process of a task; its output is a file in the task's folder."""
    task.folder.mkdir(parents=True, exist_ok=True)
    process = WorkerProcess(serve, output=task.folder / OUTPUT, saves=True)
    process.send(message)
    return process


def _received(task: Task, process: WorkerProcess, progress: Progress) -> Outcome | None:
    """Return the outcome of a task, or None for a report of its progress."""
    try:
        number, content = pickle.loads(process.receive())  # noqa: S301  # from a process of our own
    except EOFError:
        where = f"the process of {task.name} {process.end()}"
        return Outcome(name=task.name, error=where, trace=f"its output is in {task.folder / OUTPUT}")
    if number == _PROGRESS:
        progress.epochs[task.name] = content
        return None
    return _outcome(task, content)


def _outcome(task: Task, result: Any) -> Outcome:
    """Return the outcome of a task that returned, or raised."""
    if isinstance(result, Raised):
        error = f"{type(result.error).__name__}: {result.error}"
        return Outcome(name=task.name, error=error, trace=result.trace)
    return Outcome(name=task.name, result=result)


class _StopSignal:
    """A context in which Ctrl-C and SIGTERM are noted; a second Ctrl-C is raised at once."""

    def __init__(self) -> None:
        self._received: list[int] = []
        self._next_s, self._last_s = 0.0, math.inf
        self._former: dict[int, Any] = {}

    @property
    def was_received(self) -> bool:
        """Whether the tasks are to end."""
        return bool(self._received)

    @property
    def is_late(self) -> bool:
        """Whether the tasks had time enough to end."""
        return time.monotonic() > self._last_s

    def is_due(self) -> bool:
        """Return whether the tasks are to receive a SIGTERM now: each second, as one may come before they train."""
        now = time.monotonic()
        if not self._received or now < self._next_s:
            return False
        self._last_s = min(self._last_s, now + _STOPPING_S)
        self._next_s = now + 1.0
        return True

    def raise_interrupt(self) -> None:
        """Raise the Ctrl-C that was noted."""
        if signal.SIGINT in self._received:
            raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and number in self._received:
            raise KeyboardInterrupt
        self._received.append(number)

    def __enter__(self) -> "_StopSignal":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._former[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, former in self._former.items():
            signal.signal(number, former)


def serve(inbox: Inbox) -> None:
    """Execute a task in its process."""
    inbox.terminate_with_owner()
    message = inbox.receive()
    send = inbox.pipe.send_bytes

    def report(epoch: int, last: int) -> None:
        send(pickle.dumps((_PROGRESS, (epoch, last))))

    send(answer_by(_OUTCOME, "run", lambda: unpacked(message)(report)))


# ---- Ray ----


def _on_ray(
    tasks: Sequence[Task], messages: Sequence[bytes], jobs: int, progress: Progress, show: ShowProgress
) -> Generator[tuple[Task, Outcome]]:
    """Yield outcomes of tasks of Ray, each on one CPU of its cluster; epochs are not reported."""
    ray = connected_ray("run.backend 'ray'")
    remote = ray.remote(num_cpus=1, max_retries=0, runtime_env={"env_vars": ONE_THREAD})(_work_on_ray)
    waiting = list(zip(tasks, messages, strict=True))[::-1]
    running: dict[Any, Task] = {}  # by reference
    with _StopSignal() as stop:
        try:
            while running or (waiting and not stop.was_received):
                while waiting and len(running) < jobs and not stop.was_received:
                    task, message = waiting.pop()
                    running[remote.remote(message, sys.path)] = task
                if stop.is_due():
                    for reference in running:
                        ray.cancel(reference, force=stop.is_late)
                for reference in ray.wait(list(running), timeout=_LOOK_S)[0]:
                    task = running.pop(reference)
                    yield task, _taken(ray, task, reference)
            stop.raise_interrupt()
        finally:
            for reference in running:
                ray.cancel(reference, force=True)


def _taken(ray: Any, task: Task, reference: Any) -> Outcome:
    """Return the outcome of a task of Ray that has ended."""
    try:
        _, content = pickle.loads(ray.get(reference))  # noqa: S301  # from a task of our own
    except ray.exceptions.RayError as error:
        return Outcome(name=task.name, error=f"{type(error).__name__}: {error}", trace=traceback.format_exc())
    return _outcome(task, content)


def _work_on_ray(message: bytes, path: Sequence[str]) -> bytes:
    """Execute a task in a process of Ray, with the driver's path of modules."""
    sys.path += [folder for folder in path if folder not in sys.path]
    return answer_by(_OUTCOME, "run", lambda: unpacked(message)(lambda epoch, last: None))
