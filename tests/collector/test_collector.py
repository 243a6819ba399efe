"""Collecting: how much, by whom, from where on; what is counted and what survives an interruption."""

import math
import time
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from tests.helpers.doubles import Ledger, Player, Still
from tests.helpers.scripted_env import OBS, STEP, ScriptedEnv, answer
from tests.helpers.small_envs import drawn_env
from tests.helpers.tagged import N_ACTIONS, TaggedEnv, decode, legal, length, reward
from tests.helpers.truth import IN_PROCESS, assert_rows_are_real, tagged_envs
from trainkit.buffer import ReplayBuffer
from trainkit.collector import Collector, EpisodeEvents
from trainkit.core.data import ACTION_MASK, ActOutput, ArraySpec
from trainkit.core.errors import BadEnvDataError, ConfigError, EnvError, NoLegalActionError
from trainkit.core.stats import CollectStats, Summary
from trainkit.envs import make_envs
from trainkit.policy import DQNPolicy, EpsilonGreedy, RandomPolicy
from trainkit.trainer import OffpolicyTrainer

every_way_here = pytest.mark.parametrize("way", IN_PROCESS)


def return_of(env: int, episode: int) -> float:
    """Add up an episode's rewards by the rule."""
    return sum(reward(env, episode, step) for step in range(length(env, episode)))


def assert_summarizes(summary: Summary, values: list[float]) -> None:
    """Check a summary of whole numbers, whose sum is exact in any order."""
    got = (summary.mean, summary.min, summary.max, summary.count)
    assert got == (sum(values) / len(values), min(values), max(values), len(values))


# ---- binding ----


def test_binding_gives_the_buffer_its_rows_single_frames_and_the_policys_columns() -> None:
    ledger = Ledger()
    Collector(Player(has_extras=True), tagged_envs("sync", 3, "masked", stack=4), ledger)
    assert ledger.spec is not None
    assert ledger.spec.n_envs == 3
    assert ledger.spec.obs == {
        "obs": ArraySpec(shape=(4,), dtype=np.dtype(np.float32), stack=4),
        ACTION_MASK: ArraySpec(shape=(N_ACTIONS,), dtype=np.dtype(np.int8)),
    }
    assert ledger.spec.action == ArraySpec(shape=(), dtype=np.dtype(np.int64))
    assert ledger.spec.extras == {"wish": ArraySpec(shape=(2,), dtype=np.dtype(np.float32))}


def test_a_policy_for_other_spaces_is_rejected_before_the_buffer_claims_memory() -> None:
    class Picky(Player):
        def check_spaces(self, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> None:
            raise ConfigError("made for 4 actions, got 3")

    buffer = ReplayBuffer(100)
    with pytest.raises(ConfigError, match="made for 4 actions"):
        Collector(Picky(), tagged_envs("sync", 2), buffer)
    assert buffer.nbytes == 0


def test_a_buffer_of_other_rows_or_too_small_is_rejected() -> None:
    buffer = ReplayBuffer(100)
    Collector(Player(), tagged_envs("sync", 2), buffer)
    with pytest.raises(ConfigError, match="ReplayBuffer holds rows of"):
        Collector(Player(), tagged_envs("sync", 3), buffer)
    with pytest.raises(ConfigError, match="capacity 2 is smaller than the 3 environments"):
        Collector(Player(), tagged_envs("sync", 3), ReplayBuffer(2))


def test_environments_must_come_from_make_envs() -> None:
    with pytest.raises(ConfigError, match=r"Collector.envs must be an Envs, got CartPoleVectorEnv"):
        Collector(Player(), gym.make_vec("CartPole-v1", 2))  # type: ignore[arg-type]  # the mistake itself


# ---- how much ----


@pytest.mark.parametrize(
    ("amount", "message"),
    [
        ({}, "exactly one of n_step and n_episode, got .*None"),
        ({"n_step": 1, "n_episode": 1}, "exactly one of n_step and n_episode, got .*1"),
        ({"n_step": 0}, "n_step must be a whole number >= 1, got 0"),
        ({"n_step": 2.5}, "n_step must be a whole number >= 1, got 2.5"),
        ({"n_step": True}, "n_step must be a whole number >= 1, got True"),
        ({"n_episode": -1}, "n_episode must be a whole number >= 1, got -1"),
        ({"n_step": 1, "seed": 3}, r"seed=\) seeds the reset that n_episode begins with"),
        ({"n_step": 1, "explore": "no"}, r"Collector.collect.explore must be True, False or None, got 'no'"),
        ({"n_step": 1, "explore": 1}, r"Collector.collect.explore must be True, False or None, got 1"),
        ({"n_step": 1, "random": None}, r"Collector.collect.random must be True or False, got None"),
    ],
)
def test_a_collect_is_of_steps_or_of_episodes(amount: dict[str, Any], message: str) -> None:
    collector = Collector(Player(), tagged_envs("sync", 2))
    with pytest.raises(ConfigError, match=message):
        collector.collect(**amount)
    assert collector.env_step == 0


@pytest.mark.parametrize("amount", [{}, {"explore": None}])
def test_by_default_the_policy_explores_if_the_steps_are_stored(amount: dict[str, Any]) -> None:
    player = Player()
    Collector(player, tagged_envs("sync", 2), Ledger()).collect(n_step=4, **amount)
    recorded = Collector(player, tagged_envs("sync", 2))
    recorded.recorders.append(Ledger())
    recorded.collect(n_step=4, **amount)
    assert [call.explore for call in player.calls] == [True] * 4


@pytest.mark.parametrize("amount", [{}, {"explore": None}])
def test_by_default_the_policy_is_greedy_if_no_step_is_stored(amount: dict[str, Any]) -> None:
    player = Player()
    Collector(player, tagged_envs("sync", 2)).collect(n_episode=2, **amount)
    assert {call.explore for call in player.calls} == {False}


@pytest.mark.parametrize("explore", [True, False, np.True_, np.False_])
@pytest.mark.parametrize("buffer", [Ledger, lambda: None])
def test_a_call_may_decide_whether_the_policy_explores(explore: Any, buffer: Any) -> None:
    player = Player()
    Collector(player, tagged_envs("sync", 2), buffer()).collect(n_step=4, explore=explore)
    assert [call.explore for call in player.calls] == [bool(explore)] * 2


def test_at_epsilon_1_a_default_collect_takes_random_actions() -> None:
    envs = make_envs("CartPole-v1", 4, seed=1)
    policy = DQNPolicy.for_envs(envs, hidden=(8,), exploration=EpsilonGreedy(1.0), seed=1)
    buffer = ReplayBuffer(400)
    Collector(policy, envs, buffer).collect(n_step=400, explore=None)
    rows = buffer.sample(4_000, horizon=policy.horizon)
    greedy = policy.predict(rows.obs) == rows.action
    assert 0.35 < greedy.mean() < 0.65  # it was 1.0 when None meant greedy


def test_what_one_collect_goes_over_is_taken_off_the_next() -> None:
    ledger = Ledger()
    collector = Collector(Player(), tagged_envs("sync", 4), ledger)
    counts = [collector.collect(n_step=10).n_step for _ in range(6)]
    assert counts == [12, 8, 12, 8, 12, 8]  # by whole vector steps of 4, and 10 on average
    assert collector.collect(n_step=2).n_step == 4
    assert collector.collect(n_step=1).n_step == 0  # paid for already
    assert collector.env_step == len(ledger) == 64


@every_way_here
def test_steps_of_many_collects_are_exactly_those_requested(way: str) -> None:
    collector = Collector(Player(), tagged_envs(way, 3))
    requested = [1 + 7 * number % 11 for number in range(100)]
    done = [collector.collect(n_step=n).n_step for n in requested]
    over = np.cumsum(done) - np.cumsum(requested)
    assert over.min() >= 0
    assert over.max() < 3


@pytest.mark.parametrize(("n_episode", "quota"), [(10, [3, 3, 2, 2]), (3, [1, 1, 1, 0]), (4, [1, 1, 1, 1])])
@every_way_here
def test_each_environment_plays_its_quota_of_whole_episodes(way: str, n_episode: int, quota: list[int]) -> None:
    ledger = Ledger()
    collector = Collector(Player(), tagged_envs(way, 4), ledger)
    stats = collector.collect(n_episode=n_episode)
    rows = ledger.rows()
    assert assert_rows_are_real(rows, 4) == 0
    ended = rows.terminated | rows.truncated
    assert [int(ended[rows.env_ids == env].sum()) for env in range(4)] == quota
    played = [(env, episode) for env, n in enumerate(quota) for episode in range(n)]
    assert stats.n_episode == n_episode
    assert stats.n_step == collector.env_step == len(rows.reward) == sum(length(*one) for one in played)
    assert_summarizes(stats.returns, [return_of(*one) for one in played])
    assert_summarizes(stats.lengths, [length(*one) for one in played])


def one_for_short_and_hundred_for_long(env: Any, episode: Any) -> Any:
    return 1 + 99 * env


def test_short_episodes_do_not_count_more_than_long_ones() -> None:
    factories = [partial(TaggedEnv, env, length_of=one_for_short_and_hundred_for_long) for env in range(2)]
    stats = Collector(Player(), make_envs(factories)).collect(n_episode=20)
    assert stats.lengths == Summary(mean=50.5, std=49.5, min=1.0, max=100.0, count=20)  # by finish order: about 1


def test_collecting_episodes_cuts_open_episodes_and_resets() -> None:
    ledger = Ledger()
    collector = Collector(Player(), tagged_envs("sync", 3), ledger)
    collector.collect(n_step=3)  # environment 0's first episode has one step, the others' continue
    n_before = len(ledger)
    stats = collector.collect(n_episode=3)
    assert n_before in ledger.cuts
    rows = ledger.rows()
    assert decode(rows.obs)[n_before : n_before + 3, 2].tolist() == [0, 0, 0]
    assert assert_rows_are_real(rows, 3) == 2
    assert stats.lengths.max == max(length(env, episode) for env, episode in ((0, 2), (1, 1), (2, 1)))


@every_way_here
def test_collecting_steps_after_episodes_resets(way: str) -> None:
    ledger = Ledger()
    collector = Collector(Player(), tagged_envs(way, 3), ledger)
    for _ in range(5):
        collector.collect(n_episode=4)
        n_before = len(ledger)
        collector.collect(n_step=30)
        rows = ledger.rows()
        assert decode(rows.obs)[n_before : n_before + 3, 2].tolist() == [0, 0, 0]
    assert_rows_are_real(rows, 3)


def test_a_seed_makes_collected_episodes_the_same_each_time() -> None:
    collector = Collector(Still(1), make_envs("CartPole-v1", 3, seed=1))
    one, other = (collector.collect(n_episode=7, seed=5) for _ in range(2))
    fresh = collector.collect(n_episode=7, seed=6)
    assert one.returns == other.returns
    assert one.n_step == other.n_step
    assert one.lengths != fresh.lengths


def test_a_test_collector_stores_nothing_and_counts_all_the_same() -> None:
    collector = Collector(Player(), tagged_envs("sync", 2))
    assert collector.collect(n_episode=3).n_episode == collector.n_episode == 3
    assert collector.env_step == length(0, 0) + length(0, 1) + length(1, 0)


# ---- counting ----


@every_way_here
def test_returns_and_lengths_are_exact_across_calls(way: str) -> None:
    collector = Collector(Player(), tagged_envs(way, 3))
    parts = [collector.collect(n_step=5) for _ in range(60)]
    together = CollectStats.merge(parts)
    assert together is not None
    logs = collector.envs.call("log")
    ended = [
        (env, ep) for env, log in enumerate(logs) for ep, actions in log.items() if len(actions) == length(env, ep)
    ]
    assert together.n_episode == collector.n_episode == len(ended)
    assert together.n_step == sum(len(actions) for log in logs for actions in log.values())
    assert together.returns.mean == pytest.approx(np.mean([return_of(*one) for one in ended]))
    assert together.lengths.mean == pytest.approx(np.mean([length(*one) for one in ended]))
    assert together.lengths.max == max(length(*one) for one in ended)


def test_recent_returns_reach_over_collects_to_the_last_hundred() -> None:
    collector = Collector(Player(), tagged_envs("sync", 1))
    first = collector.collect(n_step=3)
    assert first.recent_returns == Summary.of([return_of(0, 0)])
    assert collector.collect(n_step=1).recent_returns == first.recent_returns  # none finished, none forgotten
    while collector.n_episode < 130:
        stats = collector.collect(n_step=1)
    assert stats.recent_returns == Summary.of([return_of(0, episode) for episode in range(30, 130)])


def test_recent_returns_are_of_recent_episodes_also_after_a_checkpoint() -> None:
    collector = Collector(Player(), tagged_envs("sync", 1), recent_episodes=3)
    while collector.n_episode < 10:
        stats = collector.collect(n_step=1)
    expected = Summary.of([return_of(0, episode) for episode in range(7, 10)])
    assert stats.recent_returns == expected
    other = Collector(Player(), tagged_envs("sync", 1), recent_episodes=3)
    other.load_state_dict(collector.state_dict())
    assert other.collect(n_step=1).recent_returns.count == 3  # those of the checkpoint, the open one was cut
    with pytest.raises(ConfigError, match=r"Collector.recent_episodes must be a whole number >= 1, got 0"):
        Collector(Player(), tagged_envs("sync", 1), recent_episodes=0)


def test_a_reward_metric_changes_what_is_shown_and_not_what_is_stored() -> None:
    ledger = Ledger()
    collector = Collector(Player(), tagged_envs("sync", 1), ledger, reward_metric=np.sqrt)
    stats = collector.collect(n_episode=2)
    assert stats.returns == Summary.of([math.sqrt(return_of(0, 0)), math.sqrt(return_of(0, 1))])
    collector.use_reward_metric(np.negative)
    assert collector.collect(n_episode=1).returns == Summary.of([-return_of(0, 2)])
    assert ledger.rows().reward[0] == reward(0, 0, 0)


def test_times_add_up_and_each_part_is_where_it_was_spent() -> None:
    class Slow(ScriptedEnv):
        def step(self, action: Any) -> Any:
            time.sleep(0.002)
            return answer(terminated=True)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            time.sleep(0.02)
            return OBS, {}

    class Slower(Still):
        def act(self, obs: Any, **options: Any) -> ActOutput:
            time.sleep(0.004)
            return super().act(obs, **options)

    class Slowest(Ledger):
        def add(self, transition: Any) -> Any:
            time.sleep(0.006)
            return super().add(transition)

    collector = Collector(Slower(), make_envs(Slow), Slowest())
    began = time.perf_counter()
    stats = collector.collect(n_step=5)
    seconds = time.perf_counter() - began
    parts = [stats.env_ms, stats.act_ms, stats.store_ms, stats.other_ms]
    processing = [stats.obs_ms, stats.action_ms, stats.render_ms]
    assert all(part is not None for part in parts + processing)
    assert sum(part or 0.0 for part in parts + processing) * stats.n_vector_step == pytest.approx(1e3 * stats.seconds)
    assert stats.seconds <= seconds
    assert [part >= least for part, least in zip(parts, (5, 4, 6, 0), strict=True)] == [True] * 4  # type: ignore[operator]
    assert (stats.other_ms or 0.0) < 3  # neither the steps are in it nor any of the six resets, 4 a step each
    assert stats.durations.min >= 0.012


def test_rendering_is_timed_apart_from_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]  # a clock that only the parts below move on
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    collector = Collector(Still(), make_envs(drawn_env(now)))

    def render(event: str, news: Any) -> None:
        for _ in news:
            collector.envs.render()

    collector.events = EpisodeEvents(1, render, ["on_episode_start", "on_episode_step"])
    stats = collector.collect(n_step=4)
    assert stats.env_ms == pytest.approx(1e3 * (1000 + 4 * 1) / 4)
    assert stats.render_ms == pytest.approx(1e3 * 100 * (1 + 4) / 4)
    assert (stats.obs_ms, stats.action_ms, stats.act_ms, stats.store_ms) == (0, 0, 0, 0)
    assert stats.other_ms == pytest.approx(0)


# ---- the policy's arguments ----


@every_way_here
def test_the_policy_receives_the_starts_of_episodes_and_its_state(way: str) -> None:
    player = Player()
    collector = Collector(player, tagged_envs(way, 3))
    collector.collect(n_step=100, explore=True)
    for number, call in enumerate(player.calls):
        np.testing.assert_array_equal(call.starts, call.tags[:, 2] == 0)
        np.testing.assert_array_equal(call.env_ids, call.tags[:, 0])
        assert call.state == (number or None)
        assert call.explore
    assert [call.step for call in player.calls] == np.cumsum(
        [0, *(len(call.env_ids) for call in player.calls[:-1])]
    ).tolist()


def test_a_reset_gives_the_policy_no_state_and_says_that_all_begin() -> None:
    player = Player()
    collector = Collector(player, tagged_envs("sync", 3))
    collector.collect(n_step=30)
    n_calls = len(player.calls)
    collector.reset()
    collector.collect(n_step=3, explore=False, step=77)
    call = player.calls[n_calls]
    assert call.state is None
    assert call.starts.all()
    assert (call.explore, call.step) == (False, 77)


def test_environments_whose_quota_is_done_are_not_acted_for() -> None:
    player = Player()
    Collector(player, tagged_envs("SyncVectorEnv SAME_STEP", 3)).collect(n_episode=3)
    acted = np.concatenate([call.env_ids for call in player.calls])
    assert np.bincount(acted).tolist() == [length(env, 0) for env in range(3)]


def test_extras_are_stored_with_their_step() -> None:
    ledger = Ledger()
    Collector(Player(has_extras=True), tagged_envs("sync", 3), ledger).collect(n_step=200)
    rows = ledger.rows()
    np.testing.assert_array_equal(rows.extras["wish"], decode(rows.obs)[:, :2])


# ---- random actions ----


@pytest.mark.parametrize("mask_key", [None, "legal"])
def test_random_collecting_calls_no_policy_and_only_ever_acts_legally(mask_key: str | None) -> None:
    ledger, player = Ledger(), Player()
    envs = tagged_envs("sync", 4, "masked" if mask_key is None else "array", mask_key=mask_key)
    collector = Collector(player, envs, ledger)
    collector.seed(3)
    collector.collect(n_step=4_000, random=True)
    assert player.calls == []
    rows = ledger.rows()
    mask = legal(*decode(rows.obs)[:, :3].T)
    assert mask[np.arange(len(mask)), rows.action].all()
    share = np.bincount(rows.action[mask.all(axis=1)], minlength=N_ACTIONS) / mask.all(axis=1).sum()
    np.testing.assert_allclose(share, 1 / N_ACTIONS, atol=0.06)


def test_random_actions_follow_the_collectors_seed() -> None:
    def actions(seed: int) -> list[int]:
        ledger = Ledger()
        collector = Collector(Player(), tagged_envs("sync", 2), ledger)
        assert not collector.is_seeded
        collector.seed(seed)
        assert collector.is_seeded
        collector.collect(n_step=100, random=True)
        return [*ledger.rows().action.tolist()]

    assert actions(1) == actions(1)
    assert actions(1) != actions(2)


def random_actions_of(envs_seed: int | None, **options: Any) -> tuple[list[int], list[float]]:
    envs = make_envs("CartPole-v1", 2, seed=envs_seed)
    ledger = Ledger()
    Collector(RandomPolicy(envs.action_space, seed=0), envs, ledger, **options).collect(n_step=100, random=True)
    rows = ledger.rows()
    return rows.action.tolist(), rows.obs.tolist()


def test_random_actions_of_a_collector_made_of_seeded_parts_are_the_same_each_time() -> None:
    assert random_actions_of(3) == random_actions_of(3)
    assert random_actions_of(3)[0] != random_actions_of(4)[0]


def test_a_collectors_seed_decides_its_random_actions_and_unseeded_environments() -> None:
    assert random_actions_of(None, seed=5) == random_actions_of(None, seed=5)
    assert random_actions_of(3, seed=5)[0] == random_actions_of(4, seed=5)[0] != random_actions_of(3)[0]
    assert random_actions_of(3, seed=5)[1] != random_actions_of(4, seed=5)[1]


def test_without_any_seed_no_two_collectors_act_alike() -> None:
    assert random_actions_of(None)[0] != random_actions_of(None)[0]


def test_a_collector_with_a_seed_keeps_it_in_a_trainer() -> None:
    def warmup(root: int, **options: Any) -> list[int]:
        envs = make_envs("CartPole-v1", 2, seed=3)
        policy, buffer = DQNPolicy.for_envs(envs, hidden=(8,), seed=1), ReplayBuffer(50, seed=1)
        collector = Collector(policy, envs, buffer, **options)
        trainer = OffpolicyTrainer(
            policy,
            collector,
            max_epoch=1,
            step_per_epoch=50,
            batch_size=32,
            learning_starts=50,
            warmup="random",
            seed=root,
            verbose=False,
        )
        trainer.run()
        actions: list[int] = buffer.sample(64, horizon=policy.horizon).action.tolist()
        return actions

    assert warmup(1, seed=5) == warmup(2, seed=5)
    assert warmup(1) != warmup(2)  # without one it is the trainer's


@pytest.mark.parametrize("seed", [-1, 1.5, "1", True])
def test_a_seed_that_is_invalid_is_rejected(seed: Any) -> None:
    with pytest.raises(ConfigError, match=r"Collector.seed must be a whole number >= 0, got"):
        Collector(Player(), tagged_envs("sync", 2), seed=seed)


def test_a_collectors_seed_fills_in_environments_that_have_none() -> None:
    own, filled, same = tagged_envs("sync", 2, seed=8), tagged_envs("sync", 2), tagged_envs("sync", 2)
    for envs in (own, filled, same):
        collector = Collector(Player(), envs)
        collector.seed(3)
        collector.collect(n_step=20)
    assert filled.call("seeds") == same.call("seeds") != own.call("seeds")
    again = tagged_envs("sync", 2, seed=8)
    Collector(Player(), again).collect(n_step=20)
    assert again.call("seeds") == own.call("seeds")


def test_no_legal_action_is_an_error_that_names_the_environment_and_the_step() -> None:
    fine, none = {"legal": np.ones(2, np.int8)}, {"legal": np.zeros(2, np.int8)}
    first = partial(ScriptedEnv, resets=[(OBS, fine)], steps=[answer(info=fine)])
    second = partial(ScriptedEnv, resets=[(OBS, fine)], steps=[answer(info=none)])
    collector = Collector(Still(), make_envs([first, second], mask_key="legal"))
    collector.collect(n_step=2, random=True)
    rule = r"env 1 allows no action: its action_mask is all False, at episode 0 step 1, episode seed \d+\. Leave one"
    with pytest.raises(NoLegalActionError, match=rule):
        collector.collect(n_step=2, random=True)


def test_no_legal_action_names_the_environment_not_its_row() -> None:
    fine, none = {"legal": np.ones(2, np.int8)}, {"legal": np.zeros(2, np.int8)}
    first = partial(ScriptedEnv, resets=[(OBS, fine)], steps=[answer(info=fine, terminated=True)])
    second = partial(ScriptedEnv, resets=[(OBS, fine)], steps=[answer(info=none)])
    collector = Collector(Still(), make_envs([first, second], mask_key="legal"))
    with pytest.raises(NoLegalActionError, match="env 1 allows no action"):
        collector.collect(n_episode=2, random=True)  # the first is done: the second is alone in its row


def test_a_finished_episode_may_allow_nothing() -> None:
    fine, none = {"legal": np.ones(2, np.int8)}, {"legal": np.zeros(2, np.int8)}
    env = partial(ScriptedEnv, resets=[(OBS, fine)], steps=[answer(info=none, terminated=True)])
    assert Collector(Still(), make_envs(env, mask_key="legal")).collect(n_episode=3, random=True).n_episode == 3


def test_random_collecting_cannot_fill_a_policys_columns() -> None:
    collector = Collector(Player(has_extras=True), tagged_envs("sync", 2), Ledger())
    with pytest.raises(ConfigError, match=r"random=True\) cannot fill the columns \['wish'\] that Player stores"):
        collector.collect(n_step=1, random=True)


# ---- interruptions ----


class InterruptAt:
    """Raise KeyboardInterrupt before some of the vector steps."""

    def __init__(self, *steps: int) -> None:
        self.steps, self.count = steps, -1

    def __call__(self) -> None:
        self.count += 1
        if self.count in self.steps:
            raise KeyboardInterrupt


def arrays_of(state: Any, path: str = "") -> dict[str, Any]:
    """Flatten a state to {path: bytes or value}."""
    if isinstance(state, dict):
        return {name: leaf for key in state for name, leaf in arrays_of(state[key], f"{path}/{key}").items()}
    return {path: state.tobytes() if isinstance(state, np.ndarray) else state}


@pytest.mark.parametrize("amount", [{"n_step": 101}, {"n_episode": 20}])
@every_way_here
def test_an_interrupted_collect_continues_as_if_nothing_had_happened(way: str, amount: dict[str, int]) -> None:
    def run(*interrupts: int) -> tuple[Collector, CollectStats]:
        collector = Collector(Player(), tagged_envs(way, 3), ReplayBuffer(64, seed=1))
        collector.between_steps = InterruptAt(*interrupts)
        for _ in interrupts:
            with pytest.raises(KeyboardInterrupt):
                collector.resume() if collector.is_interrupted else collector.collect(**amount)
            assert collector.is_interrupted
        stats = collector.resume() if interrupts else collector.collect(**amount)
        assert not collector.is_interrupted
        return collector, stats

    whole, pieces = run(), run(0, 1, 2, 9, 24)
    for collector, _ in (whole, pieces):
        assert collector.buffer is not None
    states = [arrays_of(collector.buffer.state_dict()) for collector, _ in (whole, pieces)]  # type: ignore[union-attr]
    assert states[0] == states[1]
    one, other = whole[1], pieces[1]
    counts = ("n_step", "n_episode", "returns", "lengths", "recent_returns", "n_vector_step")
    assert [getattr(one, name) for name in counts] == [getattr(other, name) for name in counts]
    assert whole[0].env_step == pieces[0].env_step


def test_the_time_between_an_interruption_and_resuming_does_not_count() -> None:
    collector = Collector(Player(), tagged_envs("sync", 2))
    collector.between_steps = InterruptAt(3)
    with pytest.raises(KeyboardInterrupt):
        collector.collect(n_step=10)
    time.sleep(0.2)
    assert collector.resume().seconds < 0.1


@every_way_here
def test_a_quota_given_up_half_way_leaves_no_environment_at_an_episodes_end(way: str) -> None:
    ledger = Ledger()
    collector = Collector(Player(), tagged_envs(way, 3), ledger)
    collector.between_steps = InterruptAt(4)  # environment 0 was done after its one step
    with pytest.raises(KeyboardInterrupt):
        collector.collect(n_episode=3)
    collector.collect(n_step=60)
    assert_rows_are_real(ledger.rows(), 3)


def test_resuming_what_was_not_interrupted_does_nothing() -> None:
    collector = Collector(Player(), tagged_envs("sync", 2))
    collector.collect(n_step=10)
    collector.resume()
    assert collector.env_step == 10


# ---- environments that fail ----


def failing(at: int, fault: Any) -> list[Any]:
    """Make a faultless environment 0 and an environment 1 whose step `at` goes wrong, once."""
    return [ScriptedEnv, partial(ScriptedEnv, steps=[STEP] * at + [fault, STEP])]


@pytest.mark.parametrize("fault", [OSError("gone"), answer(reward=np.nan), answer(terminated=None), STEP[:4]])
def test_after_a_failure_what_was_stored_is_whole_and_the_next_collect_resets(fault: Any) -> None:
    ledger, player = Ledger(), Still()
    collector = Collector(player, make_envs(failing(3, fault)), ledger)
    with pytest.raises(EnvError, match=r"env 1.* episode 0 step"):
        collector.collect(n_step=100)
    assert collector.env_step == len(ledger) == 6
    assert collector.is_interrupted
    n_cuts = len(ledger.cuts)
    stats = collector.resume()
    assert ledger.cuts[n_cuts:] == [6]
    assert stats.n_step == collector.env_step == len(ledger) == 100
    assert collector.envs.episodes.tolist() == [1, 1]


def test_seeded_episodes_that_fail_are_not_the_ones_that_follow() -> None:
    collector = Collector(Still(), make_envs(failing(3, OSError("gone"))))
    with pytest.raises(EnvError, match="episode 0 step 4"):
        collector.collect(n_episode=2, seed=5)
    collector.between_steps = InterruptAt(0)
    with pytest.raises(KeyboardInterrupt):
        collector.resume()
    assert collector.envs.episodes.tolist() == [1, 1]


def test_a_failing_reset_after_an_episodes_end_loses_no_row() -> None:
    ending = partial(ScriptedEnv, steps=[answer(terminated=True)], resets=[(OBS, {}), OSError("no map"), (OBS, {})])
    ledger = Ledger()
    collector = Collector(Still(), make_envs([ScriptedEnv, ending]), ledger)
    with pytest.raises(EnvError, match="env 1 raised OSError in reset: no map, at episode 1 step 0"):
        collector.collect(n_step=4)
    assert ledger.rows().terminated.tolist() == [False, True]
    assert collector.n_episode == 1
    stats = collector.collect(n_step=4)
    assert ledger.cuts[-1] == 2
    assert stats.n_episode == 3  # one step short before, which this collect makes up for: 3 vector steps
    assert collector.env_step == 8


def test_a_failing_buffer_makes_the_next_collect_reset() -> None:
    class Full(Ledger):
        is_full = False

        def add(self, transition: Any) -> Any:
            if self.is_full:
                raise MemoryError
            return super().add(transition)

    ledger = Full()
    collector = Collector(Player(), tagged_envs("sync", 2), ledger)
    collector.collect(n_step=4)
    ledger.is_full = True
    with pytest.raises(MemoryError):
        collector.collect(n_step=10)
    ledger.is_full = False
    ledger.steps.clear()
    collector.resume()
    assert decode(ledger.rows().obs)[:2, 2].tolist() == [0, 0]


def test_a_failing_policy_loses_nothing() -> None:
    class Moody(Player):
        def act(self, obs: Any, **options: Any) -> ActOutput:
            if len(self.calls) == 5:
                self.calls.append(self.calls[-1])
                raise ArithmeticError("diverged")
            return super().act(obs, **options)

    ledger = Ledger()
    collector = Collector(Moody(), tagged_envs("sync", 2), ledger)
    with pytest.raises(ArithmeticError):
        collector.collect(n_step=40)
    collector.resume()
    assert assert_rows_are_real(ledger.rows(), 2) == 0  # no episode was cut
    assert len(ledger) == 40


def test_a_policys_bad_action_reaches_no_environment() -> None:
    collector = Collector(Still(3), tagged_envs("sync", 2))
    with pytest.raises(BadEnvDataError, match=r"env 0: the policy produced an action outside Discrete\(3\): 3"):
        collector.collect(n_step=2)
    assert [log[0] for log in collector.envs.call("log")] == [[], []]


def test_a_forced_reset_cuts_the_open_episodes() -> None:
    ledger = Ledger()
    collector = Collector(Player(), tagged_envs("sync", 2), ledger)
    collector.collect(n_step=8)
    collector.reset()
    collector.collect(n_step=8)
    assert ledger.cuts[-1] == 8
    assert assert_rows_are_real(ledger.rows(), 2) >= 1


def test_a_reset_with_a_seed_repeats_the_same_rows() -> None:
    def rows(collector: Collector, ledger: Ledger) -> Any:
        ledger.steps.clear()
        collector.reset(seed=4)
        collector.collect(n_step=60)
        return ledger.rows()

    ledger = Ledger()
    collector = Collector(Still(1), make_envs("CartPole-v1", 3, seed=0), ledger)
    one, other = rows(collector, ledger), rows(collector, ledger)
    np.testing.assert_array_equal(one.obs, other.obs)
    np.testing.assert_array_equal(one.next_obs, other.next_obs)


def test_a_keyboard_interrupt_in_the_middle_of_a_step_makes_the_next_collect_reset() -> None:
    ledger = Ledger()
    collector = Collector(Still(), make_envs(failing(3, KeyboardInterrupt())), ledger)
    with pytest.raises(KeyboardInterrupt):
        collector.collect(n_step=10)
    assert collector.env_step == len(ledger) == 6
    assert collector.resume().n_step == 10
    assert ledger.cuts[-1] == 6


# ---- saving ----


def test_a_saved_collector_continues_with_its_clock_its_counts_and_its_draws() -> None:
    one = Collector(Player(), tagged_envs("sync", 3, seed=1), Ledger())
    one.seed(2)
    one.collect(n_step=50, random=True)
    ledger = Ledger()
    other = Collector(Player(), tagged_envs("sync", 3), ledger)
    other.load_state_dict(one.state_dict())
    assert other.env_step == one.env_step == 51
    assert other.n_episode == one.n_episode
    straight, resumed = (collector.collect(n_step=20, random=True) for collector in (one, other))
    assert resumed.n_step == straight.n_step
    assert ledger.cuts == [0]  # what was open when it was saved
    one.reset()
    other.reset()
    assert one.state_dict()["rng"] == other.state_dict()["rng"]


def test_loading_cuts_what_runs() -> None:
    ledger = Ledger()
    collector = Collector(Player(), tagged_envs("sync", 2), ledger)
    collector.collect(n_step=8)
    collector.load_state_dict(collector.state_dict())
    n_cuts = len(ledger.cuts)
    collector.collect(n_step=8)
    assert ledger.cuts[n_cuts:] == [8]
    assert decode(ledger.rows().obs)[8:10, 2].tolist() == [0, 0]


def test_a_collector_saved_in_the_middle_of_a_collect_makes_up_for_the_rest() -> None:
    one = Collector(Player(), tagged_envs("sync", 2))
    one.between_steps = InterruptAt(3)
    with pytest.raises(KeyboardInterrupt):
        one.collect(n_step=20, random=True)
    player = Player()
    other = Collector(player, tagged_envs("sync", 2))
    other.load_state_dict(one.state_dict())
    assert other.is_interrupted
    assert other.resume().n_step == 20
    assert other.env_step == 20
    assert player.calls == []  # still at random


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_closing_a_collector_closes_its_environments(mode: AutoresetMode) -> None:
    envs = tagged_envs(f"SyncVectorEnv {mode.name}", 2)
    inside = envs.call("unwrapped")
    Collector(Player(), envs).close()
    assert [env.n_closed for env in inside] == [1, 1]


def test_a_collect_that_failed_after_its_last_step_is_open_until_it_is_resumed() -> None:
    collector = Collector(
        RandomPolicy(gym.spaces.Discrete(2), seed=0), make_envs("CartPole-v1", 2, seed=1), ReplayBuffer(100)
    )
    collector.collect(n_step=2)
    failures = [KeyboardInterrupt()]

    def fail(returns: Any) -> Any:
        if failures:
            raise failures.pop()
        return returns

    collector.use_reward_metric(fail)

    def collect_until_it_fails() -> None:
        while True:
            collector.collect(n_step=2)

    with pytest.raises(KeyboardInterrupt):
        collect_until_it_fails()
    assert collector.is_interrupted
    assert collector.resume().n_step == 2
    assert not collector.is_interrupted


def test_a_collector_looks_for_episodes_without_end_now_and_then(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("trainkit.collector.episodes._ENDLESS", 20)
    endless = Collector(Player(), make_envs([partial(TaggedEnv, 0, length_of=lambda env, episode: 1_000)]))
    ending = Collector(Player(), tagged_envs("sync", 2))
    ending.collect(n_step=200)
    assert caplog.messages == []
    endless.collect(n_step=39)
    assert "env 0 has made 20 steps without an episode's end" in caplog.text
    endless.collect(n_step=100)
    assert len(caplog.messages) == 1
