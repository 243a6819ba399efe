"""Evaluation in the background: the same training, the same numbers, one epoch late, and no process that stays."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import trainkit as tk
from tests.trainer.full_disk import check_that_a_best_may_fail
from tests.trainer.runs import RUNS, make_run
from tests.trainer.toys import Log, Walk, everything, make_policy, make_trainer, of_watchers


def in_background(**options: Any) -> dict[str, Any]:
    """Return the options of a run with evaluations in the background."""
    return {"test": True, "evaluation": tk.BackgroundEvaluation(**options)}


def learned(trainer: tk.Trainer) -> dict[str, Any]:
    """Return every bit that training continues from, without the statistics of evaluations."""
    return {
        path: leaf
        for path, leaf in everything(trainer).items()
        if not of_watchers(path) and "/trainer/evaluation/" not in path
    }


def play_twice(play: Any) -> dict[str, Any]:
    return {"mean": play(n_episode=2).returns.mean}


def returns(trainer: tk.Trainer) -> list[float]:
    return [row.get("test/returns/mean") for row in trainer.history]


def test_training_and_scores_are_those_of_a_run_without_it(tmp_path: Path) -> None:
    """The worker evaluates epochs 1 and 2 while 2 and 3 train; stop, best and files follow from its numbers."""
    log, kept = Log(), []
    fn = {"save_best_fn": lambda policy: kept.append(policy.get_weights()), "episode_per_test": 3}
    plain = make_trainer(test=True, **fn, max_epoch=4)
    plain.run()
    best = list(kept)
    kept.clear()
    late = make_trainer(**in_background(), **fn, max_epoch=4, callbacks=[log, tk.Checkpoint(tmp_path)])
    shown = [(epoch, stats.test.is_empty) for epoch, stats, _ in late]
    assert shown == [(1, True), (2, True), (3, True), (4, False)]
    assert learned(late) == learned(plain)
    assert returns(late) == returns(plain)
    for name in ("best_score", "best_epoch", "best_env_step", "best_std", "n_test_step", "n_test_episode"):
        assert getattr(late.info, name) == getattr(plain.info, name), name
    assert [sorted(one) for one in kept] == [sorted(one) for one in best]
    for ours, theirs in zip(kept, best, strict=True):
        assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    saved = tk.load_policy(tmp_path / "best").get_weights()
    assert all(np.array_equal(saved[name], own) for name, own in best[-1].items())
    order = log.names("on_evaluate_start", "on_evaluate_end", "on_epoch_end")
    start, end, epoch = "on_evaluate_start", "on_evaluate_end", "on_epoch_end"
    assert order == [start, epoch, end, start, epoch, end, start, epoch, end, start, end, epoch]


@pytest.mark.parametrize("every", [{}, {"every": 40, "unit": "env_steps"}])
def test_numbers_of_a_function_are_in_the_history_of_every_epoch(every: dict[str, Any], tmp_path: Path) -> None:
    options = {"fn": play_twice, **every}
    log = tmp_path / "log"
    plain = make_trainer(test=True, evaluation=tk.Evaluation(**options))
    late = make_trainer(**in_background(**options), logger=tk.JsonlLogger(log))
    plain.run()
    *_, last = late
    assert late.history["custom/test/mean"] == plain.history["custom/test/mean"]
    assert last.stats["custom/test/mean"] == plain.history["custom/test/mean"][-1]
    lines = [json.loads(line) for line in (log / "numbers.jsonl").read_text().splitlines()]
    written = [line for line in lines if "custom/test/mean" in line]
    assert [line["test/returns/mean"] is not None for line in written] == [True] * len(written)
    assert len({line["step"] for line in written}) == len(written)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("explore", [False, True])
def test_every_kind_of_run_has_the_same_bits_and_scores(name: str, explore: bool) -> None:
    kinds = tk.Evaluation, tk.BackgroundEvaluation
    plain, late = (make_run(name, evaluation=kind(explore=explore)) for kind in kinds)
    plain.run()
    late.run()
    assert learned(late) == learned(plain)
    assert returns(late) == returns(plain)


@pytest.mark.slow
def test_a_resumed_run_evaluates_the_pending_weights_again(tmp_path: Path) -> None:
    whole = make_trainer(**in_background())
    whole.run()
    saved = make_trainer(**in_background(), max_epoch=2)
    next(saved)
    saved.save(tmp_path / "save")
    saved.close()
    resumed = make_trainer(**in_background(), resume_from=tmp_path / "save")
    resumed.run()
    assert returns(resumed) == returns(whole)
    assert resumed.info.best_epoch == whole.info.best_epoch
    assert everything(resumed) == everything(whole)


@pytest.mark.slow
def test_the_run_stops_one_epoch_late_and_confirms_with_the_weights_that_were_evaluated() -> None:
    trainer = make_trainer(**in_background(), stop_fn=lambda score: True, max_epoch=5)
    info = trainer.run()
    assert (info.epoch, info.stop_reason) == (2, "stop_fn")
    assert all(one is not None for one in returns(trainer))


class Dies(Walk):
    """Kill the process of the worker, once, if a file is there."""

    def step(self, action: int) -> Any:
        path = Path(os.environ.get("DIES", ""))
        if path.is_file() and os.getpid() != int(path.read_text()):
            path.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


def test_a_worker_that_dies_is_named_and_the_next_one_repeats_the_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = make_trainer(test=True, episode_per_test=3)
    plain.run()
    (tmp_path / "die").write_text(str(os.getpid()))
    monkeypatch.setenv("DIES", str(tmp_path / "die"))
    trainer = make_run_in(Dies)
    next(trainer)
    with pytest.raises(
        tk.errors.EnvError, match="in the background died in play: its process was killed by SIGKILL"
    ) as caught:
        next(trainer)
    assert "in the evaluation of epoch 1; the next next() repeats it" in caught.value.__notes__
    list(trainer)
    assert returns(trainer) == returns(plain)


class Broken(Walk):
    """Raise in the worker."""

    def step(self, action: int) -> Any:
        if sys.argv[0] == "-c":
            raise ZeroDivisionError("no such move")
        return super().step(action)


@pytest.mark.slow
def test_what_an_environment_raises_is_raised_with_the_workers_traceback() -> None:
    trainer = make_run_in(Broken)
    next(trainer)
    with pytest.raises(tk.errors.EnvError, match="no such move") as caught:
        next(trainer)
    assert "in the process of the evaluation in the background" in "".join(caught.value.__notes__)
    trainer.close()


def make_run_in(env: Any) -> tk.OffpolicyTrainer:
    """Make the usual run with evaluations in another environment."""
    own: Any = {"max_epoch": 3, "step_per_epoch": 24, "update_per_step": 0.5, "batch_size": 4, "seed": 1}
    quiet: Any = {"verbose": False, "show_progress": False}
    policy = make_policy(tk.make_envs(Walk, 2))
    test = tk.Collector(policy, tk.make_envs(env, 2))
    evaluation = tk.BackgroundEvaluation(test, duration=3)
    buffer = tk.PrioritizedReplayBuffer(60, beta=[(0, 0.4), (100, 1.0)])
    collector = tk.Collector(policy, tk.make_envs(Walk, 2), buffer)
    return tk.OffpolicyTrainer(policy, collector, evaluation=evaluation, **own, **quiet)


@pytest.mark.slow
def test_as_many_episodes_as_fit() -> None:
    trainer = make_trainer(test=True, evaluation=tk.BackgroundEvaluation(duration="auto"), max_epoch=2)
    next(trainer)
    time.sleep(12)  # also the start of the worker, on a busy machine
    trainer.run()
    first, last = (row["test/n_episode"] for row in trainer.history)
    assert first > last == 2  # the last epoch's is not waited for longer than an episode of each


SCRIPT = """
import sys, time
import trainkit as tk
from tests.trainer.toys import make_trainer
trainer = make_trainer(test=True, evaluation=tk.BackgroundEvaluation(), max_epoch=3)
next(trainer)
print(trainer.evaluation_schedule._worker._process.pid, flush=True)
if sys.argv[1] == "ends":
    sys.exit()
time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
@pytest.mark.parametrize("how", ["ends", "killed", "interrupted"])
def test_no_process_stays_whatever_ends_the_trainers(how: str) -> None:
    code = [sys.executable, "-c", SCRIPT, how]
    with subprocess.Popen(code, stdout=subprocess.PIPE, text=True, start_new_session=True, stderr=-3) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        if how == "interrupted":
            os.killpg(process.pid, signal.SIGINT)
        elif how == "killed":
            process.kill()
        process.wait(30)
        deadline = time.monotonic() + 30
        while Path(f"/proc/{worker}").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not Path(f"/proc/{worker}").exists()


def test_what_cannot_be_sent_is_named_at_construction() -> None:
    vector = gym.make_vec("CartPole-v1", num_envs=2)
    envs = tk.make_envs(vector)
    policy = tk.DQNPolicy.for_envs(envs, hidden=(8,))
    collector = tk.Collector(policy, tk.make_envs("CartPole-v1", 2), tk.ReplayBuffer(100))
    own: Any = {"max_epoch": 1, "step_per_epoch": 10, "batch_size": 4, "verbose": False}
    with pytest.raises(tk.ConfigError, match="be made again in another process: give make_envs an id or a factory"):
        tk.OffpolicyTrainer(policy, collector, evaluation=tk.BackgroundEvaluation(tk.Collector(policy, envs)), **own)

    lock = threading.Lock()
    held = tk.make_envs(lambda: (lock, gym.make("CartPole-v1"))[1], 2)
    other = tk.Collector(policy, held)
    with pytest.raises(
        tk.ConfigError, match=r"the environments' factory, or a function .* cannot be sent to another proc"
    ):
        tk.OffpolicyTrainer(policy, collector, evaluation=tk.BackgroundEvaluation(other), **own)

    for wrong, text in (
        ({"duration": "auto"}, 'duration "auto" ends with the training alongside: give a BackgroundEvaluation'),
        ({"exploration": tk.Greedy(), "explore": False}, "exploration has no effect with explore=False"),
        ({"overrides": {"exploration": 1}}, "overrides must be"),
    ):
        with pytest.raises(tk.ConfigError, match=text):
            tk.Evaluation(**wrong)
    with pytest.raises(tk.ConfigError, match="evaluation has no collector: give it one, or give test_collector"):
        tk.OffpolicyTrainer(policy, collector, evaluation=tk.BackgroundEvaluation(), **own)


def test_a_best_that_cannot_be_saved_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    check_that_a_best_may_fail(tk.BackgroundEvaluation(), tmp_path, monkeypatch, caplog)
