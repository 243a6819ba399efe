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

_Z = 1.959964  # the normal distribution's quantile of a 95 % interval
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)  # Student's, of 1 degree of freedom and more


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
        """The 95 % interval of the mean difference, by Student's t: where it has 0, neither was shown to be better.

        It is about these two policies. Whether an algorithm is better than another takes policies of several seeds.
        """
        half = _quantile(len(self.differences) - 1) * self.std_error
        return self.mean - half, self.mean + half

    def __str__(self) -> str:
        means = (format_number(statistics.fmean(side)) for side in (self.returns, self.baseline_returns))
        n_better = sum(difference > 0 for difference in self.differences)
        return "{} against {}, difference {} (95 % interval {} to {}), better in {} of {} episodes".format(
            *means,
            *(format_number(one, "+") for one in (self.mean, *self.interval)),
            n_better,
            len(self.differences),
        )


def _quantile(n_degrees: int) -> float:
    """Return Student's quantile of a 95 % interval, from 10 degrees of freedom on by Abramowitz and Stegun, 26.7.5."""
    if n_degrees <= len(_T):
        return _T[n_degrees - 1]
    first, second = (_Z**3 + _Z) / 4, (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / 96
    third = (3 * _Z**7 + 19 * _Z**5 + 17 * _Z**3 - 15 * _Z) / 384
    return _Z + first / n_degrees + second / n_degrees**2 + third / n_degrees**3


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
        n_episode: episodes of each, one after the other in one environment: not those of `evaluate` with the same seed,
            which plays in several.
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
