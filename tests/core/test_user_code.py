"""When users' code may have run: a number stays the same only while it has not."""

import threading

import pytest

from trainkit.core import user_code


def test_user_code_is_unknown_outside_of_trainers_and_collectors() -> None:
    user_code.has_run()
    assert user_code.moment() is None


def test_a_moment_lasts_until_users_code_has_run() -> None:
    with user_code.known():
        before = user_code.moment()
        assert before is not None
        assert user_code.moment() == before
        user_code.has_run()
        assert user_code.moment() not in (before, None)
    assert user_code.moment() is None


def test_user_code_is_unknown_while_it_runs_and_after_its_error() -> None:
    with user_code.known():
        before = user_code.moment()
        with user_code.running():
            assert user_code.moment() is None
        after = user_code.moment()
        assert after not in (before, None)
        with pytest.raises(ZeroDivisionError), user_code.running():
            raise ZeroDivisionError
        assert user_code.moment() not in (before, after, None)


def test_a_collector_in_a_trainer_continues_its_moment() -> None:
    with user_code.known():
        before = user_code.moment()
        with user_code.known():
            assert user_code.moment() == before
        assert user_code.moment() == before


def test_a_collector_that_a_callback_calls_begins_a_moment_of_its_own() -> None:
    with user_code.known():
        before = user_code.moment()
        with user_code.running():
            with user_code.known():
                assert user_code.moment() not in (before, None)
            assert user_code.moment() is None


def test_no_two_moments_are_the_same() -> None:
    moments = set()
    for _ in range(3):
        with user_code.known():
            moments.add(user_code.moment())
    assert len(moments) == 3


def test_threads_know_nothing_of_each_other() -> None:
    seen: list[int | None] = []
    with user_code.known():
        other = threading.Thread(target=lambda: seen.append(user_code.moment()))
        other.start()
        other.join()
    assert seen == [None]
