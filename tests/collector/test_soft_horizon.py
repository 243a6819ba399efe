"""A soft horizon counts episodes that continue: in statistics, quotas and events, and nowhere else."""

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest

import trainkit as tk
from trainkit.core.errors import ConfigError


class Endless(gym.Env[Any, Any]):
    """An environment without an end, whose observation and reward are the number of its steps; it ends on request."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.full(1, self.steps, np.float32), float(self.steps), False, False, {}


def collector(*, n: int = 2, **options: Any) -> tk.Collector:
    envs = tk.make_envs(Endless, n, seed=0, soft_horizon=4, **options)
    return tk.Collector(tk.RandomPolicy(envs.action_space, seed=0), envs, tk.ReplayBuffer(100))


def test_episodes_are_counted_and_rows_and_environments_continue() -> None:
    own = collector()
    parts = [own.collect(n_step=n_step) for n_step in (6, 6, 6)]  # 3 vector steps each
    assert [part.episode_returns for part in parts] == [(), (1.0 + 2 + 3 + 4,) * 2, (5.0 + 6 + 7 + 8,) * 2]
    assert [part.episode_lengths for part in parts] == [(), (4, 4), (4, 4)]
    assert (own.n_episode, parts[-1].n_cut_episodes) == (4, 0)
    rows = own.buffer.get(own.buffer.slots(), ["episode", "t", "terminated", "truncated"])  # type: ignore[union-attr]
    assert rows.next_obs[:, 0].tolist() == [*range(1, 10)] * 2
    assert not rows.extras["terminated"].any()
    assert not rows.extras["truncated"].any()
    assert rows.extras["episode"].tolist() == [0] * 18
    assert rows.extras["t"].tolist() == [*range(9)] * 2
    assert own.envs.call("steps") == [9, 9]


def test_the_row_at_a_soft_horizon_is_truncated_for_the_learner_if_wanted() -> None:
    own = collector(truncate_at_soft_horizon=True)
    assert own.collect(n_step=18).episode_lengths == (4, 4, 4, 4)
    buffer: Any = own.buffer
    rows = buffer.get(buffer.slots(), ["episode", "t", "terminated", "truncated"])
    assert rows.next_obs[:, 0].tolist() == [*range(1, 10)] * 2
    assert not rows.extras["terminated"].any()
    assert rows.extras["truncated"].tolist() == [False, False, False, True, False, False, False, True, False] * 2
    assert rows.extras["episode"].tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2] * 2
    assert rows.extras["t"].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0] * 2
    assert own.envs.call("steps") == [9, 9]
    windows = buffer.sample(None, horizon=tk.Horizon(3, 0.5), columns=["n"])  # none crosses the horizon, all bootstrap
    assert windows.extras["n"].tolist() == [3, 3, 2, 1, 3, 3, 2, 1, 1] * 2
    assert (windows.discount == 0.5 ** windows.extras["n"]).all()


def test_a_policy_is_given_the_start_after_a_soft_horizon() -> None:
    class Watching(tk.RandomPolicy):
        seen: ClassVar[list[bool]] = []

        def act(self, obs: Any, *, starts: Any = None, **how: Any) -> Any:
            self.seen.append(bool(starts[0]))
            return super().act(obs, starts=starts, **how)

    envs = tk.make_envs(Endless, 1, seed=0, soft_horizon=3, truncate_at_soft_horizon=True)
    tk.Collector(Watching(envs.action_space, seed=0), envs, tk.ReplayBuffer(100)).collect(n_step=7)
    assert Watching.seen == [True, False, False, True, False, False, True]


def test_a_real_end_before_the_horizon_starts_the_count_again() -> None:
    own = collector(n=1, max_episode_steps=6)
    assert own.collect(n_step=16).episode_lengths == (4, 2, 4, 2, 4)  # the last one is not over


def test_an_end_at_the_horizon_is_counted_once() -> None:
    own = collector(n=1, max_episode_steps=4)
    assert own.collect(n_step=8).episode_lengths == (4, 4)
    assert own.envs.call("steps") == [0]


def test_a_number_of_episodes_can_be_evaluated_in_an_environment_without_an_end() -> None:
    envs = tk.make_envs(Endless, 2, soft_horizon=4)
    stats = tk.Evaluation(tk.Collector(tk.RandomPolicy(envs.action_space, seed=0), envs), duration=5).run(step=0)
    assert sorted(stats.episode_returns) == [10.0, 10.0, 26.0, 26.0, 42.0]  # 3 of one environment, 2 of the other
    assert (stats.n_episode, stats.n_step, stats.n_cut_episodes) == (5, 20, 0)


def test_callbacks_receive_an_episode_for_each_that_is_counted() -> None:
    events: list[Any] = []

    class Watch(tk.Callback):
        episodes = "training"

        def on_episode_start(self, trainer: tk.Trainer, episode: tk.collector.Episode) -> None:
            events.append(("start", float(episode.obs[0])))

        def on_episode_end(self, trainer: tk.Trainer, episode: tk.collector.Episode) -> None:
            events.append(("end", episode.length, episode.total_reward, float(episode.obs[0])))

    own = collector(n=1)
    policy = tk.DQNPolicy.for_envs(own.envs, hidden=(4,), seed=0)
    own.release()
    train = tk.Collector(policy, own.envs, tk.ReplayBuffer(100))
    tk.OffpolicyTrainer(
        policy, train, max_epoch=1, step_per_epoch=9, batch_size=4, seed=0, callbacks=[Watch()], verbose=False
    ).run()
    ends = [("start", 0.0), ("end", 4, 10.0, 4.0), ("start", 4.0), ("end", 4, 26.0, 8.0), ("start", 8.0)]
    assert events == ends


def test_a_collector_that_was_saved_continues_its_episodes(caplog: pytest.LogCaptureFixture) -> None:
    own, other = collector(), collector()
    own.collect(n_step=12)
    other.buffer.load_state_dict(own.buffer.state_dict())  # type: ignore[union-attr]
    other.load_state_dict(own.state_dict())
    assert caplog.messages == []  # the open episodes were replayed
    assert other.envs.call("steps") == [6, 6]
    assert other.collect(n_step=4).episode_returns == own.collect(n_step=4).episode_returns == (26.0, 26.0)


def test_what_cannot_have_one_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"make_envs.soft_horizon must be a whole number >= 1, got 0"):
        tk.make_envs(Endless, soft_horizon=0)
    with pytest.raises(ConfigError, match=r"make_envs: soft_horizon came too late for environments already made"):
        tk.make_envs(tk.make_envs(Endless), soft_horizon=3)
    with pytest.raises(ConfigError, match=r"make_envs.truncate_at_soft_horizon needs a soft_horizon: give one"):
        tk.make_envs(Endless, truncate_at_soft_horizon=True)
