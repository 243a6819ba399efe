"""Callbacks: the order of events, what is refused, what is called with what, what a checkpoint keeps of them."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainkit as tk
from tests.trainer.toys import Log, everything, make_trainer, of_watchers, untimed
from trainkit.trainer.callbacks import base
from trainkit.trainer.callbacks.base import EVENTS, Dispatcher, Functions


def test_the_events_of_a_run_come_in_the_documented_order(tmp_path: Path) -> None:
    log = Log()
    trainer = make_trainer(
        test=True,
        callbacks=[log],
        checkpoint=tk.Checkpoint(tmp_path / "saved", keep_best=None),
        max_epoch=2,
        step_per_epoch=4,
        update_per_step=0.5,
        batch_size=1,
        compute_score_fn=lambda stats: -trainer.epoch,  # only the first is a best
    )
    trainer.run()
    epoch = """
        on_collect_start on_collect_end on_train_batch on_update_end
        on_collect_start on_collect_end on_train_batch on_update_end
        on_evaluate_start {best} on_evaluate_end
        on_epoch_end on_epoch_reported on_checkpoint_saved
    """
    start = ["on_train_start", *["on_env_created"] * 4]
    expected = [*start, *epoch.format(best="on_best").split(), *epoch.format(best="").split(), "on_train_end"]
    assert [event for event in log.events if not event.startswith("on_episode_")] == expected


def test_the_documented_order_is_that_of_each_events_first_call(tmp_path: Path) -> None:
    documented = [line.split()[0] for line in (base.__doc__ or "").splitlines() if line.startswith("    on_")]
    assert documented == EVENTS
    log = Log()
    make_trainer(callbacks=[log], test=True, checkpoint=tmp_path / "saved", max_epoch=1, step_per_collect=24).run()
    rare = ("on_episode_failed", "on_policy_added", "on_checkpoint_loaded")
    assert list(dict.fromkeys(log.events)) == [event for event in documented if event not in rare]


def test_events_bring_what_they_are_about(tmp_path: Path) -> None:
    log = Log()
    trainer = make_trainer(test=True, callbacks=[log], checkpoint=tmp_path / "saved", max_epoch=1)
    result = next(trainer)
    news = dict(zip(log.events, log.news, strict=True))
    (collected,), (tested,), (best,) = news["on_collect_end"], news["on_evaluate_end"], news["on_best"]
    assert collected.n_step == 2
    assert tested is best is result.stats.test
    assert news["on_epoch_end"][0].stats is news["on_epoch_reported"][0].stats is result.stats
    assert news["on_epoch_reported"][0] is result
    assert news["on_checkpoint_saved"] == (tmp_path / "saved" / "save-000001",)
    assert all(news[event] == () for event in ("on_train_start", "on_collect_start", "on_update_end", "on_train_end"))


def test_several_callbacks_receive_an_event_in_the_order_given() -> None:
    order = []

    class Named(tk.Callback):
        def __init__(self, name: str) -> None:
            self.name = name

        def on_epoch_end(self, trainer: tk.Trainer, result: Any) -> None:
            order.append(self.name)

        def on_epoch_reported(self, trainer: tk.Trainer, result: Any) -> None:
            order.append(f"{self.name} reported")

    saver = lambda *_: order.append("save_checkpoint_fn")  # noqa: E731 - as a user would write it
    make_trainer(callbacks=[Named("a"), Named("b")], save_checkpoint_fn=saver, max_epoch=1).run()
    assert order == ["a", "b", "save_checkpoint_fn", "a reported", "b reported"]


def test_functions_are_called_with_what_they_are_promised() -> None:
    calls: list[Any] = []

    def received(name: str) -> Any:
        return lambda *arguments: calls.append((name, *arguments))

    trainer = make_trainer(
        test=True,
        max_epoch=2,
        step_per_epoch=4,
        step_per_collect=4,
        batch_size=1,
        train_fn=received("train_fn"),
        test_fn=received("test_fn"),
        save_best_fn=received("save_best_fn"),
        save_checkpoint_fn=received("save_checkpoint_fn"),
        compute_score_fn=lambda stats: 0.0,
    )
    trainer.run()
    assert calls == [
        ("train_fn", 1, 0),
        ("test_fn", 1, 4),
        ("save_best_fn", trainer.policy),
        ("save_checkpoint_fn", 1, 4, 2),
        ("train_fn", 2, 4),
        ("test_fn", 2, 8),
        ("save_checkpoint_fn", 2, 8, 4),
    ]


def test_a_misspelt_event_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(tk.ConfigError) as caught:
        type("Mine", (tk.Callback,), {"on_epoch_ends": print})
    assert str(caught.value) == (
        "Mine.on_epoch_ends is no event of trainkit.Callback, did you mean 'on_epoch_end'? "
        "docs/migration.md leads to the names of other libraries"
    )


def test_methods_that_are_no_events_may_have_any_other_name() -> None:
    class Mine(tk.Callback):
        def once(self) -> None: ...

        def _look(self) -> None: ...

        only_once = True

    Mine()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("_on_step", ":"),  # Stable-Baselines3's
        ("_on_rollout_end", ":"),
        ("on_train_result", ":"),  # RLlib's
        ("on_sample_end", ":"),
        ("on_step", ":"),
        ("_on_epoch_end", ", did you mean 'on_epoch_end'?"),
        ("on_update_ends", ", did you mean 'on_update_end'?"),
    ],
)
def test_other_libraries_events_and_private_ones_are_refused_by_name(name: str, hint: str) -> None:
    with pytest.raises(tk.ConfigError) as caught:
        type("Mine", (tk.Callback,), {name: print})
    page = "docs/migration.md leads to the names of other libraries"
    assert str(caught.value) == f"Mine.{name} is no event of trainkit.Callback{hint} {page}"


# ---- classes and functions ----


def test_a_class_is_instantiated_without_arguments_one_callback_needs_no_list() -> None:
    class Own(Log):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    made: list[Own] = []
    for callbacks in ([Own, tk.callbacks.LogInfo("x")], Own, Own()):
        make_trainer(callbacks=callbacks, max_epoch=1).run()
    assert len(made) == 3
    assert all("on_epoch_end" in log.events for log in made)


def test_a_class_that_needs_arguments_and_what_is_no_callback_are_refused() -> None:
    with pytest.raises(tk.ConfigError, match=r"callbacks: SaveBest cannot be made without arguments \(.*folder"):
        make_trainer(callbacks=[tk.callbacks.SaveBest])
    with pytest.raises(tk.ConfigError, match="callbacks"):
        make_trainer(callbacks=[print])


def test_functions_by_event_are_called_after_the_callbacks_with_what_these_receive() -> None:
    calls: list[Any] = []
    log = Log()

    def on_end(trainer: tk.Trainer, result: tk.trainer.EpochResult) -> None:
        calls.append((trainer, result.epoch, list(log.events)[-1]))
        trainer.log("mine", result.epoch)

    trainer = make_trainer(callbacks=[log, tk.on(epoch_end=on_end, train_end=calls.append)], max_epoch=2)
    assert [result.stats["custom/mine"] for result in trainer] == [1, 2]
    assert calls == [(trainer, 1, "on_epoch_end"), (trainer, 2, "on_epoch_end"), trainer]


def test_a_function_may_return_another_batch() -> None:
    def halved(trainer: tk.Trainer, batch: Any) -> Any:
        return dataclasses.replace(batch, reward=batch.reward / 2)

    plain, other = make_trainer(max_epoch=1), make_trainer(max_epoch=1, callbacks=tk.on(train_batch=halved))
    assert next(plain)[1]["update/loss"] != next(other)[1]["update/loss"]


def test_presets_take_functions_by_event() -> None:
    epochs: list[int] = []
    own: dict[str, Any] = {
        "max_epoch": 1,
        "step_per_epoch": 20,
        "learning_starts": 10,
        "batch_size": 4,
        "verbose": False,
    }
    tk.presets.dqn(
        "CartPole-v1", callbacks=tk.on(epoch_end=lambda trainer, result: epochs.append(result.epoch)), **own
    ).run()
    assert epochs == [1]


def test_a_misspelt_function_is_refused_with_the_nearest_event() -> None:
    with pytest.raises(tk.ConfigError, match="on: unknown option 'epoch_ends', did you mean 'epoch_end'"):
        tk.on(epoch_ends=print)  # type: ignore[call-arg]
    with pytest.raises(tk.ConfigError, match="on: unknown option 'on_epoch_end', did you mean 'epoch_end'"):
        tk.on(on_epoch_end=print)  # type: ignore[call-arg]
    with pytest.raises(tk.ConfigError, match="on_best must be a function, got 3"):
        tk.on(best=3)  # type: ignore[arg-type]


def test_a_function_given_as_an_option_is_refused_with_the_callback_to_give() -> None:
    own: dict[str, Any] = {"on_epoch_end": print}
    remedy = r"unknown option 'on_epoch_end', did you mean callbacks=\[tk\.on\(epoch_end=\.\.\.\)\]\?"
    with pytest.raises(tk.ConfigError, match=f"OffpolicyTrainer: {remedy}"):
        make_trainer(**own)
    with pytest.raises(tk.ConfigError, match=rf"presets\.dqn: {remedy}"):
        tk.presets.dqn("CartPole-v1", **own)


def test_functions_may_be_given_for_every_event() -> None:
    assert [f"on_{event}" for event in Functions.__annotations__] == EVENTS


def test_functions_are_called_in_the_order_of_the_callbacks() -> None:
    called: list[str] = []

    class Mine(tk.Callback):
        def on_train_start(self, trainer: tk.Trainer) -> None:
            called.append("mine")

    first, last = (tk.on(train_start=lambda trainer, name=name: called.append(name)) for name in ("first", "last"))
    next(make_trainer(callbacks=[first, Mine(), last]))
    assert called == ["first", "mine", "last"]


def test_an_exception_of_a_function_names_it() -> None:
    def fails(trainer: tk.Trainer) -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError) as caught:
        next(make_trainer(callbacks=tk.on(train_start=fails)))
    assert caught.value.__notes__[0].startswith("raised in on_train_start=test_an_exception_of_a_function_names_it.")


# ---- exceptions ----


class Broken(tk.Callback):
    """Raise in every update, and refuse every batch."""

    def on_update_end(self, trainer: tk.Trainer) -> None:
        raise RuntimeError("mine")

    def on_train_batch(self, trainer: tk.Trainer, batch: Any) -> Any:
        return "no batch"


def test_logged_errors_leave_the_run_and_the_other_callbacks_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    log, plain = Log(), make_trainer()
    trainer = make_trainer(callbacks=[Broken(), log], callback_errors="log")
    for one, other in zip(plain, trainer, strict=True):
        assert untimed(one) == untimed(other)
    own, others = ({k: v for k, v in everything(t).items() if not of_watchers(k)} for t in (plain, trainer))
    assert own == others
    assert log.events.count("on_update_end") == trainer.gradient_step == 35
    ours = [record for record in caplog.records if "Broken.on_update_end" in record.message]
    assert ours[0].message == "Broken.on_update_end raised RuntimeError('mine') in epoch 1, step 4; the run continues"
    assert ours[0].exc_info is not None
    assert [record.message.split(", ")[-1] for record in ours[1:]] == [
        f"{n} times so far; the run continues" for n in (2, 4, 8, 16, 32)
    ]
    assert any("Broken.on_train_batch raised ConfigError" in record.message for record in caplog.records)


def test_errors_are_raised_unless_they_are_to_be_logged() -> None:
    with pytest.raises(RuntimeError, match="mine"):
        make_trainer(callbacks=[type("Fails", (tk.Callback,), {"on_update_end": Broken.on_update_end})]).run()
    with pytest.raises(tk.ConfigError, match="callback_errors must be"):
        make_trainer(callback_errors="ignore")


def test_ctrl_c_is_never_logged_away() -> None:
    def interrupted(trainer: tk.Trainer, result: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        next(make_trainer(callbacks=tk.on(epoch_end=interrupted), callback_errors="log"))


def test_a_checkpoint_that_cannot_be_written_is_an_error_even_where_errors_are_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise tk.errors.CheckpointError("no room")

    monkeypatch.setattr(tk.OffpolicyTrainer, "save", fails)
    with pytest.raises(tk.errors.CheckpointError, match="no room"):
        make_trainer(checkpoint=tmp_path / "saved", callback_errors="log").run()


def test_the_same_callback_twice_is_refused_two_of_a_kind_are_not() -> None:
    log = Log()
    with pytest.raises(tk.ConfigError, match="callback Log was given twice: give it once"):
        make_trainer(callbacks=[log, log])
    make_trainer(callbacks=[Log(), Log()])


def test_an_event_that_is_not_overridden_costs_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    class OnlyEpochs(tk.Callback):
        def on_epoch_end(self, trainer: tk.Trainer, result: Any) -> None:
            epochs.append(result.epoch)

    class Heir(OnlyEpochs):
        """Inherits its one event."""

    def refuse(self: tk.Callback, *news: Any) -> None:
        raise AssertionError

    epochs: list[int] = []
    trainer = make_trainer(callbacks=[OnlyEpochs(), Heir()])
    for event in EVENTS:
        monkeypatch.setattr(tk.Callback, event, refuse)
    trainer.run()
    assert epochs == [1, 1, 2, 2, 3, 3]


# ---- stop_fn ----


@pytest.mark.parametrize("answer", [None, 1, float("nan"), np.array([True, False]), "yes"])
def test_a_stop_fn_that_answers_no_bool_is_refused_by_name(answer: Any) -> None:
    trainer = make_trainer(test=True, stop_fn=lambda score: answer)
    with pytest.raises(tk.ConfigError, match=r"stop_fn must return a bool, got .* for the score -?\d") as caught:
        next(trainer)
    assert caught.value.__notes__ == ["raised in StopFn.on_evaluate_end, epoch 1, step 24"]


def test_a_stop_fn_may_answer_a_bool_of_numpy() -> None:
    trainer = make_trainer(test=True, stop_fn=lambda score: np.float64(score) > -99)
    assert trainer.run().stop_reason == "stop_fn"


# ---- their states ----


class Counter(tk.Callback):
    """Count epochs, over checkpoints."""

    def __init__(self, first: int = 0) -> None:
        self.n = first

    def on_epoch_end(self, trainer: tk.Trainer, result: Any) -> None:
        self.n += 1

    def state_dict(self) -> dict[str, Any]:
        return {"n": self.n}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.n = state["n"]


class OtherCounter(Counter):
    """The same, by another name."""


def test_states_are_loaded_by_callbacks_of_the_same_class_in_order() -> None:
    states = Dispatcher([Counter(1), Log(), Counter(2), OtherCounter(3)]).state_dict()
    one, two, three, other = Counter(), Counter(), Counter(), OtherCounter()
    Dispatcher([other, Log(), one, two, three]).load_state_dict(states)
    assert (one.n, two.n, three.n, other.n) == (1, 2, 0, 3)


def test_a_callback_continues_from_its_saved_state(tmp_path: Path) -> None:
    make_trainer(max_epoch=2, callbacks=[Counter()], checkpoint=tmp_path).run()
    counter = Counter()
    make_trainer(max_epoch=3, callbacks=[counter], resume_from=tmp_path).run()
    assert counter.n == 3


def test_loading_into_a_run_undoes_what_callbacks_came_to_know_since(tmp_path: Path) -> None:
    class Seen(tk.Callback):
        """Keep the epochs seen, none at first."""

        def __init__(self) -> None:
            self.epochs: list[int] = []

        def on_epoch_end(self, trainer: tk.Trainer, result: Any) -> None:
            self.epochs.append(result.epoch)

        def state_dict(self) -> dict[str, Any]:
            return {str(epoch): True for epoch in self.epochs}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.epochs = [int(epoch) for epoch in state]

    best, task, seen = (
        tk.callbacks.SaveBest(tmp_path / "best"),
        tk.callbacks.Curriculum(lambda trainer: {"level": trainer.epoch}),
        Seen(),
    )
    trainer = make_trainer(test=True, callbacks=[best, task, seen])
    trainer.save(tmp_path / "first")
    next(trainer)
    assert (best.score is None, task.task, seen.epochs, len(trainer.history)) == (False, {"level": 1}, [1], 1)
    trainer.load(tmp_path / "first")
    assert (best.score, task.task, seen.epochs, len(trainer.history)) == (None, None, [], 0)
    trainer.run()
    assert (task.task, seen.epochs, len(trainer.history)) == ({"level": 3}, [1, 2, 3], 3)


def test_a_callback_receives_only_the_events_it_overrides() -> None:
    class Now(tk.Callback):
        def __init__(self, of: str) -> None:
            self.of, self.delivered = of, set[str]()

        def receives(self, event: str) -> bool:
            return super().receives(event) and event.endswith(self.of)

        def on_collect_end(self, trainer: tk.Trainer, stats: tk.CollectStats) -> None:
            self.delivered.add("on_collect_end")

        def on_episode_step(self, trainer: tk.Trainer, episode: tk.collector.Episode) -> None:
            self.delivered.add("on_episode_step")

        def on_episode_end(self, trainer: tk.Trainer, episode: tk.collector.Episode) -> None:
            self.delivered.add("on_episode_end")

    ends, steps = Now("_end"), Now("_step")
    next(make_trainer(callbacks=[ends, steps]))
    assert ends.delivered == {"on_collect_end", "on_episode_end"}
    assert steps.delivered == {"on_episode_step"}


def test_a_method_that_is_replaced_on_the_way_is_the_one_that_receives() -> None:
    class Received(tk.Callback):
        n_received = 0

        def on_collect_end(self, trainer: tk.Trainer, stats: tk.CollectStats) -> None:
            self.n_received += 1

    own, others = Received(), []
    trainer = make_trainer(callbacks=[own])
    own.on_collect_end = lambda trainer, stats: others.append(stats)  # type: ignore[method-assign]
    next(trainer)
    assert others
    assert own.n_received == 0
