"""Reading takes no more memory than what is read: columns go into a buffer's own memory chunk by chunk."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.peak_memory import peak_of
from trainkit import PrioritizedReplayBuffer, ReplayBuffer
from trainkit.core.checkpoint import load_checkpoint, open_checkpoint, save_checkpoint

N_ROWS, FRAME = 6_000, (84, 84)  # 42 MB


@pytest.fixture(scope="module")
def arrays() -> dict[str, Any]:
    obs = np.random.default_rng(0).integers(0, 256, (N_ROWS + 1, *FRAME), np.uint8)
    ends = np.arange(N_ROWS) % 100 == 99
    columns = {"obs": obs[:-1], "next_obs": obs[1:], "action": np.zeros(N_ROWS, np.int64), "reward": np.ones(N_ROWS)}
    return columns | {"terminated": ends}


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer])
def test_a_buffer_is_read_from_a_checkpoint_into_its_own_memory(
    kind: type[ReplayBuffer], arrays: Any, tmp_path: Path
) -> None:
    buffer = kind.from_arrays(**arrays, seed=0)
    save_checkpoint(tmp_path, {"buffer": buffer.state_dict()}, {})

    def load() -> ReplayBuffer:
        fresh = kind(N_ROWS, n_envs=1, seed=1)
        with open_checkpoint(tmp_path, lazy=("buffer",)) as components:
            fresh.load_state_dict(components["buffer"])
        return fresh

    loaded, peak = peak_of(load)
    assert peak <= 1.15 * buffer.nbytes
    np.testing.assert_array_equal(loaded.get(loaded.slots()).obs, buffer.get(buffer.slots()).obs)


def test_a_buffers_own_file_is_read_into_its_memory(arrays: Any, tmp_path: Path) -> None:
    buffer = ReplayBuffer.from_arrays(**arrays, seed=0)
    buffer.save(tmp_path / "buffer.npz")
    loaded, peak = peak_of(lambda: ReplayBuffer.load(tmp_path / "buffer.npz"))
    assert peak <= 1.15 * buffer.nbytes
    np.testing.assert_array_equal(loaded.get(loaded.slots()).obs, buffer.get(buffer.slots()).obs)


@pytest.mark.parametrize("without", [[], ["next_obs"]])
def test_a_buffer_from_arrays_takes_its_own_memory_and_no_more(without: list[str], arrays: Any) -> None:
    given = {name: column for name, column in arrays.items() if name not in without}
    if without:  # then the last row ends its episode, by termination
        assert given["terminated"][-1]
    buffer, peak = peak_of(lambda: ReplayBuffer.from_arrays(**given, seed=0))
    assert peak <= 1.15 * buffer.nbytes  # with the arrays given 2.15 times them


def test_any_component_takes_as_much_memory_as_it_declares(tmp_path: Path) -> None:
    rows = np.arange(2_000_000.0)
    save_checkpoint(tmp_path, {"rows": {"many": rows, "turned": np.zeros((3, 200_000)).T}}, {})
    state, peak = peak_of(lambda: load_checkpoint(tmp_path))
    assert peak <= 1.15 * (rows.nbytes + 3 * 200_000 * 8)
    np.testing.assert_array_equal(state["rows"]["many"], rows)
