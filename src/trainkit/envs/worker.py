"""Workers with environments: what a runner requests of them, and how they answer.

Each answer to a runner has one entry for each environment, what it returned or `Raised`, so that the failure of one
leaves the others' steps whole. An environment is named by its index in the worker.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit.core.errors import ConfigError, EnvError
from trainkit.core.spaces import Spaces
from trainkit.core.worker_process import unpacked
from trainkit.core.worker_protocol import Channel, Raised, Requests, WorkerLostError
from trainkit.envs.backends import EachOptions, Failure, Fingerprint, Seeds, Take
from trainkit.envs.sync import SyncRunner

_log = logging.getLogger(__name__)

Factory = Callable[[], Any]

_MIN_MAKING_S = 60.0  # to make environments, where steps have a time limit: simulators start slowly


# ---- the runner's side ----


class EnvWorker(Requests):
    """The environments of one worker, whose `HostedEnvs` answer.

    Args:
        channel: the way to it; the environments are made at once.
        first: index of its first environment, for messages.
        n: number of its environments.
        timeout_s: for an answer; a worker that does not answer is killed. None: no limit.
    """

    def __init__(self, channel: Channel, first: int, n: int, timeout_s: float | None) -> None:
        super().__init__(channel)
        self.first, self.n, self.timeout_s = first, n, timeout_s
        self.send("make", occasion=f"while {'it was' if n == 1 else 'they were'} made")

    def request(self, method: str, *arguments: Any, name: str | None = None) -> None:
        """Send a request.

        Args:
            method: of `HostedEnvs`.
            arguments: of the method.
            name: of what is called in the environments, for errors; None: as the method.

        Raises:
            ConfigError: the arguments cannot be pickled.
        """
        name = name or method
        try:
            self.send(method, arguments, occasion=f"in {name}")
        except Exception as error:
            raise ConfigError(
                f"Envs: the arguments of {name} cannot be sent to another process: {error}: give functions of a module "
                'and plain data, or use backend="sync"'
            ) from error

    def request_step(self, actions: Sequence[Any] | NDArray[Any], indices: Sequence[int]) -> None:
        """Request a step of environments [K]; an array of actions is sent as its bytes, as its pickle takes longer."""
        if isinstance(actions, np.ndarray) and not actions.dtype.hasobject:
            self.request("step", (actions.dtype.str, actions.shape, actions.tobytes()), indices)
        else:
            self.request("step", list(actions), indices)

    def answers(self, n: int, timeout_s: float | None = None) -> list[Any]:
        """Return the n answers to the last request; of a worker that died or was too late, n `Raised`."""
        try:
            result = self.receive(self.timeout_s if timeout_s is None else timeout_s)
        except WorkerLostError as lost:
            result = Raised(str(lost))
        return answers_of(result, n)

    def answer(self, index: int) -> Any:
        """Return the only answer to the last request, about the environment of this index; raise `Failure` for it."""
        return taken(self.answers(1)[0], index)

    def made(self, first: int, n: int) -> list[Spaces]:
        """Wait for n environments to be made, the first of which has this index, and return their spaces.

        Raises:
            ConfigError, EnvError: one could not be made.
        """
        timeout_s = None if self.timeout_s is None else max(self.timeout_s, _MIN_MAKING_S)
        answers = self.answers(n, timeout_s)
        for answer in answers:
            if isinstance(answer, Raised):
                error = answer.restored(f"the process of env {first}")
                if isinstance(error, (ConfigError, EnvError)):  # its text has the environment and the occasion already
                    raise error
                raise EnvError(f"make_envs: env {first} {answer.what}", env_id=first) from error
        return [Spaces(observation_space=observations, action_space=actions) for observations, actions in answers]

    def request_fingerprints(self) -> bool:
        """Request what `fingerprints` returns; return whether the worker can answer, if it is not in a step."""
        if self.awaits_request:
            self.request("fingerprints", name="the fingerprint of its attributes")
            return True
        return False

    def fingerprints(self) -> list[Fingerprint]:
        """Return the requested fingerprints, empty ones if the worker died, so that a save does not raise."""
        answers = self.answers(self.n)
        if isinstance(answers[0], Raised):
            _log.warning("env %d %s", self.first, answers[0].what)
            return [{}] * self.n
        return answers


def answers_of(result: Any, n: int) -> list[Any]:
    """Return n answers from a result: one that was raised is that of all."""
    return [result] * n if isinstance(result, Raised) else list(result)


def taken(answer: Any, index: int) -> Any:
    """Return what an environment of this index answered; raise `Failure` for what was raised."""
    if isinstance(answer, Raised):
        raise Failure(index, answer.what) from answer.restored(f"the process of env {index}")
    return answer


# ---- the worker's side ----


class HostedEnvs:
    """The environments of a worker, stepped one after the other: methods for the requests of an `EnvWorker`.

    Args:
        factories: one per environment, or their `packed` sequence.

    Attributes:
        runner: what steps them; has none before they are made.
    """

    def __init__(self, factories: Sequence[Factory] | bytes) -> None:
        self._factories = factories
        self.runner = SyncRunner([])

    def make(self) -> list[Any]:
        """Make the environments, and return the spaces of each."""
        factories = self._factories
        self.runner = SyncRunner(unpacked(factories) if isinstance(factories, bytes) else factories)
        return [_spaces_of(env) for env in self.runner.spaces]

    def step(self, actions: list[Any] | tuple[str, Any, bytes], indices: Sequence[int]) -> list[Any]:
        """Step environments [K] with a list of actions, or an array's (dtype, shape, bytes)."""
        if isinstance(actions, tuple):
            dtype, shape, data = actions
            rows = np.ndarray(shape, dtype, bytearray(data))  # writable: an environment may change its action
            return _answers(self.runner.steps(rows), indices)
        return _answers(self.runner.steps(actions), indices)

    def reset(self, indices: Sequence[int], seeds: Seeds, options: EachOptions) -> list[Any]:
        """Reset environments [K]."""
        return _answers(self.runner.resets(seeds, options), indices)

    def call(self, name: str, args: tuple[Any, ...], indices: Sequence[int]) -> list[Any]:
        """Call a method of environments [K], or read an attribute."""
        return _answers(self.runner.calls(name, args), indices)

    def rebuild(self, index: int) -> list[Any]:
        """Replace an environment, and return the spaces of the new one."""
        return [_spaces_of(self.runner.rebuild(index))]

    def fingerprints(self) -> list[Fingerprint]:
        """Return the digests of attributes of each."""
        return self.runner.fingerprints()

    def close(self) -> None:
        """Close those that were made."""
        self.runner.close()


def _spaces_of(env: Any) -> tuple[Any, Any]:
    return env.observation_space, env.action_space


def _answers(take: Take, indices: Sequence[int]) -> list[Any]:
    """Return the answer of each environment, or what it raised."""
    answers: list[Any] = []
    for row, index in enumerate(indices):
        try:
            answers.append(take(row, index))
        except Failure as failure:
            answers.append(raised_by(failure))
    return answers


def raised_by(failure: Failure) -> Raised:
    """Return a failure as it is sent."""
    return Raised.of(failure.__cause__ or failure, failure.what)
