"""The behavior policy of a collector whose rows all have the same policy."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import Space
from numpy.typing import NDArray

from trainkit.core.data import ActOutput, ArraySpec, Obs, RowSpec, check_act_output
from trainkit.core.protocols import ActingPolicy, HasActionStd
from trainkit.core.spaces import check_inside


class SingleBehavior:
    """One policy for every row; see `BehaviorPolicy`.

    Args:
        policy: of every row.
        n_envs: N.
        action_space: of one environment.

    Attributes:
        acts: checks what the policy returns to its first call; from then on the policy.
        normal: the policy, where it may draw actions from normal distributions.
    """

    acts_here = True
    max_lag = 0

    def __init__(self, policy: ActingPolicy, n_envs: int, action_space: Space[Any]) -> None:
        self.acts: Any = self
        self.normal = policy if isinstance(policy, HasActionStd) else None
        self._policy = policy
        self._no_numbers = np.full(n_envs, -1)
        self._action_space = action_space

    def act(
        self,
        obs: Obs,
        *,
        step: int,
        explore: bool,
        state: Any,
        starts: NDArray[np.bool_],
        env_ids: NDArray[np.intp],
    ) -> ActOutput:
        """Act for the first time.

        Raises:
            ConfigError: `act` does not return an `ActOutput`, or actions that are outside of a Box.
        """
        output = self._policy.act(obs, step=step, explore=explore, state=state, starts=starts, env_ids=env_ids)
        check_act_output(self._policy, output)
        check_inside(f"{type(self._policy).__name__}.act", output.action, self._action_space)
        self.acts = self._policy
        return output

    @property
    def extras_spec(self) -> Mapping[str, ArraySpec]:
        return self._policy.extras_spec

    def row_spec(self, spec: RowSpec) -> RowSpec:
        return spec

    def row_extras(self, env_ids: NDArray[np.intp]) -> dict[str, NDArray[Any]]:
        return {}

    def players(self, env_ids: NDArray[np.intp]) -> list[str]:
        return [""] * len(env_ids)

    def last_players(self) -> tuple[NDArray[np.int64], Mapping[int, str]]:
        return self._no_numbers, {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any], *, with_running: bool) -> None:
        """Load nothing: a policy is saved by its owner."""
