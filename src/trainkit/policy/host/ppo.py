"""PPO of small networks in numpy: there, torch's calls cost several times the sums they are made for.

The same update as `PPOPolicy._loss` and its differentiation, equation by equation, which tests hold side by side to
float32's last digits.
"""

import math
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trainkit.policy.actor_critic import ActorCriticNetwork
from trainkit.policy.distributions import Categorical, Distribution, Gaussian
from trainkit.policy.host.acting import is_plain
from trainkit.policy.host.layers import MOST_ROWS, Array, HostActorCriticNetwork, Tape, learns_alone, mean
from trainkit.policy.on_policy import RolloutRows
from trainkit.threads import OneThread

_HALF_LOG_2_PI = 0.5 * math.log(2 * math.pi)


class HostFamily(Protocol):
    """What a family of distributions says of actions taken, and the slopes of that."""

    def forward(
        self, numbers: Array, action: NDArray[Any], legal: NDArray[np.bool_] | None, tape: Tape
    ) -> tuple[Array, Array]:
        """Return (log_prob [B], entropy [B]) of numbers [B, width]."""
        ...

    def backward(self, of_log_prob: Array, of_entropy: float, tape: Tape) -> Array:
        """Return the slope [B, width] of the numbers for the slopes [B] and of each entropy; write all others."""
        ...


class HostCategoricalFamily:
    """`Categorical`: d log p(a) = 1(a) - p, d entropy = -p (log p + entropy)."""

    def forward(
        self, numbers: Array, action: NDArray[Any], legal: NDArray[np.bool_] | None, tape: Tape
    ) -> tuple[Array, Array]:
        logits = numbers if legal is None else np.where(legal, numbers, np.float32(-np.inf))
        logits = logits - np.maximum.reduce(logits, axis=1, keepdims=True)
        power = np.exp(logits)
        total = np.add.reduce(power, axis=1, keepdims=True)
        p, log_p = power / total, logits - np.log(total)
        chosen = np.arange(len(action)), action
        log_prob: Array = log_p[chosen]
        if legal is not None:
            log_p = np.where(legal, log_p, np.float32(0.0))  # never 0 * infinity
        entropy: Array = -np.add.reduce(p * log_p, axis=1)
        tape.append((chosen, p, log_p, entropy))
        return log_prob, entropy

    def backward(self, of_log_prob: Array, of_entropy: float, tape: Tape) -> Array:
        chosen, p, log_p, entropy = tape.pop()
        slope: Array = p * -of_log_prob[:, None]
        slope[chosen] += of_log_prob
        if of_entropy:
            slope -= np.float32(of_entropy) * p * (log_p + entropy[:, None])
        return slope


class HostGaussianFamily:
    """`Gaussian`: d log p = z / std for the mean, z^2 - 1 for log std; d entropy = 1 for log std."""

    def __init__(self, family: Gaussian) -> None:
        self._log_std: Array = family.log_std.detach().numpy()
        gradient = family.log_std.grad
        assert gradient is not None, "there is room for gradients by now"
        self._slope: Array = gradient.numpy()

    def forward(
        self, numbers: Array, action: NDArray[Any], legal: NDArray[np.bool_] | None, tape: Tape
    ) -> tuple[Array, Array]:
        std = np.exp(self._log_std)
        z = (action.reshape(numbers.shape).astype(np.float32) - numbers) / std
        log_prob: Array = -(np.float32(0.5) * z * z + (self._log_std + np.float32(_HALF_LOG_2_PI))).sum(axis=1)
        entropy = (self._log_std + np.float32(_HALF_LOG_2_PI + 0.5)).sum()
        tape.append((z, std))
        return log_prob, np.full(len(numbers), entropy)

    def backward(self, of_log_prob: Array, of_entropy: float, tape: Tape) -> Array:
        z, std = tape.pop()
        slope: Array = of_log_prob[:, None] * z
        self._slope[:] = (slope * z).sum(axis=0) - of_log_prob.sum() + of_entropy * len(z)
        slope /= std
        return slope


class HostPPO:
    """Compute PPO's loss of one batch and the gradients of a small `ActorCriticNetwork`.

    Args:
        network: learns.
        distribution: of actions, whose own parameters learn, too.
    """

    def __init__(self, network: ActorCriticNetwork, distribution: Categorical | Gaussian) -> None:
        self._network, self._distribution = network, distribution
        self._taken: HostActorCriticNetwork | None = None  # as it was at the last update
        self.modules: tuple[nn.Module, ...] = network, distribution  # that learn

    @classmethod
    def for_parts(cls, network: nn.Module, distribution: Distribution, device: torch.device) -> "HostPPO | None":
        """Return the learner for parts that all have a twin here, None for others."""
        if device.type != "cpu" or type(network) is not ActorCriticNetwork or not is_plain(network):
            return None
        if type(distribution) is Categorical or type(distribution) is Gaussian:
            return cls(network, distribution)
        return None

    def takes(self, features: object, network: object, distribution: object) -> bool:
        """Whether these are not too many rows of one float vector, the parts its own, and all weights learn."""
        if not isinstance(features, Tensor) or features.dtype != torch.float32:
            return False
        if features.dim() != 2 or len(features) > MOST_ROWS:
            return False
        if network is not self._network or distribution is not self._distribution:
            return False
        return self._network_passes().learns_whole and all(map(learns_alone, self._distribution.parameters()))

    def __call__(
        self,
        rows: RolloutRows,
        *,
        clip_ratio: float,
        clip_value: float | None,
        value_weight: float,
        entropy_weight: float,
    ) -> tuple[float, dict[str, float]]:
        """Write the gradients where torch keeps them and return (loss, scalars to show)."""
        network, family = self._network_passes(), self._family()
        here = _arrays(rows)
        tape, n_rows, advantage = Tape(), len(here.action), here.advantage
        with OneThread(), np.errstate(all="ignore"):  # what is not finite is refused by whoever takes the step
            numbers, value = network.forward(here.features, tape)
            log_prob, entropy = family.forward(numbers, here.action, here.legal, tape)
            log_ratio = log_prob - here.log_prob
            ratio = np.exp(log_ratio)
            surrogate = ratio * advantage
            bound = advantage + np.float32(clip_ratio) * np.abs(advantage)  # beyond it lies what the clip takes away
            policy_loss = -mean(np.minimum(surrogate, bound))
            value_loss, of_value = _judge(value, here, clip_value)

            of_log_prob = np.where(surrogate <= bound, surrogate / -n_rows, np.float32(0.0))
            of_numbers = family.backward(of_log_prob, -entropy_weight / n_rows, tape)
            network.backward(of_numbers, of_value * np.float32(value_weight), tape)
            change = ratio - 1.0
            shown = {
                "policy_loss": policy_loss,
                "value_loss": value_loss,
                "entropy": mean(entropy),
                "approx_kl": mean(change - log_ratio),
                "clip_share": np.count_nonzero(np.abs(change) > clip_ratio) / n_rows,
                "value_mean": mean(value),
            }
        return policy_loss + value_weight * value_loss - entropy_weight * shown["entropy"], shown

    def _network_passes(self) -> HostActorCriticNetwork:
        """Return the passes of the network, taken anew where its weights are others or elsewhere."""
        if self._taken is None or not self._taken.is_live:
            self._taken = HostActorCriticNetwork(self._network)
        return self._taken

    def _family(self) -> HostFamily:
        """Return the twin of the distribution, whose gradients are where they were made room for."""
        if isinstance(self._distribution, Gaussian):
            return HostGaussianFamily(self._distribution)
        return HostCategoricalFamily()


def _judge(value: Array, rows: Any, clip_value: float | None) -> tuple[float, Array]:
    """Return the critic's loss, of the clipped value where that is worse, and its slope [B]."""
    error = value - rows.returns
    square = error * error
    slope: Array = error * np.float32(2.0 / len(error))
    if clip_value is not None:
        move = value - rows.value
        near = rows.value + np.clip(move, -clip_value, clip_value) - rows.returns
        slope *= (np.abs(move) <= clip_value) | (square > near * near)  # a clipped value does not move
        square = np.maximum(square, near * near)
    return mean(square), slope


def _arrays(rows: RolloutRows) -> Any:
    """Return the same rows in arrays, which share their memory."""
    return RolloutRows._make(None if column is None else column.numpy() for column in rows)
