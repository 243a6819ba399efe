"""Memories against torch's own, step by step and at once."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.helpers.learning import parameters_of
from tests.nets import critic_leaves
from tests.pretend import PretendDevice
from trainkit.core.errors import ConfigError
from trainkit.extensions.memory.memories import ignore_copied_weights, make_memory
from trainkit.nets import GRU, LSTM, CausalTransformer, Memory, QNetwork

T, B, INPUTS = 12, 3, 8


def drawn(memory: Memory) -> tuple[Tensor, Tensor]:
    """Return inputs [T, B, I] and the states [B, S] after some others."""
    generator = torch.Generator().manual_seed(1)
    before, x = torch.randn((2, T, B, INPUTS), generator=generator)
    with torch.no_grad():
        return x, memory(before, torch.zeros(B, memory.state_size))[1]


@pytest.mark.parametrize("kind", ["lstm", "gru", "transformer"])
def test_a_sequence_is_its_steps_one_after_the_other_and_starts_reset_the_state(kind: Any) -> None:
    memory = make_memory(kind, INPUTS)
    x, state = drawn(memory)
    together, last = memory(x, state)
    apart = []
    for one in x:
        output, state = memory.step(one, state)
        apart.append(output)
    torch.testing.assert_close(together, torch.stack(apart), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(last, state, rtol=1e-5, atol=1e-6)
    x, state = drawn(memory)
    starts = torch.zeros(T, B, dtype=torch.bool)
    starts[5, 1] = True
    outputs, _ = memory(x, state, starts)
    fresh, _ = memory(x[5:], torch.zeros_like(state))
    torch.testing.assert_close(outputs[5:, 1], fresh[:, 1], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(outputs[:, 0], together[:, 0], rtol=1e-5, atol=1e-6)


def test_an_lstm_for_many_steps_keeps_what_it_saw() -> None:
    kept = {}
    for n_steps in (None, 200):
        memory = LSTM(INPUTS, 64, n_steps=n_steps)
        x, zero = torch.zeros(50, 2, INPUTS), torch.zeros(2, memory.state_size)
        x[0, 1] = 1.0
        with torch.no_grad():
            outputs, _ = memory(x, zero)
        kept[n_steps] = float((outputs[-1, 1] - outputs[-1, 0]).abs().max())
    assert kept[200] > 0.01 > 1e-6 > kept[None]


@pytest.mark.parametrize(("kind", "theirs"), [(LSTM, nn.LSTM), (GRU, nn.GRU)])
def test_outputs_and_gradients_are_torchs(kind: Any, theirs: Any) -> None:
    memory = kind(INPUTS, 5)
    x, state = drawn(memory)
    with torch.random.fork_rng():
        reference = theirs(INPUTS, 5)
    for own, other in zip(memory.parameters(), reference.parameters(), strict=True):
        assert own.shape == other.shape
        other.data.copy_(own.data)
    parts = [part.contiguous().unsqueeze(0) for part in state.split(5, dim=1)]
    outputs = memory(x, state)[0]
    expected = reference(x, tuple(parts) if len(parts) == 2 else parts[0])[0]
    torch.testing.assert_close(outputs, expected, rtol=1e-5, atol=1e-6)
    outputs.square().sum().backward()
    expected.square().sum().backward()
    for own, other in zip(memory.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad, rtol=1e-4, atol=1e-5)


def test_a_transformer_sees_the_window_and_no_more() -> None:
    memory = CausalTransformer(INPUTS, window=3)
    x, state = drawn(memory)
    changed = x.clone()
    changed[4] += 1.0
    same = torch.isclose(memory(x, state)[0], memory(changed, state)[0], atol=1e-6).all(dim=2).all(dim=1)
    assert same.tolist() == [True] * 4 + [False] * 4 + [True] * 4


def test_initial_weights_follow_the_seed_of_the_network() -> None:
    networks = [QNetwork((4,), 2, hidden=(8,), recurrent="lstm") for _ in range(3)]
    for network, seed in zip(networks, (1, 1, 2), strict=True):
        network.draw(seed)
    weights = [[p.detach().numpy() for p in network.encoder.memory.parameters()] for network in networks]
    for one, equal, other in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, equal)
        assert (one != other).any()
        assert abs(one).max() <= 1 / np.sqrt(8)


class Wrong(Memory):
    """A memory whose states are not as large as it says."""

    def __init__(self, n_inputs: int) -> None:
        super().__init__(4, 5)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return x[:, :4], state[:, :4]


@pytest.mark.parametrize(
    ("recurrent", "message"),
    [
        ("ltsm", "recurrent must be 'lstm', 'gru', 'transformer' or a function .* did you mean 'lstm'"),
        (LSTM(4), "recurrent must be 'lstm', 'gru', 'transformer' or a function"),
        (lambda n: nn.Linear(n, 2), "recurrent must return a nets.Memory"),
        (Wrong, r"Wrong.step must return outputs and states \[\(2, 4\), \(2, 5\)\] for 2 rows"),
    ],
)
def test_what_is_no_memory_is_named(recurrent: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_memory(recurrent, 8)


def test_heads_must_divide_the_features_of_a_transformer() -> None:
    with pytest.raises(ConfigError, match="n_features must be a multiple of n_heads, 4, got 6"):
        CausalTransformer(8, 6)
    with pytest.raises(ConfigError, match="n_heads must be a whole number >= 1, got 0"):
        CausalTransformer(8, n_heads=0)


def test_only_torchs_warning_of_copied_weights_is_ignored_wherever_filters_are_set() -> None:
    copied = (
        "RNN module weights are not part of single contiguous chunk of memory. This means they need to be compacted"
    )
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(UserWarning, match="RNN module"):
                warnings.warn(copied, UserWarning, stacklevel=1)
            ignore_copied_weights()
            warnings.warn(copied, UserWarning, stacklevel=1)
            n_filters = len(warnings.filters)
            ignore_copied_weights()
            assert len(warnings.filters) == n_filters
            with pytest.raises(UserWarning, match="RNN is broken"):
                warnings.warn("RNN is broken", UserWarning, stacklevel=1)


def test_an_lstm_on_a_device_runs_where_torch_warns_of_copied_weights(
    pretend: PretendDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = torch.lstm

    def lstm_of_cudnn(*given: Any) -> Any:
        warnings.warn("RNN module weights are not part of single contiguous chunk of memory.", stacklevel=1)
        return own(*given)

    memory = LSTM(INPUTS)
    x, state = drawn(memory)
    monkeypatch.setattr(torch, "lstm", lstm_of_cudnn)
    memory.to(pretend.device)(x.to(pretend.device), state.to(pretend.device))


def test_an_lstm_keeps_its_weights_where_it_is_moved(pretend: PretendDevice) -> None:
    memory = LSTM(INPUTS)
    x, state = drawn(memory)
    before, expected = parameters_of(memory), memory(x, state)
    memory.to(pretend.device)
    for name, weight in parameters_of(memory).items():
        assert torch.equal(weight.cpu(), before[name])
    for own, wanted in zip(memory(x.to(pretend.device), state.to(pretend.device)), expected, strict=True):
        torch.testing.assert_close(own.cpu(), wanted)


def test_the_memory_of_the_actor_does_not_see_a_leaf_of_the_critic() -> None:
    critic_leaves.check_that_a_leaf_of_the_critic_changes_the_value_and_no_output({"recurrent": "lstm"})
