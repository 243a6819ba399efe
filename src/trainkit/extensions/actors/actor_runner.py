"""Running environments, or games of several agents, in actors: processes or Ray actors with several of them each.

One message to an actor steps all of its environments, one after the other, and one message returns their results. An
actor with a copy of the policy plays several vector steps by itself (see `fragments`); what they returned is kept here
until the steps are taken, one by one.
"""

import contextlib
import itertools
import multiprocessing.util
import pickle
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from trainkit.core.errors import BusyError, ConfigError, EnvError
from trainkit.core.extras import connected_ray
from trainkit.core.spaces import Spaces
from trainkit.core.worker_process import ONE_THREAD, Inbox, WorkerProcess, packed, picklable, unpacked
from trainkit.envs.backends import RAISED, Failure, Fingerprint, Ids, Options, Seeds, Take, Work, packed_request
from trainkit.envs.ownership import OwnerProcess
from trainkit.envs.sync import SyncRunner

Where = Literal["processes", "ray"]
Factory = Callable[[], Any]
_MIN_MAKING_S = 60.0  # to make environments, where steps have a time limit
_CLOSING_S = 3.0  # for environments to close themselves
_INDICES = {"reset": 0, "step": 1, "call": 2}  # {request: which argument has the environments [K]}
_AHEAD = (
    "environments in actors have played ahead, up to Actors(fragment=) vector steps, and cannot be {}: reset all of "
    "them first"
)


class ActorRunner:
    """Run environments in actors: the first actor has the first of them, in groups of nearly equal size.

    An actor that dies is restarted like an environment: all of its environments have failed then.

    Args:
        factories: one per environment.
        n_actors: the number of actors.
        where: "processes" of this machine, "ray" on a Ray cluster.
        timeout_s: for an actor's answer; one that does not answer is killed. None: no limit.
    """

    in_flight: Sequence[int] = ()

    def __init__(
        self, factories: Sequence[Factory], n_actors: int, where: Where, timeout_s: float | None = None
    ) -> None:
        self._process = OwnerProcess()
        sizes = [len(group) for group in np.array_split(np.arange(len(factories)), n_actors)]
        self._starts = np.array([0, *itertools.accumulate(sizes)])  # [A + 1], the first environment of each actor
        groups = [list(factories[start:end]) for start, end in itertools.pairwise(self._starts.tolist())]
        start = _InRay if where == "ray" else _InProcess
        self._actors: list[Actor] = []
        self._close = multiprocessing.util.Finalize(self, _close_all, (self._actors,), exitpriority=10)
        with contextlib.ExitStack() as unfinished:
            unfinished.callback(self.close)
            for first, group in zip(self._starts.tolist(), groups, strict=False):
                self._actors.append(Actor(start, group, first, timeout_s))
            self.spaces = [spaces for actor in self._actors for spaces in actor.receive_spaces()]
            unfinished.pop_all()

    def reset(self, indices: Ids, seeds: Seeds, options: Options) -> Take:
        self._process.check_between_steps("reset")
        parts = self._split(indices)
        for actor, rows in parts:
            actor.reset(indices[rows] - actor.first, [seeds[row] for row in rows.tolist()], options)
        return self._take(parts)

    def step(self, actions: Sequence[Any] | NDArray[Any], indices: Ids, work: Work) -> tuple[Ids, Take]:
        self._process.check_between_steps("stepped")
        parts = self._split(indices)
        for actor, rows in parts:
            some = actions[rows] if isinstance(actions, np.ndarray) else [actions[row] for row in rows.tolist()]
            actor.step(some, indices[rows] - actor.first)
        self._process.overlap(work)
        return indices, self._take(parts)

    def rebuild(self, index: int) -> Spaces:
        return self._actor_of(index).rebuild(index)

    def call(self, name: str, args: tuple[Any, ...], indices: Ids) -> list[Any]:
        self._process.check_between_steps(f"called for {name}")
        parts = self._split(indices)
        for actor, rows in parts:
            actor.send("call", (name, args, indices[rows] - actor.first))
        take = self._take(parts)
        return [take(row, index) for row, index in enumerate(indices.tolist())]

    def fingerprints(self) -> list[Fingerprint]:
        usable = [actor for actor in self._actors if actor.is_usable and actor.n_ahead == 0]
        for actor in usable:
            actor.send("fingerprints", ())
        return [
            digest for actor in self._actors for digest in (actor.receive_all() if actor in usable else actor.none())
        ]

    def close(self) -> None:
        self._close()

    def detach(self) -> None:
        self._close()  # its actors cannot be used by anything else

    @property
    def actors(self) -> "Sequence[Actor]":
        """Each with a group of environments, in their order."""
        return self._actors

    def _actor_of(self, index: int) -> "Actor":
        return self._actors[int(np.searchsorted(self._starts, index, side="right")) - 1]

    def _split(self, indices: Ids) -> list[tuple["Actor", NDArray[np.intp]]]:
        """Return the actors of environments [K] with the rows of each."""
        owners = np.searchsorted(self._starts, indices, side="right") - 1
        return [(actor, rows) for i, actor in enumerate(self._actors) if len(rows := np.flatnonzero(owners == i))]

    def _take(self, parts: Sequence[tuple["Actor", NDArray[np.intp]]]) -> Take:
        """Return what reads an environment's answer; the first reading waits for its actor."""
        answers: dict[int, Any] = {}  # by row
        by_row = {row: (actor, rows) for actor, rows in parts for row in rows.tolist()}

        def take(row: int, index: int) -> Any:
            if row not in answers:
                actor, rows = by_row[row]
                answers.update(zip(rows.tolist(), actor.receive(len(rows)), strict=True))
            answer = answers.pop(row)
            if isinstance(answer, _Raised):
                answer.throw(index)
            return answer

        return take


class PlayedStep(NamedTuple):
    """One vector step that an actor's copy of the policy has played in its environments [K]."""

    action: NDArray[Any]  # [K, ...], of the policy
    extras: dict[str, NDArray[Any]]  # [K, ...], that it returned with them
    sent: Sequence[Any] | NDArray[Any]  # [K], the actions as environments receive them
    answers: Sequence[Any]  # [K], what each step returned
    resets: dict[tuple[int, int], Any]  # {(environment, seed): what its reset returned}, of episodes that followed
    is_last: bool  # whether an environment failed, so that no step follows


class _Raised:
    """What an environment raised, as an actor sends it; a whole actor that died."""

    def __init__(self, what: str, error: BaseException | None = None, trace: str = "") -> None:
        self.what, self.error, self.trace = what, error, trace

    def throw_error(self) -> None:
        """Raise it as it was raised in the actor, by the policy."""
        assert self.error is not None, "one was raised there"
        self.error.add_note(f"in an actor of environments:\n{self.trace}")
        raise self.error

    def throw(self, index: int) -> None:
        """Raise it as the failure of an environment."""
        if self.error is not None:
            self.error.add_note(f"in the actor of env {index}:\n{self.trace}")
        raise Failure(index, self.what) from self.error


class Place(Protocol):
    """Where an actor runs."""

    def send(self, message: bytes) -> None:
        """Send a request; to one that died nothing."""
        ...

    def receive(self, timeout_s: float | None) -> Any:
        """Return the next answer; raise EOFError if the actor died, TimeoutError if it does not answer in time."""
        ...

    def end(self) -> str:
        """Release what is left of an actor that died, and describe how it ended."""
        ...

    def request_close(self) -> None:
        """Let the environments close themselves and the actor end, without waiting for it."""
        ...

    def stop(self, deadline: float) -> None:
        """Wait for the actor to end until a time by `time.monotonic`, then kill it."""
        ...


class Actor:
    """One actor, which is started again when an environment of one that died is rebuilt.

    Each request has a number that its answer repeats: a late answer is never taken for that of a later request. Vector
    steps that it has played ahead answer the steps and resets that they consist of, without a message.

    Args:
        start: starts it, with the packed factories of its environments.
        factories: of its environments.
        first: the index of the first of them.
        timeout_s: for an answer.

    Attributes:
        first: as above.
        player: what plays in the actor, as `play` was given it.
    """

    def __init__(
        self, start: Callable[[bytes], Place], factories: Sequence[Factory], first: int, timeout_s: float | None
    ) -> None:
        self.first, self.n = first, len(factories)
        self._start, self._timeout_s = start, timeout_s
        self._message = packed(list(factories), "make_envs", f"the factories of env {first} and those after it")
        self._number, self._occasion, self._sent_at = 0, "while they were made", time.monotonic()
        self._spaces: list[Spaces] = []  # of the last restart
        self._fresh: set[int] = set()  # made since the last restart and not used yet
        self._is_whole = True  # whether no message was left half sent or half read
        self._end = ""  # how it ended
        self.player: object = None
        self._in_flight: deque[tuple[int, int]] = deque()  # (number, vector steps) of requests to play
        self._played: deque[Any] = deque()  # vector steps that are not taken yet, pickled; an error of the policy
        self._head: PlayedStep | None = None  # the first of them
        self._resets: dict[tuple[int, int], Any] = {}  # after the last vector step that was taken
        self._known: list[Any] | None = None  # answers to the last request, which was not sent
        self._place: Place | None = start(self._message)

    @property
    def is_usable(self) -> bool:
        """Whether the actor runs and can answer."""
        return self._place is not None and self._is_whole

    def send(self, request: str, arguments: tuple[Any, ...]) -> None:
        """Send a request: the name of a method of a runner, and its arguments."""
        name = arguments[0] if request == "call" else request
        message = packed_request(name, (self._number + 1, request, arguments))
        self._number += 1
        self._known = None
        self._occasion, self._sent_at = f"in {request}", time.monotonic()
        if self.is_usable and self._place is not None:
            self._is_whole = False
            self._place.send(message)
            self._is_whole = True

    def receive(self, n: int, timeout_s: float | None = None) -> list[Any]:
        """Return the n answers to the last request; of an actor that died or was too late, n failures."""
        if self._known is not None:
            return self._known
        return self._receive(self._number, n, self._timeout_s if timeout_s is None else timeout_s)

    def _receive(self, wanted: int, n: int, limit_s: float | None) -> list[Any]:
        """Return the n answers to a request; those to requests to play before it are kept."""
        if limit_s is not None:
            limit_s *= 1 + sum(n_steps for _, n_steps in self._in_flight)
        while self._place is not None and self._is_whole:
            left_s = None if limit_s is None else max(0.0, self._sent_at + limit_s - time.monotonic())
            self._is_whole = False
            try:
                number, answers = self._place.receive(left_s)
            except EOFError:
                self._end = f"died {self._occasion}: its actor {self._place.end()}"
                self._place = None
                break
            except TimeoutError:
                self.close()
                self._end = f"gave no answer within {limit_s:g} s {self._occasion}, and was killed"
                break
            self._is_whole = True
            if number == wanted:
                made: list[Any] = answers
                return made
            if self._in_flight and number == self._in_flight[0][0]:
                self._in_flight.popleft()
                self._played += answers
        self._in_flight.clear()
        return [_Raised(self._end or f"has no actor any more {self._occasion}")] * n

    # ---- vector steps that it plays ahead ----

    @property
    def n_ahead(self) -> int:
        """The number of vector steps that were requested and not taken."""
        return len(self._played) + sum(n_steps for _, n_steps in self._in_flight)

    def play(self, player: object, packed_player: bytes, n_steps: int, arguments: tuple[Any, ...]) -> None:
        """Let the actor play vector steps.

        Args:
            player: what plays them; it is sent once.
            packed_player: the same as it is sent: an object with `join(runner)` and `play(n_steps, *arguments)`, which
                returns pickled `PlayedStep`s.
            n_steps: their number.
            arguments: of `play`.
        """
        is_new, self.player = self.player is not player, player
        self.send("play", (packed_player if is_new else None, n_steps, *arguments))
        self._in_flight.append((self._number, n_steps))

    def head(self) -> PlayedStep | None:
        """Wait for the next vector step, and return it; None if there is none."""
        while self._head is None and (self._played or self._in_flight):
            if not self._played:
                answers = self._receive(self._in_flight[0][0], 1, self._timeout_s)
                if self._in_flight:  # else it died
                    self._in_flight.popleft()
                    self._played += answers
                continue
            first = self._played[0]
            if isinstance(first, _Raised):  # again and again, until all environments are reset
                first.throw_error()
            self._head = PlayedStep(*pickle.loads(first))  # noqa: S301  # of our actor
        return self._head

    def step(self, actions: Sequence[Any] | NDArray[Any], indices: Ids) -> None:
        """Take the next vector step, or request one where none was played."""
        head = self.head()
        if head is None:
            self.send("step", (actions, indices))
            return
        if len(indices) != self.n or not np.array_equal(actions, head.sent):
            raise BusyError(_AHEAD.format("stepped by other actions"))
        self._known, self._resets = list(head.answers), dict(head.resets)
        self._played.popleft()
        self._head = None
        while head.is_last and self._in_flight:  # the requests that follow it play nothing
            self._receive(self._in_flight[0][0], 1, self._timeout_s)
            if self._in_flight:
                self._in_flight.popleft()

    def reset(self, indices: Ids, seeds: Seeds, options: Options) -> None:
        """Take the resets that followed a vector step, or request them; one that died is restarted."""
        keys = list(zip(indices.tolist(), seeds, strict=True))
        if self._resets and all(key in self._resets for key in keys):
            self._known = [self._resets.pop(key) for key in keys]
            return
        if len(indices) < self.n and self.n_ahead:
            raise BusyError(_AHEAD.format("reset one by one"))
        if not self.is_usable:  # it died, or Ctrl-C interrupted a message
            self.restart()
        self._forget()
        self.send("reset", (indices, seeds, options))

    def _forget(self) -> None:
        """Forget the vector steps that were played ahead."""
        self._in_flight.clear()
        self._played.clear()
        self._head, self._resets, self._known = None, {}, None

    def receive_all(self) -> list[Any]:
        """Return answers of all environments; those of an actor that died are empty."""
        answers = self.receive(self.n)
        return [{} if isinstance(answer, _Raised) else answer for answer in answers]

    def none(self) -> list[Fingerprint]:
        """Return an empty answer of each environment."""
        return [{} for _ in range(self.n)]

    def receive_spaces(self) -> list[Spaces]:
        """Wait for all environments to be made, and return their spaces."""
        return self._receive_made(self.n, self.first)

    def _receive_made(self, n: int, index: int) -> list[Spaces]:
        """Wait for n environments to be made, the first of which has this index, and return their spaces."""
        answers = self.receive(n, None if self._timeout_s is None else max(self._timeout_s, _MIN_MAKING_S))
        for answer in answers:
            if isinstance(answer, _Raised):
                if isinstance(answer.error, (ConfigError, EnvError)):
                    raise answer.error
                raise EnvError(f"make_envs: env {index} {answer.what}", env_id=index) from answer.error
        return [Spaces(observation_space=observations, action_space=actions) for observations, actions in answers]

    def rebuild(self, index: int) -> Spaces:
        """Replace an environment, or the whole actor if it died, and return the environment's spaces."""
        if not self.is_usable:
            spaces = self.restart()
            self._fresh.discard(index)
            return spaces[index - self.first]
        if index in self._fresh:  # made with the actor
            self._fresh.discard(index)
            return self._spaces[index - self.first]
        self.send("rebuild", (index - self.first,))
        return self._receive_made(1, index)[0]

    def restart(self) -> list[Spaces]:
        """Start the actor again with new environments, and return their spaces."""
        self.close()
        self._number, self._occasion, self._sent_at = 0, "while they were made", time.monotonic()
        self._is_whole, self._end, self.player = True, "", None
        self._forget()
        self._place = self._start(self._message)
        with contextlib.ExitStack() as unfinished:
            unfinished.callback(self.close)  # one without environments is of no use
            self._spaces = self.receive_spaces()
            unfinished.pop_all()
        self._fresh = {*range(self.first, self.first + self.n)}
        return self._spaces

    def close(self) -> None:
        """End the actor; a second call has no effect."""
        _close_all([self])

    def request_close(self) -> None:
        """Let the actor end, without waiting for it."""
        if self._place is not None:
            self._place.request_close()

    def stop(self, deadline: float) -> None:
        """Wait for the actor to end until a time by `time.monotonic`, then kill it."""
        place, self._place = self._place, None
        if place is not None:
            place.stop(deadline)


def _close_all(actors: Sequence[Actor]) -> None:
    """Let actors end, and kill those that have not after some seconds."""
    deadline = time.monotonic() + _CLOSING_S
    for actor in actors:
        actor.request_close()
    for actor in actors:
        actor.stop(deadline)


class _InProcess:
    """An actor in a process of this machine."""

    def __init__(self, message: bytes) -> None:
        self._process = WorkerProcess(serve)
        self._process.send(message)

    def send(self, message: bytes) -> None:
        self._process.send(message)

    def receive(self, timeout_s: float | None) -> Any:
        if timeout_s is not None and not self._process.pipe.poll(timeout_s):
            self._process.kill()
            raise TimeoutError
        return self._process.receive()

    def end(self) -> str:
        return f"{self._process.end()}"

    def request_close(self) -> None:
        self._process.request_close()

    def stop(self, deadline: float) -> None:
        self._process.stop(deadline)


class _InRay:
    """An actor of Ray, with one CPU of its cluster."""

    def __init__(self, message: bytes) -> None:
        self._ray = connected_ray("Actors.where 'ray'")
        remote: Any = self._ray.remote(num_cpus=1, runtime_env={"env_vars": ONE_THREAD})(_RayActor)
        self._handle = remote.remote(sys.path)
        self._answers: list[Any] = []  # references, in the order of the requests
        self.send(message)

    def send(self, message: bytes) -> None:
        self._answers.append(self._handle.answer.remote(message))

    def receive(self, timeout_s: float | None) -> Any:
        try:
            return pickle.loads(self._ray.get(self._answers.pop(0), timeout=timeout_s))  # noqa: S301  # of our actor
        except self._ray.exceptions.GetTimeoutError:
            raise TimeoutError from None
        except self._ray.exceptions.RayActorError:
            raise EOFError from None

    def end(self) -> str:
        return "of Ray died"

    def request_close(self) -> None:
        """Leave it to `stop`, which does not wait."""

    def stop(self, deadline: float) -> None:
        if self._ray.is_initialized():
            self._ray.kill(self._handle)


# ---- in the actor ----


class _RayActor:
    """The environments of an actor of Ray."""

    def __init__(self, path: Sequence[str]) -> None:
        sys.path += [folder for folder in path if folder not in sys.path]
        self._hosted: Any = None

    def answer(self, message: bytes) -> bytes:
        """Make the environments by the first message, and execute a request by each that follows."""
        if self._hosted is None:
            self._hosted, made = _host(message)
            return made
        return self._hosted.answer(message)  # type: ignore[no-any-return]  # Ray's class has no types


def serve(inbox: Inbox) -> None:
    """Make the environments of a process, and execute requests until the owner closes the pipe."""
    hosted, answer = _host(inbox.receive())
    inbox.pipe.send_bytes(answer)
    try:
        while True:
            inbox.pipe.send_bytes(hosted.answer(inbox.receive()))
    finally:
        hosted.close()


def _host(message: bytes) -> tuple["_Hosted", bytes]:
    """Make environments; return them, and the answer with their spaces or what was raised."""
    hosted = _Hosted()
    try:
        hosted.runner = SyncRunner(unpacked(message))
        answers = [(spaces.observation_space, spaces.action_space) for spaces in hosted.runner.spaces]
        return hosted, pickle.dumps((0, answers), pickle.HIGHEST_PROTOCOL)
    except RAISED as error:
        return hosted, pickle.dumps((0, [packed_error(error)]), pickle.HIGHEST_PROTOCOL)


class _Hosted:
    """The environments of an actor: a runner in its process."""

    runner: SyncRunner | None = None
    player: Any = None  # see `Actor.play`

    def answer(self, message: bytes) -> bytes:
        """Execute a request, and return its number with the answers [K]."""
        number, request, arguments = pickle.loads(message)  # noqa: S301  # from our owner
        try:
            answers = self._execute(request, arguments)
            return pickle.dumps((number, answers), pickle.HIGHEST_PROTOCOL)
        except RAISED as error:
            n = len(arguments[_INDICES[request]]) if request in _INDICES else 1
            return pickle.dumps((number, [packed_error(error)] * n), pickle.HIGHEST_PROTOCOL)

    def _execute(self, request: str, arguments: tuple[Any, ...]) -> list[Any]:
        runner = self.runner
        assert runner is not None, "its owner raised what making it raised"
        if request == "step":
            actions, indices = arguments
            return _taken(runner.step(actions, indices, None)[1], indices)
        if request == "reset":
            return _taken(runner.reset(*arguments), arguments[0])
        if request == "call":
            name, args, indices = arguments
            return _taken(lambda row, _: runner.call(name, args, indices[row : row + 1])[0], indices)
        if request == "rebuild":
            made = runner.rebuild(*arguments)
            return [(made.observation_space, made.action_space)]
        answers: list[Any]
        if request == "play":
            player, *others = arguments
            if player is not None:
                self.player = unpacked(player)
                self.player.join(runner)
            answers = self.player.play(*others)
        else:
            answers = getattr(runner, request)(*arguments)
        return answers

    def close(self) -> None:
        """Close the environments."""
        if self.runner is not None:
            self.runner.close()


def _taken(take: Take, indices: Ids) -> list[Any]:
    """Return the answer of each environment, or what it raised."""
    answers: list[Any] = []
    for row, index in enumerate(indices.tolist()):
        try:
            answers.append(take(row, index))
        except Failure as failure:
            answers.append(packed_error(failure))
    return answers


def packed_error(error: BaseException) -> _Raised:
    """Return an error as it is sent; of a failure its cause."""
    what, cause = f"raised {type(error).__name__}: {error}", error
    if isinstance(error, Failure):
        what, cause = error.what, error.__cause__ or error
    return _Raised(what, picklable(cause), "".join(traceback.format_exception(cause)))
