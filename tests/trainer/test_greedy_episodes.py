"""Greedy episodes: discounted returns by hand, one forward pass, and which episodes count."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from trainkit import Horizon, Transition
from trainkit.policy import RandomPolicy
from trainkit.trainer.greedy_episodes import GreedyEpisodes


class Predictor:
    """Predict the observation itself, which is the row's number, with a gap of 2."""

    def __init__(self, **horizon: Any) -> None:
        self.horizon = Horizon(**{"gamma": 0.5} | horizon)
        self.n_calls = 0

    def greedy_values(self, obs: Any) -> tuple[Any, Any]:
        self.n_calls += 1
        return obs["x"][:, 0], np.where(obs["x"][:, 0] == 30, np.inf, 2.0)


def step(number: int, rewards: list[float], *, ends: str = "", env_ids: tuple[int, ...] = (0, 1)) -> Transition:
    """One step of two environments, whose observations are 10 * env + number."""
    ids = np.array(env_ids)
    obs = {"x": (10.0 * ids + number)[:, None]}
    flags = {name: np.full(len(ids), ends == name) for name in ("terminated", "truncated")}
    return Transition(
        obs=obs, action=ids, reward=np.array(rewards), next_obs={"x": obs["x"] + 1}, env_ids=ids, extras={}, **flags
    )


def played(policy: Any, *, ends: str) -> GreedyEpisodes:
    episodes = GreedyEpisodes(policy, 2)
    for number, rewards in enumerate([[1.0, 10.0], [1.0, 10.0], [1.0, 10.0]]):
        episodes.add(step(number, rewards, ends=ends if number == 2 else ""))
    return episodes


def test_returns_are_discounted_and_a_truncated_rest_is_predicted() -> None:
    policy = Predictor()
    done = played(policy, ends="terminated").summaries()
    assert (done["start_values"].min, done["start_values"].max) == (0.0, 10.0)
    assert (done["discounted_returns"].min, done["discounted_returns"].max) == (1.75, 17.5)
    assert policy.n_calls == 1
    cut = played(policy, ends="truncated").summaries()["discounted_returns"]
    assert (cut.min, cut.max) == (1.75 + 3 / 8, 17.5 + 13 / 8)  # the last observations are 3 and 13
    assert done["top_action_share"] == 0.5


@pytest.mark.parametrize(("rule", "largest"), [("sign", 1.75), ((-1.0, 2.0), 3.5), (0.1, 1.75), (None, 17.5)])
def test_rewards_are_those_of_the_learner(rule: Any, largest: float) -> None:
    summary = played(Predictor(reward=rule), ends="terminated").summaries()["discounted_returns"]
    assert summary.max == pytest.approx(largest)


def test_open_and_dropped_episodes_do_not_count_and_the_next_one_starts_at_zero() -> None:
    episodes = played(Predictor(), ends="")
    assert "start_values" not in episodes.summaries()
    episodes.drop(np.array([1]))
    episodes.add(step(20, [0.0], ends="terminated", env_ids=(1,)))
    summaries = episodes.summaries()
    assert (summaries["start_values"].mean, summaries["start_values"].count) == (30.0, 1)
    assert summaries["discounted_returns"].mean == 0.0
    assert summaries["action_gaps"].is_empty  # there is no second action


def test_custom_rewards_and_policies_that_predict_nothing_are_left_out() -> None:
    for policy in (Predictor(reward=lambda columns: columns["reward"]), RandomPolicy(spaces.Discrete(2))):
        assert played(policy, ends="terminated").summaries() == {"top_action_share": 0.5}


def test_many_episodes_are_predicted_in_blocks_and_in_order() -> None:
    policy = Predictor()
    episodes = GreedyEpisodes(policy, 1)
    for number in range(300):
        episodes.add(step(number, [float(number)], ends="terminated", env_ids=(0,)))
    summaries = episodes.summaries()
    assert policy.n_calls == 2
    assert (summaries["start_values"].max, summaries["start_values"].count) == (299.0, 300)
    assert summaries["discounted_returns"].mean == summaries["start_values"].mean == 149.5
