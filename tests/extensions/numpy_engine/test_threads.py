"""Numpy multiplies on one thread within small networks' passes, and on as many as before afterwards."""

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController, threadpool_info

from tests.helpers.learning import batch_of, made
from trainkit.extensions.numpy_engine.kernels import one_thread
from trainkit.extensions.numpy_engine.program import Builder


def counts() -> list[int]:
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    if not counts():
        pytest.skip("numpy's BLAS cannot be identified here")
    with ThreadpoolController().limit(limits=3, user_api="blas"):
        yield


def test_within_it_is_one_and_afterwards_as_many_as_before() -> None:
    with one_thread():
        assert set(counts()) == {1}
        with one_thread():
            assert set(counts()) == {1}
        assert set(counts()) == {1}
    assert set(counts()) == {3}


def test_an_error_within_leaves_nothing_behind() -> None:
    with pytest.raises(ValueError, match="within"), one_thread():
        raise ValueError("within")
    assert set(counts()) == {3}


def test_one_within_another_threads_does_not_keep_it() -> None:
    inside, go_on = threading.Event(), threading.Event()

    def other() -> None:
        with one_thread():
            inside.set()
            go_on.wait(10)

    thread = threading.Thread(target=other)
    with one_thread():
        thread.start()
        inside.wait(10)
    go_on.set()
    thread.join()
    assert set(counts()) == {3}


def test_a_policy_whose_products_would_be_threaded_learns_and_acts_on_one(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    build = Builder.build

    def noting(builder: Builder, *given: Any, **options: Any) -> Any:
        program = build(builder, *given, **options)
        program.calls = [*program.calls, (lambda: seen.extend(counts()), ())]
        return program

    monkeypatch.setattr(Builder, "build", noting)
    policy = made(hidden=(256, 256))
    obs = np.zeros((256, 4), np.float32)
    for use in (lambda: policy.update(batch_of(256), step=0), lambda: policy.act(obs)):
        seen.clear()
        use()
        assert set(seen) == {1}
    assert set(counts()) == {3}
