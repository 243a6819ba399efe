"""What an epoch's line says of games, and of few episodes."""

from typing import Any

import pytest

import trainkit as tk
from examples.two_agents import TwoPoles


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch ")]


def test_a_game_of_several_policies_shows_the_returns_of_each(capsys: pytest.CaptureFixture[str]) -> None:
    envs, test = (tk.make_envs(TwoPoles, 2, seed=seed) for seed in (1, 2))
    learner = tk.DQNPolicy.for_envs(envs, hidden=(4,), seed=1)
    policy: Any = tk.MultiAgentPolicy({"left": learner, "right": tk.RandomPolicy(envs.action_space)})
    train = tk.Collector(policy, envs, tk.MultiAgentBuffer({"left": tk.ReplayBuffer(1_000)}))
    how: dict[str, Any] = {"max_epoch": 1, "step_per_epoch": 200, "batch_size": 8, "show_progress": False, "seed": 1}
    with tk.OffpolicyTrainer(policy, train, tk.Collector(policy, test), episode_per_test=6, **how) as trainer:
        result = next(trainer)
    (line,) = lines_of(capsys)
    players = result.stats.test.policies
    shown = [f"{name} {players[name].returns.mean:.2f} +- {players[name].returns.std:.2f}" for name in players]
    assert f" | test {', '.join(shown)} | " in line


def test_few_episodes_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    how: dict[str, Any] = {"max_epoch": 1, "step_per_epoch": 200, "zoo": False, "show_progress": False, "seed": 1}
    for duration in (2, 5):
        with tk.presets.dqn("CartPole-v1", evaluation=tk.Evaluation(duration=duration), **how) as trainer:
            trainer.run()
    few, enough = lines_of(capsys)
    assert " (n = 2) | " in few.split(" | test")[1]
    assert "(n = " not in enough.split(" | test")[1].split(" | ")[0]
