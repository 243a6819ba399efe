"""Stable-Baselines3's side of replay's speed: uniform batches as tensors; it keeps no true final observations apart.

Runs in an environment of its own, and so imports nothing of trainkit but the numbers of the work.
"""

import argparse
from typing import Any

import numpy as np
import stable_baselines3
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer

from benchmarks import replay_work as work


def make(asked: argparse.Namespace, n_envs: int) -> ReplayBuffer:
    """Make a buffer."""
    space = spaces.Box(-np.inf, np.inf, (work.OBS,), np.float32)
    return ReplayBuffer(asked.rows, space, spaces.Discrete(2), device="cpu", n_envs=n_envs)


def adds(asked: argparse.Namespace) -> dict[str, work.Play]:
    """Store vector steps."""
    uniform, infos = make(asked, work.N_ENVS), [{} for _ in range(work.N_ENVS)]

    def add(step: dict[str, Any]) -> None:
        uniform.add(step["obs"], step["next_obs"], step["action"], step["reward"], step["done"], infos)

    return {work.ADD_UNIFORM: work.storing(add, work.steps())}


def rounds(asked: argparse.Namespace) -> dict[str, work.Play]:
    """Draw and gather."""
    buffer = make(asked, 1)
    rows = work.columns(asked.rows)
    # What its `add` leaves behind, row by row.
    buffer.observations[:, 0], buffer.next_observations[:, 0] = rows["obs"], rows["next_obs"]
    buffer.actions[:, 0, 0], buffer.rewards[:, 0], buffer.dones[:, 0] = rows["action"], rows["reward"], rows["done"]
    buffer.full = True

    def play(i: int) -> None:
        buffer.sample(asked.batch)

    return {work.UNIFORM: play}


def main() -> None:
    """Do the work as often as is asked."""
    torch.set_num_threads(1)
    asked = work.options()
    work.answer((adds if asked.adds else rounds)(asked), stable_baselines3.__version__, asked)


if __name__ == "__main__":
    main()
