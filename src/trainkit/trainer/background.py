"""Evaluation in the background: one worker process plays with a copy of the policy while training continues.

A request is a copy of the policy on the CPU, the state of the evaluation and the step of schedules; the answer is what
an evaluation in this process would return. The worker keeps nothing from one request to the next but its environments,
so that a new process gives the same numbers. It computes on one thread.

The process is a new Python, not a fork: it shares no memory, lock or device with training. It ends when the pipe to it
closes, whatever ends the trainer's process, and ignores signals that are for the trainer.
"""

import contextlib
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import traceback
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from gymnasium.vector.utils import CloudpickleWrapper

from trainkit.collector import Collector
from trainkit.core.errors import ConfigError, EnvError
from trainkit.core.stats import CollectStats
from trainkit.envs import Envs
from trainkit.envs.process import blocked_signals, ignore_signals
from trainkit.policy import load_policy
from trainkit.trainer.evaluation import Evaluation

_LOOK_S = 0.05  # between two looks for an answer, and for signals
_CLOSING_S = 3.0  # for environments to close themselves
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
_FINISH = "finish"  # the message that ends an evaluation of duration "auto"


@dataclass(frozen=True, slots=True)
class Request:
    """One evaluation to play: a pickled policy, the step of schedules, a set of fresh seeds, the evaluation's state."""

    policy: bytes
    step: int
    fresh: int | None
    state: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Played:
    """The answer: statistics, the numbers of a custom function, and the state after it."""

    stats: CollectStats
    numbers: dict[str, float]
    state: dict[str, Any]


class EvaluationWorker:
    """The worker process of an evaluation, started at the first request or by `start`.

    Args:
        evaluation: what it plays, in environments equal to those of its collector.

    Raises:
        ConfigError: the environments, or a function among the evaluation's options, cannot be sent to another process.
    """

    def __init__(self, evaluation: Evaluation) -> None:
        if os.name != "posix":
            raise ConfigError("Evaluation.background needs a POSIX system: leave it out")
        self._envs = evaluation.collector.envs
        parts = {"envs": self._factory(), "options": evaluation.options, "metric": evaluation.collector.reward_metric}
        self._parts = _pickled(parts, "the environments' factory, or a function of the evaluation,")
        self._is_auto = evaluation.duration == "auto"
        self._is_finishing = False  # whether it is to finish the current episodes
        self._pipe: Connection | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._stop: Callable[[], object] = lambda: None

    def start(self) -> None:
        """Start the process unless it is running."""
        if self._process is not None:
            return
        self._pipe, theirs = multiprocessing.Pipe()
        code = f"import sys; sys.path[:] = {sys.path!r}; from trainkit.trainer.background import serve; "
        code += f"serve({theirs.fileno()}, {os.getpid()})"
        with theirs, blocked_signals():
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=os.environ | _ONE_THREAD,
            )
        self._stop = weakref.finalize(self, _stop, self._process, self._pipe, os.getpid())
        self._send(self._parts)

    def request(self, request: Request) -> None:
        """Let the process play."""
        self._factory()
        self.start()
        self._is_finishing = False
        self._send(pickle.dumps(request, pickle.HIGHEST_PROTOCOL))

    def receive(self, between_looks: Callable[[], None]) -> Played:
        """Wait for the answer; an evaluation of duration "auto" ends with its current episodes.

        Args:
            between_looks: is called several times a second; may interrupt.

        Raises:
            EnvError: the process died.
            Exception: what the evaluation raised.
        """
        assert self._pipe is not None, "a request was sent"
        if self._is_auto and not self._is_finishing:
            self._is_finishing = True
            self._send(pickle.dumps(_FINISH))
        while not self._pipe.poll(_LOOK_S):
            between_looks()
        try:
            is_result, content, trace = pickle.loads(self._pipe.recv_bytes())  # noqa: S301  # from a process of our own
        except (EOFError, OSError):
            raise EnvError(f"the process of the evaluation in the background {self._end()}") from None
        if not is_result:
            content.add_note(f"in the process of the evaluation in the background:\n{trace}")
            raise content
        played: Played = content
        return played

    def close(self) -> None:
        """End the process; the next request starts another."""
        self._stop()
        self._process = self._pipe = None

    def _factory(self) -> Callable[[], Envs]:
        """Return what makes equal environments in the process."""
        if self._envs.make_again is None:
            raise ConfigError(
                f"Evaluation.background: the environments of {self._envs.name} were made before or rebuilt, and cannot "
                "be made again in another process: give make_envs an id or a factory"
            )
        return self._envs.make_again

    def _send(self, message: bytes) -> None:
        assert self._pipe is not None, "it was started"
        with contextlib.suppress(OSError):  # it is dead, and `receive` reports how it ended
            self._pipe.send_bytes(message)

    def _end(self) -> str:
        """Release what is left of a process that died, and describe how it ended."""
        assert self._process is not None, "it was started"
        code = self._process.wait()
        self.close()
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


def pickled_policy(policy: Any) -> bytes:
    """Pickle a policy, or its copy on the CPU if it is on a device."""
    device = getattr(policy, "device", None)
    if device is not None and device.type != "cpu":
        with tempfile.TemporaryDirectory() as folder:
            copied = load_policy(policy.save(Path(folder) / "policy"), device="cpu")
        if hasattr(policy, "exploration"):
            copied.exploration = policy.exploration
        policy = copied
    return _pickled(policy, f"{type(policy).__name__}")


def unpickled_policy(pickled: bytes) -> Any:
    """Return the policy of `pickled_policy`."""
    return pickle.loads(pickled).fn  # noqa: S301  # pickled in this process


def _pickled(content: Any, name: str) -> bytes:
    try:
        return pickle.dumps(CloudpickleWrapper(content), pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise ConfigError(
            f"Evaluation.background: {name} cannot be sent to another process: {error}: create what it holds inside "
            "of it, or set background=False"
        ) from error


def _stop(process: "subprocess.Popen[bytes]", pipe: Connection, owner: int) -> None:
    """End a process: its pipe closes, and if it has not ended after some seconds it is killed."""
    if os.getpid() != owner:  # a fork of the process that started it
        return
    pipe.close()
    try:
        process.wait(_CLOSING_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


# ---- in the worker process ----


class _Gone(BaseException):
    """The trainer's process has ended, or does not need this one any more."""


def serve(descriptor: int, parent: int) -> None:
    """Answer requests until the pipe closes."""
    ignore_signals()
    pipe = Connection(descriptor)
    with contextlib.suppress(_Gone, EOFError, OSError):
        parts: Mapping[str, Any] = pickle.loads(pipe.recv_bytes()).fn  # noqa: S301  # from our parent
        worker = _Server(pipe, parent, parts)
        try:
            while True:
                message = worker.next_message()
                if isinstance(message, Request):
                    pipe.send_bytes(worker.answer(message))
        finally:
            worker.close()


class _Server:
    """The worker's side: environments that stay, and an evaluation for each request."""

    def __init__(self, pipe: Connection, parent: int, parts: Mapping[str, Any]) -> None:
        self._pipe, self._parent, self._parts = pipe, parent, parts
        self._envs: Any = None  # made at the first request, so that an error is an answer
        self._is_finishing = False

    def next_message(self) -> Any:
        """Wait for a message."""
        while not self._pipe.poll(1.0):
            self._check_parent()
        return pickle.loads(self._pipe.recv_bytes())  # noqa: S301  # from our parent

    def answer(self, request: Request) -> bytes:
        """Play, and pack the result or the error."""
        self._is_finishing = False
        try:
            played = self._play(request)
            return pickle.dumps((True, played, ""), pickle.HIGHEST_PROTOCOL)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # sent to the trainer
            trace = "".join(traceback.format_exception(error))
            return pickle.dumps((False, _picklable(error), trace), pickle.HIGHEST_PROTOCOL)

    def close(self) -> None:
        """Close the environments."""
        if self._envs is not None:
            self._envs.close()

    def _play(self, request: Request) -> Played:
        if self._envs is None:
            self._envs = self._parts["envs"]()
        collector = Collector(unpickled_policy(request.policy), self._envs)
        try:
            if self._parts["metric"] is not None:
                collector.use_reward_metric(self._parts["metric"])
            evaluation = Evaluation(collector, **self._parts["options"])
            evaluation.is_over = lambda: self._is_finishing
            evaluation.load_state_dict(request.state)
            collector.between_steps = self._look
            stats = evaluation.run(request.step, fresh=request.fresh)
            return Played(stats, evaluation.numbers, evaluation.state_dict())
        finally:
            collector.release()

    def _look(self) -> None:
        """Between two steps: read the request to finish, and end with the trainer's process."""
        self._check_parent()
        if self._pipe.poll():
            self._is_finishing = self.next_message() == _FINISH

    def _check_parent(self) -> None:
        if os.getppid() != self._parent:
            raise _Gone


def _picklable(error: BaseException) -> Exception:
    """Return an error that can be pickled: itself, or one with its text."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301  # just made
    except Exception:  # noqa: BLE001  # it may hold anything
        return EnvError(f"{type(error).__name__}: {error}")
    return error if isinstance(error, Exception) else EnvError(f"it raised {type(error).__name__}: {error}")
