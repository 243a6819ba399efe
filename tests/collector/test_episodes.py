"""Counting episodes, steps and seconds."""

import numpy as np
import pytest

from trainkit.collector.collect_request import EpisodeQuota
from trainkit.collector.episodes import Episodes, Tally
from trainkit.core.errors import ConfigError
from trainkit.core.stats import Summary

BOTH = np.arange(2)


def test_returns_and_lengths_are_counted_in_each_environment_by_itself() -> None:
    episodes, tally = Episodes(2, None, 100), Tally()
    episodes.step(BOTH, np.array([1.0, 10.0]))
    episodes.step(BOTH, np.array([2.0, 20.0]))
    episodes.finish(np.array([1]), tally)
    episodes.step(np.array([0]), np.array([4.0]))
    episodes.step(BOTH, np.array([8.0, 40.0]))
    episodes.finish(BOTH, tally)
    assert tally.returns == [30.0, 15.0, 40.0]
    assert tally.lengths == [2, 4, 1]
    assert len(tally.durations) == 3
    assert episodes.n_finished == 3


def test_an_episode_that_restarts_counts_from_zero() -> None:
    episodes, tally = Episodes(2, None, 100), Tally()
    episodes.step(BOTH, np.array([1.0, 10.0]))
    episodes.start(np.array([0]))
    episodes.step(BOTH, np.array([2.0, 20.0]))
    episodes.finish(BOTH, tally)
    assert tally.returns == [2.0, 30.0]
    assert tally.lengths == [1, 2]


def test_recent_returns_are_the_last_hundred_and_none_before_the_first() -> None:
    episodes, tally = Episodes(1, None, 100), Tally()
    assert episodes.recent_returns.is_empty
    for number in range(150):
        episodes.step(np.zeros(1, np.intp), np.array([float(number)]))
        episodes.finish(np.zeros(1, np.intp), tally)
    assert episodes.recent_returns == Summary.of(range(50, 150))


def test_an_episode_without_end_is_warned_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("trainkit.collector.episodes._ENDLESS", 10)
    episodes = Episodes(2, None, 100)
    for step in range(1, 41):
        episodes.step(BOTH, np.ones(2))
        if step in (9, 12):
            episodes.finish(np.array([1]), Tally())
            episodes.finish(np.array([0]), Tally())
        assert len(caplog.messages) == (step >= 30)  # one of 9 steps, one of 3; of the next there are 18 by then
        if step == 13:
            episodes.finish(np.array([1]), Tally())
    (message,) = caplog.messages
    assert message.startswith("env 0 has made 18 steps without an episode's end")
    assert "max_episode_steps, which is gymnasium.wrappers.TimeLimit" in message


def test_a_saved_count_continues_and_the_running_episodes_restart() -> None:
    one, other, tally = Episodes(2, None, 100), Episodes(2, None, 100), Tally()
    one.step(BOTH, np.array([1.0, 2.0]))
    one.finish(BOTH, tally)
    other.step(BOTH, np.array([100.0, 100.0]))
    other.load_state_dict(one.state_dict())
    assert other.n_finished == 2
    assert other.recent_returns == Summary.of([1.0, 2.0])
    other.step(BOTH, np.array([4.0, 8.0]))
    other.finish(BOTH, tally)
    assert tally.returns == [1.0, 2.0, 4.0, 8.0]


def test_a_reward_metric_turns_returns_into_what_is_shown() -> None:
    episodes, tally = Episodes(2, lambda returns: returns / 100, 100), Tally()
    episodes.step(BOTH, np.array([1.0, 2.0]))
    episodes.finish(BOTH, tally)
    assert tally.returns == [0.01, 0.02]
    assert episodes.recent_returns == Summary.of([0.01, 0.02])


def test_a_reward_metric_must_give_one_number_per_episode() -> None:
    episodes = Episodes(2, lambda returns: returns.mean(), 100)
    with pytest.raises(ConfigError, match=r"reward_metric must give one number per episode \[2\], got \(\)"):
        episodes.finish(BOTH, Tally())


def test_a_long_episode_sums_without_losing_a_step() -> None:
    episodes, tally = Episodes(1, None, 100), Tally()
    alone = np.zeros(1, np.intp)
    episodes.step(alone, np.array([2.0**53 - 10]))
    for _ in range(10):
        episodes.step(alone, np.array([1.0]))  # float32 would have stood still long ago
    episodes.finish(alone, tally)
    assert tally.returns == [2.0**53]


def test_the_times_of_a_tally_add_up_to_all_of_it() -> None:
    tally = Tally()
    tally.n_vector_step, tally.n_step = 4, 12
    tally.act_seconds, tally.env_seconds, tally.store_seconds, tally.seconds = 0.1, 0.2, 0.3, 1.0
    stats = tally.stats(Summary.of([]))
    assert (stats.act_ms, stats.env_ms, stats.store_ms) == pytest.approx((25, 50, 75))
    assert stats.other_ms == pytest.approx(100)
    assert (stats.obs_ms, stats.action_ms, stats.render_ms) == (0, 0, 0)
    assert stats.seconds == 1.0
    tally.obs_seconds, tally.action_seconds, tally.render_seconds = 0.04, 0.06, 0.3
    stats = tally.stats(Summary.of([]))
    assert (stats.env_ms, stats.obs_ms, stats.action_ms, stats.render_ms) == pytest.approx((25, 10, 15, 75))
    assert stats.other_ms == pytest.approx(25)


def test_what_did_not_happen_has_no_numbers() -> None:
    stats = Tally().stats(Summary.of([]))
    assert stats.n_step == stats.n_episode == 0
    assert [stats.returns, stats.lengths, stats.durations, stats.recent_returns] == [Summary.of([])] * 4
    assert [stats.env_ms, stats.act_ms, stats.store_ms, stats.other_ms] == [None] * 4
    assert [stats.obs_ms, stats.action_ms, stats.render_ms] == [None] * 3


@pytest.mark.parametrize(
    ("n_episode", "n_envs", "left"), [(10, 4, [3, 3, 2, 2]), (3, 4, [1, 1, 1, 0]), (8, 4, [2] * 4), (5, 1, [5])]
)
def test_a_quota_is_dealt_out_evenly_the_first_environments_taking_the_rest(
    n_episode: int, n_envs: int, left: list[int]
) -> None:
    assert EpisodeQuota(n_episode, n_envs).left.tolist() == left


def test_an_environment_whose_quota_is_filled_starts_no_other_episode() -> None:
    quota = EpisodeQuota(3, 2)  # 2 and 1
    assert quota.unfilled(BOTH).tolist() == [0, 1]
    assert quota.finish(BOTH).tolist() == [0]
    assert quota.unfilled(BOTH).tolist() == [0]
    assert quota.n_left > 0
    assert quota.finish(np.array([0])).tolist() == []
    assert quota.n_left == 0
