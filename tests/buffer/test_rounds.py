"""A round: the batches of several updates, drawn in one pass and dealt out like cards."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tests.buffer.reference import assert_same
from tests.buffer.small_buffers import fields_of, filled
from tests.buffer.stream import FORMS, Form, Stream
from trainkit.buffer import PrioritizedReplayBuffer, ReplayBuffer
from trainkit.core import tree
from trainkit.core.data import Horizon, TransitionBatch
from trainkit.core.errors import ConfigError, EmptyBufferError

B, BATCHES = 5, 3
COLUMNS = ["n", "t", "episode", "env_id", "terminated", "weight", "hidden"]


def dealt(whole: TransitionBatch, part: Any) -> dict[str, Any]:
    """Return those rows of a batch, field by field, but for the weight."""
    trees = {name: tree.map_tree(lambda leaf: leaf[part], getattr(whole, name)) for name in ("obs", "next_obs")}
    extras = {name: column[part] for name, column in whole.extras.items()}
    rows = {name: getattr(whole, name)[part] for name in ("action", "reward", "discount", "slots")}
    return trees | rows | {"extras": extras}


@pytest.mark.one_of_each
@pytest.mark.parametrize(("form", "stack"), [*((form, 1) for form in FORMS), ("pixels", 3)])
@pytest.mark.parametrize("n_step", [1, 3, (1, 3)])
def test_a_round_is_one_draw_of_all_rows_of_which_every_third_goes_to_one_batch(
    form: Form, stack: int, n_step: Any
) -> None:
    options: dict[str, Any] = {"horizon": Horizon(n_step, 0.5), "step": 7, "columns": COLUMNS}
    batches = filled(PrioritizedReplayBuffer, form, stack).sample_round(BATCHES, B, **options)
    whole = filled(PrioritizedReplayBuffer, form, stack).sample(BATCHES * B, **options)
    order = np.arange(BATCHES * B).reshape(B, BATCHES).T  # [batch, place in it]: point p goes to batch p % 3
    if isinstance(n_step, tuple):  # window lengths are drawn for the rows in the order they come in
        assert_array_equal([batch.slots for batch in batches], whole.slots[order])
        return
    for batch, part in zip(batches, order, strict=True):
        own = whole.extras["weight"][part]
        assert_allclose(batch.weight, own / own.max(), rtol=1e-6)
        assert_same(fields_of(batch), dealt(whole, part))


def test_each_batch_of_a_stratified_round_has_one_point_in_each_of_its_equal_parts() -> None:
    buffer, stream = PrioritizedReplayBuffer(16, seed=1), Stream(1)
    slots = np.concatenate([buffer.add(stream.next()) for _ in range(12)])  # of equal mass
    one, two = buffer.sample_round(2, 6, horizon=Horizon(1))
    assert_array_equal(one.slots, slots[::2])
    assert_array_equal(two.slots, slots[1::2])


def test_the_buffers_largest_weight_divides_all_batches_alike_on_request() -> None:
    batches = filled(PrioritizedReplayBuffer, normalize="buffer").sample_round(
        BATCHES, B, horizon=Horizon(1), columns=["weight"]
    )
    mass = (np.array([*np.arange(3, 15) / 5, *np.ones(12)]) + 1e-6) ** 0.6  # of the 12 newest rows of each
    largest = (24 * mass.min() / mass.sum()) ** -0.4
    for batch in batches:
        assert_allclose(batch.weight, batch.extras["weight"] / largest, rtol=1e-6)


def test_uniform_rows_are_cut_up_in_the_order_they_were_drawn() -> None:
    options: dict[str, Any] = {"horizon": Horizon(2, 0.5), "columns": ["t", "n"]}
    batches = filled(ReplayBuffer).sample_round(BATCHES, B, **options)
    whole = filled(ReplayBuffer).sample(BATCHES * B, **options)
    for i, batch in enumerate(batches):
        assert_same(fields_of(batch), dealt(whole, slice(i * B, (i + 1) * B)))


def test_the_batches_of_a_round_are_views_of_one_gather() -> None:
    batches = filled(ReplayBuffer).sample_round(BATCHES, B, horizon=Horizon(1))
    bases = {id(batch.obs.base) for batch in batches}
    assert len(bases) == 1
    assert None not in bases


@pytest.mark.parametrize("count", [0, -1, 1.5, True, None])
def test_a_round_of_no_whole_number_of_batches_is_refused(count: Any) -> None:
    with pytest.raises(ConfigError, match=r"ReplayBuffer.sample needs an integer n_batches >= 1, got"):
        filled(ReplayBuffer).sample_round(count, B, horizon=Horizon(1))


def test_a_round_of_an_empty_buffer_is_refused() -> None:
    with pytest.raises(EmptyBufferError):
        ReplayBuffer(4).sample_round(2, 2, horizon=Horizon(1))
