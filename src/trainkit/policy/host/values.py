"""What numbers mean and how wrong they are, in numpy, with the slope of the loss by hand.

The same equations as in `values`, which tests hold side by side.
"""

from typing import Protocol

import numpy as np

from trainkit.policy.host.layers import largest, mean
from trainkit.policy.host.quantiles import quantile_huber
from trainkit.policy.host.tape import Array
from trainkit.policy.quantiles import QuantileValue
from trainkit.policy.values import CategoricalValue, ExpectedValue, ReturnValue, Value

_ZERO = np.zeros((), np.float32)  # numpy is quicker with it than with Python's


class HostValue(Protocol):
    """The twin of a `Value`, for arrays."""

    def mean(self, numbers: Array) -> Array:
        """Return the expected return [...] of numbers [..., W]."""
        ...

    def goal(self, after: Array, reward: Array, discount: Array) -> Array:
        """Return what the chosen numbers should become, [B, W]."""
        ...

    def loss(self, chosen: Array, goal: Array) -> tuple[Array, Array, Array]:
        """Return (loss [B], priority [B], slope of the loss [B, W]) of numbers [B, W]."""
        ...

    def metrics(self, chosen: Array, goal: Array, after: Array, reward: Array, discount: Array) -> dict[str, float]:
        """Return what dashboards show."""
        ...


def host_value(value: Value) -> HostValue | None:
    """Return the twin of a value, None where it has none."""
    if isinstance(value, ReturnValue) and value.rescale is not None:
        return None
    if type(value) is ExpectedValue:
        return HostExpectedValue(value)
    if type(value) is QuantileValue:
        return HostQuantileValue(value)
    return HostCategoricalValue(value) if type(value) is CategoricalValue else None


class HostExpectedValue:
    """`ExpectedValue`: the slope of huber is td clipped to +-delta, that of mse 2 td, where td is chosen - goal."""

    def __init__(self, value: ExpectedValue) -> None:
        self._of = value

    def mean(self, numbers: Array) -> Array:
        return numbers[..., 0]

    def goal(self, after: Array, reward: Array, discount: Array) -> Array:
        after = np.where(discount > _ZERO, after[:, 0], _ZERO)  # never 0 * infinity
        goal: Array = reward + discount * after
        return goal[:, None]

    def loss(self, chosen: Array, goal: Array) -> tuple[Array, Array, Array]:
        td: Array = chosen - goal
        size: Array = np.abs(td[:, 0])
        if self._of.kind == "mse":
            return size * size, size, 2.0 * td
        delta = np.float32(self._of.delta)
        near: Array = np.minimum(size, delta)
        loss: Array = near * (size - np.float32(0.5) * near)
        return loss, size, np.maximum(np.minimum(td, delta), -delta)

    def metrics(self, chosen: Array, goal: Array, after: Array, reward: Array, discount: Array) -> dict[str, float]:
        return td_metrics(np.abs(goal - chosen)[:, 0])


class HostQuantileValue:
    """`QuantileValue`, its loss as in `host.quantiles`."""

    def __init__(self, value: QuantileValue) -> None:
        self._of = value

    def mean(self, numbers: Array) -> Array:
        average: Array = np.add.reduce(numbers, axis=-1) / np.float32(numbers.shape[-1])
        return average

    def goal(self, after: Array, reward: Array, discount: Array) -> Array:
        after = np.where(discount[:, None] > _ZERO, after, _ZERO)  # never 0 * infinity
        goal: Array = reward[:, None] + discount[:, None] * after
        return goal

    def loss(self, chosen: Array, goal: Array) -> tuple[Array, Array, Array]:
        return quantile_huber(chosen, goal, self._of.fractions.numpy(), self._of.kappa)

    def metrics(self, chosen: Array, goal: Array, after: Array, reward: Array, discount: Array) -> dict[str, float]:
        return td_metrics(np.abs(self.mean(goal) - self.mean(chosen)))


class HostCategoricalValue:
    """`CategoricalValue`: the slope of the cross-entropy is softmax(chosen) - goal."""

    def __init__(self, value: CategoricalValue) -> None:
        self._width, self._low, self._high = value.width, value.v_min, value.v_max
        self._gap = (value.v_max - value.v_min) / (value.width - 1)
        self._support: Array = value.support.numpy()
        self._of = value

    def mean(self, numbers: Array) -> Array:
        mean: Array = _softmax(numbers) @ self._support
        return mean

    def goal(self, after: Array, reward: Array, discount: Array) -> Array:
        probability = self._probability(after, discount)
        place = (np.clip(self._moved(reward, discount), self._low, self._high) - self._low) / self._gap  # [B, W]
        below = np.minimum(np.floor(place), self._width - 2)  # so that the last atom is a neighbour above
        above_share = np.minimum(place - below, 1.0) * probability
        with np.errstate(invalid="ignore"):  # nan is no place: its loss is refused, not its index
            index = np.clip(below.astype(np.int64), 0, self._width - 2)
        index += np.arange(len(index))[:, None] * self._width
        goal = np.bincount(index.ravel(), (probability - above_share).ravel(), probability.size)
        goal += np.bincount(index.ravel() + 1, above_share.ravel(), probability.size)
        return goal.astype(np.float32).reshape(probability.shape)

    def loss(self, chosen: Array, goal: Array) -> tuple[Array, Array, Array]:
        shifted = chosen - np.maximum.reduce(chosen, axis=1, keepdims=True)
        power = np.exp(shifted)
        total: Array = np.add.reduce(power, axis=1, keepdims=True)
        mass: Array = np.add.reduce(goal, axis=1, keepdims=True)
        loss = (mass * np.log(total))[:, 0] - np.add.reduce(goal * shifted, axis=1)
        priority = loss
        if self._of.priority == "kl":
            entropy = np.add.reduce(goal * np.log(np.where(goal > 0.0, goal, 1.0)), axis=1)
            priority = np.maximum(loss + entropy, 0.0)
        slope: Array = power * (mass / total) - goal
        return loss, priority, slope

    def metrics(self, chosen: Array, goal: Array, after: Array, reward: Array, discount: Array) -> dict[str, float]:
        moved = self._moved(reward, discount)
        beyond = (moved < self._low - 1e-3 * self._gap) | (moved > self._high + 1e-3 * self._gap)
        clipped = float((self._probability(after, discount) * beyond).sum()) / len(moved)
        shifted = chosen - np.maximum.reduce(chosen, axis=1, keepdims=True)
        probability: Array = np.exp(shifted)
        total: Array = np.add.reduce(probability, axis=1, keepdims=True)
        probability /= total
        entropy = np.log(total)[:, 0] - np.add.reduce(probability * shifted, axis=1)
        td = goal @ self._support - probability @ self._support
        return {**td_metrics(np.abs(td)), "clipped_share": clipped, "value_entropy": mean(entropy)}

    def _probability(self, after: Array, discount: Array) -> Array:
        """Return the next value's distribution, [B, W]; where nothing follows any will do, but not nan."""
        probability: Array = np.where(discount[:, None] > 0.0, _softmax(after), np.float32(1.0 / self._width))
        return probability

    def _moved(self, reward: Array, discount: Array) -> Array:
        """Return the returns R + discount * z, [B, W], before any clipping."""
        moved: Array = reward[:, None] + discount[:, None] * self._support
        return moved


def td_metrics(size: Array) -> dict[str, float]:
    """Return the mean and the largest of absolute TD errors [B]."""
    return {"td_abs_mean": mean(size), "td_abs_max": largest(size)}


def _softmax(numbers: Array) -> Array:
    power: Array = np.exp(numbers - np.maximum.reduce(numbers, axis=-1, keepdims=True))
    power /= np.add.reduce(power, axis=-1, keepdims=True)
    return power
