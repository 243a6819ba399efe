"""Files are whole or not there, come back as they went in, and execute nothing."""

import json
import os
import pickle
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

import trainkit as tk
from trainkit.core import files
from trainkit.core.errors import CheckpointError, ConfigError, TrainkitError
from trainkit.core.files import (
    MAX_DEPTH,
    check_declared,
    is_deeper,
    load_state,
    parse_json,
    read_json,
    read_text,
    save_state,
    size_limit,
    write_whole,
)

STATE = {"rows": np.arange(20.0), "nested": {"list": [1, 2.5, None, True, "x"], "small": np.ones((2, 3), np.uint8)}}


def assert_states_equal(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        assert_array_equal(one, other, strict=True)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_states_equal(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_states_equal(left, right)
    else:
        assert one == other


def writing(data: bytes) -> Callable[[IO[bytes]], object]:
    return lambda file: file.write(data)


def half_then_fail(error: BaseException) -> Callable[[IO[bytes]], None]:
    def write(file: IO[bytes]) -> None:
        file.write(b"half")
        raise error

    return write


# ---- whole or not at all ----


def test_a_file_is_written_with_its_folders(tmp_path: Path) -> None:
    write_whole(tmp_path / "a" / "b" / "file", writing(b"new"))
    assert (tmp_path / "a" / "b" / "file").read_bytes() == b"new"


def test_an_address_is_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small: dict[str, Any] = {"env": "CartPole-v1", "hidden": (4,), "device": "cpu", "verbose": False}
    policy = tk.DQNPolicy.for_envs(tk.make_envs("CartPole-v1"), hidden=(4,))
    uses: list[Callable[[str], object]] = [
        *(
            lambda path, name=name: tk.presets.dqn(**small, **{name: path})
            for name in ("checkpoint", "logger", "resume_from")
        ),
        *(tk.load_policy, policy.save, policy.load_weights),
    ]
    for use in uses:
        with pytest.raises(ConfigError, match=r"^s3:/.* is an address, .*: name a local or mounted path$"):
            use("s3://bucket/run")
    assert list(tmp_path.iterdir()) == []
    files.check_local("C:/runs")  # a drive of Windows


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt(), ValueError("ours")])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(error: BaseException, tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, writing(b"old"))
    with pytest.raises(type(error)):
        write_whole(path, half_then_fail(error))
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_first_write_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="disk"):
        write_whole(tmp_path / "file", half_then_fail(OSError("disk")))
    assert list(tmp_path.iterdir()) == []


def test_the_old_file_is_there_while_the_new_one_is_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, writing(b"old"))

    def look(file: IO[bytes]) -> None:
        file.write(b"new")
        assert path.read_bytes() == b"old"

    write_whole(path, look)
    assert path.read_bytes() == b"new"


def test_a_file_can_be_read_by_whom_the_system_lets(tmp_path: Path) -> None:
    mask = os.umask(0o022)
    try:
        write_whole(tmp_path / "file", writing(b"new"))
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o644


# ---- states ----


plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
arrays = st.builds(
    lambda dtype, shape: np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype),
    st.sampled_from(["bool", "int8", "uint64", "float16", "float64", "complex64", "datetime64[s]", "<U3", "S2", ">f4"]),
    st.lists(st.integers(0, 3), max_size=3).map(tuple),
)
states = st.recursive(
    plain | arrays,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(state=states)
@settings(max_examples=20)
def test_a_state_comes_back_as_it_went_in(state: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "state.npz"
    save_state(path, state)
    assert_states_equal(load_state(path), state)


def test_numpy_scalars_tuples_and_whole_keys_come_back_plain(tmp_path: Path) -> None:
    save_state(tmp_path / "state", {"a": (np.float32(0.5), np.int64(2**62), np.True_), 7: {"b": ()}})
    assert_states_equal(load_state(tmp_path / "state"), {"a": [0.5, 2**62, True], "7": {"b": []}})


def test_a_generators_state_comes_back_whole(tmp_path: Path) -> None:
    rng, other = np.random.default_rng(1), np.random.default_rng(2)
    save_state(tmp_path / "state", rng.bit_generator.state)
    other.bit_generator.state = load_state(tmp_path / "state")
    assert_array_equal(rng.random(8), other.random(8))


def test_views_are_saved_as_what_they_show(tmp_path: Path) -> None:
    whole = np.arange(24).reshape(4, 6)
    save_state(tmp_path / "state", [whole[::2, 1:4], whole.T, np.broadcast_to(3, (2, 2))])
    assert_states_equal(load_state(tmp_path / "state"), [whole[::2, 1:4], whole.T, np.full((2, 2), 3)])


# ---- what is rejected ----


class Bomb:
    """Leave a mark when unpickled."""

    mark: Path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("way", ["pickle", "npz of objects", "npy of objects"])
def test_loading_executes_nothing(way: str, tmp_path: Path) -> None:
    Bomb.mark = tmp_path / "executed"
    path = tmp_path / "evil.npz"
    with path.open("wb") as file:
        if way == "pickle":
            pickle.dump(Bomb(), file)
        elif way == "npz of objects":
            np.savez(file, skeleton=np.array([Bomb()], object))
        else:
            np.save(file, np.array([Bomb()], object))
    with pytest.raises(CheckpointError, match=r"evil.npz cannot be read"):
        load_state(path)
    assert not Bomb.mark.exists()
    with path.open("rb") as file:  # the bomb is live
        np.load(file, allow_pickle=True)["skeleton"] if way == "npz of objects" else np.load(file, allow_pickle=True)
    assert Bomb.mark.exists()


def test_an_array_of_objects_is_rejected_when_it_is_saved(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="an array of Python objects cannot be saved without pickle"):
        save_state(tmp_path / "state", {"a": np.array([None, "x"], object)})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"PK", b"not a zip at all", b"\x93NUMPY"])
def test_a_file_that_is_no_state_is_rejected(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"state cannot be read as .* \(.*\): it is missing or damaged"):
        load_state(tmp_path / "state")


def test_a_single_array_or_an_npz_of_another_program_is_rejected(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.zeros(3))
    np.savez(tmp_path / "many.npz", a=np.zeros(3))
    for name in ("one.npy", "many.npz", "nothing.npz"):
        with pytest.raises(CheckpointError, match=name):
            load_state(tmp_path / name)


def test_a_flipped_bit_is_rejected_or_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "state.npz"
    save_state(path, STATE)
    whole = path.read_bytes()
    n_rejected = 0
    for position in range(0, 8 * len(whole), 29):
        damaged = bytearray(whole)
        damaged[position // 8] ^= 1 << position % 8
        path.write_bytes(damaged)
        try:
            state = load_state(path)
        except CheckpointError:
            n_rejected += 1
        else:
            assert_states_equal(state, STATE)  # a date or a flag of the archive, which is not read
    assert n_rejected > 0.7 * len(whole) * 8 / 29


def test_a_file_system_without_hard_links_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(source: object, target: object) -> None:
        raise PermissionError("no hard links here")

    monkeypatch.setattr("os.link", no_links)
    place = tmp_path / "numbers"
    files.write_whole(place, lambda file: file.write(b"one"), replace=False)
    assert place.read_bytes() == b"one"
    with pytest.raises(FileExistsError):
        files.write_whole(place, lambda file: file.write(b"two"), replace=False)
    assert place.read_bytes() == b"one"
    assert [path.name for path in tmp_path.iterdir()] == ["numbers"]


def nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


def test_json_comes_back_as_it_was_written(tmp_path: Path) -> None:
    value = {"a": [1, 2.5, None, True, "é"], "b": nested(MAX_DEPTH - 1)}
    (tmp_path / "one.json").write_text(json.dumps(value))
    assert read_json(tmp_path / "one.json") == value


def fifo(path: Path) -> None:
    os.mkfifo(path)


def link_to_a_fifo(path: Path) -> None:
    os.mkfifo(path.with_name("pipe"))
    path.symlink_to("pipe")


def link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def dangling_link(path: Path) -> None:
    path.symlink_to("nowhere")


def folder(path: Path) -> None:
    path.mkdir()


def unix_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # its name must be short
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(here)


def missing(path: Path) -> None:
    """Leave nothing there."""


@pytest.mark.parametrize(
    "make", [fifo, link_to_a_fifo, link_to_a_device, link_to_itself, dangling_link, folder, unix_socket, missing]
)
@pytest.mark.timeout(10)
def test_anything_but_a_regular_file_raises_at_once(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "one.json")
    with pytest.raises(ConfigError, match=r"one\.json cannot be read"):
        read_json(tmp_path / "one.json", error=ConfigError)


def test_a_link_to_a_regular_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text("[1]")
    (tmp_path / "two.json").symlink_to("one.json")
    assert read_json(tmp_path / "two.json") == [1]


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b", "a" * 5000])
def test_a_name_that_no_file_can_have_raises_our_error(name: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        read_json(tmp_path / name)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"nul",
        b"\xff\xfe{}",
        b'"\xc3',
        b"1" * 5000,
        b"-" * 100,
        b"[" * 1_000_000,
        b'{"a":' * 200_000,
        json.dumps(nested(MAX_DEPTH + 1)).encode(),
    ],
)
def test_what_is_no_json_raises_our_error(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "one.json").write_bytes(text)
    with pytest.raises(ConfigError, match=r"one\.json cannot be read as .* \(\w+: .*\): it is missing or damaged"):
        read_json(tmp_path / "one.json", error=ConfigError)


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_bytes(b"\xef\xbb\xbf[1]")
    assert read_json(tmp_path / "one.json") == [1]


def test_a_terabyte_that_is_not_there_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "big.txt").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(
        TrainkitError, match=r"declares 1,099,511,627,776 bytes of content, and max_bytes is 67,108,864"
    ):
        read_text(tmp_path / "big.txt")


def test_the_limit_is_half_of_the_free_memory_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "memory_left", lambda: 1000)
    assert size_limit(None) == 500
    check_declared("a", 500)
    check_declared("a", 501, 600)
    with pytest.raises(CheckpointError, match=r"a declares 501 bytes .* max_bytes is 500 \(half of the free memory\)"):
        check_declared("a", 501)
    monkeypatch.setattr(files, "memory_left", lambda: None)
    check_declared("a", 2**60)


@pytest.mark.parametrize("depth", [0, 1, 2, 7])
def test_depth_counts_nested_lists_and_dicts(depth: int) -> None:
    assert not is_deeper(nested(depth), depth)
    assert depth == 0 or is_deeper(nested(depth), depth - 1)


def test_numbers_that_are_not_finite_are_left_to_the_reader() -> None:
    assert parse_json(b"[Infinity, 1e999]", "a") == [float("inf")] * 2
