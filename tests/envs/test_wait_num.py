"""Steps that return as soon as some environments have answered: rows, order, failures, saving."""

import copy
import time
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.helpers.doubles import Ledger, Player
from tests.helpers.small_envs import gated_envs, gates
from tests.helpers.tagged import TaggedEnv
from tests.helpers.truth import assert_batch_is_true, assert_rows_are_real
from trainkit.buffer import ReplayBuffer
from trainkit.collector import Collector
from trainkit.core.data import Horizon
from trainkit.core.errors import ConfigError, EnvError
from trainkit.envs import Envs, make_envs

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


class Slow(TaggedEnv):
    """A tagged environment whose steps take time."""

    def __init__(self, env: int, seconds: float) -> None:
        super().__init__(env)
        self.seconds = seconds

    def step(self, action: Any) -> Any:
        time.sleep(self.seconds)
        return super().step(action)


def slow_envs(**options: Any) -> Envs:
    return make_envs([partial(Slow, env, 0.01 * (env == 1)) for env in range(4)], backend="async", **options)


class Stateless(Player):
    """A player whose runs can be resumed."""

    def act(self, obs: Any, **options: Any) -> Any:
        return super().act(obs, **options)._replace(state=None)


def test_rows_are_real_and_in_order_and_a_slow_environment_delays_no_other() -> None:
    envs, ledger = slow_envs(wait_num=2), Ledger()
    collector = Collector(Player(), envs, ledger)
    for n_step in (1, 70, 130, 9):
        collector.collect(n_step=n_step)
    assert collector.env_step == len(ledger) >= 210
    stats = collector.collect(n_episode=7)
    assert stats.n_episode == 7
    rows = ledger.rows()
    n_cut = assert_rows_are_real(rows, 4)
    assert n_cut <= 4
    counts = np.bincount(rows.env_ids[:200], minlength=4)
    assert 0 < counts[1] < counts[[0, 2, 3]].min()
    logs = envs.call("log")
    tags = rows.obs.astype(int)
    for env, episode in {(env, episode) for env, episode, *_ in tags.tolist()}:
        here = (tags[:, 0] == env) & (tags[:, 1] == episode)
        actions = rows.action[here].tolist()
        assert logs[env][episode][: len(actions)] == actions  # a reset may leave one more in flight
        assert len(logs[env][episode]) - len(actions) in (0, 1)
    envs.close()


def test_sampled_windows_are_what_the_environments_logged() -> None:
    envs, buffer = slow_envs(wait_num=1, stack=2), ReplayBuffer(150, seed=1)
    collector = Collector(Player(), envs, buffer)
    for round_ in range(6):
        collector.collect(n_step=1 + 13 * round_)
        if round_ == 3:
            collector.reset()
        for n_step in (1, 3):
            drawn = buffer.sample(None, horizon=Horizon(1, gamma=0.5))  # nothing newer is in the log's windows
            logs = copy.deepcopy(envs.call("log"))
            for env, episode in {tuple(tag[:2]) for tag in drawn.next_obs[:, -1].astype(int).tolist()}:
                tags = drawn.next_obs[:, -1].astype(int)
                last = tags[(tags[:, 0] == env) & (tags[:, 1] == episode), 2].max()
                del logs[env][episode][last:]  # an action in flight has no row
            assert_batch_is_true(buffer.sample(32, horizon=Horizon(n_step, gamma=0.5)), logs, n_step, gamma=0.5)
    envs.close()


def test_a_step_returns_who_has_answered_and_keeps_what_the_others_acted_on() -> None:
    closed = gates()
    envs = gated_envs(closed, seed=3)
    first = envs.reset().copy()
    closed[0].value = 0
    closed[2].value = 0
    outcome = envs.step(np.array([0, 1, 2]), envs.ready)
    assert outcome.env_ids.tolist() == envs.ready.tolist() == [1]
    assert envs.in_flight.tolist() == [0, 2]
    np.testing.assert_array_equal(envs.obs[[0, 2]], first[[0, 2]])
    closed[2].value = 1
    outcome = envs.step(np.zeros(0, np.int64), envs.all_ids[:0])  # waits
    assert outcome.env_ids.tolist() == [2]
    assert envs.ready.tolist() == [1, 2]
    closed[0].value = 1
    assert envs.call("env") == [0, 1, 2]  # waits for its step, whose answer is kept
    time.sleep(0.05)
    outcome = envs.step(np.array([0]), np.array([2]))
    assert outcome.env_ids.tolist()[0] == 0
    envs.close()


def test_a_collector_continues_with_the_actions_that_were_in_flight() -> None:
    closed = gates()
    straight = Collector(Stateless(), gated_envs(closed, seed=5), before := Ledger())
    straight.collect(n_step=40)
    closed[0].value = 0
    while straight.envs.in_flight.tolist() != [0]:
        straight.collect(n_step=1)
    straight.collect(n_step=5)
    state = copy.deepcopy(straight.state_dict())
    sent = state["open_rows"]["action"][0]
    closed[0].value = 1
    straight.collect(n_step=60)
    resumed = Collector(Stateless(), gated_envs(gates()), after := Ledger())
    resumed.load_state_dict(state)
    resumed.collect(n_step=60)
    whole, rest = before.rows(), after.rows()
    for env in range(3):  # the resumed run continues each environment's rows where they were when it was saved
        mine, theirs = (rows.obs[rows.env_ids == env, :3].tolist() for rows in (rest, whole))
        n_before = theirs.index(mine[0])
        n_both = min(len(mine), len(theirs) - n_before)
        assert n_both > 3
        assert mine[:n_both] == theirs[n_before : n_before + n_both]
    assert rest.action[rest.env_ids == 0][0] == sent
    for collector in (straight, resumed):
        collector.close()


def test_an_environment_that_hangs_while_the_others_step_is_killed() -> None:
    closed = gates(2)
    closed[0].value = 0
    envs = gated_envs(closed, seed=0, step_timeout_s=0.3)
    envs.reset()

    def play() -> None:
        for _ in range(100_000):
            envs.step(np.zeros(len(envs.ready), np.int64), envs.ready)
            envs.begin(np.array([1]))

    with pytest.raises(EnvError, match=r"env 0 gave no answer within 0.3 s in step, and was killed, at episode 0"):
        play()
    envs.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"wait_num": 1}, r'wait_num waits for processes, and environments in this one step in turn: use backend="a'),
        ({"wait_num": 3, "backend": "async"}, r"wait_num 3 is larger than the number of environments, 2: lower it"),
        ({"wait_num": 0, "backend": "async"}, r"wait_num must be a whole number >= 1, got 0"),
    ],
)
def test_a_wait_num_without_effect_is_rejected(options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_envs("CartPole-v1", 2, **options)
