"""Off-policy training: exact numbers of steps and updates, when learning starts, who acts before, one seed for all."""

import itertools
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import trainkit as tk
from tests.trainer.keyboard import Keyboard
from tests.trainer.toys import Clock, Log, Walk, epoch_steps, everything, leaves, make_policy, make_trainer, untimed
from trainkit.trainer.batches import PendingUpdates

# ---- steps ----


def test_what_an_epoch_goes_over_is_taken_off_the_next() -> None:
    trainer = make_trainer(n_envs=3, step_per_epoch=100, step_per_collect=30, update_per_step=0)
    assert epoch_steps(trainer) == [120, 90, 90]


def test_epochs_begin_to_count_where_the_warm_up_by_hand_ended() -> None:
    trainer = make_trainer(update_per_step=0)
    trainer.train_collector.collect(n_step=10, random=True)
    trainer.reset()
    assert [result.info.env_step for result in trainer] == [34, 58, 82]


def test_a_collect_longer_than_an_epoch_leaves_the_next_ones_empty() -> None:
    trainer = make_trainer(step_per_epoch=10, step_per_collect=22, update_per_step=0)
    results = list(trainer)
    assert [result.info.env_step for result in results] == [22, 22, 44]
    assert results[1].stats.train.is_empty


def test_without_step_per_collect_a_collect_is_one_vector_step() -> None:
    clock = Clock()
    make_trainer(n_envs=4, step_per_epoch=12, max_epoch=1, callbacks=[clock]).run()
    assert clock.collects == [4, 8, 12]


# ---- whole episodes ----


class Collects(tk.Callback):
    """Note the statistics of every collect."""

    def __init__(self) -> None:
        self.stats: list[tk.CollectStats] = []

    def on_collect_end(self, trainer: tk.Trainer, stats: tk.CollectStats) -> None:
        self.stats.append(stats)


@pytest.mark.parametrize("n_envs", [1, 2, 3])
def test_a_collect_may_be_whole_episodes_and_updates_follow_from_the_steps_made(n_envs: int) -> None:
    collects = Collects()
    trainer = make_trainer(
        n_envs=n_envs, episode_per_collect=2, update_per_step=0.3, batch_size=1, callbacks=[collects]
    )
    epochs = [result.info.env_step for result in trainer]
    n_steps = [stats.n_step for stats in collects.stats]
    assert [stats.n_episode for stats in collects.stats] == [2] * len(n_steps)
    assert len(set(n_steps)) > 1  # episodes differ in length
    assert [stats.lengths.mean * 2 for stats in collects.stats] == n_steps  # nothing but whole episodes
    assert trainer.gradient_step == sum(n_steps) * 3 // 10
    assert trainer.step_per_collect is None
    # An epoch ends with the collect that reaches its multiple of 24 steps; what it goes over is the next one's.
    ends = np.cumsum(n_steps)
    assert epochs == [int(ends[np.argmax(ends >= 24 * epoch)]) for epoch in (1, 2, 3)]
    assert trainer.env_step == ends[-1]


def test_a_run_of_whole_episodes_is_the_same_bits_again_and_after_a_break() -> None:
    options: dict[str, Any] = {"episode_per_collect": 3, "max_epoch": 4}
    whole, broken = make_trainer(**options), make_trainer(**options)
    whole.run()
    for _ in broken:
        break
    broken.run()
    assert everything(whole) == everything(broken)


def test_a_run_of_whole_episodes_resumes_to_the_same_bits(tmp_path: Any) -> None:
    options: dict[str, Any] = {"episode_per_collect": 2, "max_epoch": 3}
    whole, first = make_trainer(**options), make_trainer(**options)
    whole.run()
    next(first)
    first.save(tmp_path / "here")
    second = make_trainer(**options, resume_from=tmp_path / "here")
    second.run()
    assert everything(whole) == everything(second)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"step_per_collect": 4, "episode_per_collect": 2},
            "OffpolicyTrainer was given both step_per_collect and episode_per_collect: set one to None",
        ),
        ({"episode_per_collect": 0}, "OffpolicyTrainer.episode_per_collect must be a whole number >= 1, got 0"),
        ({"episode_per_collect": 2, "overlap": True}, "OffpolicyTrainer.overlap spreads updates .* step_per_collect"),
        (
            {"batch_size": None, "update_per_step": None, "training_intensity": 2.0},
            "OffpolicyTrainer cannot turn training_intensity into a number of rows per update",
        ),
        (
            {"batch_size": None, "refresh_priorities": "round", "updates_per_round": 4},
            "OffpolicyTrainer draws the batches of a round by a number of rows per update",
        ),
    ],
)
def test_collects_and_batches_that_contradict_each_other_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(tk.ConfigError, match=message):
        make_trainer(**options)


# ---- the whole buffer ----


def test_without_a_batch_size_every_update_learns_from_every_row_once() -> None:
    sizes: list[tuple[int, int]] = []

    class Seen(tk.Callback):
        def on_train_batch(self, trainer: tk.Trainer, batch: tk.TransitionBatch) -> None:
            sizes.append((trainer.env_step, len(np.unique(batch.slots))))
            assert len(batch) == len(batch.slots) == sizes[-1][1]
            np.testing.assert_array_equal(batch.weight, 1.0)

    trainer = make_trainer(batch_size=None, update_per_step=0.5, callbacks=[Seen()])
    results = list(trainer)
    assert [n_rows for _, n_rows in sizes] == [min(step, 60) for step, _ in sizes]  # the capacity is 60
    assert trainer.gradient_step == 36
    assert trainer.learning_starts == 1
    replayed = [sum(n for step, n in sizes if 24 * epoch < step <= 24 * (epoch + 1)) / 24 for epoch in range(3)]
    assert [stats["update/replay_ratio"] for _, stats, _ in results] == replayed


def test_without_a_batch_size_epochs_have_exactly_their_steps() -> None:
    trainer = make_trainer(n_envs=3, step_per_epoch=100, step_per_collect=30, update_per_step=0.01, batch_size=None)
    assert epoch_steps(trainer) == [120, 90, 90]


def test_a_run_without_a_batch_size_resumes_to_the_same_bits(tmp_path: Any) -> None:
    whole, first = make_trainer(batch_size=None), make_trainer(batch_size=None)
    whole.run()
    next(first)
    first.save(tmp_path / "here")
    second = make_trainer(batch_size=None, resume_from=tmp_path / "here")
    second.run()
    assert everything(whole) == everything(second)


# ---- the parts by position ----


def test_the_test_collector_may_be_given_by_position() -> None:
    envs = tk.make_envs(Walk, 2)
    learner = make_policy(envs)
    train = tk.Collector(learner, envs, tk.ReplayBuffer(60))
    test = tk.Collector(learner, tk.make_envs(Walk, 2))
    options: dict[str, Any] = {"max_epoch": 1, "verbose": False, "seed": 1, "batch_size": 4}
    trainer = tk.OffpolicyTrainer(learner, train, test, step_per_epoch=24, **options)
    assert trainer.test_collector is test
    assert next(trainer).stats.test.n_episode == 10
    offline = tk.OfflineTrainer(learner, train.buffer, test, update_per_epoch=2, **options)
    assert offline.test_collector is test
    with pytest.raises(tk.ConfigError, match="both test_collector and an evaluation with a collector"):
        tk.OffpolicyTrainer(learner, train, test, step_per_epoch=24, evaluation=tk.Evaluation(test), **options)
    other = tk.make_envs(Walk, 2)
    actor = tk.PPOPolicy.for_envs(other, hidden=(4,), seed=1)
    test = tk.Collector(actor, tk.make_envs(Walk, 2))
    rollouts = tk.Collector(actor, other, tk.RolloutBuffer())
    onpolicy = tk.OnpolicyTrainer(actor, rollouts, test, step_per_epoch=24, step_per_collect=12, **options)
    assert onpolicy.test_collector is test


# ---- updates ----


@pytest.mark.one_of_each
@pytest.mark.parametrize(("ratio", "expected"), [(0.3, 120), (0.7, 280), (1 / 3, 133), (0.0025, 1), (0, 0)])
@pytest.mark.parametrize("per_collect", [1, 7, 10])
def test_updates_per_step_are_exact_over_the_run(ratio: float, expected: int, per_collect: int) -> None:
    # 400 steps or, where those are no multiple of a collect, the first multiple after them
    steps = -(-400 // per_collect) * per_collect
    expected += int(ratio * steps) - int(ratio * 400)
    trainer = make_trainer(
        n_envs=1,
        policy={"hidden": (1,), "noisy": False},
        max_epoch=1,
        step_per_epoch=400,
        step_per_collect=per_collect,
        update_per_step=ratio,
        batch_size=1,
    )
    info = trainer.run()
    assert (info.env_step, info.gradient_step) == (steps, expected)


def test_the_remainder_is_carried_over_epochs() -> None:
    trainer = make_trainer(n_envs=1, step_per_epoch=5, max_epoch=4, update_per_step=0.3, batch_size=1)
    assert [result.info.gradient_step for result in trainer] == [1, 3, 4, 6]


@pytest.mark.parametrize(("former", "ratio", "n_updates"), [(1.0, 0.1, [2, 4, 7]), (0.1, 1.0, [24, 48, 72])])
def test_another_ratio_applies_to_the_steps_after_a_resume(
    former: float, ratio: float, n_updates: list[int], tmp_path: Path
) -> None:
    make_trainer(max_epoch=3, update_per_step=former, checkpoint=tmp_path).run()
    resumed = make_trainer(max_epoch=6, update_per_step=ratio, resume_from=tmp_path)
    before = resumed.gradient_step
    assert [info.gradient_step - before for _, _, info in resumed] == n_updates


def test_updates_that_are_pending_stay_so_under_another_ratio() -> None:
    saved, loaded = PendingUpdates(0.5), PendingUpdates(0.25)
    saved.n_steps, saved.n_updates = 11, 2
    loaded.load_state_dict(saved.state_dict())
    assert [loaded.count_after(n_steps) for n_steps in (0, 3, 4)] == [3, 3, 4]


def test_training_intensity_is_rows_replayed_per_row_collected() -> None:
    trainer = make_trainer(n_envs=1, step_per_epoch=103, max_epoch=1, update_per_step=None, training_intensity=2.4)
    info = trainer.run()
    assert info.gradient_step == 60  # the 100 steps from the 4th on, where a first batch is there: 240 rows, 60 batches


def test_without_updates_the_weights_stay_and_no_update_is_logged() -> None:
    trainer = make_trainer(update_per_step=0)
    before = {name: x for name, x in everything(trainer).items() if name.startswith("/policy/weights")}
    for result in trainer:
        assert dict(result.stats.update) == {}
        assert result.stats["update/loss"] is None
    assert before.items() <= everything(trainer).items()


@given(st.fractions(0, 4, max_denominator=50), st.lists(st.integers(1, 40), min_size=1, max_size=30))
def test_pending_updates_are_exact_for_any_sequence_of_steps(ratio: Any, chunks: list[int]) -> None:
    pending = PendingUpdates(ratio)
    n_updates = 0
    for steps in chunks:
        pending.n_steps += steps
        while pending.count >= 1:
            pending.n_updates += 1
            n_updates += 1
    assert n_updates == ratio * sum(chunks) // 1


# ---- when learning starts ----


def test_the_first_update_comes_when_learning_starts_is_reached_and_no_burst_follows() -> None:
    clock = Clock()
    make_trainer(n_envs=2, learning_starts=20, update_per_step=1, callbacks=[clock], max_epoch=1).run()
    assert clock.updates == [20, 20, 22, 22, 24, 24]


@pytest.mark.parametrize(("former", "learning_starts", "first"), [(30, 60, 60), (60, 30, 30), (10, 60, 26)])
def test_another_learning_starts_applies_after_a_resume_unless_updates_have_begun(
    former: int, learning_starts: int, first: int, tmp_path: Path
) -> None:
    make_trainer(max_epoch=1, learning_starts=former, update_per_step=1, checkpoint=tmp_path).run()
    clock = Clock()
    own = {"learning_starts": learning_starts, "update_per_step": 1, "callbacks": [clock]}
    make_trainer(max_epoch=3, resume_from=tmp_path, **own).run()
    assert clock.updates[0] == first


def test_learning_waits_for_one_batch_of_rows() -> None:
    clock = Clock()
    trainer = make_trainer(n_envs=2, batch_size=7, learning_starts=3, update_per_step=0.5, callbacks=[clock])
    trainer.run()
    assert clock.updates[0] == 8
    assert trainer.learning_starts == 7


@pytest.mark.parametrize("warmup", ["policy", "random"])
def test_until_learning_starts_the_warm_up_acts(warmup: str) -> None:
    requested = []

    class Requested(tk.Greedy):
        def choose(self, q: Any, legal: Any, *, step: int, **others: Any) -> NDArray[np.int64]:
            requested.append(step)
            return np.zeros(len(q), np.int64)

    trainer = make_trainer(policy={"exploration": Requested()}, learning_starts=16, warmup=warmup, max_epoch=1)
    trainer.run()
    first = 16 if warmup == "random" else 0
    assert requested == list(range(first, 24, 2))
    actions = trainer.buffer.get(trainer.buffer.slots()).action.reshape(2, 12)
    assert actions[:, :8].any() == (warmup == "random")


# ---- what an update does ----


def test_priorities_are_written_before_the_next_batch_is_drawn() -> None:
    events: list[Any] = []

    class Reported(tk.PrioritizedReplayBuffer):
        def sample(self, batch_size: int, **requested: Any) -> tk.TransitionBatch:
            batch = super().sample(batch_size, **requested)
            events.append(("sample", batch_size, requested["step"], requested["horizon"].n_step, batch.slots))
            return batch

        def update_priorities(self, slots: Any, priority: Any) -> None:
            events.append(("write", slots, priority))
            super().update_priorities(slots, priority)

    trainer = make_trainer(buffer=Reported(60), update_per_step=1, max_epoch=1)
    trainer.run()
    assert len(events) == 2 * trainer.policy.n_updates > 20
    for drawn, written in zip(events[::2], events[1::2], strict=True):
        assert (drawn[0], drawn[1], drawn[3], written[0]) == ("sample", 4, 2, "write")
        np.testing.assert_array_equal(drawn[4], written[1])
        assert written[2].shape == (4,)
    assert [drawn[2] for drawn in events[::2]][:4] == [4, 4, 6, 6]


def test_a_uniform_buffer_is_never_given_priorities(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(tk.ReplayBuffer, "update_priorities", refuse)
    assert make_trainer(buffer=tk.ReplayBuffer(60)).run().gradient_step > 0


# ---- the same seed ----


def test_the_same_seed_gives_the_same_bits() -> None:
    one, two = make_trainer(test=True, seed=7), make_trainer(test=True, seed=7)
    for first, second in zip(one, two, strict=True):
        assert untimed(first) == untimed(second)
    assert everything(one) == everything(two)


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize(
    "addition", ["evaluation", "exploring evaluation", "logger", "bar", "lines", "callbacks", "checkpoint"]
)
def test_training_is_the_same_to_the_bit_with_and_without(
    addition: str, tmp_path: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    with_it: dict[str, Any] = {
        "evaluation": {"test": True},
        "exploring evaluation": {
            "evaluation": lambda play: {"score": play(n_episode=3, explore=True).returns.mean},
        },
        "logger": {"logger": [tmp_path / "events", tk.JsonlLogger(tmp_path / "lines")]},
        "bar": {"show_progress": True},
        "lines": {"verbose": True},
        "callbacks": {"callbacks": [Log()]},
        "checkpoint": {"checkpoint": tmp_path / "checkpoint"},
    }[addition]
    bare, dressed = make_trainer(log_every=10), make_trainer(log_every=10, **with_it)
    for expected, result in zip(bare, dressed, strict=True):
        numbers = untimed(result)
        assert untimed(expected).items() <= numbers.items()
        assert all(tag.startswith(("test/", "custom/test/")) for tag in numbers.keys() - untimed(expected).keys())
    state = everything(dressed)
    same = {path: leaf for path, leaf in everything(bare).items() if not path.startswith("/trainer/evaluation")}
    assert same.items() <= state.items()
    dressed.close()


# ---- when batches are drawn and priorities written: after each update, one update late, or a round at a time ----


ROUND: dict[str, Any] = {"refresh_priorities": "round", "updates_per_round": 4}
LATE: dict[str, Any] = {"refresh_priorities": "late"}
ORDERS = pytest.mark.parametrize("order", [{}, LATE, ROUND], ids=["update", "late", "round"])


class Reported(tk.PrioritizedReplayBuffer):
    """Write down every draw and every write."""

    def __init__(self) -> None:
        super().__init__(60)
        self.events: list[Any] = []

    def sample(self, batch_size: int | None, **options: Any) -> tk.TransitionBatch:
        batch = super().sample(batch_size, **options)
        self.events.append(("draw", options["step"], [batch.slots.tolist()]))
        return batch

    def sample_round(self, n_batches: int, batch_size: int, **requested: Any) -> list[tk.TransitionBatch]:
        batches = super().sample_round(n_batches, batch_size, **requested)
        self.events.append(("draw", requested["step"], [batch.slots.tolist() for batch in batches]))
        return batches

    def update_priorities(self, slots: Any, priority: Any) -> None:
        assert np.isfinite(priority).all()
        self.events.append(("write", slots.tolist()))
        super().update_priorities(slots, priority)


def received(**options: Any) -> tuple[list[Any], tk.OffpolicyTrainer]:
    """Run an epoch and return its draws and writes."""
    buffer = Reported()
    trainer = make_trainer(buffer=buffer, max_epoch=1, **options)
    trainer.run()
    return buffer.events, trainer


def flat(batches: list[list[int]]) -> list[int]:
    return [slot for batch in batches for slot in batch]


# ---- the order ----


def test_a_round_is_saved_up_drawn_at_once_and_written_at_once() -> None:
    # pending from step 4 on, one update per 2 steps: the 4th at step 10, the 8th at 18, and 3 more at the end, 24
    events, trainer = received(**ROUND)
    draws, writes = events[::2], events[1::2]
    assert [(name, step, len(batches)) for name, step, batches in draws] == [
        ("draw", 10, 4),
        ("draw", 18, 4),
        ("draw", 24, 3),
    ]
    assert writes == [("write", flat(batches)) for _, _, batches in draws]
    assert trainer.policy.n_updates == 11


def test_late_priorities_are_written_when_the_next_batch_has_been_drawn() -> None:
    events, trainer = received(**LATE)
    draws = [event for event in events if event[0] == "draw"]
    expected = [draws[0]]
    for before, draw in itertools.pairwise(draws):
        expected += [draw, ("write", flat(before[2]))]
    assert events == expected
    assert len(draws) == trainer.policy.n_updates == 11


def test_more_updates_than_a_round_has_are_several_rounds() -> None:
    events, _ = received(**ROUND, update_per_step=3.5, step_per_collect=6)  # 21 pending at each of 6, 12, 18, 24
    assert [(step, len(batches)) for name, step, *batches in events if name == "draw" for batches in batches] == [
        *[(6, 4)] * 5,
        *[(12, 4)] * 5,
        *[(18, 4)] * 5,
        *[(24, 4)] * 6,
    ]


@pytest.mark.one_of_each
@pytest.mark.parametrize(
    ("kind", "order"),
    [(tk.ReplayBuffer, {}), (tk.ReplayBuffer, ROUND)]
    + [(tk.PrioritizedReplayBuffer, order) for order in ({}, LATE, ROUND)],
    ids=["uniform-update", "uniform-round", "prioritized-update", "prioritized-late", "prioritized-round"],
)
@pytest.mark.parametrize("ratio", [0.3, 0.5, 2.0])
def test_every_order_makes_the_same_number_of_updates_per_epoch(
    kind: type[tk.ReplayBuffer], order: dict[str, Any], ratio: float
) -> None:
    trainer = make_trainer(buffer=kind(60), n_envs=1, update_per_step=ratio, **order)
    n_steps = 3 * np.arange(8, 25, 8) - 3  # counted from the 4th on, which a batch needs
    assert [result.info.gradient_step for result in trainer] == [int(ratio * n + 1e-9) for n in n_steps]


# ---- slow references ----


def parts() -> tuple[tk.DQNPolicy, tk.Collector, tk.PrioritizedReplayBuffer]:
    """Return a policy, a collector and its buffer, all of one seed."""
    envs = tk.make_envs(Walk, 2, seed=1)
    policy, buffer = make_policy(envs, seed=2), tk.PrioritizedReplayBuffer(60, seed=3)
    return policy, tk.Collector(policy, envs, buffer), buffer


def slow_rounds(policy: tk.DQNPolicy, collector: tk.Collector, buffer: tk.PrioritizedReplayBuffer) -> None:
    """Train 24 steps with an update per 2 from the 4th on, in rounds of 4 and the rest at the end."""
    for pending_then in (10, 18, 24):
        while collector.env_step < pending_then:
            collector.collect(n_step=2)
        batches = buffer.sample_round(
            3 if pending_then == 24 else 4, 4, horizon=policy.horizon, step=collector.env_step
        )
        learned = [policy.update(batch.copy(), step=collector.env_step).read_priority() for batch in batches]
        for batch, priority in zip(batches, learned, strict=True):
            assert priority is not None
            buffer.update_priorities(batch.slots, priority)


def slow_late(policy: tk.DQNPolicy, collector: tk.Collector, buffer: tk.PrioritizedReplayBuffer) -> None:
    """Train 24 steps with an update per 2 from the 4th on, each draw before the last write."""
    unwritten: list[Any] = []
    while collector.env_step < 24:
        collector.collect(n_step=2)
        if collector.env_step >= 4:
            batch = buffer.sample(4, horizon=policy.horizon, step=collector.env_step)
            for slots, priority in unwritten:
                buffer.update_priorities(slots, priority)
            unwritten = [(batch.slots, policy.update(batch, step=collector.env_step).read_priority())]


@pytest.mark.parametrize(("order", "slow"), [(ROUND, slow_rounds), (LATE, slow_late)], ids=["round", "late"])
def test_a_run_is_the_same_to_the_bit_as_one_by_hand(order: dict[str, Any], slow: Any) -> None:
    policy, collector, buffer = parts()
    tk.OffpolicyTrainer(
        policy,
        collector,
        max_epoch=1,
        step_per_epoch=24,
        batch_size=4,
        update_per_step=0.5,
        verbose=False,
        show_progress=False,
        **order,
    ).run()
    reference = parts()
    slow(*reference)
    bits, expected = (
        {
            path: leaf
            for path, leaf in leaves([learner.training_state(), memory.state_dict()])
            if not path.startswith("/0/metrics/")  # metrics, which no one reads by hand
        }
        for learner, memory in ((policy, buffer), (reference[0], reference[2]))
    )
    assert bits == expected


# ---- stopping on the way ----


@pytest.mark.parametrize("order", [LATE, ROUND], ids=["late", "round"])
def test_ctrl_c_at_any_update_changes_nothing(order: dict[str, Any]) -> None:
    def run(moments: set[int]) -> tuple[Any, int]:
        keyboard, results, n_stops = Keyboard(moments), [], 0
        trainer = make_trainer(callbacks=[keyboard], max_epoch=2, step_per_collect=12, **order)
        while True:
            try:
                results.append(untimed(next(trainer)))
            except KeyboardInterrupt:
                keyboard.is_received = True
                n_stops += 1
            except StopIteration:
                return (results, everything(trainer)), n_stops

    undisturbed, _ = run(set())
    for moment in range(2, 30, 7):
        interrupted, n_stops = run({moment})
        assert n_stops == 1
        assert interrupted == undisturbed


class Dicts(gym.ObservationWrapper[Any, Any, Any]):
    """The walk, seen as a tree of arrays."""

    def __init__(self) -> None:
        super().__init__(Walk())
        space = Walk.observation_space
        self.observation_space = gym.spaces.Dict({"both": gym.spaces.Tuple((space, space)), "one": space})

    def observation(self, obs: Any) -> Any:
        return {"both": (obs, -obs), "one": obs}


class SaveAt(tk.Callback):
    """Save within an update, and take down policy and buffer when all updates of that time are done."""

    def __init__(self, update: int, path: Path | None) -> None:
        self.update, self.path = update, path
        self.at: Any = None

    def on_update_end(self, trainer: tk.Trainer) -> None:
        if self.path is not None and trainer.gradient_step == self.update:
            trainer.save(self.path)

    def on_epoch_end(self, trainer: tk.Trainer, result: Any) -> None:
        self.at = self.at or {
            path: leaf for path, leaf in everything(trainer).items() if path.startswith(("/policy/", "/buffer/"))
        }


@pytest.mark.one_of_each
@pytest.mark.parametrize("update", [1, 2, 3, 4, 5, 11, 12])
@ORDERS
def test_a_run_saved_within_a_round_finishes_it_to_the_same_bits(
    tmp_path: Path, order: dict[str, Any], update: int
) -> None:
    def trainer(callback: SaveAt, **options: Any) -> tk.OffpolicyTrainer:
        envs = tk.make_envs(Dicts, 2)
        policy = make_policy(envs)
        return tk.OffpolicyTrainer(
            policy,
            tk.Collector(policy, envs, tk.PrioritizedReplayBuffer(60)),
            max_epoch=1,
            step_per_epoch=24,
            step_per_collect=24,  # all 12 updates are pending at once, so that no collect follows
            batch_size=4,
            update_per_step=0.5,
            verbose=False,
            show_progress=False,
            seed=1,
            callbacks=[callback],
            **order,
            **options,
        )

    straight, resumed = SaveAt(update, tmp_path), SaveAt(update, None)
    trainer(straight).run()
    other = trainer(resumed, resume_from=tmp_path)
    assert other.gradient_step == update
    other.run()
    assert other.gradient_step == 12
    assert resumed.at == straight.at


# ---- what cannot be ----


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"refresh_priorities": "never"}, r"refresh_priorities must be one of .*'late'.*got 'never'"),
        ({"updates_per_round": 0}, r"\.updates_per_round must be a whole number >= 1, got 0"),
        ({"updates_per_round": 16}, r"goes with refresh_priorities='round' and with no other, got 16 and 'update'"),
        ({"refresh_priorities": "round"}, r"goes with refresh_priorities='round'.* got 1 and 'round'"),
        (LATE | {"updates_per_round": 2}, r"with no other, got 2 and 'late'"),
    ],
)
def test_an_order_that_is_none_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(tk.ConfigError, match=message):
        make_trainer(**options)


def test_rounds_need_a_buffer_that_samples_them() -> None:
    class Plain(tk.ReplayBuffer):
        """A buffer with all of the protocol but rounds."""

        sample_round = None  # type: ignore[assignment]  # as if it had none

        def sample(self, batch_size: int, **requested: Any) -> tk.TransitionBatch:
            return tk.ReplayBuffer.sample_round(self, 1, batch_size, **requested)[0]

    with pytest.raises(tk.ConfigError, match="needs a buffer with sample_round, Plain has none"):
        make_trainer(buffer=Plain(60), **ROUND)
    with pytest.raises(tk.ConfigError, match="refresh_priorities 'late' needs a prioritized buffer, Plain is not"):
        make_trainer(buffer=Plain(60), **LATE)
    assert make_trainer(buffer=Plain(60)).run().gradient_step > 0
