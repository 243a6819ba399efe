"""Rows are drawn as often as their priorities say, and weights undo it."""

import logging
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

from tests.buffer.stream import Stream, ranked
from trainkit.buffer import PrioritizedReplayBuffer, ReplayBuffer, UniformSampler
from trainkit.core.data import Horizon, TransitionBatch
from trainkit.core.errors import CheckpointError, ConfigError, PriorityError
from trainkit.core.schedules import Piecewise

ONE = Horizon(1)
CHI_SQUARE_9 = 27.9  # 9 degrees of freedom, 1 in 1,000


def draw(buffer: ReplayBuffer, batch_size: int, **options: Any) -> TransitionBatch:
    return buffer.sample(batch_size, horizon=ONE, **options)


def frequencies(buffer: ReplayBuffer, slots: NDArray[np.int64], n_drawn: int) -> NDArray[np.float64]:
    """Return how often each slot was drawn, in batches of one: independent points under either way to draw."""
    drawn = np.concatenate([draw(buffer, 1).slots for _ in range(n_drawn)])
    counts: NDArray[np.float64] = (drawn[:, None] == slots).sum(axis=0).astype(np.float64)
    assert counts.sum() == n_drawn
    return counts


class Ends:
    """Draw the least number there is, and the largest below 1."""

    def random(self, n: int) -> NDArray[np.float64]:
        return np.resize([0.0, 1.0 - 2.0**-53], n)


@pytest.mark.parametrize("n_rows", [1, 3, 24, 100])
def test_a_uniform_draw_goes_from_the_oldest_row_to_the_newest(n_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer, stream = ReplayBuffer(50), Stream(1)
    slots = np.concatenate([buffer.add(stream.next()) for _ in range(n_rows)])[-50:]
    sample = UniformSampler.draw
    monkeypatch.setattr(UniformSampler, "draw", lambda self, n, step, _, k: sample(self, n, step, Ends(), k))
    assert_array_equal(draw(buffer, 2).slots, slots[[0, -1]])


@pytest.mark.one_of_each
@pytest.mark.parametrize("how", ["stratified", "iid"])
@pytest.mark.parametrize(("alpha", "eps"), [(1.0, 1e-6), (0.6, 0.5)])
def test_rows_are_drawn_in_proportion_to_priority_plus_eps_to_the_alpha(how: str, alpha: float, eps: float) -> None:
    priorities = np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 30.0])
    buffer, slots = ranked(priorities.tolist(), alpha=alpha, eps=eps, draw=how)
    counts = frequencies(buffer, slots, 5000)
    expected = 5000 * (priorities + eps) ** alpha / ((priorities + eps) ** alpha).sum()
    large = expected > 1
    assert counts[~large].sum() <= 1
    assert ((counts - expected)[large] ** 2 / expected[large]).sum() < CHI_SQUARE_9


def test_a_stratified_draw_puts_one_point_in_each_equal_part_of_the_mass() -> None:
    buffer, slots = ranked([1.0] * 10, alpha=1.0)
    for _ in range(20):
        assert_array_equal(draw(buffer, 10).slots, slots)  # as many parts as rows of equal mass: each exactly once
    buffer.update_priorities(slots[:1], np.array([11.0]))  # more than half of the mass
    counts = (draw(buffer, 20).slots[:, None] == slots).sum(axis=0)
    assert counts[0] == 11
    assert_array_equal(counts[1:], 1)


def test_an_iid_draw_is_not_stratified() -> None:
    buffer, _ = ranked([1.0] * 10, draw="iid")
    n_distinct = [len(set(draw(buffer, 10).slots.tolist())) for _ in range(200)]
    assert np.mean(n_distinct) == pytest.approx(10 * (1 - 0.9**10), abs=0.3)


def test_weights_over_the_batchs_largest_by_hand() -> None:
    buffer, slots = ranked([1, 2, 4, 8], alpha=1.0, beta=0.5, eps=1e-12)
    batch = draw(buffer, 15)  # one point per unit of mass: every row is there
    expected = {slots[0]: 1, slots[1]: 2**-0.5, slots[2]: 0.5, slots[3]: 8**-0.5}  # (4 * p / 15)**-.5, over that of p=1
    assert_allclose(batch.weight, [expected[slot] for slot in batch.slots], rtol=1e-6)


@pytest.mark.parametrize(("normalize", "largest"), [("batch", 1.0), ("buffer", (1 / 100) ** 0.4)])
def test_the_largest_weight_is_taken_from_the_batch_or_from_the_buffer(normalize: str, largest: float) -> None:
    buffer, slots = ranked([1.0] + [100.0] * 9, alpha=1.0, beta=0.4, eps=1e-12, normalize=normalize)
    batches = [draw(buffer, 2) for _ in range(20)]
    without_first = [batch for batch in batches if slots[0] not in batch.slots]
    assert len(without_first) > 10
    for batch in without_first:
        assert_allclose(batch.weight, largest, rtol=1e-6)


def test_the_buffers_largest_weight_follows_its_rows() -> None:
    buffer, slots = ranked([1.0, 4.0], alpha=1.0, beta=1.0, eps=1e-12, normalize="buffer")
    stream = Stream(1)
    assert draw(buffer, 64).weight.min() == 0.25
    buffer.update_priorities(slots[:1], np.array([2.0]))
    assert draw(buffer, 64).weight.min() == 0.5
    for _ in range(16):  # the row of priority 2 dies, new ones have the largest so far
        buffer.add(stream.next())
    assert_array_equal(draw(buffer, 64).weight, 1.0)


def test_a_row_of_priority_zero_does_not_shrink_the_weights_of_a_batch_without_it() -> None:
    buffer, slots = ranked([0.0] + [1.0] * 15, alpha=0.6, beta=0.4)
    batch = draw(buffer, 8)
    assert slots[0] not in batch.slots
    assert_array_equal(batch.weight, 1.0)


def test_beta_is_annealed_by_the_environment_step() -> None:
    buffer, slots = ranked([1, 4, 4, 4, 4], alpha=1.0, eps=1e-12, beta=Piecewise([(0, 0.0), (100, 1.0)]))
    for step, weight in [(0, 1.0), (50, 0.5), (100, 0.25), (10_000, 0.25)]:
        batch = draw(buffer, 17, step=step)
        assert set(batch.slots.tolist()) == set(slots.tolist())
        assert_allclose(batch.weight.min(), weight, rtol=1e-6)
        assert buffer.metrics(step)["beta"] == pytest.approx(min(step, 100) / 100)


def test_a_uniform_buffer_weighs_all_rows_one_and_ignores_priorities() -> None:
    buffer, stream = ReplayBuffer(10, seed=1), Stream(1)
    slots = np.concatenate([buffer.add(stream.next()) for _ in range(10)])
    buffer.update_priorities(slots, np.arange(10.0) ** 4)
    counts = frequencies(buffer, slots, 3000)
    assert ((counts - 300) ** 2 / 300).sum() < CHI_SQUARE_9
    assert_array_equal(draw(buffer, 32).weight, np.ones(32, np.float32))
    assert not buffer.prioritized
    assert PrioritizedReplayBuffer(10).prioritized


@pytest.mark.parametrize("options", [{"alpha": 0.0}, {"alpha": 0.6}])
def test_alpha_zero_and_priorities_all_zero_are_uniform(options: dict[str, float]) -> None:
    priorities = [0.0] * 10 if options["alpha"] else (np.arange(10) ** 4).tolist()
    buffer, slots = ranked(priorities, **options)
    counts = frequencies(buffer, slots, 3000)
    assert ((counts - 300) ** 2 / 300).sum() < CHI_SQUARE_9
    assert_array_equal(draw(buffer, 32).weight, 1.0)


# ---- which priority a row has ----


def relative_masses(buffer: PrioritizedReplayBuffer) -> dict[int, float]:
    """Return each row's mass over the smallest, read off the weights of a buffer with beta 1."""
    batch = draw(buffer, 4096)
    return {slot: float(1 / weight) for slot, weight in zip(batch.slots.tolist(), batch.weight, strict=True)}


EXACT: dict[str, Any] = {"alpha": 1.0, "beta": 1.0, "eps": 1e-9}


def test_new_rows_get_the_largest_priority_so_far() -> None:
    buffer, stream = PrioritizedReplayBuffer(8, seed=1, **EXACT), Stream(1)
    first, second = (int(buffer.add(stream.next())[0]) for _ in range(2))
    assert relative_masses(buffer) == {first: 1, second: 1}
    buffer.update_priorities(np.array([first]), np.array([4.0]))
    third = int(buffer.add(stream.next())[0])
    assert relative_masses(buffer) == pytest.approx({first: 4, second: 1, third: 4})
    buffer.update_priorities(np.array([first]), np.array([2.0]))  # the largest so far stays 4
    fourth = int(buffer.add(stream.next())[0])
    assert relative_masses(buffer) == pytest.approx({first: 2, second: 1, third: 4, fourth: 4})
    assert buffer.metrics(0)["largest_priority"] == 4


def test_a_late_priority_of_an_overwritten_row_is_ignored_and_raises_nothing() -> None:
    buffer, stream = PrioritizedReplayBuffer(4, seed=1, **EXACT), Stream(1)
    slots = np.concatenate([buffer.add(stream.next()) for _ in range(4)])
    newer = np.concatenate([buffer.add(stream.next()) for _ in range(2)])  # in the places of slots[:2]
    buffer.update_priorities(slots, np.array([900.0, 800.0, 3.0, 1.0]))
    assert buffer.metrics(0)["largest_priority"] == 3
    assert relative_masses(buffer) == pytest.approx({slots[2]: 3, slots[3]: 1, newer[0]: 1, newer[1]: 1})


def test_a_late_priority_does_not_bring_a_dead_row_back() -> None:
    buffer, stream = PrioritizedReplayBuffer(4, seed=1, **EXACT), Stream(1)
    slots = np.concatenate([buffer.add(stream.next()) for _ in range(3)])
    assert buffer.drop(0) == 3
    stream.begin([0])
    kept = int(buffer.add(stream.next())[0])
    buffer.update_priorities(slots, np.array([50.0, 50.0, 50.0]))
    assert relative_masses(buffer) == {kept: 1}


def test_of_a_slot_named_twice_the_last_priority_stays() -> None:
    buffer, slots = ranked([1.0, 1.0], **EXACT)
    buffer.update_priorities(slots[[0, 1, 0]], np.array([7.0, 1.0, 3.0]))
    assert relative_masses(buffer) == pytest.approx({slots[0]: 3, slots[1]: 1})


def test_clearing_forgets_priorities_too() -> None:
    buffer, _ = ranked([9.0, 8.0, 7.0], **EXACT)
    buffer.clear()
    stream = Stream(1)
    slots = np.concatenate([buffer.add(stream.next()) for _ in range(2)])
    buffer.update_priorities(slots[:1], np.array([0.5]))
    assert buffer.metrics(0)["largest_priority"] == 1
    assert relative_masses(buffer) == pytest.approx({slots[0]: 1, slots[1]: 2})


@pytest.mark.parametrize("n_steps", [3, 2000])
def test_rows_have_their_priority_however_many_were_added_since_the_last_draw(n_steps: int) -> None:
    buffer, stream = PrioritizedReplayBuffer(6000, n_envs=3, seed=1, **EXACT), Stream(3)
    last = np.concatenate([buffer.add(stream.next()) for _ in range(n_steps)])
    buffer.update_priorities(last[:1], np.array([2.0]))
    masses = relative_masses(buffer)
    assert len(masses) > 0.4 * len(buffer)
    assert {mass for slot, mass in masses.items() if slot != last[0]} == {1.0}
    assert_allclose(buffer.state_dict()["sampler"]["mass"].sum(), 3 * n_steps + 1, rtol=1e-6)


# ---- what is no priority ----


@pytest.mark.parametrize(("bad", "written"), [(np.nan, "nan"), (np.inf, "inf"), (-0.5, "-0.5")])
def test_a_priority_that_is_none_is_refused_and_nothing_is_written(bad: float, written: str) -> None:
    buffer, slots = ranked([1.0, 1.0, 1.0], **EXACT)
    message = f"^a priority must be finite and >= 0, got {written} at index 1 of 3$"
    with pytest.raises(PriorityError, match=message):
        buffer.update_priorities(slots, np.array([5.0, bad, 5.0]))
    assert relative_masses(buffer) == dict.fromkeys(slots.tolist(), 1.0)
    assert buffer.metrics(0)["largest_priority"] == 1


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer])
def test_one_priority_per_slot_is_needed_by_any_buffer(kind: type[ReplayBuffer]) -> None:
    buffer, stream = kind(4, seed=1), Stream(2)
    slots = buffer.add(stream.next())
    with pytest.raises(PriorityError, match=r"needs one priority per slot \[2\], got shape \(3,\)"):
        buffer.update_priorities(slots, np.ones(3))
    with pytest.raises(PriorityError, match=r"got shape \(2, 1\)"):
        buffer.update_priorities(slots, np.ones((2, 1)))


def test_no_slots_need_no_priorities() -> None:
    buffer, slots = ranked([2.0, 1.0], **EXACT)
    buffer.update_priorities(slots[:0], np.zeros(0))
    assert relative_masses(buffer) == pytest.approx({slots[0]: 2, slots[1]: 1})


def test_a_gigantic_priority_is_clipped_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    buffer, slots = ranked([1.0, 1.0], alpha=1.0)
    with caplog.at_level(logging.WARNING, "trainkit"):
        buffer.update_priorities(slots, np.array([1e300, 1e30]))
    assert caplog.messages == ["priorities above 1e+30 were clipped, the largest was 1e+300"]
    assert buffer.metrics(0)["largest_priority"] == 1e30
    assert_array_equal(draw(buffer, 64).weight, 1.0)


def test_small_priorities_are_sampled_with_large_ones_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    buffer, slots = ranked([1e-8, 1e8], alpha=0.1)
    assert set(draw(buffer, 4096).slots.tolist()) == set(slots.tolist())
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 1.5}, r"PrioritizedReplayBuffer.alpha must be in \[0, 1\], got 1.5"),
        ({"alpha": float("nan")}, r"PrioritizedReplayBuffer.alpha must be in \[0, 1\], got nan"),
        ({"eps": 0.0}, r"PrioritizedReplayBuffer.eps must be in \(0, inf\), got 0.0"),
        ({"beta": -0.1}, r"PrioritizedReplayBuffer.beta must be in \[0, 1\], got -0.1"),
        ({"beta": [(0, 0.4), (10, 2.0)]}, r"PrioritizedReplayBuffer.beta must be in \[0, 1\], got 2.0"),
        ({"beta": [(5, 0.4)]}, r"^PrioritizedReplayBuffer.beta: Piecewise's first knot must be at step 0"),
        (
            {"normalize": "bufer"},
            r"normalize must be one of \['batch', 'buffer'\], got 'bufer', did you mean 'buffer'\?",
        ),
        ({"draw": "uniform"}, r"draw must be one of \['stratified', 'iid'\], got 'uniform'"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PrioritizedReplayBuffer(10, **options)


@pytest.mark.parametrize("changed", [{"alpha": 0.5}, {"eps": 0.1}])
def test_saved_priorities_are_refused_by_a_buffer_of_another_alpha_or_eps(changed: dict[str, float]) -> None:
    buffer, _ = ranked([1.0, 2.0])
    other = PrioritizedReplayBuffer(16, **changed)
    (name,) = changed
    with pytest.raises(CheckpointError, match=f"priorities were saved with {name} .*, this buffer has {changed[name]}"):
        other.load_state_dict(buffer.state_dict())
