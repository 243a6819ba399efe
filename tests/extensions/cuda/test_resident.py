"""Whole runs from images that live on a device: every bit that a run without has, in any order, stopped anywhere."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import trainkit as tk
from tests.extensions.cuda.screens import ON_CPU, ORDERS, ROUND, Screen
from tests.trainer.keyboard import Keyboard
from tests.trainer.toys import everything, untimed
from trainkit.core.data import Lookup


def made(on_device: bool, *, buffer: Any = tk.PrioritizedReplayBuffer, policy: Any = None, **options: Any) -> Any:
    """Make a quiet trainer of two epochs of 24 steps, whose rings of 24 rows go round."""
    envs = tk.make_envs(Screen, 2, stack=3, **options.pop("env_options", {}))
    parts = {"hidden": (), "head": (8,), "double": True, "noisy": True, "n_step": 3} | ON_CPU | (policy or {})
    learner = tk.DQNPolicy.for_envs(envs, **parts)
    frames = tk.engine.DeviceFrames("cpu") if on_device else None
    own: dict[str, Any] = {"max_epoch": 2, "step_per_epoch": 24, "update_per_step": 0.5, "batch_size": 4, "seed": 1}
    own |= {"verbose": False, "show_progress": False}
    return tk.OffpolicyTrainer(learner, tk.Collector(learner, envs, buffer(24, frames=frames)), **own | options)


class Seen(tk.Callback):
    """Count the batches whose images are on the device."""

    def __init__(self) -> None:
        self.n_there = 0

    def on_train_batch(self, trainer: tk.Trainer, batch: Any) -> None:
        self.n_there += isinstance(batch.obs, Lookup) and isinstance(batch.next_obs, Lookup)


def results_of(trainer: Any) -> tuple[Any, Any]:
    with trainer:
        return [untimed(result) for result in trainer], everything(trainer)


@pytest.mark.one_of_each
@pytest.mark.parametrize("buffer", [tk.ReplayBuffer, tk.PrioritizedReplayBuffer])
@pytest.mark.parametrize("order", ORDERS)
def test_a_run_has_every_bit_of_one_without(order: dict[str, Any], buffer: Any) -> None:
    seen = Seen()
    if order.get("refresh_priorities") == "late":
        buffer = tk.PrioritizedReplayBuffer  # others have no priorities to be late
    trainer = made(True, buffer=buffer, callbacks=[seen], **order)
    there, plain = results_of(trainer), results_of(made(False, buffer=buffer, callbacks=[Seen()], **order))
    assert there == plain
    assert seen.n_there == trainer.policy.n_updates > 15


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("order", ORDERS)
def test_ctrl_c_at_any_update_changes_nothing(order: dict[str, Any]) -> None:
    def run(moments: set[int]) -> Any:
        keyboard, n_stops = Keyboard(moments), 0
        trainer = made(True, callbacks=[keyboard], **order)
        while True:
            try:
                next(trainer)
            except KeyboardInterrupt:
                keyboard.is_received = True
                n_stops += 1
            except StopIteration:
                assert n_stops == len(moments)
                return everything(trainer)

    undisturbed = run(set())
    for moment in (3, 14):
        assert run({moment}) == undisturbed


class SaveAt(tk.Callback):
    """Save within an update, and take down all there is when all updates of that time are done."""

    def __init__(self, update: int, path: Path | None) -> None:
        self.update, self.path, self.at = update, path, {}

    def on_update_end(self, trainer: tk.Trainer) -> None:
        if self.path is not None and trainer.gradient_step == self.update:
            trainer.save(self.path)

    def on_epoch_end(self, trainer: tk.Trainer, result: Any) -> None:
        self.at = {
            path: leaf for path, leaf in everything(trainer).items() if path.startswith(("/policy/", "/buffer/"))
        }


@pytest.mark.parametrize("continues_there", [True, False])
@pytest.mark.parametrize("order", [{}, {"refresh_priorities": "late"}, ROUND], ids=["update", "late", "round"])
def test_a_run_saved_within_a_round_continues_to_the_same_bits(
    tmp_path: Path, order: dict[str, Any], continues_there: bool
) -> None:
    whole = {
        "step_per_collect": 24,
        "max_epoch": 1,
    } | order  # all updates are pending at once, so that no collect follows
    straight, resumed = SaveAt(6, tmp_path), SaveAt(6, None)
    made(True, callbacks=[straight], **whole).run()
    other = made(continues_there, callbacks=[resumed], resume_from=tmp_path, **whole)
    assert other.gradient_step == 6
    other.run()
    assert other.gradient_step == 12
    assert resumed.at == straight.at


def test_epochs_are_resumed_to_the_same_bits(tmp_path: Path) -> None:
    straight = made(True, max_epoch=3)
    straight.run()
    first = made(True, max_epoch=3)
    next(first), next(first)
    first.save(tmp_path)
    again = made(True, max_epoch=3, resume_from=tmp_path)
    again.run()
    assert everything(again) == everything(straight)


def test_an_offline_run_has_every_bit_of_one_without() -> None:
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {"obs": rng.integers(0, 255, (60, 36, 36), np.uint8), "reward": rng.normal(size=60)}
    columns |= {"action": rng.integers(2, size=60), "terminated": np.arange(60) % 6 == 5}

    def run(frames: Any) -> Any:
        envs = tk.make_envs(Screen, 1, stack=2)
        policy = tk.DQNPolicy.for_envs(envs, head=(8,), penalty=tk.ConservativePenalty(0.5), **ON_CPU)
        buffer = tk.ReplayBuffer.from_arrays(**columns, stack=2, frames=frames)
        how: dict[str, Any] = {"max_epoch": 2, "update_per_epoch": 4, "batch_size": 4, "seed": 1, "verbose": False}
        return results_of(tk.OfflineTrainer(policy, buffer, **how, show_progress=False))

    assert run(tk.engine.DeviceFrames("cpu")) == run(None)


# ---- callbacks ----


def test_a_callback_may_learn_from_other_images() -> None:
    class Darker(tk.Callback):
        """Halve all brightness."""

        def on_train_batch(self, trainer: tk.Trainer, batch: Any) -> Any:
            copied = batch.copy()
            copied.obs[:] //= 2
            return copied

    there, plain = (results_of(made(on_device, callbacks=[Darker()])) for on_device in (True, False))
    assert there == plain


def test_a_callback_that_changes_the_shape_of_images_is_refused() -> None:
    class Cropped(tk.Callback):
        """Take the edges off."""

        def on_train_batch(self, trainer: tk.Trainer, batch: Any) -> Any:
            copied = batch.copy()
            return tk.TransitionBatch(
                obs=copied.obs[..., 1:-1],
                action=copied.action,
                reward=copied.reward,
                discount=copied.discount,
                next_obs=copied.next_obs,
                weight=copied.weight,
                slots=copied.slots,
            )

    with pytest.raises(tk.ConfigError, match=r"must leave obs as uint8\[4, 3, 36, 36\], got uint8\[4, 3, 36, 34\]"):
        made(True, callbacks=[Cropped()]).run()


# ---- what cannot be ----


def test_a_policy_on_another_device_is_refused_at_construction() -> None:
    envs = tk.make_envs(Screen, 1)
    policy = tk.DQNPolicy.for_envs(envs, **ON_CPU)
    frames = tk.engine.DeviceFrames("cpu")
    collector = tk.Collector(policy, envs, tk.ReplayBuffer(20, frames=frames))
    frames.device = torch.device("meta")
    with pytest.raises(
        tk.ConfigError, match=r"ReplayBuffer\.frames are on meta, DQNPolicy is on cpu: give both the sa"
    ):
        tk.OffpolicyTrainer(policy, collector, max_epoch=1, step_per_epoch=10, batch_size=4)
