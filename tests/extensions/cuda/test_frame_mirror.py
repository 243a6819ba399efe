"""Images that lie elsewhere too: batches are what a plain buffer's are, whatever was written between two draws."""

import copy
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from tests.buffer import programs
from tests.buffer.reference import assert_same
from tests.buffer.stream import CONTINUES, IS_TRUNCATED, TERMINATES, Form, Stream
from tests.helpers.faults import Fault, assert_noticed, rewritten
from tests.trainer.toys import leaves
from trainkit.buffer import PrioritizedReplayBuffer, ReplayBuffer
from trainkit.buffer.storage import Storage
from trainkit.core import tree
from trainkit.core.data import ACTION_MASK, Horizon, Lookup, TransitionBatch
from trainkit.core.errors import ConfigError, DeviceError
from trainkit.engine import DeviceFrames
from trainkit.extensions.cuda import frame_mirror
from trainkit.extensions.cuda.frame_mirror import FrameMirror

ONE = Horizon(1)
PARTS = ("obs", "action", "reward", "discount", "next_obs", "weight", "slots", "extras")
IMAGES: list[Form] = ["pixels", "views"]
POISON = 254  # no image has it


class Shelf:
    """Images in an array: no device, nothing clever, and no image where none was put."""

    def __init__(self, n_images: int, shape: tuple[int, ...]) -> None:
        self.images = np.full((n_images, *shape), POISON, np.uint8)
        self.shape, self.n_written, self.is_released = shape, 0, False
        self.sent: list[int] = []  # images of each write

    def write(self, indices: NDArray[np.int64], column: NDArray[np.uint8], rows: NDArray[np.int64]) -> None:
        assert not self.is_released
        self.n_written += 1
        self.sent.append(len(rows))
        self.images[indices] = column[rows]

    def read(self, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
        assert not self.is_released
        return self.images[indices]

    gather = read

    def release(self) -> None:
        self.is_released, self.n_written = True, -1


class Shelves:
    """Where shelves are claimed."""

    device = "shelf"

    def __init__(self) -> None:
        self.claimed: list[Shelf] = []

    def mirror(self, owner: str, storage: Storage) -> FrameMirror:
        return FrameMirror(owner, storage, self)

    def claim(self, owner: str, n_images: int, shape: tuple[int, ...]) -> Shelf:
        self.claimed.append(Shelf(n_images, shape))
        return self.claimed[-1]


def as_arrays(batch: TransitionBatch) -> dict[str, Any]:
    return {name: tree.map_tree(np.asarray, getattr(batch, name)) for name in PARTS}


class Pair:
    """A plain buffer and one that keeps its images elsewhere too, doing the same."""

    def __init__(
        self, store: Any, kind: Any = ReplayBuffer, form: Form = "pixels", n_step: Any = 1, **how: Any
    ) -> None:
        how = {"capacity": 20, "n_envs": 2, "stack": 1} | how
        self.plain = kind(**how, seed=1)
        self.there = kind(**how, seed=1, frames=store)
        self.stream = Stream(how["n_envs"], form, how["stack"])
        self.horizon = Horizon(n_step, 0.5)
        self.make = lambda: kind(**how, seed=2, frames=store)
        self.n_compared = 0

    @property
    def both(self) -> tuple[ReplayBuffer, ReplayBuffer]:
        return self.plain, self.there

    def run(self, env_ids: list[int] | None, n_steps: int, length: int) -> None:
        """Make steps; environment e ends its episodes after `length + e` steps, 0 is never."""
        ids = range(self.stream.n_envs) if env_ids is None else env_ids
        for _ in range(n_steps if ids else 0):
            is_over = [length > 0 and self.stream.step[env] + 1 >= length + env for env in ids]
            step = self.stream.next(ids, [TERMINATES + self.stream.episode[env] % 3 if over else CONTINUES
                                          for env, over in zip(ids, is_over, strict=True)])  # fmt: skip
            for buffer in self.both:
                buffer.add(step)

    def cut(self, env_ids: list[int]) -> None:
        for buffer in self.both:
            buffer.cut(env_ids)
        self.stream.begin(env_ids)

    def drop(self, env_ids: list[int]) -> None:
        for buffer in self.both:
            buffer.drop(env_ids)
        self.stream.begin(env_ids)

    def clear(self) -> None:
        for buffer in self.both:
            buffer.clear()
        self.stream.begin(range(self.stream.n_envs))

    def reload(self) -> None:
        """Continue with a buffer made of what was saved, or with the same that takes over its own state."""
        state = copy.deepcopy(self.there.state_dict())
        assert dict(leaves(state)) == dict(leaves(self.plain.state_dict()))
        if self.n_compared % 2:
            self.there = self.make()
        self.there.load_state_dict(state)

    def draw(self, n_batches: int = 1) -> None:
        """Compare a round, and write priorities."""
        self.n_compared += 1
        if len(self.plain) == 0:
            return
        ours, theirs = (b.sample_round(n_batches, 8, horizon=self.horizon, columns=["t"]) for b in self.both)
        for one, other in zip(ours, theirs, strict=True):
            assert_same(as_arrays(other), as_arrays(one))
            for buffer in self.both:
                buffer.update_priorities(one.slots, one.slots % 7 / 2)


@st.composite
def how_to(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a small buffer of images."""
    how: dict[str, Any] = draw(programs.settings())
    del how["normalize"]
    return how | {
        "form": draw(st.sampled_from(IMAGES)),
        "store": draw(st.builds(Shelves) | st.just(DeviceFrames("cpu"))),
    }


def operations(n_envs: int) -> st.SearchStrategy[list[programs.Operation]]:
    """Draw programs in which several things happen between two draws."""
    some_envs = st.sets(st.integers(0, n_envs - 1)).map(sorted)
    return st.lists(
        st.tuples(st.just("run"), some_envs | st.none(), st.integers(1, 25), st.integers(0, 9))
        | st.tuples(st.sampled_from(["cut", "drop"]), some_envs)
        | st.tuples(st.just("draw"), st.integers(1, 3))
        | st.tuples(st.sampled_from(["draw", "clear", "reload"])),
        min_size=1,
        max_size=15,
    )


def carry_out(how: dict[str, Any], program: list[programs.Operation]) -> None:
    pair = Pair(**how)
    for name, *arguments in program:
        getattr(pair, name)(*arguments)
    pair.draw(2)


# ---- the truth ----


@given(how=how_to(), data=st.data())
@settings(max_examples=50)
def test_every_batch_is_a_plain_buffers(how: dict[str, Any], data: st.DataObject) -> None:
    carry_out(how, data.draw(operations(how["n_envs"])))


@pytest.mark.slow
@given(how=how_to(), data=st.data())
@settings(max_examples=5_000)
def test_every_batch_is_a_plain_buffers_in_thousands_of_programs(how: dict[str, Any], data: st.DataObject) -> None:
    carry_out(how, data.draw(operations(how["n_envs"])))


@pytest.mark.parametrize("stack", [1, 4])
@pytest.mark.parametrize("form", IMAGES)
def test_rings_that_wrap_again_and_again_between_draws_of_every_distance(form: Form, stack: int) -> None:
    pair = Pair(Shelves(), PrioritizedReplayBuffer, form, n_step=3, stack=stack)
    for n_steps in (*range(1, 15), 20, 21, 39):
        pair.run(None, n_steps, 4)
        pair.draw()


def test_an_episode_cut_where_it_was_at_the_last_draw_has_its_final_image() -> None:
    pair = Pair(Shelves())
    pair.run(None, 3, 0)
    pair.draw()
    pair.cut([1])
    pair.draw(4)


def test_an_episode_dropped_and_another_begun_in_its_place() -> None:
    pair = Pair(Shelves(), stack=3)
    pair.run(None, 5, 3)
    pair.draw()
    for n_steps in (1, 4, 2, 6):
        pair.run(None, n_steps, 0)
        pair.drop([0])
        pair.run([0], 1, 0)
        pair.draw(4)


# ---- what is sent, and where to ----


def test_a_draw_sends_what_was_written_since_the_last_one_and_no_more() -> None:
    shelves = Shelves()
    pair = Pair(shelves, n_envs=3, capacity=60)
    pair.run(None, 4, 0)
    pair.draw()
    (shelf,) = shelves.claimed
    assert shelf.sent == [3 * 5, 0]  # each step's image, and the newest; no final one
    pair.draw()
    assert shelf.sent == [15, 0]
    pair.run(None, 2, 0)
    pair.draw()
    assert shelf.sent[2:] == [3 * 3, 0]  # the newest of before, which would be another had its episode ended
    pair.cut([0, 2])
    pair.draw()
    assert shelf.sent[4:] == [3, 2]
    pair.run(None, 1_000, 0)
    pair.draw()
    assert shelf.sent[6:] == [3 * 21, 16]  # everything, once: rings of 20 rows and a pending one, a block of finals


def test_final_images_that_find_no_room_have_everything_allocated_again() -> None:
    shelves = Shelves()
    pair = Pair(shelves, capacity=60, form="views")
    for _ in range(8):
        pair.run(None, 4, 1)  # every other row is an episode's last, or all are
        pair.draw()
    n_rows = 2 * (30 + 1)
    assert [len(shelf.images) for shelf in shelves.claimed[:2]] == [n_rows + 16] * 2
    assert len(shelves.claimed) in (4, 6)
    assert [shelf.is_released for shelf in shelves.claimed] == [True] * (len(shelves.claimed) - 2) + [False] * 2


def test_a_draw_that_found_no_room_is_made_good_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    def claim(*given: Any) -> Shelf:
        raise DeviceError("no room")

    shelves = Shelves()
    pair = Pair(shelves, capacity=60)
    pair.run(None, 4, 1)
    pair.draw()
    pair.run(None, 26, 1)
    with monkeypatch.context() as patched:
        patched.setattr(shelves, "claim", claim)
        for _ in range(2):
            with pytest.raises(DeviceError, match="no room"):
                pair.there.sample(8, horizon=ONE)
    pair.there._rng.bit_generator.state = pair.plain.state_dict()["rng"]  # as before both attempts
    pair.draw()


def test_only_images_lie_elsewhere() -> None:
    pair = Pair(Shelves(), form="views", stack=2)
    pair.run(None, 3, 0)
    obs = pair.there.sample(4, horizon=ONE).obs
    assert [type(leaf) for leaf in (obs["view"], obs["other"][1]["mirrored"])] == [Lookup, Lookup]
    assert [type(leaf) for leaf in (obs["other"][0], obs[ACTION_MASK])] == [np.ndarray, np.ndarray]
    assert obs["view"].indices.shape == (4, 2)


def test_what_is_saved_knows_nothing_of_it(tmp_path: Path) -> None:
    pair = Pair(Shelves(), PrioritizedReplayBuffer, stack=2)
    pair.run(None, 30, 4)
    pair.draw()
    pair.there.save(tmp_path / "buffer.npz")
    plain = PrioritizedReplayBuffer.load(tmp_path / "buffer.npz")
    assert plain.frames is None
    pair.plain, pair.there = plain, PrioritizedReplayBuffer.load(tmp_path / "buffer.npz", frames=Shelves())
    for _ in range(4):
        pair.draw(2)
        pair.run(None, 3, 4)


def test_a_dataset_of_images_is_drawn_from_elsewhere_too() -> None:
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {"obs": rng.integers(0, 200, (30, 4, 4), np.uint8), "action": np.zeros(30, np.int64)}
    columns |= {"reward": np.arange(30.0), "terminated": np.arange(30) % 6 == 5}
    plain, there = (ReplayBuffer.from_arrays(**columns, stack=3, seed=1, frames=how) for how in (None, Shelves()))
    assert_same(*(as_arrays(buffer.sample(64, horizon=Horizon(3))) for buffer in (there, plain)))


# ---- what a batch has in hand ----


def drawn() -> tuple[Pair, TransitionBatch]:
    pair = Pair(Shelves(), stack=2)
    pair.run(None, 8, 3)
    return pair, pair.there.sample(6, horizon=ONE)


def test_a_leaf_has_the_shape_and_the_numbers_of_its_array() -> None:
    pair, batch = drawn()
    array = pair.plain.sample(6, horizon=ONE).obs
    assert (batch.obs.shape, batch.obs.dtype, len(batch.obs)) == (array.shape, array.dtype, len(array))
    assert_array_equal(batch.obs, array)
    assert_array_equal(batch.obs[1:3], array[1:3])
    assert_array_equal(np.asarray(batch.obs, np.float32), array.astype(np.float32))


def test_copies_are_arrays_and_stay() -> None:
    pair, batch = drawn()
    expected = as_arrays(batch)
    copies = [batch.copy(), copy.deepcopy(batch), pickle.loads(pickle.dumps(batch))]  # noqa: S301 - our own
    pair.run(None, 5, 3)
    pair.there.sample(6, horizon=ONE)
    for one in copies:
        assert isinstance(one.obs, np.ndarray)
        assert_same(as_arrays(one), expected)


def test_a_batch_of_before_is_refused_once_a_later_draw_has_sent_other_images() -> None:
    pair, batch = drawn()
    expected = as_arrays(batch)
    pair.there.sample(6, horizon=ONE)  # after which nothing had been written
    pair.run(None, 1, 3)
    assert_same(as_arrays(batch), expected)  # as nothing was drawn yet
    pair.there.sample(6, horizon=ONE)
    for leaf in (batch.obs, batch.next_obs):
        with pytest.raises(DeviceError, match=r"until a later batch is drawn.*or keep it by batch.copy\(\)"):
            np.asarray(leaf)
    with pytest.raises(DeviceError, match="before the next sample"):
        batch.copy()


def test_a_batch_of_before_is_refused_when_its_memory_was_allocated_again() -> None:
    pair = Pair(Shelves(), capacity=60)
    pair.run(None, 4, 1)
    batch = pair.there.sample(6, horizon=ONE)
    pair.run(None, 26, 1)
    pair.there.sample(6, horizon=ONE)
    with pytest.raises(DeviceError, match="until a later batch is drawn"):
        np.asarray(batch.obs)


# ---- what cannot be ----


def test_observations_without_images_are_refused_before_anything_is_claimed() -> None:
    buffer = ReplayBuffer(20, frames=Shelves())
    with pytest.raises(ConfigError, match=r"ReplayBuffer\.frames is for observations with images, uint8 of two axes"):
        buffer.add(Stream(2).next(ends=IS_TRUNCATED))
    assert buffer.nbytes == 0


@pytest.mark.parametrize("wrong", ["cuda", 1, object()])
def test_what_is_no_store_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"frames"):
        ReplayBuffer(5, frames=wrong)


# ---- faults that the tests above must notice ----

MUTANTS = {
    "images of a dropped episode in the mirror": Fault(
        plant=rewritten(frame_mirror, "$sent.n_dropped - $now.n_dropped", "0 * $now.n_dropped"),
        check=test_an_episode_dropped_and_another_begun_in_its_place,
    ),
    "a cut that the mirror of images ignores": Fault(
        plant=rewritten(
            frame_mirror,
            "($now.serial, $now.n_episodes) == ($sent.serial, $sent.n_episodes)",
            "$now.serial == $sent.serial",
        ),
        check=test_an_episode_cut_where_it_was_at_the_last_draw_has_its_final_image,
    ),
    "images of the lap before in the mirror": Fault(
        plant=rewritten(frame_mirror, "$now.serial - $sent.serial >= $lap", "False"),
        check=partial(
            test_rings_that_wrap_again_and_again_between_draws_of_every_distance,
            form="pixels",
            stack=1,
        ),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_fault_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_noticed(MUTANTS[name], monkeypatch)
