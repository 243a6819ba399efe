"""Training on from a checkpoint with a larger `max_epoch`: learning rate and epsilon do not jump back up."""

from pathlib import Path
from typing import Any

import pytest

import trainkit as tk

EPSILON = tk.Linear(1.0, 0.02)


def make(max_epoch: int, *, epsilon: Any = EPSILON, **more: Any) -> tk.Trainer:
    common: dict[str, Any] = {"step_per_epoch": 40, "learning_starts": 20, "step_per_collect": 4, "batch_size": 8}
    common |= {"seed": 1, "n_envs": 2, "hidden": (8,), "evaluation": None, "verbose": False, "zoo": False}
    return tk.presets.dqn("CartPole-v1", max_epoch=max_epoch, epsilon=epsilon, **common, **more)


def rates(trainer: tk.Trainer) -> tuple[list[float], list[float]]:
    """Return the learning rate and epsilon of each epoch."""
    results = list(trainer)
    return [one.stats["update/lr"] for one in results], [one.stats["explore/epsilon"] for one in results]


def test_a_run_that_is_trained_on_has_the_bits_of_one_made_in_one_piece(tmp_path: Path) -> None:
    whole = make(4, schedule_steps=160)
    expected = rates(whole)
    first = make(2, schedule_steps=160)
    begun = rates(first)
    rest = make(4, schedule_steps=160, resume_from=first.save(tmp_path / "saved"))
    ended = rates(rest)
    assert (begun[0] + ended[0], begun[1] + ended[1]) == expected
    for own, other in zip(whole.policy.parameters(), rest.policy.parameters(), strict=True):
        assert (own == other).all()


def test_a_run_is_trained_on_with_another_learning_rate_and_a_small_epsilon(tmp_path: Path) -> None:
    first = make(2)
    _, epsilon = rates(first)
    saved = first.save(tmp_path / "saved")
    lr, later = rates(make(4, resume_from=saved, schedule_steps=80, lr=1e-4))
    assert lr == pytest.approx([1e-4, 1e-4])
    assert max(later) <= epsilon[-1]
    assert max(rates(make(4, resume_from=saved))[1]) > epsilon[-1]  # stretched over the longer run


def test_a_length_of_schedules_without_one_is_rejected() -> None:
    with pytest.raises(tk.ConfigError, match=r"schedule_steps has no effect: no setting is a Linear"):
        make(2, lr=1e-4, epsilon=0.1, schedule_steps=80)
    with pytest.raises(tk.ConfigError, match=r"schedule_steps must be a whole number >= 1, got 0"):
        make(2, schedule_steps=0)
