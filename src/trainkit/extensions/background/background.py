"""Evaluation in the background: one worker process plays with a copy of the policy while training continues.

A request is a copy of the policy on the CPU, the state of the evaluation and the step of schedules; the answer is what
an evaluation in this process would return. The worker keeps nothing from one request to the next but its environments,
so that a new process gives the same numbers.
"""

import os
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trainkit.collector import Collector
from trainkit.core.errors import ConfigError, EnvError
from trainkit.core.worker_process import Inbox, WorkerProcess, packed, unpacked
from trainkit.envs import Envs
from trainkit.trainer.evaluation import Evaluation, Played

_LOOK_S = 0.05  # between two looks for an answer, and for signals
_SUBJECT = "BackgroundEvaluation"
_FINISH = "finish"  # the message that ends an evaluation of duration "auto"


@dataclass(frozen=True, slots=True)
class Request:
    """One evaluation to play: a pickled policy, the step of schedules, a set of fresh seeds, the evaluation's state."""

    policy: bytes
    step: int
    fresh: int | None
    state: dict[str, Any]


class BackgroundEvaluation(Evaluation):
    """An evaluation in a process of its own while training continues, with a copy of the policy on the CPU.

    Its arguments are those of `Evaluation`; a `duration` of "auto" plays until training reaches the next evaluation.
    An evaluation is requested where one in this process would be played, and its result is delivered where the next is
    due, at the latest at the end of the next epoch. The environments must be made by an id or a factory.
    """

    plays_here = False

    def worker(self) -> "WorkerOfEvaluation":
        """Return the process that plays."""
        return WorkerOfEvaluation(self)


class WorkerOfEvaluation:
    """The worker process of an evaluation, started at the first request or by `start`.

    Args:
        evaluation: what it plays, in environments equal to those of its collector.

    Raises:
        ConfigError: the environments, or a function among the evaluation's options, cannot be sent to another process.
    """

    def __init__(self, evaluation: BackgroundEvaluation) -> None:
        if os.name != "posix":
            raise ConfigError("BackgroundEvaluation needs a POSIX system: give an Evaluation")
        self._envs = evaluation.collector.envs
        self._config = self._envs.config  # of the environments in the process
        parts = {"envs": self._factory(), "options": evaluation.options, "metric": evaluation.collector.reward_metric}
        self._parts = packed(parts, _SUBJECT, "the environments' factory, or a function of the evaluation,")
        self._is_auto = evaluation.duration == "auto"
        self._is_finishing = False  # whether it is to finish the current episodes
        self._process: WorkerProcess | None = None

    def start(self) -> None:
        """Start the process unless it is running."""
        if self._process is None:
            self._process = WorkerProcess(serve)
            self._process.send(self._parts)

    def packed(self, policy: Any) -> bytes:
        """Pickle a policy, or its copy on the CPU if it is on a device."""
        return packed(policy.on_cpu(), _SUBJECT, type(policy).__name__)

    def unpacked(self, policy: bytes) -> Any:
        """Return the policy of `packed`."""
        return unpacked(policy)

    def request(self, policy: bytes, step: int, state: dict[str, Any], fresh: int | None) -> None:
        """Let the process play."""
        self._factory()
        self.start()
        self._is_finishing = False
        self._send(Request(policy, step, fresh, state))

    def receive(self, between_looks: Callable[[], None]) -> Played:
        """Wait for the answer; an evaluation of duration "auto" ends with its current episodes.

        Args:
            between_looks: is called several times a second; may interrupt.

        Raises:
            EnvError: the process died.
            Exception: what the evaluation raised.
        """
        assert self._process is not None, "a request was sent"
        if self._is_auto and not self._is_finishing:
            self._is_finishing = True
            self._send(_FINISH)
        while not self._process.pipe.poll(_LOOK_S):
            between_looks()
        try:
            is_result, content, trace = self._process.receive()
        except EOFError:
            process, self._process = self._process, None
            raise EnvError(f"the process of the evaluation in the background {process.end()}") from None
        if not is_result:
            content.add_note(f"in the process of the evaluation in the background:\n{trace}")
            raise content
        played: Played = content
        return played

    def close(self) -> None:
        """End the process; the next request starts another."""
        if self._process is not None:
            self._process.close()
        self._process = None

    def _factory(self) -> Callable[[], Envs]:
        """Return what makes equal environments in the process."""
        config = self._envs.config
        if config is None or not config.is_repeatable or config is not self._config:
            raise ConfigError(
                f"BackgroundEvaluation: the environments of {self._envs.name} were made before or rebuilt, and cannot "
                "be made again in another process: give make_envs an id or a factory"
            )
        return config.make

    def _send(self, message: object) -> None:
        assert self._process is not None, "it was started"
        self._process.send(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))


# ---- in the worker process ----


def serve(inbox: Inbox) -> None:
    """Answer requests until the pipe closes."""
    server = _Server(inbox, unpacked(inbox.receive()))
    try:
        while True:
            message = server.next_message()
            if isinstance(message, Request):
                server.answer(message)
    finally:
        server.close()


class _Server:
    """The worker's side: environments that stay, and an evaluation for each request."""

    def __init__(self, inbox: Inbox, parts: Mapping[str, Any]) -> None:
        self._inbox, self._parts = inbox, parts
        self._envs: Any = None  # made at the first request, so that an error is an answer
        self._is_finishing = False

    def next_message(self) -> Any:
        """Wait for a message."""
        return pickle.loads(self._inbox.receive())  # noqa: S301  # from our owner

    def answer(self, request: Request) -> None:
        """Play, and send the result or the error."""
        self._is_finishing = False
        self._inbox.answer(lambda: self._play(request))

    def close(self) -> None:
        """Close the environments."""
        if self._envs is not None:
            self._envs.close()

    def _play(self, request: Request) -> Played:
        if self._envs is None:
            self._envs = self._parts["envs"]()
        collector = Collector(unpacked(request.policy), self._envs)
        try:
            if self._parts["metric"] is not None:
                collector.use_reward_metric(self._parts["metric"])
            evaluation = BackgroundEvaluation(collector, **self._parts["options"])
            evaluation.is_over = lambda: self._is_finishing
            evaluation.load_state_dict(request.state)
            collector.interrupt = self._look
            stats = evaluation.run(request.step, fresh=request.fresh)
            return Played(stats, evaluation.numbers, evaluation.state_dict())
        finally:
            collector.release()

    def _look(self) -> None:
        """Between two steps: read the request to finish, and end with the trainer's process."""
        self._inbox.check_owner()
        if self._inbox.pipe.poll():
            self._is_finishing = self.next_message() == _FINISH
