"""What a trainer can be told: mistakes are refused at construction, all in one message."""

import pytest

import trainkit as tk
from tests.trainer.toys import Walk, make_policy, make_trainer
from trainkit.core.signatures import mismatch, options_of
from trainkit.core.typed_options import defaults_of, types_of
from trainkit.trainer.options import TrainerOptions

REFUSED = {
    "max_epoch": (-1, "OffpolicyTrainer.max_epoch must be a whole number >= 0, got -1"),
    "step_per_epoch": (0, "OffpolicyTrainer.step_per_epoch must be a whole number >= 1, got 0"),
    "batch_size": (True, "OffpolicyTrainer.batch_size must be a whole number >= 1, got True"),
    "step_per_collect": (2.5, "OffpolicyTrainer.step_per_collect must be a whole number >= 1, got 2.5"),
    "update_per_step": (float("nan"), "OffpolicyTrainer.update_per_step must be in [0, inf), got nan"),
    "training_intensity": (-1.0, "OffpolicyTrainer.training_intensity must be in [0, inf), got -1.0"),
    "learning_starts": (-5, "OffpolicyTrainer.learning_starts must be a whole number >= 0, got -5"),
    "warmup": ("randm", "OffpolicyTrainer.warmup must be one of ['policy', 'random'], got 'randm', did you mean"),
    "episode_per_test": (0, "OffpolicyTrainer.episode_per_test must be a whole number >= 1, got 0"),
    "log_every": (0, "OffpolicyTrainer.log_every must be a whole number >= 1, got 0"),
    "smoothed_reports": (0, "OffpolicyTrainer.smoothed_reports must be a whole number >= 1, got 0"),
    "max_env_step": (0, "OffpolicyTrainer.max_env_step must be a whole number >= 1, got 0"),
    "max_seconds": (0, "OffpolicyTrainer.max_seconds must be in (0, inf), got 0"),
    "threads": (0, "OffpolicyTrainer.threads must be a whole number >= 1, got 0"),
    "seed": (-1, "OffpolicyTrainer.seed must be a whole number >= 0, got -1"),
    "train_fn": (3, "OffpolicyTrainer.train_fn must be callable, got 3"),
    "stop_fn": (195.0, "OffpolicyTrainer.stop_fn must be callable, got 195.0"),
    "reward_metric": ("mean", "OffpolicyTrainer.reward_metric must be callable, got 'mean'"),
    "checkpoint": (True, "OffpolicyTrainer.checkpoint must be a folder or a Checkpoint, got True"),
    "callbacks": ([print], "callbacks must be subclasses of trainkit.Callback or objects of them"),
    "logger": (7, "logger must be a folder, a logger with folder, write, describe and close, or a list of them, got 7"),
}


@pytest.mark.parametrize("option", REFUSED)
def test_an_option_that_cannot_work_is_refused_at_construction(option: str) -> None:
    value, message = REFUSED[option]
    with pytest.raises(tk.ConfigError) as caught:
        make_trainer(test=True, **{option: value})
    assert message in str(caught.value)


def test_all_problems_are_reported_in_one_message() -> None:
    with pytest.raises(tk.ConfigError) as caught:
        make_trainer(batch_size=0, update_per_step=-1, max_epoch=-3, log_every=0, stop_fn=5)
    lines = str(caught.value).splitlines()
    named = ["batch_size", "update_per_step", "max_epoch", "log_every", "stop_fn must", "stop_fn needs"]
    assert len(lines) == len(named)
    for line, name in zip(lines, named, strict=True):
        assert line.startswith(f"OffpolicyTrainer.{name}")


def test_a_misspelt_option_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(
        tk.ConfigError, match="OffpolicyTrainer: unknown option 'save_best', did you mean 'save_best_fn'"
    ):
        make_trainer(save_best=print)


def test_a_batch_larger_than_the_buffer_is_refused() -> None:
    message = "OffpolicyTrainer.batch_size 64 is larger than the buffer's capacity 60: lower it or raise the capacity"
    with pytest.raises(tk.ConfigError) as caught:
        make_trainer(batch_size=64)
    assert str(caught.value) == message


@pytest.mark.parametrize("option", ["stop_fn", "save_best_fn", "test_fn", "compute_score_fn"])
def test_a_function_that_only_an_evaluation_calls_needs_one(option: str) -> None:
    with pytest.raises(tk.ConfigError, match=f"{option} needs evaluations: give test_collector or evaluation"):
        make_trainer(**{option: print})


def test_test_in_train_needs_a_stop_fn() -> None:
    with pytest.raises(tk.ConfigError, match="test_in_train needs a stop_fn"):
        make_trainer(test=True, test_in_train=True)


def test_two_ways_to_evaluate_and_two_update_rates_are_one_too_many() -> None:
    envs = tk.make_envs(Walk)
    evaluation = tk.Evaluation(tk.Collector(make_policy(envs), envs))
    with pytest.raises(tk.ConfigError, match="both test_collector and an evaluation with a collector: give"):
        make_trainer(test=True, evaluation=evaluation)
    with pytest.raises(tk.ConfigError, match="both update_per_step and training_intensity: give one"):
        make_trainer(update_per_step=1, training_intensity=32)


def test_every_option_of_a_trainer_has_a_default_of_its_type() -> None:
    types, defaults = types_of(TrainerOptions), defaults_of(TrainerOptions)
    assert types.keys() == defaults.keys()
    assert [name for name, default in defaults.items() if mismatch(default, types[name])] == []


def test_an_off_policy_trainer_has_at_most_40_options() -> None:
    assert len(options_of(tk.OffpolicyTrainer)) <= 40


def test_a_test_fn_that_changes_how_a_policy_explores_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    def test_fn(epoch: int, env_step: int) -> None:
        trainer.policy.exploration.epsilon = 0.5

    trainer = make_trainer(test=True, test_fn=test_fn, max_epoch=2)
    trainer.run()
    (message,) = [one.getMessage() for one in caplog.records if "test_fn" in one.getMessage()]
    assert message.startswith(
        "test_fn set epsilon to 0.5, which has no effect on evaluations, since they do not explore"
    )


def test_a_test_fn_that_leaves_exploration_alone_is_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    make_trainer(test=True, test_fn=lambda epoch, env_step: None, max_epoch=1).run()
    assert "test_fn" not in caplog.text
