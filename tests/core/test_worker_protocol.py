"""Requests to a worker and its answers: none is taken for another, and errors and deaths are described."""

import pickle
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest

from trainkit.core.errors import EnvError
from trainkit.core.worker_protocol import Raised, Requests, WorkerLostError, answer_all, answer_to, stop_all


class Host:
    """What a worker has."""

    def double(self, number: int) -> int:
        return 2 * number

    def fail(self) -> None:
        raise LookupError("not there") from OSError("no disk")

    def leave(self) -> None:
        raise SystemExit(3)

    def odd(self) -> None:
        raise OddError(1, 2)

    def lock(self) -> Any:
        return threading.Lock()


class OddError(Exception):
    """An error that cannot be unpickled."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


class Here:
    """A channel to a worker in this process; answers come where `receive` is called."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self.is_late = self.is_dead = False
        self.log: list[str] = []

    def send(self, message: bytes) -> None:
        self.requests.append(message)

    def poll(self, seconds: float) -> bool:
        return not self.is_late

    def receive(self) -> bytes:
        if self.is_dead:
            raise EOFError
        return answer_to(self.requests.pop(0), Host())

    def end(self) -> str:
        return "exited with code 3"

    def request_close(self) -> None:
        self.log.append("close")

    def stop(self, deadline: float) -> None:
        self.log.append("stop")


def test_a_result_is_that_of_the_last_request_and_late_answers_are_skipped() -> None:
    requests = Requests(Here())
    requests.send("double", (1,))
    assert not requests.awaits_request
    requests.send("double", (2,))
    assert requests.receive() == 4
    assert requests.awaits_request


def test_answers_come_one_by_one_with_the_numbers_of_their_requests() -> None:
    requests = Requests(Here())
    for number in (1, 2):
        requests.send("double", (10 * number,))
    assert [requests.receive_next() for _ in range(2)] == [(1, 20), (2, 40)]


@pytest.mark.parametrize(
    ("method", "what", "error"),
    [
        ("fail", "raised LookupError in fail: not there", LookupError),
        ("leave", "raised SystemExit in leave: 3", EnvError),
        ("odd", "raised OddError in odd: 1 and 2", EnvError),
        (
            "lock",
            "raised TypeError in lock: what it returned cannot be sent from its process: cannot pickle",
            TypeError,
        ),
    ],
)
def test_what_a_worker_raised_is_raised_with_its_traceback(method: str, what: str, error: type[Exception]) -> None:
    requests = Requests(Here())
    requests.send(method)
    raised = requests.receive()
    assert isinstance(raised, Raised)
    assert raised.what.startswith(what)
    with pytest.raises(error) as caught:
        raised.throw("a worker")
    raised_there = caught.value.__cause__ if method == "leave" else caught.value
    assert raised_there is not None
    assert raised_there.__notes__[0].startswith("in a worker:\n")
    if method == "fail":
        assert repr(raised_there.__cause__) == "OSError('no disk')"
        assert 'raise LookupError("not there")' in raised_there.__notes__[0]
    if method == "leave":
        assert str(caught.value) == "a worker raised SystemExit in leave: 3"
    requests.send("double", (3,))
    assert requests.receive() == 6, "it can answer again"


def lost(requests: Requests, limit_s: float | None = None) -> str:
    with pytest.raises(WorkerLostError) as caught:
        requests.receive(limit_s)
    assert not requests.is_usable
    return str(caught.value)


def test_a_worker_that_died_says_how_also_to_later_requests() -> None:
    here = Here()
    requests = Requests(here)
    here.is_dead = True
    requests.send("double", (1,), occasion="while it was made")
    assert lost(requests) == "died while it was made: its process exited with code 3"
    requests.send("double", (1,))
    assert lost(requests) == "died while it was made: its process exited with code 3"
    assert len(here.requests) == 1


def test_a_worker_that_is_late_is_killed() -> None:
    here = Here()
    requests = Requests(here)
    here.is_late = True
    requests.send("double", (1,))
    assert lost(requests, 0.5) == "gave no answer within 0.5 s in double, and was killed"
    assert here.log == ["stop"]


def test_an_interrupt_in_the_middle_of_a_message_leaves_a_worker_that_is_not_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = Here()
    requests = Requests(here)
    requests.send("double", (1,))
    monkeypatch.setattr(here, "receive", _interrupt)
    with pytest.raises(KeyboardInterrupt):
        requests.receive()
    assert lost(requests) == "has no process any more in double"


def _interrupt() -> bytes:
    raise KeyboardInterrupt


def test_an_answer_that_cannot_be_read_is_an_error_of_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Here()
    requests = Requests(here)
    requests.send("double", (1,))
    monkeypatch.setattr(here, "receive", lambda: b"no pickle")
    raised = requests.receive()
    assert re.match(r"returned what cannot be read outside its process in double: ", raised.what)
    assert requests.awaits_request


def test_arguments_that_cannot_be_pickled_are_not_sent() -> None:
    here = Here()
    requests = Requests(here)
    with pytest.raises(TypeError, match="cannot pickle"):
        requests.send("double", (threading.Lock(),))
    assert (requests.number, here.requests) == (0, [])


def test_all_are_requested_to_close_before_any_is_awaited() -> None:
    log: list[str] = []
    channels = [Here(), Here()]
    for channel in channels:
        channel.log = log
    stop_all(channels)
    assert log == ["close", "close", "stop", "stop"]


def test_a_worker_answers_until_its_owner_is_gone() -> None:
    messages = iter([pickle.dumps((number, "double", (number,))) for number in (1, 2)])
    sent: list[bytes] = []
    receive: Callable[[], bytes] = messages.__next__
    with pytest.raises(StopIteration):
        answer_all(receive, sent.append, Host())
    assert [pickle.loads(message) for message in sent] == [(1, 2), (2, 4)]  # noqa: S301  # just made
