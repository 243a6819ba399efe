"""A buffer's memory is known before it is claimed, and refused where it is not there: FAULTS 76."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainkit.buffer import PrioritizedReplayBuffer, ReplayBuffer, replay
from trainkit.core.data import ArraySpec, RowSpec
from trainkit.core.errors import ConfigError
from trainkit.core.files import memory_left


def spec_of(n_envs: int, stack: int = 1, shape: tuple[int, ...] = (84, 84)) -> RowSpec:
    frame = ArraySpec(shape=shape, dtype=np.dtype(np.uint8), stack=stack)
    extras = {"log_prob": ArraySpec(shape=(), dtype=np.dtype(np.float32))}
    action = ArraySpec(shape=(), dtype=np.dtype(np.int64))
    return RowSpec(n_envs=n_envs, obs={"image": frame, "tag": spec(3)}, action=action, extras=extras)


def spec(size: int) -> ArraySpec:
    return ArraySpec(shape=(size,), dtype=np.dtype(np.float64))


def estimated(buffer: ReplayBuffer, rows: RowSpec) -> int:
    """Return the bytes that a buffer says it needs, where no memory is left."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay, "memory_left", lambda: 0)
        with pytest.raises(ConfigError) as caught:
            buffer.bind(rows)
    (n_bytes,) = re.findall(r"needs ([\d,]+) bytes", str(caught.value))
    return int(n_bytes.replace(",", ""))


@pytest.mark.parametrize("make", [ReplayBuffer, PrioritizedReplayBuffer])
@pytest.mark.parametrize(
    ("capacity", "n_envs", "stack"), [(1, 1, 1), (7, 3, 4), (100, 8, 1), (5_000, 7, 2), (70_001, 2, 4)]
)
def test_the_estimate_is_what_is_claimed(make: Any, capacity: int, n_envs: int, stack: int) -> None:
    rows = spec_of(n_envs, stack, (2, 2))
    buffer = make(capacity)
    estimate = estimated(buffer, rows)
    buffer.bind(rows)
    assert buffer.nbytes == estimate


def test_a_buffers_own_normalisation_takes_a_second_tree() -> None:
    rows = spec_of(1)
    one, two = (PrioritizedReplayBuffer(9_000, normalize=how) for how in ("batch", "buffer"))  # type: ignore[arg-type]
    estimate = estimated(two, rows)
    assert estimate > estimated(one, rows)
    two.bind(rows)
    assert two.nbytes == estimate


def test_a_million_frames_take_what_the_design_says() -> None:
    rows = RowSpec(
        n_envs=8,
        obs=ArraySpec(shape=(84, 84), dtype=np.dtype(np.uint8), stack=4),
        action=ArraySpec(shape=(), dtype=np.dtype(np.int64)),
        extras={},
    )
    assert estimated(ReplayBuffer(1_000_000), rows) == pytest.approx(7.1e9, rel=0.01)


@pytest.mark.parametrize("make", [ReplayBuffer, PrioritizedReplayBuffer])
def test_more_than_there_is_is_refused_with_bytes_before_anything_is_claimed(make: Any) -> None:
    buffer = make(10**12)
    with pytest.raises(
        ConfigError, match=rf"{make.__name__} of 1,000,000,000,000 transitions needs 7,\d{{3}},\d"
    ) as caught:
        buffer.bind(spec_of(1))
    assert "are left: lower the capacity to " in str(caught.value)
    assert buffer.nbytes == 0


def test_what_just_fits_is_taken_and_what_just_does_not_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = spec_of(1)
    needed = estimated(ReplayBuffer(50), rows)
    monkeypatch.setattr(replay, "memory_left", lambda: needed - 1)
    with pytest.raises(ConfigError, match=f"needs {needed:,} bytes"):
        ReplayBuffer(50).bind(rows)
    for left in (needed, None):
        monkeypatch.setattr(replay, "memory_left", lambda left=left: left)
        ReplayBuffer(50).bind(rows)


def machine(folder: Path, monkeypatch: pytest.MonkeyPatch, **files: str) -> None:
    """Pretend that the system has these files alone: meminfo, and those of the container's control group."""
    for name, text in files.items():
        (folder / name).write_text(text)
    monkeypatch.setattr("trainkit.core.files._MEMINFO", folder / "meminfo")
    monkeypatch.setattr("trainkit.core.files._CONTAINER", folder)


MEMINFO = "MemTotal:       24684084 kB\nMemFree:          100 kB\nMemAvailable:    2000 kB\n"


def test_the_machine_has_what_the_kernel_calls_available(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(tmp_path, monkeypatch, meminfo=MEMINFO)
    assert memory_left() == 2_000 * 1024


def test_the_memory_left_is_unknown_without_these_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(tmp_path, monkeypatch)
    assert memory_left() is None


def test_a_container_has_a_limit_and_may_drop_what_it_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"memory.current": "500000\n", "memory.stat": "anon 1\ninactive_file 100000\n", "meminfo": MEMINFO}
    machine(tmp_path, monkeypatch, **own, **{"memory.max": "900000\n"})
    assert memory_left() == 900_000 - 500_000 + 100_000
    machine(tmp_path, monkeypatch, **own, **{"memory.max": "max\n"})
    assert memory_left() == 2_000 * 1024
