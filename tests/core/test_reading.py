"""Files from strangers: only regular ones are opened, sizes are checked first, every error is one of ours."""

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainkit.core import reading
from trainkit.core.errors import CheckpointError, ConfigError, TrainkitError
from trainkit.core.reading import MAX_DEPTH, check_declared, is_deeper, parse_json, read_json, read_text, size_limit


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
    monkeypatch.setattr(reading, "memory_left", lambda: 1000)
    assert size_limit(None) == 500
    check_declared("a", 500)
    check_declared("a", 501, 600)
    with pytest.raises(CheckpointError, match=r"a declares 501 bytes .* max_bytes is 500 \(half of the free memory\)"):
        check_declared("a", 501)
    monkeypatch.setattr(reading, "memory_left", lambda: None)
    check_declared("a", 2**60)


@pytest.mark.parametrize("depth", [0, 1, 2, 7])
def test_depth_counts_nested_lists_and_dicts(depth: int) -> None:
    assert not is_deeper(nested(depth), depth)
    assert depth == 0 or is_deeper(nested(depth), depth - 1)


def test_numbers_that_are_not_finite_are_left_to_the_reader() -> None:
    assert parse_json(b"[Infinity, 1e999]", "a") == [float("inf")] * 2
