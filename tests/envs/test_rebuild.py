"""Environments made again with other arguments, and the variables of their processes."""

import os
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import trainkit as tk
from tests.helpers.small_envs import Counter
from trainkit.collector import Episode
from trainkit.collector.events import Calls
from trainkit.envs import make_envs


def make_collector(**options: Any) -> tuple[tk.Collector, tk.ReplayBuffer]:
    envs = make_envs(Counter, 2, seed=0, **options)
    buffer = tk.ReplayBuffer(100)
    return tk.Collector(tk.RandomPolicy(envs.action_space, seed=0), envs, buffer), buffer


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_the_next_collect_steps_other_environments_and_no_row_joins_two(backend: Any) -> None:
    collector, buffer = make_collector(backend=backend)
    collector.collect(n_step=10)
    collector.rebuild_envs({"level": 5.0})
    collector.collect(n_step=10)

    batch = buffer.sample(400, horizon=tk.Horizon(1, 0.9))
    obs, following = np.asarray(batch.obs), np.asarray(batch.next_obs)
    assert set(obs[:, 0].tolist()) == {0.0, 5.0}
    assert_array_equal(following[:, 0], obs[:, 0])
    assert_array_equal(following[:, 1], obs[:, 1] + 1)
    assert (batch.discount > 0).all(), "a cut is no termination"
    assert collector.env_step == len(buffer) == 20
    assert collector.envs.made_with["env_kwargs"] == {"level": 5.0}
    collector.close()


def test_old_environments_are_closed() -> None:
    Counter.closed.clear()
    envs = make_envs(Counter, 2, seed=0, env_kwargs={"level": 1.0})
    envs.reset()
    envs.rebuild({"level": 2.0})
    obs = envs.reset()
    assert Counter.closed == [1.0, 1.0]
    assert {env.level for env in envs.call("unwrapped")} == {2.0}
    assert obs is not None
    envs.close()


@pytest.mark.parametrize(
    ("env_kwargs", "error", "text"),
    [
        ({"level": -1.0}, tk.errors.EnvError, "env 0 raised ValueError when it was made: there is no such level"),
        ({"levle": 1.0}, tk.errors.EnvError, "unexpected keyword argument 'levle'"),
        ({"n_values": 3}, tk.ConfigError, r"with \{'n_values': 3\} Counter has other spaces, Box.*: make_envs others"),
        ("level", tk.ConfigError, r"env_kwargs must be a dict of the constructor's arguments, got 'level'"),
    ],
)
def test_what_cannot_be_made_leaves_everything_as_it_was(env_kwargs: Any, error: Any, text: str) -> None:
    collector, _ = make_collector()
    collector.collect(n_step=6)
    with pytest.raises(error, match=text):
        collector.rebuild_envs(env_kwargs)
    collector.collect(n_step=2)
    assert [env.n_steps for env in collector.envs.call("unwrapped")] == [4, 4], "the episodes run on"


def test_a_vector_environment_a_running_collect_and_another_owner_are_refused() -> None:
    vector = make_envs(gym.vector.SyncVectorEnv([Counter, Counter]))
    with pytest.raises(tk.ConfigError, match="cannot make SyncVectorEnv again, a vector environment that was passed"):
        vector.rebuild({})
    collector, _ = make_collector()
    with pytest.raises(tk.ConfigError, match="belong to a Collector"):
        collector.envs.rebuild({})
    collector.between_steps = lambda: collector.rebuild_envs({})
    with pytest.raises(tk.errors.BusyError, match="in use further up"):
        collector.collect(n_step=2)


def test_environments_that_were_made_again_are_created_at_their_reset() -> None:
    collector, _ = make_collector()
    events: list[tuple[str, Any]] = []

    def listen(event: str, calls: Calls) -> None:
        for *_, last in calls:
            level = collector.envs.call("level")[0]
            events.append((event.removeprefix("on_"), (last.env_id if isinstance(last, Episode) else last, level)))

    collector.subscribe(listen, ["on_env_created", "on_episode_created"], in_evaluation=False)
    collector.rebuild_envs({"level": 1.0})  # a run's start says so
    collector.collect(n_step=2)
    collector.rebuild_envs({"level": 2.0})
    collector.rebuild_envs({"level": 3.0})
    assert collector.collect(n_step=2).n_env_restarts == 0
    collector.reset()
    first, second, third = ([("episode_created", (env_id, level)) for env_id in range(2)] for level in (1.0, 3.0, 3.0))
    assert events == [*first, ("env_created", (0, 3.0)), ("env_created", (1, 3.0)), *second, *third]


def test_an_ids_vector_environment_is_made_again() -> None:
    envs = make_envs("CartPole-v1", 3, backend="vector", env_kwargs={"sutton_barto_reward": False})
    collector = tk.Collector(tk.RandomPolicy(envs.action_space, seed=0), envs, tk.ReplayBuffer(100))
    collector.collect(n_step=6)
    collector.rebuild_envs({"sutton_barto_reward": True})
    returns = collector.collect(n_episode=3).returns
    assert returns.mean == -1.0


class Variables(Counter):
    def __init__(self) -> None:
        super().__init__(float(os.environ.get("TRAINKIT_TEST_LEVEL", "-1")))


def test_processes_have_their_own_environment_variables() -> None:
    envs = make_envs(Variables, 2, backend="async", environment_variables={"TRAINKIT_TEST_LEVEL": "3"})
    assert envs.reset()[:, 0].tolist() == [3.0, 3.0]
    envs.close()
    assert "TRAINKIT_TEST_LEVEL" not in os.environ
    with pytest.raises(tk.ConfigError, match=r'environment_variables are those of a process: use backend="async"'):
        make_envs(Variables, 2, environment_variables={"TRAINKIT_TEST_LEVEL": "3"})
    with pytest.raises(tk.ConfigError, match=r"environment_variables must be a dict of strings, got \{'A': 3\}"):
        make_envs(Variables, 2, backend="async", environment_variables={"A": 3})  # type: ignore[dict-item]
