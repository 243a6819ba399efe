"""What callbacks can do in a run: see episodes and environments, change what is learned from."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainkit as tk
from tests.trainer.toys import Walk, everything, make_onpolicy_trainer, make_trainer, of_watchers


def test_a_batch_that_a_callback_returns_is_learned_from() -> None:
    class Nothing(tk.Callback):
        def on_train_batch(self, trainer: tk.Trainer, batch: Any) -> Any:
            return dataclasses.replace(batch, weight=np.zeros_like(batch.weight))

    weighed, plain = make_trainer(callbacks=[Nothing()]), make_trainer()
    assert weighed.run().gradient_step == plain.run().gradient_step > 0
    assert weighed.history["update/grad_norm"] == [0.0, 0.0, 0.0]
    assert plain.history[-1]["update/grad_norm"] > 0


def test_several_see_a_batch_each_what_the_one_before_made_of_it() -> None:
    seen: list[float] = []

    class Double(tk.Callback):
        def on_train_batch(self, trainer: tk.Trainer, batch: Any) -> Any:
            seen.append(float(batch.weight[0]))
            return dataclasses.replace(batch, weight=batch.weight * 2)

    class Look(tk.Callback):
        def on_train_batch(self, trainer: tk.Trainer, batch: Any) -> None:
            seen.append(float(batch.weight[0]))

    next(make_trainer(callbacks=[Double(), Look(), Double()], step_per_epoch=6))
    assert seen
    for first, second, third in zip(seen[::3], seen[1::3], seen[2::3], strict=True):
        assert (second, third) == (first * 2, first * 2)


def test_a_rollout_can_be_changed_before_it_is_learned_from() -> None:
    lengths: list[int] = []

    class Look(tk.Callback):
        def on_train_batch(self, trainer: tk.Trainer, batch: Any) -> Any:
            lengths.append(len(batch))
            return dataclasses.replace(batch, reward=np.zeros_like(batch.reward))

    trainer = make_onpolicy_trainer(callbacks=[Look()], max_epoch=1)
    next(trainer)
    assert lengths == [12, 12]


def test_what_is_no_batch_is_refused_with_the_callbacks_name() -> None:
    class Wrong(tk.Callback):
        def on_train_batch(self, trainer: tk.Trainer, batch: Any) -> Any:
            return batch.reward

    with pytest.raises(tk.ConfigError, match=r"Wrong.on_train_batch must return a TransitionBatch or None, got array"):
        next(make_trainer(callbacks=[Wrong()]))


def test_an_exception_before_an_update_leaves_the_trainer_usable() -> None:
    class Once(tk.Callback):
        raised = False

        def on_train_batch(self, trainer: tk.Trainer, batch: Any) -> None:
            if not self.raised:
                self.raised = True
                raise ValueError("not this one")

    trainer = make_trainer(callbacks=[Once()], max_epoch=1)
    with pytest.raises(ValueError, match="not this one") as caught:
        next(trainer)
    assert caught.value.__notes__ == ["raised in Once.on_train_batch, epoch 1, step 4"]
    assert next(trainer).info.gradient_step == 11  # half of the steps from the second collect on


class Everything(tk.Callback):
    """Look at all there is to see of episodes."""

    def on_episode_step(self, trainer: tk.Trainer, episode: tk.collector.Episode) -> None:
        repr((episode, episode.obs, episode.action, episode.reward, episode.info, episode.slots, episode.truncated))

    def on_episode_end(self, trainer: tk.Trainer, episode: tk.collector.Episode) -> None:
        trainer.log("length", episode.length)


@pytest.mark.parametrize("make", [make_trainer, make_onpolicy_trainer])
def test_a_run_that_is_watched_is_bit_for_bit_the_one_that_is_not(make: Any) -> None:
    plain, watched = make(test=True), make(test=True, callbacks=[Everything()])
    plain.run()
    watched.run()
    own, theirs = everything(plain), everything(watched)
    assert {path: leaf for path, leaf in theirs.items() if not of_watchers(path)} == {
        path: leaf for path, leaf in own.items() if not of_watchers(path)
    }


def test_what_episodes_log_is_what_statistics_show() -> None:
    stats = next(make_trainer(callbacks=[Everything()], step_per_epoch=60)).stats
    assert stats["custom/length"] == pytest.approx(stats["train/lengths/mean"])


def test_an_exception_within_an_episode_keeps_every_row_and_it_continues() -> None:
    class Once(tk.Callback):
        raised = False

        def on_episode_step(self, trainer: tk.Trainer, episode: tk.collector.Episode) -> None:
            if not self.raised and episode.length == 3:
                self.raised = True
                raise ValueError("three")

    plain, trainer = make_trainer(), make_trainer(callbacks=[Once()])
    with pytest.raises(ValueError, match="three"):
        next(trainer)
    trainer.run()
    plain.run()
    own, theirs = everything(plain), everything(trainer)
    assert {path: leaf for path, leaf in own.items() if not of_watchers(path)} == {
        path: leaf for path, leaf in theirs.items() if not of_watchers(path)
    }


@pytest.mark.parametrize(
    ("episodes", "expected"), [("all", {False, True}), ("training", {False}), ("evaluation", {True})]
)
def test_a_callback_receives_the_episodes_it_requests(episodes: Any, expected: set[bool]) -> None:
    received: set[bool] = set()

    def on_episode_step(self: tk.Callback, trainer: tk.Trainer, episode: tk.collector.Episode) -> None:
        received.add(episode.in_evaluation)

    kind = type("Mine", (tk.Callback,), {"episodes": episodes, "on_episode_step": on_episode_step})
    trainer = make_trainer(test=True, callbacks=[kind()], max_epoch=1)
    next(trainer)
    assert received == expected
    assert trainer.train_collector is not None
    assert (trainer.train_collector.events is None) == (
        episodes == "evaluation"
    )  # a callback that receives nothing costs nothing


def test_episodes_without_an_agent_are_rejected() -> None:
    with pytest.raises(tk.ConfigError, match=r"Mine.episodes must be .*, got 'test'"):
        type("Mine", (tk.Callback,), {"episodes": "test"})


def test_an_evaluation_between_epochs_fires_no_event() -> None:
    received: list[bool] = []

    class Look(tk.Callback):
        def on_episode_end(self, trainer: tk.Trainer, episode: tk.collector.Episode) -> None:
            received.append(episode.in_evaluation)

    trainer = make_trainer(test=True, callbacks=[Look()], max_epoch=1)
    next(trainer)
    n_reported = len(received)
    assert received.count(True) == 3
    trainer.evaluate()
    assert len(received) == n_reported


def test_loading_a_checkpoint_fires_an_event(tmp_path: Path) -> None:
    class Receive(tk.Callback):
        delivered: tuple[Path, int] | None = None

        def on_checkpoint_loaded(self, trainer: tk.Trainer, path: Path) -> None:
            self.delivered = (path, trainer.env_step)

    trainer = make_trainer()
    next(trainer)
    trainer.save(tmp_path)
    receive = Receive()
    make_trainer(callbacks=[receive], resume_from=tmp_path)
    assert receive.delivered == (tmp_path, 24)


def test_every_environment_fires_created_and_can_be_called() -> None:
    class Receive(tk.Callback):
        def __init__(self) -> None:
            self.delivered: list[tuple[bool, int, Any]] = []

        def on_env_created(self, trainer: tk.Trainer, envs: tk.Envs, env_id: int) -> None:
            assert trainer.train_collector is not None
            (space,) = envs.call("action_space", env_ids=np.array([env_id]))
            self.delivered.append((envs is trainer.train_collector.envs, env_id, space))

    receive = Receive()
    make_trainer(test=True, callbacks=[receive], max_epoch=1).run()
    space = Walk.action_space
    assert receive.delivered == [(True, 0, space), (True, 1, space), (False, 0, space), (False, 1, space)]


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (
            {"reward": lambda batch: batch.reward[:3]},
            r"must return as many rows in every column, and at least one, got .*'reward': 3",
        ),
        ({"reward": lambda batch: batch.reward.astype(np.float64)}, r"must leave reward as float32\[4\], got float64"),
        ({"obs": lambda batch: batch.obs[:, :1]}, r"must leave obs as float32\[4, 2\], got float32\[4, 1\]"),
        ({"obs": lambda batch: {"obs": batch.obs}}, r"must leave the columns .*, got .*'obs obs'"),
    ],
    ids=["fewer", "longer", "narrower", "nested"],
)
def test_rows_of_another_shape_or_type_are_rejected_with_the_callbacks_name(made: Any, message: str) -> None:
    class Wrong(tk.Callback):
        def on_train_batch(self, trainer: tk.Trainer, batch: Any) -> Any:
            return dataclasses.replace(batch, **{name: make(batch) for name, make in made.items()})

    with pytest.raises(tk.ConfigError, match=r"Wrong.on_train_batch " + message):
        next(make_trainer(callbacks=[Wrong()]))


def rows_at(batch: tk.TransitionBatch, index: Any) -> tk.TransitionBatch:
    """Return some rows of a batch of plain observations."""
    names = ("obs", "action", "reward", "discount", "next_obs", "weight", "slots")
    return dataclasses.replace(batch, **{name: getattr(batch, name)[index] for name in names})


@pytest.mark.parametrize("how", [{}, {"refresh_priorities": "round", "updates_per_round": 3}], ids=["update", "round"])
def test_a_callback_may_return_a_batch_of_more_or_fewer_rows(how: dict[str, Any]) -> None:
    class Halved(tk.Callback):
        """Leave out half of the rows in one update, and repeat all of them in the next."""

        def on_train_batch(self, trainer: tk.Trainer, batch: Any) -> Any:
            odd = trainer.gradient_step % 2
            return rows_at(batch, np.tile(np.arange(4), 2) if odd else slice(0, 2))

    class Sizes(tk.DQNPolicy):
        def update(self, batch: tk.TransitionBatch, *, step: int) -> Any:
            sizes.append(len(batch))
            result = super().update(batch, step=step)
            assert len(result.read_priority()) == len(batch)  # type: ignore[arg-type]  # it has them
            return result

    sizes: list[int] = []
    envs = tk.make_envs(Walk, 2, seed=1)
    policy = Sizes.for_envs(envs, hidden=(8,), device="cpu")
    buffer = tk.PrioritizedReplayBuffer(60)
    trainer = tk.OffpolicyTrainer(
        policy,
        tk.Collector(policy, envs, buffer),
        max_epoch=1,
        step_per_epoch=24,
        batch_size=4,
        seed=1,
        verbose=False,
        show_progress=False,
        callbacks=[Halved()],
        **how,
    )
    trainer.run()

    assert sizes[:4] == [2, 8, 2, 8]
    assert len(set(np.round(buffer.priorities(), 6).tolist())) > 4  # they were written


def test_a_batch_without_rows_is_rejected() -> None:
    class Empty(tk.Callback):
        def on_train_batch(self, trainer: tk.Trainer, batch: Any) -> Any:
            return rows_at(batch, slice(0, 0))

    with pytest.raises(tk.ConfigError, match="at least one"):
        next(make_trainer(callbacks=[Empty()]))


def test_a_callback_may_have_another_base_whose_constructor_is_called() -> None:
    class Named:
        def __init__(self) -> None:
            self.name = "me"

    class Both(tk.Callback, Named):
        def __init__(self) -> None:
            super().__init__()

    assert Both().name == "me"
