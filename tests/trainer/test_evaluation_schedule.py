"""The best so far, when to stop, and which evaluations happen at all."""

import math
from typing import Any

import numpy as np
import pytest

import trainkit as tk
from tests.trainer.toys import Log, everything, make_trainer

NAN = math.nan


def scored(scores: list[float | None], **options: Any) -> tk.OffpolicyTrainer:
    """Make a trainer whose evaluations, confirming ones among them, get these scores."""
    left = iter(scores)
    return make_trainer(test=True, compute_score_fn=lambda stats: next(left), max_epoch=10, step_per_epoch=4, **options)


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        ([1.0, 3.0, 2.0], [1, 2]),
        ([2.0, 2.0, 2.0], [1]),  # ties keep the first
        ([-1e9, -1e8, -1e9], [1, 2]),  # nothing is too bad to be the first best
        ([None, -5.0, None], [2]),
        ([NAN, -5.0, NAN], [2]),
        ([NAN, None, NAN], []),
        ([1.0, math.inf, math.inf], [1, 2]),
    ],
)
def test_the_best_is_the_first_of_the_highest_scores_and_no_score_never_is(scores: Any, best: list[int]) -> None:
    saved: list[int] = []
    trainer = scored(scores, save_best_fn=lambda policy: saved.append(trainer.epoch))
    for _ in scores:
        result = next(trainer)
    assert saved == best
    known = (result.info.best_score, result.info.best_epoch, result.info.best_env_step)
    assert known == ((scores[best[-1] - 1], best[-1], 4 * best[-1]) if best else (None, None, None))


def test_without_a_score_fn_the_score_is_the_mean_return() -> None:
    result = next(make_trainer(test=True))
    assert result.info.best_score == result.stats.test.returns.mean
    assert result.info.last_test is result.stats.test


@pytest.mark.parametrize("score", ["high", [1.0], np.array([1.0, 2.0])])
def test_a_score_that_is_no_number_is_refused_by_name(score: Any) -> None:
    with pytest.raises(tk.ConfigError, match="compute_score_fn must return a number or None, got"):
        next(scored([score]))


def test_the_score_may_be_of_numpy() -> None:
    trainer = scored([np.float32(0.5), np.array(2.0)])
    next(trainer)
    assert next(trainer).info.best_score == 2.0


def test_reward_metric_is_what_statistics_and_scores_see() -> None:
    plain, hundred = make_trainer(test=True), make_trainer(test=True, reward_metric=lambda returns: 100 * returns)
    for one, other in zip(plain, hundred, strict=True):
        assert other.info.best_score == pytest.approx(100 * one.info.best_score)
        for tag in ("train/returns/mean", "test/returns/mean", "train/recent_returns/max"):
            assert other.stats[tag] == pytest.approx(100 * one.stats[tag])


# ---- which evaluations ----


@pytest.mark.parametrize(("every", "expected"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (7, [5])])
def test_evaluations_come_every_n_epochs_and_at_the_end(every: int, expected: list[int]) -> None:
    trainer = make_trainer(test=True, max_epoch=5, step_per_epoch=4)
    trainer.evaluation_schedule.evaluation.every = every
    tested = [result.epoch for result in trainer if not result.stats.test.is_empty]
    assert tested == expected


def test_an_epoch_that_a_limit_ends_is_evaluated() -> None:
    trainer = make_trainer(test=True, max_env_step=4)
    trainer.evaluation_schedule.evaluation.every = 9
    assert not next(trainer).stats.test.is_empty
    assert list(trainer) == []


def test_every_evaluation_of_a_run_plays_the_same_episodes() -> None:
    trainer = make_trainer(test=True, update_per_step=0)
    tests = [result.stats.test for result in trainer]
    assert len({(test.returns, test.lengths) for test in tests}) == 1


def test_after_a_reset_an_interrupted_evaluation_starts_over() -> None:
    moments = [4]

    def interrupt() -> None:
        if moments and trainer.evaluation_schedule.evaluation.collector.env_step == moments[0]:
            moments.clear()
            raise KeyboardInterrupt

    trainer = make_trainer(test=True, update_per_step=0, on_test_step=interrupt, step_per_epoch=4)
    expected = next(make_trainer(test=True, update_per_step=0, step_per_epoch=4)).stats.test
    with pytest.raises(KeyboardInterrupt):
        next(trainer)
    trainer.reset()
    test = next(trainer).stats.test
    assert (test.n_step, test.returns, test.lengths) == (expected.n_step, expected.returns, expected.lengths)


# ---- stopping ----


def test_stop_fn_is_called_with_the_score_and_again_on_fresh_seeds() -> None:
    requested: list[float] = []

    def stop(score: float) -> bool:
        requested.append(score)
        return score >= 10

    # epochs:      1    2, luck   3     4, solved
    trainer = scored([5.0, 11.0, 4.0, 6.0, 12.0, 13.0], stop_fn=stop)
    results = list(trainer)
    assert requested == [5.0, 11.0, 4.0, 6.0, 12.0, 13.0]
    assert [(r.epoch, r.info.stop_reason) for r in results] == [(1, None), (2, None), (3, None), (4, "stop_fn")]
    assert results[-1].info.best_score == 12.0


def test_the_confirming_evaluation_plays_other_episodes_and_is_the_last_test() -> None:
    trainer = make_trainer(test=True, stop_fn=lambda score: True)
    result = next(trainer)
    assert result.info.stop_reason == "stop_fn"
    assert result.info.last_test is not result.stats.test
    assert result.info.last_test.lengths != result.stats.test.lengths
    assert result.info.last_test.n_episode == 3


@pytest.mark.parametrize("score", [None, NAN])
def test_without_a_score_stop_fn_is_not_called(score: float | None) -> None:
    def stop(score: float) -> bool:
        raise AssertionError

    trainer = scored([score], stop_fn=stop)
    assert next(trainer).info.stop_reason is None


def test_the_policy_that_solved_the_task_is_saved_as_best_and_in_the_checkpoint(tmp_path: Any) -> None:
    solved: list[bytes] = []

    def weights(policy: Any) -> bytes:
        return b"".join(p.detach().numpy().tobytes() for p in policy.parameters())

    def stop(score: float) -> bool:
        solved.append(weights(trainer.policy))
        return score > 5

    best: list[bytes] = []
    trainer = scored(
        [1.0, 9.0, 9.0],
        stop_fn=stop,
        save_best_fn=lambda policy: best.append(weights(policy)),
        checkpoint=tk.Checkpoint(tmp_path, every=100),
        batch_size=1,
    )
    trainer.run()
    assert solved[1] == solved[2] == best[1] == weights(trainer.policy)
    assert solved[0] != solved[1]
    resumed = make_trainer(test=True, max_epoch=10, batch_size=1, resume_from=tmp_path)
    assert weights(resumed.policy) == solved[1]


# ---- test_in_train ----


def test_training_episodes_that_look_solved_are_tested_at_once() -> None:
    class Returns(tk.Callback):
        def on_collect_end(self, trainer: tk.Trainer, stats: tk.CollectStats) -> None:
            if not stats.returns.is_empty:
                returns.append((trainer.env_step, stats.returns.mean))

    returns: list[tuple[int, float]] = []
    log = Log()
    trainer = make_trainer(
        test=True, test_in_train=True, stop_fn=lambda score: score >= -4, callbacks=[Returns(), log], max_epoch=1
    )
    result = next(trainer)
    first = next(step for step, mean in returns if mean >= -4)
    assert result.info.env_step == first < 24
    assert result.info.stop_reason == "stop_fn"
    assert not result.stats.test.is_empty
    assert len(log.names("on_evaluate_end")) == 1


def test_an_early_test_that_fails_is_followed_by_the_epochs_own_and_is_logged() -> None:
    class Numbers:
        folder = None

        def __init__(self) -> None:
            self.tests: list[tuple[int, float]] = []

        def write(self, step: int, numbers: dict[str, float]) -> None:
            if "test/returns/mean" in numbers:
                self.tests.append((step, numbers["test/returns/mean"]))

        def describe(self, settings: Any) -> None: ...

        def close(self) -> None: ...

    requested: list[float] = []

    def stop(score: float) -> bool:
        requested.append(score)
        return trainer.evaluation_schedule.unreported.is_empty  # training episodes always look solved, tests never are

    log, numbers = Log(), Numbers()
    trainer = make_trainer(
        test=True, test_in_train=True, stop_fn=stop, callbacks=[log], max_epoch=1, step_per_epoch=40, logger=numbers
    )
    result = next(trainer)
    n_finished = result.stats.train.n_episode
    assert result.info.env_step == 40
    assert n_finished >= 3
    assert len(log.names("on_evaluate_end")) >= 3
    assert len(numbers.tests) == len(log.names("on_evaluate_end"))
    assert [step for step, _ in numbers.tests][-1] == 40
    assert not result.stats.test.is_empty


def test_looking_for_success_in_training_changes_nothing_but_the_tests() -> None:
    plain = make_trainer(test=True)
    watched = make_trainer(
        test=True, test_in_train=True, stop_fn=lambda score: watched.evaluation_schedule.unreported is None
    )
    plain.run()
    watched.run()
    states = [
        {path: leaf for path, leaf in everything(trainer).items() if not path.startswith("/trainer/evaluation")}
        for trainer in (plain, watched)
    ]
    assert states[0] == states[1]
