"""Policies that act by a function, as opponents and baselines."""

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import Space
from numpy.typing import NDArray

from trainkit.core import tree
from trainkit.core.data import ActOutput, Obs
from trainkit.core.errors import Checks, ConfigError
from trainkit.core.signatures import checked
from trainkit.policy.base import Policy


@checked
class ScriptedPolicy(Policy):
    """Act by a function of the observations; learns nothing.

    Args:
        fn: from raw observations [K, ...], with the mask in, to actions [K, ...].
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
        action, n_rows = np.asarray(self.fn(obs)), len(tree.first_leaf(obs))
        if action.shape[:1] != (n_rows,):
            raise ConfigError(f"ScriptedPolicy.fn must give {n_rows} actions [K, ...], got shape {action.shape}")
        return ActOutput(action, {}, state)
