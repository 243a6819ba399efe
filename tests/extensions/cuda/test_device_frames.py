"""Images on the device: they arrive whole, and updates from their places are updates from them, in a graph too."""

import copy
import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import trainkit as tk
from tests.extensions.cuda.frames_and_arrays import BOX, MIXED, SMALL, STACKED, Source, learn_alike
from tests.extensions.cuda.graph_learners import DEVICE
from tests.helpers.engine import engines, torch_only
from tests.helpers.learning import THREE_ACTIONS, Spaces, assert_same, made, parameters_of
from tests.helpers.of_extensions import learners_of_extensions
from tests.helpers.padded import Flicker, assert_same_rows, by_gymnasium, collected
from tests.helpers.tape import TapeCapture
from trainkit import (
    CategoricalValue,
    SACPolicy,
)
from trainkit.core import tree
from trainkit.core.config import from_plain, from_text, to_plain
from trainkit.core.data import Lookup
from trainkit.engine import DeviceFrames
from trainkit.engine.lookups import frames_of
from trainkit.errors import DeviceError

# ---- memory on a device ----


@pytest.mark.parametrize("n_rows", [0, 1, 63, 64, 65, 200])
def test_images_arrive_whole_whatever_their_number(n_rows: int) -> None:
    rng = np.random.default_rng(0)
    column = rng.integers(0, 255, (300, 5, 3), np.uint8)
    rows, places = rng.permutation(300)[:n_rows], rng.permutation(400)[:n_rows]
    frames = DeviceFrames("cpu").claim("Buffer", 400, (5, 3))
    frames.write(places, column, rows)
    np.testing.assert_array_equal(frames.read(places), column[rows])


def test_a_column_may_be_written_to_as_soon_as_it_was_sent() -> None:
    column, places = np.arange(12, dtype=np.uint8).reshape(3, 2, 2), np.arange(3)
    expected = column.copy()
    frames = DeviceFrames("cpu").claim("Buffer", 3, (2, 2))
    frames.write(places, column, places)
    column[:] = 99
    np.testing.assert_array_equal(frames.read(places), expected)


def test_places_of_any_shape_are_gathered() -> None:
    frames = DeviceFrames("cpu").claim("Buffer", 6, (2, 2))
    column = np.arange(24, dtype=np.uint8).reshape(6, 2, 2)
    frames.write(np.arange(6), column, np.arange(6))
    places = torch.tensor([[0, 5, 5], [2, 1, 0]])
    np.testing.assert_array_equal(frames.gather(places).numpy(), column[places.numpy()])


def test_more_than_the_device_has_is_refused_at_binding_in_the_buffers_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def empty(*args: Any, **options: Any) -> Any:
        raise torch.OutOfMemoryError("no room")

    source = Source(STACKED, capacity=1_000)
    monkeypatch.setattr(torch, "empty", empty)
    with pytest.raises(
        DeviceError, match=r"ReplayBuffer\.frames need 1,4\d\d,\d{3} bytes \(0\.0 GB\) on cpu, for .*lower the capacity"
    ):
        source.write()
    assert source.buffers[1].nbytes == 0


def test_memory_is_freed_even_while_something_refers_to_it() -> None:
    frames = DeviceFrames("cpu").claim("Buffer", 6, (2, 2))
    leaf = Lookup(frames, np.arange(3), frames.n_written)
    frames.release()
    with pytest.raises(DeviceError, match="until a later batch is drawn"):
        np.asarray(leaf)


@pytest.mark.usefixtures("taped")
def test_a_policy_elsewhere_is_refused_at_its_first_update() -> None:
    source = Source(STACKED, DEVICE)
    source.write(4)
    policy = made(STACKED, hidden=None, head=(8,))
    with pytest.raises(DeviceError, match="frames are on pretend:0, the policy that learns from them is on cpu: give"):
        policy.update(source.draw()[1], step=0)


# ---- the same numbers ----

LEARNERS: list[Any] = [
    pytest.param(STACKED, lambda: made(STACKED, hidden=None, head=(8,), double=True, n_step=3), id="dqn"),
    pytest.param(
        MIXED,
        lambda: made(MIXED, hidden=(8,), head=(8,), dueling=True, noisy=True, value=CategoricalValue(5, -3, 3)),
        id="rainbow of an image, numbers and a mask",
    ),
    *(
        pytest.param(
            STACKED, partial(kind.for_envs, Spaces(STACKED), hidden=(8,), device="cpu", seed=0, **own), id=name
        )
        for name, (kind, actions, own) in learners_of_extensions().items()
        if actions is THREE_ACTIONS
    ),
    pytest.param(SMALL, lambda: made(SMALL), id="dqn in numpy"),
    pytest.param(SMALL, lambda: torch_only(made(SMALL)), id="dqn of numbers by torch"),
]


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize(("space", "make"), LEARNERS)
def test_a_learner_of_places_learns_as_one_of_arrays(space: Any, make: Callable[[], Any]) -> None:
    learn_alike(make(), make(), Source(space), 3)


@pytest.mark.parametrize("space", [STACKED, SMALL], ids=["images", "in numpy"])
def test_sac_of_places_learns_as_of_arrays(space: Any) -> None:
    one, other = (SACPolicy.for_envs(Spaces(space, BOX), hidden=(8,), device="cpu", seed=0) for _ in range(2))
    learn_alike(one, other, Source(space, actions=BOX), 3)


@pytest.mark.usefixtures("taped")
@pytest.mark.parametrize("space", [STACKED, MIXED], ids=["images", "mixed"])
def test_a_graph_gathers_what_lies_there_when_it_is_played(space: Any) -> None:
    options: dict[str, Any] = {
        "hidden": None,
        "head": (8,),
        "double": True,
        "noisy": True,
        "engine": "cuda_graph",
        "device": DEVICE,
    }
    learn_alike(made(space, **options), made(space, **options), Source(space, DEVICE), 8)
    assert TapeCapture.n_recorded == 2  # one each


@pytest.mark.usefixtures("taped")
def test_images_are_no_input_of_a_graph() -> None:
    policy, source = made(STACKED, hidden=None, head=(8,), engine="cuda_graph", device=DEVICE), Source(STACKED, DEVICE)
    for step in range(5):
        source.write()
        policy.update(source.draw()[1], step=step)
    (recording,) = policy.engine._graphs["update", ""]._recordings.values()
    assert recording.tensors == []
    assert len(recording.block) < STACKED.shape[0] * 36 * 38  # one image of a batch has more bytes


@pytest.mark.usefixtures("taped")
def test_a_graph_is_recorded_again_when_images_are_allocated_again() -> None:
    options: dict[str, Any] = {"hidden": None, "head": (8,), "engine": "cuda_graph", "device": DEVICE}
    plain, resident = made(STACKED, **options), made(STACKED, **options)
    source = Source(STACKED, DEVICE, capacity=100)
    source.write(3)
    before = frames_of(source.draw()[1])
    learn_alike(plain, resident, source, 14)
    assert frames_of(source.draw()[1]) != before  # two final images a step have outgrown their first room
    assert TapeCapture.n_recorded > 2


@pytest.mark.usefixtures("taped")
def test_a_graph_keeps_no_images_of_a_buffer_that_is_gone() -> None:
    policy, source = made(STACKED, hidden=None, head=(8,), engine="cuda_graph", device=DEVICE), Source(STACKED, DEVICE)
    for step in range(6):
        source.write()
        policy.update(source.draw()[1], step=step)
    frames = weakref.ref(tree.leaves(frames_of(source.draw()[1]))[0])
    assert frames() is not None
    del source
    gc.collect()
    assert frames() is None

    source = Source(STACKED, DEVICE)  # whose images may lie where the last ones did
    for step in range(6, 12):
        source.write()
        policy.update(source.draw()[1], step=step)


@pytest.mark.usefixtures("taped")
def test_batches_of_arrays_and_of_places_may_take_turns() -> None:
    options: dict[str, Any] = {"hidden": None, "head": (8,), "engine": "cuda_graph", "device": DEVICE}
    plain, resident, source = made(STACKED, **options), made(STACKED, **options), Source(STACKED, DEVICE)
    for step in range(12):
        source.write()
        arrays, places = source.draw()
        plain.update(arrays, step=step)
        resident.update(places.copy() if step in (5, 9, 10) else places, step=step)
    assert_same(parameters_of(resident), parameters_of(plain))


@pytest.mark.usefixtures("taped")
def test_a_copy_of_a_policy_learns_on_and_takes_no_images_along() -> None:
    options: dict[str, Any] = {"hidden": None, "head": (8,), "engine": "cuda_graph", "device": DEVICE}
    plain, resident, source = made(STACKED, **options), made(STACKED, **options), Source(STACKED, DEVICE)
    learn_alike(plain, resident, source, 6)
    learn_alike(copy.deepcopy(plain), copy.deepcopy(resident), source, 6)
    learn_alike(plain, resident, source, 6)


# ---- what must not be read ----


@pytest.mark.parametrize(
    ("engine", "device"), [*((engine, "cpu") for engine in engines("torch", "numpy")), ("cuda_graph", DEVICE)]
)
@pytest.mark.usefixtures("taped")
def test_a_batch_of_before_is_refused_and_nothing_has_moved(engine: Any, device: str) -> None:
    policy, source = made(STACKED, hidden=None, head=(8,), engine=engine, device=device), Source(STACKED, device)
    for step in range(5):
        source.write()
        policy.update(source.draw()[1], step=step)
    batch = source.draw()[1]
    source.write()
    source.draw()
    before = parameters_of(policy)
    with pytest.raises(DeviceError, match=r"learn from a batch before the next sample, or keep it by batch\.copy\(\)"):
        policy.update(batch, step=5)
    assert_same(parameters_of(policy), before)
    policy.update(source.draw()[1], step=5)


def test_a_leaf_that_is_no_array_says_how_to_make_it_one() -> None:
    source = Source(STACKED)
    source.write(3)
    leaf = source.draw()[1].obs
    array = np.asarray(leaf)
    assert (leaf.ndim, leaf.shape, leaf.dtype, len(leaf)) == (array.ndim, array.shape, array.dtype, len(array))
    assert len({leaf, leaf}) == 1
    np.testing.assert_array_equal(list(leaf), array)
    with pytest.raises(AttributeError, match=r"have no 'astype': np\.asarray\(leaf\) or batch\.copy\(\) makes"):
        leaf.astype(np.float32)


def test_a_preset_and_a_file_name_the_frames_of_a_device_as_a_part() -> None:
    frames = from_text("DeviceFrames('cpu')")
    assert isinstance(frames, DeviceFrames)
    assert to_plain(frames) == {"part": "DeviceFrames", "of": {"device": "cpu"}, "extension": "cuda"}
    assert str(from_plain(to_plain(frames)).device) == "cpu"


def test_stacks_that_are_padded_with_zeros_are_the_same_on_a_device() -> None:
    envs = tk.make_envs(Flicker, 2, seed=3, stack=4, pad="zero")
    assert_same_rows(collected(envs, 7, 150, frames=DeviceFrames("cpu")), by_gymnasium(7, 150))
