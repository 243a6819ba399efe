"""Actors with restarts of environments and of actors that die, and with processors."""

import os
import random
import signal
from typing import Any

import numpy as np
import pytest

import trainkit as tk
from tests.extensions.actors.local_actors import Counting, Here, check_rows, is_alive, runner_of


def test_an_environment_that_raises_is_replaced_alone(here: list[Here]) -> None:
    envs = tk.make_envs(lambda: Counting(True), 4, seed=1, backend=tk.envs.Actors(2), on_error="restart")
    collector = tk.Collector(tk.RandomPolicy(envs.action_space), envs, tk.ReplayBuffer(1_000))
    stats = collector.collect(n_step=200)
    assert stats.n_env_restarts > 3
    assert len(here) == 2
    check_rows(collector)


@pytest.mark.parametrize("failed_episodes", ["drop", "cut"])
def test_an_actor_that_dies_is_restarted_with_all_of_its_environments(here: list[Here], failed_episodes: str) -> None:
    options: dict[str, Any] = {"on_error": "restart", "failed_episodes": failed_episodes, "restart_delay_s": 0.0}
    envs = tk.make_envs(Counting, 5, seed=1, backend=tk.envs.Actors(2), **options)
    collector = tk.Collector(tk.RandomPolicy(envs.action_space), envs, tk.ReplayBuffer(1_000))
    n_restarts = 0
    for _ in range(6):
        collector.collect(n_step=30)
        here[-1].is_dead = True
        n_restarts += collector.collect(n_step=30).n_env_restarts
    assert (len(here), n_restarts) == (8, n_restarts)
    assert n_restarts >= 12
    check_rows(collector)
    here[0].is_dead = True
    assert envs.call("pid", env_ids=np.array([4])) == [os.getpid()], "of the actor that lives"


class Licensed(Counting):
    """Fail in the fifth step; of those made after the first four, some get no license."""

    n_made = 0

    def __init__(self) -> None:
        super().__init__(fails=True)
        type(self).n_made += 1
        if self.n_made in (5, 7, 8):
            raise OSError("no license is free")


@pytest.mark.parametrize("dies", [False, True])
def test_a_constructor_that_raises_in_a_restart_is_called_again(
    here: list[Here], dies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Licensed, "n_made", 0)
    options: dict[str, Any] = {"on_error": "restart", "restart_delay_s": 0.0, "step_timeout_s": 5.0}
    envs = tk.make_envs(Licensed, 4, seed=1, backend=tk.envs.Actors(2), **options)
    collector = tk.Collector(tk.RandomPolicy(envs.action_space), envs, tk.ReplayBuffer(1_000))
    collector.collect(n_step=8)
    here[-1].is_dead = dies
    stats = collector.collect(n_step=200)
    assert Licensed.n_made > 8
    assert stats.n_env_restarts > 3
    assert len(here) == (6 if dies else 2)
    assert 50 < max(here[0].limits_s[1:]) < np.inf  # a constructor has a minute, whatever a step has
    check_rows(collector)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_twenty_actors_that_are_killed_are_survived_without_a_row_lost_or_doubled() -> None:
    options: dict[str, Any] = {"on_error": "restart", "failed_episodes": "cut", "restart_delay_s": 0.0}
    envs = tk.make_envs(Counting, 4, seed=1, backend=tk.envs.Actors(2), **options)
    collector = tk.Collector(tk.RandomPolicy(envs.action_space), envs, tk.ReplayBuffer(100_000))
    drawn, pids, n_stored = random.Random(1), set(), 0
    for _ in range(20):
        found = [int(pid) for pid in envs.call("pid")]
        pids |= {*found}
        victim = drawn.choice(found)
        stats = collector.collect(n_step=drawn.randrange(4, 200))
        n_stored += stats.n_step
        os.kill(victim, signal.SIGKILL)
        stats = collector.collect(n_step=60)
        n_stored += stats.n_step
        assert stats.n_env_restarts == 2
    assert len(collector.buffer) == n_stored  # type: ignore[arg-type]
    check_rows(collector)
    pids |= {int(pid) for pid in envs.call("pid")}
    assert len(pids) == 22
    envs.close()
    assert not [pid for pid in pids if is_alive(pid)]


@pytest.mark.slow
@pytest.mark.global_rng  # Ray draws from that of random
@pytest.mark.timeout(600)
def test_actors_of_ray_are_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    monkeypatch.setenv("RAY_worker_niceness", "0")  # so that a busy machine does not starve them
    ray.init(num_cpus=3, include_dashboard=False, configure_logging=False, log_to_driver=False)
    try:
        envs = tk.make_envs(Counting, 4, seed=1, backend=tk.envs.Actors(2, where="ray"), on_error="restart")
        collector = tk.Collector(tk.RandomPolicy(envs.action_space), envs, tk.ReplayBuffer(1_000))
        collector.collect(n_step=60)
        os.kill(envs.call("pid")[0], signal.SIGKILL)
        assert collector.collect(n_step=60).n_env_restarts == 2
        check_rows(collector)
        envs.close()
    finally:
        ray.shutdown()


@pytest.mark.parametrize("failed_episodes", ["drop", "cut"])
def test_failing_environments_and_dying_actors_lose_and_double_no_row(here: list[Here], failed_episodes: str) -> None:
    options: dict[str, Any] = {"on_error": "restart", "failed_episodes": failed_episodes, "restart_delay_s": 0.0}
    envs = tk.make_envs(lambda: Counting(True), 5, seed=1, backend=tk.envs.Actors(2, fragment=4), **options)
    collector = tk.Collector(tk.DQNPolicy.for_envs(envs, hidden=(8,), seed=1), envs, tk.ReplayBuffer(2_000))
    n_restarts = n_stored = 0
    for index in range(12):
        for is_killed in (False, True):
            here[-1].is_dead = is_killed and index % 2 == 1
            stats = collector.collect(n_step=5 * 9)
            n_restarts, n_stored = n_restarts + stats.n_env_restarts, n_stored + stats.n_step
    assert len(here) == 2 + 6
    assert n_restarts > 6 * 2 + 3
    check_rows(collector)
    if failed_episodes == "cut":
        assert len(collector.buffer) == n_stored  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_twenty_actors_that_are_killed_while_they_play_lose_and_double_no_row() -> None:
    options: dict[str, Any] = {"on_error": "restart", "failed_episodes": "cut", "restart_delay_s": 0.0}
    envs = tk.make_envs(Counting, 4, seed=1, backend=tk.envs.Actors(2, fragment=5), **options)
    collector = tk.Collector(tk.DQNPolicy.for_envs(envs, hidden=(8,), seed=1), envs, tk.ReplayBuffer(100_000))
    drawn, pids, n_stored, killed = random.Random(1), set(), 0, []

    def kill() -> None:
        if killed and len(killed) < 2 and runner_of(collector).actors[0].n_ahead == 2:  # in the middle of a fragment
            os.kill(killed[0], signal.SIGKILL)
            killed.append(-1)

    collector.between_steps = kill
    for _ in range(20):
        found = [int(pid) for pid in envs.call("pid")]
        pids |= {*found}
        killed[:] = [drawn.choice(found)]
        stats = collector.collect(n_step=4 * drawn.randrange(20, 50))
        n_stored += stats.n_step
        assert (len(killed), stats.n_env_restarts) == (2, 2)
    assert len(collector.buffer) == n_stored  # type: ignore[arg-type]
    check_rows(collector)
    pids |= {int(pid) for pid in envs.call("pid")}
    assert len(pids) == 22
    envs.close()
    assert not [pid for pid in pids if is_alive(pid)]


@pytest.mark.usefixtures("here")
def test_fragments_reject_processors() -> None:
    envs = tk.make_envs(Counting, 4, backend=tk.envs.Actors(2, fragment=2), processors=[tk.envs.TimeFeature(10)])
    with pytest.raises(tk.ConfigError, match=r"\.envs have processors, which transform what the policy here sees"):
        tk.Collector(tk.DQNPolicy.for_envs(envs, hidden=(8,)), envs, tk.ReplayBuffer(100))
