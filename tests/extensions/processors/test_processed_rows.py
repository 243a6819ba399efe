"""Processors of environments that are waited for, made again or restored, and of nested actions."""

import time
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import trainkit as tk
from tests.envs.restored_episodes import OUTLIVES, check_that_episodes_continue, check_that_lost_state_is_warned_of
from tests.helpers.doubles import Still
from tests.helpers.nested_actions import Dials, Turrets
from tests.helpers.small_envs import Counter, Waits, drawn_env, gated_envs, gates
from trainkit.collector import Collector, EpisodeEvents
from trainkit.envs import PreviousStep, Processor, TimeFeature, make_envs


def test_processing_and_rendering_are_timed_apart_from_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]  # a clock that only the parts below move on
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    class Slow(Processor):
        def act(self, action: Any, env_ids: Any) -> Any:
            now[0] += 10.0
            return action

        def begin(self, obs: Any, env_ids: Any) -> Any:
            now[0] += 0.25
            return obs

        def observe(self, obs: Any, action: Any, reward: Any, env_ids: Any) -> Any:
            now[0] += 0.5
            return obs

    collector = Collector(Still(), make_envs(drawn_env(now), processors=[Slow()]))

    def render(event: str, news: Any) -> None:
        for _ in news:
            collector.envs.render()

    collector.events = EpisodeEvents(1, render, ["on_episode_start", "on_episode_step"])
    stats = collector.collect(n_step=4)
    assert stats.env_ms == pytest.approx(1e3 * (1000 + 4 * 1) / 4)
    assert stats.obs_ms == pytest.approx(1e3 * (0.25 + 4 * 0.5) / 4)
    assert stats.action_ms == pytest.approx(1e3 * 10)
    assert stats.render_ms == pytest.approx(1e3 * 100 * (1 + 4) / 4)
    assert (stats.act_ms, stats.store_ms) == (0, 0)
    assert stats.other_ms == pytest.approx(0)


def test_steps_of_processed_environments_are_not_overlapped_and_the_work_comes_first() -> None:
    collector = Collector(Still(), make_envs(Waits, 2, processors=[TimeFeature(10)]), tk.ReplayBuffer(100))
    done: list[int] = []
    collector.overlap = lambda: done.append(collector.env_step)
    stats = collector.collect(n_step=10)
    assert done == [0, 2, 4, 6, 8]
    assert collector.buffer is not None
    assert len(collector.buffer) == 10
    assert stats.n_vector_step == 5


def test_processors_keep_their_state_and_old_environments_are_closed() -> None:
    Counter.closed.clear()
    envs = make_envs(Counter, 2, seed=0, env_kwargs={"level": 1.0}, processors=[TimeFeature(10)])
    envs.reset()
    envs.rebuild({"level": 2.0})
    obs = envs.reset()
    assert Counter.closed == [1.0, 1.0]
    assert {env.level for env in envs.call("unwrapped")} == {2.0}
    assert obs is not None
    envs.close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_processor_sees_who_has_answered_and_what_the_others_acted_on() -> None:
    closed = gates()
    envs = gated_envs(closed, seed=3, processors=[PreviousStep(reward=False)])
    first = envs.reset()["obs"].copy()
    closed[0].value = 0
    closed[2].value = 0
    outcome = envs.step(np.array([0, 1, 2]), envs.ready)
    assert outcome.env_ids.tolist() == envs.ready.tolist() == [1]
    assert envs.in_flight.tolist() == [0, 2]
    np.testing.assert_array_equal(envs.obs["obs"][[0, 2]], first[[0, 2]])
    closed[2].value = 1
    outcome = envs.step(np.zeros(0, np.int64), envs.all_ids[:0])  # waits
    assert outcome.env_ids.tolist() == [2]
    assert outcome.next_obs["prev_action"].tolist() == [2]
    assert envs.ready.tolist() == [1, 2]
    closed[0].value = 1
    assert envs.call("env") == [0, 1, 2]  # waits for its step, whose answer is kept
    time.sleep(0.05)
    outcome = envs.step(np.array([0]), np.array([2]))
    assert outcome.env_ids.tolist()[0] == 0
    assert outcome.next_obs["prev_action"].tolist()[0] == 0
    envs.close()


def test_a_q_learner_turns_nested_boxes_through_a_processor() -> None:
    envs = tk.make_envs(Dials, 2, seed=1, processors=[tk.envs.DiscretizeActions(3)])
    assert envs.action_space == gym.spaces.Discrete(27)
    policy = tk.DQNPolicy.for_envs(envs, hidden=(4,), seed=1)
    tk.Collector(policy, envs, tk.ReplayBuffer(50)).collect(n_step=20)


def test_previous_actions_reject_rows_of_both_kinds() -> None:
    with pytest.raises(tk.ConfigError, match=r"PreviousStep has no value .* use PreviousStep\(action=False\)"):
        tk.make_envs(Turrets, processors=[tk.envs.PreviousStep()])


@pytest.mark.parametrize("n_step", [1, 7, 31])
def test_running_episodes_are_restored_with_what_processors_keep(n_step: int, tmp_path: Any) -> None:
    check_that_episodes_continue(n_step, tmp_path, n=2, processors=[PreviousStep()])


@pytest.mark.parametrize(("env", "name"), OUTLIVES)
def test_state_that_outlives_episodes_is_warned_of_behind_processors(
    env: Any, name: str, tmp_path: Any, caplog: Any
) -> None:
    check_that_lost_state_is_warned_of(env, name, tmp_path, caplog, processors=[PreviousStep()])


def test_processors_are_described_in_the_record_of_a_run() -> None:
    envs = tk.make_envs("CartPole-v1", 2, processors=[TimeFeature(500)])
    policy = tk.DQNPolicy.for_envs(envs, hidden=(4,))
    train = tk.Collector(policy, envs, tk.ReplayBuffer(50))
    with tk.OffpolicyTrainer(policy, train, max_epoch=1, step_per_epoch=10, batch_size=4, verbose=False) as trainer:
        record = trainer.describe()
    assert (record["env/processors"], record["env/processors/0/limit"]) == (["TimeFeature"], 500)
