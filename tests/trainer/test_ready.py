"""Ready callbacks, and what callbacks can do: stop, show what environments tell, change what is learnt from."""

import dataclasses
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainkit as tk
from tests.trainer.toys import Walk, everything, make_onpolicy_trainer, make_trainer


class Teller(Walk):
    """A walk that tells the parts of its reward, and at its end whether it came to the right."""

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, _ = super().step(action)
        info: dict[str, Any] = {"reward": {"move": reward, "cost": 0.5}, "clock": float(obs[1]), "odd": np.inf}
        if terminated:
            info["success"] = bool(obs[0] > 0)
        return obs, reward, terminated, truncated, info


# ---- LogInfo ----


def one_epoch(callback: tk.Callback, **options: Any) -> tuple[tk.EpochStats, list[list[dict[str, Any]]]]:
    """Train an epoch among tellers; return its numbers, and what the episodes that ended in training told."""
    told: list[list[dict[str, Any]]] = []

    class Keep(tk.Callback):
        def on_episode_step(self, trainer: tk.Trainer, episode: tk.Episode) -> None:
            episode.user_data.setdefault("told", []).append(dict(episode.info))

        def on_episode_end(self, trainer: tk.Trainer, episode: tk.Episode) -> None:
            if not episode.in_evaluation:
                told.append(episode.user_data["told"])

    trainer = make_trainer(env=Teller, callbacks=[callback, Keep()], max_epoch=1, step_per_epoch=80, **options)
    return next(trainer).stats, told


def test_the_last_value_of_each_episode_is_shown_as_a_mean() -> None:
    stats, told = one_epoch(tk.LogInfo("clock"))
    assert stats["custom/info/clock"] == pytest.approx(np.mean([steps[-1]["clock"] for steps in told]))
    assert len(told) > 3


@pytest.mark.parametrize("of", ["sum", "mean"])
def test_parts_of_the_reward_are_added_up_over_an_episode(of: str) -> None:
    stats, told = one_epoch(tk.LogInfo("reward/move", "reward/cost", of=of))  # type: ignore[arg-type]  # a Literal
    reduce = np.sum if of == "sum" else np.mean
    for part in ("move", "cost"):
        expected = np.mean([reduce([info["reward"][part] for info in steps]) for steps in told])
        assert stats[f"custom/info/reward/{part}"] == pytest.approx(expected)


def test_an_episode_without_the_key_counts_for_nothing() -> None:
    stats, told = one_epoch(tk.LogInfo("success"))
    known = [steps[-1]["success"] for steps in told if "success" in steps[-1]]
    assert stats["custom/info/success"] == pytest.approx(np.mean(known))
    assert stats["custom/info/nonesuch"] is None


def test_evaluations_are_shown_apart() -> None:
    stats, _ = one_epoch(tk.LogInfo("clock"), test=True)
    assert stats["custom/test/info/clock"] is not None
    assert stats["custom/test/info/clock"] == pytest.approx(stats["test/lengths/mean"])


def test_a_value_that_is_not_finite_is_left_out_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        stats, _ = one_epoch(tk.LogInfo("odd"))
    assert stats["custom/info/odd"] is None
    assert caplog.text.count("info['odd'] is inf: values that are not finite are left out") == 1


def test_what_cannot_be_shown_is_refused() -> None:
    with pytest.raises(tk.ConfigError, match="LogInfo needs the keys to show"):
        tk.LogInfo()
    with pytest.raises(tk.ConfigError, match=r"LogInfo.of must be one of .*, got 'total'"):
        tk.LogInfo("x", of="total")  # type: ignore[arg-type]  # refused


# ---- StopAt ----


def test_a_run_stops_at_a_step_in_the_middle_of_an_epoch() -> None:
    trainer = make_trainer(callbacks=[tk.StopAt(env_step=30)], step_per_collect=4)
    info = trainer.run()
    assert (info.epoch, info.env_step, info.stop_reason, info.gradient_step) == (
        2,
        32,
        "max_env_step",
        16,
    )  # half of all steps


def test_a_run_stops_at_a_return_that_a_second_look_confirms() -> None:
    scores = iter([1.0, 5.0, 0.0, 6.0, 7.0])  # fails, passes, is not confirmed, passes, is confirmed
    trainer = make_trainer(test=True, max_epoch=9, step_per_epoch=2, callbacks=[tk.StopAt(return_mean=5.0)])
    evaluation = trainer.judge.evaluation
    assert evaluation is not None
    run = evaluation.run

    def told(*arguments: Any, **options: Any) -> tk.CollectStats:
        stats = run(*arguments, **options)
        assert stats.returns is not None
        return dataclasses.replace(stats, returns=dataclasses.replace(stats.returns, mean=next(scores)))

    evaluation.run = told  # type: ignore[method-assign]  # as if it had played so
    info = trainer.run()
    assert (info.epoch, info.stop_reason) == (3, "return_mean")
    assert next(scores, None) is None


def test_a_limit_that_a_resumed_run_has_passed_leaves_nothing_to_train(tmp_path: Path) -> None:
    trainer = make_trainer()
    next(trainer)
    trainer.save(tmp_path)
    resumed = make_trainer(resume_from=tmp_path, callbacks=[tk.StopAt(env_step=20)])
    assert list(resumed) == []
    assert (resumed.info.env_step, resumed.stop_reason) == (24, "max_env_step")


def test_limits_that_make_no_sense_are_refused() -> None:
    with pytest.raises(tk.ConfigError) as caught:
        tk.StopAt()
    assert str(caught.value) == "StopAt needs return_mean, env_step or seconds"
    with pytest.raises(tk.ConfigError, match=r"StopAt.env_step must be a whole number >= 1, got 0"):
        tk.StopAt(env_step=0)
    with pytest.raises(tk.ConfigError, match="StopAt needs evaluations: give test_collector or evaluation"):
        make_trainer(callbacks=[tk.StopAt(return_mean=1.0)])


# ---- on_train_batch ----


def test_what_a_callback_makes_of_a_batch_is_learnt_from() -> None:
    class Nothing(tk.Callback):
        def on_train_batch(self, trainer: tk.Trainer, batch: Any) -> Any:
            return dataclasses.replace(batch, weight=np.zeros_like(batch.weight))

    weighed, plain = make_trainer(callbacks=[Nothing()]), make_trainer()
    assert weighed.run().gradient_step == plain.run().gradient_step > 0
    assert weighed.history["update/grad_norm"] == [0.0, 0.0, 0.0]
    assert plain.history[-1]["update/grad_norm"] > 0


def test_several_see_a_batch_each_what_the_one_before_made_of_it() -> None:
    seen: list[float] = []

    class Double(tk.Callback):
        def on_train_batch(self, trainer: tk.Trainer, batch: Any) -> Any:
            seen.append(float(batch.weight[0]))
            return dataclasses.replace(batch, weight=batch.weight * 2)

    class Look(tk.Callback):
        def on_train_batch(self, trainer: tk.Trainer, batch: Any) -> None:
            seen.append(float(batch.weight[0]))

    next(make_trainer(callbacks=[Double(), Look(), Double()], step_per_epoch=6))
    assert seen
    for first, second, third in zip(seen[::3], seen[1::3], seen[2::3], strict=True):
        assert (second, third) == (first * 2, first * 2)


def test_a_rollout_can_be_changed_before_it_is_learnt_from() -> None:
    lengths: list[int] = []

    class Look(tk.Callback):
        def on_train_batch(self, trainer: tk.Trainer, batch: Any) -> Any:
            lengths.append(len(batch))
            return dataclasses.replace(batch, reward=np.zeros_like(batch.reward))

    trainer = make_onpolicy_trainer(callbacks=[Look()], max_epoch=1)
    next(trainer)
    assert lengths == [12, 12]


def test_what_is_no_batch_is_refused_with_the_callbacks_name() -> None:
    class Wrong(tk.Callback):
        def on_train_batch(self, trainer: tk.Trainer, batch: Any) -> Any:
            return batch.reward

    with pytest.raises(tk.ConfigError, match=r"Wrong.on_train_batch must return a TransitionBatch or None, got array"):
        next(make_trainer(callbacks=[Wrong()]))


def test_an_exception_before_an_update_leaves_the_trainer_usable() -> None:
    class Once(tk.Callback):
        raised = False

        def on_train_batch(self, trainer: tk.Trainer, batch: Any) -> None:
            if not self.raised:
                self.raised = True
                raise ValueError("not this one")

    trainer = make_trainer(callbacks=[Once()], max_epoch=1)
    with pytest.raises(ValueError, match="not this one") as caught:
        next(trainer)
    assert caught.value.__notes__ == ["raised in Once.on_train_batch, epoch 1, step 4"]
    assert next(trainer).info.gradient_step == 11  # half of the steps from the second collect on


# ---- episodes, in a trainer ----


class Everything(tk.Callback):
    """Look at all there is to see of episodes."""

    def on_episode_step(self, trainer: tk.Trainer, episode: tk.Episode) -> None:
        repr((episode, episode.obs, episode.action, episode.reward, episode.info, episode.slots, episode.truncated))

    def on_episode_end(self, trainer: tk.Trainer, episode: tk.Episode) -> None:
        trainer.log("length", episode.length)


@pytest.mark.parametrize("make", [make_trainer, make_onpolicy_trainer])
def test_a_run_that_is_watched_is_bit_for_bit_the_one_that_is_not(make: Any) -> None:
    plain, watched = make(test=True), make(test=True, callbacks=[Everything()])
    plain.run()
    watched.run()
    own, theirs = everything(plain), everything(watched)
    assert {path: leaf for path, leaf in theirs.items() if "/hooks/" not in path} == {
        path: leaf for path, leaf in own.items() if "/hooks/" not in path
    }


def test_what_episodes_log_is_what_statistics_show() -> None:
    stats = next(make_trainer(callbacks=[Everything()], step_per_epoch=60)).stats
    assert stats["custom/length"] == pytest.approx(stats["train/lengths/mean"])


def test_an_exception_in_an_episode_keeps_every_row_and_the_episode_goes_on() -> None:
    class Once(tk.Callback):
        raised = False

        def on_episode_step(self, trainer: tk.Trainer, episode: tk.Episode) -> None:
            if not self.raised and episode.length == 3:
                self.raised = True
                raise ValueError("three")

    plain, trainer = make_trainer(), make_trainer(callbacks=[Once()])
    with pytest.raises(ValueError, match="three"):
        next(trainer)
    trainer.run()
    plain.run()
    own, theirs = everything(plain), everything(trainer)
    assert {path: leaf for path, leaf in own.items() if "/hooks/" not in path} == {
        path: leaf for path, leaf in theirs.items() if "/hooks/" not in path
    }


def test_a_look_between_two_epochs_is_told_to_nobody() -> None:
    told: list[bool] = []

    class Look(tk.Callback):
        def on_episode_end(self, trainer: tk.Trainer, episode: tk.Episode) -> None:
            told.append(episode.in_evaluation)

    trainer = make_trainer(test=True, callbacks=[Look()], max_epoch=1)
    next(trainer)
    n_told = len(told)
    assert told.count(True) == 3
    trainer.evaluate()
    assert len(told) == n_told


def test_loading_a_checkpoint_is_told_of(tmp_path: Path) -> None:
    class Hear(tk.Callback):
        heard: tuple[Path, int] | None = None

        def on_checkpoint_loaded(self, trainer: tk.Trainer, path: Path) -> None:
            self.heard = (path, trainer.env_step)

    trainer = make_trainer()
    next(trainer)
    trainer.save(tmp_path)
    hear = Hear()
    make_trainer(callbacks=[hear], resume_from=tmp_path)
    assert hear.heard == (tmp_path, 24)


# ---- Evaluation(fn=) ----


def test_a_function_says_what_is_played_and_its_numbers_are_shown() -> None:
    def by_length(play: Any) -> dict[str, float]:
        short, long = play(n_step=4), play(n_episode=5)
        return {"steps": short.n_step, "mean": long.returns.mean}

    trainer = make_trainer(evaluation=by_length, max_epoch=2)
    first, second = trainer
    for stats in (first.stats, second.stats):
        assert stats.test is not None
        assert stats["custom/test/steps"] == 4
        assert stats.test.n_step > 4 + 5 * 3 - 1
        assert stats.test.n_episode >= 5
    assert trainer.info.best_score is not None


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
