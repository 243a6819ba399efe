"""Which next value counts, in numpy. The same equations as in `backups`, which tests hold side by side."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from trainkit.policy.backups import Backup, DoubleBackup, MaxBackup, MunchausenBackup
from trainkit.policy.host.layers import row_numbers
from trainkit.policy.host.tape import Array
from trainkit.policy.host.values import HostCategoricalValue, HostValue

Legal = NDArray[np.bool_]  # [B, A]
Ask = Callable[[Array, Legal | None], Array]  # features [B, F], what is legal -> numbers [B, A, W]


class HostBatch(NamedTuple):
    """B rows, as far as backups look."""

    obs: Array  # [B, F]
    legal: Legal | None
    action: NDArray[np.int64]  # [B]
    reward: Array  # [B]
    next_obs: Array  # [B, F]
    next_legal: Legal | None


class HostBackup(Protocol):
    """The twin of a `Backup`: return the next value's numbers [B, W] and the reward [B]."""

    def __call__(self, online: Ask, target: Ask, batch: HostBatch, value: HostValue) -> tuple[Array, Array]: ...


def host_backup(backup: Backup, value: HostValue) -> HostBackup | None:
    """Return the twin of a backup, None where it has none with such a value."""
    if type(backup) is MunchausenBackup and not isinstance(value, HostCategoricalValue):
        return HostMunchausenBackup(backup)
    known: dict[type, HostBackup] = {MaxBackup: follow_best, DoubleBackup: follow_chosen}
    return known.get(type(backup))


def follow_best(online: Ask, target: Ask, batch: HostBatch, value: HostValue) -> tuple[Array, Array]:
    """Follow the target network's best action, as `MaxBackup`."""
    numbers = target(batch.next_obs, batch.next_legal)
    return _pick(numbers, _best_action(value.mean(numbers), batch.next_legal)), batch.reward


def follow_chosen(online: Ask, target: Ask, batch: HostBatch, value: HostValue) -> tuple[Array, Array]:
    """Follow the online network's best action, as `DoubleBackup`."""
    numbers = target(batch.next_obs, batch.next_legal)
    q = value.mean(online(batch.next_obs, batch.next_legal))
    return _pick(numbers, _best_action(q, batch.next_legal)), batch.reward


class HostMunchausenBackup:
    """Follow the softmax policy and reward it for being sure, as `MunchausenBackup` where numbers are returns."""

    def __init__(self, backup: MunchausenBackup) -> None:
        self._of = backup

    def __call__(self, online: Ask, target: Ask, batch: HostBatch, value: HostValue) -> tuple[Array, Array]:
        now = self._scaled_log_policy(value.mean(target(batch.obs, batch.legal)), batch.legal)
        bonus = np.clip(now[row_numbers(len(now)), batch.action], self._of.lowest, 0.0)

        legal = batch.next_legal
        if legal is not None:
            legal = legal | ~legal.any(axis=1, keepdims=True)  # where an episode has ended none may be
        numbers = target(batch.next_obs, batch.next_legal)
        scaled = self._scaled_log_policy(value.mean(numbers), legal)  # [B, A]
        soft = numbers - scaled[:, :, None]
        if legal is not None:
            soft[~legal] = 0.0  # 0 * infinity else
        probability = np.exp(scaled / np.float32(self._of.temperature))[:, :, None]
        after: Array = np.add.reduce(probability * soft, axis=1)
        return after, batch.reward + np.float32(self._of.alpha) * bonus

    def _scaled_log_policy(self, q: Array, legal: Legal | None) -> Array:
        """Return temperature * log pi, [B, A]."""
        temperature = np.float32(self._of.temperature)
        if legal is not None:
            q = np.where(legal, q, np.float32(-np.inf))
        shifted = (q - np.maximum.reduce(q, axis=1, keepdims=True)) / temperature
        scaled: Array = temperature * (shifted - np.log(np.add.reduce(np.exp(shifted), axis=1, keepdims=True)))
        return scaled


def _best_action(q: Array, legal: Legal | None) -> NDArray[np.intp]:
    """Return the legal action [B] of the largest value in q [B, A]."""
    best: NDArray[np.intp] = (q if legal is None else np.where(legal, q, -np.inf)).argmax(axis=1)
    return best


def _pick(numbers: Array, action: NDArray[np.intp]) -> Array:
    """Return the numbers [B, W] of one action [B] per row of [B, A, W]."""
    picked: Array = numbers[row_numbers(len(numbers)), action]
    return picked
