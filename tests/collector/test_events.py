"""Episodes as callbacks see them: every event in order, once, whatever a listener raises."""

import copy
import time
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

import trainkit as tk
from tests.helpers.doubles import one_by_one
from trainkit.collector import Episode, EpisodeEvents
from trainkit.collector.events import Calls


class Metronome(gym.Env[NDArray[np.float32], int]):
    """An episode of `length` steps, whose step t pays 10**t and has t in its info; the observation is t."""

    observation_space = gym.spaces.Box(0, 99, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, length: int) -> None:
        self._length = length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._t = 0
        return np.array([0], np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._t += 1
        return np.array([self._t], np.float32), 10.0 ** (self._t - 1), self._t >= self._length, False, {"t": self._t}


def factory(length: int) -> Any:
    return lambda: Metronome(length)


ALL = ("created", "start", "step", "end")


def writer(events: list[tuple[str, int, int, float]]) -> Any:
    """Return a listener that writes events to a list."""

    def note(event: str, episode: Episode) -> None:
        events.append((event.removeprefix("on_episode_"), episode.env_id, episode.length, episode.total_reward))

    return one_by_one(note)


def watched(
    lengths: tuple[int, ...], buffer: tk.ReplayBuffer | None = None, names: tuple[str, ...] = ALL
) -> tuple[tk.Collector, list[tuple[str, int, int, float]]]:
    """Make a collector of environments of these episode lengths, and the list its events are written to."""
    envs = tk.make_envs([factory(length) for length in lengths])
    collector = tk.Collector(tk.RandomPolicy(envs.action_space, seed=1), envs, buffer)
    events: list[tuple[str, int, int, float]] = []
    collector.events = EpisodeEvents(envs.n, writer(events), [f"on_episode_{name}" for name in names])
    return collector, events


def test_each_environment_has_its_events_in_order_with_exact_counts() -> None:
    collector, events = watched((1, 2))
    collector.collect(n_step=6)
    assert events == [
        ("created", 0, 0, 0.0),
        ("created", 1, 0, 0.0),
        ("start", 0, 0, 0.0),
        ("start", 1, 0, 0.0),
        ("step", 0, 1, 1.0),
        ("step", 1, 1, 1.0),
        ("end", 0, 1, 1.0),
        ("created", 0, 0, 0.0),
        ("start", 0, 0, 0.0),
        ("step", 0, 1, 1.0),
        ("step", 1, 2, 11.0),
        ("end", 0, 1, 1.0),
        ("end", 1, 2, 11.0),
        ("created", 0, 0, 0.0),
        ("created", 1, 0, 0.0),
        ("start", 0, 0, 0.0),
        ("start", 1, 0, 0.0),
        ("step", 0, 1, 1.0),
        ("step", 1, 1, 1.0),
        ("end", 0, 1, 1.0),
        ("created", 0, 0, 0.0),
        ("start", 0, 0, 0.0),
    ]


def test_a_quota_that_is_met_begins_no_other_episode() -> None:
    collector, events = watched((1, 2), names=("start", "end"))
    collector.collect(n_episode=2)
    assert [(event, env_id) for event, env_id, *_ in events] == [("start", 0), ("start", 1), ("end", 0), ("end", 1)]


def test_an_episode_shows_its_last_step_and_its_slots() -> None:
    buffer = tk.ReplayBuffer(20)
    collector, _ = watched((3,), buffer)
    seen: list[Any] = []

    def note(event: str, episode: Episode) -> None:
        now = (episode.obs, episode.action, episode.reward, dict(episode.info), episode.terminated, episode.slots)
        seen.append((event, *now))

    collector.events = EpisodeEvents(1, one_by_one(note), ["on_episode_created", "on_episode_start", "on_episode_end"])
    collector.collect(n_step=3)
    created, start, end, *_ = seen
    assert created[1:] == (None, None, None, {}, False, None)
    assert start[0] == "on_episode_start"
    np.testing.assert_array_equal(start[1], [0])
    assert start[2:5] == (None, None, {})
    np.testing.assert_array_equal(end[1], [3])
    assert end[3:6] == (100.0, {"t": 3}, True)
    batch = buffer.sample(50, horizon=tk.Horizon(), columns=("t",))
    assert set(end[6].tolist()) == set(batch.slots.tolist())
    by_t = dict(zip(batch.extras["t"].tolist(), batch.slots.tolist(), strict=True))
    assert end[6].tolist() == [by_t[0], by_t[1], by_t[2]]


def test_an_episode_has_the_time_from_its_start_to_its_last_step() -> None:
    class Slow(Metronome):
        def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            time.sleep(0.002)
            return super().step(action)

    envs = tk.make_envs(lambda: Slow(3))
    collector = tk.Collector(tk.RandomPolicy(envs.action_space, seed=1), envs)
    seconds: list[tuple[Episode, float]] = []
    note = one_by_one(lambda event, episode: seconds.append((episode, episode.seconds)))
    collector.events = EpisodeEvents(1, note, [f"on_episode_{name}" for name in ALL])
    durations = collector.collect(n_episode=2).durations
    for created, start, *steps, end in (seconds[:6], seconds[6:]):
        assert created[1] == start[1] == 0
        assert all(0.002 * t <= own <= durations.max for t, (_, own) in enumerate(steps, 1))  # type: ignore[operator]  # of two
        assert end[1] == steps[-1][1] == end[0].seconds

    resumed = Episode(0, in_evaluation=False)
    resumed.load_state_dict(seconds[-1][0].state_dict(with_last=False), None)
    assert resumed.seconds == seconds[-1][1]


def test_what_is_stored_nowhere_has_no_slots() -> None:
    collector, _ = watched((2,))
    slots: list[Any] = []
    collector.events = EpisodeEvents(
        1, one_by_one(lambda event, episode: slots.append(episode.slots)), ["on_episode_end"]
    )
    collector.collect(n_step=2)
    assert slots == [None]


def test_rewards_of_a_finished_episode_can_be_rewritten() -> None:
    buffer = tk.ReplayBuffer(20)
    collector, _ = watched((2,), buffer)

    def backdate(event: str, episode: Episode) -> None:
        assert episode.slots is not None
        buffer.rewrite(episode.slots, reward=np.full(len(episode.slots), episode.total_reward))

    collector.events = EpisodeEvents(1, one_by_one(backdate), ["on_episode_end"])
    collector.collect(n_step=4)
    assert set(buffer.sample(30, horizon=tk.Horizon()).reward.tolist()) == {11.0}


def test_every_episode_has_user_data_of_its_own() -> None:
    collector, _ = watched((2,))
    found: list[Any] = []

    def note(event: str, episode: Episode) -> None:
        episode.user_data.setdefault("steps", []).append(episode.length)
        if event == "on_episode_end":
            found.append(episode.user_data["steps"])

    collector.events = EpisodeEvents(1, one_by_one(note), ["on_episode_step", "on_episode_end"])
    collector.collect(n_step=4)
    assert found == [[1, 2, 2], [1, 2, 2]]


@pytest.mark.parametrize("at", range(1, 23))
def test_a_listener_that_raises_loses_no_event_and_no_row(at: int) -> None:
    plain, expected = watched((1, 2))
    plain.collect(n_step=6)
    buffer = tk.ReplayBuffer(20)
    collector, events = watched((1, 2), buffer)
    write = writer(events)

    def raise_once(event: str, calls: Calls) -> None:
        for one in calls:
            write(event, iter([one]))
            if len(events) == at:
                raise ValueError("not today")

    collector.events = EpisodeEvents(2, raise_once, [f"on_episode_{name}" for name in ALL])
    with pytest.raises(ValueError, match="not today"):
        collector.collect(n_step=6)
    collector.resume()
    assert events == expected
    assert (len(buffer), collector.env_step, collector.n_episode) == (6, 6, 4)


@pytest.mark.parametrize("at", range(1, 23))
def test_a_listener_that_has_the_rest_delivered_receives_it_once_and_in_order(at: int) -> None:
    plain, expected = watched((1, 2))
    plain.collect(n_step=6)
    collector, events = watched((1, 2))
    write = writer(events)

    def deliver_once(event: str, calls: Calls) -> None:
        for one in calls:
            write(event, iter([one]))
            if len(events) == at:
                collector.events.deliver()

    collector.events = EpisodeEvents(2, deliver_once, [f"on_episode_{name}" for name in ALL])
    collector.collect(n_step=6)
    assert events == expected


@pytest.mark.parametrize("at", range(1, 20))
def test_a_collector_saved_in_a_listener_delivers_the_other_events_when_it_resumes(at: int) -> None:
    def events_of(collector: tk.Collector, states: list[Any], at: int = 0) -> list[tuple[Any, ...]]:
        noted: list[tuple[Any, ...]] = []

        def note(event: str, episode: Episode) -> None:
            last = episode.length and (episode.obs, episode.action, episode.reward, episode.terminated)
            noted.append((event, episode.env_id, episode.length, episode.total_reward, repr(last)))
            if len(noted) == at:
                states.extend([collector.state_dict(), copy.deepcopy(collector.policy.streams_state())])

        collector.events = EpisodeEvents(2, one_by_one(note), [f"on_episode_{name}" for name in ALL])
        return noted

    states: list[Any] = []
    whole, _ = watched((1, 2))
    expected = events_of(whole, states, at)
    whole.collect(n_step=8)
    again, _ = watched((1, 2))
    resumed = events_of(again, [])
    again.load_state_dict(states[0])
    again.policy.load_streams_state(states[1])
    if at <= 2:  # before the first reset, which is made again
        again.resume()
        assert resumed == expected
        return
    again.resume()
    assert resumed == expected[at:]


def test_a_cut_episode_has_no_end() -> None:
    collector, events = watched((5,), names=("created", "end"))
    collector.collect(n_step=2)
    collector.reset()
    assert [event for event, *_ in events] == ["created", "created"]


def test_episodes_say_whether_they_evaluate() -> None:
    envs = tk.make_envs(factory(1))
    collector = tk.Collector(tk.RandomPolicy(envs.action_space, seed=1), envs)
    events: list[bool] = []
    note = one_by_one(lambda event, episode: events.append(episode.in_evaluation))
    collector.events = EpisodeEvents(1, note, ["on_episode_end"], in_evaluation=True)
    collector.collect(n_step=1)
    assert events == [True]


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_an_episode_of_a_vector_environment_starts_at_its_first_observation(mode: AutoresetMode) -> None:
    envs = tk.make_envs(SyncVectorEnv([factory(2), factory(3)], autoreset_mode=mode))
    collector = tk.Collector(tk.RandomPolicy(envs.action_space, seed=1), envs)
    events: list[tuple[str, int, float | None]] = []

    def note(event: str, episode: Episode) -> None:
        obs = None if episode.obs is None else float(episode.obs[0])
        events.append((event.removeprefix("on_episode_"), episode.env_id, obs))

    collector.events = EpisodeEvents(2, one_by_one(note), [f"on_episode_{name}" for name in ALL])
    for _ in range(6):
        collector.collect(n_step=5)
    for env_id, length in enumerate((2, 3)):
        steps = [("step", float(t)) for t in range(1, length + 1)]
        whole = [("created", None), ("start", 0.0), *steps, ("end", float(length))]
        own = [(event, obs) for event, one, obs in events if one == env_id]
        assert own == (whole * len(own))[: len(own)]
        assert len(own) > 3 * len(whole)


def test_an_episode_that_a_reset_finds_not_started_starts_once() -> None:
    envs = tk.make_envs(SyncVectorEnv([factory(1)], autoreset_mode=AutoresetMode.NEXT_STEP))
    collector = tk.Collector(tk.RandomPolicy(envs.action_space, seed=1), envs)
    events: list[str] = []
    note = one_by_one(lambda event, episode: events.append(event.removeprefix("on_episode_")))
    collector.events = EpisodeEvents(1, note, [f"on_episode_{name}" for name in ALL])
    collector.collect(n_step=1)
    collector.reset()
    collector.collect(n_step=1)
    assert events == ["created", "start", "step", "end"] * 2 + ["created"]
