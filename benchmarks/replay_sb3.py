"""Stable-Baselines3's side of replay's speed: uniform batches as tensors; it keeps no true final observations apart.

Runs in an environment of its own, and so imports nothing of trainkit but the numbers of the work.
"""

import numpy as np
import stable_baselines3
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer

from benchmarks import replay_work as work


def main() -> None:
    """Do the work and print its times."""
    torch.set_num_threads(1)
    asked = work.options()
    space = spaces.Box(-np.inf, np.inf, (work.OBS,), np.float32)
    buffer = ReplayBuffer(asked.rows, space, spaces.Discrete(2), device="cpu")
    rows = work.columns(asked.rows)
    # What its `add` leaves behind, row by row.
    buffer.observations[:, 0], buffer.next_observations[:, 0] = rows["obs"], rows["next_obs"]
    buffer.actions[:, 0, 0], buffer.rewards[:, 0], buffer.dones[:, 0] = rows["action"], rows["reward"], rows["done"]
    buffer.full = True

    def play(i: int) -> None:
        buffer.sample(asked.batch)

    work.show({"uniform, to tensors": work.microseconds(play)}, stable_baselines3.__version__, asked)


if __name__ == "__main__":
    main()
