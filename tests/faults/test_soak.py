"""Ten minutes of training while processes of environments are killed: nothing grows."""

import multiprocessing
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from trainkit import Callback, CollectStats, DQNPolicy, OffpolicyTrainer, ReplayBuffer, Trainer
from trainkit.collector import Collector, make_envs


class Watcher(Callback):
    """Kill a process now and then, and measure in between; all is one epoch, since the history keeps every one."""

    def __init__(self, seconds: float, kill_every: float, warm_up: float) -> None:
        self.seconds, self.kill_every, self.warm_up = seconds, kill_every, warm_up
        self.rng = np.random.default_rng(0)
        self.began = time.monotonic()
        self.next_kill, self.next_look = kill_every, warm_up
        self.samples: list[tuple[float, float]] = []
        self.descriptors: set[int] = set()
        self.processes: set[int] = set()
        self.n_killed = self.n_restarts = self.n_faulty = 0

    def on_collect_end(self, trainer: Trainer, stats: CollectStats) -> None:
        self.n_restarts += stats.n_env_restarts
        self.n_faulty += stats.n_faulty_episodes
        now = time.monotonic() - self.began
        if now > self.next_look:
            self.next_look += 0.5
            resident = int(Path("/proc/self/statm").read_text().split()[1])
            self.samples.append((now, resident * os.sysconf("SC_PAGE_SIZE") / 1e6))
            self.descriptors.add(len(os.listdir("/proc/self/fd")))
            self.processes.add(len(multiprocessing.active_children()))
        if now > self.seconds and self.n_restarts == self.n_killed:
            trainer.stop("soaked")
        elif self.next_kill < now < self.seconds:
            os.kill(self.rng.choice([process.pid for process in multiprocessing.active_children()]), signal.SIGKILL)
            self.n_killed += 1
            self.next_kill += self.kill_every


def soak(seconds: float, kill_every: float, warm_up: float) -> tuple[Watcher, float]:
    """Train a DQN in processes of which some are killed; return what was seen, and megabytes per hour, once warm."""
    envs = make_envs("CartPole-v1", 4, backend="async", on_error="restart", step_timeout_s=20, restart_delay_s=0.01)
    policy = DQNPolicy.for_envs(envs, hidden=(16,), device="cpu")
    train = Collector(policy, envs, ReplayBuffer(2_000))
    watcher = Watcher(seconds, kill_every, warm_up)
    with OffpolicyTrainer(
        policy, train, max_epoch=1, step_per_epoch=10**9, batch_size=16, update_per_step=0.25, callbacks=[watcher]
    ) as trainer:
        trainer.run()
    assert multiprocessing.active_children() == []
    times, megabytes = np.array(watcher.samples).T
    slope, _ = np.polyfit(times, megabytes, 1)
    return watcher, 3_600 * float(slope)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # Python 3.12 warns of fork() there
def test_ten_minutes_with_a_kill_every_twenty_seconds_leave_nothing_behind() -> None:
    seen, megabytes = soak(1_200, kill_every=20, warm_up=600)
    assert seen.n_killed >= 59
    assert seen.n_restarts == seen.n_faulty == seen.n_killed
    assert len(seen.descriptors) == len(seen.processes) == 1
    # What is left are pools of small objects and lists of free ones, which fill ever more slowly; 1 is the goal.
    assert megabytes < 3
