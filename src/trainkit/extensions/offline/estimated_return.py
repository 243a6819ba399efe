"""A callback that evaluates the policy by a dataset: off-policy evaluation at the ends of epochs."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from trainkit.buffer import ReplayBuffer
from trainkit.core.data import EpochResult
from trainkit.core.errors import Checks
from trainkit.core.signatures import checked
from trainkit.extensions.offline.fitted_q_evaluation import fitted_q_evaluation
from trainkit.extensions.offline.off_policy_evaluation import (
    Estimate,
    doubly_robust,
    importance_sampling,
    weighted_importance_sampling,
)
from trainkit.trainer.callbacks.base import Callback

if TYPE_CHECKING:
    from trainkit.trainer.base import Trainer

Estimator = Literal[
    "importance_sampling", "weighted_importance_sampling", "fitted_q_evaluation", "doubly_robust"
]  # fmt: skip
_BY_RATIOS: Mapping[str, Callable[..., Estimate]] = {
    "importance_sampling": importance_sampling,
    "weighted_importance_sampling": weighted_importance_sampling,
}


@checked
class OffPolicyEvaluation(Callback):
    """Estimates of the policy's return from recorded episodes, at the ends of epochs, in addition to any evaluation.

    They are logged as `custom/off_policy/ESTIMATOR`, with `_std_error` and `_sample_size` (the effective one) where the
    estimator has them, and `custom/off_policy/behavior` is the episodes' own mean. `Checkpoint(folder,
    keep_best="custom/off_policy/doubly_robust")` keeps the best policy by an estimate. Training has the same bits.

    Args:
        dataset: whole episodes that another policy recorded, better not those that are learned from.
        gamma: discount per step; None is the policy's own.
        estimators: one or several: "importance_sampling", "weighted_importance_sampling", "fitted_q_evaluation",
            "doubly_robust". The last two fit action values again each time; the others need none.
        every: epochs from one evaluation to the next.
        explore: whether the policy that is evaluated explores.
        fit: options of `fitted_q_evaluation`, such as `n_updates` and `hidden`.
    """

    def __init__(
        self,
        dataset: ReplayBuffer,
        *,
        gamma: float | None = None,
        estimators: Estimator | Sequence[Estimator] = "weighted_importance_sampling",
        every: int = 1,
        explore: bool = False,
        fit: Mapping[str, Any] | None = None,
    ) -> None:
        self.estimators = [estimators] if isinstance(estimators, str) else list(estimators)
        with Checks("OffPolicyEvaluation") as checks:
            checks.number("gamma", gamma, low=0, high=1, optional=True)
            checks.integer("every", every, low=1)
            checks.flag("explore", explore)
            checks.require(len(self.estimators) > 0, " needs an estimator, got none")
            for name in self.estimators:
                checks.one_of("estimators", name, list(get_args(Estimator)))
            needs_fit = bool({"fitted_q_evaluation", "doubly_robust"} & set(self.estimators))
            checks.require(needs_fit or not fit, f".fit has no effect on {self.estimators}: leave it out")
            checks.require(len(dataset) > 0, ".dataset is empty: record episodes, or load some")
        self._dataset, self._gamma, self._every = dataset, gamma, every
        self._explore, self._fit, self._needs_fit = explore, dict(fit or {}), needs_fit

    def on_epoch_end(self, trainer: "Trainer", result: EpochResult) -> None:
        if trainer.epoch % self._every:
            return
        for name, estimate in self.estimate(trainer.policy, step=trainer.clock).items():
            numbers = {"": estimate.value, "_std_error": estimate.std_error}
            for suffix, number in (numbers | {"_sample_size": estimate.effective_sample_size}).items():
                if number is not None:
                    trainer.log(f"off_policy/{name}{suffix}", number)
            trainer.log("off_policy/behavior", estimate.behavior, "last")

    def estimate(self, policy: Any, *, step: int | None = None) -> dict[str, Estimate]:
        """Return the estimates of a policy by name; `step` is of its exploration schedule."""
        gamma = policy.horizon.gamma if self._gamma is None else self._gamma
        how: dict[str, Any] = {"gamma": gamma, "explore": self._explore, "step": step}
        made: dict[str, Estimate] = {
            name: fn(policy, self._dataset, **how) for name, fn in _BY_RATIOS.items() if name in self.estimators
        }
        if not self._needs_fit:
            return made
        fitted = fitted_q_evaluation(policy, self._dataset, **how, **self._fit)
        if "fitted_q_evaluation" in self.estimators:
            made["fitted_q_evaluation"] = fitted.estimate
        if "doubly_robust" in self.estimators:
            made["doubly_robust"] = doubly_robust(policy, self._dataset, fitted, **how)
        return made
