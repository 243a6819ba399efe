"""Self-play by a setting of every preset: against a pool in training, against random actions in evaluation."""

from pathlib import Path
from typing import Any

import pytest

import trainkit as tk
from tests.helpers.pairs import PushedCorridors
from tests.helpers.turns import TicTacToe
from trainkit import presets
from trainkit.cli.commands import main

TINY: dict[str, Any] = {"max_epoch": 2, "step_per_epoch": 200, "n_envs": 2, "n_test_envs": 2, "episode_per_test": 4}
QUIET: dict[str, Any] = {"verbose": False, "show_progress": False, "device": "cpu"}
LEARNS: dict[str, Any] = {
    "step_per_collect": 8,
    "batch_size": 8,
    "learning_starts": 20,
    "update_per_step": 0.05,
    "hidden": (8,),
}


def run(**options: Any) -> Any:
    return presets.dqn(TicTacToe, seed=1, self_play=True, **TINY | QUIET | LEARNS | options)


def test_it_plays_copies_of_itself_and_is_scored_by_its_own_return_against_random_actions() -> None:
    with run() as trainer:
        results = list(trainer)
        pool = trainer.policy.policy_mapping
        clock = trainer.policy.clocks["main"].env_step
    assert set(trainer.policy.policies) == {"main", "random", *pool.opponents}
    assert len(pool.opponents) == min(clock // 10, pool.size) == 8
    assert trainer.policy.policies_to_train == ("main",)
    scores = []
    for _, stats, _ in results:
        assert set(stats.test.policies) == {"main", "random"}
        assert "random" not in stats.train.policies
        score = stats.test.policies["main"].returns.mean
        assert stats.test.returns.mean == pytest.approx(0.5 * (score + stats.test.policies["random"].returns.mean))
        scores.append(score)
    assert results[-1].info.best_score == max(scores)


def test_the_command_line_trains_by_self_play_and_evaluates_against_random_actions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    game = "tests.helpers.turns.TicTacToe"
    settings = [f"--{name.replace('_', '-')}={value}" for name, value in TINY.items()]
    folder = ["--logdir", str(tmp_path), "--name", "run", "--quiet"]
    assert main(["train", "dqn", game, "--self-play", *settings, "--hidden=8", *folder]) == 0
    assert main(["eval", str(tmp_path / "run" / "seed1"), "--env", game, "--episodes", "6"]) == 0
    printed = capsys.readouterr().out
    assert "6 episodes of tests.helpers.turns.TicTacToe, greedily, against random actions" in printed
    assert "games won" in printed


def test_schedules_cover_the_clock_of_the_policy_which_plays_one_side() -> None:
    with run(lr=tk.Linear(1e-3, 0.0), epsilon=tk.Linear(1.0, 0.0), max_epoch=10) as trainer:
        trainer.run()
        clock = trainer.policy.clocks["main"].env_step
    assert trainer.env_step >= 2_000
    assert 1_000 <= clock < 1_100  # games against itself come on top
    assert trainer.history["explore/main/epsilon"][-1] < 0.01
    assert trainer.history["update/main/lr"][-1] < 1e-4


def test_an_environment_of_one_agent_is_rejected() -> None:
    with pytest.raises(tk.ConfigError, match="self_play is for games of several agents, and CartPole-v1 has one"):
        presets.ppo("CartPole-v1", self_play=True, **QUIET)


@pytest.mark.parametrize(
    ("preset", "env"),
    [(presets.dqn, TicTacToe), (presets.ppo, PushedCorridors), (presets.sac, PushedCorridors)],
    ids=["dqn", "ppo", "sac"],
)
def test_every_kind_of_preset_has_the_setting(preset: Any, env: Any) -> None:
    sizes = {"batch_size": 8, "step_per_collect": 32, "seed": 1}
    trainer = preset(env, self_play=True, **TINY | QUIET | sizes)
    assert isinstance(trainer.policy, tk.MultiAgentPolicy)
