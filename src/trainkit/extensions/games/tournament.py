"""Tournaments: policies that play each other on all sides, their win rates with intervals, and Elo ratings."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit.collector import Collector
from trainkit.collector.episodes import LONGEST_EPISODE
from trainkit.core import seeding
from trainkit.core.errors import Checks, ConfigError, reject_unknown
from trainkit.core.signatures import checked, options_of
from trainkit.core.stats import html_table
from trainkit.envs.envs_config import EnvSpec
from trainkit.envs.make import borrowed_envs, make_envs
from trainkit.extensions.games.multi_agent_policy import MultiAgentPolicy

_Z = 1.959964  # of a 95 % interval


@dataclass(frozen=True, slots=True, kw_only=True)
class WinRate:
    """The results of one policy's games against another.

    Attributes:
        wins, draws, losses: numbers of games.
    """

    wins: int
    draws: int
    losses: int

    @property
    def n_games(self) -> int:
        """Number of games."""
        return self.wins + self.draws + self.losses

    @property
    def rate(self) -> float:
        """The share of games won, draws counting one half."""
        return (self.wins + 0.5 * self.draws) / self.n_games

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the rate: Wilson's score interval, which is too wide where there are draws."""
        n_games, rate = self.n_games, self.rate
        center = (rate + _Z**2 / (2 * n_games)) / (1 + _Z**2 / n_games)
        spread = _Z * math.sqrt(rate * (1 - rate) / n_games + _Z**2 / (4 * n_games**2)) / (1 + _Z**2 / n_games)
        return max(0.0, center - spread), min(1.0, center + spread)

    @classmethod
    def of(cls, leads: Sequence[float]) -> "WinRate":
        """Return the results of games by how much the policy's return exceeded its opponent's in each."""
        signs = np.sign(leads)
        return cls(wins=int((signs > 0).sum()), draws=int((signs == 0).sum()), losses=int((signs < 0).sum()))

    @property
    def reverse(self) -> "WinRate":
        """The results as the other policy sees them."""
        return WinRate(wins=self.losses, draws=self.draws, losses=self.wins)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.rate:.3f} ({low:.3f} to {high:.3f}; {self.wins} won, {self.draws} drawn, {self.losses} lost)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tournament:
    """The results of a tournament.

    Attributes:
        results: {(policy, its opponent): results}, each pair once.
        elo: {policy: rating}, the best first.
        sides: {(policy, its opponent): {agent that the policy controlled: results}}.
    """

    results: Mapping[tuple[str, str], WinRate]
    elo: Mapping[str, float] = field(default_factory=dict)
    sides: Mapping[tuple[str, str], Mapping[str, WinRate]] = field(default_factory=dict)

    def win_rate(self, name: str, opponent: str, *, agent: str | None = None) -> WinRate:
        """Return the results of a policy against an opponent.

        Args:
            name: of the policy.
            opponent: its name.
            agent: count only games in which the policy controlled this agent; in games of more than two agents the
                policy must be the first of the pair.
        """
        pair, is_first = (name, opponent), (name, opponent) in self.results
        if not is_first:
            pair = opponent, name
        if pair not in self.results:
            raise ConfigError(
                f"Tournament has no games of {name!r} against {opponent!r}: the pairs are {[*self.results]}"
            )
        if agent is None:
            return self.results[pair] if is_first else self.results[pair].reverse
        sides = self.sides[pair]
        if not is_first:
            agents = list(sides)
            theirs = agents[::-1] if len(agents) == 2 else []
            sides = {own: sides[other].reverse for own, other in zip(agents, theirs, strict=False)}
        if agent not in sides:
            raise ConfigError(
                f"Tournament has no games in which {name!r} alone controlled {agent!r} against {opponent!r}, only "
                f"{[*sides]}"
            )
        return sides[agent]

    def __str__(self) -> str:
        width = max(map(len, self.elo))
        table = [f"{name:<{width}}  {rating:6.0f}" for name, rating in self.elo.items()]
        games = [f"{one} against {other}: {result}" for (one, other), result in self.results.items()]
        return "\n".join(["Elo", *table, *games])

    def _repr_html_(self) -> str:
        rows: list[tuple[str, object]] = [(name, f"{rating:.0f}") for name, rating in self.elo.items()]
        return html_table(
            "Elo", [*rows, *((f"{one} against {other}", own) for (one, other), own in self.results.items())]
        )


@checked
def tournament(
    policies: Mapping[str, Any],
    env: EnvSpec,
    *,
    n_episode: int = 100,
    n_envs: int | None = None,
    explore: bool = False,
    seed: int | None = None,
    **env_options: Any,
) -> Tournament:
    """Let every two policies play each other on all sides, and return win rates and Elo ratings.

    One policy plays one agent and its opponent all others; the side with the larger mean return wins a game, and means
    that are equal up to rounding are a draw. Policies without exploration repeat the same game where the environment is
    deterministic: then give `explore=True`.

    Args:
        policies: {name: policy}, at least two, which are not changed.
        env: games, as in `make_envs`, whose further options are `env_options`.
        n_episode: games of each pair, divided over the sides.
        n_envs: games at the same time; default 16, or as many as are played.
        explore: whether the policies explore.
        seed: root of the games; None draws one.
    """
    reject_unknown("tournament", env_options, [*options_of(tournament), *options_of(make_envs)])
    with Checks("tournament") as checks:
        is_given = isinstance(policies, Mapping) and len(policies) >= 2
        checks.require(is_given, f".policies must be a dict of two or more {{name: policy}}, got {policies!r}")
        checks.integer("n_episode", n_episode, low=1)
        checks.integer("seed", seed, low=0, optional=True)
    root = seeding.fresh_root() if seed is None else seed
    games = min(n_episode, 16) if n_envs is None else n_envs
    results: dict[tuple[str, str], WinRate] = {}
    sides: dict[tuple[str, str], dict[str, WinRate]] = {}
    with borrowed_envs(env, games, **{"in_evaluation": True, **env_options}) as envs:
        for one, other in combinations(policies, 2):
            pair = MultiAgentPolicy({one: policies[one], other: policies[other]}, dict.fromkeys(envs.agents, one))
            leads: dict[str, list[float]] = {}
            for side, agent in enumerate(envs.agents):
                count = n_episode // len(envs.agents) + (side < n_episode % len(envs.agents))
                if count:
                    pair.policy_mapping = {name: one if name == agent else other for name in envs.agents}
                    leads[agent] = _leads(pair, envs, side, count, explore, root)
            if not leads:
                pair.behavior_for(envs)  # raises: these are no games
            results[one, other] = WinRate.of([lead for own in leads.values() for lead in own])
            sides[one, other] = {agent: WinRate.of(own) for agent, own in leads.items()}
    return Tournament(results=results, elo=elo_ratings(list(policies), results), sides=sides)


def _leads(policy: MultiAgentPolicy, envs: Any, side: int, n_episode: int, explore: bool, seed: int) -> list[float]:
    """Return by how much the return of the agent on one side exceeds the others' mean, in each game."""
    found: list[float] = []

    def note(returns: NDArray[np.float64]) -> NDArray[np.float64]:
        own = np.nan_to_num(returns[:, side])
        others = np.nan_to_num(np.delete(returns, side, axis=1)).mean(axis=1)
        found.extend(map(lead_of, own, others))
        return own

    collector = Collector(policy, envs, reward_metric=note)
    try:
        collector.collect(n_episode=n_episode, explore=explore, seed=seed, max_episode_steps=LONGEST_EPISODE)
    finally:
        collector.release()
    return found


def lead_of(own: float, others: float) -> float:
    """Return by how much one side's mean return exceeds the other's: 0, a draw, if they are equal up to rounding."""
    return 0.0 if math.isclose(own, others, rel_tol=1e-9, abs_tol=1e-9) else own - others


def elo_ratings(
    names: list[str], results: Mapping[tuple[str, str], WinRate], *, mean: float = 1000.0
) -> dict[str, float]:
    """Return Elo ratings by maximum likelihood, the best first (Bradley and Terry, 1952; Hunter, 2004, equation 3).

    A rating that is larger by 400 wins ten times as often as it loses. Each pair counts one more drawn game, so that a
    policy that won or lost all of its games has a finite rating.

    Args:
        names: of the policies.
        results: of pairs.
        mean: of the ratings.
    """
    index = {name: i for i, name in enumerate(names)}
    won, played = np.zeros(len(names)), np.zeros((len(names), len(names)))
    for (one, other), result in results.items():
        i, j, n_games = index[one], index[other], result.n_games + 1
        won[i] += result.wins + 0.5 * (result.draws + 1)
        won[j] += result.losses + 0.5 * (result.draws + 1)
        played[i, j] = played[j, i] = n_games
    strength = np.ones(len(names))
    for _ in range(10_000):
        before = strength
        strength = won / (played / (strength[:, None] + strength[None])).sum(axis=1)
        strength /= np.exp(np.log(strength).mean())
        if np.abs(strength / before - 1.0).max() < 1e-12:
            break
    ratings = mean + 400.0 * np.log10(strength)
    return {names[i]: float(ratings[i]) for i in np.argsort(-ratings, kind="stable")}
