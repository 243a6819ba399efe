"""Train while processes of environments are killed, and measure what grows: a script, so that no other is measured.

python -m tests.faults.soak '{"seconds": 600, "kill_every": 20, "warm_up": 900, "warm_up_steps": 262144}'
"""

import json
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from trainkit import Callback, CollectStats, DQNPolicy, OffpolicyTrainer, ReplayBuffer, Trainer
from trainkit.collector import Collector
from trainkit.envs import make_envs


class Watcher(Callback):
    """Kill a process now and then, and measure in between.

    What is measured has its room from the beginning: a list of it would grow by as much as is asked about.
    """

    def __init__(self, seconds: float, kill_every: float, warm_up: float, warm_up_steps: int) -> None:
        self.seconds, self.kill_every = seconds, kill_every
        self.warm_up, self.warm_up_steps = warm_up, warm_up_steps
        self.rng = np.random.default_rng(0)
        self.began = time.monotonic()
        self.next_kill, self.next_look = kill_every, 0.0
        self.ends: float | None = None  # known when it is warm
        self.samples = np.full((int(2 * seconds), 2), np.nan)  # seconds, megabytes
        self.n_samples = 0
        self.descriptors: set[int] = set()
        self.processes: set[int] = set()
        self.n_killed = self.n_restarts = self.n_faulty = 0

    def on_collect_end(self, trainer: Trainer, stats: CollectStats) -> None:
        self.n_restarts += stats.n_env_restarts
        self.n_faulty += stats.n_faulty_episodes
        now = time.monotonic() - self.began
        if self.ends is None and now > self.warm_up and trainer.env_step > self.warm_up_steps:
            self.ends, self.next_look = now + self.seconds, now
        is_over = self.ends is not None and now > self.ends
        if self.ends is not None and self.next_look < now and self.n_samples < len(self.samples):
            self.next_look += 0.5
            resident = int(Path("/proc/self/statm").read_text().split()[1])
            self.samples[self.n_samples] = now, resident * os.sysconf("SC_PAGE_SIZE") / 1e6
            self.n_samples += 1
            self.descriptors.add(len(os.listdir("/proc/self/fd")))
            self.processes.add(len(multiprocessing.active_children()))
        if is_over and self.n_restarts == self.n_killed:
            trainer.stop("soaked")
        elif self.next_kill < now and not is_over:
            os.kill(self.rng.choice([process.pid for process in multiprocessing.active_children()]), signal.SIGKILL)
            self.n_killed += 1
            self.next_kill += self.kill_every


def soak(seconds: float, **when: Any) -> tuple[Watcher, float]:
    """Train a DQN in processes of which some are killed; return what was seen, and megabytes per hour, once warm.

    The statistics of an epoch hold the return and the length of each of its episodes, and the history has a row per
    epoch: with epochs of 200,000 steps both stay small.
    """
    envs = make_envs("CartPole-v1", 4, backend="async", on_error="restart", step_timeout_s=20, restart_delay_s=0.01)
    policy = DQNPolicy.for_envs(envs, hidden=(16,), device="cpu")
    train = Collector(policy, envs, ReplayBuffer(2_000))
    watcher = Watcher(seconds, **when)
    with OffpolicyTrainer(
        policy,
        train,
        max_epoch=10**6,
        step_per_epoch=200_000,
        batch_size=16,
        update_per_step=0.25,
        callbacks=[watcher],
        verbose=False,
        show_progress=False,
    ) as trainer:
        trainer.run()
    assert multiprocessing.active_children() == []
    growth, _ = np.polyfit(*watcher.samples[: watcher.n_samples].T, 1)
    return watcher, 3_600 * float(growth)


def main() -> None:
    """Soak, and print what was seen as a line of JSON."""
    seen, megabytes = soak(**json.loads(sys.argv[1]))
    result = {"megabytes_per_hour": megabytes, "n_killed": seen.n_killed, "n_restarts": seen.n_restarts}
    result |= {"n_faulty": seen.n_faulty, "descriptors": list(seen.descriptors), "processes": list(seen.processes)}
    print(json.dumps(result))  # noqa: T201  # what the script is for


if __name__ == "__main__":
    main()
