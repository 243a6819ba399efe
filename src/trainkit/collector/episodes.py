"""Episode accounting: exact returns and lengths across collects, and the time each part took."""

import copy
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
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

_ONE = np.ones((), np.int64)
NO_REWARDS: Mapping[int, float] = {}

RewardMetric = Callable[[NDArray[np.float64]], NDArray[np.float64]]
Players = Mapping[str, dict[str, PlayerStats]]  # {"agents": {name: ...}, "policies": {name: ...}}


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


class Episodes:
    """The current episode of each environment; of rows in groups see `GroupedEpisodes`.

    Args:
        n_envs: N, rows.
        reward_metric: from returns [episodes] to the reported ones [episodes]; None reports them as they are.
        n_recent: finished episodes of which `recent_returns` is the summary.
        soft_horizon: steps after which an episode is counted although it continues.

    Attributes:
        agent_steps: {name of a row of a group: steps ever}, as the last collect counted them.
        policy_steps: {policy: steps ever}, where several act.
    """

    def __init__(
        self, n_envs: int, reward_metric: RewardMetric | None, n_recent: int, soft_horizon: int | None = None
    ) -> None:
        self.agent_steps: dict[str, int] = {}
        self.policy_steps: dict[str, int] = {}
        self._returns = np.zeros(n_envs, np.float64)  # [N], so far
        self._lengths = np.zeros(n_envs, np.int64)  # [N], so far
        self._started = np.full(n_envs, time.perf_counter())  # [N]
        self._soft_horizon = soft_horizon
        self._returns_since_reset = self._returns if soft_horizon is None else self._returns.copy()  # [N]
        self.metric = reward_metric
        self._recent: deque[float] = deque(maxlen=n_recent)
        self._recent_summary: Summary | None = None  # computed when it is read
        self.n_finished = 0
        self._n_vector_steps = 0
        self._has_warned_of_endless = False
        self._has_warned_of_cut = False

    def step(
        self,
        env_ids: NDArray[np.intp],
        reward: NDArray[np.float64],
        late_rewards: Mapping[int, float] = NO_REWARDS,
        acted: NDArray[np.intp] | None = None,
    ) -> None:
        """Count the rows that a vector step completed.

        Args:
            env_ids: of the completed rows [K].
            reward: of the completed rows [K].
            late_rewards: of rows of groups that were not open, by row number.
            acted: who acted in this step; None: the same as `env_ids`.
        """
        rows = all_or(env_ids, len(self._lengths))
        add_at(self._returns, rows, reward)
        if self._soft_horizon is not None:
            add_at(self._returns_since_reset, rows, reward)
        add_at(self._lengths, rows, _ONE)
        self._n_vector_steps += 1
        if self._n_vector_steps % _ENDLESS == 0:
            self._warn_of_endless()

    def will_reach(self, limit: int, env_ids: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Return which episodes [K] reach this length with a step that is about to be counted."""
        reaches: NDArray[np.bool_] = self._lengths[env_ids] >= limit - 1
        return reaches

    def at_soft_horizon(self, env_ids: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return those of these environments [K] whose count reached the soft horizon."""
        return env_ids[:0] if self._soft_horizon is None else env_ids[self._lengths[env_ids] >= self._soft_horizon]

    def finish(self, env_ids: NDArray[np.intp], tally: Tally, *, continues: bool = False) -> NDArray[np.intp]:
        """Add finished episodes to the tally, start to count the next ones, and return the rows that had steps.

        `continues` says that no reset follows.
        """
        now = time.perf_counter()
        self._report(env_ids, self._returns[env_ids], self._lengths[env_ids], self.metric, tally, now)
        self.start(env_ids, now, continues=continues)
        return env_ids

    def _report(
        self,
        firsts: NDArray[np.intp],
        returns: NDArray[np.float64],
        lengths: NDArray[np.int64],
        metric: RewardMetric | None,
        tally: Tally,
        now: float,
    ) -> None:
        """Add finished episodes to the tally.

        Args:
            firsts: the first row of each.
            returns: of each, or of each row of its group.
            lengths: of each.
            metric: of the returns; None reports them as they are.
            tally: receives them.
            now: when they ended.
        """
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

    def players(self, tally: Tally) -> Players:
        """Return the statistics of the rows of groups, and of policies; empty where each row is alone."""
        return {}

    def steps_of_agents(self) -> dict[str, int]:
        """Return {name of a row of a group: steps ever}; empty where each row is alone."""
        return {}

    def close(self, env_ids: NDArray[np.intp]) -> None:
        """Count the steps of episodes that are over, before others start."""

    def _environment_of(self, env_id: int) -> int:
        """Return the index of a row's environment."""
        return env_id

    def start(self, env_ids: NDArray[np.intp], now: float | None = None, *, continues: bool = False) -> None:
        """Count from 0 in these environments."""
        self._returns[env_ids] = 0.0
        if not continues:
            self._returns_since_reset[env_ids] = 0.0
        self._lengths[env_ids] = 0
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
            "returns_since_reset": self._returns_since_reset.copy(),
            "seconds": time.perf_counter() - self._started,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state; the running episodes continue."""
        self.n_finished = state["n_finished"]
        self._recent = deque(state["recent"], self._recent.maxlen)
        self._recent_summary = None
        self._returns[:], self._lengths[:] = state["returns"], state["lengths"]
        self._returns_since_reset[:] = state["returns_since_reset"]
        self._started = time.perf_counter() - state["seconds"]

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
                self._environment_of(endless[0]),
                f"{self._lengths[endless[0]]:,}",
            )

    def report_cut(self, limit: int, environment: int, name: str, *, can_continue: bool) -> None:
        """Report once an episode that is truncated at the limit of an evaluation; one that was given is expected."""
        if not self._has_warned_of_cut:
            self._has_warned_of_cut = True
            _log.log(
                logging.INFO if can_continue and limit < LONGEST_EPISODE else logging.WARNING,
                "%s: an episode (env %d) is truncated at max_episode_steps=%s, and counts with its return so far; "
                "n_cut_episodes counts such episodes%s%s",
                *(name, environment, f"{limit:,}"),
                _NO_LIMIT if limit >= LONGEST_EPISODE else "",
                "" if can_continue else "; no other follows there, as the vector environment resets itself only",
            )
