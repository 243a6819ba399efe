"""Policies that do not learn: uniformly random actions, and a function of the observations."""

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from trainkit.core import tree
from trainkit.core.data import ACTION_MASK, ActOutput, Obs
from trainkit.core.errors import Checks, ConfigError, check_flag
from trainkit.core.signatures import checked
from trainkit.core.spaces import checked_legal, random_actions, random_probability
from trainkit.policy.base import Policy
from trainkit.policy.exploration import ACTION_PROB_SPEC


@checked
class RandomPolicy(Policy):
    """Uniformly random legal actions, with and without `explore`.

    Args:
        action_space: of one environment.
        observation_space: of one environment, for `predict`; a collector sets it otherwise.
        seed: root of the actions; None takes the trainer's.
        store_action_prob: store the probability of each action, as `action_prob`; not for a Box.
    """

    is_random = True

    def __init__(
        self,
        action_space: Space[Any],
        *,
        observation_space: Space[Any] | None = None,
        seed: int | None = None,
        store_action_prob: bool = False,
    ) -> None:
        super().__init__(observation_space=observation_space, action_space=action_space, device="cpu", seed=seed)
        if store_action_prob:
            random_probability(action_space, None, 0)  # raises for a Box
            self._extras_spec = ACTION_PROB_SPEC

    def act(
        self,
        obs: Obs,
        *,
        step: int = 0,
        explore: bool = False,
        state: Any = None,
        starts: NDArray[np.bool_] | None = None,
        env_ids: NDArray[np.intp] | None = None,
    ) -> ActOutput:
        check_flag(self, "act(explore=)", explore)
        obs = self._rows_to_act_on(obs, env_ids)
        assert self.action_space is not None
        n_rows = len(tree.first_leaf(obs))
        action = random_actions(self.action_space, obs, n_rows, self.rng, env_ids)
        stored = {name: random_probability(self.action_space, obs, n_rows) for name in self.extras_spec}
        return ActOutput(action, stored, state)

    def action_probability(self, obs: Obs, *, step: int = 0, explore: bool = False) -> NDArray[np.float64]:
        """Return 1 / legal actions for every legal action, [K, A]."""
        check_flag(self, "action_probability(explore=)", explore)
        if not isinstance(self.action_space, spaces.Discrete):
            return super().action_probability(obs)
        rows, is_one = self._read("action_probability", obs)
        legal = checked_legal(rows)
        if legal is None:
            legal = np.ones((len(tree.first_leaf(rows)), int(self.action_space.n)), np.bool_)
        share: NDArray[np.float64] = legal / legal.sum(axis=1, keepdims=True)
        return share[0] if is_one else share


@checked
class ScriptedPolicy(Policy):
    """Act by a function of the observations; learns nothing.

    Args:
        fn: from raw observations [K, ...], with the mask in, to legal actions [K, ...].
        observation_space: of one environment; a collector sets it otherwise.
        action_space: of one environment.
    """

    def __init__(
        self,
        fn: Callable[[Obs], NDArray[Any]],
        *,
        observation_space: Space[Any] | None = None,
        action_space: Space[Any] | None = None,
    ) -> None:
        with Checks("ScriptedPolicy") as checks:
            checks.require(callable(fn), f".fn must be a function of observations, got {fn!r}")
        super().__init__(observation_space=observation_space, action_space=action_space, device="cpu", seed=0)
        self.fn = fn

    def act(
        self,
        obs: Obs,
        *,
        step: int = 0,
        explore: bool = False,
        state: Any = None,
        starts: NDArray[np.bool_] | None = None,
        env_ids: NDArray[np.intp] | None = None,
    ) -> ActOutput:
        obs = self._rows_to_act_on(obs, env_ids)
        action, n_rows = np.asarray(self.fn(obs)), len(tree.first_leaf(obs))
        if action.shape[:1] != (n_rows,):
            raise ConfigError(f"ScriptedPolicy.fn must give {n_rows} actions [K, ...], got shape {action.shape}")
        self._check_legal(obs, action, env_ids)
        return ActOutput(action, {}, state)

    def _check_legal(self, obs: Obs, action: NDArray[Any], env_ids: NDArray[np.intp] | None) -> None:
        """Raise for an action [K] that the mask of its row forbids."""
        legal = checked_legal(obs, env_ids)
        if legal is None or not isinstance(self.action_space, spaces.Discrete) or action.dtype.kind not in "iu":
            return
        is_known = (action >= 0) & (action < legal.shape[1])  # the collector names others
        is_illegal = is_known & ~legal[np.arange(len(action)), np.where(is_known, action, 0)]
        if is_illegal.any():
            row = int(np.flatnonzero(is_illegal)[0])
            raise ConfigError(
                f"ScriptedPolicy.fn must give legal actions, got {action[row]} for env "
                f"{row if env_ids is None else env_ids[row]}, whose {ACTION_MASK} allows "
                f"{np.flatnonzero(legal[row]).tolist()}: choose among those where obs[{ACTION_MASK!r}] is True"
            )
