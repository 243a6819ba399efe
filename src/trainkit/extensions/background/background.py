"""Evaluation in the background: one worker process plays with a copy of the policy while training continues.

A request is a copy of the policy on the CPU, the state of the evaluation and the step of schedules; the answer is what
an evaluation in this process would return. The worker keeps nothing from one request to the next but its environments,
so that a new process gives the same numbers.
"""

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from trainkit.collector import Collector
from trainkit.core.errors import ConfigError, EnvError
from trainkit.core.worker_process import Inbox, WorkerProcess, packed, unpacked
from trainkit.core.worker_protocol import Raised, Requests, WorkerLostError, answer_all, answer_to
from trainkit.envs import Envs
from trainkit.envs.make import envs_of
from trainkit.trainer.evaluation import Evaluation, Played

_LOOK_S = 0.05  # between two looks for an answer, and for signals
_SUBJECT = "BackgroundEvaluation"


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
        self._requests: Requests  # to the process
        self._number = 0  # of the last request to play

    def start(self) -> None:
        """Start the process unless it is running."""
        if self._process is None:
            self._process = WorkerProcess(serve)
            self._process.send(self._parts)
            self._requests = Requests(self._process)

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
        self._requests.send("play", (policy, step, fresh, state))
        self._number = self._requests.number

    def receive(self, between_polls: Callable[[], None]) -> Played:
        """Wait for the answer; an evaluation of duration "auto" ends with its current episodes.

        Args:
            between_polls: is called several times a second; may interrupt.

        Raises:
            EnvError: the process died.
            Exception: what the evaluation raised.
        """
        assert self._process is not None, "a request was sent"
        if self._is_auto and not self._is_finishing:
            self._is_finishing = True
            self._requests.send("finish")
        number, played = 0, None
        while number != self._number:
            while not self._process.poll(_LOOK_S):
                between_polls()
            try:
                number, played = self._requests.receive_next()
            except WorkerLostError as lost:
                self._process = None
                raise EnvError(f"the evaluation in the background {lost}") from None
        if isinstance(played, Raised):
            played.throw("the process of the evaluation in the background")
        assert isinstance(played, Played), "it is what was requested"
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
        return partial(envs_of, config)


# ---- in the worker process ----


def serve(inbox: Inbox) -> None:
    """Answer requests until the pipe closes."""
    player = _Player(inbox, unpacked(inbox.receive()))
    try:
        answer_all(inbox.receive, inbox.pipe.send_bytes, player)
    finally:
        player.close()


class _Player:
    """The worker's side: environments that stay, and an evaluation for each request."""

    def __init__(self, inbox: Inbox, parts: Mapping[str, Any]) -> None:
        self._inbox, self._parts = inbox, parts
        self._envs: Any = None  # made at the first request, so that an error is an answer
        self._is_finishing = False

    def close(self) -> None:
        """Close the environments."""
        if self._envs is not None:
            self._envs.close()

    def finish(self) -> None:
        """End an evaluation of duration "auto" with its current episodes."""
        self._is_finishing = True

    def play(self, policy: bytes, step: int, fresh: int | None, state: dict[str, Any]) -> Played:
        """Play an evaluation: of a packed policy, at a step of schedules, with a set of fresh seeds, from a state."""
        self._is_finishing = False
        if self._envs is None:
            self._envs = self._parts["envs"]()
        collector = Collector(unpacked(policy), self._envs)
        try:
            if self._parts["metric"] is not None:
                collector.use_reward_metric(self._parts["metric"])
            evaluation = BackgroundEvaluation(collector, **self._parts["options"])
            evaluation.is_over = lambda: self._is_finishing
            evaluation.load_state_dict(state)
            collector.interrupt_with(self._answer_requests)
            stats = evaluation.run(step, fresh=fresh)
            return Played(stats, evaluation.numbers, evaluation.state_dict())
        finally:
            collector.release()

    def _answer_requests(self) -> None:
        """Between two steps: answer the request to finish, and end with the trainer's process."""
        self._inbox.check_owner()
        if self._inbox.pipe.poll():
            self._inbox.pipe.send_bytes(answer_to(self._inbox.receive(), self))
