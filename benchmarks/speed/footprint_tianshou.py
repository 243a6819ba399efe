"""Tianshou's side of a vector step in which nothing happens.

Runs in an environment of its own, and so imports nothing of trainkit.
"""

import json
import statistics
import time
import warnings

warnings.filterwarnings("ignore")

import gymnasium as gym  # noqa: E402  # after the warnings it raises
import numpy as np  # noqa: E402
import torch  # noqa: E402
from tianshou import __version__  # noqa: E402
from tianshou.data import Batch, Collector, VectorReplayBuffer  # noqa: E402
from tianshou.env import DummyVectorEnv  # noqa: E402
from tianshou.policy import BasePolicy  # noqa: E402

N_ENVS, STEPS, BLOCKS = 10, 2_000, 7


class Nothing(gym.Env):
    """An environment in which nothing happens and no episode ends."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)
    obs = np.zeros(4, np.float32)

    def reset(self, *, seed=None, options=None):
        return self.obs, {}

    def step(self, action):
        return self.obs, 0.0, False, False, {}


class Nobody(BasePolicy):
    """Always answer the same."""

    def forward(self, batch, state=None, **_):
        return Batch(act=np.zeros(len(batch.obs), np.int64))

    def learn(self, batch, *_, **__):
        raise NotImplementedError


def main() -> None:
    """Step and print the time."""
    torch.set_num_threads(1)
    envs = DummyVectorEnv([Nothing for _ in range(N_ENVS)])
    collector = Collector(Nobody(action_space=Nothing.action_space), envs, VectorReplayBuffer(20_000, N_ENVS))
    collector.reset()
    collector.collect(n_step=N_ENVS * STEPS)
    blocks = []
    for _ in range(BLOCKS):
        began = time.process_time()
        collector.collect(n_step=N_ENVS * STEPS)
        blocks.append((time.process_time() - began) / STEPS * 1e6)
    print(json.dumps({"us": statistics.median(blocks), "done": {"steps": STEPS}, "version": __version__}))


if __name__ == "__main__":
    main()
