"""What greedy episodes show of a learner: the returns it predicted and those that followed, and how actions vary."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit.buffer.nstep import shape_reward
from trainkit.core import tree
from trainkit.core.data import Horizon, Obs, ReturnScale, Transition, any_true
from trainkit.core.protocols import ActingPolicy, PredictsReturns
from trainkit.core.stats import Summary

_N_ROWS = 512  # of one forward pass


class GreedyEpisodes:
    """A recorder of evaluated episodes, for their statistics.

    Returns are those the learner predicts: discounted, of rewards as its horizon changes them. The rest of a truncated
    episode is the value predicted for its last observation, so that a time limit does not look like a wrong prediction.
    All predictions of an evaluation are made at its end, by one forward pass for every 512 observations.

    Args:
        policy: plays; without `greedy_values`, and for a reward rule that is a custom function, nothing is predicted.
        n_envs: N.
        states: returns the states of all environments after a step, [N, S]; None of a policy that carries none.
    """

    def __init__(
        self, policy: ActingPolicy, n_envs: int, states: Callable[[], NDArray[np.float32]] | None = None
    ) -> None:
        horizon = getattr(policy, "horizon", Horizon())
        is_custom = callable(horizon.reward) and not isinstance(horizon.reward, ReturnScale)
        self._predictor = policy if isinstance(policy, PredictsReturns) and not is_custom else None
        self._horizon: Horizon = horizon
        self._first_obs: list[Obs] = [None] * n_envs  # of the open episodes
        self._is_start = np.ones(n_envs, np.bool_)  # [N]
        self._returns, self._discounts = np.zeros(n_envs), np.ones(n_envs)  # [N], of the open episodes
        self._ended: list[tuple[Obs, Obs, float, float]] = []  # observations, return, rest's discount
        self._states = states
        self._last_states: list[NDArray[np.float32]] = []  # before the last observations, of those that ended
        self._n_actions = np.zeros(0, np.int64)  # [A], how often each Discrete action was taken

    def add(self, transition: Transition) -> None:
        """Add K steps."""
        env_ids, action = transition.env_ids, transition.action
        if action.ndim == 1 and action.dtype.kind in "iu":
            counts = np.bincount(action, minlength=len(self._n_actions))
            counts[: len(self._n_actions)] += self._n_actions
            self._n_actions = counts
        if self._predictor is None:
            return
        for row in np.flatnonzero(self._is_start[env_ids]).tolist():
            self._first_obs[env_ids[row]] = _copy_row(transition.obs, row)
        self._is_start[env_ids] = False
        reward = shape_reward(self._horizon.reward, transition.reward, lambda: {"reward": transition.reward})
        self._returns[env_ids] += self._discounts[env_ids] * reward
        self._discounts[env_ids] *= self._horizon.gamma
        ended = transition.terminated | transition.truncated
        if any_true(ended):
            rest = np.where(transition.terminated, 0.0, self._discounts[env_ids])
            for row in np.flatnonzero(ended).tolist():
                first_obs, last_obs = self._first_obs[env_ids[row]], _copy_row(transition.next_obs, row)
                self._ended.append((first_obs, last_obs, float(self._returns[env_ids[row]]), float(rest[row])))
            if self._states is not None:
                self._last_states.extend(self._states()[env_ids[ended]])
            self.cut(env_ids[ended])

    def cut(self, env_ids: NDArray[np.intp]) -> None:
        """Forget the open episodes of these environments."""
        self._is_start[env_ids], self._returns[env_ids], self._discounts[env_ids] = True, 0.0, 1.0

    drop = cut

    def summaries(self) -> Mapping[str, Any]:
        """Return the fields of `CollectStats` that are known of the episodes that ended."""
        n_actions = int(self._n_actions.sum())
        shown: dict[str, Any] = {"top_action_share": int(self._n_actions.max()) / n_actions} if n_actions else {}
        if self._predictor is None or not self._ended:
            return shown
        first_obs, last_obs, returns, rest = zip(*self._ended, strict=True)
        rows = [*first_obs, *last_obs]
        blocks = [_stacked(block) for block in _blocks(rows)]
        given: list[tuple[Any, ...]] = [(block,) for block in blocks]
        if self._states is not None:  # they are zero before the first observations
            last_states = np.stack(self._last_states)
            states = _blocks(np.concatenate([np.zeros_like(last_states), last_states]))
            given = list(zip(blocks, states, strict=True))
        predictions = [self._predictor.greedy_values(*one) for one in given]
        values, gaps = (np.concatenate(column) for column in zip(*predictions, strict=True))
        starts, ends = np.split(values.astype(np.float64), 2)
        ends = np.where(np.isfinite(ends), ends, 0.0)  # -inf where a mask allows nothing
        shown["start_values"] = Summary.of(starts)
        shown["discounted_returns"] = Summary.of(np.array(returns) + np.array(rest) * ends)
        shown["action_gaps"] = Summary.of(gap for gap in gaps[: len(starts)] if np.isfinite(gap))
        return shown


def _blocks(rows: Any) -> list[Any]:
    """Divide rows into those of one forward pass each."""
    return [rows[first : first + _N_ROWS] for first in range(0, len(rows), _N_ROWS)]


def _stacked(rows: Sequence[Obs]) -> Obs:
    return tree.map_tree(lambda *leaves: np.stack(leaves), *rows)


def _copy_row(obs: Obs, row: int) -> Obs:
    return tree.map_tree(lambda leaf: leaf[row].copy(), obs)
