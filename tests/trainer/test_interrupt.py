"""Ctrl-C, a real one, at every moment: nothing is lost, and the next `next()` continues as if it had not been."""

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import trainkit as tk
from tests.trainer.keyboard import Keyboard, press
from tests.trainer.runs import make_run
from tests.trainer.toys import Log, everything, make_trainer, untimed
from trainkit.trainer.interrupt import DeferredInterrupt


def run(keyboard: Keyboard) -> tuple[list[dict[str, float]], dict[str, Any], list[str], int]:
    """Run a trainer through all Ctrl-Cs; return its epochs' numbers, its bits, its events, and how often it stopped."""
    log = Log()
    trainer = make_trainer(
        test=True,
        on_step=lambda: keyboard.tick("step"),
        on_test_step=lambda: keyboard.tick("test step"),
        callbacks=[log, keyboard],
        max_epoch=2,
        step_per_epoch=6,
        step_per_collect=4,  # the first epoch goes over, to 8
        log_every=3,
        episode_per_test=2,
        stop_fn=lambda score: trainer.epoch == 2,  # so that an evaluation is confirmed on fresh seeds
        train_fn=lambda epoch, env_step: keyboard.tick("train_fn"),
    )
    results, n_stops = [], 0
    while True:
        try:
            results.append(untimed(next(trainer)))
        except KeyboardInterrupt:
            keyboard.is_received = True
            n_stops += 1
        except StopIteration:
            break
    return results, everything(trainer), log.events, n_stops


@pytest.fixture(scope="module")
def undisturbed() -> tuple[list[dict[str, float]], dict[str, Any], list[str], list[str]]:
    keyboard = Keyboard()
    results, state, events, _ = run(keyboard)
    assert len(results) == 2
    return results, state, events, keyboard.places


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_ctrl_c_at_any_moment_changes_nothing(undisturbed: Any, every: int) -> None:
    results, state, events, moments = undisturbed
    places = set()
    last = {place: moment for moment, place in enumerate(moments, 1)}
    for moment in sorted({*range(1, len(moments) + 1, every), *last.values()}):
        keyboard = Keyboard({moment})
        interrupted = run(keyboard)
        places.update(keyboard.pressed_in)
        assert interrupted[0] == results, f"moment {moment}, {keyboard.pressed_in}"
        assert interrupted[1] == state, f"moment {moment}, {keyboard.pressed_in}"
        assert interrupted[3] == 1, f"moment {moment}, {keyboard.pressed_in}"
        assert interrupted[2] == events, f"moment {moment}, {keyboard.pressed_in}"
    assert places >= {"step", "update", "test step", "collect start", "best", "evaluate end", "epoch end", "train_fn"}


@pytest.mark.parametrize("seed", range(0, 8, 2))
def test_many_ctrl_cs_at_random_moments_change_nothing(undisturbed: Any, seed: int) -> None:
    results, state, events, moments = undisturbed
    rng = np.random.default_rng(seed)
    keyboard = Keyboard(set(rng.choice(np.arange(1, len(moments) + 1), size=1 + 4 * seed, replace=False).tolist()))
    interrupted = run(keyboard)
    assert interrupted[:3] == (results, state, events)
    assert interrupted[3] == len(keyboard.pressed_in) >= 1


def test_ctrl_c_waits_for_the_end_of_the_vector_step() -> None:
    keyboard = Keyboard({5})
    trainer = make_trainer(n_envs=3, on_step=lambda: keyboard.tick("step"), step_per_collect=9)
    with pytest.raises(KeyboardInterrupt):
        next(trainer)
    assert keyboard.n == 6  # two vector steps of three environments: the second was under way
    assert trainer.env_step == len(trainer.buffer) == 6
    assert next(trainer).info.env_step == 27


def test_ctrl_c_waits_for_the_end_of_the_update() -> None:
    class PressInThird(tk.PrioritizedReplayBuffer):
        n_samples = n_writes = 0

        def sample(self, *args: Any, **options: Any) -> tk.TransitionBatch:
            self.n_samples += 1
            if self.n_samples == 3:
                press()
            return super().sample(*args, **options)

        def update_priorities(self, *args: Any) -> None:
            self.n_writes += 1
            super().update_priorities(*args)

    buffer = PressInThird(60)
    trainer = make_trainer(buffer=buffer, step_per_collect=24, max_epoch=1)
    with pytest.raises(KeyboardInterrupt):
        next(trainer)
    assert trainer.policy.n_updates == buffer.n_samples == buffer.n_writes == 3
    assert next(trainer).info.gradient_step == 12


def test_a_second_ctrl_c_goes_through_at_once() -> None:
    where: list[str] = []

    def press_twice() -> None:
        if len(where) == 0:
            where.append("before")
            press()
            where.append("between")
            press()
            where.append("after")

    trainer = make_trainer(on_step=press_twice)
    with pytest.raises(KeyboardInterrupt):
        next(trainer)
    assert where == ["before", "between"]
    assert trainer.env_step == 0
    assert [result.info.env_step for result in trainer] == [24, 48, 72]


def test_ctrl_c_outside_of_next_is_pythons_own_affair() -> None:
    def loop() -> None:
        for _ in trainer:
            press()

    trainer = make_trainer()
    with pytest.raises(KeyboardInterrupt):
        loop()
    assert [result.epoch for result in trainer] == [2, 3]


@pytest.mark.parametrize("end", ["well", "by Ctrl-C", "by an exception"])
def test_the_former_handler_comes_back(end: str) -> None:
    def on_step() -> None:
        inside.append(signal.getsignal(signal.SIGINT))
        if end == "by Ctrl-C":
            press()
        elif end == "by an exception":
            raise OSError

    inside: list[Any] = []
    former = signal.getsignal(signal.SIGINT)
    trainer = make_trainer(on_step=on_step)
    try:
        next(trainer)
    except (KeyboardInterrupt, tk.TrainkitError):
        assert end != "well"
    assert inside[0] != former
    assert signal.getsignal(signal.SIGINT) is former


@contextmanager
def handler(new: Any) -> Iterator[None]:
    former = signal.signal(signal.SIGINT, new)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)


def test_a_users_signal_handler_is_called_between_steps_and_training_continues() -> None:
    calls: list[int] = []
    keyboard = Keyboard({3})
    trainer = make_trainer(n_envs=2, on_step=lambda: keyboard.tick("step"))
    with handler(lambda *_: calls.append(trainer.env_step)):
        results = list(trainer)
    assert calls == [4]
    assert [result.epoch for result in results] == [1, 2, 3]


def test_where_ctrl_c_is_ignored_it_stays_ignored() -> None:
    keyboard = Keyboard({3})
    trainer = make_trainer(on_step=lambda: keyboard.tick("step"))
    with handler(signal.SIG_IGN):
        assert len(list(trainer)) == 3
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_in_another_thread_a_trainer_works_and_ctrl_c_goes_to_the_main_thread() -> None:
    trainer = make_trainer()
    handlers: list[Any] = []
    trainer.train_collector.between_steps = None

    def work() -> None:
        trainer.run()
        handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        press()
    thread.join()
    assert trainer.info.epoch == 3
    assert handlers == [signal.getsignal(signal.SIGINT)]


def within(*, error: Exception | None = None, checks: bool) -> list[str]:
    """Press Ctrl-C while it is deferred, and say what was reached."""
    reached = []
    try:
        with DeferredInterrupt() as deferred:
            deferred.check()
            press()
            reached.append("pressed")
            if checks:
                deferred.check()
                reached.append("checked")
            if error is not None:
                raise error
    except (KeyboardInterrupt, OSError) as raised:
        reached.append(type(raised).__name__)
    deferred.check()
    return reached


def test_a_check_lets_through_once_what_was_held_back() -> None:
    assert within(checks=True) == ["pressed", "KeyboardInterrupt"]


def test_leaving_lets_through_what_was_held_back() -> None:
    assert within(checks=False) == ["pressed", "KeyboardInterrupt"]


def test_an_error_on_the_way_out_is_not_replaced_by_ctrl_c() -> None:
    assert within(checks=False, error=OSError("mine")) == ["pressed", "OSError"]


def test_a_script_ended_by_ctrl_c_ends_with_keyboard_interrupt() -> None:
    code = (
        "import os, signal, torch\n"
        "torch.set_num_threads(1)\n"
        "from tests.trainer.toys import make_trainer\n"
        "trainer = make_trainer(max_epoch=10**6, on_step=lambda: trainer.env_step > 50 and os.kill(os.getpid(), 2))\n"
        "trainer.run()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGINT
    assert done.stderr.splitlines()[-1] == "KeyboardInterrupt"


@pytest.mark.parametrize("n_wanted", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_ctrl_c_at_a_random_time_changes_no_bit(n_wanted: int) -> None:
    """Press at random times from a thread, not at moments that a run can know."""
    finals = {}
    for name in ("dqn", "ppo"):
        straight = make_run(name)
        straight.run()
        finals[name] = everything(straight)
    delivered, over = threading.Event(), threading.Event()
    rng = np.random.default_rng(0)
    n_received, running = 0, False

    def press_at_random() -> None:
        while not over.wait(float(rng.uniform(0.0, 0.01))):
            delivered.clear()
            press()
            delivered.wait(10)  # a second one before the first is received would go through at once

    def receive(number: int, frame: Any) -> None:
        nonlocal n_received
        delivered.set()
        if running:
            n_received += 1
            raise KeyboardInterrupt

    former = signal.signal(signal.SIGINT, receive)
    try:
        n_runs = 0
        while n_received < n_wanted:
            name = ("dqn", "ppo")[n_runs % 2]
            trainer = make_run(name)
            over.clear()
            presser = threading.Thread(target=press_at_random)
            presser.start()
            while not trainer.is_finished:
                with contextlib.suppress(KeyboardInterrupt):
                    running = True
                    trainer.run()
                    running = False
                running = False
            over.set()
            delivered.set()
            presser.join()
            assert everything(trainer) == finals[name], f"run {n_runs}, after {n_received} Ctrl-Cs"
            n_runs += 1
    finally:
        over.set()
        signal.signal(signal.SIGINT, former)
