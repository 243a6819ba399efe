"""Networks of action values: heads, `QNetwork` and `ImplicitQNetwork`."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypedDict, Unpack, runtime_checkable

import torch
from torch import Tensor, nn

from trainkit.core.errors import Checks, ConfigError
from trainkit.core.signatures import checked
from trainkit.nets.encoders import EncoderLike, Recurrent, make_encoder
from trainkit.nets.layers import MLP, Activation, Norm
from trainkit.nets.noisy import check_noise
from trainkit.nets.weights import SeededModule, new_linear


class Prediction(NamedTuple):
    """The outputs of a network of action values."""

    outputs: Tensor  # [B, A, W]: values, logits or quantiles
    fractions: Tensor | None = None  # [B, W] or [1, W], of the quantiles, where the value part samples them


class RandomInputs(NamedTuple):
    """Noise and quantile fractions of one forward pass of a network of action values, sampled by the caller."""

    noise: Tensor | None = None  # [R, noise_size], of noisy layers
    fractions: Tensor | None = None  # [B, W] or [1, W], where the value part samples them

    def fixed_in(self, network: Callable[..., Any]) -> Callable[[Any, Tensor | None], Prediction]:
        """Return the network as a function of features and action mask, with all other inputs fixed."""
        noise, fractions = self
        if fractions is None:
            return lambda features, legal: network(features, noise, legal)
        return lambda features, legal: network(features, noise, legal, fractions)


@runtime_checkable
class ActionValues(Protocol):
    """A network of action values, called with noise [R, noise_size]: R = B, or R = 1 for all rows.

    Where the value part samples quantile fractions, they are a fourth argument, [B, W] or [1, W].
    """

    noise_size: int

    def __call__(
        self, features: Any, noise: Tensor | None = None, legal: Tensor | None = None, *fractions: Tensor
    ) -> Prediction: ...


class ActionHeads(nn.Module):
    """Heads that map F features to W outputs for each of A actions.

    Args:
        n_features: F.
        n_actions: A.
        width: W.
        head: hidden layers, of each of the two heads when dueling.
        dueling: add a value [B, 1, W] and advantages [B, A, W] whose mean over the *actions*, the legal ones where
            there is a mask, is taken out (Wang et al., 2016, equation 9).
        noisy: make the layers noisy (Fortunato et al., 2018); a number is their initial noise sigma0, True is 0.5.
        activation: after each hidden layer; default relu.
        norm: before each activation.
    """

    def __init__(
        self,
        n_features: int,
        n_actions: int,
        *,
        width: int = 1,
        head: Sequence[int] = (),
        dueling: bool = False,
        noisy: bool | float = False,
        activation: Activation | None = None,
        norm: Norm | None = None,
    ) -> None:
        super().__init__()
        self.n_actions, self.width = n_actions, width

        def mlp(outputs: int) -> MLP:
            sizes = [n_features, *head, outputs]
            return MLP(sizes, activation=activation, norm=norm, noisy=noisy)

        self.advantage = mlp(n_actions * width)
        self.state_value = mlp(width) if dueling else None
        self.noise_size = self.advantage.noise_size + (0 if self.state_value is None else self.state_value.noise_size)

    def forward(self, x: Tensor, noise: Tensor | None = None, legal: Tensor | None = None) -> Tensor:
        noise_a = noise_v = None
        if noise is not None:
            noise_a, noise_v = noise[:, : self.advantage.noise_size], noise[:, self.advantage.noise_size :]
        advantage: Tensor = self.advantage(x, noise_a).view(-1, self.n_actions, self.width)
        if self.state_value is None:
            return advantage
        state_value: Tensor = self.state_value(x, noise_v).view(-1, 1, self.width)
        return state_value + advantage - _mean_over_actions(advantage, legal)

    @torch.no_grad()
    def map_outputs(self, matrix: Tensor, offset: Tensor) -> list[nn.Parameter]:
        """Replace the outputs o [W] of each action by matrix @ o + offset; return the parameters that changed."""
        streams = [self.advantage] if self.state_value is None else [self.advantage, self.state_value]
        layers: list[Any] = [stream.layers[-1] for stream in streams]
        changed = [parameter for layer in layers for parameter in layer.parameters()]
        for parameter in changed:
            parameter.copy_(mapped(parameter, matrix))
        layers[-1].bias.view(-1, self.width).add_(offset)  # once, although two streams add up
        return changed


def mapped(parameter: Tensor, matrix: Tensor) -> Tensor:
    """Return parameters [K * W, ...] of K outputs of width W, multiplied by a matrix [W, W] along W.

    Of C stacked layers they are weights [C, W, in] and biases [C, 1, W].
    """
    if parameter.dim() == 3:
        return parameter @ matrix.T if parameter.shape[1] == 1 else matrix @ parameter
    return (matrix @ parameter.view(-1, len(matrix), math.prod(parameter.shape[1:]))).view_as(parameter)


@runtime_checkable
class MapsOutputs(Protocol):
    """A network of action values whose outputs can be replaced by a linear function of them."""

    def map_outputs(self, matrix: Tensor, offset: Tensor) -> list[nn.Parameter]:
        """Replace the outputs o [W] of each action by matrix @ o + offset; return the parameters that changed.

        Their first axis is that of the outputs, [K * W, ...], or they are those of a `StackedLinear`.
        """
        ...


class HeadOptions(TypedDict, total=False):
    """Keyword arguments of `ActionHeads`."""

    head: Sequence[int]
    dueling: bool
    noisy: bool | float


@checked
class QNetwork(SeededModule):
    """Network of action values: W outputs for each of A actions.

    Args:
        shapes: the features' shapes, `Preprocess(space).shapes`.
        n_actions: A.
        width: W, `value.width`.
        hidden: layers shared by all.
        encoder: a name such as "impala", a module or a factory, see `Encoder`.
        activation: after each hidden layer, and of the encoder that is named; default relu.
        norm: "layer" or "rms", before each activation; None for none.
        recurrent: what carries a state behind the hidden layers: "lstm", "gru", "transformer", or a function of its
            number of inputs that returns a `nets.Memory`; None for nothing.
        heads: `head`, `dueling` and `noisy`, as in `ActionHeads`.
    """

    def __init__(
        self,
        shapes: Any,
        n_actions: int,
        *,
        width: int = 1,
        hidden: Sequence[int] = (128, 128),
        encoder: EncoderLike | None = None,
        activation: Activation | None = None,
        norm: Norm | None = None,
        recurrent: Recurrent | None = None,
        **heads: Unpack[HeadOptions],
    ) -> None:
        with Checks("QNetwork") as checks:
            check_layers(checks, n_actions, width=width, hidden=hidden, **heads)
        super().__init__()
        how: dict[str, Any] = {"activation": activation, "norm": norm}
        of_encoder: dict[str, Any] = {"encoder": encoder, "recurrent": recurrent}
        self.encoder = make_encoder(shapes, hidden, **of_encoder, **how)
        self.heads = ActionHeads(self.encoder.n_features, n_actions, width=width, **how, **heads)
        self.noise_size = self.heads.noise_size
        self.draw()

    def forward(self, features: Any, noise: Tensor | None = None, legal: Tensor | None = None) -> Prediction:
        """Return outputs [B, A, W] for features [B, ...].

        Args:
            features: of observations.
            noise: [B or 1, noise_size], of noisy layers; None is the mean network.
            legal: [B, A], the actions over which dueling heads average; None for all.
        """
        return Prediction(self.heads(self.encoder(features), noise, legal))

    def map_outputs(self, matrix: Tensor, offset: Tensor) -> list[nn.Parameter]:
        """Replace the outputs o [W] of each action by matrix @ o + offset; return the parameters that changed."""
        return self.heads.map_outputs(matrix, offset)


class CosineEmbedding(nn.Module):
    """Embedding of fractions [B, W] in features [B, W, F]: relu(linear(cos(pi i fraction))), i = 0 ... n_cosines - 1.

    Dabney et al. (2018, IQN), equation 4.
    """

    frequencies: Tensor  # [n_cosines]

    def __init__(self, n_features: int, n_cosines: int = 64) -> None:
        super().__init__()
        self.linear = new_linear(n_cosines, n_features)
        self.register_buffer("frequencies", math.pi * torch.arange(n_cosines, dtype=torch.float32), persistent=False)

    def forward(self, fractions: Tensor) -> Tensor:
        cosines = torch.cos(fractions.unsqueeze(-1) * self.frequencies)
        return torch.relu(self.linear(cosines))


@checked
class ImplicitQNetwork(SeededModule):
    """Network of the quantiles at W given fractions for each of A actions: heads on features * embedding(fraction).

    Dabney et al. (2018, IQN), section 3.1. Called with fractions [B, W], or [1, W] for all rows.

    Args:
        shapes: the features' shapes, `Preprocess(space).shapes`.
        n_actions: A.
        hidden: layers shared by all.
        n_cosines: of the embedding.
        encoder: a name such as "impala", a module or a factory, see `Encoder`.
        activation: after each hidden layer, and of the encoder that is named; default relu.
        norm: "layer" or "rms", before each activation; None for none.
        recurrent: what carries a state behind the hidden layers: "lstm", "gru", "transformer", or a function of its
            number of inputs that returns a `nets.Memory`; None for nothing.
        heads: `head`, `dueling` and `noisy`, as in `ActionHeads`.
    """

    def __init__(
        self,
        shapes: Any,
        n_actions: int,
        *,
        hidden: Sequence[int] = (128, 128),
        n_cosines: int = 64,
        encoder: EncoderLike | None = None,
        activation: Activation | None = None,
        norm: Norm | None = None,
        recurrent: Recurrent | None = None,
        **heads: Unpack[HeadOptions],
    ) -> None:
        with Checks("ImplicitQNetwork") as checks:
            check_layers(checks, n_actions, width=1, hidden=hidden, **heads)
            checks.integer("n_cosines", n_cosines, low=1)
        super().__init__()
        how: dict[str, Any] = {"activation": activation, "norm": norm}
        of_encoder: dict[str, Any] = {"encoder": encoder, "recurrent": recurrent}
        self.encoder = make_encoder(shapes, hidden, **of_encoder, **how)
        self.embedding = CosineEmbedding(self.encoder.n_features, n_cosines)
        self.heads = ActionHeads(self.encoder.n_features, n_actions, **how, **heads)
        self.noise_size = self.heads.noise_size
        self.draw()

    def forward(self, features: Any, noise: Tensor | None, legal: Tensor | None, fractions: Tensor) -> Prediction:
        """Return quantiles [B, A, W] for features [B, ...] at fractions [B, W] or [1, W].

        Args:
            features: of observations.
            noise: [B or 1, noise_size], of noisy layers; None is the mean network.
            legal: [B, A], the actions over which dueling heads average; None for all.
            fractions: of the quantiles.
        """
        x = self.encoder(features).unsqueeze(1) * self.embedding(fractions)  # [B, W, F]
        rows, width, _ = x.shape
        noise, legal = (
            per_row if per_row is None or per_row.shape[0] == 1 else per_row.repeat_interleave(width, dim=0)
            for per_row in (noise, legal)
        )
        outputs = self.heads(x.flatten(0, 1), noise, legal)  # [B * W, A, 1]
        return Prediction(outputs.view(rows, width, -1).transpose(1, 2), fractions)


def check_layers(
    checks: Checks,
    n_actions: object,
    *,
    width: object,
    hidden: Sequence[object],
    head: Sequence[object] = (),
    noisy: object = False,
    **flags: bool,
) -> None:
    """Check the sizes of a network of action values."""
    checks.integer("n_actions", n_actions, low=1)
    checks.integer("width", width, low=1)
    for size in (*hidden, *head):
        checks.integer("hidden and head sizes", size, low=1)
    check_noise(checks, noisy)


def _mean_over_actions(advantage: Tensor, legal: Tensor | None) -> Tensor:
    """Average [B, A, W] over the legal actions, [B, 1, W]."""
    if legal is None:
        return advantage.mean(dim=1, keepdim=True)
    counts = legal.unsqueeze(2).to(advantage.dtype)
    n_legal = counts.sum(dim=1, keepdim=True).clamp(min=1.0)  # after the end of an episode no action may be legal
    return (advantage * counts).sum(dim=1, keepdim=True) / n_legal


class PlainModule(nn.Module):
    """Adapter of any module, features -> [B, A, W] or [B, A], to a network of action values."""

    noise_size = 0

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, features: Any, noise: Tensor | None = None, legal: Tensor | None = None) -> Prediction:
        outputs = self.module(features)
        if isinstance(outputs, Prediction):
            return outputs
        if not isinstance(outputs, Tensor) or outputs.dim() not in (2, 3):
            got = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
            raise ConfigError(f"a network must map observations to [B, A, W] or [B, A], got {got}")
        return Prediction(outputs.unsqueeze(2) if outputs.dim() == 2 else outputs)
