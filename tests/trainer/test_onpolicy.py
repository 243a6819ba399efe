"""On-policy training: exact epochs, every row learned from while it is the policy's own, and goings-on to the bit."""

from pathlib import Path
from typing import Any

import pytest

import trainkit as tk
from tests.trainer.keyboard import Keyboard
from tests.trainer.toys import Clock, Log, Walk, epoch_steps, everything, make_onpolicy_trainer, make_trainer, untimed

# ---- steps ----


def test_what_an_epoch_goes_over_is_taken_off_the_next() -> None:
    assert epoch_steps(make_onpolicy_trainer(n_envs=3, step_per_epoch=100, step_per_collect=30)) == [120, 90, 90]


def test_a_rollout_of_fewer_steps_than_environments_is_made_up_for_later() -> None:
    clock = Clock()
    trainer = make_onpolicy_trainer(n_envs=4, step_per_epoch=12, step_per_collect=1, max_epoch=2, callbacks=[clock])
    assert epoch_steps(trainer) == [12, 12]
    assert trainer.gradient_step > 0


def test_an_epoch_of_fewer_steps_than_a_rollout_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    trainer = make_onpolicy_trainer(n_envs=2, step_per_epoch=20, step_per_collect=30, max_epoch=3)
    message = (
        "OnpolicyTrainer: some epochs collect nothing: a rollout has 30 steps, and an epoch 20: raise step_per_epoch"
    )
    assert message in caplog.text
    assert epoch_steps(trainer) == [30, 30, 0]
    caplog.clear()
    trainer = make_onpolicy_trainer(n_envs=2, step_per_epoch=20, step_per_collect=30, max_epoch=2)
    assert "OnpolicyTrainer: the run has about 60 steps instead of 40: a rollout has 30 steps" in caplog.text
    assert epoch_steps(trainer) == [30, 30]
    caplog.clear()
    make_onpolicy_trainer(n_envs=2, step_per_epoch=30, step_per_collect=30)
    assert not caplog.text


def test_a_rollout_has_the_requested_number_of_episodes() -> None:
    class Episodes(tk.Callback):
        def __init__(self) -> None:
            self.counts: list[tuple[int, int]] = []

        def on_collect_end(self, trainer: tk.Trainer, stats: tk.CollectStats) -> None:
            self.counts.append((stats.n_episode, len(trainer.buffer) - stats.n_step))

    episodes = Episodes()
    make_onpolicy_trainer(episode_per_collect=5, callbacks=[episodes], max_epoch=1).run()
    assert set(episodes.counts) == {(5, 0)}


# ---- updates ----


@pytest.mark.parametrize(
    ("batch_size", "repeat", "per_rollout"), [(None, 1, 1), (None, 4, 4), (4, 1, 3), (4, 2, 6), (5, 1, 2), (99, 3, 3)]
)
def test_every_rollout_is_learned_from_in_batches_as_often_as_given(
    batch_size: int | None, repeat: int, per_rollout: int
) -> None:
    clock = Clock()
    trainer = make_onpolicy_trainer(batch_size=batch_size, repeat_per_collect=repeat, callbacks=[clock])
    assert [result.info.gradient_step for result in trainer] == [2 * per_rollout, 4 * per_rollout, 6 * per_rollout]
    assert clock.collects == [12, 24, 36, 48, 60, 72]
    assert clock.updates == [step for step in clock.collects for _ in range(per_rollout)]


def test_the_buffer_is_full_while_learning_and_empty_after_each_rollout() -> None:
    class Sizes(tk.Callback):
        def __init__(self) -> None:
            self.seen: list[tuple[str, int]] = []

        def on_collect_start(self, trainer: tk.Trainer) -> None:
            self.seen.append(("collect", len(trainer.buffer)))

        def on_update_end(self, trainer: tk.Trainer) -> None:
            self.seen.append(("update", len(trainer.buffer)))

    sizes = Sizes()
    trainer = make_onpolicy_trainer(callbacks=[sizes])
    trainer.run()
    assert set(sizes.seen) == {("collect", 0), ("update", 12)}
    assert len(trainer.buffer) == 0


def test_a_rollout_is_of_the_policy_that_learns_from_it() -> None:
    trainer = make_onpolicy_trainer(batch_size=None, policy={"lr": 0.1})
    for result in trainer:  # one update per rollout: its divergence from the policy that collected it is none
        assert result.stats["update/approx_kl"] == pytest.approx(0, abs=1e-6)


def test_target_kl_leaves_out_the_rest_of_a_rollout_only() -> None:
    trainer = make_onpolicy_trainer(policy={"target_kl": 1e-9, "lr": 0.1}, batch_size=None, repeat_per_collect=50)
    trainer.run()
    assert trainer.env_step == 72
    assert 6 < trainer.gradient_step < 6 * 50


# ---- hooks and statistics ----


def test_hooks_come_in_order() -> None:
    log = Log()
    make_onpolicy_trainer(test=True, max_epoch=1, callbacks=[log]).run()
    rollout = ["on_collect_start", "on_collect_end", *["on_update_end"] * 3]
    names = ["on_train_start", *rollout[:2], "on_update_end", "on_evaluate_start", "on_epoch_end", "on_train_end"]
    delivered = log.names(*names)
    assert delivered == ["on_train_start", *rollout, *rollout, "on_evaluate_start", "on_epoch_end", "on_train_end"]


def test_statistics_have_the_learners_numbers() -> None:
    stats = make_onpolicy_trainer(test=True, max_epoch=1).__next__().stats
    shown = "loss policy_loss value_loss entropy approx_kl clip_share value_mean grad_norm lr"
    shown += " smoothed_loss smoothed_policy_loss smoothed_value_loss"
    assert set(stats.update) == set(shown.split())
    assert dict(stats.buffer) == {}
    assert stats["train/n_step"] == 24
    assert stats["test/returns/count"] == 3
    assert stats["update/lr"] == pytest.approx((0.01 - 0.009 * 0.12 + 0.01 - 0.009 * 0.24) / 2)


def test_the_settings_are_logged() -> None:
    received = make_onpolicy_trainer(repeat_per_collect=2).settings()
    expected = {"trainer": "OnpolicyTrainer", "policy": "PPOPolicy", "buffer": "RolloutBuffer", "batch_size": 4}
    expected |= {"step_per_collect": 12, "episode_per_collect": None, "repeat_per_collect": 2}
    assert expected.items() <= received.items()


# ---- continuing ----


def test_break_and_a_second_for_continue() -> None:
    straight, broken = make_onpolicy_trainer(), make_onpolicy_trainer()
    expected = [untimed(result) for result in straight]
    results = []
    for result in broken:
        results.append(untimed(result))
        break
    results += [untimed(result) for result in broken]
    assert results == expected
    assert everything(broken) == everything(straight)


def run(keyboard: Keyboard, **options: Any) -> tuple[list[dict[str, float]], dict[str, Any], list[str], int]:
    """Run a trainer through all Ctrl-Cs; return its epochs' numbers, its bits, its events, and how often it stopped."""
    log = Log()
    trainer = make_onpolicy_trainer(
        test=True,
        on_step=lambda: keyboard.tick("step"),
        on_test_step=lambda: keyboard.tick("test step"),
        callbacks=[log, keyboard],
        max_epoch=2,
        step_per_epoch=10,
        episode_per_test=2,
        repeat_per_collect=2,
        **options,
    )
    results, n_stops = [], 0
    while True:
        try:
            results.append(untimed(next(trainer)))
        except KeyboardInterrupt:
            keyboard.is_received = True
            n_stops += 1
        except StopIteration:
            return results, everything(trainer), log.events, n_stops


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "per_collect", [{"step_per_collect": 6}, {"episode_per_collect": 2}], ids=["steps", "episodes"]
)
def test_ctrl_c_at_any_moment_changes_nothing(per_collect: dict[str, int], every: int) -> None:
    undisturbed = Keyboard()
    expected = run(undisturbed, **per_collect)
    places = set()
    last = {place: moment for moment, place in enumerate(undisturbed.places, 1)}
    for moment in sorted({*range(1, undisturbed.n + 1, every), *last.values()}):
        keyboard = Keyboard({moment})
        *interrupted, n_stops = run(keyboard, **per_collect)
        places.update(keyboard.pressed_in)
        assert interrupted == list(expected[:3]), f"moment {moment}, {keyboard.pressed_in}"
        assert n_stops == 1, f"moment {moment}, {keyboard.pressed_in}"
    assert places >= {"step", "collect start", "collect end", "update", "test step", "epoch end"}


def test_a_callbacks_exception_within_an_update_continues_to_the_same_bits() -> None:
    class Fails(tk.Callback):
        n = 0

        def on_update_end(self, trainer: tk.Trainer) -> None:
            self.n += 1
            if self.n == 2:
                raise OSError("mine")

    straight, failing = make_onpolicy_trainer(), make_onpolicy_trainer(callbacks=[Fails()])
    with pytest.raises(OSError, match="mine"):
        next(failing)
    straight.run()
    failing.run()
    assert everything(failing) == everything(straight)


class FailsAtSecondBatch(tk.Callback):
    n = 0

    def on_train_batch(self, trainer: tk.Trainer, batch: Any) -> None:
        self.n += 1
        if self.n == 2:
            raise OSError("mine")


def test_an_exception_of_a_callback_before_a_rollout_is_learned_from_loses_no_row() -> None:
    straight, failing = make_onpolicy_trainer(), make_onpolicy_trainer(callbacks=[FailsAtSecondBatch()])
    with pytest.raises(OSError, match="mine"):
        next(failing)
    straight.run()
    failing.run()
    assert everything(failing) == everything(straight)


def test_a_run_saved_after_an_exception_before_learning_has_the_rollout(tmp_path: Path) -> None:
    failing = make_onpolicy_trainer(callbacks=[FailsAtSecondBatch()])
    with pytest.raises(OSError, match="mine"):
        next(failing)
    resumed, straight = make_onpolicy_trainer(resume_from=failing.save(tmp_path / "saved")), make_onpolicy_trainer()
    resumed.run()
    straight.run()
    assert everything(resumed) == everything(straight)


def test_a_rollout_is_learned_from_again_when_an_update_raised() -> None:
    class Fails(tk.PPOPolicy):
        n = 0

        def loss_inputs(self, n_rows: int, *, step: int) -> dict[str, Any]:
            self.n += 1
            if self.n == 5:
                raise MemoryError("full")
            return super().loss_inputs(n_rows, step=step)

    trainer = make_onpolicy_trainer(kind=Fails)
    with pytest.raises(MemoryError, match="full"):
        next(trainer)
    assert trainer.gradient_step == 4
    trainer.run()
    assert (trainer.env_step, trainer.gradient_step) == (72, 18 + 1)  # the first batch of the second rollout, twice


@pytest.mark.parametrize("per_collect", [{}, {"episode_per_collect": 3}], ids=["steps", "episodes"])
def test_a_checkpoint_takes_counters_weights_and_generators_along(tmp_path: Path, per_collect: dict[str, int]) -> None:
    first = make_onpolicy_trainer(test=True, **per_collect)
    next(first)
    resumed = make_onpolicy_trainer(test=True, seed=9, resume_from=first.save(tmp_path / "saved"), **per_collect)
    assert everything(resumed) == everything(first)
    assert resumed.epoch == 1
    assert [untimed(result) for result in resumed] == [untimed(result) for result in first]
    assert everything(resumed) == everything(first)


@pytest.mark.parametrize("per_collect", [{}, {"episode_per_collect": 3}], ids=["steps", "episodes"])
def test_a_run_saved_within_a_rollout_continues_in_another_trainer(tmp_path: Path, per_collect: dict[str, int]) -> None:
    keyboard = Keyboard({5})
    first = make_onpolicy_trainer(on_step=lambda: keyboard.tick("step"), **per_collect)
    with pytest.raises(KeyboardInterrupt):
        next(first)
    assert 0 < len(first.buffer) < 12
    resumed = make_onpolicy_trainer(resume_from=first.save(tmp_path / "saved"), **per_collect)
    assert len(resumed.buffer) == len(first.buffer)
    straight = make_onpolicy_trainer(**per_collect)
    assert [result.epoch for result in resumed] == [result.epoch for result in straight]
    assert everything(resumed) == everything(straight)


def test_what_is_left_of_a_rollout_is_forgotten_when_another_run_is_loaded(tmp_path: Path) -> None:
    class Fails(tk.Callback):
        is_done = False

        def on_update_end(self, trainer: tk.Trainer) -> None:
            if not self.is_done:
                self.is_done = True
                raise OSError("mine")

    trainer = make_onpolicy_trainer(callbacks=[Fails()])
    saved = trainer.save(tmp_path / "saved")
    with pytest.raises(OSError, match="mine"):
        next(trainer)
    trainer.load(saved)
    assert next(trainer).info.gradient_step == 6
    assert len(trainer.buffer) == 0


# ---- determinism ----


def test_a_seed_repeats_a_run_and_another_does_not() -> None:
    one, same, other = (make_onpolicy_trainer(seed=seed) for seed in (1, 1, 2))
    for trainer in (one, same, other):
        trainer.run()
    assert everything(one) == everything(same)
    weight = "/policy/weights/network.actor.layers.0.weight"
    assert everything(one)[weight] != everything(other)[weight]


def test_logging_and_evaluation_change_no_bit_of_training(tmp_path: Path) -> None:
    plain = make_onpolicy_trainer()
    received = make_onpolicy_trainer(test=True, logger=tk.JsonlLogger(tmp_path / "run"), log_every=1)
    plain.run()
    with received:
        received.run()
    own = {path: leaf for path, leaf in everything(plain).items() if path.startswith(("/policy", "/collector"))}
    assert own.items() <= everything(received).items()


# ---- refusals ----


def refused(policy: Any, collector: Any, **options: Any) -> str:
    own = {"max_epoch": 1, "step_per_epoch": 1, "step_per_collect": 1}
    with pytest.raises(tk.ConfigError) as caught:
        tk.OnpolicyTrainer(policy, collector, **own | options)
    return str(caught.value)


def test_parts_of_the_other_kind_are_refused_by_name() -> None:
    on, off = make_onpolicy_trainer(), make_trainer()
    assert "train_collector must have a RolloutBuffer, got PrioritizedReplayBuffer" in refused(
        off.policy, off.train_collector
    )
    untrained = tk.Collector(on.policy, tk.make_envs(Walk, 2))
    assert "train_collector must have a RolloutBuffer, got None" in refused(on.policy, untrained)
    assert "train_collector must be a StepCollector, got Envs, which has no buffer, collect" in refused(
        on.policy, untrained.envs
    )
    wrong = tk.Collector(off.policy, tk.make_envs(Walk, 2), tk.RolloutBuffer())
    assert "OnpolicyTrainer.policy must learn, but DQNPolicy has no learn" in refused(off.policy, wrong)
    quota = {"max_epoch": 1, "step_per_epoch": 1, "batch_size": 1}
    with pytest.raises(tk.ConfigError, match="OffpolicyTrainer draws from a replay buffer, got RolloutBuffer"):
        tk.OffpolicyTrainer(on.policy, on.train_collector, **quota)
    wrong = tk.Collector(on.policy, tk.make_envs(Walk, 2), tk.ReplayBuffer(10))
    with pytest.raises(tk.ConfigError, match=r"OffpolicyTrainer.policy must learn, but PPOPolicy has no update"):
        tk.OffpolicyTrainer(on.policy, wrong, **quota)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step_per_collect": None}, "needs exactly one of step_per_collect and episode_per_collect"),
        ({"episode_per_collect": 2}, "needs exactly one of step_per_collect and episode_per_collect"),
        ({"step_per_collect": 0}, ".step_per_collect must be a whole number >= 1, got 0"),
        ({"batch_size": 0}, ".batch_size must be a whole number >= 1, got 0"),
        ({"repeat_per_collect": 0}, ".repeat_per_collect must be a whole number >= 1, got 0"),
        ({"max_epoch": -1}, ".max_epoch must be a whole number >= 0, got -1"),
        ({"update_per_step": 1}, "update_per_step"),
    ],
)
def test_wrong_numbers_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    trainer = make_onpolicy_trainer()
    assert message in refused(trainer.policy, trainer.train_collector, **options)


def test_all_wrong_numbers_are_reported_together() -> None:
    trainer = make_onpolicy_trainer()
    received = refused(trainer.policy, trainer.train_collector, batch_size=0, repeat_per_collect=0, log_every=0)
    assert all(name in received for name in ("batch_size", "repeat_per_collect", "log_every"))
