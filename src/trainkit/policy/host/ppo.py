"""PPO of small networks in numpy: there, torch's calls cost several times the sums they are made for.

The same update as `PPOPolicy._loss` and its differentiation, equation by equation, which tests hold side by side to
float32's last digits.
"""

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from trainkit.policy.actor_critic import ActorCriticNetwork
from trainkit.policy.distributions import Categorical, Distribution, Gaussian
from trainkit.policy.host.acting import is_plain
from trainkit.policy.host.layers import MOST_ROWS, mean
from trainkit.policy.host.passes import HostActorCriticNetwork
from trainkit.policy.host.rows import HostRows
from trainkit.policy.host.tape import Array, Tape
from trainkit.policy.host.watchers import learns_alone
from trainkit.policy.squashed import HALF_LOG_2_PI
from trainkit.threads import OneThread


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
        logits = numbers.T.copy()  # [A, B], where sums over actions take a fifth of the time
        if legal is not None:
            logits[~legal.T] = -np.inf
        logits -= np.maximum.reduce(logits, axis=0)
        power = np.exp(logits)
        total = np.add.reduce(power, axis=0)
        p, log_p = power / total, logits - np.log(total)
        chosen = action, np.arange(len(action))
        log_prob: Array = log_p[chosen]
        if legal is not None:
            log_p[~legal.T] = 0.0  # never 0 * infinity
        entropy: Array = -np.add.reduce(p * log_p, axis=0)
        tape.append(chosen, p, log_p, entropy)
        return log_prob, entropy

    def backward(self, of_log_prob: Array, of_entropy: float, tape: Tape) -> Array:
        chosen, p, log_p, entropy = tape.pop()
        slope: Array = p * -of_log_prob
        slope[chosen] += of_log_prob
        if of_entropy:
            slope -= np.float32(of_entropy) * p * (log_p + entropy)
        return slope.T


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
        log_prob: Array = -(np.float32(0.5) * z * z + (self._log_std + np.float32(HALF_LOG_2_PI))).sum(axis=1)
        entropy = (self._log_std + np.float32(HALF_LOG_2_PI + 0.5)).sum()
        tape.append(z, std)
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
        self._tape = Tape()
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

    def takes(self, n_rows: int, network: object, distribution: object) -> bool:
        """Whether these are not too many rows, the parts its own, and all weights learn."""
        if n_rows > MOST_ROWS:
            return False
        if network is not self._network or distribution is not self._distribution:
            return False
        if self._taken is None or not self._taken.is_live:
            self._taken = HostActorCriticNetwork(self._network)
        return self._taken.learns_whole and all(map(learns_alone, self._distribution.parameters()))

    def __call__(
        self,
        rows: HostRows,
        *,
        clip_ratio: float,
        clip_value: float | None,
        value_weight: float,
        entropy_weight: float,
    ) -> tuple[float, dict[str, float]]:
        """Write the gradients where torch keeps them and return (loss, scalars to show)."""
        network, family = self._passes(), self._family()
        tape, n_rows, advantage = self._tape.rewind(), len(rows.action), rows.advantage
        with OneThread(), np.errstate(all="ignore"):  # what is not finite is refused by whoever takes the step
            numbers, value = network.forward(rows.features, tape)
            log_prob, entropy = family.forward(numbers, rows.action, rows.legal, tape)
            log_ratio = log_prob - rows.log_prob
            ratio = np.exp(log_ratio)
            surrogate = ratio * advantage
            bound = advantage + np.float32(clip_ratio) * np.abs(advantage)  # beyond it lies what the clip takes away
            policy_loss = -mean(np.minimum(surrogate, bound))
            value_loss, of_value = _judge(value, rows, clip_value)

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

    def _passes(self) -> HostActorCriticNetwork:
        """Return the passes that `takes` looked at, taken anew where the step has moved the weights since."""
        if self._taken is None or not self._taken.is_in_place:
            self._taken = HostActorCriticNetwork(self._network)
        return self._taken

    def _family(self) -> HostFamily:
        """Return the twin of the distribution, whose gradients are where they were made room for."""
        if isinstance(self._distribution, Gaussian):
            return HostGaussianFamily(self._distribution)
        return HostCategoricalFamily()


def _judge(value: Array, rows: HostRows, clip_value: float | None) -> tuple[float, Array]:
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
