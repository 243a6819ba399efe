"""Vector environments of gymnasium, made by the user: true final observations, and errors that name one environment."""

import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import trainkit as tk
from trainkit.errors import EnvError

forks = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


class Counting(gym.Env[Any, Any]):
    """Count steps in the observation, for four of them; the array may be the same one for ever."""

    observation_space = gym.spaces.Box(0, 100, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, *, reuses: bool = False, reward: Any = 1.0, info: Callable[[], Any] = dict) -> None:
        self.count = np.zeros(1, np.float32)
        self.reuses, self.reward, self.info = reuses, reward, info

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._set(0.0), {}

    def step(self, action: Any) -> Any:
        return self._set(self.count[0] + 1), self.reward, bool(self.count[0] >= 4), False, self.info()

    def _set(self, count: Any) -> Any:
        if not self.reuses:
            self.count = np.zeros(1, np.float32)
        self.count[0] = count
        return self.count


def itself() -> dict[str, Any]:
    info: dict[str, Any] = {}
    info["me"] = {"again": info}
    return info


def collect(venv: Any, n_step: int = 24) -> Any:
    with contextlib.closing(tk.make_envs(venv)) as envs:
        buffer = tk.ReplayBuffer(100)
        tk.Collector(tk.RandomPolicy(envs.action_space, seed=0), envs, buffer).collect(n_step=n_step)
        return np.concatenate([rows.next_obs.ravel() for rows in buffer.transitions()])


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_the_final_observation_of_a_reused_array_is_the_true_one(mode: AutoresetMode) -> None:
    venv = SyncVectorEnv([partial(Counting, reuses=True)] * 2, autoreset_mode=mode)
    inner = list(venv.envs)
    assert collect(venv).tolist() == [1, 2, 3, 4] * 6
    assert list(venv.envs) == inner  # as they were given


@forks
@pytest.mark.parametrize("reuses", [False, True])
def test_final_observations_that_processes_overwrote_are_reported(
    reuses: bool, caplog: pytest.LogCaptureFixture
) -> None:
    venv = AsyncVectorEnv([partial(Counting, reuses=reuses)] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    with caplog.at_level(logging.WARNING, "trainkit"):
        rows = collect(venv).tolist()
    text = "AsyncVectorEnv in SAME_STEP mode: the final observations of the first 3 episodes are the first ones"
    assert [text in record.getMessage() for record in caplog.records] == [True] * reuses
    assert rows == [1, 2, 3, 0 if reuses else 4] * 6


class Overwriting(SyncVectorEnv):
    """Return all observations as the final ones, which is what it overwrites."""

    def __init__(self) -> None:
        super().__init__([Counting] * 2, autoreset_mode=AutoresetMode.SAME_STEP, copy=False)

    def step(self, actions: Any) -> Any:
        obs, reward, terminated, truncated, infos = super().step(actions)
        return obs, reward, terminated, truncated, {**infos, "final_obs": obs}


def test_final_observations_that_are_views_of_the_others_are_an_error() -> None:
    with pytest.raises(EnvError, match=r"final_obs.*shares memory with the observations"):
        collect(Overwriting())


@pytest.mark.parametrize("reward", [np.ones(1), np.ones((1, 1)), np.int64(1)], ids=["(1,)", "(1, 1)", "int64"])
def test_a_reward_that_is_an_array_of_one_number_is_this_number(reward: Any) -> None:
    assert len(collect(SyncVectorEnv([Counting, partial(Counting, reward=reward)]))) > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reward": np.ones(2)}, r"env 1 returned reward array\(\[1\., 1\.\]\), which is not a number"),
        ({"reward": "one"}, "env 1 returned reward 'one', which is not a number"),
        ({"info": itself}, "env 1 returned an info whose 'again' contains itself: leave it out"),
    ],
)
def test_what_cannot_be_joined_is_named_with_its_environment(options: Any, message: str) -> None:
    with pytest.raises(EnvError, match=message):
        collect(SyncVectorEnv([Counting, partial(Counting, **options)]))


@forks
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reward": np.ones(2)}, r"env 1 returned reward array\(\[1\., 1\.\]\), which is not a number"),
        ({"reward": "one"}, "env 1 returned reward 'one', which is not a number"),
        ({"info": itself}, "env 1 returned an info whose 'again' contains itself: leave it out"),
    ],
)
def test_what_processes_return_and_cannot_be_joined_is_named_with_its_environment(options: Any, message: str) -> None:
    venv = AsyncVectorEnv([Counting, partial(Counting, **options), Counting])
    with pytest.raises(EnvError, match=message):
        collect(venv)
    venv.close()


@forks
def test_a_reward_of_a_process_that_is_an_array_of_one_number_is_this_number() -> None:
    assert len(collect(AsyncVectorEnv([Counting, partial(Counting, reward=np.ones((1, 1)))]))) > 0
