"""A backend around the environments: it multiplies their rewards."""

from dataclasses import dataclass
from typing import Any

import trainkit as tk


@dataclass(frozen=True)
class ScaleReward:
    """For `make_envs(processors=[ScaleReward(0.1)])`.

    Attributes:
        factor: of each reward.
    """

    factor: float

    def around(self, backend: Any) -> tk.envs.AroundBackend:
        """Return a backend with other rewards."""
        return _Scaled(backend, self.factor)


class _Scaled(tk.envs.AroundBackend):
    def __init__(self, inner: Any, factor: float) -> None:
        super().__init__(inner)
        self._factor = factor

    def step(self, action: Any, env_ids: Any, work: Any) -> Any:
        """Step, and multiply the rewards [K]."""
        raw = self.inner.step(action, env_ids, work)
        return raw._replace(reward=raw.reward * self._factor)
