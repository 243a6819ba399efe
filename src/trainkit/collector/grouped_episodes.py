"""Episode accounting of rows in groups: an episode is that of a group, in which each of its rows has its return."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit.collector.episodes import NO_REWARDS, Episodes, Players, RewardMetric, Tally
from trainkit.core.stats import PlayerStats, Summary

LastPlayers = Callable[[], tuple[NDArray[np.int64], Mapping[int, str]]]


class GroupedEpisodes(Episodes):
    """The current episode of each group of rows; see `Envs.group_size`.

    Args:
        n_envs: N, rows.
        reward_metric: from returns [episodes, rows of a group] to the reported ones [episodes]; None reports their mean
            over the rows that took part.
        n_recent: as of `Episodes`.
        names: of the rows of a group, in order.
        players: returns the numbers of the policies that acted last in all rows [N], -1 for none, and their names.
    """

    def __init__(
        self, n_envs: int, reward_metric: RewardMetric | None, n_recent: int, names: Sequence[str], players: LastPlayers
    ) -> None:
        super().__init__(n_envs, reward_metric, n_recent)
        self._names, self._group_size, self._players_now = names, len(names), players
        self._closed_steps = np.zeros(n_envs, np.int64)  # [N], in the episodes that are over
        self._closed_policy_steps: dict[str, int] = {}
        self._group_lengths = np.zeros(n_envs // self._group_size, np.int64)  # so far

    def step(
        self,
        env_ids: NDArray[np.intp],
        reward: NDArray[np.float64],
        late_rewards: Mapping[int, float] = NO_REWARDS,
        acted: NDArray[np.intp] | None = None,
    ) -> None:
        """Count the rows that a vector step completed, rewards of rows that were not open, and groups that moved."""
        self._group_lengths[np.unique((env_ids if acted is None else acted) // self._group_size)] += 1
        super().step(env_ids, reward, late_rewards, acted)
        for env_id, late_reward in late_rewards.items():
            self._returns[env_id] += late_reward

    def will_reach(self, limit: int, env_ids: NDArray[np.intp]) -> NDArray[np.bool_]:
        reaches: NDArray[np.bool_] = self._group_lengths[env_ids // self._group_size] >= limit - 1
        return reaches

    def finish(self, env_ids: NDArray[np.intp], tally: Tally, *, continues: bool = False) -> NDArray[np.intp]:
        """Add finished episodes to the tally, start to count the next ones, and return the rows that had steps.

        The rows are those of whole groups. `continues` says that no reset follows.
        """
        now = time.perf_counter()
        played = env_ids[self._lengths[env_ids] > 0]
        firsts = env_ids[:: self._group_size]
        returns = self._of_members(env_ids, tally)
        lengths = self._group_lengths[firsts // self._group_size]
        self._report(firsts, returns, lengths, _mean_of_members if self.metric is None else self.metric, tally, now)
        self.close(env_ids)
        self.start(env_ids, now, continues=continues)
        return played

    def _of_members(self, env_ids: NDArray[np.intp], tally: Tally) -> NDArray[np.float64]:
        """Return the returns [episodes, rows of a group], NaN of rows that took no part, and add them to the tally."""
        returns = self._returns[env_ids]
        took_part = (self._lengths[env_ids] > 0) | (returns != 0)  # a row that never acted may be paid, too
        by_member: NDArray[np.float64] = np.where(took_part, returns, np.nan).reshape(-1, self._group_size)
        for name, column in zip(self._names, by_member.T, strict=True):
            tally.agent_returns.setdefault(name, []).extend(column[~np.isnan(column)].tolist())
        numbers, names = self._players_now()
        for number, one in zip(numbers[env_ids].tolist(), by_member.ravel().tolist(), strict=True):
            if number in names and not math.isnan(one):
                tally.policy_returns.setdefault(names[number], []).append(one)
        return by_member

    def players(self, tally: Tally) -> Players:
        """Return the statistics of the rows of groups, and of policies, in a collect."""
        self.agent_steps = self.steps_of_agents()
        self.policy_steps = self._steps_of_policies(self._lengths)
        return {
            "agents": _players(self.agent_steps, tally.agent_steps, tally.agent_returns),
            "policies": _players(self.policy_steps, tally.policy_steps, tally.policy_returns),
        }

    def steps_of_agents(self) -> dict[str, int]:
        by_member = (self._closed_steps + self._lengths).reshape(-1, self._group_size).sum(axis=0).tolist()
        return dict(zip(self._names, by_member, strict=True))

    def _steps_of_policies(self, lengths: NDArray[np.int64]) -> dict[str, int]:
        """Return the steps of each policy in closed episodes, and in the last ones of rows with these lengths [N]."""
        steps = dict(self._closed_policy_steps)
        numbers, names = self._players_now()
        for number, name in names.items():
            steps[name] = steps.get(name, 0) + int(lengths[numbers == number].sum())
        return steps

    def close(self, env_ids: NDArray[np.intp]) -> None:
        lengths = np.zeros_like(self._lengths)
        lengths[env_ids] = self._lengths[env_ids]
        self._closed_steps += lengths
        self._closed_policy_steps = self._steps_of_policies(lengths)
        self._lengths[env_ids] = 0

    def start(self, env_ids: NDArray[np.intp], now: float | None = None, *, continues: bool = False) -> None:
        super().start(env_ids, now, continues=continues)
        self._group_lengths[env_ids // self._group_size] = 0

    def _environment_of(self, env_id: int) -> int:
        return env_id // self._group_size

    def state_dict(self) -> dict[str, Any]:
        """Return the state of `Episodes`, and the steps of groups, rows and policies."""
        return {
            **super().state_dict(),
            "game_lengths": self._group_lengths.copy(),
            "closed_steps": self._closed_steps.copy(),
            "closed_policy_steps": dict(self._closed_policy_steps),
            "agent_steps": self.agent_steps,
            "policy_steps": self.policy_steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._group_lengths[:] = state["game_lengths"]
        self._closed_steps[:] = state["closed_steps"]
        self._closed_policy_steps = dict(state["closed_policy_steps"])
        self.agent_steps, self.policy_steps = (dict(state[name]) for name in ("agent_steps", "policy_steps"))


def _players(
    steps: Mapping[str, int], before: Mapping[str, int], returns: Mapping[str, Sequence[float]]
) -> dict[str, PlayerStats]:
    """Return the statistics of rows or policies that did anything in a collect."""
    players = {
        name: PlayerStats(n_step=count - before.get(name, 0), returns=Summary.of(returns.get(name, ())))
        for name, count in steps.items()
    }
    return {name: own for name, own in players.items() if own.n_step or own.returns.count}


def _mean_of_members(returns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Average [episodes, rows of a group] over the rows that took part."""
    mean: NDArray[np.float64] = np.nanmean(returns, axis=1)
    return mean
