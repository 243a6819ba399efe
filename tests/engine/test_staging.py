"""Memory that batches are sent from: whole copies, two sets in turn, none written before the device has read it."""

import copy
from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers.learning import assert_same
from trainkit.core import tree
from trainkit.engine.device import Staging

CPU = torch.device("cpu")


def arrays(seed: int, n_rows: int = 5) -> Any:
    rng = np.random.default_rng(seed)
    return (
        {"frames": rng.integers(0, 255, (n_rows, 3, 2), np.uint8), "mask": rng.random((n_rows, 4)) < 0.5},
        rng.normal(size=n_rows).astype(np.float32),
        np.float64(seed),
    )


def as_arrays(tensors: Any) -> Any:
    return tree.map_tree(lambda tensor: tensor.numpy().copy(), tensors)


def test_trees_of_any_dtypes_arrive_whole() -> None:
    tensors = Staging(CPU)(arrays(1))
    assert_same(as_arrays(tensors), arrays(1))
    assert [leaf.dtype for leaf in tree.leaves(tensors)] == [
        torch.uint8,
        torch.bool,
        torch.float32,
        torch.float64,
    ]


@pytest.mark.parametrize("order", ["reversed", "transposed", "strided"])
def test_arrays_of_any_strides_arrive_whole(order: str) -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    view = {"reversed": array[::-1], "transposed": array.T, "strided": array[:, ::2]}[order]
    np.testing.assert_array_equal(Staging(CPU)(view).numpy(), view)


def test_what_was_handed_out_stays_until_the_second_next_call() -> None:
    send, given = Staging(CPU), arrays(1)
    first = send(given)
    given[1][:] = np.nan  # the caller may do with its arrays what it likes
    second = send(arrays(2))
    assert_same(as_arrays(first), arrays(1))
    third = send(arrays(3))
    assert_same(as_arrays(second), arrays(2))
    assert [leaf.data_ptr() for leaf in tree.leaves(third)] == [leaf.data_ptr() for leaf in tree.leaves(first)]


def test_batches_of_another_size_get_memory_of_their_own() -> None:
    send = Staging(CPU)
    for seed, n_rows in enumerate([5, 5, 3, 3, 7, 5, 3]):
        assert_same(as_arrays(send(arrays(seed, n_rows))), arrays(seed, n_rows))


def test_a_copy_has_memory_of_its_own() -> None:
    send = Staging(CPU)
    first = send(arrays(1))
    copied = copy.deepcopy(send)
    for seed in range(2, 5):
        copied(arrays(seed))
    assert_same(as_arrays(first), arrays(1))


class Event:
    """What the device would be asked, written down."""

    log: list[str] = []  # noqa: RUF012 - one for all

    def __init__(self, name: str) -> None:
        self.name = name

    def record(self, stream: object) -> None:
        self.log.append(f"{self.name} is on its way")

    def synchronize(self) -> None:
        self.log.append(f"wait for {self.name}")


def test_memory_is_filled_only_when_the_device_has_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Event, "log", [])
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    send = Staging(CPU)
    for name in ("a", "b"):
        send(arrays(0))
        send._sets[-1]._sent = Event(name)  # type: ignore[assignment]  # stands in for torch's
    send(arrays(0))
    send(arrays(0))
    told = ["a is on its way", "b is on its way", "wait for a", "a is on its way", "wait for b"]
    assert Event.log == told
