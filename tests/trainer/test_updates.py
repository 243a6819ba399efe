"""When batches are drawn and priorities written: after each update, one update late, or a round at a time."""

import itertools
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import trainkit as tk
from tests.trainer.test_interrupt import Keyboard
from tests.trainer.toys import Walk, everything, leaves, make_policy, make_trainer, untimed

ROUND: dict[str, Any] = {"refresh_priorities": "round", "updates_per_round": 4}
LATE: dict[str, Any] = {"refresh_priorities": "late"}
ORDERS = pytest.mark.parametrize("order", [{}, LATE, ROUND], ids=["update", "late", "round"])


class Told(tk.PrioritizedReplayBuffer):
    """Write down every draw and every write."""

    def __init__(self) -> None:
        super().__init__(60)
        self.events: list[Any] = []

    def sample_round(self, n_batches: int, batch_size: int, **asked: Any) -> list[tk.TransitionBatch]:
        batches = super().sample_round(n_batches, batch_size, **asked)
        self.events.append(("draw", asked["step"], [batch.slots.tolist() for batch in batches]))
        return batches

    def update_priorities(self, slots: Any, priority: Any) -> None:
        assert np.isfinite(priority).all()
        self.events.append(("write", slots.tolist()))
        super().update_priorities(slots, priority)


def told(**options: Any) -> tuple[list[Any], tk.OffpolicyTrainer]:
    """Run an epoch and return its draws and writes."""
    buffer = Told()
    trainer = make_trainer(buffer=buffer, max_epoch=1, **options)
    trainer.run()
    return buffer.events, trainer


def flat(batches: list[list[int]]) -> list[int]:
    return [slot for batch in batches for slot in batch]


# ---- the order ----


def test_a_round_is_saved_up_drawn_at_once_and_written_at_once() -> None:
    # owed from step 4 on, one update per 2 steps: the 4th at step 10, the 8th at 18, and 3 more at the end, 24
    events, trainer = told(**ROUND)
    draws, writes = events[::2], events[1::2]
    assert [(name, step, len(batches)) for name, step, batches in draws] == [
        ("draw", 10, 4),
        ("draw", 18, 4),
        ("draw", 24, 3),
    ]
    assert writes == [("write", flat(batches)) for _, _, batches in draws]
    assert trainer.policy.n_updates == 11


def test_late_priorities_are_written_when_the_next_batch_has_been_drawn() -> None:
    events, trainer = told(**LATE)
    draws = [event for event in events if event[0] == "draw"]
    expected = [draws[0]]
    for before, draw in itertools.pairwise(draws):
        expected += [draw, ("write", flat(before[2]))]
    assert events == expected
    assert len(draws) == trainer.policy.n_updates == 11


def test_more_updates_than_a_round_has_are_several_rounds() -> None:
    events, _ = told(**ROUND, update_per_step=3.5, step_per_collect=6)  # 21 owed at each of 6, 12, 18, 24
    assert [(step, len(batches)) for name, step, *batches in events if name == "draw" for batches in batches] == [
        *[(6, 4)] * 5,
        *[(12, 4)] * 5,
        *[(18, 4)] * 5,
        *[(24, 4)] * 6,
    ]


@ORDERS
@pytest.mark.parametrize("kind", [tk.ReplayBuffer, tk.PrioritizedReplayBuffer])
@pytest.mark.parametrize("ratio", [0.3, 0.5, 2.0])
def test_every_order_makes_the_same_number_of_updates_per_epoch(
    order: dict[str, Any], kind: type[tk.ReplayBuffer], ratio: float
) -> None:
    trainer = make_trainer(buffer=kind(60), n_envs=1, update_per_step=ratio, **order)
    n_steps = 3 * np.arange(8, 25, 8) - 3  # counted from the 4th on, which a batch needs
    assert [result.info.gradient_step for result in trainer] == [int(ratio * n + 1e-9) for n in n_steps]


# ---- slow twins ----


def parts() -> tuple[tk.DQNPolicy, tk.Collector, tk.PrioritizedReplayBuffer]:
    """Return a policy, a collector and its buffer, all of one seed."""
    envs = tk.make_envs(Walk, 2, seed=1)
    policy, buffer = make_policy(envs, seed=2), tk.PrioritizedReplayBuffer(60, seed=3)
    return policy, tk.Collector(policy, envs, buffer), buffer


def slow_rounds(policy: tk.DQNPolicy, collector: tk.Collector, buffer: tk.PrioritizedReplayBuffer) -> None:
    """Train 24 steps with an update per 2 from the 4th on, in rounds of 4 and the rest at the end."""
    for owed_then in (10, 18, 24):
        while collector.env_step < owed_then:
            collector.collect(n_step=2)
        batches = buffer.sample_round(3 if owed_then == 24 else 4, 4, horizon=policy.horizon, step=collector.env_step)
        learnt = [policy.update(batch.copy(), step=collector.env_step).read_priority() for batch in batches]
        for batch, priority in zip(batches, learnt, strict=True):
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
    twin = parts()
    slow(*twin)
    bits, expected = (
        dict(leaves([learner.training_state(), memory.state_dict()]))
        for learner, memory in ((policy, buffer), (twin[0], twin[2]))
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
                keyboard.is_heard = True
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
            step_per_collect=24,  # all 12 updates are owed at once, so that no collect follows
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


def test_a_buffer_that_draws_no_rounds_is_refused_where_rounds_are_asked_for() -> None:
    class Plain(tk.ReplayBuffer):
        """A buffer with all of the protocol but rounds."""

        sample_round = None  # type: ignore[assignment]  # as if it had none

        def sample(self, batch_size: int, **asked: Any) -> tk.TransitionBatch:
            return tk.ReplayBuffer.sample_round(self, 1, batch_size, **asked)[0]

    with pytest.raises(tk.ConfigError, match="needs a buffer with sample_round, Plain has none"):
        make_trainer(buffer=Plain(60), **ROUND)
    assert make_trainer(buffer=Plain(60), **LATE).run().gradient_step > 0
