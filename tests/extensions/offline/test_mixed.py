"""Several buffers as one: rows at the proportions given, priorities back to where they came from, weights over all."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from numpy.testing import assert_allclose, assert_array_equal

from tests.buffer.reference import assert_same
from tests.buffer.small_buffers import fields_of, filled, number, row, successors, tape
from tests.buffer.stream import Stream
from tests.trainer.doubling import assert_columns_are_of_their_rows, options, parts
from tests.trainer.runs import make_run
from tests.trainer.toys import Walk, make_policy
from trainkit import (
    Callback,
    Collector,
    ConfigError,
    DQNPolicy,
    Horizon,
    MixedBuffer,
    OfflineTrainer,
    OffpolicyTrainer,
    PrioritizedReplayBuffer,
    ReplayBuffer,
    SpaceMismatchError,
    load_dataset,
    make_envs,
)
from trainkit.callbacks import DatasetWriter
from trainkit.core.protocols import Buffer, Dataset
from trainkit.core.spaces import Spaces
from trainkit.errors import CheckpointError, EmptyBufferError, PriorityError

ONE = Horizon(1)


def rows(first: float, n: int = 4, kind: type[ReplayBuffer] = ReplayBuffer, **options: Any) -> Any:
    """Make a buffer of n steps, whose rewards are first, first + 1 ..."""
    t = np.arange(n)
    obs, after = (np.stack([np.full(n, first), t + ahead], axis=1).astype(np.float32) for ahead in (0, 1))
    return kind.from_arrays(
        obs=obs, next_obs=after, action=t % 2, reward=first + t, terminated=t == n - 1, **{"seed": 0, **options}
    )


def prioritized(first: float, n: int = 4, **options: Any) -> PrioritizedReplayBuffer:
    return rows(first, n, PrioritizedReplayBuffer, **options)  # type: ignore[no-any-return]  # of the same type


def test_each_row_comes_from_a_source_with_the_share_s_probability() -> None:
    mixed = MixedBuffer({rows(0): 0.7, rows(100): 0.2, rows(200): 0.1}, seed=0)
    drawn = [mixed.sample(10, horizon=ONE).reward // 100 for _ in range(1000)]
    counts = np.array([np.bincount(batch.astype(int), minlength=3) for batch in drawn])
    share = np.array([0.7, 0.2, 0.1])

    spread = 5 * np.sqrt(10_000 * share * (1 - share))
    assert (np.abs(counts.sum(axis=0) - 10_000 * share) < spread).all()
    assert_allclose(counts.var(axis=0), 10 * share * (1 - share), rtol=0.15)  # binomial: each row by itself


def test_proportions_that_add_up_but_for_rounding_are_taken() -> None:
    assert 0.7 + 0.2 + 0.1 != 1.0

    assert_allclose(MixedBuffer({rows(0): 0.7, rows(1): 0.2, rows(2): 0.1}).proportions.sum(), 1.0)


def test_columns_are_of_their_rows() -> None:
    mixed = MixedBuffer({rows(0): 0.5, prioritized(100): 0.5}, seed=0)
    batch = mixed.sample(200, horizon=Horizon(2, gamma=0.5), columns=["t", "n", "weight"])
    t = batch.extras["t"]
    source = batch.obs[:, 0]

    assert set(source.tolist()) == {0.0, 100.0}
    assert_array_equal(batch.obs[:, 1], t)
    assert_array_equal(batch.action, t % 2)
    assert_allclose(batch.reward, source + t + np.where(t < 3, 0.5 * (source + t + 1), 0))
    assert_array_equal(batch.discount, np.where(t < 2, 0.25, 0.0))
    assert_array_equal(batch.next_obs[:, 1], np.minimum(t + 2, 4))
    assert set(batch.extras) == {"t", "n", "weight"}
    assert set(mixed.sample(9, horizon=ONE).extras) == set()


class TestWeights:
    def test_uniform_rows_weigh_1(self) -> None:
        assert_array_equal(MixedBuffer({rows(0): 0.5, rows(9): 0.5}).sample(20, horizon=ONE).weight, 1.0)

    def test_by_hand(self) -> None:
        """Priorities 1, 1, 1, 5 at alpha 1: P = 1/8 and 5/8, (4 P)**-1 = 2 and 0.4; the largest of all is 2."""
        source = prioritized(100, alpha=1.0, beta=1.0, eps=1e-12)
        own = source.sample(500, horizon=ONE)
        source.update_priorities(own.slots, np.where(own.reward == 103, 5.0, 1.0))
        batch = MixedBuffer({rows(0): 0.5, source: 0.5}, seed=0).sample(200, horizon=ONE, columns=["weight"])
        wanted = np.select([batch.reward < 100, batch.reward == 103], [1.0, 0.4], 2.0)

        assert_allclose(batch.extras["weight"], wanted)
        assert_allclose(batch.weight, wanted / 2, rtol=1e-6)

    def test_a_single_row_of_a_source_keeps_its_weight(self) -> None:
        source = prioritized(100, alpha=1.0, beta=1.0, eps=1e-12)
        own = source.sample(500, horizon=ONE)
        source.update_priorities(own.slots, np.where(own.reward == 103, 5.0, 1.0))
        mixed = MixedBuffer({rows(0): 0.95, source: 0.05}, seed=0)
        seen = set()
        for _ in range(200):
            batch = mixed.sample(8, horizon=ONE)
            alone = np.flatnonzero(batch.reward == 103)
            if len(alone) == 1 and (batch.reward >= 100).sum() == 1:
                seen.add(round(float(batch.weight[alone[0]]), 6))
        assert seen == {0.4}  # not 1, which its own batch of one row would say

    def test_the_mean_over_draws_is_that_of_uniform_rows(self) -> None:
        source = prioritized(0, alpha=1.0, beta=1.0)
        own = source.sample(500, horizon=ONE)
        source.update_priorities(own.slots, 1.0 + own.reward)
        batch = source.sample(40_000, horizon=ONE, columns=["weight"])

        assert (batch.extras["weight"] * batch.reward).mean() == pytest.approx(1.5, abs=0.03)  # of 0, 1, 2, 3

    def test_beta_follows_the_step(self) -> None:
        source = prioritized(0, alpha=1.0, beta=[(0, 0.0), (10, 1.0)], eps=1e-12)
        own = source.sample(500, horizon=ONE)
        source.update_priorities(own.slots, np.where(own.reward == 3, 5.0, 1.0))

        for step, weights in ((0, {1.0}), (10, {1.0, 0.2})):
            batch = MixedBuffer({source: 1.0}, seed=0).sample(100, horizon=ONE, step=step)
            assert set(np.round(batch.weight.astype(float), 6)) == weights


def test_priorities_go_back_to_their_sources() -> None:
    first, second = prioritized(0, alpha=1.0), prioritized(100, alpha=1.0)
    mixed = MixedBuffer({first: 0.3, rows(50): 0.3, second: 0.4}, seed=0)
    for _ in range(20):
        batch = mixed.sample(60, horizon=ONE)
        mixed.update_priorities(batch.slots, np.where(np.isin(batch.reward, [2, 101]), 1000.0, 0.0))

    for source, wanted in ((first, 2), (second, 101)):
        assert (source.sample(1000, horizon=ONE).reward == wanted).mean() > 0.99


def test_priorities_are_refused_before_any_is_written() -> None:
    first, second = prioritized(0), prioritized(100)
    mixed = MixedBuffer({first: 0.5, second: 0.5}, seed=0)
    batch = mixed.sample(40, horizon=ONE)
    wrong = np.full(40, 7.0)
    wrong[-1] = np.nan
    with pytest.raises(PriorityError, match="must be finite and >= 0, got nan"):
        mixed.update_priorities(batch.slots, wrong)
    assert first.metrics(0)["largest_priority"] == second.metrics(0)["largest_priority"] == 1.0


def test_an_empty_source_is_refused_by_name() -> None:
    mixed = MixedBuffer({rows(0): 0.999, ReplayBuffer(10): 0.001})
    with pytest.raises(EmptyBufferError, match=r"source 1, ReplayBuffer\(0 of 10 .* with proportion 0.001, is empty"):
        mixed.sample(1, horizon=ONE)


def test_added_rows_go_into_the_first_source() -> None:
    online, other = ReplayBuffer(20, n_envs=2), ReplayBuffer(20, n_envs=1)
    mixed, stream, theirs = MixedBuffer({online: 0.5, other: 0.5}, seed=0), Stream(2), Stream(1)
    other.add(theirs.next())
    slots = [mixed.add(stream.next()) for _ in range(3)]
    mixed.cut([0])

    assert (len(mixed), len(online), len(other), mixed.capacity) == (7, 6, 1, 40)
    assert len(np.unique(np.concatenate(slots))) == 6
    assert sorted(len(one) for one in online.episodes()) == [3, 3]
    drawn = mixed.sample(400, horizon=ONE)
    assert set(np.concatenate(slots)) < set(drawn.slots)


@pytest.mark.parametrize(
    ("proportions", "message"),
    [
        ({}, "MixedBuffer needs at least one buffer"),
        ({"a": 1.0}, r"MixedBuffer\.proportions\[0\] must be a ReplayBuffer, got 'a'"),
        (
            {ReplayBuffer(1): 0.5, ReplayBuffer(2): 0.4},
            r"\.proportions must add up to 1, got \[0.5, 0.4\], which is 0.9",
        ),
        ({ReplayBuffer(1): 1.0, ReplayBuffer(2): 0}, r"\.proportions\[1\] must be in \(0, 1\], got 0"),
        ({ReplayBuffer(1): 1.5, ReplayBuffer(2): -0.5}, r"\.proportions\[0\] must be in \(0, 1\], got 1.5"),
    ],
)
def test_wrong_proportions_are_refused(proportions: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MixedBuffer(proportions)


def test_rows_of_other_shapes_are_refused_at_construction_and_when_bound() -> None:
    pixels = ReplayBuffer(9)
    pixels.add(Stream(1, "pixels").next())
    with pytest.raises(SpaceMismatchError, match=r"source 1 has obs .* source 0 has"):
        MixedBuffer({rows(0): 0.5, pixels: 0.5})
    mixed = MixedBuffer({ReplayBuffer(9): 0.5, pixels: 0.5})
    with pytest.raises(SpaceMismatchError, match="mix rows of the same spaces"):
        Collector(make_policy(envs := make_envs(Walk, 1)), envs, mixed)


def test_the_same_seed_draws_the_same_rows_and_a_checkpoint_continues() -> None:
    def made(seed: int | None = 3) -> MixedBuffer:
        return MixedBuffer({rows(0, seed=None): 0.5, prioritized(100, seed=None): 0.5}, seed=seed)

    one, other, third = made(None), made(None), made(4)
    assert not one.is_seeded
    for mixed in (one, other):
        mixed.seed(11)
        assert mixed.is_seeded
    third.seed(12)
    slots = [mixed.sample(50, horizon=ONE).slots for mixed in (one, other, third)]
    assert_array_equal(slots[0], slots[1])
    assert (slots[0] != slots[2]).any()

    third = made(4)
    third.load_state_dict(one.state_dict())
    for _ in range(3):
        assert_array_equal(one.sample(50, horizon=ONE).slots, third.sample(50, horizon=ONE).slots)
    with pytest.raises(CheckpointError, match=r"a MixedBuffer of proportions \[0.5, 0.5\] was saved, this has \[1.0\]"):
        MixedBuffer({rows(0): 1.0}).load_state_dict(one.state_dict())


def test_all_rows_of_all_sources_can_be_gone_through() -> None:
    mixed = MixedBuffer({rows(0): 0.5, prioritized(100): 0.5})

    assert isinstance(mixed, Dataset)
    assert np.concatenate([step.reward for step in mixed.transitions(3)]).tolist() == [0, 1, 2, 3, 100, 101, 102, 103]


def test_an_offline_run_learns_from_a_mix() -> None:
    kept = {"n": 30, "seed": None}
    mixed = MixedBuffer({rows(0, **kept): 0.5, prioritized(1, **kept): 0.5})
    spaces_of = Spaces(observation_space=Box(0, 99, (2,)), action_space=Discrete(2))
    policy = DQNPolicy.for_envs(spaces_of, hidden=(4,), device="cpu")
    trainer = OfflineTrainer(policy, mixed, max_epoch=1, update_per_epoch=20, batch_size=8, verbose=False, seed=3)
    (result,) = list(trainer)

    assert result.info.gradient_step == 20
    assert mixed.metrics(0)["largest_priority_1"] != 1.0


def test_an_off_policy_run_learns_from_its_own_rows_and_others(tmp_path: Any) -> None:
    demonstrations = ReplayBuffer(100)
    other_envs = make_envs(Walk, 2, seed=5)
    Collector(make_policy(other_envs, seed=5), other_envs, demonstrations).collect(n_step=40)

    def run() -> Any:
        envs = make_envs(Walk, 2)
        online = PrioritizedReplayBuffer(200)
        policy = make_policy(envs)
        copy = ReplayBuffer(100, seed=7)
        copy.load_state_dict(demonstrations.state_dict())
        mixed = MixedBuffer({online: 0.5, copy: 0.5})
        assert isinstance(mixed, Buffer)
        trainer = OffpolicyTrainer(
            policy, Collector(policy, envs, mixed), max_epoch=1, step_per_epoch=80, batch_size=8, verbose=False, seed=2
        )
        (result,) = list(trainer)
        trainer.save(tmp_path / "checkpoint")
        assert (len(online), len(copy)) == (80, 40)
        assert result.stats["buffer/size"] == 120
        assert result.stats["buffer/size_0"] == 80
        assert result.stats["buffer/largest_priority_0"] != 1.0
        return [parameter.detach().numpy().copy() for parameter in policy.parameters()]

    for here, there in zip(run(), run(), strict=True):
        assert_array_equal(here, there)


def test_no_batch_size_is_every_row_of_every_source_weighted_by_its_share() -> None:
    few, many = rows(0, 2), prioritized(100, 6)
    mixed = MixedBuffer({few: 0.75, many: 0.25}, seed=0)
    whole = mixed.sample(None, horizon=ONE, columns=["t"])
    assert_array_equal(whole.reward, [0, 1, 100, 101, 102, 103, 104, 105])
    assert_array_equal(whole.extras["t"], [0, 1, 0, 1, 2, 3, 4, 5])
    assert_allclose(whole.weight, [3.0, 3.0] + [1 / 3] * 6, rtol=1e-6)  # 8 rows: 6 of the weight to two, 2 to six
    by_hand = 0.75 * 0.5 + 0.25 * 102.5
    assert_allclose((whole.weight * whole.reward).mean(), by_hand, rtol=1e-6)
    mixed.update_priorities(whole.slots, np.arange(8.0))
    assert_allclose(many.priorities(), np.arange(2.0, 8.0), rtol=1e-6)


def test_files_take_part_in_sampling_by_their_share(tmp_path: Path) -> None:
    envs = make_envs(Walk, 2, seed=1)
    recorder = Collector(make_policy(envs), envs)
    with DatasetWriter(tmp_path).record(recorder):
        recorder.collect(n_step=60, explore=True)
    demos = load_dataset(tmp_path)
    policy = make_policy(envs)
    mixed = MixedBuffer({ReplayBuffer(100): 0.7, demos: 0.3}, seed=0)
    train = Collector(policy, make_envs(Walk, 2, seed=2), mixed)
    seen: list[int] = []

    class Origin(Callback):
        def on_train_batch(self, trainer: Any, batch: Any) -> None:
            seen.extend((batch.slots % 2).tolist())

    OffpolicyTrainer(
        policy,
        train,
        max_epoch=1,
        step_per_epoch=200,
        batch_size=20,
        seed=1,
        verbose=False,
        show_progress=False,
        callbacks=[Origin()],
    ).run()

    assert len(seen) > 3000
    assert np.mean(seen) == pytest.approx(0.3, abs=5 * np.sqrt(0.21 / len(seen)))


def test_a_mixed_buffer_draws_a_round_batch_by_batch() -> None:
    def mixed() -> MixedBuffer:
        return MixedBuffer({filled(PrioritizedReplayBuffer): 0.5, filled(ReplayBuffer): 0.5}, seed=5)

    batches, reference = mixed().sample_round(3, 5, horizon=Horizon(1), step=4), mixed()
    for batch in batches:
        assert_same(fields_of(batch), fields_of(reference.sample(5, horizon=Horizon(1), step=4)))


def test_an_observation_out_of_sequence_is_stored_in_the_first_source() -> None:
    other = ReplayBuffer.from_arrays(
        obs=number(500), next_obs=number(501), action=np.array([0]), reward=np.ones(1), terminated=np.array([True])
    )
    mixed = MixedBuffer({ReplayBuffer(10, n_envs=1): 0.5, other: 0.5}, seed=0)
    mixed.add(row(number(0), number(1)))
    mixed.add(row(number(77), number(78)))

    assert successors(mixed) == {0.0: (1.0, 0.5), 77.0: (78.0, 0.5), 500.0: (501.0, 0.0)}


def test_the_range_of_returns_of_a_mixed_buffer_is_over_all_sources() -> None:
    sources = {tape([1, 2]): 0.5, tape([-3, 1]): 0.5}
    assert MixedBuffer(sources).return_range(Horizon(1, gamma=0.5)) == (-3, 2)  # to go: 2, 2; -2.5, 1


def test_a_mixed_buffer_brings_the_columns_of_every_source() -> None:
    policy, recorder = parts(ReplayBuffer(100))
    recorder.collect(n_step=60)
    envs = make_envs(Walk, 2, seed=2)
    mixed = MixedBuffer({ReplayBuffer(100): 0.5, recorder.buffer: 0.5})  # type: ignore[dict-item]  # it is one
    train = Collector(policy, envs, mixed)
    train.collect(n_step=10)
    OffpolicyTrainer(policy, train, **options()).run()

    assert_columns_are_of_their_rows(policy)


def test_a_mixed_buffer_clears_the_rows_that_are_collected() -> None:
    online, demonstrations = ReplayBuffer(60), make_run("cql").buffer
    buffer = MixedBuffer({online: 0.5, demonstrations: 0.5})
    buffer.clear()
    assert (len(online), len(demonstrations)) == (0, 80)
