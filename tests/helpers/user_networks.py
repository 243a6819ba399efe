"""Networks, parts and policies as users write them, in plain torch."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from tests.helpers.learning import FOUR_NUMBERS, THREE_ACTIONS
from trainkit import Adam, DQNPolicy, ExpectedValue, Policy, Target
from trainkit.engine.loss import Loss, TensorBatch
from trainkit.nets.networks import Prediction

N_IN, N_OUT = 4, 3
DIGIT = spaces.Discrete(6)


class Normed(nn.Module):
    """Layers with LayerNorm, a GELU and a residual connection."""

    def __init__(self, activation: nn.Module | None = None) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(N_IN, 32), nn.Linear(32, 32), nn.Linear(32, N_OUT)
        self.norm = nn.LayerNorm(32)
        self.activation = nn.GELU() if activation is None else activation

    def forward(self, x: Tensor) -> Tensor:
        x = self.activation(self.first(x))
        return self.last(x + self.activation(self.second(self.norm(x))))


class Embedded(nn.Module):
    """An embedding of an integer, and of pairs of integers by an index."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.pairs = nn.Embedding(6, 16), nn.Parameter(torch.randn(6, 6, 16))
        self.last = nn.Linear(32, N_OUT)

    def forward(self, digit: Tensor) -> Tensor:
        digit = digit.long()
        return self.last(torch.cat([self.table(digit), self.pairs[digit, (digit * 5 + 1) % 6]], dim=1))


class Attention(nn.Module):
    """Two heads of attention over the numbers of an observation, by matmul."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Linear(1, 16)
        self.qkv, self.last = nn.Linear(16, 48, bias=False), nn.Linear(16, N_OUT)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.token(x.unsqueeze(-1))  # [B, 4, 16]
        q, k, v = self.qkv(tokens).view(len(x), N_IN, 3, 2, 8).permute(2, 0, 3, 1, 4)
        weight = (q @ k.transpose(-2, -1) / math.sqrt(8)).softmax(dim=-1)
        mixed = (weight @ v).transpose(1, 2).reshape(len(x), N_IN, 16)
        return self.last((tokens + mixed).mean(dim=1))


class TorchAttention(nn.Module):
    """torch's own multi-head attention."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.attention = nn.Linear(1, 16), nn.MultiheadAttention(16, 2, batch_first=True)
        self.last = nn.Linear(16, N_OUT)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.token(x.unsqueeze(-1))
        mixed, _ = self.attention(tokens, tokens, tokens, need_weights=False)
        return self.last(mixed.amax(dim=1))


class Still(nn.Module):
    """A part that stays in eval mode, as a pretrained one."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part.eval()

    def train(self, mode: bool = True) -> "Still":
        super().train(mode)
        self.part.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.part(x)
        return y


class Experts(nn.Module):
    """A softmax mixture of experts, by einsum."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(N_IN, 5)
        self.weight, self.bias = nn.Parameter(torch.randn(5, N_IN, 24)), nn.Parameter(torch.zeros(5, 24))
        self.last = nn.Linear(24, N_OUT)

    def forward(self, x: Tensor) -> Tensor:
        each = torch.einsum("bi,eio->beo", x, self.weight) + self.bias
        return self.last(torch.einsum("be,beo->bo", self.gate(x).softmax(dim=1), each.tanh()))


class Elementary(nn.Module):
    """where, clamp, logsumexp, cumsum, sort, stack, roll and a stop of the gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(N_IN, 20), nn.Linear(8, N_OUT)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        y = torch.where(y > 0.1, y, 0.3 * y.clamp(min=-1.0, max=0.7))
        a, b, c = y.split([8, 8, 4], dim=1)
        a = a.cumsum(dim=1) / torch.arange(1, 9) + b.roll(1, dims=1).detach() * b
        spread = c.logsumexp(dim=1, keepdim=True) - c.sort(dim=1).values[:, :1]
        return self.last(torch.stack([a, spread.expand(-1, 8)], dim=2).prod(dim=2).abs().add(1e-3).log())


class Fourier(nn.Module):
    """Random Fourier features, and a buffer."""

    frequencies: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.randn(N_IN, 16))
        self.last = nn.Linear(32, N_OUT)

    def forward(self, x: Tensor) -> Tensor:
        angle = 2.0 * math.pi * x @ self.frequencies
        return self.last(torch.cat([angle.sin(), angle.cos()], dim=-1))


class Recurrent(nn.Module):
    """A GRU cell over the numbers of an observation."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.last = nn.GRUCell(1, 12), nn.Linear(12, N_OUT)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), 12)
        for number in x.unbind(dim=1):
            state = self.cell(number.unsqueeze(1), state)
        return self.last(state)


class OwnDueling(nn.Module):
    """A dueling network with two heads and activations in place."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(N_IN, 40), nn.ReLU(inplace=True), nn.Linear(40, 24), nn.LeakyReLU(0.1, True)
        )
        self.value, self.advantage = nn.Linear(24, 1), nn.Linear(24, N_OUT)

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        advantage = self.advantage(y)
        return self.value(y) + advantage - advantage.mean(dim=-1, keepdim=True)


class WeightNormed(nn.Module):
    """A parametrized layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = parametrizations.weight_norm(nn.Linear(N_IN, 24))
        self.last = nn.Linear(24, N_OUT)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.first(x).tanh())
        return y


def _convolutions() -> nn.Module:
    layers = nn.Conv1d(1, 6, 3, padding=1), nn.SiLU(), nn.Conv1d(6, 4, 2), nn.Flatten()
    return nn.Sequential(nn.Unflatten(1, (1, N_IN)), *layers, nn.Linear(12, N_OUT))


def _around(*middle: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(N_IN, 16), *middle, nn.Linear(16, N_OUT))


def _layers(activation: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(N_IN, 32), activation, nn.Linear(32, 16), activation, nn.Linear(16, N_OUT))


# ---- parts ----


class LogCosh(ExpectedValue):
    """A smooth loss of a user's own, a number as metric."""

    def loss(self, chosen: Tensor, td_target: Tensor) -> tuple[Tensor, Tensor]:
        td = (td_target - chosen).squeeze(1)
        loss = functional.softplus(-2.0 * td) + td - math.log(2.0)
        return loss, td.detach().abs().pow(0.7)

    def metrics(self, chosen: Tensor, td_target: Tensor, *rest: Tensor) -> dict[str, Tensor]:
        return {"td_std": (td_target - chosen).std(unbiased=False), "td_norm": (td_target - chosen).norm()}


class MellowmaxBackup:
    """Follow a soft maximum of the online and the target network's values."""

    def __init__(self, sharpness: float = 2.0) -> None:
        self.sharpness = sharpness

    def __call__(self, online: Any, target: Any, batch: TensorBatch, value: Any) -> tuple[Tensor, Tensor]:
        q = torch.minimum(*(value.mean(one(batch.next_obs, None).outputs) for one in (online, target)))
        soft = (self.sharpness * q).logsumexp(dim=1) - math.log(q.shape[1])
        return (soft / self.sharpness).unsqueeze(1), batch.reward.clamp(-1.0, 1.0)


class EntropyPenalty:
    """Charge for indifference between actions."""

    def __init__(self, weight: float = 0.1) -> None:
        self.weight = weight

    def __call__(self, q: Tensor, action: Tensor, legal: Tensor | None) -> Tensor:
        log_p = q.log_softmax(dim=1)
        return self.weight * -(log_p.exp() * log_p).sum(dim=1) + 1e-3 * torch.linalg.vector_norm(q, dim=1)


class Weighted(DQNPolicy):
    """A loss of a user's own: clipped advantages weigh the likelihood of actions (as in AWAC)."""

    def loss(self, rows: TensorBatch) -> Loss:
        q = self.network(rows.obs).outputs.squeeze(2)
        with torch.no_grad():
            best = self.target_network(rows.next_obs).outputs.squeeze(2).amax(dim=1)
            advantage = rows.reward + rows.discount * best - q.mean(dim=1)
            weight = (advantage / advantage.std(unbiased=False).add(1e-3)).clamp(max=2.0).exp()
        log_p = q.log_softmax(dim=1).gather(1, rows.action[:, None]).squeeze(1)
        smooth = functional.smooth_l1_loss(q.mean(dim=1), rows.reward, reduction="none", beta=0.5)
        return Loss(smooth - weight * log_p, advantage.abs(), {"weight_max": weight.max()})


class ModelBased(Policy):
    """Two gradient steps: a model of the next observation, whose errors a critic is given."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.model = nn.Sequential(nn.Linear(N_IN + N_OUT, 32), nn.Tanh(), nn.Linear(32, 2 * N_IN))
        self.critic = nn.Sequential(nn.Linear(N_IN, 32), nn.ELU(), nn.Linear(32, N_OUT))
        self.add_gradient_step("model", self.model, Adam(1e-3), loss=self.model_loss)
        self.add_gradient_step("critic", self.critic, Adam(1e-3), loss=self.critic_loss, reads="model")
        self.target_critic = self.add_target("critic", self.critic, Target(every=1, unit="updates", tau=0.1))

    def loss_inputs(self, n_rows: int, *, step: int) -> dict[str, Any]:
        noise = torch.randn(n_rows, N_IN, generator=self.generator)
        return {"noise": noise, "share": np.asarray(1.0 / (1 + step), np.float32)}

    def model_loss(self, rows: TensorBatch) -> Loss:
        action = (rows.action[:, None] == torch.arange(N_OUT)).to(rows.obs.dtype)
        mean, log_std = self.model(torch.cat([rows.obs, action], dim=1)).chunk(2, dim=1)
        guess = rows.obs + mean + log_std.clamp(-4.0, 2.0).exp() * rows.inputs["noise"]
        error = (guess - rows.next_obs).square().mean(dim=1)
        return Loss(error, metrics={"error": error.mean()}, outputs={"error": error, "guess": guess})

    def critic_loss(self, rows: TensorBatch) -> Loss:
        guess, trust = rows.inputs["guess"], (-rows.inputs["share"] * rows.inputs["error"]).exp()
        with torch.no_grad():
            real, imagined = (self.target_critic(obs).amax(dim=1) for obs in (rows.next_obs, guess))
            target = rows.reward + rows.discount * torch.lerp(real, imagined, trust)
        td = self.critic(rows.obs).gather(1, rows.action[:, None]).squeeze(1) - target
        return Loss(td.square(), td.detach().abs(), {"trust": trust.mean()})


class OnlyPrediction(nn.Module):
    """A network that returns a `Prediction` and takes noise that it does not use."""

    noise_size = 0

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Bilinear(N_IN, N_IN, N_OUT)

    def forward(self, features: Tensor, noise: Tensor | None = None, legal: Tensor | None = None) -> Prediction:
        return Prediction(self.net(features, features.flip(1)).unsqueeze(2))


def drawn(network: nn.Module) -> nn.Module:
    """Draw parameters and floating buffers again, from a generator of their own, and return the network."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in (*network.parameters(), *network.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(0.1 + 0.3 * torch.randn(tensor.shape, generator=generator).abs())
                tensor.mul_(
                    torch.randint(0, 2, tensor.shape, generator=generator) * 2 - 1 if tensor.requires_grad else 1
                )
    return network


def _dqn(network: Callable[[], nn.Module], **parts: Any) -> Callable[..., Policy]:
    def make(**options: Any) -> Policy:
        spaces_of = {"observation_space": FOUR_NUMBERS, "action_space": THREE_ACTIONS}
        return DQNPolicy(
            drawn(network()), target=Target(every=1, unit="updates", tau=0.1), **spaces_of | parts | options
        )

    return make


def _of_spaces(kind: Any, *network: Callable[[], nn.Module]) -> Callable[..., Policy]:
    def make(**options: Any) -> Policy:
        spaces_of = {"observation_space": FOUR_NUMBERS, "action_space": THREE_ACTIONS}
        made: Policy = kind(*(drawn(one()) for one in network), **spaces_of, **options)
        return made

    return make


USER_POLICIES: dict[str, Callable[..., Policy]] = {
    "layer norm, gelu, residual": _dqn(Normed),
    "layer norm, mish": _dqn(lambda: Normed(nn.Mish())),
    "elu": _dqn(lambda: _layers(nn.ELU(0.5))),
    "silu": _dqn(lambda: _layers(nn.SiLU())),
    "prelu": _dqn(lambda: _layers(nn.PReLU())),
    "softplus, hardtanh": _dqn(lambda: nn.Sequential(_layers(nn.Softplus(beta=2.0)), nn.Hardtanh(-0.2, 0.2))),
    "selu, group norm": _dqn(lambda: _around(nn.GroupNorm(2, 16), nn.SELU())),
    "embedding": _dqn(Embedded, observation_space=DIGIT),
    "attention": _dqn(Attention),
    "attention of torch": _dqn(TorchAttention),
    "weight norm": _dqn(WeightNormed),
    "dropout in eval mode": _dqn(lambda: _around(Still(nn.Dropout()), nn.Tanh())),
    "batch norm in eval mode": _dqn(lambda: _around(Still(nn.BatchNorm1d(16)), nn.Sigmoid())),
    "einsum": _dqn(Experts),
    "elementary functions": _dqn(Elementary),
    "fourier features": _dqn(Fourier),
    "own dueling, in place": _dqn(OwnDueling),
    "convolutions": _dqn(_convolutions),
    "bilinear": _dqn(OnlyPrediction),
    "own value part": _dqn(lambda: _layers(nn.Tanh()), value=LogCosh()),
    "own backup": _dqn(lambda: _layers(nn.Tanh()), backup=MellowmaxBackup()),
    "own penalty": _dqn(lambda: _layers(nn.Tanh()), penalty=EntropyPenalty()),
    "own loss": _of_spaces(Weighted, lambda: _layers(nn.Tanh())),
    "own policy of two steps": _of_spaces(ModelBased),
}
