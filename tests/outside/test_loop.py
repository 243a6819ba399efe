"""What users of other libraries write in and around the loop: it does what they mean, or the error says what does."""

import copy
from typing import Any

import numpy as np
import pytest
from torch import nn

import trainkit as tk
from trainkit.core.errors import TrainkitError

TINY: dict[str, Any] = {"device": "cpu", "verbose": False, "evaluation": None, "hidden": (8,), "seed": 1, "zoo": False}
TINY |= {"n_envs": 2, "max_epoch": 2, "step_per_epoch": 40}
REPLAY = TINY | {"step_per_collect": 2, "batch_size": 8, "learning_starts": 8, "target_every": 10}


# ---- results of callbacks ----


@pytest.mark.parametrize("returned", [False, True, np.bool_(False)])
def test_a_callback_that_returns_a_flag_gets_an_error_that_says_how_to_stop(returned: Any) -> None:
    trainer = tk.presets.dqn("CartPole-v1", callbacks=tk.on(collect_end=lambda trainer, stats: returned), **REPLAY)
    with pytest.raises(tk.ConfigError, match=rf'returned {returned}.*trainer\.stop\("reason"\) ends the run'), trainer:
        trainer.run()


def test_callbacks_that_have_not_run_are_named() -> None:
    def yielding(trainer: tk.Trainer, result: Any) -> Any:
        yield result

    async def waiting(trainer: tk.Trainer, result: Any) -> None:
        raise AssertionError

    for own, remedy in ((yielding, "remove its yield"), (waiting, "without async")):
        trainer = tk.presets.dqn("CartPole-v1", callbacks=tk.on(epoch_end=own), **REPLAY)
        with pytest.raises(tk.ConfigError, match=rf"on_epoch_end=.*{own.__name__} returned .*{remedy}"), trainer:
            trainer.run()


def test_what_a_lambda_happens_to_return_is_ignored() -> None:
    with tk.presets.dqn("CartPole-v1", callbacks=tk.on(epoch_end=lambda trainer, result: result), **REPLAY) as trainer:
        assert trainer.run().epoch == 2


# ---- the length of a run ----


def test_a_number_of_steps_is_not_taken_for_epochs() -> None:
    with tk.presets.dqn("CartPole-v1", **REPLAY) as trainer:
        with pytest.raises(tk.ConfigError, match=r"got 50000: run\(epochs=\.\.\.\) .* 40 steps, 1250 for 50,000 steps"):
            trainer.run(50_000)  # type: ignore[arg-type]
        assert trainer.run(epochs=1).epoch == 1


# ---- custom policies ----


class Twice(tk.DQNPolicy):
    def __init__(self, network: nn.Module, **parts: Any) -> None:
        super().__init__(network, **parts)
        self.add_target("network", self.network, tk.Target())


def test_a_second_target_of_a_name_is_an_error() -> None:
    envs = tk.make_envs("CartPole-v1", 1)
    with pytest.raises(tk.ConfigError, match=r"Twice\.add_target: there is one named 'network' already"):
        Twice.for_envs(envs, hidden=(8,), device="cpu")
    policy = tk.DQNPolicy.for_envs(envs, hidden=(8,), device="cpu")
    with pytest.raises(tk.ConfigError, match=r"DQNPolicy\.add_gradient_step: there is one named 'network' already"):
        policy.add_gradient_step("network", policy.network, tk.Adam())


def test_a_value_with_tensors_belongs_to_one_policy() -> None:
    envs = tk.make_envs("CartPole-v1", 1)
    value = tk.CategoricalValue(5, -1.0, 1.0)
    one, other = (tk.DQNPolicy.for_envs(envs, value=value, hidden=(8,), device="cpu") for _ in range(2))
    one.value.set_bounds(-5.0, 5.0)  # type: ignore[attr-defined]
    assert (float(value.low), float(other.value.low)) == (-1.0, -1.0)  # type: ignore[attr-defined]


# ---- schedules ----


@pytest.mark.parametrize("options", [{"lr": 1e-3}, {}], ids=["number", "Linear to 0"])
def test_a_run_of_one_rollout_changes_weights(options: dict[str, Any]) -> None:
    one = TINY | {"max_epoch": 1, "step_per_epoch": 64, "step_per_collect": 64, "batch_size": 32}
    with tk.presets.ppo("CartPole-v1", **one | options) as trainer:
        before = {name: own.copy() for name, own in trainer.policy.get_weights().items()}
        trainer.run()
        after = trainer.policy.get_weights()
    assert max(float(np.abs(after[name] - own).max()) for name, own in before.items()) > 1e-4


def test_a_schedule_that_falls_to_0_ends_after_the_last_updates() -> None:
    rates: list[float] = []

    def note(trainer: tk.Trainer) -> None:
        rates.append(trainer.policy.lr)

    with tk.presets.ppo(
        "CartPole-v1", step_per_collect=20, lr=tk.Linear(1e-3, 0.0), callbacks=tk.on(update_end=note), **TINY
    ) as one:
        one.run()
    assert rates[-1] == pytest.approx(1e-3 * 20 / 100)
    rates.clear()
    with tk.presets.dqn("CartPole-v1", lr=tk.Linear(1e-3, 0.0), callbacks=tk.on(update_end=note), **REPLAY) as other:
        other.run()
    assert rates[-1] == pytest.approx(1e-3 * 2 / 82)


# Stable-Baselines3 calls schedules with the share of the run that is left.
@pytest.mark.parametrize("name", ["progress_remaining", "progress", "remaining"])
def test_a_schedule_of_the_progress_left_is_an_error_that_names_linear(name: str) -> None:
    schedule = eval(f"lambda {name}: 1e-3 * {name}")  # noqa: S307  # the name of a parameter
    for make in (
        lambda: tk.presets.ppo("CartPole-v1", lr=schedule, **TINY),
        lambda: tk.Adam(schedule),
        lambda: tk.presets.ppo("CartPole-v1", clip_ratio=schedule, **TINY),
        lambda: tk.EpsilonGreedy(schedule),
    ):
        with pytest.raises(
            tk.ConfigError, match=rf"a function of {name}.*of the step: give tk\.Linear\(0\.001, 0\.0\)"
        ):
            make()


def test_a_schedule_with_values_that_no_run_can_mean_is_an_error() -> None:
    with pytest.raises(tk.ConfigError, match=r"lr.*is 1000 at step 1,000,000.*tk\.Linear\(0\.001, 0\.0\)"):
        tk.Adam(lambda x: 1e-3 * x)
    with pytest.raises(tk.ConfigError, match=r"clip_ratio.*is 200000 at step 1,000,000.*tk\.Linear\(0\.2, 0\.0\)"):
        tk.presets.ppo("CartPole-v1", clip_ratio=lambda x: 0.2 * x, **TINY)
    tk.Adam(lambda step: 1e-3 * 0.5 ** (step / 1_000))


@pytest.mark.parametrize("text", ["linear:1e-3,0", "lin_1e-3", "linear:1e-3"])
def test_a_schedule_in_the_spelling_of_a_shell_names_the_one_of_python(text: str) -> None:
    for make in (
        lambda: tk.presets.ppo("CartPole-v1", lr=text, **TINY),
        lambda: tk.Adam(text),  # type: ignore[arg-type]
    ):
        with pytest.raises(tk.ConfigError, match=r"give tk\.Linear\(1e-3, 0\)"):
            make()


# ---- numbers beyond floats ----


def test_whole_numbers_beyond_floats_are_named_errors() -> None:
    huge = 10**400
    for make in (
        lambda: tk.Adam(huge),
        lambda: tk.EpsilonGreedy(lambda step: huge if step else 0.5)(3),  # type: ignore[operator]
        lambda: tk.EpsilonGreedy(lambda step: huge if step else 0.5).epsilon(3),
        lambda: tk.Clip(huge),
        lambda: tk.Horizon(1, huge),
    ):
        with pytest.raises((TrainkitError, TypeError)) as caught:
            make()
        assert len(str(caught.value)) < 400
    message = r"Trainer\.log needs a number for 'x', got an integer of 1,329 bits"
    with tk.presets.dqn("CartPole-v1", **REPLAY) as trainer, pytest.raises(tk.ConfigError, match=message):
        trainer.log("x", huge)
    for name in ("max_epoch", "step_per_epoch"):
        with pytest.raises(tk.ConfigError, match=rf"{name} must be"):
            tk.presets.dqn("CartPole-v1", **REPLAY | {name: 10**30})
    with pytest.raises(tk.ConfigError, match="n_step"):
        tk.Horizon(10**9)


# ---- seeds ----


class Third(tk.DQNPolicy):
    def __init__(self, network: nn.Module, **parts: Any) -> None:
        super().__init__(network, **parts)
        self.third = copy.deepcopy(self.target_network)


def test_a_copied_network_that_the_trainers_seed_does_not_reach_is_named(caplog: pytest.LogCaptureFixture) -> None:
    envs = tk.make_envs("CartPole-v1", 1)
    Third.for_envs(envs, hidden=(8,), device="cpu", seed=1)
    tk.DQNPolicy.for_envs(envs, hidden=(8,), device="cpu").seed(1)
    tk.PPOPolicy.for_envs(envs, hidden=(8,), device="cpu").seed(1)
    assert "does not reach" not in caplog.text
    Third.for_envs(envs, hidden=(8,), device="cpu").seed(1)
    assert "Third: the seed does not reach the weights of third" in caplog.text


# ---- scores ----


def test_collects_without_an_ended_episode_have_no_score() -> None:
    scores: list[float] = []

    def score(stats: tk.CollectStats) -> float:
        scores.append(stats.returns.mean + 0.0)
        return scores[-1]

    options = REPLAY | {"evaluation": tk.Evaluation(duration=1), "n_test_envs": 1}
    stop = {"compute_score_fn": score, "stop_fn": lambda own: own > 1e9, "test_in_train": True}
    with tk.presets.dqn("CartPole-v1", **options, **stop) as trainer:
        trainer.run()
    assert len(scores) >= 2


# ---- parts that were replaced ----


class Mine(tk.MaxBackup):
    """A backup of the user's."""


def test_parts_that_were_replaced_are_saved(tmp_path: Any) -> None:
    with tk.presets.dqn("CartPole-v1", **REPLAY) as trainer:
        trainer.policy.backup = tk.DoubleBackup()
        trainer.policy.exploration.epsilon = 0.125
        loaded = tk.load_policy(trainer.policy.save(tmp_path / "policy"))
        again = tk.load_policy(trainer.save(tmp_path / "run"))
    for policy in (loaded, again):
        assert isinstance(policy.backup, tk.DoubleBackup)  # type: ignore[attr-defined]
        assert policy.explore_metrics(3) == {"epsilon": 0.125}


def test_saving_says_which_part_is_not_saved(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    with tk.presets.dqn("CartPole-v1", backup="double", **REPLAY) as trainer:
        trainer.policy.backup = Mine()
        saved = trainer.policy.save(tmp_path / "policy")
    assert "DQNPolicy.backup was replaced by" in caplog.text
    assert "is not saved: give it to load_policy, backup=..." in caplog.text
    assert isinstance(tk.load_policy(saved, backup=Mine()).backup, Mine)  # type: ignore[attr-defined]


def test_a_preset_takes_a_part_in_the_place_of_its_own() -> None:
    options: dict[str, Any] = {"backup": Mine(), "penalty": tk.ConservativePenalty(0.5)}
    with tk.presets.dqn("CartPole-v1", **REPLAY, **options) as trainer:
        assert isinstance(trainer.policy.backup, Mine)


def test_a_rejected_log_leaves_the_name_free() -> None:
    with tk.presets.dqn("CartPole-v1", max_epoch=1, step_per_epoch=40, hidden=(4,), evaluation=None, seed=1) as trainer:
        wrong: Any = "avg"
        with pytest.raises(tk.ConfigError, match="reduce"):
            trainer.log("x", 1.0, wrong)
        with pytest.raises(tk.ConfigError, match="needs a number"):
            trainer.log("x", "one", "sum")
        trainer.log("x", 1.0)
        _, stats, _ = next(trainer)
    assert stats["custom/x"] == 1.0
