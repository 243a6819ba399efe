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

from trainkit.policy.host.tape import Tape
from trainkit.policy.networks import MLP
from trainkit.policy.noisy import NoisyLinear

Array = NDArray[np.float32]

MOST_ROWS = 4_096  # that may be passed through
ZERO = np.zeros((), np.float32)  # numpy is quicker with it than with Python's
_ONES = np.ones(MOST_ROWS, np.float32)
_LARGE = 2**15  # numbers of a matrix, for which the system is asked anew each time
_FEW_ROWS, _WIDE = 64, 2**14  # rows, and numbers of a weight, for which columns are quicker
_MANY = 2**22  # multiplications, for which several threads are worth the wait for each other
_UNPACKED = 10**6  # multiplications, up to which OpenBLAS's AVX-512 kernels take matrices as they lie


def relu(x: Array) -> Array:
    """Set what is negative to 0, in place."""
    return np.maximum(x, _zeros(x.shape), out=x)  # in a third of the time that one 0 for all takes


@lru_cache(maxsize=32)
def _zeros(shape: tuple[int, ...]) -> Array:
    zeros = np.zeros(shape, np.float32)
    zeros.setflags(write=False)
    return zeros


def mean(rows: Array) -> float:
    """Average [B], at a third of `rows.mean()`'s cost."""
    return float(np.add.reduce(rows)) / len(rows)


def weight_metrics(weight: Array) -> dict[str, float]:
    """Show importance weights [B] as `meter.weight_metrics` does."""
    average, square = mean(weight), float(weight @ weight) / len(weight)
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
        self._turned = self.weight.swapaxes(-1, -2)
        self._bias_row, self._bias_column = self.bias[..., None, :], self.bias[..., None]

    def forward(self, x: Array, noise: Array | None, tape: Tape) -> Array:
        """Map rows [B, in] to [B, out] and leave on the tape what the way back needs."""
        y = _product(x, self._turned, tape)
        y += self._bias_row
        tape.append(x, self.weight)
        return y

    def ask(self, x: Array, noise: Array | None, tape: Tape, rows: Array | None = None) -> Array:
        """Map columns [in, B] to [out, B]; where there is a way back, `rows` are what it needs of them.

        So a weight is multiplied as it lies: at 128 x 128, by 32 rows in half the time, by 64 in two thirds.
        """
        y = _product(self.weight, x, tape)
        y += self._bias_column
        if rows is not None:
            tape.append(rows, self.weight)
        return y

    def write(self, slope: Array, x: Array, *_: Any) -> None:
        """Write the gradients of the weights for the slope of what came out, and what the forward pass left."""
        _multiply(slope.swapaxes(-1, -2), x, self.weight_slope)
        np.matmul(_ONES[: slope.shape[-2]], slope, out=self.bias_slope)  # a quarter of a sum's time

    def through(self, slope: Array, x: Array, weight: Array, *_: Any, tape: Tape) -> Array:
        """Return the slope of what went in."""
        return _product(slope, weight, tape)


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
        y = _product(x, weight.T, tape)
        y += bias
        tape.append(x, weight, *noises)
        return y

    def ask(self, x: Array, noise: Array | None, tape: Tape, rows: Array | None = None) -> Array:
        weight, bias, *noises = self._disturbed(noise)
        y = _product(weight, x, tape)
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
        self._is_wide = any(layer.weight.shape[-2] * layer.weight.shape[-1] >= _WIDE for layer in self._layers)
        self._is_active = is_active
        self._is_tanh = activation is torch.tanh
        self.noise_size = sum(layer.noise_size for layer in self._layers)
        self._plain_steps = [(layer, None, is_on) for layer, is_on in zip(self._layers, is_active, strict=True)]

    @classmethod
    def of(cls, mlp: MLP) -> "HostMLP":
        """Return the passes of an `MLP`."""
        return cls(mlp.layers, mlp.is_active, mlp.activation)

    def forward(self, x: Array, noise: Array | None, tape: Tape) -> Array:
        """Map rows [B, in] to [B, out], with noise [noise_size] where there is any."""
        if self._is_wide and x.shape[-2] <= _FEW_ROWS:
            return self._forward_by_columns(x, noise, tape)
        for layer, own, is_active in self._steps(noise):
            x = layer.forward(x, own, tape)
            if is_active:
                tape.append(self._activate(x))
        return x

    def _forward_by_columns(self, x: Array, noise: Array | None, tape: Tape) -> Array:
        """Do what `forward` does, in nine tenths of its time at 64 rows and 128 units, in three quarters at 32 and 256.

        Columns are quicker to multiply, and the way back needs rows: so each layer's are turned for it.
        """
        columns = x.swapaxes(-1, -2)
        for layer, own, is_active in self._steps(noise):
            columns = layer.ask(columns, own, tape, x)
            if is_active:
                self._activate(columns)
            x = np.ascontiguousarray(columns.swapaxes(-1, -2))
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
        for position in reversed(range(len(self._layers))):
            if self._is_active[position]:
                (y,) = tape.pop()
                if self._is_tanh:  # 1 - y^2, in the place of y, which nobody needs any more
                    np.multiply(y, y, out=y)
                    slope *= np.subtract(1.0, y, out=y)
                else:
                    slope *= y > ZERO
            layer, left = self._layers[position], tape.pop()
            if learns:
                layer.write(slope, *left)
            if position or reaches_rows:
                slope = layer.through(slope, *left, tape=tape)
        return slope


def _product(x: Array, y: Array, tape: Tape) -> Array:
    """Multiply matrices [..., B, K] and [..., K, N], large ones in memory that the tape keeps."""
    n_rows, width = x.shape[-2], y.shape[-1]
    room = tape.room(*(x.shape[:-2] or y.shape[:-2]), n_rows, width) if n_rows * width >= _LARGE else None
    return _multiply(x, y, room)


def _multiply(x: Array, y: Array, out: Array | None) -> Array:
    """Return a product, written to `out` where there is one: by torch where its threads have enough to do."""
    n_sums, width = x.shape[-1], y.shape[-1]
    if n_sums == 1:
        return np.multiply(x, y, out=out)  # a fifth of an outer product's time
    if x.size * width <= _UNPACKED:
        return np.matmul(x, y, out=out)
    if out is not None and out.size * n_sums >= _MANY and torch.get_num_threads() > 1:
        torch.matmul(torch.from_numpy(x), torch.from_numpy(y), out=torch.from_numpy(out))
        return out
    n_parts = _parts(x.shape[-2], n_sums * width, 32 if x.flags.c_contiguous else 8)
    if n_parts == 1 or not y.flags.c_contiguous or (out is not None and not out.flags.c_contiguous):
        return np.matmul(x, y, out=out)
    parts = x.reshape(*x.shape[:-2], n_parts, -1, n_sums)
    room = None if out is None else out.reshape(*out.shape[:-2], n_parts, -1, width)
    product = np.matmul(parts, y[..., None, :, :], out=room)
    return product.reshape(*product.shape[:-3], -1, width)


@lru_cache(maxsize=256)
def _parts(n_rows: int, row_cost: int, most: int) -> int:
    """Return in how many parts to multiply rows, so that no part is packed: five sixths of the time; 1 for whole."""
    sizes = (2**i for i in range(most.bit_length()))
    return next((n for n in sizes if n_rows % n == 0 and n_rows * row_cost <= n * _UNPACKED), 1)


def _numbers(parameter: nn.Parameter) -> Array:
    numbers: Array = parameter.detach().numpy()
    return numbers


def _slopes(parameter: nn.Parameter, like: Array) -> Array:
    """Return where a parameter's gradient is, in the shape of `like`; nothing for one that does not learn."""
    return np.empty(0, np.float32) if parameter.grad is None else parameter.grad.numpy().reshape(like.shape)
