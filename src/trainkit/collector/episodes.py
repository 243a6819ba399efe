"""Episode accounting: exact returns and lengths across collects, and the time each part took."""

import copy
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit.core.data import add_at, all_or
from trainkit.core.errors import ConfigError
from trainkit.core.stats import NO_VALUES, CollectStats, PlayerStats, Summary

_log = logging.getLogger(__name__)

LONGEST_EPISODE = 30_000  # default limit of an evaluation's episodes, in steps; Atari's games end after 27,000
_NO_LIMIT = (
    ": give the environments a limit of their own, make_envs(..., max_episode_steps=N), of a preset "
    'env_options={"max_episode_steps": N}'
)
_ENDLESS = 100_000  # steps after which an episode is reported as one that may never end
_RECENT = 100  # episodes in `recent_returns`

_ONE = np.ones((), np.int64)
_NO_REWARDS: Mapping[int, float] = {}

RewardMetric = Callable[[NDArray[np.float64]], NDArray[np.float64]]
LastPlayers = Callable[[], tuple[NDArray[np.int64], Mapping[int, str]]]
Players = dict[str, dict[str, PlayerStats]]  # {"agents": {name: ...}, "policies": {name: ...}}


@dataclass(kw_only=True)
class Tally:
    """Counts and times of one `collect`, without the time between an interruption and `resume`."""

    n_step: int = 0
    n_vector_step: int = 0
    n_faulty_episodes: int = 0
    n_env_restarts: int = 0
    n_cut_episodes: int = 0
    seconds: float = 0.0
    act_seconds: float = 0.0
    env_seconds: float = 0.0
    obs_seconds: float = 0.0  # part of `env_seconds`
    action_seconds: float = 0.0  # part of `env_seconds`
    store_seconds: float = 0.0
    render_seconds: float = 0.0
    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    durations: list[float] = field(default_factory=list)
    slots: list[NDArray[np.int64]] = field(default_factory=list)  # of the stored rows, step by step
    agent_returns: dict[str, list[float]] = field(default_factory=dict)  # {agent: of the games it took part in}
    processors: dict[str, Summary] = field(default_factory=dict)  # {name: what processors logged}
    policy_returns: dict[str, list[float]] = field(default_factory=dict)
    agent_steps: dict[str, int] = field(default_factory=dict)  # before this collect
    policy_steps: dict[str, int] = field(default_factory=dict)

    def state_dict(self) -> dict[str, Any]:
        """Return all counts and times."""
        return copy.deepcopy(vars(self)) | {"processors": {name: asdict(one) for name, one in self.processors.items()}}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Tally":
        """Return the counts and times of a saved state, those of a new collect where it is empty."""
        if not state:
            return cls()
        return cls(**{**state, "processors": {name: Summary(**one) for name, one in state["processors"].items()}})

    def stats(
        self, recent_returns: Summary, action_std: Summary = NO_VALUES, players: "Players | None" = None
    ) -> CollectStats:
        """Return the statistics of the collect."""
        other_seconds = self.seconds - self.act_seconds - self.env_seconds - self.store_seconds - self.render_seconds
        own_seconds = self.env_seconds - self.obs_seconds - self.action_seconds
        steps = self.n_vector_step
        per_step = 1e3 / steps if steps else None
        columns = self.returns, self.lengths, self.durations
        returns, lengths, durations = (Summary.of(column) if column else NO_VALUES for column in columns)
        return CollectStats(
            n_step=self.n_step,
            n_episode=len(self.returns),
            returns=returns,
            lengths=lengths,
            durations=durations,
            recent_returns=recent_returns,
            seconds=self.seconds,
            episode_returns=tuple(self.returns),
            episode_lengths=tuple(self.lengths),
            n_vector_step=steps,
            n_faulty_episodes=self.n_faulty_episodes,
            n_env_restarts=self.n_env_restarts,
            n_cut_episodes=self.n_cut_episodes,
            env_ms=per_step and own_seconds * per_step,
            obs_ms=per_step and self.obs_seconds * per_step,
            action_ms=per_step and self.action_seconds * per_step,
            render_ms=per_step and self.render_seconds * per_step,
            act_ms=per_step and self.act_seconds * per_step,
            store_ms=per_step and self.store_seconds * per_step,
            other_ms=per_step and other_seconds * per_step,
            action_std=action_std,
            processors=dict(self.processors),
            agents={} if players is None else players.get("agents", {}),
            policies={} if players is None else players.get("policies", {}),
        )


def _players(
    steps: Mapping[str, int], before: Mapping[str, int], returns: Mapping[str, Sequence[float]]
) -> dict[str, PlayerStats]:
    """Return the statistics of agents or policies that did anything in a collect."""
    players = {
        name: PlayerStats(n_step=count - before.get(name, 0), returns=Summary.of(returns.get(name, ())))
        for name, count in steps.items()
    }
    return {name: own for name, own in players.items() if own.n_step or own.returns.count}


class Episodes:
    """The current episode of each environment; where agents share a game, each has its return in the game's episode.

    Args:
        n_envs: N, rows.
        reward_metric: from returns [episodes], of agents [episodes, agents], to the reported ones [episodes]; None
            reports them as they are, of agents their mean.
        agents: names of the rows of each game, in order; empty where an environment has one.
        soft_horizon: steps after which an episode is counted although it continues; of one agent only.
        players: returns the numbers of the policies that acted last in all rows [N], -1 for none, and their names.

    Attributes:
        agent_steps: {agent: steps ever}, as the last collect counted them.
        policy_steps: {policy: steps ever}.
    """

    def __init__(
        self,
        n_envs: int,
        reward_metric: RewardMetric | None,
        agents: Sequence[str] = (),
        soft_horizon: int | None = None,
        players: LastPlayers | None = None,
    ) -> None:
        self._agents, self._group_size = agents, max(1, len(agents))
        self._players = players
        self.agent_steps: dict[str, int] = {}
        self.policy_steps: dict[str, int] = {}
        self._closed_steps = np.zeros(n_envs, np.int64)  # [N], in the episodes that are over; where agents share games
        self._closed_policy_steps: dict[str, int] = {}
        self._game_lengths = np.zeros(n_envs // self._group_size, np.int64)  # so far; only where agents share games
        self._returns = np.zeros(n_envs, np.float64)  # [N], so far
        self._lengths = np.zeros(n_envs, np.int64)  # [N], so far
        self._started = np.full(n_envs, time.perf_counter())  # [N]
        self._soft_horizon = soft_horizon
        self._returns_since_reset = self._returns if soft_horizon is None else self._returns.copy()  # [N]
        self.metric = reward_metric
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._recent_summary: Summary | None = None  # computed when it is read
        self.n_finished = 0
        self._n_vector_steps = 0
        self._has_warned_of_endless = False
        self._has_warned_of_cut = False

    def step(
        self,
        env_ids: NDArray[np.intp],
        reward: NDArray[np.float64],
        late_rewards: Mapping[int, float] = _NO_REWARDS,
        acted: NDArray[np.intp] | None = None,
    ) -> None:
        """Count the rows that a vector step completed, the rewards of agents without one, and the games that moved.

        Args:
            env_ids: of the completed rows [K].
            reward: of the completed rows [K].
            late_rewards: of agents without a row, by row number.
            acted: who acted in this step; None: the same as `env_ids`.
        """
        rows = all_or(env_ids, len(self._lengths))
        add_at(self._returns, rows, reward)
        if self._soft_horizon is not None:
            add_at(self._returns_since_reset, rows, reward)
        add_at(self._lengths, rows, _ONE)
        if self._agents:
            self._game_lengths[np.unique((env_ids if acted is None else acted) // self._group_size)] += 1
        for env_id, late_reward in late_rewards.items():
            self._returns[env_id] += late_reward
        self._n_vector_steps += 1
        if self._n_vector_steps % _ENDLESS == 0:
            self._warn_of_endless()

    def will_reach(self, limit: int, env_ids: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Return which episodes [K] reach this length with a step that is about to be counted."""
        lengths = self._game_lengths[env_ids // self._group_size] if self._agents else self._lengths[env_ids]
        reaches: NDArray[np.bool_] = lengths >= limit - 1
        return reaches

    def at_soft_horizon(self, env_ids: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return those of these environments [K] whose count reached the soft horizon."""
        return env_ids[:0] if self._soft_horizon is None else env_ids[self._lengths[env_ids] >= self._soft_horizon]

    def finish(self, env_ids: NDArray[np.intp], tally: Tally, *, continues: bool = False) -> NDArray[np.intp]:
        """Add finished episodes to the tally, start to count the next ones, and return the rows that had steps.

        Where agents share a game, the rows are of whole games. `continues` says that no reset follows.
        """
        now = time.perf_counter()
        played = firsts = env_ids
        returns, lengths = self._returns[env_ids], self._lengths[env_ids]
        metric = self.metric
        if self._agents:
            played = env_ids[lengths > 0]
            firsts = env_ids[:: self._group_size]  # one row per game
            returns = self._of_agents(returns, env_ids, tally)
            lengths = self._game_lengths[firsts // self._group_size]
            metric = _mean_of_agents if metric is None else metric
        if metric is not None:
            returns = np.asarray(metric(returns), np.float64)
            if returns.shape != firsts.shape:
                raise ConfigError(
                    f"reward_metric must give one number per episode [{len(firsts)}], got {returns.shape}"
                )
        tally.returns += returns.tolist()
        tally.lengths += lengths.tolist()
        tally.durations += (now - self._started[firsts]).tolist()
        self._recent.extend(returns.tolist())
        self._recent_summary = None
        self.n_finished += len(firsts)
        self.close(env_ids)
        self.start(env_ids, now, continues=continues)
        return played

    def _of_agents(self, returns: NDArray[np.float64], env_ids: NDArray[np.intp], tally: Tally) -> NDArray[np.float64]:
        """Return the returns as [episodes, agents], NaN for agents that took no part, and add them to the tally."""
        took_part = (self._lengths[env_ids] > 0) | (returns != 0)  # an agent that never acted may be paid, too
        by_agent: NDArray[np.float64] = np.where(took_part, returns, np.nan).reshape(-1, self._group_size)
        for name, column in zip(self._agents, by_agent.T, strict=True):
            tally.agent_returns.setdefault(name, []).extend(column[~np.isnan(column)].tolist())
        numbers, names = self._players_now()
        for number, one in zip(numbers[env_ids].tolist(), by_agent.ravel().tolist(), strict=True):
            if number in names and not math.isnan(one):
                tally.policy_returns.setdefault(names[number], []).append(one)
        return by_agent

    def _players_now(self) -> tuple[NDArray[np.int64], Mapping[int, str]]:
        return (np.full(len(self._lengths), -1), {}) if self._players is None else self._players()

    def players(self, tally: Tally) -> Players:
        """Return the statistics of the agents and policies of a collect; empty where agents share no games."""
        if not self._agents:
            return {}
        self._count_steps()
        return {
            "agents": _players(self.agent_steps, tally.agent_steps, tally.agent_returns),
            "policies": _players(self.policy_steps, tally.policy_steps, tally.policy_returns),
        }

    def steps_of_agents(self) -> dict[str, int]:
        """Return {agent: steps ever}; empty where agents share no games."""
        by_agent = (self._closed_steps + self._lengths).reshape(-1, self._group_size).sum(axis=0).tolist()
        return dict(zip(self._agents, by_agent, strict=False))

    def _count_steps(self) -> None:
        """Count the steps of each agent and of each policy."""
        self.agent_steps = self.steps_of_agents()
        self.policy_steps = self._steps_of_policies(self._lengths)

    def _steps_of_policies(self, lengths: NDArray[np.int64]) -> dict[str, int]:
        """Return the steps of each policy in closed episodes, and in the last ones of rows with these lengths [N]."""
        steps = dict(self._closed_policy_steps)
        numbers, names = self._players_now()
        for number, name in names.items():
            steps[name] = steps.get(name, 0) + int(lengths[numbers == number].sum())
        return steps

    def close(self, env_ids: NDArray[np.intp]) -> None:
        """Count the steps of episodes that are over, before others start."""
        if self._agents:
            lengths = np.zeros_like(self._lengths)
            lengths[env_ids] = self._lengths[env_ids]
            self._closed_steps += lengths
            self._closed_policy_steps = self._steps_of_policies(lengths)
            self._lengths[env_ids] = 0

    def start(self, env_ids: NDArray[np.intp], now: float | None = None, *, continues: bool = False) -> None:
        """Count from 0 in these environments."""
        self._returns[env_ids] = 0.0
        if not continues:
            self._returns_since_reset[env_ids] = 0.0
        self._lengths[env_ids] = 0
        if self._agents:
            self._game_lengths[env_ids // self._group_size] = 0
        self._started[env_ids] = time.perf_counter() if now is None else now

    @property
    def recent_returns(self) -> Summary:
        """The returns of the last 100 finished episodes."""
        if self._recent_summary is None:
            self._recent_summary = Summary.of(self._recent)
        return self._recent_summary

    def state_dict(self) -> dict[str, Any]:
        """Return the number of episodes, the recent returns and the current episodes."""
        return {
            "n_finished": self.n_finished,
            "recent": list(self._recent),
            "returns": self._returns.copy(),
            "lengths": self._lengths.copy(),
            "game_lengths": self._game_lengths.copy(),
            "returns_since_reset": self._returns_since_reset.copy(),
            "seconds": time.perf_counter() - self._started,
            "closed_steps": self._closed_steps.copy(),
            "closed_policy_steps": dict(self._closed_policy_steps),
            "agent_steps": self.agent_steps,
            "policy_steps": self.policy_steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state; the running episodes continue."""
        self.n_finished = state["n_finished"]
        self._recent = deque(state["recent"], maxlen=_RECENT)
        self._recent_summary = None
        self._returns[:], self._lengths[:] = state["returns"], state["lengths"]
        self._game_lengths[:] = state["game_lengths"]
        self._returns_since_reset[:] = state["returns_since_reset"]
        self._started = time.perf_counter() - state["seconds"]
        self._closed_steps[:] = state["closed_steps"]
        self._closed_policy_steps = dict(state["closed_policy_steps"])
        self.agent_steps, self.policy_steps = (dict(state[name]) for name in ("agent_steps", "policy_steps"))

    def have_returns(self, returns: NDArray[np.float64]) -> bool:
        """Return whether the current episodes have these returns [N] since their reset, to the last bit."""
        has_steps = (self._lengths > 0) | (self._soft_horizon is not None)
        return self._returns_since_reset[has_steps].tobytes() == returns[has_steps].tobytes()

    def _warn_of_endless(self) -> None:
        """Warn once about an episode with very many steps."""
        endless = np.flatnonzero(self._lengths >= _ENDLESS)
        if len(endless) and not self._has_warned_of_endless:
            self._has_warned_of_endless = True
            _log.warning(
                "env %d has made %s steps without an episode's end, so its return is never complete: let it "
                "terminate, or give make_envs max_episode_steps, which is gymnasium.wrappers.TimeLimit; a preset takes "
                'env_options={"max_episode_steps": N}',
                endless[0] // self._group_size,
                f"{self._lengths[endless[0]]:,}",
            )

    def report_cut(self, limit: int, game: int, name: str, *, can_continue: bool) -> None:
        """Report once an episode that is truncated at the limit of an evaluation; one that was given is expected."""
        if not self._has_warned_of_cut:
            self._has_warned_of_cut = True
            _log.log(
                logging.INFO if can_continue and limit < LONGEST_EPISODE else logging.WARNING,
                "%s: an episode (env %d) is truncated at max_episode_steps=%s, and counts with its return so far; "
                "n_cut_episodes counts such episodes%s%s",
                *(name, game, f"{limit:,}"),
                _NO_LIMIT if limit >= LONGEST_EPISODE else "",
                "" if can_continue else "; no other follows there, as the vector environment resets itself only",
            )


def _mean_of_agents(returns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Average [episodes, agents] over the agents that took part."""
    mean: NDArray[np.float64] = np.nanmean(returns, axis=1)
    return mean
