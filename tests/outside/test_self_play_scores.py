"""The score of self-play, in which the mean return over both sides is always 0: what is shown, drawn and kept."""

from pathlib import Path
from typing import Any

import pytest

import trainkit as tk
from trainkit.cli import main
from trainkit.loggers.runs import RunFolder

GAME = "pettingzoo/classic/tictactoe_v3"
TINY: dict[str, Any] = {
    "max_epoch": 3, "step_per_epoch": 400, "learning_starts": 100, "batch_size": 16, "hidden": (16,), "n_envs": 2,
    "n_test_envs": 2, "episode_per_test": 10, "device": "cpu", "verbose": False, "show_progress": False,
}  # fmt: skip


def played(seed: int = 1, **options: Any) -> tuple[tk.OffpolicyTrainer, list[float]]:
    """Return a run of self-play, and the score of each of its evaluations."""
    pytest.importorskip("pettingzoo")
    how = {"logger": "runs/game", "checkpoint": "runs/game/checkpoint", **TINY, **options}
    with tk.presets.dqn(GAME, seed=seed, self_play=True, **how) as trainer:
        scores = [result.stats.test.policies["main"].returns.mean for result in trainer]
    return trainer, [score for score in scores if score is not None]


def test_inspect_shows_the_score_against_random_actions(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, scores = played()
    assert any(scores)
    assert main(["inspect", "runs"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[-2:] == [f"{scores[-1]:.5g}", f"{max(scores):.5g}"]
    assert main(["inspect", "runs/game"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "test/policies/main/returns/mean" in line]
    assert line.split()[1] == f"{scores[-1]:.5g}"


def test_plot_and_compare_are_of_the_score_against_random_actions(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer, scores = played()
    assert main(["compare", "runs"]) == 0
    assert f"{GAME}: test/policies/main/returns/mean" in capsys.readouterr().out
    for run in (trainer, "runs/game", RunFolder.read("runs/game")):
        (line,) = tk.plot.curves(run).axes[0].lines
        assert line.get_ydata() == pytest.approx(scores)


def test_the_policy_that_is_kept_as_the_best_has_the_best_score(here: Path) -> None:
    trainer, scores = played(seed=4)
    assert trainer.info.best_score == max(scores) > scores[0]  # else the first would be kept in any case
    assert tk.trainer.inspect_checkpoint("runs/game/checkpoint/best")["progress"]["epoch"] == trainer.info.best_epoch


def test_the_best_by_a_score_of_ones_own_is_kept(here: Path) -> None:
    def shortest(stats: tk.CollectStats) -> float:
        assert stats.lengths.mean is not None
        return -stats.lengths.mean

    how: dict[str, Any] = {"zoo": False, "lr": 1e-2, "compute_score_fn": shortest, "checkpoint": "saves", **TINY}
    with tk.presets.dqn("CartPole-v1", seed=3, **how) as trainer:
        scores = [shortest(result.stats.test) for result in trainer]
    assert len({*scores}) > 1
    best = tk.trainer.inspect_checkpoint("saves/best")["progress"]["epoch"]
    assert best == 1 + scores.index(max(scores)) == trainer.info.best_epoch
