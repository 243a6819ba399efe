"""Small networks in numpy, forward and backward by hand, and whether they still are what was taken of them."""

import numpy as np
from numpy.typing import NDArray
from torch import nn

from trainkit.policy.actor_critic import ActorCriticNetwork
from trainkit.policy.critics import ActorNetwork, CriticNetwork
from trainkit.policy.host.acting import is_plain
from trainkit.policy.host.layers import HostMLP
from trainkit.policy.host.tape import Array, Tape
from trainkit.policy.host.watchers import hooks_of, learns_alone
from trainkit.policy.networks import MLP, QNetwork
from trainkit.policy.segments import parts_of


class HostPasses:
    """The passes of a network of one vector per row, as its weights and gradients lie now."""

    def __init__(self, network: nn.Module) -> None:
        active = [part for part in network.modules() if isinstance(part, (MLP, CriticNetwork))]
        self._hooks = hooks_of(network)
        self._parts = [*parts_of(network), *((vars(part), "activation", part.activation) for part in active)]
        self._places = [(parameter, parameter.data_ptr()) for parameter in network.parameters()]
        self._gradients = [(parameter, parameter.grad) for parameter in network.parameters() if parameter.requires_grad]
        in_all = sum(1 for _ in network.named_parameters(remove_duplicate=False))  # of one in two places, both
        self.is_plain = is_plain(network) and in_all == len(self._places)

    @property
    def is_live(self) -> bool:
        """Whether modules, weights and gradients still are those that were taken, where they were."""
        for table, name, child in self._parts:
            if table.get(name) is not child:
                return False
        return self.is_in_place

    @property
    def is_in_place(self) -> bool:
        """Whether weights and gradients still are where they were."""
        for parameter, address in self._places:
            if parameter.data_ptr() != address:
                return False
        for parameter, gradient in self._gradients:  # noqa: SIM110  # `all` takes half as long again, at every update
            if parameter.grad is not gradient:
                return False
        return True

    @property
    def learns_whole(self) -> bool:
        """Whether the network is plain, every weight learns, and nobody waits for a pass or a gradient."""
        return self.passes_alone and all(learns_alone(parameter) for parameter, _ in self._places)

    @property
    def passes_alone(self) -> bool:
        """Whether the network is plain, and nobody waits for a pass."""
        return self.is_plain and not any(self._hooks)


class HostQNetwork(HostPasses):
    """The passes of a `QNetwork`, where it is plain."""

    def __init__(self, network: QNetwork) -> None:
        super().__init__(network)
        if not self.is_plain:
            return
        heads = network.heads
        self._n_actions, self._width = heads.n_actions, heads.width
        self._body, self._advantage = HostMLP.of(network.encoder.body), HostMLP.of(heads.advantage)
        self._state_value = None if heads.state_value is None else HostMLP.of(heads.state_value)

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
        tape.append(share)
        return _centred(advantage, share, state_value)

    def ask(self, x: Array, noise: Array | None, legal: NDArray[np.bool_] | None, tape: Tape) -> Array:
        """Return what `forward` does, and leave nothing for the way back: quicker, by columns."""
        x = self._body.ask(x.T, None, tape)
        split = self._advantage.noise_size
        advantage = self._advantage.ask(x, None if noise is None else noise[:split], tape)
        advantage = np.ascontiguousarray(advantage.T).reshape(-1, self._n_actions, self._width)
        if self._state_value is None:
            return advantage
        state_value = self._state_value.ask(x, None if noise is None else noise[split:], tape)
        return _centred(advantage, _shares(legal, self._n_actions), state_value.T)

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
        self._body.backward(dx, tape, reaches_rows=False)


class HostActorCriticNetwork(HostPasses):
    """The passes of an `ActorCriticNetwork`, where it is plain."""

    def __init__(self, network: ActorCriticNetwork) -> None:
        super().__init__(network)
        if not self.is_plain:
            return
        self._actor_torso = HostMLP.of(network.actor_torso.body)
        self._critic_torso = None if network.critic_torso is None else HostMLP.of(network.critic_torso.body)
        self._actor, self._critic = HostMLP.of(network.actor), HostMLP.of(network.critic)

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
            self._critic_torso.backward(dy, tape, reaches_rows=False)
        dx = self._actor.backward(of_numbers, tape)
        if self._critic_torso is None:
            dx += dy
        self._actor_torso.backward(dx, tape, reaches_rows=False)


class HostActorNetwork(HostPasses):
    """The passes of an `ActorNetwork`, where it is plain."""

    def __init__(self, network: ActorNetwork) -> None:
        super().__init__(network)
        if self.is_plain:
            self._body, self._head = HostMLP.of(network.encoder.body), HostMLP.of(network.head)

    def forward(self, features: Array, tape: Tape) -> Array:
        """Return the numbers [B, width] of rows [B, F]."""
        return self._head.forward(self._body.forward(features, None, tape), None, tape)

    def ask(self, features: Array, tape: Tape) -> Array:
        """Return what `forward` does, as `HostQNetwork.ask`."""
        return self._head.ask(self._body.ask(features.T, None, tape), None, tape).T

    def backward(self, slope: Array, tape: Tape) -> None:
        """Write the gradients of all weights for the slope [B, width] of a loss."""
        self._body.backward(self._head.backward(slope, tape), tape, reaches_rows=False)


class HostCriticNetwork(HostPasses):
    """The passes of a `CriticNetwork`, where it is plain."""

    def __init__(self, network: CriticNetwork) -> None:
        super().__init__(network)
        self.is_plain = self.is_plain and not network.encoder.body.layers  # features go as they are
        if self.is_plain:
            is_active = [True] * (len(network.layers) - 1) + [False]
            self._critics = HostMLP(network.layers, is_active, network.activation)

    def forward(self, features: Array, action: Array, tape: Tape) -> Array:
        """Return the values [C, B] of rows [B, F] and their actions [B, D]."""
        return self._critics.forward(np.concatenate([features, action], axis=1), None, tape)[:, :, 0]

    def ask(self, features: Array, action: Array, tape: Tape) -> Array:
        """Return what `forward` does, as `HostQNetwork.ask`."""
        return self._critics.ask(np.concatenate([features.T, action.T]), None, tape)[:, 0]

    def backward(self, slope: Array, tape: Tape) -> None:
        """Write the gradients of all weights for the slope [C, B] of a loss."""
        self._critics.backward(slope[:, :, None], tape, reaches_rows=False)

    def slope_of_rows(self, slope: Array, tape: Tape) -> Array:
        """Return the slope [B, F + D] of features and actions for that [C, B] of a loss, and write no gradient."""
        own: Array = np.add.reduce(self._critics.backward(slope[:, :, None], tape, learns=False), axis=0)
        return own


def _centred(advantage: Array, share: Array, state_value: Array) -> Array:
    """Return the numbers [B, A, W] of a dueling network: advantages less their mean, and the state's value [B, W]."""
    numbers: Array = advantage - np.add.reduce(advantage * share, axis=1, keepdims=True)
    numbers += state_value[:, None]
    return numbers


def _shares(legal: NDArray[np.bool_] | None, n_actions: int) -> Array:
    """Return how much each action counts in the mean over the legal ones, [B, A, 1] or [1, 1, 1]."""
    if legal is None:
        return np.full((1, 1, 1), 1.0 / n_actions, np.float32)
    counts = legal[:, :, None].astype(np.float32)
    n_legal: Array = np.add.reduce(counts, axis=1, keepdims=True)
    share: Array = counts / n_legal.clip(min=1.0)
    return share
