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
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainkit.core.errors import BusyError
from trainkit.core.extras import connected_ray
from trainkit.core.spaces import Spaces
from trainkit.core.worker_process import ONE_THREAD, Inbox, WorkerProcess, packed, unpacked
from trainkit.core.worker_protocol import Channel, Raised, WorkerLostError, answer_all, answer_to, stop_all
from trainkit.envs.backends import EachOptions, Fingerprint, Ids, Seeds, Take, Work
from trainkit.envs.ownership import OwnerProcess
from trainkit.envs.worker import EnvWorker, Factory, HostedEnvs, answers_of, taken

Where = Literal["processes", "ray"]
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
        start = RayActor if where == "ray" else actor_process
        self._actors: list[Actor] = []
        self._close = multiprocessing.util.Finalize(self, _close_all, (self._actors,), exitpriority=10)
        with contextlib.ExitStack() as unfinished:
            unfinished.callback(self.close)
            for first, group in zip(self._starts.tolist(), groups, strict=False):
                self._actors.append(Actor(start, group, first, timeout_s))
            self.spaces = [spaces for actor in self._actors for spaces in actor.made()]
            unfinished.pop_all()

    def reset(self, indices: Ids, seeds: Seeds, options: EachOptions) -> Take:
        self._process.check_between_steps("reset")
        parts = self._split(indices)
        for actor, rows in parts:
            here = rows.tolist()
            actor.reset(actor.own(indices[rows]), [seeds[row] for row in here], [options[row] for row in here])
        return self._take(parts)

    def step(self, actions: Sequence[Any] | NDArray[Any], indices: Ids, work: Work) -> tuple[Ids, Take]:
        self._process.check_between_steps("stepped")
        parts = self._split(indices)
        for actor, rows in parts:
            some = actions[rows] if isinstance(actions, np.ndarray) else [actions[row] for row in rows.tolist()]
            actor.step(some, actor.own(indices[rows]))
        self._process.overlap(work)
        return indices, self._take(parts)

    def rebuild(self, index: int) -> Spaces:
        return self._actor_of(index).rebuild(index)

    def call(self, name: str, args: tuple[Any, ...], indices: Ids) -> list[Any]:
        self._process.check_between_steps(f"called for {name}")
        parts = self._split(indices)
        for actor, rows in parts:
            actor.call(name, args, actor.own(indices[rows]))
        take = self._take(parts)
        return [take(row, index) for row, index in enumerate(indices.tolist())]

    def fingerprints(self) -> list[Fingerprint]:
        are_requested = [actor.request_fingerprints() for actor in self._actors]
        pairs = zip(self._actors, are_requested, strict=True)
        return [one for actor, is_requested in pairs for one in actor.fingerprints(is_requested=is_requested)]

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
            return taken(answers.pop(row), index)

        return take


class PlayedStep(NamedTuple):
    """One vector step that an actor's copy of the policy has played in its environments [K]."""

    action: NDArray[Any]  # [K, ...], of the policy
    extras: dict[str, NDArray[Any]]  # [K, ...], that it returned with them
    sent: Sequence[Any] | NDArray[Any]  # [K], the actions as environments receive them
    answers: Sequence[Any]  # [K], what each step returned
    resets: dict[tuple[int, int], Any]  # {(environment, seed): what its reset returned}, of episodes that followed
    is_last: bool  # whether an environment failed, so that no step follows


class Actor:
    """One actor, which is started again when an environment of one that died is rebuilt.

    Vector steps that it has played ahead answer the steps and resets that they consist of, without a message.

    Args:
        start: starts it, with the packed factories of its environments.
        factories: of its environments.
        first: the index of the first of them.
        timeout_s: for an answer.

    Attributes:
        first: as above.
        n: number of its environments.
        player: what plays in the actor, as `play` was given it.
    """

    def __init__(
        self, start: Callable[[bytes], Channel], factories: Sequence[Factory], first: int, timeout_s: float | None
    ) -> None:
        self.first, self.n = first, len(factories)
        self._start, self._timeout_s = start, timeout_s
        self._factories = packed(list(factories), "make_envs", f"the factories of env {first} and those after it")
        self._spaces: list[Spaces] = []  # of the last restart
        self._fresh: set[int] = set()  # made since the last restart and not used yet
        self.player: object = None
        self._in_flight: deque[tuple[int, int]] = deque()  # (number, vector steps) of requests to play
        self._played: deque[Any] = deque()  # vector steps that are not taken yet, pickled; an error of the policy
        self._head: PlayedStep | None = None  # the first of them
        self._resets: dict[tuple[int, int], Any] = {}  # after the last vector step that was taken
        self._known: list[Any] | None = None  # answers to the last request, which was not sent
        self._worker = self._started()

    def _started(self) -> EnvWorker:
        return EnvWorker(self._start(self._factories), self.first, self.n, self._timeout_s)

    @property
    def channel(self) -> Channel:
        """The way to the actor."""
        return self._worker.channel

    def own(self, indices: Ids) -> list[int]:
        """Return the indices in the actor of its environments [K]."""
        own: list[int] = (indices - self.first).tolist()
        return own

    def receive(self, n: int) -> list[Any]:
        """Return the n answers to the last request; of an actor that died or was too late, n that were raised."""
        return self._answers(self._worker.number, n) if self._known is None else self._known

    def _answers(self, wanted: int, n: int) -> list[Any]:
        """Return the n answers to a request; those to requests to play before it are kept."""
        limit_s = self._timeout_s
        if limit_s is not None:
            limit_s *= 1 + sum(n_steps for _, n_steps in self._in_flight)
        try:
            while True:
                number, result = self._worker.receive_next(limit_s)
                if number == wanted:
                    return answers_of(result, n)
                if self._in_flight and number == self._in_flight[0][0]:
                    self._in_flight.popleft()
                    self._played += answers_of(result, 1)
        except WorkerLostError as lost:
            self._in_flight.clear()
            return [Raised(str(lost))] * n

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
        self._request("play", packed_player if is_new else None, n_steps, *arguments)
        self._in_flight.append((self._worker.number, n_steps))

    def _request(self, method: str, *arguments: Any, name: str | None = None) -> None:
        self._known = None
        self._worker.request(method, *arguments, name=name)

    def head(self) -> PlayedStep | None:
        """Wait for the next vector step, and return it; None if there is none."""
        while self._head is None and (self._played or self._in_flight):
            if not self._played:
                self._receive_played()
                continue
            first = self._played[0]
            if isinstance(first, Raised):  # again and again, until all environments are reset
                first.throw("an actor of environments")
            self._head = PlayedStep(*pickle.loads(first))  # noqa: S301  # of our actor
        return self._head

    def _receive_played(self) -> None:
        """Wait for the answer to the first request to play; an actor that died has none."""
        answers = self._answers(self._in_flight[0][0], 1)
        if self._in_flight:
            self._in_flight.popleft()
            self._played += answers

    def step(self, actions: Sequence[Any] | NDArray[Any], indices: Sequence[int]) -> None:
        """Take the next vector step, or request one where none was played."""
        head = self.head()
        if head is None:
            self._known = None
            self._worker.request_step(actions, indices)
            return
        if len(indices) != self.n or not np.array_equal(actions, head.sent):
            raise BusyError(_AHEAD.format("stepped by other actions"))
        self._known, self._resets = list(head.answers), dict(head.resets)
        self._played.popleft()
        self._head = None
        while head.is_last and self._in_flight:  # the requests that follow it play nothing
            self._receive_played()

    def reset(self, indices: Sequence[int], seeds: Seeds, options: EachOptions) -> None:
        """Take the resets that followed a vector step, or request them; one that died is restarted."""
        keys = list(zip(indices, seeds, strict=True))
        if self._resets and all(key in self._resets for key in keys):
            self._known = [self._resets.pop(key) for key in keys]
            return
        if len(indices) < self.n and self.n_ahead:
            raise BusyError(_AHEAD.format("reset one by one"))
        if not self._worker.is_usable:  # it died, or Ctrl-C interrupted a message
            self.restart()
        self._forget()
        self._request("reset", indices, seeds, options)

    def call(self, name: str, args: tuple[Any, ...], indices: Sequence[int]) -> None:
        """Request a call of a method of environments [K], or the reading of an attribute."""
        self._request("call", name, args, indices, name=name)

    def _forget(self) -> None:
        """Forget the vector steps that were played ahead."""
        self._in_flight.clear()
        self._played.clear()
        self._head, self._resets, self._known = None, {}, None

    # ---- its environments ----

    def request_fingerprints(self) -> bool:
        """Request what `fingerprints` returns; return whether the actor can answer, as it has not played ahead."""
        self._known = None
        return self.n_ahead == 0 and self._worker.request_fingerprints()

    def fingerprints(self, *, is_requested: bool) -> list[Fingerprint]:
        """Return the fingerprint of each environment; empty ones where none are requested."""
        return self._worker.fingerprints() if is_requested else [{}] * self.n

    def made(self) -> list[Spaces]:
        """Wait for all environments to be made, and return their spaces."""
        return self._worker.made(self.first, self.n)

    def rebuild(self, index: int) -> Spaces:
        """Replace an environment, or the whole actor if it died, and return the environment's spaces."""
        if not self._worker.is_usable:
            self.restart()
        elif index not in self._fresh:  # else made with the actor
            self._request("rebuild", index - self.first)
            return self._worker.made(index, 1)[0]
        self._fresh.discard(index)
        return self._spaces[index - self.first]

    def restart(self) -> None:
        """Start the actor again with new environments."""
        self._worker.stop()
        self.player = None
        self._forget()
        self._worker = self._started()
        with contextlib.ExitStack() as unfinished:
            unfinished.callback(self._worker.stop)  # one without environments is of no use
            self._spaces = self.made()
            unfinished.pop_all()
        self._fresh = {*range(self.first, self.first + self.n)}


def _close_all(actors: Sequence[Actor]) -> None:
    """Let actors end, and kill those that have not after some seconds."""
    stop_all(actor.channel for actor in actors)


def actor_process(factories: bytes) -> Channel:
    """Return an actor in a process of this machine."""
    process = WorkerProcess(serve)
    process.send(factories)
    return process


class RayActor:
    """An actor of Ray, with one CPU of its cluster: a `Channel`."""

    def __init__(self, factories: bytes) -> None:
        self._ray = connected_ray("Actors.where 'ray'")
        remote: Any = self._ray.remote(num_cpus=1, runtime_env={"env_vars": ONE_THREAD})(_InRay)
        self._handle = remote.remote(sys.path, factories)
        self._answers: deque[Any] = deque()  # references, in the order of the requests

    def send(self, message: bytes) -> None:
        self._answers.append(self._handle.answer.remote(message))

    def poll(self, seconds: float) -> bool:
        return bool(self._ray.wait([self._answers[0]], timeout=seconds)[0])

    def receive(self) -> bytes:
        try:
            return self._ray.get(self._answers.popleft())  # type: ignore[no-any-return]  # Ray's actors have no types
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


class HostedActor(HostedEnvs):
    """The environments of an actor, and what plays in them."""

    _player: Any = None  # see `Actor.play`

    def play(self, player: bytes | None, n_steps: int, *arguments: Any) -> list[Any]:
        """Play vector steps, by another player than before if one is given."""
        if player is not None:
            self._player = unpacked(player)
            self._player.join(self.runner)
        played: list[Any] = self._player.play(n_steps, *arguments)
        return played


class _InRay:
    """The environments of an actor of Ray."""

    def __init__(self, path: Sequence[str], factories: bytes) -> None:
        sys.path += [folder for folder in path if folder not in sys.path]
        self._host = HostedActor(factories)

    def answer(self, message: bytes) -> bytes:
        return answer_to(message, self._host)


def serve(inbox: Inbox) -> None:
    """Answer requests in a process until the owner closes the pipe."""
    host = HostedActor(inbox.receive())
    try:
        answer_all(inbox.receive, inbox.pipe.send_bytes, host)
    finally:
        host.close()
