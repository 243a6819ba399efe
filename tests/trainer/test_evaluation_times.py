"""When evaluations happen: by epochs, steps or updates, before the first step, and whenever someone asks."""

from pathlib import Path
from typing import Any

import pytest

import trainkit as tk
from tests.trainer.toys import Log, Walk, everything, make_policy, make_trainer


def with_evaluation(**options: Any) -> tuple[tk.OffpolicyTrainer, Log]:
    """Make a trainer of 3 epochs of 24 steps whose evaluation has these options."""
    envs, log = tk.make_envs(Walk, 2), Log()
    policy = make_policy(envs)
    names = ("duration", "duration_unit", "every", "unit", "at_start", "seed", "explore")
    own = {name: options.pop(name) for name in names if name in options}
    evaluation = tk.Evaluation(tk.Collector(policy, tk.make_envs(Walk, 2)), **{"duration": 3} | own)
    rates: dict[str, Any] = {"max_epoch": 3, "step_per_epoch": 24, "update_per_step": 0.5, "batch_size": 4}
    quiet: dict[str, Any] = {"verbose": False, "show_progress": False, "seed": 1}
    train = tk.Collector(policy, envs, tk.ReplayBuffer(60))
    received = {"callbacks": [log], "evaluation": evaluation}
    return tk.OffpolicyTrainer(policy, train, **rates | quiet | received | options), log


def trained(trainer: tk.OffpolicyTrainer) -> dict[str, Any]:
    """Run, and take down all that training moves: not what evaluations know, nor reports, which they split."""
    trainer.run()
    apart = ("/trainer/evaluation/", "/trainer/callbacks/", "/trainer/metrics/")
    return {path: leaf for path, leaf in everything(trainer).items() if not any(word in path for word in apart)}


def steps_of(options: dict[str, Any]) -> list[int]:
    """Run, and list the steps at which an evaluation ended."""

    class Steps(tk.Callback):
        def on_evaluate_end(self, trainer: Any, stats: tk.CollectStats) -> None:
            found.append(trainer.env_step)

    found: list[int] = []
    trainer, _ = with_evaluation(**options, callbacks=[Steps()])
    trainer.run()
    return found


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({}, [24, 48, 72]),
        ({"every": 2}, [48, 72]),  # the last epoch's always
        ({"at_start": True, "every": 3}, [0, 72]),
        ({"unit": "env_steps", "every": 30}, [30, 60, 72]),
        ({"unit": "env_steps", "every": 12}, [12, 24, 36, 48, 60, 72]),  # once where an epoch ends there
        ({"unit": "env_steps", "every": 1_000}, [72]),
        ({"unit": "updates", "every": 10}, [22, 42, 62, 72]),  # updates begin with the collect that reaches 4 steps
        ({"unit": "env_steps", "every": 24, "at_start": True}, [0, 24, 48, 72]),
    ],
)
def test_an_evaluation_happens_when_its_clock_says_so(options: dict[str, Any], steps: list[int]) -> None:
    assert steps_of(options) == steps


def test_each_evaluation_is_reported_once_where_it_happened(tmp_path: Path) -> None:
    class Numbers:
        folder = None

        def __init__(self) -> None:
            self.tests: list[int] = []

        def write(self, step: int, numbers: Any) -> None:
            if "test/returns/mean" in numbers:
                self.tests.append(step)

        def describe(self, settings: Any) -> None: ...

        def close(self) -> None: ...

    numbers = Numbers()
    trainer, _ = with_evaluation(unit="env_steps", every=10, at_start=True, logger=numbers, log_every=4)
    results = list(trainer)
    assert numbers.tests == [0, 10, 20, 30, 40, 50, 60, 70, 72]
    assert all(not result.stats.test.is_empty for result in results)


def test_training_is_the_same_with_any_evaluation_and_without() -> None:
    plain = trained(with_evaluation(every=3)[0])
    for options in (
        {"unit": "env_steps", "every": 5, "at_start": True},
        {"unit": "updates", "every": 3, "duration": 20, "duration_unit": "steps", "explore": True},
    ):
        assert trained(with_evaluation(**options)[0]) == plain


def test_a_number_of_steps_plays_that_many_from_the_same_starts() -> None:
    trainer, _ = with_evaluation(duration=40, duration_unit="steps", seed=5)
    played = [result.stats.test for result in trainer]
    assert [stats.n_step for stats in played] == [40, 40, 40]
    assert all(stats.n_episode > 0 for stats in played)


def test_evaluate_works_between_epochs_and_within_a_callback() -> None:
    class Curious(tk.Callback):
        def on_collect_end(self, trainer: Any, stats: tk.CollectStats) -> None:
            seen.append(trainer.evaluate())

    seen: list[tk.CollectStats] = []
    trainer, log = with_evaluation(every=3)
    next(trainer)
    assert trainer.info.last_test.is_empty
    first = trainer.evaluate()
    assert (first.n_episode, trainer.info.last_test) == (3, first)
    assert trainer.info.best_score is None
    assert not log.names("on_evaluate_end")
    curious = trained(with_evaluation(every=3, callbacks=[Curious()])[0])
    assert len(seen) == 36
    assert curious == trained(with_evaluation(every=3)[0])


def test_without_an_evaluation_evaluate_raises() -> None:
    with pytest.raises(tk.ConfigError, match="nothing to evaluate in: give the trainer a test_collector"):
        make_trainer().evaluate()


def test_a_resumed_run_evaluates_when_the_straight_one_does(tmp_path: Path) -> None:
    options: dict[str, Any] = {"unit": "env_steps", "every": 20, "at_start": True}
    first, _ = with_evaluation(**options)
    next(first)
    first.save(tmp_path / "run")
    found: list[int] = []

    class Steps(tk.Callback):
        def on_evaluate_end(self, trainer: Any, stats: tk.CollectStats) -> None:
            found.append(trainer.env_step)

    second, _ = with_evaluation(**options, callbacks=[Steps()], resume_from=tmp_path / "run")
    second.run()
    assert found == [40, 60, 72]


@pytest.mark.parametrize("options", [{"unit": "steps"}, {"duration_unit": "epochs"}, {"every": 0}])
def test_what_cannot_be_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(tk.ConfigError, match=r"Evaluation\."):
        with_evaluation(**options)


def test_the_score_of_an_early_evaluation_may_be_the_best() -> None:
    trainer, _ = with_evaluation(
        unit="env_steps", every=10, compute_score_fn=lambda stats: -abs(trainer.env_step - 30.0)
    )
    trainer.run()
    assert (trainer.info.best_score, trainer.info.best_env_step) == (0.0, 30)
