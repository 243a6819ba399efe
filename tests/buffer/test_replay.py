"""The replay buffer returns every row as it was added, after any operation and through files."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from tests.buffer import programs
from tests.buffer.programs import Run
from tests.buffer.reference import COLUMNS, assert_same
from tests.buffer.stream import CONTINUES, FORMS, IS_TRUNCATED, TERMINATES, Form, Stream, where
from trainkit.buffer import PrioritizedReplayBuffer, ReplayBuffer
from trainkit.buffer.storage import row_spec
from trainkit.core import files, tree
from trainkit.core.data import Horizon, Transition, TransitionBatch
from trainkit.core.errors import CheckpointError, ConfigError, EmptyBufferError, TrainkitError
from trainkit.core.spaces import Spaces

ONE, THREE = Horizon(1), Horizon(3, gamma=0.5)
KINDS: list[type[ReplayBuffer]] = [ReplayBuffer, PrioritizedReplayBuffer]
every_kind = pytest.mark.parametrize("kind", KINDS)
PARTS = ("obs", "action", "reward", "discount", "next_obs", "weight", "slots", "extras")


def assert_batches_equal(one: TransitionBatch, other: TransitionBatch) -> None:
    for name in PARTS:
        assert_same(getattr(one, name), getattr(other, name))


def assert_continue_equally(one: ReplayBuffer, other: ReplayBuffer, stream: Stream | None = None) -> None:
    """Check that two buffers draw the same, learn the same and take the same rows in the same way."""
    for _ in range(4):
        ours, theirs = (buffer.sample(16, horizon=Horizon((1, 4)), columns=COLUMNS) for buffer in (one, other))
        assert_batches_equal(ours, theirs)
        for buffer in (one, other):
            buffer.update_priorities(ours.slots, np.arange(16.0))
        if stream is not None:
            step = stream.next(ends=IS_TRUNCATED if stream.step[0] % 3 == 2 else CONTINUES)
            assert_array_equal(one.add(step), other.add(step))
    assert len(one) == len(other)


def filled(
    kind: type[ReplayBuffer], n_steps: int = 30, form: Form = "array", **options: Any
) -> tuple[ReplayBuffer, Stream]:
    """Make a buffer of two environments with episodes of 4 and 5 steps, some priorities written."""
    buffer, stream = kind(options.pop("capacity", 33), seed=3, **options), Stream(2, form, options.get("stack", 1))
    for t in range(n_steps):
        buffer.add(stream.next(ends=[TERMINATES * (t % 4 == 3), IS_TRUNCATED * (t % 5 == 4)]))
        if t % 7 == 6:
            slots = buffer.sample(6, horizon=ONE).slots
            buffer.update_priorities(slots, slots % 5 / 2)
    return buffer, stream


# ---- all rows at once ----


@every_kind
@pytest.mark.parametrize("n_steps", [1, 10, 60])  # with and without overwritten rows
def test_no_batch_size_is_every_row_once_as_a_draw_of_it_would_be(kind: type[ReplayBuffer], n_steps: int) -> None:
    buffer, _ = filled(kind, n_steps)
    rng = buffer.state_dict()["rng"]
    whole = buffer.sample(None, horizon=THREE, columns=[*COLUMNS, "weight"])
    assert buffer.state_dict()["rng"] == rng  # nothing was drawn
    assert len(whole) == len(np.unique(whole.slots)) == len(buffer)
    assert_array_equal(whole.weight, np.ones(len(buffer), np.float32))
    assert_array_equal(whole.extras["weight"], np.ones(len(buffer)))
    at = {slot: row for row, slot in enumerate(whole.slots.tolist())}
    drawn = buffer.sample(500, horizon=THREE, columns=COLUMNS)
    assert set(drawn.slots.tolist()) <= set(at)
    rows = [at[slot] for slot in drawn.slots.tolist()]
    for name in ("obs", "action", "reward", "discount", "next_obs"):
        assert_same(tree.map_tree(lambda leaf: leaf[rows], getattr(whole, name)), getattr(drawn, name))
    for name in COLUMNS:
        assert_array_equal(whole.extras[name][rows], drawn.extras[name])


@every_kind
def test_no_batch_size_of_an_empty_buffer_is_refused(kind: type[ReplayBuffer]) -> None:
    with pytest.raises(EmptyBufferError, match="is empty"):
        kind(10).sample(None, horizon=ONE)


# ---- the truth ----


@given(how=programs.settings(), data=st.data())
@settings(max_examples=50)
def test_every_number_of_a_batch_is_what_the_reference_says(how: dict[str, Any], data: st.DataObject) -> None:
    run = Run(**how)
    for operation in data.draw(programs.operations(how["n_envs"])):
        run.do(*operation)


@pytest.mark.slow
@given(how=programs.settings(), data=st.data())
@settings(max_examples=10_000)
def test_every_number_of_a_batch_is_what_the_reference_says_in_thousands_of_programs(
    how: dict[str, Any], data: st.DataObject
) -> None:
    run = Run(**how)
    for operation in data.draw(programs.operations(how["n_envs"])):
        run.do(*operation)


@pytest.mark.one_of_each
@every_kind
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("stack", [1, 4])
def test_long_programs_stay_true_with_every_form_of_observation(
    kind: type[ReplayBuffer], form: Form, stack: int
) -> None:
    run = Run(kind, capacity=47, n_envs=4, stack=stack, form=form, n_step=(1, 4), normalize="buffer")
    for length in (3, 0, 5):
        run.do("run", None, 15, length)
        run.do("learn")
        run.do("run", [0, 2], 17, length)
        run.do("learn_late")
        run.do("cut", [1, 2])
        run.do("run", [1, 3], 9, length)
        run.do("drop", [0, 1])
        run.do("rewrite")
        run.do("reload")


def long_run(buffer: ReplayBuffer, n_rows: int, check: Callable[[NDArray[Any], int], None]) -> None:
    """Add tagged rows [env, episode, step] of 8 environments with episodes of 3 to 74 steps; check now and then."""
    envs = np.arange(8)
    episode, step = np.zeros(8, np.int64), np.zeros(8, np.int64)
    for serial in range(n_rows // 8):
        over = step + 1 == lengths(envs, episode)
        here, after = (np.stack([envs, episode, at], axis=1) for at in (step, step + 1))
        terminated = over & ((envs + episode) % 2 == 0)
        reward = (step % 8).astype(np.float64)
        buffer.add(Transition(here, step % 3, reward, after, terminated, over & ~terminated, envs, {}))
        episode, step = episode + over, np.where(over, 0, step + 1)
        if serial % 97 == 96:
            check(here, serial)


def lengths(env: NDArray[Any], episode: NDArray[Any]) -> NDArray[Any]:
    return 3 + (7 * env + 11 * episode) % 72


@pytest.mark.parametrize("n_rows", [20_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
@every_kind
def test_rows_of_a_long_run_are_true_by_formula(kind: type[ReplayBuffer], n_rows: int) -> None:
    buffer = kind(7_001, seed=1)
    horizon = Horizon((1, 5), gamma=0.5)

    def check(newest: NDArray[Any], serial: int) -> None:
        batch = buffer.sample(256, horizon=horizon, columns=["n", "env_id", "episode", "t"])
        env, episode, step = batch.obs.T
        assert_array_equal(np.stack([batch.extras[name] for name in ("env_id", "episode", "t")]), batch.obs.T)
        n = batch.extras["n"]
        is_open = episode == newest[env, 1]
        ahead = np.where(is_open, newest[env, 2] - step + 1, lengths(env, episode) - step)
        assert ((n >= 1) & (n <= np.minimum(5, ahead))).all()
        assert_array_equal(batch.next_obs, np.stack([env, episode, step + n], axis=1))
        assert_array_equal(batch.action, step % 3)
        over = (step + n == lengths(env, episode)) & ((env + episode) % 2 == 0)
        assert_array_equal(batch.discount, np.where(over, 0, 0.5**n))
        gain = sum((step + i) % 8 * 0.5**i * (i < n) for i in range(5))
        assert_array_equal(batch.reward, gain)
        buffer.update_priorities(batch.slots, (step % 4).astype(np.float64))

    long_run(buffer, n_rows, check)
    assert len(buffer) == 7_001


@every_kind
def test_rewards_are_the_only_thing_that_can_be_rewritten(kind: type[ReplayBuffer]) -> None:
    buffer, _ = filled(kind)
    before = buffer.sample(2000, horizon=ONE, columns=COLUMNS)
    buffer.rewrite(before.slots, reward=-before.slots.astype(np.float64))
    after = buffer.sample(2000, horizon=ONE, columns=COLUMNS)
    assert_array_equal(after.reward, -after.slots.astype(np.float32))
    assert set(where(before.obs)) == set(where(after.obs))


def test_a_mask_among_stacked_observations_is_the_newest_frames() -> None:
    buffer, stream = ReplayBuffer(20, stack=3, seed=1), Stream(2, "masked", stack=3)
    for _ in range(5):
        buffer.add(stream.next())
    batch = buffer.sample(40, horizon=ONE)
    assert batch.obs["obs"].shape == (40, 3, 3)
    assert batch.obs["action_mask"].shape == (40, 3)
    assert_array_equal(batch.obs["action_mask"].sum(axis=1), 1 + batch.obs["obs"][:, -1, 2] % 3)


# ---- seeds ----


def test_other_seeds_draw_other_rows_and_equal_seeds_the_same() -> None:
    def drawn(**options: Any) -> list[int]:
        buffer, stream = ReplayBuffer(1000, **options), Stream(1)
        for _ in range(100):
            buffer.add(stream.next())
        slots: list[int] = buffer.sample(32, horizon=ONE).slots.tolist()
        return slots

    assert drawn(seed=1) == drawn(seed=1)
    assert drawn(seed=1) != drawn(seed=2)
    assert drawn() != drawn()


def test_a_trainers_seed_starts_the_same_stream_as_ones_own() -> None:
    own, given_later = ReplayBuffer(10, seed=5), ReplayBuffer(10)
    assert own.is_seeded
    assert not given_later.is_seeded
    given_later.seed(5)
    assert given_later.is_seeded
    stream = Stream(1)
    for _ in range(5):
        step = stream.next()
        own.add(step)
        given_later.add(step)
    assert_continue_equally(own, given_later)


# ---- files ----


@pytest.mark.one_of_each
@every_kind
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n_steps", [3, 40])
def test_a_loaded_buffer_continues_bit_for_bit(
    kind: type[ReplayBuffer], form: Form, n_steps: int, tmp_path: Path
) -> None:
    buffer, stream = filled(kind, n_steps, form, stack=2)
    buffer.save(tmp_path / "new folder" / "buffer.npz")
    again = kind.load(str(tmp_path / "new folder" / "buffer.npz"))
    assert again.nbytes == buffer.nbytes
    assert repr(again) == repr(buffer)
    assert_continue_equally(buffer, again, stream)


@every_kind
def test_a_buffer_that_has_lived_takes_over_a_state_as_a_new_one_does(kind: type[ReplayBuffer]) -> None:
    saved, stream = filled(kind, 12)
    lived, _ = filled(kind, 100)
    lived.load_state_dict(saved.state_dict())
    assert_continue_equally(saved, lived, stream)


def test_environments_at_different_steps_continue_equally_after_a_load() -> None:
    buffer, stream = ReplayBuffer(6, n_envs=2, seed=1), Stream(2)
    for env_ids in [[0], *[[0, 1]] * 8, [1]]:  # equal heads and counts again, on another way
        buffer.add(stream.next(env_ids))
    again = ReplayBuffer(6, n_envs=2, seed=1)
    again.load_state_dict(buffer.state_dict())
    assert_continue_equally(buffer, again, stream)


def test_what_is_saved_keeps_its_names_so_that_older_files_are_read() -> None:
    buffer, stream = ReplayBuffer(6, n_envs=2, seed=1), Stream(2)
    for ends in ([TERMINATES, 0], [0, 0], [0, 0], [0, 0]):
        buffer.add(stream.next(ends=ends))
    rings = buffer.state_dict()["rings"]
    counters = {"head": [0, 1], "count": [3, 3], "open_steps": [3, 4], "episodes": [1, 0]}
    assert {name: counter.tolist() for name, counter in rings["counters"].items()} == counters
    named = {"action", "reward", "terminated", "truncated", "age", "episode", "final", "stamp", "obs."}
    assert rings["columns"].keys() == named | {"extras.hidden", "extras.log_prob"}
    assert rings["columns"]["age"].tolist() == [0, 0, 0, 1, 1, 2, 2, 3]
    assert rings["columns"]["episode"].tolist() == [0, 0, 1, 0, 1, 0, 1, 0]


@every_kind
def test_a_state_of_an_empty_buffer_empties_a_full_one(kind: type[ReplayBuffer], tmp_path: Path) -> None:
    buffer, stream = filled(kind)
    kind(33, seed=8).save(tmp_path / "empty.npz")
    buffer.load_state_dict(files.load_state(tmp_path / "empty.npz")["state"])
    assert len(buffer) == 0
    fresh = kind.load(tmp_path / "empty.npz")
    for _ in range(5):
        step = stream.next()
        assert len(buffer.add(step)) == len(fresh.add(step)) == 2
    ours, theirs = (part.sample(16, horizon=THREE, columns=["n", "log_prob"]) for part in (buffer, fresh))
    for name in ("obs", "reward", "discount", "weight", "extras"):
        assert_same(getattr(ours, name), getattr(theirs, name))


def test_options_given_to_load_replace_those_saved(tmp_path: Path) -> None:
    def by_step(step: int) -> float:
        return min(1.0, step / 10)

    PrioritizedReplayBuffer(10, beta=by_step, seed=1).save(tmp_path / "buffer.npz")
    rule = r"buffer.npz cannot restore beta=<function .*by_step.*>: give it to PrioritizedReplayBuffer.load, beta="
    with pytest.raises(CheckpointError, match=rule):
        PrioritizedReplayBuffer.load(tmp_path / "buffer.npz")
    again = PrioritizedReplayBuffer.load(tmp_path / "buffer.npz", beta=by_step)
    assert again.metrics(5)["beta"] == 0.5


def test_all_options_are_saved(tmp_path: Path) -> None:
    knots = [(0, 0.25), (100, 1.0)]
    options: dict[str, Any] = {"alpha": 0.7, "beta": knots, "eps": 0.5, "normalize": "buffer", "draw": "iid"}
    buffer, _ = filled(PrioritizedReplayBuffer, capacity=77, stack=3, form="pixels", **options)
    buffer.save(tmp_path / "buffer.npz")
    kept = files.load_state(tmp_path / "buffer.npz")["options"]
    beta = {"part": "Piecewise", "of": {"knots": [[0, 0.25], [100, 1.0]]}}
    assert kept == {"capacity": 77, "n_envs": None, "stack": 3, **options, "beta": beta}
    assert PrioritizedReplayBuffer.load(tmp_path / "buffer.npz").metrics(50)["beta"] == 0.625


def test_a_buffer_of_another_kind_or_capacity_is_refused(tmp_path: Path) -> None:
    uniform, prioritized = (filled(kind)[0] for kind in KINDS)
    for one, other in [(uniform, prioritized), (prioritized, uniform)]:
        one.save(tmp_path / "buffer.npz")
        kind, other_kind = type(one).__name__, type(other).__name__
        with pytest.raises(CheckpointError, match=f"does not hold a {other_kind}, it is a {kind}: call {kind}.load"):
            type(other).load(tmp_path / "buffer.npz")
        message = f"a {kind} of capacity 33 was saved, this is a {other_kind} of 33: make the buffer as it was"
        with pytest.raises(CheckpointError, match=message):
            other.load_state_dict(one.state_dict())
    with pytest.raises(CheckpointError, match="of capacity 33 was saved, this is a ReplayBuffer of 34"):
        ReplayBuffer(34).load_state_dict(uniform.state_dict())


@pytest.mark.parametrize("state", [{}, {"kind": "Policy"}, [1, 2], 3, None, "ReplayBuffer"])
def test_a_file_of_something_else_is_refused(state: Any, tmp_path: Path) -> None:
    files.save_state(tmp_path / "other.npz", state)
    with pytest.raises(CheckpointError, match=r"other.npz does not hold a ReplayBuffer"):
        ReplayBuffer.load(tmp_path / "other.npz")


def test_a_missing_or_cut_off_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no.npz cannot be read .*it is missing or damaged"):
        ReplayBuffer.load(tmp_path / "no.npz")
    filled(ReplayBuffer)[0].save(tmp_path / "buffer.npz")
    whole = (tmp_path / "buffer.npz").read_bytes()
    for n_bytes in [0, 1, 10, 100, len(whole) // 2, len(whole) - 10, len(whole) - 1]:
        (tmp_path / "buffer.npz").write_bytes(whole[:n_bytes])
        with pytest.raises(CheckpointError, match="missing or damaged"):
            ReplayBuffer.load(tmp_path / "buffer.npz")


def test_a_save_that_fails_leaves_the_last_one_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer, stream = filled(ReplayBuffer)
    buffer.save(tmp_path / "buffer.npz")
    before = (tmp_path / "buffer.npz").read_bytes()

    def disk_full(file: Any, **arrays: Any) -> None:
        file.write(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", disk_full)
    buffer.add(stream.next())
    with pytest.raises(OSError, match="No space left"):
        buffer.save(tmp_path / "buffer.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["buffer.npz"]
    assert (tmp_path / "buffer.npz").read_bytes() == before


# ---- from arrays ----


def recording(form: Form, n_steps: int, ends: dict[int, int]) -> tuple[list[Transition], dict[str, Any]]:
    """Record one environment, as steps and as arrays [T, ...]; an end of -1 is a cut without a flag."""
    stream = Stream(1, form)
    steps = []
    for t in range(n_steps):
        steps.append(stream.next(ends=max(0, ends.get(t, CONTINUES))))
        if ends.get(t) == -1:
            stream.begin([0])
    columns = [tree.map_tree(lambda *rows: np.concatenate(rows), *column) for column in zip(*steps, strict=True)]
    return steps, {name: column for name, column in zip(Transition._fields, columns, strict=True) if name != "env_ids"}


@pytest.mark.one_of_each
@every_kind
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n_steps", [1, 2, 30])
def test_a_buffer_from_arrays_is_one_filled_by_hand(kind: type[ReplayBuffer], form: Form, n_steps: int) -> None:
    ends = {0: TERMINATES, 4: -1, 11: IS_TRUNCATED, 12: TERMINATES, 20: -1}
    steps, arrays = recording(form, n_steps, ends)
    by_hand = kind(40, seed=1)
    for t, step in enumerate(steps):
        by_hand.add(step)
        if ends.get(t) == -1:
            by_hand.cut(0)
    at_once = kind.from_arrays(**arrays, capacity=40, seed=1)
    assert at_once.nbytes == by_hand.nbytes
    stream = Stream(1, form)
    stream.begin([0] * 9)
    for buffer in (by_hand, at_once):
        buffer.cut(0)
    assert_continue_equally(by_hand, at_once, stream)


def test_an_open_episode_of_arrays_continues_with_the_next_row() -> None:
    steps, arrays = recording("array", 5, {1: TERMINATES})
    arrays = tree.map_tree(lambda column: column[:4], arrays)
    buffer = ReplayBuffer.from_arrays(**arrays, capacity=10, seed=1)
    buffer.add(steps[4])
    batch = buffer.sample(100, horizon=Horizon(9), columns=["n", "t", "episode"])
    given = set(
        zip(batch.extras["episode"].tolist(), batch.extras["t"].tolist(), batch.extras["n"].tolist(), strict=True)
    )
    assert given == {(0, 0, 2), (0, 1, 1), (1, 0, 3), (1, 1, 2), (1, 2, 1)}


def test_without_next_observations_they_are_the_next_rows() -> None:
    _, arrays = recording("dict", 10, {3: TERMINATES, 9: TERMINATES})
    del arrays["next_obs"], arrays["truncated"], arrays["extras"]
    batch = ReplayBuffer.from_arrays(**arrays, seed=1).sample(100, horizon=Horizon(1, gamma=0.5), columns=["t"])
    continues = batch.discount > 0
    assert_array_equal(batch.next_obs["inner"]["step"][continues], batch.obs["inner"]["step"][continues] + 1)
    assert continues.sum() > 50
    assert_array_equal(
        continues, ~np.isin(batch.extras["t"], [3, 5]) | (batch.obs["where"][:, 1] == 1) & (batch.extras["t"] == 3)
    )


def test_stacks_of_single_frames_in_arrays_are_made_on_read() -> None:
    _, arrays = recording("pixels", 10, {3: TERMINATES})
    batch = ReplayBuffer.from_arrays(**arrays, stack=3, seed=1).sample(100, horizon=ONE, columns=["t"])
    assert batch.obs.shape == (100, 3, 1, 3, 1)
    t = batch.extras["t"][:, None]
    assert_array_equal(batch.obs[:, :, 0, 2, 0], np.maximum(t + np.arange(-2, 1), 0))
    assert_array_equal(batch.next_obs[:, :, 0, 2, 0], np.maximum(t + np.arange(-1, 2), 0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"next_obs": None}, "from_arrays needs next_obs where an episode is truncated or left open"),
        ({"next_obs": None, "truncated": None}, "needs next_obs where an episode is truncated or left open"),
        ({"action": np.zeros(4)}, r"from_arrays needs columns of one length >= 1, got lengths \[4, 5\]"),
        ({"extras": {"value": np.zeros(6)}}, r"needs columns of one length >= 1, got lengths \[5, 6\]"),
        ({"capacity": 4}, "ReplayBuffer.capacity 4 cannot hold the 5 rows given"),
    ],
)
def test_arrays_that_cannot_work_are_refused(change: dict[str, Any], message: str) -> None:
    _, arrays = recording("array", 5, {2: IS_TRUNCATED})
    with pytest.raises(ConfigError, match=message):
        ReplayBuffer.from_arrays(**arrays | change)


def nan_at(array: Any, *place: int, value: float = np.nan) -> Any:
    """Return a float copy with one bad number."""
    copied = np.array(array, np.float64)
    copied[place] = value
    return copied


N_ROWS = 70_000  # more than a block
ACTIONS_OF_2 = Spaces(observation_space=gym.spaces.Box(-1, 1, (2,), np.float64), action_space=gym.spaces.Discrete(2))
INDICES = Spaces(
    observation_space=gym.spaces.Dict(
        {"room": gym.spaces.Discrete(4, start=3), "at": gym.spaces.MultiDiscrete([2, 3])}
    ),
    action_space=gym.spaces.Discrete(2),
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"obs": nan_at(np.zeros((N_ROWS, 2)), 66_000, 1)}, r"obs must be finite, got nan in row 66000, index \(1,\)"),
        ({"reward": nan_at(np.zeros(N_ROWS), 69_999, value=np.inf)}, "reward must be finite, got inf in row 69999"),
        ({"action": nan_at(np.zeros(N_ROWS), 3)}, "action must be finite, got nan in row 3"),
        ({"extras": {"p": nan_at(np.ones(N_ROWS), 5)}}, r"extras\['p'\] must be finite, got nan in row 5"),
        ({"obs": np.full((N_ROWS, 2), "a")}, "obs must hold numbers or bools .*, got type <U1: convert it with astype"),
        ({"obs": np.full((N_ROWS, 2), None)}, "obs must hold numbers or bools of at most 64 bits, got type object"),
        ({"action": np.full(N_ROWS, "2")}, "action must hold numbers or bools of at most 64 bits, got type <U1"),
        ({"reward": np.full(N_ROWS, 1.0, object)}, "reward must hold numbers or bools .*, got type object"),
        ({"extras": {"p": np.full(N_ROWS, "2")}}, r"extras\['p'\] must hold numbers or bools"),
        ({"obs": np.zeros((N_ROWS, 2), np.longdouble)}, "obs must hold numbers or bools of at most 64 bits, got type"),
        ({"obs": torch.zeros(N_ROWS, 2)}, r"obs must be an array, or a dict or tuple of arrays, got tensor\("),
        ({"obs": {"a": np.zeros(N_ROWS), "b": torch.zeros(N_ROWS)}}, "obs must be an array, or a dict or tuple"),
        (
            {"obs": np.ma.masked_array(np.zeros((N_ROWS, 2)), np.arange(2 * N_ROWS) == 9)},
            r"obs must have a value in every row, got a masked array: replace the masked values by filled\(value\)",
        ),
        ({"reward": np.ma.masked_less(np.arange(N_ROWS), 3)}, "reward must have a value in every row"),
        ({"terminated": np.ma.masked_less(np.ones(N_ROWS), 2)}, "terminated must have a value in every row"),
        ({"terminated": np.full(N_ROWS, "x")}, "terminated must hold numbers or bools"),
        ({"terminated": nan_at(np.ones(N_ROWS), 7)}, "terminated must be 0 or 1, got nan in row 7"),
        ({"terminated": np.arange(N_ROWS)}, "terminated must be 0 or 1, got 2 in row 2"),
        ({"reward": np.zeros((N_ROWS, 2))}, r"reward must have one number per row, got shape \(70000, 2\)"),
        ({"obs": {1: np.zeros((N_ROWS, 2))}}, "obs must have strings as keys, got 1: rename it to '1'"),
        ({"next_obs": np.zeros((N_ROWS, 3))}, "next_obs must be like obs"),
        ({"spaces": ACTIONS_OF_2, "action": np.arange(N_ROWS) % 3}, r"action must be in \[0, 1\], got 2 in row 2"),
        (
            {"spaces": ACTIONS_OF_2, "action": np.zeros((N_ROWS, 1), int)},
            r"action must have rows of shape \(\), as in its space, got \(1,\): reshape it, or give the spaces",
        ),
        ({"spaces": ACTIONS_OF_2, "obs": np.zeros((N_ROWS, 3))}, r"obs must have rows of shape \(2,\), as in its"),
        ({"spaces": ACTIONS_OF_2, "obs": {"a": np.zeros((N_ROWS, 2))}}, "obs must have rows .* got no such column"),
        (
            {"spaces": INDICES, "obs": {"at": np.zeros((N_ROWS, 3)), "room": np.zeros(N_ROWS)}},
            r"obs\[at\] must have rows of shape \(2,\)",
        ),
        (
            {"spaces": INDICES, "obs": {"at": np.zeros((N_ROWS, 2)), "room": np.full(N_ROWS, 2)}},
            r"obs\[room\] must be in \[3, 6\], got 2 in row 0: fix the data",
        ),
        (
            {"spaces": INDICES, "obs": {"at": np.full((N_ROWS, 2), 2), "room": np.full(N_ROWS, 3)}},
            r"obs\[at\] must be in \[\[0 0\], \[1 2\]\], got 2 in row 0, index \(0,\)",
        ),
    ],
)
def test_columns_that_cannot_be_learned_from_are_named(change: dict[str, Any], message: str) -> None:
    flags = np.ones(N_ROWS, np.bool_)
    columns = {"obs": np.zeros((N_ROWS, 2)), "action": np.zeros(N_ROWS, np.int64), "reward": np.zeros(N_ROWS)}
    with pytest.raises(ConfigError, match=rf"ReplayBuffer\.from_arrays[:.] ?{message}"):
        ReplayBuffer.from_arrays(**{**columns, "terminated": flags, **change})


def test_columns_in_another_byte_order_are_stored_in_the_native_one() -> None:
    _, arrays = recording("array", 9, {4: IS_TRUNCATED})
    swapped = tree.map_tree(lambda column: column.astype(column.dtype.newbyteorder()), arrays)
    own, other = (ReplayBuffer.from_arrays(**one, seed=1) for one in (arrays, swapped))
    assert not swapped["obs"].dtype.isnative
    assert_continue_equally(own, other)


def test_the_shapes_of_stacked_spaces_are_not_those_of_single_frames() -> None:
    _, arrays = recording("array", 9, {})
    spaces = Spaces(
        observation_space=gym.spaces.Box(-1, 1, (3, *arrays["obs"].shape[1:])),
        action_space=gym.spaces.Box(-1, 1, arrays["action"].shape[1:]),
    )
    assert ReplayBuffer.from_arrays(**arrays, stack=3, spaces=spaces).spaces == spaces


def test_a_final_observation_that_is_not_finite_is_named_by_its_row() -> None:
    obs, next_obs = np.zeros((9, 1)), nan_at(np.zeros((9, 1)), 4, 0)
    truncated = np.arange(9) == 4
    with pytest.raises(ConfigError, match=r"from_arrays: next_obs must be finite, got nan in row 4, index \(0,\)"):
        ReplayBuffer.from_arrays(
            obs=obs,
            next_obs=next_obs,
            action=np.zeros(9),
            reward=np.zeros(9),
            terminated=~truncated,
            truncated=truncated,
        )


def test_arrays_of_no_rows_are_refused() -> None:
    _, arrays = recording("array", 1, {})
    none = tree.map_tree(lambda column: column[:0], arrays)
    for nothing in (none, none | {"next_obs": None}):
        with pytest.raises(ConfigError, match=r"needs columns of one length >= 1, got lengths \[0\]"):
            ReplayBuffer.from_arrays(**nothing)


# ---- wrong input ----


@pytest.mark.parametrize("capacity", [0, -1, 2.5, True, None, "100"])
@every_kind
def test_a_capacity_is_a_whole_number_from_one(kind: type[ReplayBuffer], capacity: Any) -> None:
    message = f"^{kind.__name__}.capacity must be a whole number >= 1, got {capacity!r}$"
    with pytest.raises(ConfigError, match=message):
        kind(capacity)


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        ReplayBuffer(0, n_envs=0, stack=1.5, seed=-1)  # type: ignore[arg-type]  # the mistakes tested
    assert str(caught.value).splitlines() == [
        "ReplayBuffer.capacity must be a whole number >= 1, got 0",
        "ReplayBuffer.stack must be a whole number >= 1, got 1.5",
        "ReplayBuffer.n_envs must be a whole number >= 1, got 0",
        "ReplayBuffer.seed must be a whole number >= 0, got -1",
    ]


@pytest.mark.parametrize("batch_size", [0, -3, 1.5, True])
def test_a_batch_size_is_a_whole_number_from_one(batch_size: Any) -> None:
    buffer, _ = filled(ReplayBuffer)
    message = f"^ReplayBuffer.sample needs an integer batch_size >= 1, got {batch_size!r}$"
    with pytest.raises(ConfigError, match=message):
        buffer.sample(batch_size, horizon=ONE)
    assert len(buffer.sample(np.int32(2), horizon=ONE)) == 2  # type: ignore[arg-type]  # as good as an int


@every_kind
def test_an_empty_buffer_cannot_be_sampled(kind: type[ReplayBuffer]) -> None:
    buffer = kind(10, seed=1)
    message = f"^{kind.__name__} is empty: collect or add transitions before sampling$"
    with pytest.raises(EmptyBufferError, match=message):
        buffer.sample(1, horizon=ONE)
    stream = Stream(1)
    buffer.add(stream.next())
    buffer.drop(0)
    with pytest.raises(EmptyBufferError, match=message):
        buffer.sample(1, horizon=ONE)
    stream.begin([0])
    buffer.add(stream.next())
    buffer.clear()
    with pytest.raises(LookupError, match=message):
        buffer.sample(1, horizon=ONE)


def test_a_buffer_that_never_saw_a_row_has_no_slots_and_no_episodes() -> None:
    buffer = ReplayBuffer(10)
    assert len(buffer) == buffer.nbytes == 0
    buffer.cut(0)
    assert buffer.drop(0) == 0
    buffer.clear()
    with pytest.raises(
        EmptyBufferError, match="ReplayBuffer holds nothing: give it to a Collector, or add a transition"
    ):
        buffer.update_priorities(np.array([0]), np.array([1.0]))


def test_a_batch_may_be_larger_than_the_buffer() -> None:
    buffer, _ = filled(ReplayBuffer, 2)
    assert len(buffer.sample(1000, horizon=ONE)) == 1000


def test_a_column_that_is_not_there_is_refused_with_the_nearest() -> None:
    buffer, _ = filled(ReplayBuffer)
    with pytest.raises(
        ConfigError, match=r"^ReplayBuffer.sample has no column 'log_probs', only \[.*\], did you mean 'log_prob'\?$"
    ):
        buffer.sample(1, horizon=ONE, columns=["n", "log_probs"])


def test_more_environments_than_capacity_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"ReplayBuffer.capacity 2 is smaller than the 3 environments: raise it"):
        ReplayBuffer(2).add(Stream(3).next())


def test_rows_of_another_shape_are_refused() -> None:
    buffer, _ = filled(ReplayBuffer)
    spec = row_spec(Stream(2).next(), None, 1)
    buffer.bind(spec)  # the same again
    with pytest.raises(
        ConfigError, match=r"ReplayBuffer holds rows of RowSpec.* and cannot take RowSpec.*: use a new buffer"
    ):
        buffer.bind(row_spec(Stream(3).next(), None, 1))


@pytest.mark.parametrize("env_ids", [-1, 2, [0, 5], [True, False], 0.5])
def test_cutting_and_dropping_need_ids_of_environments(env_ids: Any) -> None:
    buffer, _ = filled(ReplayBuffer)
    for end in (buffer.cut, buffer.drop):
        with pytest.raises(ConfigError, match=r"env_ids must be integers in \[0, 2\), got"):
            end(env_ids)


def test_cutting_twice_at_once_is_cutting_once() -> None:
    buffer, stream = ReplayBuffer(10, seed=1), Stream(1)
    buffer.add(stream.next())
    claimed = buffer.nbytes
    buffer.cut([0, 0])
    buffer.cut([])
    once = buffer.nbytes
    assert once > claimed
    for _ in range(40):
        stream.begin([0])
        buffer.add(stream.next())
        buffer.cut([0, 0, 0])
    assert buffer.nbytes == once


@every_kind
def test_every_refusal_is_one_of_ours(kind: type[ReplayBuffer]) -> None:
    with pytest.raises(TrainkitError):
        kind(0)
    with pytest.raises(ValueError, match="capacity"):
        kind(0)


def test_a_buffer_describes_what_it_holds() -> None:
    buffer, _ = filled(PrioritizedReplayBuffer, 5)
    assert repr(buffer) == f"PrioritizedReplayBuffer(10 of 33 transitions, {buffer.nbytes:,} bytes)"
    assert buffer.metrics(0) == {"size": 10, "n_episodes": 3, "beta": 0.4, "largest_priority": 1}
    assert filled(ReplayBuffer, 5)[0].metrics(0) == {"size": 10, "n_episodes": 3}


# ---- speed ----


@pytest.mark.slow
@pytest.mark.bench
@every_kind
def test_a_full_million_is_as_fast_as_an_almost_empty_one(kind: type[ReplayBuffer]) -> None:
    def million() -> ReplayBuffer:
        return kind(1_000_000, seed=1)

    rows = [np.zeros((10, 4), np.float32), np.zeros(10, np.int64), np.ones(10)]
    flags = [np.zeros(10, np.bool_), np.zeros(10, np.bool_)]
    step = Transition(rows[0], rows[1], rows[2], rows[0], flags[0], flags[1], np.arange(10), {})
    empty, full = million(), million()
    for _ in range(200):
        empty.add(step)
    for _ in range(100_010):
        full.add(step)
    priority = np.linspace(0.1, 1, 32)

    def add(buffer: ReplayBuffer) -> None:
        buffer.add(step)

    def learn(buffer: ReplayBuffer) -> None:
        buffer.update_priorities(buffer.sample(32, horizon=THREE).slots, priority)

    def fastest(what: Callable[[ReplayBuffer], None], buffer: ReplayBuffer) -> float:
        begin = time.perf_counter()
        for _ in range(20):
            what(buffer)
        return time.perf_counter() - begin

    for what in (add, learn):
        times = np.array([(fastest(what, empty), fastest(what, full)) for _ in range(50)])
        small, large = times.min(axis=0)
        assert large < 1.35 * small, f"{what.__name__}: {large / small:.2f} times as long"


def test_the_episodes_that_rows_are_of_are_counted_without_a_look_at_them() -> None:
    buffer, stream = ReplayBuffer(12, n_envs=2), Stream(2)
    assert buffer.metrics(0) == {"size": 0.0, "n_episodes": 0.0}
    for number in range(40):
        buffer.add(stream.next(ends=[TERMINATES * (number % 3 == 0), IS_TRUNCATED * (number % 7 == 0)]))
        rows = where(np.concatenate([step.obs for step in buffer.transitions()]))
        assert buffer.metrics(0)["n_episodes"] == len({(env, episode) for env, episode, _ in rows})
    buffer.clear()
    assert buffer.metrics(0)["n_episodes"] == 0.0


def hand_made(obs: Any, action: Any, **extras: Any) -> Transition:
    """Return one row of environment 0."""
    after, no = np.array([obs]), np.zeros(1, np.bool_)
    columns = {name: np.array([value]) for name, value in extras.items()}
    return Transition(after, np.array([action]), np.ones(1), after, no, no, np.arange(1), columns)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (
            hand_made([0, 0], 0),
            hand_made([0.5, 0.5], 0),
            r"add: obs is float64 \[2\], and the first rows were int64 \[2\]",
        ),
        (
            hand_made([0.0, 0.0], 0),
            hand_made([0.5], 0),
            r"add: obs is float64 \[1\], and the first rows were float64 \[2\]",
        ),
        (
            hand_made([0.0], [0]),
            hand_made([0.5], [0.7]),
            r"add: action is float64 \[1\], and the first rows were int64",
        ),
        (hand_made([0.0], 0, lp=0.5), hand_made([0.5], 0), r"add: lp must be given, as the first rows had it"),
    ],
    ids=["dtype", "shape", "action", "extra"],
)
def test_a_row_that_does_not_fit_is_rejected_and_changes_nothing(first: Any, second: Any, message: str) -> None:
    buffer = ReplayBuffer(10)
    buffer.add(first)
    with pytest.raises(ConfigError, match=message):
        buffer.add(second)
    assert buffer.slots().tolist() == [0]
    buffer.add(first)
    assert len(buffer) == 2
    assert (buffer.slots() >= 0).all()
