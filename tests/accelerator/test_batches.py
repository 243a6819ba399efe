"""Arrays on their way to a device: whole, in one copy of pinned memory, and without waiting."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import trainkit as tk
from tests.extensions.cuda.frames_and_arrays import MIXED, STACKED, Source
from tests.helpers.learning import assert_same
from tests.pretend import PretendDevice
from trainkit.core import tree
from trainkit.engine.device import BatchMemory, PinnedBatch, resolve_device, to_device


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


# ---- memory that a buffer writes to ----

SHAPE = 300, 200  # of float32, large enough for the block


def given_by(memory: BatchMemory, seed: int) -> Any:
    """Return a batch whose two large arrays were made by `memory`."""
    rng = np.random.default_rng(seed)
    obs, next_obs = (memory.empty(SHAPE, np.dtype(np.float32)) for _ in range(2))
    obs[:], next_obs[:] = rng.random(SHAPE), rng.random(SHAPE)
    return obs, rng.random(300), next_obs, {"weight": rng.random(300).astype(np.float32)}


def is_in(block: torch.Tensor, array: Any) -> bool:
    return np.shares_memory(block.numpy(), array)


def test_large_arrays_are_sent_from_where_they_were_written(pretend: PretendDevice) -> None:
    memory, layouts = BatchMemory(), []
    for seed in range(4):
        batch = given_by(memory, seed)
        expected = tree.map_tree(np.copy, batch)
        pinned = PinnedBatch(batch, memory)
        with pretend.counting() as counts:
            tensors = pinned.on(pretend.device)
        assert (counts.copies_to_device, counts.waits) == (1, 0)
        assert_same(as_arrays(tensors), expected)
        assert [is_in(pinned.block, batch[i]) for i in (0, 1, 2)] == [seed > 0, False, seed > 0]
        layouts.append(pinned.layout)
    assert layouts[1] == layouts[2] == layouts[3]


def test_batches_in_any_order_and_more_than_once_are_copied_where_they_must_be(pretend: PretendDevice) -> None:
    memory = BatchMemory()
    PinnedBatch(given_by(memory, 0), memory)
    first, second, dropped, last = (given_by(memory, seed) for seed in range(1, 5))
    expected = [tree.map_tree(np.copy, batch) for batch in (second, first, last, last, first)]
    sent = [PinnedBatch(batch, memory).on(pretend.device) for batch in (second, first, last, last, first)]
    assert_same([as_arrays(batch) for batch in sent], expected)
    assert_same(dropped, given_by(BatchMemory(), 3))
    assert PinnedBatch(arrays(1), memory).block.is_pinned()


def test_a_batch_with_another_array_in_the_place_of_its_own_is_sent_as_it_is(pretend: PretendDevice) -> None:
    memory = BatchMemory()
    for seed in range(3):
        obs, reward, next_obs, extras = given_by(memory, seed)
        for batch in ((next_obs, reward, obs, extras), (obs + 1, reward, next_obs, extras), (obs, obs, obs, {})):
            assert_same(as_arrays(PinnedBatch(batch, memory).on(pretend.device)), tree.map_tree(np.copy, batch))


@pytest.mark.parametrize("space", [STACKED, MIXED], ids=["images", "mixed"])
def test_a_buffer_writes_the_same_rows_to_given_memory(space: Any) -> None:
    source = Source(space)
    plain, other = (copy.deepcopy(source.buffers[0]) for _ in range(2))
    made: list[int] = []

    def allocate(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        made.append(shape[0])
        return np.full(shape, 77, dtype)

    source.buffers = plain, other  # type: ignore[assignment]  # the same rows go to both
    source.write(10)
    other.use_batch_memory(allocate)
    batches = source.draw()
    assert_same(*(tree.to_plain((batch.obs, batch.next_obs)) for batch in batches))
    assert made == [16] * 2 * len(tree.leaves(batches[0].obs))
    other.use_batch_memory(None)
    source.draw()
    assert len(made) == 2 * len(tree.leaves(batches[0].obs))


@pytest.mark.parametrize("options", [{}, {"refresh_priorities": "late"}], ids=str)
def test_a_trainers_buffer_writes_images_where_the_device_reads_them(
    options: Any, pretend: PretendDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_place: list[bool] = []
    send = PinnedBatch.on

    def on(batch: PinnedBatch, device: torch.device) -> Any:
        images = [leaf for leaf in batch._leaves if isinstance(leaf, np.ndarray) and leaf.ndim == 4]
        in_place.extend(is_in(batch.block, leaf) for leaf in images if len(leaf) == 8)
        return send(batch, device)

    monkeypatch.setattr(PinnedBatch, "on", on)
    weights = []
    for device in ("cpu", pretend.device):
        images = spaces.Box(0, 255, (4, 36, 36), np.uint8)
        envs = tk.make_envs(tk.testing.FakeVectorEnv(images, spaces.Discrete(3), n=2, episode_length=5))
        how: dict[str, Any] = {"encoder": "mlp", "hidden": (), "head": (8,)}  # which sums in the same order there
        policy = tk.DQNPolicy.for_envs(envs, **how, device=device, seed=0, engine="torch")
        collector = tk.Collector(policy, envs, tk.PrioritizedReplayBuffer(100))
        common: dict[str, Any] = {
            "max_epoch": 1,
            "step_per_epoch": 40,
            "update_per_step": 0.25,
            "batch_size": 8,
            "seed": 1,
        }
        with tk.OffpolicyTrainer(policy, collector, **common, **options) as trainer:
            trainer.run()
        weights.append(policy.get_weights())
    assert in_place == [False, False] + [True, True] * (policy.n_updates - 1)
    for name, weight in weights[0].items():
        np.testing.assert_allclose(weights[1][name], weight, rtol=1e-5, atol=1e-6, err_msg=name)
