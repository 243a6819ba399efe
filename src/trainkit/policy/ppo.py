"""PPO, A2C and REINFORCE: three losses of the same rows."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trainkit.core.errors import Checks
from trainkit.core.schedules import Adjustable, Constant, Scheduled, as_schedule
from trainkit.core.signatures import checked
from trainkit.engine.gradient_step import Scalar
from trainkit.engine.loss import Loss
from trainkit.policy.advantages import RolloutRows, discounted_returns
from trainkit.policy.on_policy import OnpolicyPolicy


@checked
class PPOPolicy(OnpolicyPolicy):
    """Proximal policy optimization with the clipped objective (Schulman et al., 2017, equations 7 and 9).

    loss = -mean min(ratio * advantage, clip(ratio, 1 +- clip_ratio) * advantage)
    + value_weight * mean (value - return)**2 - entropy_weight * mean entropy.

    Args:
        network: see `OnpolicyPolicy`, which has the other parts.
        clip_ratio: a schedule of the environment step.
        clip_value: largest change of the value from the stored one; None is unlimited.
        value_weight: of the critic's loss.
        entropy_weight: a schedule of the environment step.
        normalize_advantage: normalize each batch's advantages to mean 0 and standard deviation 1.
        target_kl: stop learning from a rollout after a batch whose divergence from the collecting policy is larger.

    Metrics: loss, policy_loss, value_loss, entropy, approx_kl (mean of (ratio - 1) - log ratio; Schulman, 2020),
    clip_share (ratios beyond the clip), value_mean, grad_norm, lr.
    """

    _scheduled = ("clip_ratio", "entropy_weight")
    clip_ratio = Adjustable(low=0)
    entropy_weight = Adjustable(low=0)

    def __init__(
        self,
        network: nn.Module,
        *,
        clip_ratio: Scheduled = 0.2,
        clip_value: float | None = None,
        value_weight: float = 0.5,
        entropy_weight: Scheduled = 0.0,
        normalize_advantage: bool = True,
        target_kl: float | None = None,
        **parts: Any,
    ) -> None:
        name = type(self).__name__
        with Checks(name) as checks:
            for option, schedule in (("clip_ratio", clip_ratio), ("entropy_weight", entropy_weight)):
                with checks.gather():
                    as_schedule(name, option, schedule, low=0)
            checks.number("value_weight", value_weight, low=0)
            for option, number in (("clip_value", clip_value), ("target_kl", target_kl)):
                checks.number(option, number, low=0, above_low=True, optional=True)
        super().__init__(network, normalize_advantage=normalize_advantage, **parts)
        self.clip_ratio, self.entropy_weight = clip_ratio, entropy_weight
        self.clip_value, self.value_weight, self.target_kl = clip_value, value_weight, target_kl

    def loss(self, rows: RolloutRows) -> Loss:
        """Return the clipped surrogate objective, the value loss and the entropy bonus of each row.

        min(ratio A, clip(ratio, 1 - c, 1 + c) A) is min(ratio A, A + c |A|): where A is negative, only ratios below
        1 - c are clipped, and A + c |A| = (1 - c) A.
        """
        clip_ratio = rows.inputs["clip_ratio"]
        outputs, value = self.network(rows.obs)
        log_ratio = self.distribution.log_prob(outputs, rows.action, rows.legal) - rows.log_prob
        ratio = log_ratio.exp()
        bound = rows.advantage + clip_ratio * rows.advantage.abs()  # of ratio A
        policy_loss = -(ratio * rows.advantage).clamp(max=bound)
        value_loss = self._value_loss(value, rows)
        loss = policy_loss + self.value_weight * value_loss
        has_bonus = self.entropy_weight != Constant(0.0)
        with torch.set_grad_enabled(has_bonus and torch.is_grad_enabled()):
            entropy = self.distribution.entropy(outputs, rows.legal)
        if has_bonus:
            loss = loss - rows.inputs["entropy_weight"] * entropy
        with torch.no_grad():
            change = ratio - 1.0
            metrics = {
                "policy_loss": policy_loss,
                "value_loss": value_loss,
                "entropy": entropy,
                "approx_kl": change - log_ratio,
                "clip_share": (change.abs() > clip_ratio).to(change.dtype),
                "value_mean": value,
            }
        return Loss(loss, metrics=metrics)

    def _value_loss(self, value: Tensor, rows: RolloutRows) -> Tensor:
        """Return the squared error [B] of the value, or of the clipped value if that is larger."""
        error = (value - rows.returns).square()
        if self.clip_value is None:
            return error
        near = rows.value + (value - rows.value).clamp(-self.clip_value, self.clip_value)
        return torch.maximum(error, (near - rows.returns).square())

    def _should_stop(self, metrics: Mapping[str, Scalar]) -> bool:
        if self.target_kl is None:
            return False
        return self._learning.process_group.mean(float(metrics["approx_kl"])) > self.target_kl


@checked
class A2CPolicy(OnpolicyPolicy):
    """Advantage actor-critic (Mnih et al., 2016, synchronous): loss = -mean log pi * advantage, and the critic's.

    Args:
        network: see `OnpolicyPolicy`, which has the other parts.
        value_weight: of the critic's loss.
        entropy_weight: a schedule of the environment step.
        normalize_advantage: normalize each batch's advantages to mean 0 and standard deviation 1.

    Metrics: loss, policy_loss, value_loss, entropy, value_mean, grad_norm, lr.
    """

    _scheduled = ("entropy_weight",)
    entropy_weight = Adjustable(low=0)

    def __init__(
        self,
        network: nn.Module,
        *,
        value_weight: float = 0.5,
        entropy_weight: Scheduled = 0.01,
        normalize_advantage: bool = False,
        **parts: Any,
    ) -> None:
        with Checks(type(self).__name__) as checks:
            checks.number("value_weight", value_weight, low=0)
        super().__init__(network, normalize_advantage=normalize_advantage, **parts)
        self.value_weight = value_weight
        self.entropy_weight = entropy_weight

    def loss(self, rows: RolloutRows) -> Loss:
        """Return the policy gradient's surrogate objective, the value loss and the entropy bonus of each row."""
        outputs, value = self.network(rows.obs)
        policy_loss = -(self.distribution.log_prob(outputs, rows.action, rows.legal) * rows.advantage)
        value_loss = (value - rows.returns).square()
        entropy = self.distribution.entropy(outputs, rows.legal)
        loss = policy_loss + self.value_weight * value_loss - rows.inputs["entropy_weight"] * entropy
        columns = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy, "value_mean": value}
        return Loss(loss, metrics=columns)


@checked
class ReinforcePolicy(OnpolicyPolicy):
    """REINFORCE (Williams, 1992): loss = -mean log pi * return, without a critic.

    It needs whole episodes: give its trainer `episode_per_collect`. A truncated episode counts as if it had ended.

    Args:
        network: see `OnpolicyPolicy`; its values have no effect.
        normalize_advantage: normalize each batch's returns to mean 0 and standard deviation 1.

    Metrics: loss, entropy, return_mean, grad_norm, lr.
    """

    def __init__(self, network: nn.Module, *, normalize_advantage: bool = True, **parts: Any) -> None:
        with Checks(type(self).__name__) as checks:
            checks.require("lam" not in parts, ".lam has no effect: its advantages are whole returns, leave it out")
        super().__init__(network, normalize_advantage=normalize_advantage, **parts)

    def _advantages(
        self, reward: Tensor, value: Tensor, next_value: Tensor, terminated: Tensor, ended: Tensor
    ) -> Tensor:
        return discounted_returns(reward, torch.zeros_like(next_value), terminated, ended, gamma=self.horizon.gamma)

    def loss(self, rows: RolloutRows) -> Loss:
        """Return the policy gradient's surrogate objective of each row."""
        outputs, _ = self.network(rows.obs)
        entropy = self.distribution.entropy(outputs, rows.legal)
        metrics = {"entropy": entropy, "return_mean": rows.returns - rows.value}
        return Loss(-(self.distribution.log_prob(outputs, rows.action, rows.legal) * rows.advantage), metrics=metrics)
