"""An evaluation ends although episodes do not: they are truncated at a length of the evaluation's own."""

import logging
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import trainkit as tk
from tests.helpers.doubles import Ledger, Player
from tests.helpers.tagged import TaggedEnv, decode, length, reward
from trainkit.collector import Collector
from trainkit.envs import make_envs
from trainkit.trainer.evaluation import Evaluation, evaluate


class Actor(Player):
    """A player that `evaluate` takes, too."""

    last_step = 0

    def streams_state(self) -> dict[str, Any]:
        return {}

    def load_streams_state(self, state: dict[str, Any]) -> None:
        """Draw nothing."""

    def start_streams(self, root: int) -> None:
        """Draw nothing."""


def endless(env: int) -> TaggedEnv:
    return TaggedEnv(env, length_of=lambda env, episode: 10_000)


def summed(env: int, episode: int, n_steps: int) -> float:
    """Return the return of an episode's first steps."""
    return float(sum(reward(*map(np.asarray, (env, episode, step))) for step in range(n_steps)))


def test_episodes_without_end_are_truncated_at_the_limit_and_count_as_far_as_they_went(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)  # a limit that was given is expected
    collector = Collector(Actor(), make_envs([partial(endless, 0), partial(endless, 1)]))
    evaluation = Evaluation(collector, duration=5, max_episode_steps=7, seed=1)
    stats = evaluation.run(0)
    assert (stats.n_episode, stats.n_cut_episodes, stats.n_step) == (5, 5, 35)
    assert (stats.lengths.min, stats.lengths.max) == (7, 7)
    returns = [summed(env, episode, 7) for env, n in ((0, 3), (1, 2)) for episode in range(n)]
    assert stats.returns.mean == pytest.approx(np.mean(returns))
    assert (stats.returns.min, stats.returns.max) == (min(returns), max(returns))
    evaluation.run(0)
    (message,) = caplog.messages  # once
    assert "an episode (env 0) is truncated at max_episode_steps=7, and counts with its return so far" in message


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 8, 1_000])
def test_only_episodes_that_reach_the_limit_are_truncated(limit: int) -> None:
    ledger = Ledger()
    collector = Collector(Player(), make_envs([partial(TaggedEnv, env) for env in range(3)]), ledger)
    stats = collector.collect(n_episode=30, max_episode_steps=limit)
    lengths = [length(env, episode) for env in range(3) for episode in range(10)]
    assert stats.n_cut_episodes == sum(one > limit for one in lengths)
    assert stats.n_step == sum(min(one, limit) for one in lengths)
    rows = ledger.rows()
    before, after = decode(rows.obs), decode(rows.next_obs)
    at_limit = before[:, 2] + 1 == limit
    own_end = before[:, 2] + 1 == [length(*tag) for tag in before[:, :2].tolist()]
    np.testing.assert_array_equal(rows.truncated[~own_end], at_limit[~own_end])  # as a time limit of the environment's
    np.testing.assert_array_equal(after[:, 2], before[:, 2] + 1)  # the true successor
    collector.collect(n_step=100)  # has no limit
    assert collector.collect(n_episode=30).n_cut_episodes == 0


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_self_resetting_environment_plays_no_other_episode_after_a_cut(
    mode: AutoresetMode, caplog: pytest.LogCaptureFixture
) -> None:
    made = [partial(endless, 0), partial(TaggedEnv, 1, length_of=lambda env, episode: 4)]
    ledger = Ledger()
    collector = Collector(Player(), make_envs(SyncVectorEnv(made, autoreset_mode=mode)), ledger)
    stats = collector.collect(n_episode=6, max_episode_steps=9)
    can_reset = mode is AutoresetMode.DISABLED
    assert (stats.n_episode, stats.n_cut_episodes) == ((6, 3) if can_reset else (4, 1))
    assert ("no other follows there" in caplog.text) == (not can_reset)
    stats = collector.collect(n_episode=2, max_episode_steps=5)
    assert (stats.n_episode, stats.n_cut_episodes, stats.n_step) == (2, 1, 9)


def test_an_interrupted_evaluation_keeps_its_limit() -> None:
    class Weary(TaggedEnv):
        n_left = 12

        def step(self, action: Any) -> Any:
            Weary.n_left -= 1
            if Weary.n_left == 0:
                raise KeyboardInterrupt
            return super().step(action)

    collector = Collector(Actor(), make_envs(lambda: Weary(0, length_of=lambda env, episode: 10_000)))
    evaluation = Evaluation(collector, duration=3, max_episode_steps=5)
    with pytest.raises(KeyboardInterrupt):
        evaluation.run(0)
    stats = evaluation.run(0)
    assert stats.lengths.max == 5
    assert stats.n_cut_episodes == stats.n_episode == 3


def test_the_default_limit_is_30_000_steps_or_the_environments_own_if_longer() -> None:
    def limit(envs: tk.Envs) -> int:
        return Evaluation(Collector(Actor(), envs)).max_episode_steps

    assert limit(make_envs(lambda: TaggedEnv(0))) == 30_000
    assert limit(make_envs("CartPole-v1")) == 30_000
    assert limit(make_envs(lambda: TaggedEnv(0), max_episode_steps=50_000)) == 50_000
    gym.register("Long-v0", entry_point=lambda: gym.make("CartPole-v1").unwrapped, max_episode_steps=40_000)
    try:
        assert limit(make_envs("Long-v0")) == 40_000
    finally:
        del gym.registry["Long-v0"]


def test_evaluate_takes_a_limit_for_environments_that_are_there_already() -> None:
    envs = make_envs([partial(endless, 0)])
    assert evaluate(Actor(), envs, n_episode=2, max_episode_steps=6).lengths.max == 6
    assert evaluate(Actor(), partial(endless, 0), n_episode=2, max_episode_steps=6).n_cut_episodes == 2
    policy = tk.RandomPolicy(gym.spaces.Discrete(2), seed=0)
    longer = evaluate(policy, "CartPole-v1", n_episode=3, max_episode_steps=9)  # the environments' own limit then
    assert (longer.lengths.max, longer.n_cut_episodes) == (9, 0)
    with pytest.raises(tk.ConfigError, match="max_episode_steps must be a whole number >= 1"):
        evaluate(Actor(), envs, max_episode_steps=0)


def test_a_function_that_evaluates_has_the_limit_and_may_set_another() -> None:
    collector = Collector(Actor(), make_envs([partial(endless, 0)]))
    lengths: list[Any] = []

    def fn(play: Any) -> dict[str, float]:
        lengths.append(play(n_episode=1).lengths.max)
        lengths.append(play(n_episode=1, max_episode_steps=3).lengths.max)
        return {}

    Evaluation(collector, fn=fn, max_episode_steps=8).run(0)
    assert lengths == [8, 3]


def test_a_length_limit_needs_a_number_of_episodes() -> None:
    collector = Collector(Player(), make_envs([partial(endless, 0)]))
    with pytest.raises(tk.ConfigError, match="max_episode_steps has no effect on n_step: give it to make_envs"):
        collector.collect(n_step=5, max_episode_steps=3)
    with pytest.raises(tk.ConfigError, match="max_episode_steps must be a whole number >= 1, got 0"):
        collector.collect(n_episode=5, max_episode_steps=0)
