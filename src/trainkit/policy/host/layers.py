"""Layers in numpy, forward and backward by hand, on views of torch's weights and gradients.

A backward pass writes the gradients of all weights over what was there. The same equations as in `networks`, `noisy`
and `critics`, which tests hold beside torch's own.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from trainkit.policy.host.products import multiply, multiply_whole, product, spares_packing, turned
from trainkit.policy.host.tape import Array, Tape
from trainkit.policy.networks import MLP
from trainkit.policy.noisy import NoisyLinear

MOST_ROWS = 4_096  # that may be passed through
_ONES = np.ones(MOST_ROWS, np.float32)
_FEW_ROWS, _WIDE = 64, 2**14  # rows, and numbers of a weight, for which columns are quicker


def relu(x: Array) -> Array:
    """Set what is negative to 0, in place."""
    return np.maximum(x, _zeros(x.shape), out=x)  # in a third of the time that one 0 for all takes


def relu_backward(slope: Array, y: Array) -> None:
    """Set a slope to 0, in place, where `relu` gave 0: its bits are multiplied by those of y, at most 1.

    As whole numbers, as `slope *= y > 0` takes half as long again: numpy makes floats of bools first. Where y is nan
    anything may come; the loss is nan, too, and refused.
    """
    bits = slope.view(np.int32)
    np.multiply(bits, np.minimum(y.view(np.int32), _ones(y.shape)), out=bits)


@lru_cache(maxsize=32)
def _zeros(shape: tuple[int, ...]) -> Array:
    zeros = np.zeros(shape, np.float32)
    zeros.setflags(write=False)
    return zeros


@lru_cache(maxsize=32)
def _ones(shape: tuple[int, ...]) -> NDArray[np.int32]:
    ones = np.ones(shape, np.int32)
    ones.setflags(write=False)
    return ones


@lru_cache(maxsize=32)
def row_numbers(n_rows: int) -> NDArray[np.intp]:
    """Return 0, 1 and so on, to be read."""
    numbers = np.arange(n_rows)
    numbers.setflags(write=False)
    return numbers


def mean(rows: Array) -> float:
    """Average up to `MOST_ROWS` numbers [B], at a sixth of `rows.mean()`'s cost."""
    return float(rows.dot(_ONES[: len(rows)])) / len(rows)


def largest(rows: Array) -> float:
    """Return the largest of numbers [B], nan where one is nan; `argmax` costs a fifth of `max`."""
    return float(rows[rows.argmax()])


def smallest(rows: Array) -> float:
    """Return the smallest of numbers [B], nan where one is nan."""
    return float(rows[rows.argmin()])


def weight_metrics(weight: Array) -> dict[str, float]:
    """Show importance weights [B] as `meter.weight_metrics` does."""
    average, square = mean(weight), float(weight.dot(weight)) / len(weight)
    return {"weight_mean": average, "effective_share": average * average / square if square else math.nan}


class HostLinear:
    """y = x W^T + b; of a slope dy of the loss: dW = dy^T x, db = sum of dy, dx = dy W.

    Of a `StackedLinear` all this is C times side by side, from the same rows [B, in] or each from its own, to
    [C, B, out].
    """

    noise_size = 0

    def __init__(self, layer: Any) -> None:
        self.weight = _numbers(layer.weight)  # [..., out, in]
        self.bias = _numbers(layer.bias).reshape(self.weight.shape[:-1])
        self.weight_slope, self.bias_slope = _slopes(layer.weight, self.weight), _slopes(layer.bias, self.bias)
        self._weight_turned = self.weight.swapaxes(-1, -2)
        self._bias_row, self._bias_column = self.bias[..., None, :], self.bias[..., None]

    def forward(self, x: Array, noise: Array | None, tape: Tape) -> Array:
        """Map rows [B, in] to [B, out] and leave on the tape what the way back needs."""
        y = product(x, self._weight_turned, tape)
        y += self._bias_row
        tape.append(x, self.weight)
        return y

    def ask(self, x: Array, noise: Array | None, tape: Tape, rows: Array | None = None) -> Array:
        """Map columns [in, B] to [out, B]; where there is a way back, `rows` are what it needs of them.

        So a weight is multiplied as it lies: with AVX-512, by 32 rows in half the time, by 64 in two thirds.
        """
        y = product(self.weight, x, tape)
        y += self._bias_column
        if rows is not None:
            tape.append(rows, self.weight)
        return y

    def write(self, slope: Array, x: Array, *_: Any) -> None:
        """Write the gradients of the weights for the slope of what came out, and what the forward pass left."""
        multiply(slope.swapaxes(-1, -2), x, self.weight_slope)
        multiply_whole(_ONES[: slope.shape[-2]], slope, self.bias_slope)  # a third of a sum's time

    def through(self, slope: Array, x: Array, weight: Array, *_: Any, tape: Tape) -> Array:
        """Return the slope of what went in."""
        return product(slope, weight, tape)


class HostNoisy(HostLinear):
    """A `NoisyLinear` under one noise for all rows: a linear layer of w + s_w * e_w, which w and s_w share."""

    def __init__(self, layer: NoisyLinear) -> None:
        super().__init__(layer)
        self.noise_size = layer.noise_size
        self.weight_sigma, self.bias_sigma = _numbers(layer.weight_sigma), _numbers(layer.bias_sigma)
        self.weight_sigma_slope = _slopes(layer.weight_sigma, self.weight)
        self.bias_sigma_slope = _slopes(layer.bias_sigma, self.bias)

    def forward(self, x: Array, noise: Array | None, tape: Tape) -> Array:
        weight, bias, *noises = self._disturbed(noise)
        y = product(x, weight.T, tape)
        y += bias
        tape.append(x, weight, *noises)
        return y

    def ask(self, x: Array, noise: Array | None, tape: Tape, rows: Array | None = None) -> Array:
        weight, bias, *noises = self._disturbed(noise)
        y = product(weight, x, tape)
        y += bias[:, None]
        if rows is not None:
            tape.append(rows, weight, *noises)
        return y

    def write(self, slope: Array, x: Array, *left: Any) -> None:
        super().write(slope, x)
        _, weight_noise, bias_noise = left
        np.multiply(self.weight_slope, weight_noise, out=self.weight_sigma_slope)
        np.multiply(self.bias_slope, bias_noise, out=self.bias_sigma_slope)

    def _disturbed(self, noise: Array | None) -> tuple[Array, Array, Array, Array]:
        """Return the weight [out, in] and the bias [out] under a noise, and the noise of each."""
        assert noise is not None, "updates of noisy networks draw some"
        n_inputs = self.weight.shape[1]
        bias_noise = noise[n_inputs:]
        weight_noise: Array = bias_noise[:, None] * noise[:n_inputs]
        weight: Array = self.weight + self.weight_sigma * weight_noise
        bias: Array = self.bias + self.bias_sigma * bias_noise
        return weight, bias, weight_noise, bias_noise


class HostMLP:
    """The passes of layers with ReLU or tanh after some of them."""

    def __init__(self, layers: Any, is_active: Sequence[bool], activation: object) -> None:
        self._layers = [(HostNoisy if type(layer) is NoisyLinear else HostLinear)(layer) for layer in layers]
        is_wide = any(math.prod(layer.weight.shape[-2:]) >= _WIDE for layer in self._layers)
        self._likes_columns = is_wide and spares_packing()
        self._is_active = is_active
        self._is_tanh = activation is torch.tanh
        self.noise_size = sum(layer.noise_size for layer in self._layers)
        self._plain_steps = [(layer, None, is_on) for layer, is_on in zip(self._layers, is_active, strict=True)]
        self._way_back = [(layer, is_on) for layer, _, is_on in reversed(self._plain_steps)]

    @classmethod
    def of(cls, mlp: MLP) -> "HostMLP":
        """Return the passes of an `MLP`."""
        return cls(mlp.layers, mlp.is_active, mlp.activation)

    def forward(self, x: Array, noise: Array | None, tape: Tape) -> Array:
        """Map rows [B, in] to [B, out], with noise [noise_size] where there is any."""
        if self._likes_columns and x.shape[-2] <= _FEW_ROWS:
            return self._forward_by_columns(x, noise, tape)
        for layer, own, is_active in self._steps(noise):
            x = layer.forward(x, own, tape)
            if is_active:
                tape.append(self._activate(x))
        return x

    def _forward_by_columns(self, x: Array, noise: Array | None, tape: Tape) -> Array:
        """Do what `forward` does by columns, and turn each layer's into rows, which the way back needs.

        At 64 rows and 128 units that takes nine tenths of the time, at 32 and 256 three quarters.
        """
        columns = x.swapaxes(-1, -2)
        for layer, own, is_active in self._steps(noise):
            columns = layer.ask(columns, own, tape, x)
            if is_active:
                self._activate(columns)
            x = turned(columns, tape)
            if is_active:
                tape.append(x)
        return x

    def ask(self, x: Array, noise: Array | None, tape: Tape) -> Array:
        """Map columns [in, B] to [out, B] as `forward` maps rows, and leave nothing for the way back."""
        for layer, own, is_active in self._steps(noise):
            x = layer.ask(x, own, tape)
            if is_active:
                self._activate(x)
        return x

    def _steps(self, noise: Array | None) -> Iterable[tuple[HostLinear, Array | None, bool]]:
        """Return each layer, its part of the noise, and whether an activation follows."""
        if noise is None:
            return self._plain_steps
        ends = itertools.accumulate(layer.noise_size for layer in self._layers)
        parts = [noise[end - layer.noise_size : end] for layer, end in zip(self._layers, ends, strict=True)]
        return zip(self._layers, parts, self._is_active, strict=True)

    def _activate(self, x: Array) -> Array:
        """Activate in place."""
        return np.tanh(x, out=x) if self._is_tanh else relu(x)

    def backward(self, slope: Array, tape: Tape, *, learns: bool = True, reaches_rows: bool = True) -> Array:
        """Take the slope [B, out] of a loss, and return that of the rows [B, in] if it is to reach them.

        The gradients of all weights are written if they learn.
        """
        for layer, is_active in self._way_back:
            if is_active:
                (y,) = tape.pop()
                if self._is_tanh:  # 1 - y^2, in the place of y, which nobody needs any more
                    np.multiply(y, y, out=y)
                    slope *= np.subtract(1.0, y, out=y)
                else:
                    relu_backward(slope, y)
            left = tape.pop()
            if learns:
                layer.write(slope, *left)
            if reaches_rows or layer is not self._layers[0]:
                slope = layer.through(slope, *left, tape=tape)
        return slope


def _numbers(parameter: nn.Parameter) -> Array:
    numbers: Array = parameter.detach().numpy()
    return numbers


def _slopes(parameter: nn.Parameter, like: Array) -> Array:
    """Return where a parameter's gradient is, in the shape of `like`; nothing for one that does not learn."""
    return np.empty(0, np.float32) if parameter.grad is None else parameter.grad.numpy().reshape(like.shape)
