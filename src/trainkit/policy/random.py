"""The policy that knows nothing: for warm-up and as a baseline."""

from typing import Any

import numpy as np
from gymnasium import Space
from numpy.typing import NDArray

from trainkit import tree
from trainkit.data import ActOutput, Obs
from trainkit.policy.base import Policy
from trainkit.spaces import random_actions


class RandomPolicy(Policy):
    """Act uniformly at random among the legal actions, whatever `explore` says."""

    def __init__(self, action_space: Space[Any], *, seed: int | None = None) -> None:
        super().__init__(action_space=action_space, device="cpu", seed=seed)

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
        assert self.action_space is not None
        n_rows = len(tree.first_leaf(obs))
        return ActOutput(random_actions(self.action_space, obs, n_rows, self.rng, env_ids), {}, state)
