"""One call of `collect`: its options, and what is left of the steps or episodes that it requests."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit.core.errors import Checks, ConfigError


@dataclass(frozen=True, slots=True)
class CollectOptions:
    """How a collect acts; the fields are as in `Collector.collect`."""

    explore: bool = True
    random: bool = False
    step: int | None = None
    seed: int | None = None
    max_episode_steps: int | None = None
    render: float | None = None

    def check(self, n_step: int | None, n_episode: int | None) -> None:
        """Raise a ConfigError for what cannot work in a collect of these steps or episodes.

        It is called in every collect of a run, of one vector step perhaps, so that usual ones are accepted first.
        """
        if (n_step is None) == (n_episode is None):
            given = {"n_step": n_step, "n_episode": n_episode}
            raise ConfigError(f"Collector.collect needs exactly one of n_step and n_episode, got {given}")
        for option, flag in (("explore", self.explore), ("random", self.random)):
            if not isinstance(flag, (bool, np.bool_)):
                rule = "must be True, False or None" if option == "explore" else "must be True or False"
                raise ConfigError(f"Collector.collect.{option} {rule}, got {flag!r}")
        name, count = ("n_episode", n_episode) if n_step is None else ("n_step", n_step)
        if type(count) is not int or count < 1 or self.max_episode_steps is not None or self.render is not None:
            with Checks("Collector.collect") as checks:
                checks.integer(name, count, low=1)
                if self.max_episode_steps is not None:
                    checks.integer("max_episode_steps", self.max_episode_steps, low=1)
                    rule = ".max_episode_steps has no effect on n_step: give it to make_envs"
                    checks.require(n_step is None, rule)
                checks.number("render", self.render, low=0, optional=True)
        if self.seed is not None and n_episode is None:
            raise ConfigError("Collector.collect(seed=) seeds the reset that n_episode begins with: use reset(seed=)")


class StepQuota:
    """A number of steps in all environments together, whose episodes continue from one collect to the next.

    Attributes:
        n_left: steps left; negative where the last vector step made more.
    """

    def __init__(self, n_step: int) -> None:
        self.n_left = n_step

    def unfilled(self, env_ids: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return those environments that are to step: all of them."""
        return env_ids

    def count_steps(self, n_step: int) -> None:
        """Count steps that were made."""
        self.n_left -= n_step

    def finish(self, env_ids: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the environments that start another episode: all of them."""
        return env_ids

    def state_dict(self) -> dict[str, Any]:
        """Return the steps left."""
        return {"n_left": self.n_left}


class EpisodeQuota:
    """A fixed number of episodes of each environment, so that short episodes do not count more than long ones.

    Attributes:
        left: episodes still to finish, of each environment or group.
    """

    def __init__(self, n_episode: int, n_envs: int, group_size: int = 1) -> None:
        n_groups = n_envs // group_size
        share, rest = divmod(n_episode, n_groups)
        self.left = share + (np.arange(n_groups) < rest)  # 10 on 4 environments: 3, 3, 2, 2
        self._group_size = group_size

    @property
    def n_left(self) -> int:
        """Number of episodes left to finish."""
        return int(self.left.sum())

    def unfilled(self, env_ids: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return those environments that have an episode left to finish."""
        return env_ids[self.left[env_ids // self._group_size] > 0]

    def count_steps(self, n_step: int) -> None:
        """Do nothing: episodes count."""

    def finish(self, env_ids: NDArray[np.intp]) -> NDArray[np.intp]:
        """Count finished episodes and return the environments that start another."""
        self.left[env_ids // self._group_size] -= 1
        return self.unfilled(env_ids)

    def end_with_current(self, env_ids: NDArray[np.intp]) -> None:
        """End the quota of these environments with their current episodes."""
        self.left[env_ids // self._group_size] = 1

    def state_dict(self) -> dict[str, Any]:
        """Return the episodes left."""
        return {"left": self.left.copy(), "n_agents": self._group_size}


Quota = StepQuota | EpisodeQuota


def saved_quota(state: Mapping[str, Any]) -> Quota:
    """Return the quota of a saved state."""
    if "n_left" in state:
        return StepQuota(state["n_left"])
    quota = EpisodeQuota(0, len(state["left"]) * state["n_agents"], state["n_agents"])
    quota.left = state["left"]
    return quota
