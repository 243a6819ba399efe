"""Q-learning of small networks in numpy: there, torch's calls cost several times the sums they are made for.

The same update as `DQNPolicy._loss` and its differentiation, equation by equation, which tests hold side by side to
float32's last digits. For images, CUDA, other dtypes, networks, values and backups than those named here there is no
such update, and torch does it.
"""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from trainkit.data import TransitionBatch
from trainkit.policy.backups import Backup, DoubleBackup, MaxBackup
from trainkit.policy.host.acting import is_plain
from trainkit.policy.host.layers import Array, mean, weight_metrics
from trainkit.policy.host.passes import HostQNetwork
from trainkit.policy.host.preprocess import HostPreprocess
from trainkit.policy.host.tape import Tape
from trainkit.policy.host.values import HostValue, host_value
from trainkit.policy.networks import QNetwork
from trainkit.policy.values import Value
from trainkit.spaces import legal_actions
from trainkit.threads import OneThread

_MOST_ROWS = 512  # beyond, torch is as fast for networks of this width


class HostLearner:
    """Compute the loss of one batch and the gradients of a small `QNetwork`.

    Args:
        preprocess: turns observations into features.
        online: learns.
        target: says what follows.
        value: what the numbers mean, and its twin.
        backup: which next value counts.
    """

    def __init__(
        self,
        preprocess: HostPreprocess,
        online: QNetwork,
        target: QNetwork,
        value: tuple[Value, HostValue],
        backup: Backup,
    ) -> None:
        self._features = preprocess
        self._networks = online, target
        self.modules: tuple[nn.Module, ...] = (online,)  # that learn
        self._taken: list[HostQNetwork] = []  # of the two, as they were at the last update
        self._tape, self._aside = Tape(), Tape()  # of the pass that is differentiated, and of the others
        self._parts, self._value = (value[0], backup), value[1]
        self._is_double = type(backup) is DoubleBackup

    @classmethod
    def for_parts(
        cls,
        preprocess: HostPreprocess | None,
        online: nn.Module,
        target: nn.Module,
        value: Value,
        backup: Backup,
    ) -> "HostLearner | None":
        """Return the learner for parts on the CPU that all have a twin here, None for others."""
        twin = host_value(value)
        if preprocess is None or twin is None or type(backup) not in (MaxBackup, DoubleBackup):
            return None
        if type(online) is not QNetwork or type(target) is not QNetwork or not is_plain(online):
            return None
        return cls(preprocess, online, target, (value, twin), backup)

    def takes(self, batch: TransitionBatch, preprocess: object, *parts: object) -> bool:
        """Whether these are not too many rows, which become vectors; and the parts its own, and all weights learn.

        `preprocess` and `parts` are the policy's: its networks, value and backup.
        """
        if len(batch) > _MOST_ROWS or not self._features.takes(batch.obs, preprocess):
            return False
        is_ours = all(part is own for part, own in zip(parts, (*self._networks, *self._parts), strict=True))
        online, target = self._passes()
        return is_ours and online.learns_whole and target.passes_alone

    def __call__(
        self, batch: TransitionBatch, noise: Tensor | None, target_noise: Tensor | None
    ) -> tuple[float, tuple[Array, dict[str, float]]]:
        """Write the gradients where torch keeps them and return (loss, (priority [B], scalars to show)).

        `noise` and `target_noise` [1, noise_size] are those of noisy networks.
        """
        online, target = self._passes()
        noise_here = None if noise is None else noise.numpy()[0]
        noise_there = None if target_noise is None else target_noise.numpy()[0]
        value, tape, aside = self._value, self._tape.rewind(), self._aside.rewind()
        rows = np.arange(len(batch))
        if batch.action.min() < 0:  # which numpy would count from the end
            raise IndexError(f"an action must be at least 0, got {batch.action.min()}")
        with OneThread(), np.errstate(all="ignore"):  # what is not finite is refused by whoever takes the step
            numbers = online.forward(self._features(batch.obs), noise_here, legal_actions(batch.obs), tape)
            chosen = numbers[rows, batch.action]

            next_obs, next_legal = self._features(batch.next_obs), legal_actions(batch.next_obs)
            following = target.forward(next_obs, noise_there, next_legal, aside)
            judged = online.forward(next_obs, noise_here, next_legal, aside) if self._is_double else following
            after = following[rows, _best_action(value.mean(judged), next_legal)]

            goal = value.goal(after, batch.reward, batch.discount)
            loss, priority, slope = value.loss(chosen, goal)
            slopes = np.zeros_like(numbers)
            slopes[rows, batch.action] = slope * (batch.weight / len(batch))[:, None]
            online.backward(slopes, tape)
            shown = {"q_mean": mean(value.mean(chosen))}
            shown |= value.metrics(chosen, goal, after, batch.reward, batch.discount)
            shown |= weight_metrics(batch.weight)
        return float(batch.weight @ loss) / len(batch), (priority, shown)

    def _passes(self) -> list[HostQNetwork]:
        """Return the passes of both networks, taken anew where their weights are others or elsewhere."""
        if not self._taken or not all(taken.is_live for taken in self._taken):
            self._taken = [HostQNetwork(network) for network in self._networks]
        return self._taken


def _best_action(q: Array, legal: NDArray[np.bool_] | None) -> NDArray[np.intp]:
    """Return the legal action [B] of the largest value in q [B, A]."""
    best: NDArray[np.intp] = (q if legal is None else np.where(legal, q, -np.inf)).argmax(axis=1)
    return best
