"""Threads: as many as asked for while a trainer runs, the quickest number where it may choose, as before outside."""

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import trainkit as tk
from tests.trainer.runs import make_run
from tests.trainer.toys import make_trainer
from trainkit.trainer import threads
from trainkit.trainer.threads import Threads


class Computer:
    """Something that computes on a number of threads, 7 if nobody says otherwise."""

    n_threads = 7


class Listener(tk.Callback):
    """Write down on how many threads torch computes at every update."""

    def __init__(self) -> None:
        self.heard: list[int] = []

    def on_update_end(self, trainer: tk.Trainer) -> None:
        self.heard.append(torch.get_num_threads())


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def tell(own: Threads, seconds: dict[int, float], computer: Any, n_updates: int = 60) -> list[int]:
    """Take updates that last as long as they do on so many threads; return the numbers they were taken on."""
    taken, spent = [], 0.0
    for update in range(1, n_updates + 1):
        taken.append(computer.n_threads)
        spent += seconds[computer.n_threads]
        own.note(spent, update)
    return taken


class TestWithin:
    @pytest.mark.parametrize("kind", ["dqn", "ppo", "cql"])
    def test_torch_computes_on_as_many_as_asked_for_and_as_before_outside(self, kind: str) -> None:
        listener = Listener()
        trainer = make_run(kind, threads=1, callbacks=[listener])
        next(trainer)
        assert set(listener.heard) == {1}
        assert torch.get_num_threads() == 2

    def test_nothing_is_set_unasked(self) -> None:
        listener = Listener()
        next(make_trainer(callbacks=[listener]))
        assert set(listener.heard) == {2}

    def test_an_error_leaves_them_as_they_were(self) -> None:
        def fail(epoch: int, env_step: int) -> None:
            raise RuntimeError("stop")

        with pytest.raises(RuntimeError, match="stop"):
            next(make_trainer(threads=1, train_fn=fail))
        assert torch.get_num_threads() == 2

    def test_a_policy_that_cannot_be_told_is_refused(self) -> None:
        with pytest.raises(tk.ConfigError, match="threads=1 needs a policy with n_threads, object has none"):
            Threads(object(), 1)  # type: ignore[arg-type]  # that it cannot is the point


class TestAuto:
    def test_it_stays_with_the_quickest(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(threads, "n_cores", lambda: 4)
        computer, took = Computer(), {1: 3.0, 2: 1.0, 4: 2.0}
        own = Threads(computer, "auto")
        with own:
            taken = tell(own, took, computer)
        assert taken[:6] == [1, 2, 4, 1, 2, 4]
        assert set(taken[27:]) == {2}
        assert computer.n_threads == 7
        with own:
            assert computer.n_threads == 2

    def test_it_takes_no_more_threads_for_a_gain_that_is_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(threads, "n_cores", lambda: 2)
        computer = Computer()
        own = Threads(computer, "auto")
        with own:
            assert tell(own, {1: 1.0, 2: 0.96}, computer)[-1] == 1

    def test_steps_without_an_update_try_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(threads, "n_cores", lambda: 2)
        computer = Computer()
        own = Threads(computer, "auto")
        with own:
            for _ in range(100):
                own.note(0.0, 0)
            assert computer.n_threads == 1
            own.note(1.0, 1)
            assert computer.n_threads == 2

    def test_a_run_tries_and_says_what_it_chose(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(threads, "n_cores", lambda: 2)
        listener = Listener()
        trainer = make_trainer(threads="auto", callbacks=[listener], max_epoch=3)
        with caplog.at_level(logging.INFO, "trainkit"):
            trainer.run()
        assert listener.heard[:4] == [1, 2, 1, 2]
        (told,) = [record.getMessage() for record in caplog.records if "threads=" in record.getMessage()]
        assert told.endswith(f"threads={listener.heard[-1]}")
        assert len(set(listener.heard[18:])) == 1

    def test_a_run_that_goes_on_stays_with_what_was_chosen(self, tmp_path: Any) -> None:
        state = {"count": 2}
        computer = Computer()
        own = Threads(computer, "auto")
        own.load_state_dict(state)
        with own:
            assert tell(own, {2: 1.0}, computer, 20) == [2] * 20
        assert own.state_dict() == state


@pytest.mark.parametrize(("cores", "counts"), [(1, [1]), (2, [1, 2]), (4, [1, 2, 4]), (6, [1, 2, 4, 6])])
def test_powers_of_two_and_all_cores_are_tried(cores: int, counts: list[int]) -> None:
    assert threads.candidates(cores) == counts


def test_one_thread_gives_the_same_bits_as_torch_told_by_hand() -> None:
    asked = make_run("sac", threads=1)
    asked.run()
    torch.set_num_threads(1)
    by_hand = make_run("sac")
    by_hand.run()
    for mine, theirs in zip(asked.policy.parameters(), by_hand.policy.parameters(), strict=True):
        np.testing.assert_array_equal(mine.detach().numpy(), theirs.detach().numpy())


def test_who_asks_for_none_has_none_to_tell() -> None:
    assert make_trainer().state_dict()["threads"] == {"count": None}


def test_a_run_that_was_saved_when_nobody_knew_of_them_goes_on() -> None:
    trainer = make_trainer()
    state = trainer.state_dict()
    del state["threads"]
    trainer.load_state_dict(state)
