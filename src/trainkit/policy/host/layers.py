"""Small networks in numpy, forward and backward by hand, on views of torch's weights and gradients.

A backward pass writes the gradients of all weights over what was there. The same equations as in `networks` and
`noisy`, which tests hold beside torch's own.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from trainkit.policy.actor_critic import ActorCriticNetwork
from trainkit.policy.host.acting import is_plain
from trainkit.policy.networks import MLP, QNetwork
from trainkit.policy.noisy import NoisyLinear
from trainkit.policy.segments import parts_of

Array = NDArray[np.float32]
Tape = list[tuple[Any, ...]]  # what each layer's forward pass leaves; its backward pass takes it off the end

MOST_ROWS = 4_096  # that may be passed through
_ONES = np.ones(MOST_ROWS, np.float32)


def mean(rows: Array) -> float:
    """Average [B], at a third of `rows.mean()`'s cost."""
    return float(np.add.reduce(rows)) / len(rows)


class HostLinear:
    """y = x W^T + b; of a slope dy of the loss: dW = dy^T x, db = sum of dy, dx = dy W."""

    noise_size = 0

    def __init__(self, layer: Any) -> None:
        self.weight, self.bias = _numbers(layer.weight), _numbers(layer.bias)
        self.weight_slope, self.bias_slope = _slopes(layer.weight), _slopes(layer.bias)

    def forward(self, x: Array, noise: Array | None, tape: Tape) -> Array:
        y: Array = x @ self.weight.T
        y += self.bias
        tape.append((x,))
        return y

    def backward(self, slope: Array, tape: Tape) -> Array:
        (x,) = tape.pop()
        return self._differentiate(slope, x, self.weight)

    def _differentiate(self, slope: Array, x: Array, weight: Array) -> Array:
        np.matmul(slope.T, x, out=self.weight_slope)
        np.matmul(_ONES[: len(slope)], slope, out=self.bias_slope)  # a quarter of a sum's time
        dx: Array = slope @ weight if len(weight) > 1 else slope * weight  # a fifth of an outer product's
        return dx


class HostNoisy(HostLinear):
    """A `NoisyLinear` under one noise for all rows: a linear layer of w + s_w * e_w, which w and s_w share."""

    def __init__(self, layer: NoisyLinear) -> None:
        super().__init__(layer)
        self.noise_size = layer.noise_size
        self.weight_sigma, self.bias_sigma = _numbers(layer.weight_sigma), _numbers(layer.bias_sigma)
        self.weight_sigma_slope, self.bias_sigma_slope = _slopes(layer.weight_sigma), _slopes(layer.bias_sigma)

    def forward(self, x: Array, noise: Array | None, tape: Tape) -> Array:
        assert noise is not None, "updates of noisy networks draw some"
        bias_noise = noise[x.shape[1] :]
        weight_noise: Array = bias_noise[:, None] * noise[: x.shape[1]]
        weight: Array = self.weight + self.weight_sigma * weight_noise
        y: Array = x @ weight.T
        y += self.bias + self.bias_sigma * bias_noise
        tape.append((x, weight, weight_noise, bias_noise))
        return y

    def backward(self, slope: Array, tape: Tape) -> Array:
        x, weight, weight_noise, bias_noise = tape.pop()
        dx = self._differentiate(slope, x, weight)
        np.multiply(self.weight_slope, weight_noise, out=self.weight_sigma_slope)
        np.multiply(self.bias_slope, bias_noise, out=self.bias_sigma_slope)
        return dx


class HostMLP:
    """The passes of an `MLP` of ReLU or tanh."""

    def __init__(self, mlp: MLP) -> None:
        layers: Any = mlp.layers
        self._layers = [HostNoisy(layer) if isinstance(layer, NoisyLinear) else HostLinear(layer) for layer in layers]
        self._is_active = mlp.is_active
        self._is_relu = mlp.activation is torch.relu
        self.noise_size = mlp.noise_size

    def forward(self, x: Array, noise: Array | None, tape: Tape) -> Array:
        """Map rows [B, in] to [B, out], with noise [noise_size] where there is any."""
        begin = 0
        for layer, is_active in zip(self._layers, self._is_active, strict=True):
            end = begin + layer.noise_size
            x = layer.forward(x, None if noise is None else noise[begin:end], tape)
            begin = end
            if is_active:
                x = np.maximum(x, 0.0, out=x) if self._is_relu else np.tanh(x, out=x)
                tape.append((x,))
        return x

    def backward(self, slope: Array, tape: Tape) -> Array:
        """Take the slope [B, out] of a loss, write those of all weights, and return the rows' own [B, in]."""
        for layer, is_active in zip(reversed(self._layers), reversed(self._is_active), strict=True):
            if is_active:
                (y,) = tape.pop()
                if self._is_relu:
                    slope *= y > 0.0
                else:  # 1 - y^2, in the place of y, which nobody needs any more
                    np.multiply(y, y, out=y)
                    slope *= np.subtract(1.0, y, out=y)
            slope = layer.backward(slope, tape)
        return slope


class HostPasses:
    """The passes of a network of one vector per row, as its weights and gradients lie now."""

    def __init__(self, network: nn.Module) -> None:
        mlps = [part for part in network.modules() if isinstance(part, MLP)]
        self._network, self._parts = (
            network,
            [*parts_of(network), *((vars(m), "activation", m.activation) for m in mlps)],
        )
        self._places = [(parameter, parameter.data_ptr(), parameter.grad) for parameter in network.parameters()]
        in_all = sum(1 for _ in network.named_parameters(remove_duplicate=False))  # of one in two places, both
        self.is_plain = is_plain(network) and in_all == len(self._places)

    @property
    def is_live(self) -> bool:
        """Whether modules, weights and gradients still are those that were taken, where they were."""
        for table, name, child in self._parts:
            if table.get(name) is not child:
                return False
        for parameter, address, gradient in self._places:
            if parameter.data_ptr() != address or parameter.grad is not gradient:
                return False
        return True

    @property
    def learns_whole(self) -> bool:
        """Whether the network is plain, every weight learns, and nobody waits for a pass or a gradient."""
        return self.is_plain and not _is_watched(self._network) and all(learns_alone(p) for p, _, _ in self._places)


def learns_alone(parameter: nn.Parameter) -> bool:
    """Whether a weight learns, and nobody else waits for its gradient."""
    hooks = parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None)
    return parameter.requires_grad and not hooks


def _is_watched(network: nn.Module) -> bool:
    """Whether somebody waits for the passes of a network, whose parts are called by name."""
    return bool(
        network._forward_hooks or network._forward_pre_hooks or network._backward_hooks or network._backward_pre_hooks
    )


class HostQNetwork(HostPasses):
    """The passes of a `QNetwork`, where it is plain."""

    def __init__(self, network: QNetwork) -> None:
        super().__init__(network)
        if not self.is_plain:
            return
        heads = network.heads
        self._n_actions, self._width = heads.n_actions, heads.width
        self._body, self._advantage = HostMLP(network.encoder.body), HostMLP(heads.advantage)
        self._state_value = None if heads.state_value is None else HostMLP(heads.state_value)

    def forward(self, x: Array, noise: Array | None, legal: NDArray[np.bool_] | None, tape: Tape) -> Array:
        """Return the numbers [B, A, W] of rows [B, F]."""
        x = self._body.forward(x, None, tape)
        split = self._advantage.noise_size
        advantage = self._advantage.forward(x, None if noise is None else noise[:split], tape)
        advantage = advantage.reshape(-1, self._n_actions, self._width)
        if self._state_value is None:
            return advantage
        state_value = self._state_value.forward(x, None if noise is None else noise[split:], tape)
        share = _shares(legal, self._n_actions)
        tape.append((share,))
        numbers: Array = advantage - np.add.reduce(advantage * share, axis=1, keepdims=True)
        numbers += state_value[:, None]
        return numbers

    def backward(self, slope: Array, tape: Tape) -> None:
        """Write the gradients of all weights for the slope [B, A, W] of a loss."""
        n_rows = len(slope)
        if self._state_value is None:
            dx = self._advantage.backward(slope.reshape(n_rows, -1), tape)
        else:
            (share,) = tape.pop()
            of_all: Array = np.add.reduce(slope, axis=1)
            dx = self._state_value.backward(of_all.copy(), tape)
            dx += self._advantage.backward((slope - share * of_all[:, None]).reshape(n_rows, -1), tape)
        self._body.backward(dx, tape)


class HostActorCriticNetwork(HostPasses):
    """The passes of an `ActorCriticNetwork`, where it is plain."""

    def __init__(self, network: ActorCriticNetwork) -> None:
        super().__init__(network)
        if not self.is_plain:
            return
        self._actor_torso = HostMLP(network.actor_torso.body)
        self._critic_torso = None if network.critic_torso is None else HostMLP(network.critic_torso.body)
        self._actor, self._critic = HostMLP(network.actor), HostMLP(network.critic)

    def forward(self, features: Array, tape: Tape) -> tuple[Array, Array]:
        """Return the numbers [B, width] and values [B] of rows [B, F]."""
        x = self._actor_torso.forward(features, None, tape)
        numbers = self._actor.forward(x, None, tape)
        y = x if self._critic_torso is None else self._critic_torso.forward(features, None, tape)
        return numbers, self._critic.forward(y, None, tape)[:, 0]

    def backward(self, of_numbers: Array, of_value: Array, tape: Tape) -> None:
        """Write the gradients of all weights for the slopes [B, width] and [B] of a loss."""
        dy = self._critic.backward(of_value[:, None], tape)
        if self._critic_torso is not None:
            self._critic_torso.backward(dy, tape)
        dx = self._actor.backward(of_numbers, tape)
        if self._critic_torso is None:
            dx += dy
        self._actor_torso.backward(dx, tape)


def _shares(legal: NDArray[np.bool_] | None, n_actions: int) -> Array:
    """Return how much each action counts in the mean over the legal ones, [B, A, 1] or [1, 1, 1]."""
    if legal is None:
        return np.full((1, 1, 1), 1.0 / n_actions, np.float32)
    counts = legal[:, :, None].astype(np.float32)
    n_legal: Array = np.add.reduce(counts, axis=1, keepdims=True)
    share: Array = counts / n_legal.clip(min=1.0)
    return share


def _numbers(parameter: nn.Parameter) -> Array:
    numbers: Array = parameter.detach().numpy()
    return numbers


def _slopes(parameter: nn.Parameter) -> Array:
    """Return where a parameter's gradient is, nothing for one that does not learn."""
    return np.empty(0, np.float32) if parameter.grad is None else parameter.grad.numpy()
