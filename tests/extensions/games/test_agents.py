"""Games of several agents: every row true, when agents leave, join or return; games are counted."""

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from tests.extensions.games.tagged_games import (
    MOMENTS,
    Paying,
    SeededGame,
    assert_is_about,
    check_that_late_rewards_count_in_returns_alone,
    check_that_running_games_continue,
    made,
)
from tests.helpers.doubles import Ledger, Player, Still, one_by_one
from tests.helpers.games import AGENTS, PLANS, TaggedGame, length, plan_of, reward, rows_of, stored
from trainkit.buffer import ReplayBuffer
from trainkit.collector import Collector, EpisodeEvents
from trainkit.core import tree
from trainkit.core.data import ACTION_MASK, Horizon
from trainkit.core.errors import BadEnvDataError, ConfigError, EnvError, NoLegalActionError
from trainkit.core.seeding import episode_seed
from trainkit.core.stats import CollectStats, EpochStats, Summary, TimeStats, scalars
from trainkit.envs import make_envs
from trainkit.envs.backends import whole_groups
from trainkit.policy import RandomPolicy


def returns_of(game: int, episode: int) -> list[float]:
    """Return what each agent got in a game, nan where it took no part."""
    plan = plan_of(game, episode)
    return [
        sum(reward(game, agent, episode, step) for start, end, _ in plan[name] for step in range(start, end))
        if name in plan
        else np.nan
        for agent, name in enumerate(AGENTS)
    ]


# ---- rows ----


@pytest.mark.parametrize("haunts", [False, True])
def test_every_row_is_true_when_agents_leave_join_or_return(haunts: bool) -> None:
    ledger = Ledger()
    envs, games = made(haunts=haunts)
    assert (envs.n, envs.n_agents, envs.agents) == (9, 3, ("left", "right", "third"))
    Collector(Player(), envs, ledger).collect(n_step=600)
    found = stored(ledger.rows(), 9)
    for number, game in enumerate(games):
        assert game.episode > 2 * len(PLANS)  # every plan was played twice
        true: dict[int, list[Any]] = {}
        for episode in range(game.episode):
            for env_id, rows in rows_of(number, episode, game.log).items():
                true.setdefault(env_id, []).extend(rows)
        for env_id, rows in true.items():
            assert found[env_id][: len(rows)] == rows
            newer = found[env_id][len(rows) :]  # of the game that is not over
            assert {row[0][2] for row in newer} <= {game.episode}


@pytest.mark.parametrize("quota", [[1, 0, 0], [2, 2, 1], [4, 4, 4]])
def test_a_quota_counts_games_and_plays_them_whole(quota: list[int]) -> None:
    ledger = Ledger()
    envs, games = made()
    collector = Collector(Player(), envs, ledger)
    stats = collector.collect(n_episode=sum(quota))
    played = [(game, episode) for game, n in enumerate(quota) for episode in range(n)]
    true: dict[int, list[Any]] = {env_id: [] for env_id in range(9)}
    for game, episode in played:
        for env_id, rows in rows_of(game, episode, games[game].log).items():
            true[env_id] += rows
    assert stored(ledger.rows(), 9) == true
    assert (stats.n_episode, collector.n_episode) == (len(played), len(played))
    assert stats.n_step == sum(map(len, true.values()))
    assert_reports(stats, played)


def assert_reports(stats: CollectStats, played: list[tuple[int, int]]) -> None:
    """Check statistics, which may have added up in another order."""
    returns = np.array([returns_of(*one) for one in played])
    means = [np.mean([own for own in row if not np.isnan(own)]) for row in returns]
    assert_is_about(stats.returns, means)
    assert_is_about(stats.lengths, [length(*one) for one in played])
    for agent, name in enumerate(AGENTS):
        own = [row[agent] for row in returns if not np.isnan(row[agent])]
        assert_is_about(stats.agents[name].returns if name in stats.agents else Summary.of([]), own)


def test_collects_of_steps_report_every_game_once() -> None:
    envs, games = made()
    collector = Collector(Player(), envs)
    parts = [collector.collect(n_step=7) for _ in range(40)]
    merged = CollectStats.merge(parts)
    assert merged is not None
    assert merged.n_episode > 20
    assert merged.n_episode == collector.n_episode == sum(game.episode for game in games)
    played = [(number, episode) for number, game in enumerate(games) for episode in range(game.episode)]
    assert_reports(merged, played)
    assert merged.n_step == collector.env_step  # agents' steps, not games'


def test_a_policy_is_notified_of_every_start_and_of_no_other() -> None:
    player = Player()
    envs, games = made()
    Collector(player, envs).collect(n_step=300)
    starts = [
        (int(tag[0]), int(tag[1]), int(tag[2]), int(tag[3]))
        for call in player.calls
        for tag, start in zip(call.tags, call.starts, strict=True)
        if start
    ]
    true = {
        (number, AGENTS.index(name), episode, stint[0])
        for number, game in enumerate(games)
        for episode in range(game.episode + 1)
        for name, stints in plan_of(number, episode).items()
        for stint in stints
    }
    over = {one for one in true if one[2] < games[one[0]].episode}  # the last games are not over
    assert len(starts) == len(set(starts))
    assert over <= set(starts) <= true


def test_windows_never_cross_from_one_stay_into_the_next() -> None:
    buffer = ReplayBuffer(2_000, seed=0)
    envs, games = made()
    Collector(Player(), envs, buffer).collect(n_step=900)
    batch = buffer.sample(3_000, horizon=Horizon(n_step=3, gamma=0.5), columns=("n",))
    before, after = batch.obs.astype(int), batch.next_obs.astype(int)
    np.testing.assert_array_equal(before[:, :3], after[:, :3])
    np.testing.assert_array_equal(before[:, 3] + batch.extras["n"], after[:, 3])
    n_checked = 0
    for (game, agent, episode, step, _), then, total, discount in zip(
        before.tolist(), after[:, 3].tolist(), batch.reward.tolist(), batch.discount.tolist(), strict=True
    ):
        stint = next(one for one in plan_of(game, episode)[AGENTS[agent]] if one[0] <= step < one[1])
        if episode == games[game].episode:
            continue
        n_checked += 1
        assert then == min(step + 3, stint[1])
        is_dead = then == stint[1] and stint[2] in ("terminated", "both")
        assert discount == (0.0 if is_dead else 0.5 ** (then - step))
        steps = range(step, then)
        assert total == pytest.approx(sum(0.5 ** (one - step) * reward(game, agent, episode, one) for one in steps))
    assert n_checked > 2_000


def test_a_reset_in_the_middle_restarts_every_game() -> None:
    ledger = Ledger()
    envs, games = made()
    collector = Collector(Player(), envs, ledger)
    collector.collect(n_step=20)
    before = [game.episode for game in games]
    collector.reset()
    assert [game.episode for game in games] == [one + 1 for one in before]
    collector.collect(n_step=30)
    rows = ledger.rows()
    tags = rows.obs.astype(int)
    assert len({tuple(tag[:4]) for tag in tags.tolist()}) == len(tags)


# ---- seeds, options, calls ----


def test_a_game_is_seeded_by_root_game_and_episode() -> None:
    envs, games = made(seed=5)
    Collector(Player(), envs).collect(n_step=200)
    for number, game in enumerate(games):
        assert len(game.seeds) > 4
        assert game.seeds == [episode_seed(5, number, episode) for episode in range(len(game.seeds))]


def test_options_and_calls_reach_each_game_once() -> None:
    envs, games = made(2)
    envs.options = {"level": 3}
    envs.reset()
    assert [game.options for game in games] == [[{"level": 3}], [{"level": 3}]]
    assert envs.call("level", 2) == [2, 2, 2, 12, 12, 12]
    assert [game.n_calls for game in games] == [1, 1]
    assert envs.call("game", env_ids=np.array([1, 4])) == [0, 1]
    with pytest.raises(EnvError, match=r"env 3 raised AttributeError in wings: .* of agent 'left' in game 1"):
        envs.call("wings", env_ids=np.array([3]))
    envs.close()
    assert [game.n_closed for game in games] == [1, 1]


def test_a_resumed_collector_continues_with_the_next_games() -> None:
    one, games = made(2, seed=3)
    collector = Collector(Player(), one)
    collector.collect(n_step=50)
    other, later = made(2)
    again = Collector(Player(), other)
    again.load_state_dict(collector.state_dict())
    assert again.n_episode == collector.n_episode
    again.collect(n_step=5)
    assert [game.seeds[0] for game in later] == [
        episode_seed(3, place, game.episode + 1) for place, game in enumerate(games)
    ]


@MOMENTS
def test_running_games_continue_where_they_were_saved(n_step: int) -> None:
    check_that_running_games_continue(n_step)


# ---- statistics ----


def test_a_reward_metric_sees_the_returns_of_every_agent() -> None:
    seen: list[Any] = []

    def best(returns: Any) -> Any:
        seen.append(returns.copy())
        return np.nanmax(returns, axis=1)

    envs, _ = made(1)
    stats = Collector(Player(), envs, reward_metric=best).collect(n_episode=6)
    np.testing.assert_array_equal(np.concatenate(seen), [returns_of(0, episode) for episode in range(6)])
    assert stats.returns.max == max(np.nanmax(returns_of(0, episode)) for episode in range(6))


def test_a_reward_metric_per_agent_is_rejected() -> None:
    collector = Collector(Player(), made(1)[0], reward_metric=lambda returns: returns)
    with pytest.raises(ConfigError, match=r"reward_metric must give one number per episode \[1\], got \(1, 3\)"):
        collector.collect(n_episode=1)


def test_agents_have_tags_and_environments_of_one_have_none() -> None:
    stats = Collector(Player(), made(1)[0]).collect(n_episode=6)
    times = TimeStats(seconds=1, collect=1, update=0, evaluate=0, other=0, steps_per_second=1)
    epoch = EpochStats(train=stats, test=CollectStats.merge([]), time=times)
    tags = scalars(epoch)
    left = [own for own in (returns_of(0, episode)[0] for episode in range(6)) if not np.isnan(own)]
    assert (
        tags["train/agents/left/returns/mean"]
        == epoch["train/agents/left/returns/mean"]
        == pytest.approx(np.mean(left))
    )
    assert epoch["train/agents/left/returns/count"] == 5
    assert epoch["train/agents/nobody/returns/mean"] is None
    assert {tag.split("/")[2] for tag in tags if tag.startswith("train/agents")} == set(AGENTS)
    alone = Collector(Player(), made(1)[0]).collect(n_step=1)
    assert [(own.n_step, own.returns.is_empty) for own in alone.agents.values()] == [(1, True)] * 3
    single = make_envs("CartPole-v1")
    assert (single.agents, single.n_agents) == ((), 1)


class Watched:
    """Write down the events of episodes."""

    def __init__(self) -> None:
        self.ends: list[tuple[int, int, float]] = []

    def __call__(self, event: str, episode: Any, *more: Any) -> None:
        self.ends.append((episode.env_id, episode.length, episode.total_reward))


def test_callbacks_are_notified_of_every_agent_that_took_part() -> None:
    envs, _ = made(1)
    collector = Collector(Player(), envs)
    watched = Watched()
    collector.events = EpisodeEvents(envs.n, one_by_one(watched), ["on_episode_end"])
    collector.collect(n_episode=6)
    true = [
        (agent, sum(end - start for start, end, _ in plan_of(0, episode)[name]), returns_of(0, episode)[agent])
        for episode in range(6)
        for agent, name in enumerate(AGENTS)
        if name in plan_of(0, episode)
    ]
    assert watched.ends == true


# ---- what games must not be ----


class Scripted:
    """A game of two agents that returns scripted values."""

    possible_agents = ("a", "b")

    def __init__(self, **parts: Any) -> None:
        self.parts = parts
        self.agents = list(self.possible_agents)

    def observation_space(self, agent: Any) -> Any:
        return self.parts.get("spaces", {}).get(agent, gym.spaces.Box(-1, 1, (1,), np.float32))

    def action_space(self, agent: Any) -> Any:
        return gym.spaces.Discrete(2)

    def each(self, value: Any) -> dict[str, Any]:
        return dict.fromkeys(self.agents, value)

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        first = self.parts.get("first", (self.each(np.zeros(1, np.float32)), self.each({})))
        if isinstance(first, Exception):
            raise first
        return first

    def step(self, actions: Any) -> Any:
        fine = {
            "obs": self.each(np.zeros(1, np.float32)),
            "rewards": self.each(0),
            "terminated": self.each(False),
            "truncated": self.each(False),
            "infos": self.each({}),
        }
        answer = {**fine, **self.parts.get("answer", {})}
        if "error" in self.parts:
            raise self.parts["error"]
        return tuple(answer.values())[: self.parts.get("count", 5)]


def play(**parts: Any) -> Any:
    envs = make_envs([Scripted, partial(Scripted, **parts)])
    envs.reset()
    return envs.step(np.zeros(4, np.int64), envs.all_ids)


NAN = {"a": np.zeros(1, np.float32), "b": np.full(1, np.nan, np.float32)}


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"error": KeyError("x")}, "^env 2 raised KeyError in step: 'x', at episode 0 step 1 of agent 'a' in game 1"),
        ({"first": KeyError("x")}, "^env 2 raised KeyError in reset: 'x', at episode 0 step 0 of agent 'a' in game 1"),
        ({"first": ({}, {})}, "returned no observation from reset: an agent must be there to act"),
        ({"first": ({"a": np.zeros(2, np.float32)}, {})}, r"env 2 returned observation of shape \(2,\)"),
        ({"count": 4}, "env 2 returned 4 values from step, not"),
        ({"answer": {"rewards": 1.0}}, "env 2 returned rewards 1.0 from step, not a dict by agent"),
        ({"answer": {"obs": {"a": np.zeros(1)}}}, "env 3 acted, but step returned no observations for it: .* 'b' in"),
        ({"answer": {"rewards": {}}}, "env 2 acted, but step returned no rewards for it"),
        ({"answer": {"rewards": {"a": 0, "b": "1"}}}, "env 3 returned reward '1', which is not a number"),
        ({"answer": {"truncated": {"a": 0, "b": 7}}}, "env 3 returned truncated = 7, which is not a bool"),
        (
            {"answer": {"obs": NAN}},
            "env 3: returned observation nan at index .* episode 0 step 1 of agent 'b' in game 1",
        ),
        ({"answer": {"rewards": {"a": 0, "b": np.inf}}}, "env 3: returned reward inf, at .* of agent 'b' in game 1"),
    ],
)
def test_invalid_data_are_rejected_by_game_and_agent(parts: Any, message: str) -> None:
    with pytest.raises(EnvError, match=message):
        play(**parts)


def test_errors_distinguish_faults_of_a_game_from_invalid_data() -> None:
    with pytest.raises(BadEnvDataError):
        play(count=4)


def test_agents_of_a_game_act_together() -> None:
    envs = make_envs(Scripted)
    envs.reset()
    with pytest.raises(AssertionError, match="1 of 2 agents act: all who are in a game act together"):
        envs.step(np.zeros(1, np.int64), np.array([1]))


@pytest.mark.parametrize(
    ("factories", "message"),
    [
        (
            [Scripted, partial(Scripted, spaces={"b": gym.spaces.Discrete(2)})],
            "agent 'b' of game 1 has spaces .*Discrete.*, in game 0 it has .*Box.*: they must be equal",
        ),
        ([Scripted, lambda: named(["a"])], r"game 1 has possible_agents \['a'\], game 0 has \['a', 'b'\]"),
        ([lambda: named([])], r"game 0 has possible_agents \[\]"),
        ([lambda: named([1, "1"])], "of different names"),
        ([Scripted, partial(gym.make, "CartPole-v1")], "env 0 is a game of several agents, env 1 is not, got"),
    ],
)
def test_games_that_cannot_share_a_policy_are_rejected_when_made(factories: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_envs(factories)


def named(names: list[Any]) -> Scripted:
    game = Scripted()
    game.possible_agents = tuple(names)
    return game


def test_options_that_games_do_not_support_are_rejected() -> None:
    with pytest.raises(ConfigError, match="max_episode_steps is not for a game of several agents"):
        make_envs(Scripted, 2, max_episode_steps=3)
    game = Scripted()
    with pytest.raises(ConfigError, match="factory 1 returned an environment a second time"):
        make_envs(lambda: game, 2)
    with pytest.raises(ConfigError, match=r"must return a gymnasium.Env, or a game of several agents"):
        make_envs(lambda: 3)


def test_observations_stay_as_they_were() -> None:
    envs, _ = made(2)
    envs.reset()
    outcomes = []
    for _ in range(30):
        ids = envs.ready
        outcome = envs.step(np.zeros(len(ids), np.int64), ids)
        outcomes.append((outcome.next_obs, tree.map_tree(np.copy, outcome.next_obs)))
        if outcome.over.any():
            envs.begin(whole_groups(ids[outcome.over], envs.n_agents))
    for now, then in outcomes:
        np.testing.assert_array_equal(now, then)


# ---- PettingZoo's own ----


def test_a_game_of_pettingzoo_is_played_as_its_own_loop_plays_it() -> None:
    pytest.importorskip("pygame", reason="rock, paper, scissors draws with it")
    rps = pytest.importorskip("pettingzoo.classic.rps.rps", reason="PettingZoo is not installed")
    make = partial(rps.parallel_env, num_actions=3, max_cycles=6)
    assert make_envs("pettingzoo/classic/rps_v2").agents == ("player_0", "player_1")
    ledger = Ledger()
    envs = make_envs(make, 2, seed=1)
    assert envs.agents == ("player_0", "player_1")
    stats = Collector(Still(2), envs, ledger).collect(n_episode=4)
    rows = ledger.rows()
    game = make()
    obs, _ = game.reset(seed=1)
    true = []
    while game.agents:
        after, gains, ends, cuts, _ = game.step(dict.fromkeys(game.agents, 2))
        true += [(int(obs[one]), 2, gains[one], int(after[one]), ends[one], cuts[one]) for one in sorted(obs)]
        obs = after
    assert stats.lengths.mean == len(true) / 2 > 1
    columns = [rows.obs, rows.action, rows.reward, rows.next_obs, rows.terminated, rows.truncated]
    mine = [tuple(column[row].tolist() for column in columns) for row in np.flatnonzero(rows.env_ids < 2)]
    assert mine == true * 2


# ---- games of turns, and rewards for agents that do not act ----


@pytest.mark.parametrize("random", [False, True])
def test_an_agent_without_a_legal_action_is_named_with_the_remedy(random: bool) -> None:
    class Waiting(TaggedGame):
        def observation_space(self, agent: str) -> gym.Space[Any]:
            mask = gym.spaces.MultiBinary(2)
            return gym.spaces.Dict({"place": gym.spaces.Box(0, 9, (1,), np.float32), ACTION_MASK: mask})

        def action_space(self, agent: str) -> gym.Space[Any]:
            return gym.spaces.Discrete(2)

        def _see(self, name: str) -> Any:
            return {"place": np.zeros(1, np.float32), ACTION_MASK: np.array([name != "right"] * 2, np.int8)}

    envs = make_envs([partial(Waiting, 0), partial(Waiting, 2)])
    policy = RandomPolicy(gym.spaces.Discrete(2), seed=0)
    with pytest.raises(
        NoLegalActionError,
        match=r"env 1 allows no action: its action_mask is all False, at episode 0 step 0 of agent 'right' in game 0"
        r".* take turns, give make_envs the game with PettingZoo's turn-based API, not one that turn_based_aec_to_par",
    ) as caught:
        Collector(policy, envs).collect(n_step=4, random=random)
    assert caught.value.env_id == 1


def test_late_rewards_count_in_returns_and_in_no_row(caplog: pytest.LogCaptureFixture) -> None:
    check_that_late_rewards_count_in_returns_alone([], caplog)


def test_games_with_late_rewards_continue_where_they_were_saved() -> None:
    class SeededPaying(Paying, SeededGame):
        """Pay late, in episodes that a seed repeats."""

    def collector() -> Collector:
        return Collector(Still(), make_envs([partial(SeededPaying, 0)], seed=3))

    one, other = collector(), collector()
    paid = False
    for _ in range(20):  # until an agent that has left, or is to come, was paid
        one.collect(n_step=1)
        state = one.state_dict()
        paid |= bool((state["episodes"]["returns"] >= 1000).any())
        other.load_state_dict(state)
        assert paid
    assert one.collect(n_episode=2).agents == other.collect(n_episode=2).agents


@pytest.mark.parametrize(
    ("gains", "message"),
    [
        ({"nobody": 1.0}, "returned a reward for 'nobody', not one of its possible_agents"),
        ({"third": np.nan}, "returned reward nan for agent 'third', at episode 0 step 1"),
        ({"third": "much"}, "returned reward 'much', which is not a number, for agent 'third', at episode 0 step 1"),
    ],
)
def test_an_invalid_late_reward_is_rejected(gains: dict[str, Any], message: str) -> None:
    class Odd(TaggedGame):
        def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
            obs, own, *others = super().step(actions)
            return (obs, {**own, **gains}, *others)  # type: ignore[return-value]  # five

        def _stint(self, name: str) -> tuple[int, int, str] | None:
            return None if name == "third" else super()._stint(name)

    with pytest.raises(BadEnvDataError, match=message):
        Collector(Still(), make_envs(partial(Odd, 0))).collect(n_step=2)
