"""Measure what `wait_num` gains where one environment of eight steps ten times as slowly as the others.

    python -m benchmarks.wait_num [--steps 2000] [--slow-ms 20]

Environments sleep, so that the number of cores does not matter. Prints steps per second of a random policy's collects,
and the share of rows of the slow environment (1/8 where each step waits for all).
"""

import argparse
import time
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

import trainkit as tk
from benchmarks.quiet import quiet_machine

N_ENVS = 8


class Sleeping(gym.Env[Any, int]):
    """Sleep in every step."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (8,), np.float32)
    action_space = gym.spaces.Discrete(4)

    def __init__(self, seconds: float) -> None:
        self._seconds, self._clock = seconds, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._clock = 0
        return np.zeros(8, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self._seconds)
        self._clock += 1
        return np.zeros(8, np.float32), 1.0, False, self._clock == 200, {}


def measured(slow_ms: float, n_steps: int, wait_num: int | None) -> tuple[float, float]:
    """Return steps per second, and the share of rows of the slow environment."""
    seconds = [slow_ms / 1e3] + [slow_ms / 1e4] * (N_ENVS - 1)
    envs = tk.make_envs([partial(Sleeping, own) for own in seconds], backend="async", wait_num=wait_num)
    buffer = tk.ReplayBuffer(n_steps + N_ENVS)
    collector = tk.Collector(tk.policy.RandomPolicy(envs.action_space, seed=0), envs, buffer)
    collector.collect(n_step=N_ENVS)
    buffer.clear()
    started = time.perf_counter()
    collector.collect(n_step=n_steps)
    rate = n_steps / (time.perf_counter() - started)
    env_ids = buffer.sample(None, horizon=tk.Horizon(), columns=("env_id",)).extras["env_id"]
    collector.close()
    return rate, float(np.mean(env_ids == 0))


@quiet_machine()
def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--slow-ms", type=float, default=20.0)
    args = parser.parse_args()
    print("| wait_num | steps per second | rows of the slow environment |\n|---|---|---|")
    for wait_num in (None, 7, 4, 1):
        rate, share = measured(args.slow_ms, args.steps, wait_num)
        print(f"| {wait_num} | {rate:,.0f} | {share:.1%} |")


if __name__ == "__main__":
    main()
