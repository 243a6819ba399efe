"""Actor and critic networks: with a common forward pass for on-policy learners, apart for off-policy ones."""

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypedDict, Unpack

import torch
from torch import Tensor, nn

from trainkit.core import seeding
from trainkit.core.config import Part
from trainkit.core.errors import Checks
from trainkit.core.signatures import checked
from trainkit.nets.encoders import Encoder, EncoderLike, Recurrent, make_encoder
from trainkit.nets.layers import MLP, Activation, Norm, StackedNorm, activation_function, of_first
from trainkit.nets.networks import mapped
from trainkit.nets.weights import SeededModule, draw_orthogonal, draw_uniform


class ActorCriticOutput(NamedTuple):
    """The outputs of an actor-critic network for B observations."""

    outputs: Tensor  # [B, width], parameters of the distribution of actions
    value: Tensor  # [B]


@checked
class ActorCriticNetwork(SeededModule):
    """Actor-critic network: `width` outputs and a value per observation, from one torso or one each.

    Layers start orthogonal: hidden ones times sqrt(2), the actor's last times 0.01, the critic's times 1 (Andrychowicz
    et al., 2021: a first policy that hardly depends on the observation matters most).

    Args:
        shapes: the features' shapes, `Preprocess(space).shapes`.
        width: outputs of the actor, `distribution.width`.
        hidden: layers, of each torso.
        shared: let actor and critic share one torso.
        encoder: of each torso: a name such as "impala", a module or a factory, see `Encoder`.
        activation: after each hidden layer, and of the encoder that is named; default tanh, of convolutions relu.
        norm: "layer" or "rms", before each activation; None for none.
        recurrent: of each torso, as in `QNetwork`.
        critic_only: leaves of a Dict observation that the critic sees and the actor does not, such as ["state"]
            (asymmetric actor-critic; Pinto et al., 2018). Each has a torso of its own.
    """

    def __init__(
        self,
        shapes: Any,
        width: int,
        *,
        hidden: Sequence[int] = (64, 64),
        shared: bool = False,
        encoder: EncoderLike | None = None,
        activation: Activation | None = None,
        norm: Norm | None = None,
        recurrent: Recurrent | None = None,
        critic_only: Sequence[str] = (),
    ) -> None:
        _check_sizes("ActorCriticNetwork", width=width, hidden=hidden)
        _check_leaves(critic_only, shapes, shared=shared)
        super().__init__()
        self.critic_only = frozenset(critic_only)
        how: dict[str, Any] = {"encoder": encoder, "activation": activation, "norm": norm, "default": torch.tanh}
        how["recurrent"] = recurrent
        self.actor_torso = make_encoder(shapes, hidden, ignores=critic_only, **how)
        self.critic_torso = None if shared else make_encoder(shapes, hidden, **how)
        self.actor = MLP([self.actor_torso.n_features, width])
        self.critic = MLP([(self.critic_torso or self.actor_torso).n_features, 1])
        self.draw()

    @property
    def encoder(self) -> Encoder:
        """The torso of the actor, and of the critic if it is shared."""
        return self.actor_torso

    def forward(self, features: Any) -> ActorCriticOutput:
        """Return the actor's outputs [B, width] and the critic's values [B] for features [B, ...]."""
        x = self.actor_torso(features)
        y = x if self.critic_torso is None else self.critic_torso(features)
        return ActorCriticOutput(self.actor(x), self.critic(y).squeeze(1))

    def _initialize(self, generator: torch.Generator) -> None:
        draw_orthogonal(self, generator, gain=2**0.5)
        draw_orthogonal(self.actor, generator, gain=0.01)
        draw_orthogonal(self.critic, generator, gain=1.0)


@checked
class ActorNetwork(SeededModule):
    """Actor network: `width` outputs per observation, the parameters of a distribution of actions.

    The outputs are unbounded, as no activation follows the last layer: those of a deterministic actor are in policy
    units, [-1, 1], after `.tanh()`.

    Args:
        shapes: the features' shapes, `Preprocess(space).shapes`.
        width: number of outputs.
        hidden: layers.
        encoder: a name such as "impala", a module or a factory, see `Encoder`.
        activation: after each hidden layer, and of the encoder that is named; default relu.
        norm: "layer" or "rms", before each activation; None for none.
        recurrent: as in `QNetwork`.
    """

    def __init__(
        self,
        shapes: Any,
        width: int,
        *,
        hidden: Sequence[int] = (256, 256),
        encoder: EncoderLike | None = None,
        activation: Activation | None = None,
        norm: Norm | None = None,
        recurrent: Recurrent | None = None,
    ) -> None:
        _check_sizes("ActorNetwork", width=width, hidden=hidden)
        super().__init__()
        how: dict[str, Any] = {"encoder": encoder, "norm": norm, "recurrent": recurrent}
        self.encoder = make_encoder(shapes, hidden, activation, default=torch.relu_, **how)
        self.head = MLP([self.encoder.n_features, width])
        self.draw()

    def forward(self, features: Any) -> Tensor:
        """Return unbounded outputs [B, width] for features [B, ...], as `rows.obs` or `preprocess(obs)`."""
        outputs: Tensor = self.head(self.encoder(features))
        return outputs


@checked
class CriticNetwork(SeededModule):
    """Critic networks: `n_critics` values of an action, [B, C], or of W outputs each; critics share only the encoder.

    The critics are stacked: each layer has the weights [C, out, in] and the biases [C, 1, out], and their gradients
    have these shapes.

    Args:
        shapes: the features' shapes, `Preprocess(space).shapes`.
        n_dimensions: D, of actions [B, D].
        n_critics: C.
        width: W, outputs of each critic, `value.width`: they are [B, C, W]; None: values [B, C].
        hidden: layers, of each critic.
        encoder: a name such as "impala", a module or a factory, see `Encoder`.
        activation: after each hidden layer, and of the encoder that is named; default relu.
        norm: "layer" or "rms", before each activation; None for none.
        recurrent: as in `QNetwork`, behind a layer as wide as the first hidden one; both are shared.
    """

    def __init__(
        self,
        shapes: Any,
        n_dimensions: int,
        *,
        n_critics: int = 2,
        width: int | None = None,
        hidden: Sequence[int] = (256, 256),
        encoder: EncoderLike | None = None,
        activation: Activation | None = None,
        norm: Norm | None = None,
        recurrent: Recurrent | None = None,
    ) -> None:
        n_outputs = 1 if width is None else width
        _check_sizes("CriticNetwork", n_dimensions=n_dimensions, n_critics=n_critics, width=n_outputs, hidden=hidden)
        super().__init__()
        before = () if recurrent is None else hidden[:1]
        self.encoder = make_encoder(shapes, before, activation, encoder=encoder, norm=norm, recurrent=recurrent)
        sizes = [self.encoder.n_features + n_dimensions, *hidden, n_outputs]
        self.layers = nn.ModuleList([StackedLinear(n_critics, a, b) for a, b in itertools.pairwise(sizes)])
        self.norms = None
        if norm is not None:
            self.norms = nn.ModuleList([StackedNorm(norm, n_critics, size) for size in hidden])
        self.n_critics, self.width = n_critics, width
        self.activation = activation_function(torch.relu_ if activation is None else activation)
        self.draw()

    def forward(self, features: Any, action: Tensor, *, n_first: int | None = None) -> Tensor:
        """Return values [B, C], or outputs [B, C, W], for features [B, ...] and actions [B, D] in policy units.

        With `n_first` only the first ones are computed: [B, n_first], or [B, n_first, W].
        """
        x = torch.cat([self.encoder(features), action], dim=1)
        x = x.expand(self.n_critics if n_first is None else n_first, *x.shape)
        last = len(self.layers) - 1
        for position, layer in enumerate(self.layers):
            x = layer(x)
            if position < last:
                x = self.activation(x if self.norms is None else self.norms[position](x))
        return x.squeeze(2).T if self.width is None else x.transpose(0, 1)

    @torch.no_grad()
    def map_outputs(self, matrix: Tensor, offset: Tensor) -> list[nn.Parameter]:
        """Replace the outputs o [W] of each critic by matrix @ o + offset; return the parameters that changed."""
        changed = list(self.layers[-1].parameters())  # [C, W, in], [C, 1, W]
        for parameter in changed:
            parameter.copy_(mapped(parameter, matrix))
        changed[1].add_(offset)
        return changed


class LayerOptions(TypedDict):
    """Options of an actor's or a critic's layers, as in `ActorNetwork`."""

    hidden: Sequence[int]
    encoder: EncoderLike | None
    activation: Activation | None
    norm: Norm | None
    recurrent: Recurrent | None


class Networks(Protocol):
    """Makes the actor and the critics that `ActorCriticPolicy.for_envs` constructs; a `Part`, to be saved.

    They raise a ConfigError for an option that would have no effect.
    """

    def actor(self, shapes: Any, width: int, **layers: Unpack[LayerOptions]) -> nn.Module:
        """Return the actor: features -> [B, width]."""
        ...

    def critics(
        self, shapes: Any, n_dimensions: int, *, n_critics: int, width: int | None, **layers: Unpack[LayerOptions]
    ) -> nn.Module:
        """Return the critics: (features, actions [B, D]) -> [B, C, W], or [B, C] for a width of None."""
        ...


class PlainNetworks(Part):
    """An `ActorNetwork` and a `CriticNetwork`."""

    def actor(self, shapes: Any, width: int, **layers: Unpack[LayerOptions]) -> nn.Module:
        """Return the actor: features -> [B, width]."""
        return ActorNetwork(shapes, width, **layers)

    def critics(
        self, shapes: Any, n_dimensions: int, *, n_critics: int, width: int | None, **layers: Unpack[LayerOptions]
    ) -> nn.Module:
        """Return the critics: (features, actions [B, D]) -> [B, C, W], or [B, C] for a width of None."""
        return CriticNetwork(shapes, n_dimensions, n_critics=n_critics, width=width, **layers)


class StackedLinear(nn.Module):
    """C linear layers in one batched product: [C, B, in] to [C, B, out]; fewer inputs are those of the first layers."""

    def __init__(self, n_layers: int, in_features: int, out_features: int, *, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_layers, out_features, in_features, dtype=torch.float32))
        self.bias = nn.Parameter(torch.empty(n_layers, 1, out_features, dtype=torch.float32)) if bias else None
        self.draw_parameters(torch.Generator().manual_seed(seeding.fresh_root()))

    def draw_parameters(self, generator: torch.Generator) -> None:
        """Initialize each layer as torch initializes a linear layer."""
        bound = 1.0 / math.sqrt(self.weight.shape[2])
        draw_uniform(self.weight, bound, generator)
        if self.bias is not None:
            draw_uniform(self.bias, bound, generator)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = of_first(len(x), self.weight, self.bias)
        weight = weight.transpose(1, 2)
        return torch.bmm(x, weight) if bias is None else torch.baddbmm(bias, x, weight)


def _check_sizes(name: str, *, hidden: Sequence[object], **counts: object) -> None:
    with Checks(name) as checks:
        for option, count in counts.items():
            checks.integer(option, count, low=1)
        for size in hidden:
            checks.integer("hidden sizes", size, low=1)


def _check_leaves(critic_only: Sequence[str], shapes: Any, *, shared: bool) -> None:
    """Raise a ConfigError unless the critic has a torso of its own, and the actor a leaf to see."""
    with Checks("ActorCriticNetwork") as checks:
        is_list = not isinstance(critic_only, str)
        checks.require(is_list, f".critic_only must be a list of leaves such as [{critic_only!r}], got {critic_only!r}")
        checks.done()
        leaves = list(shapes) if isinstance(shapes, dict) else []
        unknown = [name for name in critic_only if name not in leaves]
        checks.require(not unknown, f".critic_only names {unknown}, and the observation has the leaves {leaves}")
        is_seen = not critic_only or bool(set(leaves) - set(critic_only))
        checks.require(is_seen, ".critic_only names all leaves of the observation: leave one to the actor")
        is_apart = not (critic_only and shared)
        checks.require(is_apart, " has critic_only and shared=True: a critic that sees more needs a torso of its own")
