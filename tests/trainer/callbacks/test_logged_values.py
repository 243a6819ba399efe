"""Values of the infos, and histograms, logged by callbacks."""

import csv
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import trainkit as tk
from tests.trainer.toys import Numbers, Walk, everything, make_onpolicy_trainer, make_trainer, of_watchers
from trainkit.core.errors import ConfigError

# ---- values of the infos ----


class Teller(Walk):
    """A walk that says the parts of its reward, and at its end whether it came to the right."""

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, _ = super().step(action)
        info: dict[str, Any] = {"reward": {"move": reward, "cost": 0.5}, "clock": float(obs[1]), "odd": np.inf}
        if terminated:
            info["success"] = bool(obs[0] > 0)
        return obs, reward, terminated, truncated, info


def one_epoch(callback: tk.Callback, **options: Any) -> tuple[tk.trainer.EpochStats, list[list[dict[str, Any]]]]:
    """Train an epoch among tellers; return its numbers, and what the episodes that ended in training told."""
    received: list[list[dict[str, Any]]] = []

    class Keep(tk.Callback):
        def on_episode_step(self, trainer: tk.Trainer, episode: tk.collector.Episode) -> None:
            episode.user_data.setdefault("told", []).append(dict(episode.info))

        def on_episode_end(self, trainer: tk.Trainer, episode: tk.collector.Episode) -> None:
            if not episode.in_evaluation:
                received.append(episode.user_data["told"])

    trainer = make_trainer(env=Teller, callbacks=[callback, Keep()], max_epoch=1, step_per_epoch=80, **options)
    return next(trainer).stats, received


def test_the_last_value_of_each_episode_is_shown_as_a_mean() -> None:
    stats, received = one_epoch(tk.callbacks.LogInfo("clock"))
    assert stats["custom/info/clock"] == pytest.approx(np.mean([steps[-1]["clock"] for steps in received]))
    assert len(received) > 3


@pytest.mark.parametrize("of", ["sum", "mean"])
def test_parts_of_the_reward_are_added_up_over_an_episode(of: str) -> None:
    stats, received = one_epoch(tk.callbacks.LogInfo("reward/move", "reward/cost", of=of))  # type: ignore[arg-type]  # a Literal
    reduce = np.sum if of == "sum" else np.mean
    for part in ("move", "cost"):
        expected = np.mean([reduce([info["reward"][part] for info in steps]) for steps in received])
        assert stats[f"custom/info/reward/{part}"] == pytest.approx(expected)


def test_every_episode_is_a_row_of_the_epoch_and_of_files_and_once_after_a_resume(tmp_path: Path) -> None:
    def trainer(folder: str, *callbacks: Any, resume: bool = False, **more: Any) -> tk.OffpolicyTrainer:
        lines, table = tmp_path / folder / "lines", tmp_path / folder / "table"
        logger = [tk.JsonlLogger(lines, resume=resume), tk.loggers.CsvLogger(table, resume=resume)]
        rows = tk.callbacks.LogEpisodes("reward/move", "success", "double", "nowhere")
        mid = tk.Checkpoint(tmp_path / folder / "run", every=24, unit="env_steps")
        return make_trainer(
            env=Teller, callbacks=[Double(), rows, *callbacks], logger=logger, step_per_epoch=80, max_epoch=2,
            log_every=16, checkpoint=mid, **more,
        )  # fmt: skip

    class Double(tk.Callback):
        def on_episode_end(self, trainer: tk.Trainer, episode: tk.collector.Episode) -> None:
            episode.user_data["double"] = 2 * episode.length

    straight = trainer("straight")
    epochs = [stats for _, stats, _ in straight]
    for epoch, stats in enumerate(epochs, 1):
        trained = [row for row in stats.episodes if not row["in_evaluation"]]
        assert tuple(row["return"] for row in trained) == stats.train.episode_returns
        assert tuple(row["length"] for row in trained) == stats.train.episode_lengths
        assert len(stats.episodes) - len(trained) == stats.test.n_episode
        assert {row["epoch"] for row in stats.episodes} == {epoch}
        assert all(row["double"] == 2 * row["length"] and "nowhere" not in row for row in stats.episodes)
        assert all(row["success"] == (row["return"] > 0) for row in trained if "success" in row)
    rows = [dict(row) for stats in epochs for row in stats.episodes]
    lines = (tmp_path / "straight" / "lines" / "episodes.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == rows
    with (tmp_path / "straight" / "table" / "episodes.csv").open(newline="") as file:
        table = [{name: float(cell) for name, cell in row.items() if cell} for row in csv.DictReader(file)]
    assert table == rows

    def kill(trainer: tk.Trainer, path: Path) -> None:
        if trainer.clock > 50:  # in the middle of an epoch, after reports and before the next
            raise TimeoutError

    with pytest.raises(TimeoutError), trainer("resumed", tk.on(checkpoint_saved=kill)) as killed:
        killed.run()
    resumed = trainer("resumed", resume_from="auto", resume=True)
    again = [dict(row) for stats in [result.stats for result in resumed] for row in stats.episodes]
    lines = (tmp_path / "resumed" / "lines" / "episodes.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == again
    for row in rows + again:
        assert 0 < row.pop("seconds") < 60
    assert again == rows


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({}, "Trainer.log_episode needs a dict of numbers, got {}"),
        ({"x": "one"}, "Trainer.log_episode needs a number for 'x', got 'one'"),
        ({1: 2.0}, "Trainer.log_episode needs names of columns, got 1"),
    ],
)
def test_a_row_that_is_no_dict_of_numbers_is_rejected(row: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_trainer().log_episode(row)


def test_an_episode_without_the_key_counts_for_nothing() -> None:
    stats, received = one_epoch(tk.callbacks.LogInfo("success"))
    known = [steps[-1]["success"] for steps in received if "success" in steps[-1]]
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


def test_a_subclass_with_a_step_event_receives_steps() -> None:
    class Steps(tk.callbacks.LogInfo):
        n_received = 0

        def on_episode_step(self, trainer: tk.Trainer, episode: tk.collector.Episode) -> None:
            self.n_received += 1

    own = Steps("score")
    one_epoch(own)
    assert own.n_received > 0


# ---- histograms ----


class Spreads(Numbers):
    """A logger that keeps histograms, too."""

    def __init__(self) -> None:
        super().__init__()
        self.spreads: list[tuple[int, dict[str, list[float]]]] = []

    def write_histograms(self, step: int, values: Mapping[str, Any]) -> None:
        self.spreads.append((step, {tag: numbers.tolist() for tag, numbers in values.items()}))


class Says(tk.Callback):
    """Log some arrays at every collect."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def on_collect_end(self, trainer: tk.Trainer, stats: tk.CollectStats) -> None:
        trainer.log("own", self.values, reduce="histogram")


def test_arrays_logged_as_histograms_reach_who_can_show_them_joined_and_once() -> None:
    can, cannot = Spreads(), Numbers()
    make_trainer(logger=[can, cannot], callbacks=[Says([[1, 2], [3, 4]])], max_epoch=1, log_every=12).run()
    assert can.spreads == [
        (12, {"custom/own": [1.0, 2.0, 3.0, 4.0] * 6}),
        (24, {"custom/own": [1.0, 2.0, 3.0, 4.0] * 6}),
    ]
    assert [set(numbers) for _, numbers in can.written] == [set(numbers) for _, numbers in cannot.written]
    assert "custom/own" not in cannot.written[0][1]


def test_a_tensor_and_one_number_will_do_and_no_number_is_nothing() -> None:
    logger = Spreads()
    trainer = make_trainer(logger=logger, max_epoch=1)
    trainer.log("a", torch.tensor([1.0, 2.0]), reduce="histogram")
    trainer.log("b", 3, reduce="histogram")
    trainer.log("c", [], reduce="histogram")
    trainer.run()
    assert logger.spreads == [(24, {"custom/a": [1.0, 2.0], "custom/b": [3.0]})]


@pytest.mark.parametrize("values", ["words", [1.0, np.nan], [np.inf], [[1], [1, 2]], None])
def test_what_has_no_histogram_is_refused(values: Any) -> None:
    trainer = make_trainer()
    with pytest.raises(tk.ConfigError, match=r"Trainer.log needs an array of finite numbers for 'x', got"):
        trainer.log("x", values, reduce="histogram")


def test_a_name_is_a_number_or_a_histogram_not_both() -> None:
    trainer = make_trainer()
    trainer.log("x", 1.0)
    with pytest.raises(tk.ConfigError, match="reduces 'x' by 'mean', got 'histogram'"):
        trainer.log("x", [1.0], reduce="histogram")


# ---- the ready callback ----


class Truth:
    """Write down what a collector does, one row at a time."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, float, bool]] = []  # env, action, reward, whether the episode is over

    def add(self, step: Any) -> None:
        over = step.terminated | step.truncated
        self.rows += zip(step.env_ids.tolist(), step.action.tolist(), step.reward.tolist(), over.tolist(), strict=True)

    def cut(self, env_ids: Any) -> None:
        for env in env_ids.tolist():
            self.rows.append((env, -1, 0.0, True))


def episodes(rows: list[tuple[int, int, float, bool]]) -> list[tuple[float, int]]:
    """Return (return, length) of whole episodes in the order in which they ended."""
    running: dict[int, list[float]] = {}
    ended = []
    for env, action, reward, over in rows:
        if action >= 0:
            running.setdefault(env, []).append(reward)
        if over:
            rewards = running.pop(env, [])
            if action >= 0:
                ended.append((sum(rewards), len(rewards)))
    return ended


def test_returns_lengths_and_actions_of_all_that_was_collected_are_logged_once() -> None:
    logger, truth = Spreads(), Truth()
    trainer = make_trainer(logger=logger, callbacks=[tk.callbacks.Histograms(every=10)], log_every=10, max_epoch=4)
    assert trainer.train_collector is not None
    trainer.train_collector.recorders.append(truth)
    trainer.run()
    received = {
        tag: [x for _, one in logger.spreads for x in one.get(tag, [])]
        for tag in ("custom/actions", "custom/returns", "custom/lengths")
    }
    n_rows = len(received["custom/actions"])
    assert 86 <= n_rows <= 96  # looked at every 10 steps of 96; what came after the last look is not told
    steps = [at for at, row in enumerate(truth.rows) if row[1] >= 0]  # the others are cuts
    seen = truth.rows[: steps[n_rows - 1] + 1]
    assert received["custom/actions"] == [action for _, action, _, _ in seen if action >= 0]
    expected = episodes(seen)
    assert len(expected) > 5
    np.testing.assert_allclose(received["custom/returns"], [one for one, _ in expected])
    assert received["custom/lengths"] == [length for _, length in expected]


def test_priorities_and_weights_are_the_buffers() -> None:
    logger = Spreads()
    trainer = make_trainer(logger=logger, callbacks=[tk.callbacks.Histograms(every=24)], max_epoch=1)
    trainer.run()
    ((step, received),) = logger.spreads
    assert step == 24
    assert len(received["custom/priorities"]) == len(received["custom/weights"]) == 24
    assert max(received["custom/weights"]) == 1.0


def test_actions_of_several_places_are_shown_place_by_place() -> None:
    logger = Spreads()
    trainer = tk.presets.sac(
        "Pendulum-v1", seed=1, device="cpu", n_envs=2, n_test_envs=1, episode_per_test=1, max_epoch=1, verbose=False,
        step_per_epoch=20, learning_starts=100, logger=logger, log_every=10,
        callbacks=[tk.callbacks.Histograms(every=10)],
    )  # fmt: skip
    with trainer:
        trainer.run()
    assert [sorted(received) for _, received in logger.spreads] == [["custom/actions"]] * 2
    assert all(len(received["custom/actions"]) == 10 for _, received in logger.spreads)


def test_on_policy_learners_have_them_too() -> None:
    logger = Spreads()
    make_onpolicy_trainer(logger=logger, callbacks=[tk.callbacks.Histograms(every=12)]).run()
    assert {tag for _, received in logger.spreads for tag in received} == {
        "custom/actions",
        "custom/returns",
        "custom/lengths",
    }


def test_a_run_learns_the_same_with_and_without() -> None:
    plain, watched = make_trainer(), make_trainer(callbacks=[tk.callbacks.Histograms(every=5)])
    plain.run()
    watched.run()
    own, theirs = (
        {path: leaf for path, leaf in everything(one).items() if not of_watchers(path)} for one in (plain, watched)
    )
    assert own == theirs
    assert watched.train_collector is not None
    assert watched.train_collector.recorders == []  # it leaves when the run is over


def test_a_period_that_cannot_be_is_refused() -> None:
    with pytest.raises(tk.ConfigError, match=r"Histograms.every must be a whole number >= 1, got 0"):
        tk.callbacks.Histograms(every=0)
