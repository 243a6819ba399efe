"""The behavior policy of a collector whose rows all have the same policy."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit.core.data import ArraySpec, RowSpec
from trainkit.core.protocols import ActingPolicy, HasActionStd


class SingleBehavior:
    """One policy for every row; see `BehaviorPolicy`.

    Attributes:
        acts: the policy.
        normal: the policy, where it may draw actions from normal distributions.
    """

    def __init__(self, policy: ActingPolicy, n_envs: int) -> None:
        self.acts: Any = policy
        self.normal = policy if isinstance(policy, HasActionStd) else None
        self._policy = policy
        self._no_numbers = np.full(n_envs, -1)

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
