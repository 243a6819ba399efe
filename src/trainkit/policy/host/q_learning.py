"""Q-learning of small networks in numpy: there, torch's calls cost several times the sums they are made for.

The same update as `DQNPolicy._loss` and its differentiation, equation by equation, which tests hold side by side to
float32's last digits. For images, CUDA, other dtypes, networks, values and backups than those named here there is no
such update, and torch does it.
"""

import numpy as np
from torch import Tensor, nn

from trainkit.arrays import any_true
from trainkit.data import TransitionBatch
from trainkit.policy.backups import Backup
from trainkit.policy.host.acting import is_plain
from trainkit.policy.host.backups import HostBackup, HostBatch, host_backup
from trainkit.policy.host.layers import largest, mean, row_numbers, smallest, weight_metrics
from trainkit.policy.host.passes import HostQNetwork
from trainkit.policy.host.preprocess import HostPreprocess
from trainkit.policy.host.tape import Array, Tape
from trainkit.policy.host.values import HostValue, host_value
from trainkit.policy.networks import QNetwork
from trainkit.policy.values import Value
from trainkit.spaces import legal_actions
from trainkit.threads import OneThread

_MOST_ROWS = 512  # beyond, torch is as fast for networks of this width
_FIRST = np.zeros((), np.int64)  # action there is


class HostLearner:
    """Compute the loss of one batch and the gradients of a small `QNetwork`.

    Args:
        preprocess: turns observations into features.
        online: learns.
        target: says what follows.
        value: what the numbers mean, and its twin.
        backup: which next value counts, and its twin.
    """

    def __init__(
        self,
        preprocess: HostPreprocess,
        online: QNetwork,
        target: QNetwork,
        value: tuple[Value, HostValue],
        backup: tuple[Backup, HostBackup],
    ) -> None:
        self._features = preprocess
        self._networks = online, target
        self._parts = online, target, value[0], backup[0]
        self.modules: tuple[nn.Module, ...] = (online,)  # that learn
        self._taken: list[HostQNetwork] = []  # of the two, as they were at the last update
        self._tape, self._aside = Tape(), Tape()  # of the pass that is differentiated, and of the others
        self._value, self._backup = value[1], backup[1]

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
        value_here = host_value(value)
        backup_here = None if value_here is None else host_backup(backup, value_here)
        if preprocess is None or value_here is None or backup_here is None:
            return None
        if type(online) is not QNetwork or type(target) is not QNetwork or not is_plain(online):
            return None
        return cls(preprocess, online, target, (value, value_here), (backup, backup_here))

    def takes(self, batch: TransitionBatch, preprocess: object, *parts: object) -> bool:
        """Whether these are not too many rows, which become vectors; and the parts its own, and all weights learn.

        `preprocess` and `parts` are the policy's: its networks, value and backup.
        """
        if len(batch) > _MOST_ROWS or not self._features.takes(batch.obs, preprocess):
            return False
        if not (self._taken and self._taken[0].is_live and self._taken[1].is_live):
            self._taken = self._take()
        online, target = self._taken
        is_ours = all(part is own for part, own in zip(parts, self._parts, strict=True))
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
        rows = row_numbers(len(batch))
        if any_true(batch.action < _FIRST):  # which numpy would count from the end
            raise IndexError(f"an action must be at least 0, got {batch.action.min()}")
        with OneThread(), np.errstate(all="ignore"):  # what is not finite is refused by whoever takes the step
            obs, legal = self._features(batch.obs), legal_actions(batch.obs)
            next_obs, next_legal = self._features(batch.next_obs), legal_actions(batch.next_obs)
            discount = batch.discount
            if next_legal is not None:
                discount = discount * next_legal.any(axis=1)  # without a legal action nothing follows
            numbers = online.forward(obs, noise_here, legal, tape)
            chosen = numbers[rows, batch.action]
            here = HostBatch(obs, legal, batch.action, batch.reward, next_obs, next_legal)
            after, reward = self._backup(
                lambda features, legal: online.ask(features, noise_here, legal, aside),
                lambda features, legal: target.ask(features, noise_there, legal, aside),
                here,
                value,
            )
            goal = value.goal(after, reward, discount)
            loss, priority, slope = value.loss(chosen, goal)
            slopes = np.zeros(numbers.shape, np.float32)
            slopes[rows, batch.action] = slope * (batch.weight / len(batch))[:, None]
            online.backward(slopes, tape)
            q = value.mean(chosen)
            shown = {"q_mean": mean(q), "q_max": largest(q), "q_min": smallest(q)}
            shown |= value.metrics(chosen, goal, after, reward, discount)
            shown |= weight_metrics(batch.weight)
        return float(batch.weight.dot(loss)) / len(batch), (priority, shown)

    def _passes(self) -> list[HostQNetwork]:
        """Return the passes that `takes` looked at, taken anew where the step has moved its weights since."""
        if not self._taken or not self._taken[0].is_in_place:
            self._taken = self._take()
        return self._taken

    def _take(self) -> list[HostQNetwork]:
        return [HostQNetwork(network) for network in self._networks]
