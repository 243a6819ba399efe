"""Counting episodes: returns and lengths that are exact across calls, and the time each part took."""

import copy
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit.core.errors import ConfigError
from trainkit.core.stats import NO_VALUES, CollectStats, Summary

_log = logging.getLogger(__name__)

LONGEST_EPISODE = 30_000  # steps that an evaluation allows unless told otherwise; Atari's games end after 27,000
_ENDLESS = 100_000  # steps of an episode that hardly was meant to be so long
_RECENT = 100  # episodes in `recent_returns`

RewardMetric = Callable[[NDArray[np.float64]], NDArray[np.float64]]


class Tally:
    """What happens during one `collect`, interruptions left out."""

    def __init__(self) -> None:
        self.n_faulty_episodes = self.n_env_restarts = self.n_cut_episodes = 0
        self.seconds = 0.0
        self.n_step = self.n_vector_step = 0
        self.act_seconds = self.env_seconds = self.store_seconds = 0.0
        self.obs_seconds = self.action_seconds = 0.0  # parts of `env_seconds`
        self.render_seconds = 0.0
        self.returns: list[float] = []
        self.lengths: list[int] = []
        self.durations: list[float] = []
        self.slots: list[NDArray[np.int64]] = []  # of the rows that were stored, step by step
        self.agent_returns: dict[str, list[float]] = {}  # {agent: of the games it took part in}

    def state_dict(self) -> dict[str, Any]:
        """Return all that was counted."""
        return copy.deepcopy(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved count."""
        vars(self).update(state)

    def stats(self, recent_returns: Summary, action_std: Summary = NO_VALUES) -> CollectStats:
        """Tell what was counted."""
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
            agents={name: Summary.of(own) for name, own in self.agent_returns.items() if own},
        )


class Episodes:
    """The running episode of each environment; where agents share a game, each has its return in the game's episode.

    Args:
        n_envs: N, rows.
        reward_metric: from returns [episodes], of agents [episodes, agents], to what is shown [episodes]; None shows
            them as they are, of agents their mean.
        agents: names of the rows of each game, in order; empty where an environment has one.
    """

    def __init__(self, n_envs: int, reward_metric: RewardMetric | None, agents: Sequence[str] = ()) -> None:
        self._agents, self._n_agents = agents, max(1, len(agents))
        self._game_lengths = np.zeros(n_envs // self._n_agents, np.int64)  # so far; only where agents share games
        self._returns = np.zeros(n_envs, np.float64)  # [N], so far
        self._lengths = np.zeros(n_envs, np.int64)  # [N], so far
        self._began = np.full(n_envs, time.perf_counter())  # [N]
        self.metric = reward_metric
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._recent_summary: Summary | None = None  # made when asked for
        self.n_finished = 0
        self._n_vector_steps = 0
        self._has_warned = False  # of an episode without end
        self._n_calls_below = 0  # of `reach`, in which no episode can reach the limit

    def step(self, env_ids: NDArray[np.intp], reward: NDArray[np.float64]) -> None:
        """Count one step of these environments."""
        if len(env_ids) == len(self._returns):
            self._returns += reward
        else:
            self._returns[env_ids] += reward
        self._lengths[env_ids] += 1
        if self._agents:
            self._game_lengths[np.unique(env_ids // self._n_agents)] += 1
        self._n_vector_steps += 1
        if self._n_vector_steps % _ENDLESS == 0:  # now and then: a step pays nothing for it
            self._warn_of_endless()

    def add_rewards(self, rewards: Mapping[int, float]) -> None:
        """Add rewards, by row, to the returns of agents that did not act."""
        for env_id, reward in rewards.items():
            self._returns[env_id] += reward

    def reach(self, limit: int, env_ids: NDArray[np.intp]) -> NDArray[np.bool_] | None:
        """Return which episodes [K] reach this length with a step about to be counted, None where none does.

        Call it before each step: lengths are compared only when the longest episode can have reached the limit.
        """
        if self._n_calls_below > 0:
            self._n_calls_below -= 1
            return None
        lengths = self._game_lengths[env_ids // self._n_agents] if self._agents else self._lengths[env_ids]
        every = self._game_lengths if self._agents else self._lengths
        at_limit: NDArray[np.bool_] = lengths + 1 >= limit
        self._n_calls_below = max(0, limit - 2 - int(every.max()))
        return at_limit if at_limit.any() else None

    def limit_changed(self) -> None:
        """Let `reach` compare at its next call."""
        self._n_calls_below = 0

    def finish(self, env_ids: NDArray[np.intp], tally: Tally) -> NDArray[np.intp]:
        """Write finished episodes into the tally, begin to count the next ones, and return the rows that had steps.

        Where agents share a game, the rows are of whole games.
        """
        now = time.perf_counter()
        played = firsts = env_ids
        returns, lengths = self._returns[env_ids], self._lengths[env_ids]
        metric = self.metric
        if self._agents:
            played = env_ids[lengths > 0]
            firsts = env_ids[:: self._n_agents]  # one row per game
            returns = self._of_agents(returns, env_ids, tally)
            lengths = self._game_lengths[firsts // self._n_agents]
            metric = _mean_of_agents if metric is None else metric
        if metric is not None:
            returns = np.asarray(metric(returns), np.float64)
            if returns.shape != firsts.shape:
                raise ConfigError(
                    f"reward_metric must give one number per episode [{len(firsts)}], got {returns.shape}"
                )
        tally.returns += returns.tolist()
        tally.lengths += lengths.tolist()
        tally.durations += (now - self._began[firsts]).tolist()
        self._recent.extend(returns.tolist())
        self._recent_summary = None
        self.n_finished += len(firsts)
        self.begin(env_ids, now)
        return played

    def _of_agents(self, returns: NDArray[np.float64], env_ids: NDArray[np.intp], tally: Tally) -> NDArray[np.float64]:
        """Return the returns as [episodes, agents], nan where an agent took no part, each agent's in the tally."""
        took_part = (self._lengths[env_ids] > 0) | (returns != 0)  # an agent that never acted may be paid, too
        by_agent: NDArray[np.float64] = np.where(took_part, returns, np.nan).reshape(-1, self._n_agents)
        for name, column in zip(self._agents, by_agent.T, strict=True):
            tally.agent_returns.setdefault(name, []).extend(column[~np.isnan(column)].tolist())
        return by_agent

    def begin(self, env_ids: NDArray[np.intp], now: float | None = None) -> None:
        """Forget what ran here."""
        self._returns[env_ids] = 0.0
        self._lengths[env_ids] = 0
        if self._agents:
            self._game_lengths[env_ids // self._n_agents] = 0
        self._began[env_ids] = time.perf_counter() if now is None else now

    @property
    def recent_returns(self) -> Summary:
        """The last 100 finished episodes."""
        if self._recent_summary is None:
            self._recent_summary = Summary.of(self._recent)
        return self._recent_summary

    def state_dict(self) -> dict[str, Any]:
        """Return the count, the recent returns and the episodes that run."""
        return {
            "n_finished": self.n_finished,
            "recent": list(self._recent),
            "returns": self._returns.copy(),
            "lengths": self._lengths.copy(),
            "game_lengths": self._game_lengths.copy(),
            "seconds": time.perf_counter() - self._began,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved count; the episodes that ran go on."""
        self.n_finished = state["n_finished"]
        self._recent = deque(state["recent"], maxlen=_RECENT)
        self._recent_summary = None
        self._returns[:], self._lengths[:] = state["returns"], state["lengths"]
        self._game_lengths[:] = state["game_lengths"]
        self._began = time.perf_counter() - state["seconds"]
        self._n_calls_below = 0

    def have_returns(self, returns: NDArray[np.float64]) -> bool:
        """Whether the episodes that run have these returns [N], to the last bit."""
        runs = self._lengths > 0
        return self._returns[runs].tobytes() == returns[runs].tobytes()

    def _warn_of_endless(self) -> None:
        """Warn, once, of an episode that has too many steps already."""
        lengths = self._lengths
        endless = np.flatnonzero(lengths >= _ENDLESS)
        if len(endless) and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "env %d has made %s steps without an episode's end, so its return waits for ever: let it terminate, "
                "or give make_envs max_episode_steps, which is gymnasium.wrappers.TimeLimit",
                endless[0] // self._n_agents,
                f"{lengths[endless[0]]:,}",
            )


class StepGoal:
    """Reach a number of steps in all; what one collect goes over is taken off the next."""

    def __init__(self, owed: int) -> None:
        self.owed = owed

    def state_dict(self) -> dict[str, Any]:
        return {"owed": self.owed}

    @property
    def is_reached(self) -> bool:
        return self.owed <= 0

    def open(self, ready: NDArray[np.intp]) -> NDArray[np.intp]:
        """Let every environment go on."""
        return ready

    def step(self, n_rows: int) -> None:
        self.owed -= n_rows

    def finish(self, env_ids: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return where another episode shall begin."""
        return env_ids


class EpisodeGoal:
    """Finish a fixed quota of episodes in each environment, so that short ones do not count more than others."""

    def __init__(self, n_episode: int, n_envs: int, n_agents: int = 1) -> None:
        n_games = n_envs // n_agents
        share, rest = divmod(n_episode, n_games)
        self.quota = share + (np.arange(n_games) < rest)  # of each, 10 on 4 environments: 3, 3, 2, 2
        self._n_agents = n_agents

    def state_dict(self) -> dict[str, Any]:
        return {"quota": self.quota.copy(), "n_agents": self._n_agents}

    @property
    def is_reached(self) -> bool:
        return not self.quota.any()

    def open(self, ready: NDArray[np.intp]) -> NDArray[np.intp]:
        """Let go on those that still owe an episode."""
        return ready[self.quota[ready // self._n_agents] > 0]

    def step(self, n_rows: int) -> None:
        """Count episodes, not steps."""

    def give_up(self, env_ids: NDArray[np.intp]) -> None:
        """Let the episodes that run be the last here."""
        self.quota[env_ids // self._n_agents] = 1

    def finish(self, env_ids: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return where another episode shall begin."""
        self.quota[env_ids // self._n_agents] -= 1
        return self.open(env_ids)


Goal = StepGoal | EpisodeGoal


def _mean_of_agents(returns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Average [episodes, agents] over the agents that took part."""
    mean: NDArray[np.float64] = np.nanmean(returns, axis=1)
    return mean


def saved_goal(state: dict[str, Any]) -> Goal:
    """Return the goal whose `state_dict` this is."""
    if "owed" in state:
        return StepGoal(state["owed"])
    goal = EpisodeGoal(0, len(state["quota"]) * state["n_agents"], state["n_agents"])
    goal.quota = state["quota"]
    return goal
