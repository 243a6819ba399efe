"""The command that trains, with a run of a fraction of a second, and what a command complains of."""

import pytest

from trainkit.cli import main

TINY = {
    "max_epoch": "2", "step_per_epoch": "60", "learning_starts": "32", "batch_size": "16", "hidden": "(8,)",
    "n_envs": "2", "step_per_collect": "2", "n_test_envs": "2", "episode_per_test": "2", "device": "cpu",
    "log_every": "20",
}  # fmt: skip


def words(**settings: str) -> list[str]:
    return [word for name, text in {**TINY, **settings}.items() for word in ("--set", f"{name}={text}")]


def train(*more: str, preset: str = "dqn", **settings: str) -> int:
    return main(["train", preset, "CartPole-v1", "--quiet", *words(**settings), *more])


def complaint(capsys: pytest.CaptureFixture[str]) -> str:
    """Return what was printed to the error stream: one line."""
    (line,) = capsys.readouterr().err.splitlines()
    return line
