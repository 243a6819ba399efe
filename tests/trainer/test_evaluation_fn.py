"""Evaluations that say themselves what is played."""

from typing import Any

import pytest

import trainkit as tk
from tests.trainer.toys import Walk, make_policy, make_trainer


def test_a_function_says_what_is_played_and_its_numbers_are_shown() -> None:
    def by_length(play: Any) -> dict[str, float]:
        short, long = play(n_step=4), play(n_episode=5)
        return {"steps": short.n_step, "mean": long.returns.mean}

    trainer = make_trainer(evaluation=by_length, max_epoch=2)
    first, second = trainer
    for stats in (first.stats, second.stats):
        assert stats["custom/test/steps"] == 4
        assert stats.test.n_step > 4 + 5 * 3 - 1
        assert stats.test.n_episode >= 5
    assert trainer.info.best_score is not None


def test_numbers_of_an_evaluation_on_request_are_logged() -> None:
    trainer = make_trainer(test=True, max_epoch=2)
    stats = trainer.evaluate(fn=lambda play: {"steps": play(n_step=4).n_step})
    assert stats.n_step == 4
    assert next(trainer).stats["custom/test/steps"] == 4
    assert next(trainer).stats["custom/test/steps"] is None

    ended = tk.on(
        epoch_end=lambda trainer, result: trainer.evaluate(fn=lambda play: {"n": play(n_episode=2).n_episode})
    )
    assert next(make_trainer(test=True, callbacks=[ended])).stats["custom/test/n"] == 2


def test_a_functions_evaluations_play_the_same_episodes_every_time() -> None:
    class Seeded(Walk):
        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            seeds.append(seed)
            return super().reset(seed=seed, options=options)

    seeds: list[int | None] = []
    envs = tk.make_envs(Seeded, 2)
    policy = tk.RandomPolicy(envs.action_space, seed=1)
    evaluation = tk.Evaluation(tk.Collector(policy, envs), fn=lambda play: {"a": play(n_episode=2).n_episode}, seed=3)
    evaluation.run(0)
    first, seeds = seeds, []
    evaluation.run(9)
    assert first == seeds
    assert len(set(first)) == 2


def test_a_function_that_returns_no_numbers_is_refused() -> None:
    with pytest.raises(tk.ConfigError, match=r"Evaluation.fn must return a dict of numbers, got None"):
        next(make_trainer(evaluation=lambda play: None))
    envs = tk.make_envs(Walk)
    with pytest.raises(tk.ConfigError, match=r"Evaluation.fn must be callable, got 3"):
        tk.Evaluation(tk.Collector(tk.RandomPolicy(envs.action_space), envs), fn=3)  # type: ignore[arg-type]  # refused


def test_play_has_the_options_of_collect() -> None:
    with pytest.raises(tk.ConfigError, match=r"Evaluation.fn's play.* 'n_epsiode'.*did you mean 'n_episode'"):
        next(make_trainer(evaluation=lambda play: {"a": play(n_epsiode=2).n_step}))
    returns: list[Any] = []

    def twice(play: Any) -> dict[str, Any]:
        returns.extend(play(n_episode=2, seed=7).returns.mean for _ in range(2))
        return {"none": None}

    stats = next(make_trainer(evaluation=twice)).stats
    assert returns[0] == returns[1]
    assert stats["custom/test/none"] is None


def test_a_number_that_is_none_is_refused_by_its_name() -> None:
    with pytest.raises(tk.ConfigError, match=r"Evaluation.fn must return numbers, or None for none, got 'x' for 'a'"):
        next(make_trainer(evaluation=lambda play: {"a": "x"}))


def test_play_explores_as_the_evaluation_does_unless_it_is_given_true_or_false() -> None:
    seen: list[bool] = []

    def play_four(play: Any) -> dict[str, float]:
        for requested in ({}, {"explore": None}, {"explore": True}, {"explore": False}):
            play(n_step=2, **requested)
        return {}

    for own in (True, False):
        envs = tk.make_envs(Walk, 2)
        policy = make_policy(envs)
        act = policy.act
        policy.act = lambda *args, act=act, **requested: seen.append(requested["explore"]) or act(*args, **requested)  # type: ignore[method-assign]  # spied on
        tk.Evaluation(tk.Collector(policy, envs), explore=own, fn=play_four, seed=1).run(0)
    assert seen == [True, True, True, False, False, False, True, False]


def test_an_evaluation_function_that_explores_leaves_training_as_it_was() -> None:
    def weights(fn: Any) -> Any:
        trainer = make_trainer(evaluation=fn)
        trainer.run()
        return trainer.policy.get_weights()  # type: ignore[attr-defined]  # a DQNPolicy's

    quiet = weights(lambda play: {"steps": play(n_episode=2).n_step})
    noisy = weights(lambda play: {"steps": play(n_episode=2, explore=True).n_step})
    assert quiet.keys() == noisy.keys()
    assert all((quiet[name] == noisy[name]).all() for name in quiet)
