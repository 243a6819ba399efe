"""What environments tell, shown as statistics."""

import logging
from typing import Any

import numpy as np
import pytest

import trainkit as tk
from tests.trainer.toys import Walk, make_trainer


class Teller(Walk):
    """A walk that tells the parts of its reward, and at its end whether it came to the right."""

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, _ = super().step(action)
        info: dict[str, Any] = {"reward": {"move": reward, "cost": 0.5}, "clock": float(obs[1]), "odd": np.inf}
        if terminated:
            info["success"] = bool(obs[0] > 0)
        return obs, reward, terminated, truncated, info


def one_epoch(callback: tk.Callback, **options: Any) -> tuple[tk.trainer.EpochStats, list[list[dict[str, Any]]]]:
    """Train an epoch among tellers; return its numbers, and what the episodes that ended in training told."""
    told: list[list[dict[str, Any]]] = []

    class Keep(tk.Callback):
        def on_episode_step(self, trainer: tk.Trainer, episode: tk.collector.Episode) -> None:
            episode.user_data.setdefault("told", []).append(dict(episode.info))

        def on_episode_end(self, trainer: tk.Trainer, episode: tk.collector.Episode) -> None:
            if not episode.in_evaluation:
                told.append(episode.user_data["told"])

    trainer = make_trainer(env=Teller, callbacks=[callback, Keep()], max_epoch=1, step_per_epoch=80, **options)
    return next(trainer).stats, told


def test_the_last_value_of_each_episode_is_shown_as_a_mean() -> None:
    stats, told = one_epoch(tk.callbacks.LogInfo("clock"))
    assert stats["custom/info/clock"] == pytest.approx(np.mean([steps[-1]["clock"] for steps in told]))
    assert len(told) > 3


@pytest.mark.parametrize("of", ["sum", "mean"])
def test_parts_of_the_reward_are_added_up_over_an_episode(of: str) -> None:
    stats, told = one_epoch(tk.callbacks.LogInfo("reward/move", "reward/cost", of=of))  # type: ignore[arg-type]  # a Literal
    reduce = np.sum if of == "sum" else np.mean
    for part in ("move", "cost"):
        expected = np.mean([reduce([info["reward"][part] for info in steps]) for steps in told])
        assert stats[f"custom/info/reward/{part}"] == pytest.approx(expected)


def test_an_episode_without_the_key_counts_for_nothing() -> None:
    stats, told = one_epoch(tk.callbacks.LogInfo("success"))
    known = [steps[-1]["success"] for steps in told if "success" in steps[-1]]
    assert stats["custom/info/success"] == pytest.approx(np.mean(known))
    assert stats["custom/info/nonesuch"] is None


def test_evaluations_are_shown_apart() -> None:
    stats, _ = one_epoch(tk.callbacks.LogInfo("clock"), test=True)
    assert stats["custom/test/info/clock"] is not None
    assert stats["custom/test/info/clock"] == pytest.approx(stats["test/lengths/mean"])


def test_a_value_that_is_not_finite_is_left_out_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        stats, _ = one_epoch(tk.callbacks.LogInfo("odd"))
    assert stats["custom/info/odd"] is None
    assert caplog.text.count("info['odd'] is inf: values that are not finite are left out") == 1


def test_what_cannot_be_shown_is_refused() -> None:
    with pytest.raises(tk.ConfigError, match="LogInfo needs the keys to show"):
        tk.callbacks.LogInfo()
    with pytest.raises(tk.ConfigError, match=r"LogInfo.of must be one of .*, got 'total'"):
        tk.callbacks.LogInfo("x", of="total")  # type: ignore[arg-type]  # refused


def test_a_subclass_that_hears_of_steps_is_told_of_them() -> None:
    class Steps(tk.callbacks.LogInfo):
        n_heard = 0

        def on_episode_step(self, trainer: tk.Trainer, episode: tk.collector.Episode) -> None:
            self.n_heard += 1

    own = Steps("score")
    one_epoch(own)
    assert own.n_heard > 0
