"""Reading a dataset takes no more memory than what is read: columns go into a buffer's own memory chunk by chunk."""

from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from tests.helpers.peak_memory import peak_of
from trainkit import load_dataset
from trainkit.core.data import RecordedEpisode
from trainkit.extensions.offline.format import Header, write_shard

N_ROWS, FRAME = 6_000, (84, 84)  # 42 MB


@pytest.mark.one_of_each
@pytest.mark.parametrize("suffix", [".npz", ".hdf5"])
@pytest.mark.parametrize("compress", [False, True])
def test_a_dataset_is_read_into_the_buffers_memory(suffix: str, compress: bool, tmp_path: Path) -> None:
    if suffix == ".hdf5":
        pytest.importorskip("h5py", reason="the extra `hdf5` is not installed")
    header = Header(
        env="a", observation_space=spaces.Box(0, 255, FRAME, np.uint8), action_space=spaces.Discrete(2), extras={}
    )
    obs = np.zeros((N_ROWS + 1, *FRAME), np.uint8)
    obs[:, 0] = np.arange(N_ROWS + 1)[:, None] % 256
    for number in range(2):
        rows = slice(N_ROWS // 2 * number, N_ROWS // 2 * (number + 1))
        episode = RecordedEpisode(
            obs=obs[rows.start : rows.stop + 1],
            action=np.zeros(N_ROWS // 2, np.int64),
            reward=np.ones(N_ROWS // 2),
            terminated=True,
            truncated=False,
            extras={},
        )
        write_shard(tmp_path / f"{number}{suffix}", header, [episode], compress=compress)
    buffer, peak = peak_of(lambda: load_dataset(tmp_path, seed=0))
    assert peak <= 1.15 * buffer.nbytes
    np.testing.assert_array_equal(np.concatenate([one.obs[:-1] for one in buffer.episodes()]), obs[:-1])
