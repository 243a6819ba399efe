"""Files whose rows have their numbers as observations."""

from pathlib import Path

import gymnasium as gym
import numpy as np

from trainkit.core.data import RecordedEpisode
from trainkit.extensions.offline.format import Header, write_shard

SPACE = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
HEADER = Header(env="numbers", observation_space=SPACE, action_space=gym.spaces.Discrete(3), extras={})


def record(folder: Path, lengths: list[list[int]], suffix: str = ".npz", *, compress: bool = False) -> int:
    """Write files of episodes whose observations are their rows' numbers among all; return the number of rows."""
    folder.mkdir(exist_ok=True)
    row = 0
    for file, own in enumerate(lengths):
        episodes = []
        for length in own:
            numbers = np.arange(row, row + length + 1, dtype=np.float32)[:, None]
            numbers[-1] = -1 - row  # a final observation, which no row has
            reward, action = 1.0 + np.arange(row, row + length), np.arange(row, row + length) % 3
            flag = row % 2 == 0
            episodes.append(
                RecordedEpisode(
                    obs=numbers, action=action, reward=reward, terminated=flag, truncated=not flag, extras={}
                )
            )
            row += length
        write_shard(folder / f"part-{file:03d}{suffix}", HEADER, episodes, compress=compress)
    return row


def lengths(rng: np.random.Generator, n_files: int) -> list[list[int]]:
    return [rng.integers(1, 30, rng.integers(1, 20)).tolist() for _ in range(n_files)]
