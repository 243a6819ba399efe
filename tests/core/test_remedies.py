"""Mistakes of a first hour: the error says what to write instead."""

import logging
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import trainkit as tk
from tests.helpers.learning import FOUR_NUMBERS, Spaces, linear
from tests.trainer.toys import Walk, make_trainer
from trainkit.buffer import samplers

TWO = Spaces(FOUR_NUMBERS, gym.spaces.Discrete(2))
BOX = Spaces(FOUR_NUMBERS, gym.spaces.Box(-1.0, 1.0, (1,)))
NETWORK = linear(np.zeros((2, 4)))


class OneTensor(tk.ExpectedValue):
    """A value part without a priority."""

    def loss(self, chosen: Any, td_target: Any) -> Any:
        return (chosen - td_target).square().mean(dim=1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: tk.DQNPolicy.for_envs(TWO, network=NETWORK),
            r"^DQNPolicy\.for_envs makes the network itself: give yours to DQNPolicy\(network, \.\.\.\)$",
        ),
        (lambda: tk.DQNPolicy(NETWORK, max_grad_norm=1.0), r"'max_grad_norm', did you mean clip=Clip\(\.\.\.\)\?"),  # type: ignore[call-arg]
        (lambda: tk.DQNPolicy.for_envs(TWO, hidden=64), r"whole numbers such as \(64,\) or \(64, 64\), got 64"),
        (lambda: tk.Adam("3e-4"), r"lr must be in \[0, inf\), got '3e-4', a str: give a number"),  # type: ignore[arg-type]
        (lambda: tk.evaluate(NETWORK, "CartPole-v1", 5), r"by name, such as n_episode=5"),  # type: ignore[misc, arg-type]
        (lambda: tk.DQNPolicy.for_envs(BOX), r"got Box.*: use SACPolicy, PPOPolicy or A2CPolicy, or make_envs"),
        (lambda: tk.SACPolicy.for_envs(TWO), r"got Discrete\(2\): use DQNPolicy or PPOPolicy$"),
        (
            lambda: tk.DQNPolicy.for_envs(TWO, value=OneTensor()).check_spaces(TWO.observation_space, TWO.action_space),
            r"a value part's `loss` returns \(loss \[B\], priority \[B\]\)",
        ),
        (
            lambda: tk.DQNPolicy(linear(np.zeros((3, 4)))).check_spaces(TWO.observation_space, TWO.action_space),
            r"need \(1, 2, 1\) .*: give it 2 outputs$",
        ),
    ],
    ids=["network=", "max_grad_norm=", "hidden=64", "lr=str", "5 episodes", "a Box", "no Box", "a loss", "outputs"],
)
def test_the_error_says_what_to_write(call: Any, message: str) -> None:
    with pytest.raises(tk.ConfigError, match=message):
        call()


def test_a_callback_with_other_arguments_is_rejected_at_construction() -> None:
    class Wrong(tk.Callback):
        def on_epoch_end(self, trainer: tk.Trainer) -> None:  # type: ignore[override]
            """Take no result."""

    with pytest.raises(
        tk.ConfigError, match=r"^Wrong\.on_epoch_end is called with \(trainer, result\) and has the arg"
    ):
        make_trainer(callbacks=[Wrong()])
    with pytest.raises(tk.ConfigError, match=r"<lambda> is called with \(trainer, result\)"):
        make_trainer(callbacks=tk.on(epoch_end=lambda trainer: None))
    make_trainer(callbacks=tk.on(epoch_end=lambda *news: None))


def test_a_reward_that_is_nan_has_a_remedy() -> None:
    class NoReward(Walk):
        def step(self, action: int) -> Any:
            obs, _, *rest = super().step(action)
            return obs, float("nan"), *rest

    with pytest.raises(tk.errors.BadEnvDataError, match=r"reward nan, at .*: look for a division by zero"):
        make_trainer(env=NoReward).run()


def test_a_prioritized_buffer_without_priorities_is_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samplers, "_MOST_UNANSWERED", 3)
    trainer = make_trainer()
    next(trainer)
    for _ in range(9):
        trainer.buffer.sample(4, horizon=trainer.policy.horizon)
    assert caplog.text == ""  # priorities were written, and rows are drawn by them
    other = make_trainer()
    other.train_collector.collect(n_step=8)
    for _ in range(9):
        other.buffer.sample(4, horizon=trainer.policy.horizon)
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "was sampled 3 times and got no priority" in record.getMessage()


def test_a_sample_without_a_horizon_is_rejected_with_the_remedy() -> None:
    trainer = make_trainer()
    next(trainer)
    with pytest.raises(tk.ConfigError, match=r"sample needs a horizon.*: horizon=policy\.horizon to learn from it"):
        trainer.buffer.sample(4)


def test_a_run_that_ends_before_its_first_update_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    make_trainer(max_epoch=2, step_per_epoch=10, learning_starts=20)
    assert caplog.text == ""
    make_trainer(max_epoch=2, step_per_epoch=10, learning_starts=21)
    assert "OffpolicyTrainer never updates: learning_starts is 21, and the run has 20 steps" in caplog.text


def test_episodes_of_evaluations_that_a_run_does_not_have_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    make_trainer(test=True)
    assert caplog.text == ""
    make_trainer(episode_per_test=5)
    assert "episode_per_test=5 has no effect without test_collector: give one" in caplog.text


def test_a_resumed_run_prints_where_it_continues(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    make_trainer(max_epoch=1, checkpoint=tmp_path).run()
    make_trainer(max_epoch=2, resume_from=tmp_path, verbose=True).run()
    first, second, _ = capsys.readouterr().out.splitlines()
    assert first == f"resumed from {tmp_path} | epoch 1 | 24 steps | 11 updates"
    assert second.startswith("epoch 2 | ")
