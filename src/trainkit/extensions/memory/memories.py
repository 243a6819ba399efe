"""Memories: recurrent modules between a network's encoder and its heads.

A state is one vector per row, float32 [S], whatever it is made of, so that buffers store it, policies carry it from
step to step and checkpoints keep it without knowing which memory it is of. It is 0 where an episode starts.
"""

import contextlib
import math
import re
import warnings
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainkit.core.errors import Checks, ConfigError
from trainkit.core.names import did_you_mean
from trainkit.core.signatures import checked
from trainkit.nets.encoders import Recurrent
from trainkit.nets.weights import draw_uniform, new_linear


class Memory(nn.Module):
    """Base class of memories: to write your own, call `super().__init__` and define `step`.

    Args:
        n_features: F, of outputs.
        state_size: S, of states.
    """

    def __init__(self, n_features: int, state_size: int) -> None:
        """Store the sizes of outputs and states."""
        super().__init__()
        self.n_features, self.state_size = n_features, state_size

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs [B, F] and the next states [B, S] of inputs [B, I] and states [B, S]."""
        raise TypeError(f"{type(self).__name__} must define step")

    def unroll(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs [T, B, F] and the last states [B, S] of inputs [T, B, I]."""
        outputs = []
        for one in x.unbind(0):
            output, state = self.step(one, state)
            outputs.append(output)
        return torch.stack(outputs), state

    def forward(self, x: Tensor, state: Tensor, starts: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Unroll over inputs [T, B, I]; before rows that `starts` [T, B] marks the state is 0."""
        if starts is None:
            return self.unroll(x, state)
        outputs = []
        for one, start in zip(x.unbind(0), starts.unbind(0), strict=True):
            output, state = self.step(one, reset(state, start))
            outputs.append(output)
        return torch.stack(outputs), state


_COPIED_WEIGHTS = "RNN module weights are not part of single contiguous chunk of memory"
_IGNORED = ("ignore", re.compile(_COPIED_WEIGHTS, re.IGNORECASE), UserWarning, None, 0)  # as `warnings` keeps it


def ignore_copied_weights() -> None:
    """Let Python ignore torch's warning that it copies the weights of an LSTM in every call, from now on.

    A filter, as `warnings.catch_warnings` around each call would be slow and change the filters of other threads. It is
    the first one, even where filters were added or replaced since the last call.
    """
    if not warnings.filters or warnings.filters[0] != _IGNORED:
        warnings.filterwarnings("ignore", _COPIED_WEIGHTS, UserWarning)


def reset(state: Tensor, starts: Tensor) -> Tensor:
    """Return states [B, S], 0 where an episode starts [B]."""
    return state.masked_fill(starts.unsqueeze(1), 0.0)


class _GatedMemory(Memory):
    """Base of LSTM and GRU: `n_gates` products of inputs and of outputs; parameters are torch's, by other names."""

    input_weight: Tensor
    hidden_weight: Tensor
    input_bias: Tensor
    hidden_bias: Tensor

    def __init__(self, n_inputs: int, n_features: int | None, n_gates: int, n_vectors: int) -> None:
        size = n_inputs if n_features is None else n_features
        with Checks(type(self).__name__) as checks:
            checks.integer("n_inputs", n_inputs, low=1)
            checks.integer("n_features", size, low=1)
        super().__init__(size, n_vectors * size)
        shapes = (n_gates * size, n_inputs), (n_gates * size, size), (n_gates * size,), (n_gates * size,)
        names = "input_weight", "hidden_weight", "input_bias", "hidden_bias"
        for name, shape in zip(names, shapes, strict=True):
            self.register_parameter(name, nn.Parameter(torch.empty(shape, dtype=torch.float32)))
        self.draw_parameters(torch.Generator().manual_seed(0))

    def draw_parameters(self, generator: torch.Generator) -> None:
        """Initialize all parameters uniformly in +-1/sqrt(F), as torch does."""
        for parameter in self.parameters():
            draw_uniform(parameter, 1.0 / math.sqrt(self.n_features), generator)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Unroll over one step."""
        outputs, state = self.unroll(x.unsqueeze(0), state)
        return outputs.squeeze(0), state


@checked
class LSTM(_GatedMemory):
    """Long short-term memory (Hochreiter and Schmidhuber, 1997); the state is the output and the cell, S = 2 F.

    Whole sequences are one operation of torch. On CUDA, cuDNN reads weights from one block of memory, where moving the
    module there puts them. Those that are elsewhere, as in `precision="bf16"`, torch copies to a block in every call;
    its warning of that is ignored, as results do not depend on it.

    Args:
        n_inputs: I.
        n_features: F; default: I.
        n_steps: initialize it to remember what was seen up to this many steps before: cells decay over U(1, n_steps)
            steps and hardly take what the input weights, 8 times as large, do not let in (Tallec and Ollivier, 2018,
            equation 16, without the weights). None initializes as torch does, which remembers some 10 steps at first.
    """

    def __init__(self, n_inputs: int, n_features: int | None = None, *, n_steps: int | None = None) -> None:
        with Checks("LSTM") as checks:
            checks.integer("n_steps", n_steps, low=2, optional=True)
        self._n_steps = n_steps
        super().__init__(n_inputs, n_features, n_gates=4, n_vectors=2)

    def draw_parameters(self, generator: torch.Generator) -> None:
        """Initialize all parameters uniformly in +-1/sqrt(F), as torch does, or for `n_steps`."""
        super().draw_parameters(generator)
        if self._n_steps is None:
            return
        size = self.n_features
        with torch.no_grad():
            logarithm = torch.empty(size).uniform_(1.0, self._n_steps, generator=generator).log()
            self.input_weight.mul_(8.0)
            self.hidden_bias.zero_()
            self.input_bias.zero_()
            self.input_bias[:size] = -logarithm  # of the input gate
            self.input_bias[size : 2 * size] = logarithm  # of the forget gate

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch's own
        device = self.input_weight.device
        if device.type not in ("cpu", "meta"):
            with torch.device("meta"):  # draws no initial values
                block = nn.LSTM(self.input_weight.shape[1], self.n_features)
            block.to_empty(device=device)  # on CUDA in one block, as cuDNN wants it
            for own, other in zip(self.parameters(), block.parameters(), strict=True):
                own.data = other.data.copy_(own.data)
        return self

    def unroll(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs [T, B, F] and the last states [B, S] of inputs [T, B, I]."""
        hidden, cell = (part.contiguous().unsqueeze(0) for part in state.split(self.n_features, dim=1))
        weights: list[Tensor] = list(self.parameters())
        precision: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if x.device.type == "cpu" and torch.is_autocast_enabled("cpu"):  # most CPUs have no LSTM in bfloat16
            weights, x = [weight.float() for weight in weights], x.float()
            precision = torch.autocast("cpu", enabled=False)
        elif x.device.type != "cpu":
            ignore_copied_weights()
        with precision:
            outputs, hidden, cell = torch.lstm(
                x, (hidden, cell), weights, True, 1, 0.0, torch.is_grad_enabled(), False, False
            )
        return outputs, torch.cat([hidden.squeeze(0), cell.squeeze(0)], dim=1)


@checked
class GRU(_GatedMemory):
    """Gated recurrent unit (Cho et al., 2014), as torch computes it; the state is the output.

    Args:
        n_inputs: I.
        n_features: F; default: I.
    """

    def __init__(self, n_inputs: int, n_features: int | None = None) -> None:
        super().__init__(n_inputs, n_features, n_gates=3, n_vectors=1)

    def unroll(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs [T, B, F] and the last states [B, S] of inputs [T, B, I]."""
        of_inputs = functional.linear(x, self.input_weight, self.input_bias)
        outputs = []
        for one in of_inputs.unbind(0):
            reset_x, update_x, new_x = one.chunk(3, dim=1)
            reset_h, update_h, new_h = functional.linear(state, self.hidden_weight, self.hidden_bias).chunk(3, dim=1)
            update, new = (
                torch.sigmoid(update_x + update_h),
                torch.tanh(new_x + torch.sigmoid(reset_x + reset_h) * new_h),
            )
            state = new + update * (state - new)
            outputs.append(state)
        return torch.stack(outputs), state


@checked
class CausalTransformer(Memory):
    """One layer of causal attention over the last `window` inputs and the current one.

    Pre-norm (Xiong et al., 2020), with the linear biases of ALiBi (Press et al., 2022) for distances. The state is the
    last `window` inputs and how many of them there are, S = window F + 1.

    Args:
        n_inputs: I.
        n_features: F; default: I, rounded up to a multiple of `n_heads`.
        window: earlier inputs that are attended to.
        n_heads: heads of the attention.
    """

    slopes: Tensor  # [n_heads]

    def __init__(self, n_inputs: int, n_features: int | None = None, *, window: int = 32, n_heads: int = 4) -> None:
        with Checks("CausalTransformer") as checks:
            checks.integer("n_inputs", n_inputs, low=1)
            checks.integer("n_features", n_features, low=1, optional=True)
            checks.integer("window", window, low=1)
            checks.integer("n_heads", n_heads, low=1)
        size = -(-n_inputs // n_heads) * n_heads if n_features is None else n_features
        with Checks("CausalTransformer") as checks:
            is_whole = size % n_heads == 0
            checks.require(is_whole, f".n_features must be a multiple of n_heads, {n_heads}, got {size}")
        super().__init__(size, window * size + 1)
        self.window, self.n_heads = window, n_heads
        self.embedding = new_linear(n_inputs, size)
        self.attention_norm, self.norm = nn.LayerNorm(size), nn.LayerNorm(size)
        self.query, self.key, self.value = (new_linear(size, size) for _ in range(3))
        self.projection = new_linear(size, size)
        self.wide, self.narrow = new_linear(size, 4 * size), new_linear(4 * size, size)
        slopes = 2.0 ** (-8.0 * torch.arange(1, n_heads + 1, dtype=torch.float32) / n_heads)
        self.register_buffer("slopes", slopes, persistent=False)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Unroll over one step."""
        outputs, state = self.unroll(x.unsqueeze(0), state)
        return outputs.squeeze(0), state

    def unroll(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs [T, B, F] and the last states [B, S] of inputs [T, B, I]."""
        n_steps, n_rows = x.shape[:2]
        embedded = self.embedding(x).transpose(0, 1)  # [B, T, F]
        past, n_past = state[:, :-1].view(n_rows, self.window, self.n_features), state[:, -1:]
        context = torch.cat([past, embedded], dim=1)  # [B, window + T, F]
        normed = self.attention_norm(context)
        query = self._heads(self.query(normed[:, self.window :]))
        key, value = self._heads(self.key(normed)), self._heads(self.value(normed))
        bias = self._bias(n_past, n_steps)
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        outputs = embedded + self.projection(attended.transpose(1, 2).flatten(2))
        outputs = outputs + self.narrow(torch.relu(self.wide(self.norm(outputs))))
        last = context[:, -self.window :].flatten(1)
        n_last = (n_past + n_steps).clamp(max=self.window)
        return outputs.transpose(0, 1), torch.cat([last, n_last], dim=1)

    def _heads(self, x: Tensor) -> Tensor:
        """Return [B, n_heads, K, F / n_heads] of [B, K, F]."""
        return x.view(*x.shape[:2], self.n_heads, -1).transpose(1, 2)

    def _bias(self, n_past: Tensor, n_steps: int) -> Tensor:
        """Return what is added to the attention's logits [B, n_heads, T, window + T], for n_past inputs [B, 1]."""
        at = torch.arange(self.window + n_steps, device=n_past.device)
        distance = at[self.window :].unsqueeze(1) - at  # [T, window + T]
        is_seen = (distance >= 0) & (distance <= self.window)
        is_there = at >= self.window - n_past  # [B, window + T]
        is_hidden = ~(is_seen & is_there.unsqueeze(1)).unsqueeze(1)
        bias = -self.slopes.view(-1, 1, 1) * distance  # [n_heads, T, window + T]
        return bias.masked_fill(is_hidden, -torch.inf)


_MEMORIES: dict[str, Callable[[int], Memory]] = {"lstm": LSTM, "gru": GRU, "transformer": CausalTransformer}


def make_memory(recurrent: Recurrent, n_inputs: int) -> Memory:
    """Return a memory of inputs [B, I]: by its name, or what a function of I returns.

    Raises:
        ConfigError: the name is unknown, or the function returns no memory, or one whose `step` gives other shapes.
    """
    allowed = f"{', '.join(map(repr, _MEMORIES))} or a function of the number of inputs that returns a nets.Memory"
    if isinstance(recurrent, str) and recurrent not in _MEMORIES:
        raise ConfigError(f"recurrent must be {allowed}, got {recurrent!r}{did_you_mean(recurrent, _MEMORIES)}")
    if not isinstance(recurrent, str) and (isinstance(recurrent, nn.Module) or not callable(recurrent)):
        raise ConfigError(f"recurrent must be {allowed}, got {recurrent!r}")
    with torch.random.fork_rng(devices=[]):
        memory: object = (_MEMORIES[recurrent] if isinstance(recurrent, str) else recurrent)(n_inputs)
    if not isinstance(memory, Memory):
        raise ConfigError(f"recurrent must return a nets.Memory, got {memory!r}")
    wanted = [(2, memory.n_features), (2, memory.state_size)]
    with torch.no_grad():
        outputs = memory.step(torch.zeros(2, n_inputs), torch.zeros(2, memory.state_size))
    shapes = [tuple(output.shape) for output in outputs]
    if shapes != wanted:
        raise ConfigError(
            f"{type(memory).__name__}.step must return outputs and states {wanted} for 2 rows, as its n_features and "
            f"state_size say, got {shapes}"
        )
    return memory
