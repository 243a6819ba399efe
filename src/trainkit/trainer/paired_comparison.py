"""Two policies on the same episodes: their returns, and the difference with its standard error."""

import math
import statistics
from dataclasses import dataclass
from typing import Any

from trainkit.core import seeding
from trainkit.core.errors import Checks
from trainkit.core.protocols import ActingPolicy
from trainkit.core.signatures import checked
from trainkit.core.stats import format_number
from trainkit.envs.envs_config import EnvSpec
from trainkit.trainer.evaluation import evaluate

_Z = 1.959964  # of a 95 % interval


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedComparison:
    """The returns of a policy and of a baseline on the same episodes.

    An episode that is hard for one of them is hard for the other, too: the error of the mean difference is much smaller
    than that of either mean.

    Attributes:
        returns: of the policy, [E].
        baseline_returns: of the baseline in the same episodes, [E].
    """

    returns: tuple[float, ...]
    baseline_returns: tuple[float, ...]

    @property
    def differences(self) -> tuple[float, ...]:
        """The policy's return less the baseline's, [E]."""
        return tuple(own - other for own, other in zip(self.returns, self.baseline_returns, strict=True))

    @property
    def mean(self) -> float:
        """The mean difference: above 0 the policy is better."""
        return statistics.fmean(self.differences)

    @property
    def std_error(self) -> float:
        """The standard error of the mean difference."""
        return statistics.stdev(self.differences) / math.sqrt(len(self.differences))

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the mean difference, for 30 episodes or more."""
        return self.mean - _Z * self.std_error, self.mean + _Z * self.std_error

    def __str__(self) -> str:
        means = (format_number(statistics.fmean(side)) for side in (self.returns, self.baseline_returns))
        n_better = sum(difference > 0 for difference in self.differences)
        return "{} against {}, difference {} +- {}, better in {} of {} episodes".format(
            *means,
            format_number(self.mean, "+"),
            format_number(self.std_error),
            n_better,
            len(self.differences),
        )


@checked
def compare(
    policy: ActingPolicy,
    baseline: ActingPolicy,
    env: EnvSpec,
    *,
    n_episode: int = 100,
    explore: bool = False,
    seed: int | None = None,
    max_episode_steps: int | None = None,
    **env_options: Any,
) -> PairedComparison:
    """Play the same episodes with two policies and return their returns, pair by pair.

    The episodes are the same where an environment draws all its randomness from the seed of `reset`.

    Args:
        policy: any policy.
        baseline: what it should beat, such as a `RandomPolicy`, or a rule as a `trainkit.policy.ScriptedPolicy`.
        env: as in `make_envs`, whose further options are `env_options`; a maker of environments, not an open one.
        n_episode: episodes of each, one after the other.
        explore: whether the policies explore.
        seed: root of the episodes; None draws one.
        max_episode_steps: as in `evaluate`.
    """
    with Checks("compare") as checks:
        checks.integer("n_episode", n_episode, low=2)
    root = seeding.fresh_root() if seed is None else seed
    how: dict[str, Any] = {"n_episode": n_episode, "n_envs": 1, "explore": explore, "seed": root}
    how |= {"max_episode_steps": max_episode_steps, **env_options}
    ours, theirs = (evaluate(player, env, **how).episode_returns for player in (policy, baseline))
    return PairedComparison(returns=ours, baseline_returns=theirs)
