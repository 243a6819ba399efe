"""Ten minutes of training while processes of environments are killed: nothing grows."""

import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainkit import Callback, CollectStats, DQNPolicy, OffpolicyTrainer, ReplayBuffer, Trainer
from trainkit.collector import Collector, make_envs


@pytest.fixture
def no_record_is_kept() -> Iterator[None]:
    """Let no warning of a restart come to pytest, which keeps them all."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


class Watcher(Callback):
    """Kill a process now and then, and measure in between; all is one epoch, since the history keeps every one.

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
    """Train a DQN in processes of which some are killed; return what was seen, and megabytes per hour, once warm."""
    envs = make_envs("CartPole-v1", 4, backend="async", on_error="restart", step_timeout_s=20, restart_delay_s=0.01)
    policy = DQNPolicy.for_envs(envs, hidden=(16,), device="cpu")
    train = Collector(policy, envs, ReplayBuffer(2_000))
    watcher = Watcher(seconds, **when)
    with OffpolicyTrainer(
        policy, train, max_epoch=1, step_per_epoch=10**9, batch_size=16, update_per_step=0.25, callbacks=[watcher]
    ) as trainer:
        trainer.run()
    assert multiprocessing.active_children() == []
    slope, _ = np.polyfit(*watcher.samples[: watcher.n_samples].T, 1)
    return watcher, 3_600 * float(slope)


@pytest.mark.slow
@pytest.mark.usefixtures("no_record_is_kept")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # Python 3.12 warns of fork() there
def test_ten_minutes_with_a_kill_every_twenty_seconds_leave_nothing_behind() -> None:
    """Warm is who has gone once round every ring, the longest of which keeps the actions of 65,536 vector steps."""
    seen, megabytes = soak(600, kill_every=20, warm_up=600, warm_up_steps=4 * 65_536)
    assert seen.n_killed >= 59
    assert seen.n_restarts == seen.n_faulty == seen.n_killed
    assert len(seen.descriptors) == len(seen.processes) == 1
    # What is in use does not grow, 0.01 MB/h by malloc's own count. What is resident does, ever more slowly: Python's
    # pools, and lists of free tuples up to 2,000 of each length. In ten minutes after the twentieth 0.4 and 1.6 were
    # seen; 1 is the goal.
    assert megabytes < 3
