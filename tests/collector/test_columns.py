"""Columns that a collector stores besides the policy's, and the rows that a collect stored."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import trainkit as tk
from tests.helpers.doubles import Still
from tests.helpers.small_envs import LENGTH, Lamp
from trainkit.core.data import ACTION_MASK


def collector(envs: tk.Envs, buffer: Any, **columns: Any) -> tk.Collector:
    return tk.Collector(Still(), envs, buffer, extra_columns=columns)


def lamps(n: int = 3, **how: Any) -> tk.Envs:
    return tk.make_envs(Lamp, n, **how)


@pytest.mark.parametrize("kind", [tk.ReplayBuffer, tk.PrioritizedReplayBuffer])
@pytest.mark.parametrize(
    "envs",
    [lamps, lambda: lamps(backend="async"), lambda: tk.make_envs(gym.vector.SyncVectorEnv([Lamp] * 3))],
    ids=["sync", "async", "vector"],
)
def test_columns_hold_the_steps_info_or_the_default(envs: Callable[[], tk.Envs], kind: Any) -> None:
    buffer = kind(100)
    train = collector(envs(), buffer, square=-1, pair=np.zeros(2, np.float32), is_odd=False, own=0.5)
    train.collect(n_step=30)
    step = buffer.get(train.collected_slots)
    train.close()
    t = step.next_obs[:, 0].astype(int)

    assert len(t) == 30
    assert_array_equal(step.extras["square"], np.where(t >= 2, t**2, -1))
    assert step.extras["square"].dtype == np.int64
    assert_array_equal(step.extras["pair"], np.stack([t, -t], axis=1))
    assert step.extras["pair"].dtype == np.float32
    assert_array_equal(step.extras["is_odd"], t % 2 == 1)
    assert_array_equal(step.extras["own"], np.full(30, 0.5))


def test_a_rollout_has_them_too() -> None:
    buffer = tk.RolloutBuffer()
    collector(lamps(), buffer, square=-1).collect(n_step=12)

    assert buffer.read().extras["square"].tolist() == [[-1] * 3, [4] * 3, [9] * 3, [16] * 3]


def test_random_actions_store_them_too() -> None:
    buffer = tk.ReplayBuffer(100)
    collector(lamps(), buffer, square=0).collect(n_step=30, random=True)

    assert set(buffer[:].extras["square"].tolist()) == {0, 4, 9, 16, 25}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"t": 0}, "every row has a column 't' already"),
        ({"reward": 0.0}, "every row has a column 'reward' already"),
        ({"name": "x"}, r"extra_columns\['name'\] must be a number or an array of numbers, got 'x'"),
        ({"gone": None}, r"extra_columns\['gone'\] must be a number"),
        (["square"], r"extra_columns must be \{name: default value\}, got \['square'\]"),
    ],
)
def test_columns_that_cannot_be_are_rejected_at_construction(columns: Any, message: str) -> None:
    with pytest.raises(tk.ConfigError, match=message):
        tk.Collector(Still(), lamps(), tk.ReplayBuffer(10), extra_columns=columns)


def test_a_column_of_the_policys_name_is_rejected() -> None:
    envs = lamps()
    policy = tk.DQNPolicy.for_envs(envs, hidden=(4,), store_q_values=True)
    with pytest.raises(tk.ConfigError, match="every row has a column 'q_values' already"):
        tk.Collector(policy, envs, tk.ReplayBuffer(10), extra_columns={"q_values": 0.0})


def test_without_a_buffer_there_is_nowhere_to_store_them() -> None:
    with pytest.raises(tk.ConfigError, match="extra_columns needs a buffer"):
        tk.Collector(Still(), lamps(), extra_columns={"square": 0})


@pytest.mark.parametrize(("default", "key"), [(0.0, "pair"), (np.zeros(3), "pair"), (0, "word"), (False, "square")])
def test_a_value_of_another_shape_or_kind_is_named_with_its_environment(default: Any, key: str) -> None:
    train = collector(lamps(), tk.ReplayBuffer(100), **{key: default})
    with pytest.raises(
        tk.errors.BadEnvDataError, match=rf"env 0: info\['{key}'\] must be .* as Collector.extra_columns says"
    ):
        train.collect(n_step=9)


class TestCollectedSlots:
    def test_are_of_the_last_collects_rows_in_order(self) -> None:
        buffer = tk.ReplayBuffer(100)
        train = tk.Collector(Still(), lamps(), buffer)
        assert len(train.collected_slots) == 0
        train.collect(n_step=6)
        first = train.collected_slots
        train.collect(n_step=9)

        assert_array_equal(buffer.get(first).next_obs[:, 0], [1, 1, 1, 2, 2, 2])
        assert_array_equal(buffer.get(train.collected_slots).next_obs[:, 0], [3, 3, 3, 4, 4, 4, 5, 5, 5])

    def test_let_a_callback_change_what_was_collected_before_it_is_learned_from(self) -> None:
        class Clip(tk.Callback):
            """Overwrite each row's reward by its position in the collect."""

            def on_collect_end(self, trainer: Any, stats: tk.CollectStats) -> None:
                slots = trainer.train_collector.collected_slots
                rows = trainer.buffer.get(slots)
                assert len(slots) == stats.n_step
                trainer.buffer.rewrite(slots, reward=10 * rows.next_obs[:, 0])

        seen: list[np.ndarray] = []

        class Watch(tk.Callback):
            def on_train_batch(self, trainer: Any, batch: Any) -> None:
                seen.append(batch.reward - 10 * (batch.obs[..., 0] + 1))

        how = {"max_epoch": 1, "step_per_epoch": 60, "batch_size": 8, "verbose": False, "show_progress": False}
        envs = lamps()
        learner = tk.DQNPolicy.for_envs(envs, hidden=(4,), device="cpu")
        train = tk.Collector(learner, envs, tk.ReplayBuffer(100))
        tk.OffpolicyTrainer(learner, train, **how, seed=1, callbacks=[Clip(), Watch()]).run()  # type: ignore[arg-type]
        envs = lamps()
        actor = tk.PPOPolicy.for_envs(envs, hidden=(4,), device="cpu")
        train = tk.Collector(actor, envs, tk.RolloutBuffer())
        how |= {"step_per_collect": 15}
        tk.OnpolicyTrainer(actor, train, **how, seed=1, callbacks=[Clip(), Watch()]).run()  # type: ignore[arg-type]

        assert len(seen) > 20
        assert all((difference == 0).all() for difference in seen)


def test_an_episodes_rows_agree_with_what_it_says() -> None:
    got: list[tuple[int, float]] = []

    class Check(tk.Callback):
        def on_episode_step(self, trainer: Any, episode: tk.collector.Episode) -> None:
            rows = trainer.buffer.get(episode.slots, columns=("t",))
            assert_array_equal(rows.extras["t"], np.arange(episode.length))
            assert_array_equal(rows.obs[1:], rows.next_obs[:-1])
            assert_array_equal(rows.next_obs[-1], episode.obs)
            assert_allclose(rows.reward.sum(), episode.total_reward)
            assert rows.terminated.tolist() == [False] * (episode.length - 1) + [episode.terminated]

        def on_episode_end(self, trainer: Any, episode: tk.collector.Episode) -> None:
            got.append((episode.length, episode.total_reward))

    envs = lamps()
    policy = tk.DQNPolicy.for_envs(envs, hidden=(4,), device="cpu")
    how: dict[str, Any] = {"max_epoch": 1, "step_per_epoch": 60, "batch_size": 8, "verbose": False}
    train = tk.Collector(policy, envs, tk.ReplayBuffer(100))
    tk.OffpolicyTrainer(policy, train, **how, show_progress=False, seed=1, callbacks=[Check()]).run()

    assert got == [(LENGTH, LENGTH)] * 12


class TestQValues:
    def test_are_those_that_each_action_was_chosen_by(self) -> None:
        envs = lamps()
        policy = tk.DQNPolicy.for_envs(
            envs, hidden=(4,), device="cpu", seed=1, store_q_values=True, exploration=tk.EpsilonGreedy(0.5)
        )
        buffer = tk.ReplayBuffer(100)
        tk.Collector(policy, envs, buffer).collect(n_step=30)
        step = buffer[:]

        assert step.extras["q_values"].shape == (30, 2)
        assert_allclose(step.extras["q_values"], policy.action_values(step.obs), rtol=1e-5)

    def test_of_illegal_actions_are_there_too(self) -> None:
        class Masked(Lamp):
            observation_space = gym.spaces.Dict({"obs": Lamp.observation_space, ACTION_MASK: gym.spaces.MultiBinary(2)})

            def reset(self, **how: Any) -> Any:
                obs, info = super().reset(**how)
                return {"obs": obs, ACTION_MASK: np.array([1, 0], np.int8)}, info

            def step(self, action: int) -> Any:
                obs, *rest = super().step(action)
                return {"obs": obs, ACTION_MASK: np.array([1, 0], np.int8)}, *rest

        envs = tk.make_envs(Masked, 2)
        policy = tk.DQNPolicy.for_envs(envs, hidden=(4,), device="cpu", store_q_values=True, store_action_prob=True)
        buffer = tk.ReplayBuffer(100)
        tk.Collector(policy, envs, buffer).collect(n_step=10)
        step = buffer[:]

        assert np.isfinite(step.extras["q_values"]).all()
        assert_array_equal(step.extras["action_prob"], np.ones(10))

    def test_need_an_action_space_and_a_policy_that_acts(self) -> None:
        with pytest.raises(tk.ConfigError, match="store_q_values needs an action_space"):
            tk.DQNPolicy(tk.nets.QNetwork((1,), 2), store_q_values=True)
        envs = lamps()
        policy = tk.DQNPolicy.for_envs(envs, hidden=(4,), store_q_values=True)
        train = tk.Collector(policy, envs, tk.ReplayBuffer(100))
        with pytest.raises(tk.ConfigError, match=r"warmup 'random' cannot fill the columns \['q_values'\]"):
            tk.OffpolicyTrainer(policy, train, max_epoch=1, step_per_epoch=10, batch_size=4, warmup="random")
