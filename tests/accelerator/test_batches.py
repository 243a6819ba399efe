"""Arrays on their way to a device: whole, in one copy of pinned memory, and without waiting."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers.learning import assert_same
from trainkit.core import tree
from trainkit.engine.device import PinnedBatch, resolve_device, to_device
from trainkit.testing import PretendDevice


def arrays(seed: int, n_rows: int = 5) -> Any:
    rng = np.random.default_rng(seed)
    return (
        {"frames": rng.integers(0, 255, (n_rows, 3, 2), np.uint8), "mask": rng.random((n_rows, 4)) < 0.5},
        rng.normal(size=n_rows).astype(np.float32),
        np.asarray(seed, np.float64),
    )


def as_arrays(tensors: Any) -> Any:
    return tree.map_tree(lambda tensor: tensor.cpu().numpy(), tensors)


def test_trees_of_any_dtypes_arrive_whole_in_one_copy(pretend: PretendDevice) -> None:
    with pretend.counting() as counts:
        tensors = to_device(arrays(1), pretend.device)
    assert (counts.copies_to_device, counts.waits, sum(counts.operations.values())) == (1, 0, 0)
    assert_same(as_arrays(tensors), arrays(1))
    dtypes = [torch.uint8, torch.bool, torch.float32, torch.float64]
    assert [leaf.dtype for leaf in tree.leaves(tensors)] == dtypes


def test_any_device_is_meant_with_its_number_and_auto_never_means_a_pretended_one(pretend: PretendDevice) -> None:
    for device in ("pretend", "pretend:0", torch.device("pretend"), pretend.device):
        assert resolve_device(device) == pretend.device
    assert resolve_device("auto") == torch.device("cpu")


def test_numbers_become_scalars_without_a_copy(pretend: PretendDevice) -> None:
    with pretend.counting() as counts:
        number = to_device({"x": 2.5}, pretend.device)["x"]
    assert (counts.copies_to_device, counts.waits, counts.operations) == (0, 0, {"aten::fill_": 1})
    assert (number.item(), number.dtype) == (2.5, torch.float32)


@pytest.mark.parametrize("order", ["reversed", "transposed", "strided", "empty", "read only"])
def test_arrays_of_any_strides_arrive_whole(order: str, pretend: PretendDevice) -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    fixed = array.copy()
    fixed.flags.writeable = False
    views = {"reversed": array[::-1], "transposed": array.T, "strided": array[:, ::2], "empty": array[:0]}
    view = {**views, "read only": fixed}[order]
    np.testing.assert_array_equal(to_device(view, pretend.device).cpu().numpy(), view)


def test_tensors_and_none_stay_and_an_array_that_occurs_twice_is_sent_once(pretend: PretendDevice) -> None:
    array, tensor = np.arange(3), torch.ones(2, device=pretend.device)
    first, second, kept, nothing = to_device((array, array, tensor, None), pretend.device)
    assert kept is tensor
    assert nothing is None
    assert first.data_ptr() == second.data_ptr()
    with pretend.counting() as counts:
        assert to_device((tensor, None), pretend.device) == (tensor, None)
    assert counts.copies_to_device == 0


def test_what_was_sent_stays_when_the_arrays_change(pretend: PretendDevice) -> None:
    given = arrays(1)
    batch = PinnedBatch(given)
    given[1][:] = np.nan
    assert_same(as_arrays(batch.on(pretend.device)), arrays(1))


def test_batches_have_one_layout_where_their_arrays_lie_alike(pretend: PretendDevice) -> None:
    one, same, longer = (PinnedBatch(arrays(seed, n)) for seed, n in ((1, 5), (2, 5), (3, 6)))
    assert one.layout == same.layout != longer.layout
    two = np.zeros(3), np.zeros(3)
    assert PinnedBatch(two).layout != PinnedBatch((two[0], two[0])).layout
