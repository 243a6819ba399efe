"""What a look at all rows of a prioritised buffer shows: the priorities as they were written, and the weights."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tests.buffer.stream import Stream, ranked
from trainkit import Horizon, PrioritizedReplayBuffer


def test_priorities_are_those_that_were_written_oldest_first() -> None:
    buffer, _ = ranked([0.0, 1.0, 2.5, 40.0], alpha=0.5, eps=1e-3)
    assert_allclose(buffer.priorities(), [0.0, 1.0, 2.5, 40.0], atol=1e-9)


def test_rows_never_learned_from_have_the_largest_priority_so_far() -> None:
    buffer, stream = PrioritizedReplayBuffer(8, alpha=0.6), Stream(1)
    slots = buffer.add(stream.next())
    assert_allclose(buffer.priorities(), [1.0])
    buffer.update_priorities(slots, np.array([7.0]))
    buffer.add(stream.next())
    assert_allclose(buffer.priorities(), [7.0, 7.0])


@pytest.mark.parametrize(("typical", "largest"), [(1e-3, 1.0), (1.0, 1e4)])
def test_new_rows_are_a_small_share_of_batches_though_their_priority_is_large(typical: float, largest: float) -> None:
    buffer, stream = PrioritizedReplayBuffer(8_000, n_envs=4, seed=1), Stream(4)
    slots = np.concatenate([buffer.add(stream.next()) for _ in range(2_000)])
    buffer.update_priorities(slots, np.full(8_000, typical))
    buffer.update_priorities(slots[:1], np.array([largest]))
    buffer.update_priorities(slots[:1], np.array([typical]))
    added, share = slots, []
    for _ in range(400):
        added = np.concatenate([added, buffer.add(stream.next())])
        batch = buffer.sample(64, horizon=Horizon())
        buffer.update_priorities(batch.slots, np.full(64, typical))  # the first draw ends a new row's preference
        share.append(np.isin(batch.slots, added[-1_000:]).mean())
    assert 1_000 / 8_000 < np.mean(share) < 1_000 / 8_000 + 2 * 4 / 64  # drawn once or twice, then as often as others


def test_overwritten_rows_are_not_among_them() -> None:
    buffer, stream = PrioritizedReplayBuffer(3), Stream(1)
    for priority in (1.0, 2.0, 3.0, 4.0, 5.0):
        buffer.update_priorities(buffer.add(stream.next()), np.array([priority]))
    assert_allclose(buffer.priorities(), [3.0, 4.0, 5.0])


def test_without_alpha_no_priority_is_kept() -> None:
    buffer, _ = ranked([1.0, 2.0], alpha=0.0)
    assert_array_equal(buffer.priorities(), [1.0, 1.0])


def test_weights_undo_the_preference_as_far_as_beta_says() -> None:
    buffer, _ = ranked([1.0, 4.0, 16.0], alpha=1.0, eps=1e-12, beta=[(0, 0.5), (100, 1.0)])
    assert_allclose(buffer.weights(), [1.0, 1 / 2, 1 / 4])  # (1 / priority)**0.5 over the largest
    assert_allclose(buffer.weights(100), [1.0, 1 / 4, 1 / 16])


def test_an_empty_buffer_has_none() -> None:
    buffer = PrioritizedReplayBuffer(4)
    assert len(buffer.priorities()) == len(buffer.weights()) == 0
    buffer.add(Stream(1).next())
    buffer.clear()
    assert len(buffer.priorities()) == len(buffer.weights()) == 0
