"""Signals of a cluster: SIGTERM saves and ends, SIGUSR1 saves and continues; no one's handlers are lost."""

import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import trainkit as tk
from tests.trainer.toys import Log, everything, make_onpolicy_trainer, make_trainer
from trainkit.core.checkpoint import find_checkpoints, read_manifest

TERM, SAVE = signal.SIGTERM, signal.SIGUSR1


class Sender(tk.Callback):
    """Count the moments of a run and send a signal at one of them."""

    def __init__(self, number: int, at: int) -> None:
        self.number, self.at, self.n = number, at, 0

    def tick(self) -> None:
        self.n += 1
        if self.n == self.at:
            os.kill(os.getpid(), self.number)

    def on_collect_end(self, trainer: tk.Trainer, stats: tk.CollectStats) -> None:
        self.tick()

    def on_update_end(self, trainer: tk.Trainer) -> None:
        self.tick()

    def on_evaluate_end(self, trainer: tk.Trainer, stats: tk.CollectStats) -> None:
        self.tick()

    def on_epoch_end(self, trainer: tk.Trainer, result: Any) -> None:
        self.tick()


MAKE: dict[str, Any] = {"off-policy": make_trainer, "on-policy": make_onpolicy_trainer}


def make(kind: str, sender: Sender | None = None, **options: Any) -> Any:
    ticks = {} if sender is None else {"on_step": sender.tick, "on_test_step": sender.tick, "callbacks": [sender]}
    return MAKE[kind](test=True, max_epoch=2, step_per_epoch=16, step_per_collect=8, **ticks, **options)


def bits(trainer: tk.Trainer) -> dict[str, Any]:
    """Take down all but what callbacks keep."""
    return {path: leaf for path, leaf in everything(trainer).items() if not path.startswith("/trainer/callbacks")}


@pytest.fixture(scope="module")
def straight() -> dict[str, Any]:
    """Say of runs no one stopped: their ends, and how many moments they have."""
    received = {}
    for kind in MAKE:
        counter = Sender(TERM, at=-1)
        trainer = make(kind, counter)
        trainer.run()
        received[kind] = bits(trainer), counter.n
    return received


@pytest.mark.parametrize("every", [23, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", MAKE)
def test_sigterm_at_any_time_saves_and_the_run_continues_to_the_same_bits(
    kind: str, every: int, straight: dict[str, Any], tmp_path: Path
) -> None:
    final, n_moments = straight[kind]
    for moment in range(1, n_moments + 1, every):
        folder = tmp_path / str(moment)
        trainer = make(kind, Sender(TERM, moment), checkpoint=folder)
        results = list(trainer)
        if trainer.info.stop_reason == "max_epoch":  # there was no step left to stop before
            assert moment > n_moments - 5
            assert bits(trainer) == final, moment
            continue
        assert results[-1].info.stop_reason == trainer.info.stop_reason == "SIGTERM", moment
        assert trainer.is_finished
        rest = make(kind, resume_from=folder)
        assert rest.info.stop_reason is None
        rest.run()
        assert bits(rest) == final, moment


@pytest.mark.parametrize("every", [41, pytest.param(15, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", MAKE)
def test_sigusr1_at_any_moment_saves_and_changes_nothing(
    kind: str, every: int, straight: dict[str, Any], tmp_path: Path
) -> None:
    final, n_moments = straight[kind]
    for moment in range(2, n_moments + 1, every):
        folder = tmp_path / str(moment)
        saves = tk.Checkpoint(folder, every=10**6, keep_last=9)
        trainer = make(kind, Sender(SAVE, moment), checkpoint=saves)
        trainer.run()
        assert bits(trainer) == final, moment
        requested, _end = sorted(find_checkpoints(folder))
        rest = make(kind, resume_from=requested)
        rest.run()
        assert bits(rest) == final, moment


def test_the_vector_step_is_finished_and_no_evaluation_is_waited_for(tmp_path: Path) -> None:
    log = Log()
    steps = 0

    def on_step() -> None:
        nonlocal steps
        steps += 1
        if steps == 5:
            os.kill(os.getpid(), TERM)

    trainer = make_trainer(n_envs=3, test=True, on_step=on_step, step_per_collect=9, callbacks=[log])
    (result,) = list(trainer)
    assert (result.epoch, result.info.stop_reason, result.info.env_step) == (1, "SIGTERM", 6)
    assert len(trainer.buffer) == 6
    assert result.stats.test.is_empty
    assert log.names("on_evaluate_start", "on_epoch_end", "on_train_end") == ["on_train_end"]


def test_without_a_checkpoint_sigusr1_is_left_alone() -> None:
    before, during = signal.getsignal(SAVE), []
    make_trainer(on_step=lambda: during.append(signal.getsignal(SAVE)), max_epoch=1).run()
    assert set(during) == {before}


# ---- between two next() ----


def place_of(folder: Path) -> tuple[int, int]:
    received = read_manifest(folder)["progress"]
    return received["epoch"], received["env_step"]


def send(number: int) -> None:
    os.kill(os.getpid(), number)


def test_sigusr1_in_the_loops_body_saves_at_the_next_next_and_changes_nothing(
    straight: dict[str, Any], tmp_path: Path
) -> None:
    for kind, (final, _) in straight.items():
        saves = tk.Checkpoint(tmp_path / kind, every=10**6, keep_last=9)
        trainer = make(kind, checkpoint=saves)
        for epoch, _, info in trainer:
            if epoch == 1:
                send(SAVE)
                assert not find_checkpoints(tmp_path / kind)
                requested = epoch, info.env_step
        first, _end = sorted(find_checkpoints(tmp_path / kind))
        assert place_of(first) == requested
        assert bits(trainer) == final
        rest = make(kind, resume_from=first)
        rest.run()
        assert bits(rest) == final


def test_sigusr1_after_a_break_saves_on_close_and_the_former_handler_comes_back(tmp_path: Path) -> None:
    former = signal.getsignal(SAVE)
    with make("off-policy", checkpoint=tk.Checkpoint(tmp_path, every=10**6)) as trainer:
        next(trainer)
        assert signal.getsignal(SAVE) is not former
        send(SAVE)
        assert not find_checkpoints(tmp_path)
    assert place_of(tmp_path / "save-000001") == (1, 16)
    assert signal.getsignal(SAVE) is former


@pytest.mark.parametrize("end", ["end", "close", "collected", "collected in a thread"])
def test_the_handler_of_sigusr1_comes_back_with_the_end_of_a_trainer(end: str, tmp_path: Path) -> None:
    called: list[int] = []
    former = signal.signal(SAVE, lambda number, frame: called.append(number))
    own = signal.getsignal(SAVE)
    try:
        trainer: Any = make("off-policy", checkpoint=tmp_path)
        next(trainer)
        if end == "end":
            trainer.run()
        elif end == "close":
            trainer.close()
        else:
            del trainer
            if end == "collected":
                gc.collect()
            else:
                thread = threading.Thread(target=gc.collect)
                thread.start()
                thread.join()
        assert (signal.getsignal(SAVE) is own) == (end != "collected in a thread")
        send(SAVE)
        assert called == [SAVE]
    finally:
        signal.signal(SAVE, former)


def test_of_two_trainers_in_turn_both_save_and_the_first_handler_comes_back(tmp_path: Path) -> None:
    before = signal.getsignal(SAVE)
    saves = {name: tk.Checkpoint(tmp_path / name, every=10**6, keep_last=9) for name in "ab"}
    first, second = (make("off-policy", checkpoint=own) for own in saves.values())
    next(first), next(second)
    send(SAVE)
    next(second), next(first)
    assert [place_of(tmp_path / name / "save-000001") for name in "ab"] == [(1, 16), (1, 16)]
    first.close()
    second.close()
    assert signal.getsignal(SAVE) is before


def test_ctrl_c_with_sigterm_in_one_step_saves_first_and_then_interrupts(tmp_path: Path) -> None:
    for kind in MAKE:
        for first, second in ((signal.SIGINT, TERM), (TERM, signal.SIGINT)):
            ticks = 0

            def on_step(first: int = first, second: int = second) -> None:
                nonlocal ticks
                ticks += 1
                if ticks == 5:
                    send(first)
                    send(second)

            folder = tmp_path / f"{kind}-{first}"
            trainer = MAKE[kind](on_step=on_step, checkpoint=tk.Checkpoint(folder, every=10**6))
            with pytest.raises(KeyboardInterrupt):
                next(trainer)
            assert place_of(folder / "save-000001") == (1, 6)
            assert trainer.info.stop_reason == "SIGTERM"
            assert [result.info.stop_reason for result in trainer] == ["SIGTERM"]


# ---- a trainer within another's callback ----


class Nested(tk.Callback):
    """Train another trainer at the end of the first epoch, and send a signal in the middle of that."""

    def __init__(self, number: int, where: str, **options: Any) -> None:
        self.number, self.where, self.options = number, where, options
        self.epochs: list[int] = []
        self.n_steps = 0

    def step(self) -> None:
        self.n_steps += 1
        if self.n_steps == 30 and self.where == "next":
            send(self.number)

    def on_epoch_end(self, trainer: tk.Trainer, result: Any) -> None:
        if self.epochs:
            return
        for epoch, _, _ in make_trainer(max_epoch=400, on_step=self.step, **self.options):
            self.epochs.append(epoch)
            if epoch == 2 and self.where == "body":
                send(self.number)


@pytest.mark.parametrize("where", ["next", "body"])
def test_ctrl_c_ends_a_trainer_nested_in_anothers_callback_and_both_can_continue(where: str) -> None:
    nested = Nested(signal.SIGINT, where)
    trainer = make_trainer(callbacks=[nested])
    with pytest.raises(KeyboardInterrupt):
        next(trainer)
    assert len(nested.epochs) <= 2
    assert [result.epoch for result in trainer] == [1, 2, 3]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("where", ["next", "body"])
def test_sigterm_saves_and_ends_a_nested_trainer_and_then_the_other(where: str, tmp_path: Path) -> None:
    inner, outer = (tk.Checkpoint(tmp_path / name, every=10**6) for name in ("inner", "outer"))
    nested = Nested(TERM, where, checkpoint=inner)
    trainer = make_trainer(callbacks=[nested], checkpoint=outer)
    (result,) = list(trainer)
    assert (result.epoch, result.info.stop_reason) == (1, "SIGTERM")
    assert len(nested.epochs) <= 3
    assert [len(find_checkpoints(tmp_path / name)) for name in ("inner", "outer")] == [1, 1]


def test_a_handler_of_the_users_own_is_called_once_by_nested_trainers() -> None:
    called: list[int] = []
    former = signal.signal(signal.SIGINT, lambda number, frame: called.append(number))
    try:
        nested = Nested(signal.SIGINT, "next")
        nested.options = {"max_env_step": 60}
        trainer = make_trainer(callbacks=[nested])
        trainer.run()
    finally:
        signal.signal(signal.SIGINT, former)
    assert called == [signal.SIGINT]
    assert nested.epochs == [1, 2, 3]


@pytest.mark.parametrize("number", [TERM, SAVE])
def test_somebodys_own_handler_is_called_too_and_comes_back(number: int, tmp_path: Path) -> None:
    called: list[int] = []

    def own(number: int, frame: Any) -> None:
        called.append(number)

    former = signal.signal(number, own)
    try:
        trainer = make("off-policy", Sender(number, 7), checkpoint=tmp_path)
        next(trainer)
        assert called == [number]
        trainer.close()
        assert signal.getsignal(number) is own
        assert find_checkpoints(tmp_path)
    finally:
        signal.signal(number, former)


def test_an_ignored_signal_stays_ignored(tmp_path: Path) -> None:
    former = signal.signal(TERM, signal.SIG_IGN)
    try:
        trainer = make("off-policy", Sender(TERM, 7), checkpoint=tmp_path)
        assert trainer.run().stop_reason == "max_epoch"
    finally:
        signal.signal(TERM, former)


def test_in_another_thread_no_handler_is_touched(tmp_path: Path) -> None:
    before = signal.getsignal(TERM)
    during: list[Any] = []
    how: dict[str, Any] = {"checkpoint": tmp_path, "max_epoch": 1, "threads": 1}  # OpenMP counts per thread
    trainer = make_trainer(on_step=lambda: during.append(signal.getsignal(TERM)), **how)
    thread = threading.Thread(target=trainer.run)
    thread.start()
    thread.join()
    assert set(during) == {before}
    assert trainer.epoch == 1


def test_several_sigterms_are_as_one(tmp_path: Path) -> None:
    def on_step() -> None:
        os.kill(os.getpid(), TERM)

    trainer = make_trainer(n_envs=3, on_step=on_step, checkpoint=tmp_path)
    assert [result.info.env_step for result in trainer] == [3]
    assert make_trainer(n_envs=3, resume_from=tmp_path).env_step == 3


def test_a_checkpoint_that_is_being_written_is_finished(tmp_path: Path) -> None:
    class While(tk.PrioritizedReplayBuffer):
        def state_dict(self) -> dict[str, Any]:
            os.kill(os.getpid(), TERM)
            return super().state_dict()

    trainer = make_trainer(buffer=While(60), checkpoint=tmp_path)
    (result,) = list(trainer)
    assert (result.epoch, result.info.stop_reason) == (1, "SIGTERM")
    resumed = make_trainer(resume_from=tmp_path, buffer=While(60))
    assert resumed.epoch == 1


def test_a_full_disk_does_not_keep_the_run_from_ending(tmp_path: Path, caplog: Any) -> None:
    (tmp_path / "saved").touch()
    checkpoint = tk.Checkpoint(tmp_path / "other")
    trainer = make("off-policy", Sender(TERM, 7), checkpoint=checkpoint)
    checkpoint.folder = tmp_path / "saved"  # which is a file: nothing can be written there
    assert trainer.run().stop_reason == "SIGTERM"
    assert "no checkpoint could be written" in caplog.text


def test_a_forked_child_still_ends_on_sigterm() -> None:
    code = (
        "import os, signal, time, torch\n"
        "torch.set_num_threads(1)\n"
        "from tests.trainer.toys import make_trainer\n"
        "def on_step():\n"
        "    if trainer.env_step == 4:\n"
        "        heard, told = os.pipe()\n"
        "        child = os.fork()\n"
        "        if child == 0:\n"
        "            os.write(told, b'!')\n"  # Python forgets signals that come before a child is set up
        "            time.sleep(20)\n"
        "            os._exit(0)\n"
        "        os.read(heard, 1)\n"
        "        os.kill(child, signal.SIGTERM)\n"
        "        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "trainer = make_trainer(n_envs=1, max_epoch=1, on_step=on_step)\n"
        "print(trainer.run().stop_reason)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(-TERM), "max_epoch"]
