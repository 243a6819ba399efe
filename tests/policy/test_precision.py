"""Learning in bfloat16, and images with their channels last: nearly the same numbers, the same parameters."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.testing import assert_close

import trainkit as tk
from tests.helpers.engine import torch_only
from tests.helpers.learning import MASKED, PARTS, assert_same, batch_of, made, parameters_of
from trainkit import ConfigError
from trainkit.nets import ImplicitQNetwork, NatureCNN, QNetwork
from trainkit.nets.networks import RandomInputs

IMAGES = spaces.Box(0, 255, (4, 36, 38), np.uint8)
CPU = torch.device("cpu")


def learn(policy: Any, n_updates: int, space: Any) -> list[Any]:
    return [policy.update(batch_of(16, seed=i, space=space), step=i).read_priority() for i in range(n_updates)]


# ---- bfloat16 ----


@pytest.mark.parametrize("parts", PARTS)
def test_learns_nearly_the_same_in_bf16_and_not_the_same(parts: dict[str, Any]) -> None:
    space = spaces.Box(-1.0, 1.0, (4,), np.float32)
    rough, exact = made(space, **parts, precision="bf16"), torch_only(made(space, **parts))
    before = parameters_of(exact)
    for one, other in zip(learn(rough, 10, space), learn(exact, 10, space), strict=True):
        assert one.dtype == np.float32
        np.testing.assert_allclose(one, other, rtol=0.05, atol=0.05)
        assert (one != other).any()
    mine, theirs = parameters_of(rough), parameters_of(exact)
    assert {tensor.dtype for tensor in mine.values()} == {torch.float32}
    for name, tensor in mine.items():
        far = (theirs[name] - before[name]).norm()
        assert (tensor - theirs[name]).norm() <= 0.25 * far, name


def test_gradients_of_both_questions_to_the_online_network_arrive() -> None:
    network = QNetwork((4,), 3, hidden=(8,))
    features = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))

    def gradients(precision: Any) -> list[torch.Tensor]:
        function = tk.DQNPolicy(network, precision=precision, device="cpu")._function(network, RandomInputs())
        with torch.no_grad():
            function(features, None)  # first, as a backup might
        return list(torch.autograd.grad(function(features, None).outputs.square().mean(), list(network.parameters())))

    for rough, exact in zip(gradients("bf16"), gradients("float32"), strict=True):
        assert exact.abs().max() > 0
        assert_close(rough, exact, rtol=0.05, atol=0.01)


def test_layers_multiply_in_bf16_and_answer_in_float32() -> None:
    network, kinds = QNetwork((4,), 3, hidden=(8,)), set()
    network.heads.register_forward_pre_hook(lambda module, given: kinds.add(given[0].dtype))
    network.heads.forward = lambda x, noise, legal: kinds.add(x.dtype) or x.view(-1, 1, 8)  # type: ignore[func-returns-value]
    policy = tk.DQNPolicy(network, precision="bf16", device="cpu")
    prediction = policy._function(network, RandomInputs())(torch.zeros(2, 4), None)
    assert kinds == {torch.bfloat16}
    assert prediction.outputs.dtype == torch.float32


def test_acting_stays_exact() -> None:
    obs = batch_of(20, space=MASKED).obs
    one, other = (made(MASKED, precision=precision) for precision in ("bf16", "float32"))
    np.testing.assert_array_equal(one.action_values(obs), other.action_values(obs))


@pytest.mark.parametrize("wanted", ["fp16", "bfloat16", 16, None])
def test_another_precision_is_refused(wanted: Any) -> None:
    with pytest.raises(ConfigError, match=r"precision must be one of \['float32', 'bf16'\], got"):
        made(precision=wanted)


# ---- channels last ----


def test_images_with_their_channels_last_give_the_same_features() -> None:
    plain, turned = NatureCNN((4, 36, 38)), NatureCNN((4, 36, 38), channels_last=True)
    turned.load_state_dict(plain.state_dict())
    x = torch.rand(5, 4, 36, 38, generator=torch.Generator().manual_seed(0))
    assert_close(turned(x), plain(x), rtol=1e-4, atol=1e-6)


def test_images_lie_with_their_channels_last_in_every_convolution() -> None:
    network = NatureCNN((4, 44, 44), channels_last=True)
    lies: list[bool] = []
    for convolution in network.convolutions:
        convolution.register_forward_pre_hook(
            lambda module, given: lies.append(given[0].is_contiguous(memory_format=torch.channels_last))
        )
    network(torch.rand(2, 4, 44, 44, generator=torch.Generator().manual_seed(0)))
    assert lies == [True, True, True]


@pytest.mark.parametrize("parts", [PARTS[2], PARTS[5]])
def test_learns_the_same_with_channels_last(parts: dict[str, Any]) -> None:
    turned, plain = (made(IMAGES, **parts, hidden=None, head=(8,), channels_last=wanted) for wanted in (True, False))
    assert_same(parameters_of(turned), parameters_of(plain))
    for one, other in zip(learn(turned, 4, IMAGES), learn(plain, 4, IMAGES), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)
    assert_close(parameters_of(turned), parameters_of(plain), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", [QNetwork, ImplicitQNetwork])
def test_networks_of_vectors_take_it_and_need_it_not(kind: Any) -> None:
    assert kind((4,), 3, channels_last=True).encoder.n_features == kind((4,), 3).encoder.n_features
