"""Networks with batch normalization, of CrossQ and XQC, and the pass of their critics over two batches at once."""

import inspect
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from trainkit.core import tree
from trainkit.core.config import Part
from trainkit.core.errors import Checks, ConfigError
from trainkit.core.signatures import checked
from trainkit.engine.gradient_step import Parameters
from trainkit.nets.actor_critic_networks import LayerOptions, StackedLinear
from trainkit.nets.encoders import EncoderLike, make_encoder, stateful_encoders
from trainkit.nets.layers import Activation, activation_function, reset_norm
from trainkit.nets.weights import SeededModule
from trainkit.policy.critics import CriticInputs, CriticPass, DrawsNoise, Network

_EPSILON = 1e-3  # of both papers' code
_R_MAX, _D_MAX = 3.0, 5.0  # Ioffe (2017)


class BatchRenorm(nn.Module):
    """Batch normalization of C networks' features [C, B, F] over the B rows, with renormalization after a warm-up.

    Ioffe and Szegedy (2015); Ioffe (2017), "Batch renormalization": while it learns, features are normalized by the
    mean m and the deviation s of the batch, y = (x - m) / s * r + d, with r = s / s' clipped to 1/3..3 and
    d = (m - m') / s' clipped to -5..5, which have no gradients; m' and s' are the running ones, which also normalize in
    evaluation mode. During the warm-up r = 1 and d = 0. Then y * scale + shift. Variances are those of the population.

    Args:
        n_networks: C.
        n_features: F.
        momentum: share by which running statistics move to those of a batch.
        warm_up: passes without renormalization; None renormalizes never.
    """

    has_modes = True
    running_mean: Tensor  # [C, 1, F]
    running_var: Tensor  # [C, 1, F]
    n_passes: Tensor  # []

    def __init__(self, n_networks: int, n_features: int, *, momentum: float, warm_up: int | None) -> None:
        super().__init__()
        shape = n_networks, 1, n_features
        self.momentum, self.warm_up = momentum, warm_up
        self.weight = nn.Parameter(torch.ones(shape, dtype=torch.float32))
        self.bias = nn.Parameter(torch.zeros(shape, dtype=torch.float32))
        self.register_buffer("running_mean", torch.zeros(shape, dtype=torch.float32))
        self.register_buffer("running_var", torch.ones(shape, dtype=torch.float32))
        self.register_buffer("n_passes", torch.zeros((), dtype=torch.float32))

    @torch.no_grad()
    def draw_parameters(self, generator: torch.Generator) -> None:
        """Set scales to 1 and shifts to 0, and forget the running statistics."""
        reset_norm(self.weight, self.bias)
        self.running_mean.fill_(0.0)
        self.running_var.fill_(1.0)
        self.n_passes.fill_(0.0)

    def forward(self, x: Tensor, *, batch_statistics: bool = False) -> Tensor:
        """Return normalized features [C, B, F].

        Args:
            x: [C, B, F].
            batch_statistics: normalize by the batch in evaluation mode, too, without renormalization.
        """
        if not (self.training or batch_statistics):
            fixed = self.weight * (self.running_var + _EPSILON).rsqrt()
            return torch.addcmul(self.bias - self.running_mean * fixed, x, fixed)
        x = x.float()  # statistics and what they normalize are in float32 whatever the precision of products
        mean = x.mean(dim=1, keepdim=True)
        centered = x - mean
        var = centered.square().mean(dim=1, keepdim=True)
        scale: Tensor = self.weight * (var + _EPSILON).rsqrt()
        shift: Tensor = self.bias
        if self.training:
            if self.warm_up is not None:
                r, d = self._renormalization(mean.detach(), var.detach())
                scale, shift = scale * r, shift + self.weight * d
            self._follow(mean.detach(), var.detach())
        return torch.addcmul(shift, centered, scale)

    @torch.no_grad()
    def _renormalization(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        """Return (r, d), [C, 1, F] each, of a batch's statistics; 1 and 0 during the warm-up."""
        is_warm = self.n_passes >= float(self.warm_up or 0)
        deviation, running = (var + _EPSILON).sqrt(), (self.running_var + _EPSILON).sqrt()
        r = (deviation / running).clamp(1.0 / _R_MAX, _R_MAX)
        d = ((mean - self.running_mean) / running).clamp(-_D_MAX, _D_MAX)
        return torch.where(is_warm, r, 1.0), torch.where(is_warm, d, 0.0)

    @torch.no_grad()
    def _follow(self, mean: Tensor, var: Tensor) -> None:
        """Move the running statistics to those of a batch."""
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(var, self.momentum)
        self.n_passes.add_(1.0)


class StackedBatchNormMLP(nn.Module):
    """C networks of linear layers with batch normalization, of inputs [B, in] or [C, B, in] to outputs [C, B, out].

    The inputs are normalized, and each hidden layer is linear, relu, normalization, or linear, normalization, relu.

    Args:
        n_networks: C.
        sizes: (in, hidden ..., out).
        activation: after each hidden layer.
        norm_first: normalize before the activation; hidden layers then have no biases, which it would remove.
        momentum, warm_up: as in `BatchRenorm`.
    """

    def __init__(
        self,
        n_networks: int,
        sizes: Sequence[int],
        *,
        activation: Activation | None,
        norm_first: bool,
        momentum: float,
        warm_up: int | None,
    ) -> None:
        super().__init__()
        how: dict[str, Any] = {"momentum": momentum, "warm_up": warm_up}
        pairs = list(itertools.pairwise(sizes))
        has_bias = [not norm_first] * (len(pairs) - 1) + [True]
        self.n_networks, self.norm_first = n_networks, norm_first
        self.norms = nn.ModuleList([BatchRenorm(n_networks, size, **how) for size in sizes[:-1]])
        self.layers = nn.ModuleList(
            [StackedLinear(n_networks, a, b, bias=bias) for (a, b), bias in zip(pairs, has_bias, strict=True)]
        )
        self.activation = activation_function(activation)

    def forward(self, x: Tensor, *, batch_statistics: bool = False) -> Tensor:
        x = x.expand(self.n_networks, *x.shape[-2:])
        norms = iter(self.norms)
        x = next(norms)(x, batch_statistics=batch_statistics)
        for layer, norm in zip(self.layers, norms, strict=False):
            x = layer(x)
            if self.norm_first:
                x = self.activation(norm(x, batch_statistics=batch_statistics))
            else:
                x = norm(self.activation(x), batch_statistics=batch_statistics)
        outputs: Tensor = self.layers[-1](x)
        return outputs

    def on_sphere(self, parameters: Parameters, prefix: str) -> Mapping[str, Tensor]:
        """Return the layers' weights with the Euclidean norm of the weights of each unit set to 1."""
        names = [f"{prefix}layers.{position}.weight" for position in range(len(self.layers))]
        return {
            name: parameters[name] / torch.linalg.vector_norm(parameters[name], dim=2, keepdim=True) for name in names
        }


class BatchNormNetwork(SeededModule):
    """Base of actors and critics with batch normalization.

    Args:
        n_networks: C.
        n_inputs: after the encoder.
        width: outputs.
        hidden: layers.
        on_sphere: keep the norm of the weights of each unit at 1, from the start on and after every gradient step.
        options: of `StackedBatchNormMLP`.
    """

    def __init__(
        self, n_networks: int, n_inputs: int, width: int, hidden: Sequence[int], *, on_sphere: bool, **options: Any
    ) -> None:
        super().__init__()
        self.body = StackedBatchNormMLP(n_networks, [n_inputs, *hidden, width], **options)
        self._on_sphere = on_sphere

    @property
    def constrained(self) -> Any:
        """What the parameters become after each gradient step, a function of them; None for nothing."""
        return self._projected if self._on_sphere else None

    def _projected(self, parameters: Parameters) -> Mapping[str, Tensor]:
        return self.body.on_sphere(parameters, "body.")

    def _initialize(self, generator: torch.Generator) -> None:
        super()._initialize(generator)
        if self._on_sphere:
            with torch.no_grad():
                own = dict(self.named_parameters())
                for name, projected in self._projected(own).items():
                    own[name].copy_(projected)


class BatchNormActor(BatchNormNetwork):
    """Actor with batch normalization: features -> [B, width]."""

    def __init__(
        self,
        shapes: Any,
        width: int,
        *,
        hidden: Sequence[int],
        encoder: EncoderLike | None,
        activation: Activation | None,
        **how: Any,
    ) -> None:
        own = make_encoder(shapes, (), activation, encoder=encoder)
        super().__init__(1, own.n_features, width, hidden, activation=activation, **how)
        self.encoder = own
        self.draw()

    def forward(self, features: Any) -> Tensor:
        """Return outputs [B, width] for features [B, ...]."""
        outputs: Tensor = self.body(self.encoder(features))[0]
        return outputs


class BatchNormCritics(BatchNormNetwork):
    """C critics with batch normalization, which share only the encoder.

    They map (features, actions [B, D]) to outputs [B, C, W], or to values [B, C] for a width of None.
    """

    def __init__(
        self,
        shapes: Any,
        n_dimensions: int,
        *,
        n_critics: int,
        width: int | None,
        hidden: Sequence[int],
        encoder: EncoderLike | None,
        activation: Activation | None,
        **how: Any,
    ) -> None:
        own = make_encoder(shapes, (), activation, encoder=encoder)
        n_outputs = 1 if width is None else width
        super().__init__(n_critics, own.n_features + n_dimensions, n_outputs, hidden, activation=activation, **how)
        self.encoder = own
        self.n_critics, self.width = n_critics, width
        self.draw()

    def forward(self, features: Any, action: Tensor, *, batch_statistics: bool = False) -> Tensor:
        """Return outputs [B, C, W], or values [B, C]; normalized by the batch in evaluation mode, too, if wanted."""
        x = torch.cat([self.encoder(features), action], dim=1)
        outputs: Tensor = self.body(x, batch_statistics=batch_statistics)  # [C, B, W]
        return outputs.squeeze(2).T if self.width is None else outputs.transpose(0, 1)


@checked
class BatchNormNetworks(Part):
    """An actor and critics with batch normalization of the inputs and of each hidden layer, for `for_envs(networks=)`.

    Args:
        norm_first: normalize before each activation, as XQC (Palenicek et al., 2025); not: after it, as CrossQ (Bhatt
            et al., 2024).
        warm_up: passes of a network while it learns before it renormalizes, see `BatchRenorm`; None: it never does.
        momentum: share by which running statistics move to those of a batch.
        on_sphere: keep the norm of the weights of each unit at 1, after every gradient step.
    """

    def __init__(
        self,
        *,
        norm_first: bool = False,
        warm_up: int | None = 100_000,
        momentum: float = 0.01,
        on_sphere: bool = False,
    ) -> None:
        with Checks("BatchNormNetworks") as checks:
            checks.integer("warm_up", warm_up, low=0, optional=True)
            checks.number("momentum", momentum, low=0, high=1, above_low=True)
        self.norm_first, self.warm_up, self.momentum, self.on_sphere = norm_first, warm_up, momentum, on_sphere

    def actor(self, shapes: Any, width: int, **layers: Unpack[LayerOptions]) -> nn.Module:
        """Return the actor: features -> [B, width]."""
        return BatchNormActor(shapes, width, **self._options(layers))

    def critics(
        self, shapes: Any, n_dimensions: int, *, n_critics: int, width: int | None, **layers: Unpack[LayerOptions]
    ) -> nn.Module:
        """Return the critics: (features, actions [B, D]) -> [B, C, W], or [B, C] for a width of None."""
        return BatchNormCritics(shapes, n_dimensions, n_critics=n_critics, width=width, **self._options(layers))

    def _options(self, layers: LayerOptions) -> dict[str, Any]:
        """Return the layers' options with those of the normalization; raise for some that would have no effect."""
        norm, recurrent = layers["norm"], layers["recurrent"]
        if norm is not None or recurrent is not None:
            raise ConfigError(
                f"BatchNormNetworks have batch normalization and no memory, got {norm=!r} and {recurrent=!r}: leave "
                "both out"
            )
        own = {name: layers[name] for name in ("hidden", "encoder", "activation")}
        return {**own, **self.arguments()}


@checked
class JointPass(CriticPass):
    """Call critics on the steps of the batch and on the next steps at once, so that both share batch statistics.

    Bhatt et al. (2024, CrossQ), figure 2. Target critics are called on both, too, and normalize by the batch
    (Palenicek et al., 2025); without target networks the next outputs are those of the same pass.
    """

    def check(self, checks: Checks, critics: nn.Module, *, has_target: bool) -> None:
        """Check that critics can be called on two batches at once, and targets with `batch_statistics=`."""
        kind, rule = type(critics).__name__, ".critic_pass: JointPass calls critics on two batches at once, but"
        remedy = "give critic_pass=SeparatePasses()"
        checks.require(not stateful_encoders(critics), f"{rule} {kind} has a memory: {remedy}")
        checks.require(not isinstance(critics, DrawsNoise), f"{rule} {kind} draws noise for one: {remedy}")
        takes = "batch_statistics" in inspect.signature(critics.forward).parameters
        rule = f".critic_pass: JointPass calls target critics with batch_statistics=, which {kind} does not take"
        checks.require(takes or not has_target, f'{rule}: give networks=BatchNormNetworks(), or target="none"')

    def __call__(
        self, critics: Network, target_critics: Network | None, steps: CriticInputs, next_steps: CriticInputs
    ) -> tuple[Tensor, Tensor]:
        """Return (outputs [B, C, W], next outputs [B, C, W] without gradients)."""
        both = tree.map_tree(lambda here, following: torch.cat([here, following]), steps, next_steps)
        outputs, next_outputs = critics(*both).chunk(2)
        if target_critics is not None:
            with torch.no_grad():
                next_outputs = target_critics(*both, batch_statistics=True).chunk(2)[1]
        return outputs, next_outputs.detach()
