"""Environments whose time limit was forgotten: what a run says before and during the evaluation that waits for them."""

import logging
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import trainkit as tk
from trainkit.collector import episodes
from trainkit.trainer import evaluation_schedule


class Endless(gym.Env[Any, Any]):
    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(1, np.float32), 1.0, False, False, {}


def run(n_envs: int = 1, **options: Any) -> None:
    settings: dict[str, Any] = {"max_epoch": 2, "step_per_epoch": 1_000, "learning_starts": 5_000, "hidden": (4,)}
    evaluation = tk.Evaluation(duration=2, max_episode_steps=40)
    options = {"n_envs": n_envs, "n_test_envs": 1, "seed": 1, "show_progress": False, **settings, **options}
    with tk.presets.dqn(Endless, evaluation=evaluation, **options) as trainer:
        trainer.run()


def test_episodes_that_do_not_end_are_warned_of_once_before_an_evaluation(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        run()
    (found,) = [record.message for record in caplog.records if "no episode has ended" in record.message]
    assert "in the first 1,024 steps of training" in found
    assert "or for 40 steps" in found
    assert "max_episode_steps" in found


def test_an_episode_without_a_limit_of_its_own_names_where_limits_are_given(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(episodes, "LONGEST_EPISODE", 40)
    with caplog.at_level(logging.WARNING):
        tk.evaluate(tk.RandomPolicy(Endless.action_space, seed=1), Endless, n_episode=1, max_episode_steps=40, seed=1)
    assert 'of a preset env_options={"max_episode_steps": N}' in caplog.text


@pytest.mark.parametrize("options", [{"n_envs": 2}, {"env_options": {"max_episode_steps": 100}}])
def test_a_run_whose_episodes_end_or_may_still_end_is_not_warned_of(
    options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        run(**options, max_epoch=1)
    assert "no episode has ended" not in caplog.text


def test_a_long_evaluation_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evaluation_schedule, "_NOTE_EVERY_S", -1.0)
    run(max_epoch=1)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("evaluating: ")]
    assert lines[0] == "evaluating: 0 episodes, 0 steps so far"
    assert "evaluating: 1 episodes, 41 steps so far" in lines
