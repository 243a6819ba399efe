"""Games whose rows say where they are from, and what must hold however they are interrupted."""

import copy
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.helpers.doubles import Ledger, Player, Still, one_by_one
from tests.helpers.games import AGENTS, PLANS, TaggedGame, length, plan_of, reward
from trainkit.collector import Collector, EpisodeEvents
from trainkit.core import tree
from trainkit.core.stats import Summary
from trainkit.envs import Envs, make_envs
from trainkit.policy import RandomPolicy


def made(n: int = 3, *, haunts: bool = False, **options: Any) -> tuple[Envs, list[TaggedGame]]:
    """Make games, and show them."""
    envs = make_envs([partial(TaggedGame, game, haunts=haunts) for game in range(n)], **options)
    return envs, games_of(envs)


def games_of(envs: Envs) -> list[Any]:
    runner: Any = envs.runner
    return [driver.game for driver in runner.envs]


def assert_is_about(summary: Summary, numbers: list[Any]) -> None:
    true = Summary.of(numbers)
    for one in ("mean", "std", "min", "max", "count"):
        assert getattr(summary, one) == pytest.approx(getattr(true, one), rel=1e-9)


class SeededGame(TaggedGame):
    """One whose plan follows from the seed of its reset, as games have it."""

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        assert seed is not None
        self.episode = seed % 10_007 - 1
        return super().reset(seed, options)


MOMENTS = pytest.mark.parametrize("n_step", [1, 5, 40, 110, 150])


def check_that_running_games_continue(n_step: int, **options: Any) -> None:
    def made_again(seed: int | None) -> tuple[Collector, Ledger]:
        envs = make_envs([partial(SeededGame, game) for game in range(3)], seed=seed, **options)
        return Collector(TreePlayer(), envs, ledger := Ledger()), ledger

    straight, all_rows = made_again(7)
    straight.collect(n_step=n_step)
    state, n_before = copy.deepcopy(straight.state_dict()), len(all_rows)
    resumed, new_rows = made_again(None)
    resumed.load_state_dict(state)
    stats = [collector.collect(n_step=90) for collector in (straight, resumed)]
    mine, theirs = new_rows.rows(), all_rows.rows()
    for name in ("reward", "terminated", "truncated", "env_ids", "action"):
        np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name)[n_before:])
    for own, other in zip(tree.leaves(mine.obs), tree.leaves(theirs.obs), strict=True):
        np.testing.assert_array_equal(own, other[n_before:])
    assert stats[0].returns == stats[1].returns
    assert stats[0].agents == stats[1].agents


class TreePlayer(Player):
    def act(self, obs: Any, **options: Any) -> Any:
        return super().act(obs["obs"] if isinstance(obs, dict) else obs, **options)._replace(state=None)


class Paying(TaggedGame):
    """Pay 1,000 times the step to every agent that does not act; no agent returns here."""

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        obs, gains, *others = super().step(actions)
        late = {name: 1000.0 * self.step_now for name in AGENTS if name not in actions}
        return (obs, {**gains, **late}, *others)  # type: ignore[return-value]  # five


def check_that_late_rewards_count_in_returns_alone(processors: Any, caplog: pytest.LogCaptureFixture) -> None:
    n_games, ledger = len(PLANS), Ledger()
    envs = make_envs([partial(Paying, 0)], processors=processors)
    collector = Collector(Still(), envs, ledger, reward_metric=lambda returns: np.nansum(returns, axis=1))
    totals: dict[int, list[float]] = {0: [], 1: [], 2: []}

    def report(event: str, episode: Any, *_: Any) -> None:
        if event == "on_episode_end":
            totals[episode.env_id].append(episode.total_reward)

    collector.events = EpisodeEvents(3, one_by_one(report), ["on_episode_end"])
    stats = collector.collect(n_episode=n_games)

    def paid(episode: int, agent: int) -> float:
        stints = plan_of(0, episode).get(AGENTS[agent], [])
        acted = {step for start, end, _ in stints for step in range(start, end)}
        own = sum(reward(0, agent, episode, step) for step in acted)
        return own + sum(1000.0 * (step + 1) for step in range(length(0, episode)) if step not in acted)

    for agent, name in enumerate(AGENTS):
        assert_is_about(stats.agents[name].returns, [paid(episode, agent) for episode in range(n_games)])
    assert_is_about(stats.returns, [sum(paid(episode, agent) for agent in range(3)) for episode in range(n_games)])
    assert ledger.rows().reward.max() < 1000.0
    for agent, name in enumerate(AGENTS):
        assert totals[agent] == [paid(episode, agent) for episode in range(n_games) if name in plan_of(0, episode)]
    (message,) = [message for message in caplog.messages if "got reward" in message]
    assert message.startswith("agent 'left' of game 0 got reward 4000 in a step in which it did not act")


def random_player(envs: Envs, seed: int = 0) -> RandomPolicy:
    return RandomPolicy(envs.action_space, seed=seed)


Row = tuple[list[int], list[int], int, float, list[int], bool, bool]


def true_rows(moves: list[tuple[int, list[int], int]], winner: int | None) -> dict[int, list[Row]]:
    """Derive the rows of both players from the moves of a game that is over."""
    rows: dict[int, list[Row]] = {0: [], 1: []}
    last = list(moves[-1][1])
    last[moves[-1][2]] = (1, -1)[moves[-1][0]]
    for player in (0, 1):
        sign = (1, -1)[player]
        own = [index for index, move in enumerate(moves) if move[0] == player]
        for index, following in zip(own, [*own[1:], None], strict=True):
            until = len(moves) if following is None else following
            gain = 0.0
            for mover, _, square in moves[index:until]:
                gain += 0.5 if mover == player else square / 16
            if following is None and winner is not None:
                gain += 100.0 if winner == player else -100.0
            after = last if following is None else moves[following][1]
            board = [sign * square for square in moves[index][1]]
            mask = [int(square == 0) for square in board]
            then = [sign * square for square in after]
            rows[player].append((board, mask, moves[index][2], gain, then, following is None, False))
    return rows
