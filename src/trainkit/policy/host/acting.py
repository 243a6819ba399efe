"""Acting of small networks in numpy, on views of their weights: there, torch's calls cost more than the sums.

The same equations as in `networks` and `noisy`, which a test holds side by side. For batches and networks too large,
for images, CUDA and other dtypes there is no such pass, and torch does it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from trainkit.data import Obs
from trainkit.policy.actor_critic import ActorCriticNetwork
from trainkit.policy.critics import ActorNetwork, CriticNetwork, StackedLinear
from trainkit.policy.distributions import Distribution, HostDistribution
from trainkit.policy.host.layers import relu
from trainkit.policy.host.preprocess import HostPreprocess
from trainkit.policy.host.squashed import HostSquashed
from trainkit.policy.host.tape import Array
from trainkit.policy.host.watchers import Hooks, hooks_of
from trainkit.policy.networks import MLP, ActionHeads, Encoder, QNetwork
from trainkit.policy.noisy import NoisyLinear
from trainkit.policy.segments import parts_of
from trainkit.policy.squashed import SquashedGaussian
from trainkit.policy.values import ExpectedValue, Value
from trainkit.spaces import legal_actions
from trainkit.threads import OneThread

Activation = Callable[[Array], object]

_MOST_ROWS, _MOST_WEIGHTS = 64, 2**17  # of a matrix; beyond these torch is as fast, on more threads faster
_IN_PLACE: dict[Any, Activation] = {
    torch.relu: relu,
    torch.relu_: relu,
    torch.tanh: lambda y: np.tanh(y, out=y),
}
_NETWORKS = QNetwork, ActorCriticNetwork, ActorNetwork, CriticNetwork
_KINDS = (*_NETWORKS, Encoder, ActionHeads, MLP, nn.Linear, NoisyLinear, StackedLinear, nn.ModuleList)


class _Layer(NamedTuple):
    """One layer's arrays: weight [out, in], bias [out, 1], and of a noisy layer their sigmas, else None."""

    weight: Array
    bias: Array
    weight_sigma: Array | None
    bias_sigma: Array | None
    activate: Activation | None  # in place

    @classmethod
    def of(cls, module: nn.Module, activate: Activation | None) -> "_Layer":
        views = {name: p.detach().numpy() for name, p in module.named_parameters()}
        bias, bias_sigma = views["bias"][:, None], views.get("bias_sigma")
        bias_sigma = None if bias_sigma is None else bias_sigma[:, None]
        return cls(views["weight"], bias, views.get("weight_sigma"), bias_sigma, activate)


class HostPass:
    """What a forward pass in numpy needs: views of a network's layers, taken anew whenever they moved.

    Rows are columns here, [units, K]: so a weight is multiplied as it lies, which takes half the time.
    """

    def __init__(self, preprocess: HostPreprocess, network: nn.Module, distribution: object = None) -> None:
        self._features, self._network = preprocess, network
        self._distribution: object = distribution
        self._layers: dict[str, list[_Layer]] = {}  # of every MLP, by its name: modules are slow to find
        self._seen: list[tuple[dict[str, Any], str, object]] = []  # (where, name, module or parameter)
        self._addresses: list[tuple[nn.Parameter, int]] = []
        self._hooks: Hooks = []

    def takes(self, obs: Obs, n_rows: int, preprocess: object, network: object, distribution: object = None) -> bool:
        """Whether these are few rows that become vectors, and the policy's modules are its own and still plain ones."""
        is_ours = network is self._network and distribution is self._distribution
        is_small = n_rows <= _MOST_ROWS and self._features.takes(obs, preprocess)
        return is_ours and is_small and (self._is_live() or self._take_views()) and not any(self._hooks)

    def _mlp(self, name: str, x: Array, noise: Array | None = None) -> Array:
        """Turn [in, K] into [out, K]; noise is [its size, K]."""
        start = 0
        for weight, bias, weight_sigma, bias_sigma, activate in self._layers[name]:
            y = weight.dot(x)
            y += bias
            if noise is not None and weight_sigma is not None and bias_sigma is not None:
                middle = start + weight.shape[1]
                end = middle + len(weight)
                y += (weight_sigma.dot(x * noise[start:middle]) + bias_sigma) * noise[middle:end]
                start = end
            if activate is not None:
                activate(y)
            x = y
        return x

    def _is_live(self) -> bool:
        """Whether every module and parameter still is the one whose view was taken, and in the same place."""
        for where, name, child in self._seen:
            if where.get(name) is not child:
                return False
        for parameter, address in self._addresses:
            if parameter.data_ptr() != address:
                return False
        return bool(self._seen)

    def _take_views(self) -> bool:
        """Take views of the weights where they lie now, if the network is a plain one; training shows in them."""
        self._seen.clear()
        if not is_plain(self._network):
            return False
        modules = dict(self._network.named_modules())
        self._layers = {name: _layers_of(part) for name, part in modules.items() if isinstance(part, MLP)}
        active = [part for part in modules.values() if isinstance(part, MLP)]
        self._seen = [*parts_of(self._network), *((vars(part), "activation", part.activation) for part in active)]
        self._addresses = [(parameter, parameter.data_ptr()) for parameter in self._network.parameters()]
        self._hooks = hooks_of(self._network)
        return True


class HostNetwork(HostPass):
    """The forward pass of one `QNetwork` in numpy."""

    _network: QNetwork

    def __init__(self, preprocess: HostPreprocess, network: QNetwork, value: Value) -> None:
        super().__init__(preprocess, network)
        self._value = value
        self._shape = network.heads.n_actions, network.heads.width
        self._is_expected = type(value) is ExpectedValue and value.rescale is None

    @classmethod
    def for_network(cls, preprocess: HostPreprocess | None, network: nn.Module, value: Value) -> "HostNetwork | None":
        """Return the pass for a small network of vectors on the CPU, None for any other."""
        if preprocess is None or type(network) is not QNetwork or not is_plain(network):
            return None
        return cls(preprocess, network, value)

    def action_values(self, obs: Obs, noise: Array | None) -> Array:
        """Return the expected returns [K, A] for raw observations [K, ...]."""
        with OneThread(), np.errstate(all="ignore"):  # what is not finite is refused by whoever asked
            numbers = self(self._features(obs), noise, legal_actions(obs))
        if self._is_expected:  # one number, and it is the mean: no call of torch at all
            return numbers[:, :, 0]
        with torch.no_grad():
            mean: Array = self._value.mean(torch.from_numpy(numbers)).numpy()
        return mean

    def __call__(self, features: Array, noise: Array | None, legal: NDArray[np.bool_] | None) -> Array:
        """Return numbers [K, A, W]."""
        if not self._layers:
            self._take_views()
        x = self._mlp("encoder.body", features.T)
        noise_a = noise_v = None
        if noise is not None:
            n_advantage = self._network.heads.advantage.noise_size
            noise_a, noise_v = noise.T[:n_advantage], noise.T[n_advantage:]
        advantage = self._mlp("heads.advantage", x, noise_a).T.reshape(-1, *self._shape)
        if "heads.state_value" not in self._layers:
            return advantage
        state_value = self._mlp("heads.state_value", x, noise_v).T[:, None]
        if legal is None:
            mean = advantage.mean(axis=1, keepdims=True)
        else:
            counts = legal[:, :, None].astype(np.float32)
            n_legal = np.maximum(counts.sum(axis=1, keepdims=True), 1.0)
            mean = (advantage * counts).sum(axis=1, keepdims=True) / n_legal
        numbers: Array = state_value + advantage - mean
        return numbers


class Answer(NamedTuple):
    """What an actor-critic does about K observations."""

    action: NDArray[Any]  # [K, ...]
    log_prob: Array  # [K]
    value: Array  # [K]
    numbers: Any  # [K, width], an array or a tensor


class HostActorCritic(HostPass):
    """The forward pass of one `ActorCriticNetwork`, and the draw of actions after it, in numpy."""

    _network: ActorCriticNetwork
    _distribution: HostDistribution

    def __init__(self, preprocess: HostPreprocess, network: ActorCriticNetwork, distribution: HostDistribution) -> None:
        super().__init__(preprocess, network, distribution)

    @classmethod
    def for_network(
        cls, preprocess: HostPreprocess | None, network: nn.Module, distribution: Distribution
    ) -> "HostActorCritic | None":
        """Return the pass for a small network of vectors on the CPU, None for any other."""
        if preprocess is None or type(network) is not ActorCriticNetwork or not is_plain(network):
            return None
        return cls(preprocess, network, distribution) if isinstance(distribution, HostDistribution) else None

    def act(self, obs: Obs, legal: NDArray[np.bool_] | None, rng: np.random.Generator | None) -> Answer:
        """Draw an action per raw observation [K, ...] or, without `rng`, take the mode."""
        with OneThread(), np.errstate(all="ignore"):  # what is not finite is refused by whoever asked
            numbers, value = self(self._features(obs))
            action, log_prob = self._distribution.host_act(numbers, legal, rng)
        return Answer(action, log_prob, value, numbers)

    def values(self, obs: Obs) -> Array:
        """Return the values [K] of raw observations [K, ...]."""
        with OneThread(), np.errstate(all="ignore"):
            return self(self._features(obs))[1]

    def __call__(self, features: Array) -> tuple[Array, Array]:
        """Return numbers [K, width] and values [K]."""
        x = self._mlp("actor_torso.body", features.T)
        y = self._mlp("critic_torso.body", features.T) if "critic_torso.body" in self._layers else x
        return self._mlp("actor", x).T, self._mlp("critic", y)[0]


class HostActor(HostPass):
    """The forward pass of one `ActorNetwork`, and the actions it comes to, in numpy."""

    _network: ActorNetwork

    def __init__(self, preprocess: HostPreprocess, network: ActorNetwork, distribution: SquashedGaussian) -> None:
        super().__init__(preprocess, network, distribution)
        self._squashed = HostSquashed(distribution)

    @classmethod
    def for_network(
        cls, preprocess: HostPreprocess | None, network: nn.Module, distribution: Distribution
    ) -> "HostActor | None":
        """Return the pass for a small network of vectors on the CPU, None for any other."""
        if preprocess is None or type(network) is not ActorNetwork or not is_plain(network):
            return None
        return cls(preprocess, network, distribution) if type(distribution) is SquashedGaussian else None

    def act(self, obs: Obs, noise: Array | None) -> tuple[Array, Array]:
        """Return (actions [K, ...] in policy units, network outputs [K, 2 D]).

        `obs` are raw observations [K, ...]; without `noise` [K, D] the actions are at the means.
        """
        with OneThread(), np.errstate(all="ignore"):  # what is not finite is refused by whoever asked
            x = self._mlp("encoder.body", self._features(obs).T)
            numbers = self._mlp("head", x).T
            return self._squashed.act(numbers, noise), numbers


def is_plain(network: nn.Module) -> bool:
    """Whether a network is of our own kinds of layers only, small, float32, without images."""
    modules = list(network.modules())
    return (
        all(type(module) in _KINDS for module in modules)
        and all(part.activation in _IN_PLACE for part in modules if isinstance(part, (MLP, CriticNetwork)))
        and all(p.dtype == torch.float32 and p.shape[-2:].numel() <= _MOST_WEIGHTS for p in network.parameters())
        and all(type(child) is MLP for child in _whole(network))
    )


def _layers_of(mlp: MLP) -> list[_Layer]:
    activate = _IN_PLACE[mlp.activation]
    parts = zip(mlp.layers, mlp.is_active, strict=True)
    return [_Layer.of(layer, activate if is_active else None) for layer, is_active in parts]


def _whole(network: nn.Module) -> list[nn.Module]:
    """List the parts that a pass asks for by name."""
    if isinstance(network, QNetwork):
        return [network.encoder.body, network.heads.advantage]
    if isinstance(network, ActorNetwork):
        return [network.encoder.body, network.head]
    if isinstance(network, CriticNetwork):
        return [network.encoder.body]
    assert isinstance(network, ActorCriticNetwork)
    torsos = [network.actor_torso] if network.critic_torso is None else [network.actor_torso, network.critic_torso]
    return [network.actor, network.critic, *(torso.body for torso in torsos)]
