"""Updates of TD3, TQC and REDQ as their papers and their code write them: separate networks, torch's optimizers.

Nothing here is trainkit's. `beside` gives a policy and a reference equal weights, and updates both with the same rows.
"""

import copy
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.helpers.learning import FOUR_NUMBERS, Spaces
from tests.helpers.sac import PUSH
from trainkit import ActorCriticPolicy, TransitionBatch

LOG_2_PI = float(np.log(2 * np.pi))
N_ROWS = 32


class Rows(NamedTuple):
    """Columns of B rows, actions in -1..1."""

    obs: Tensor
    action: Tensor
    reward: Tensor  # [B, 1]
    discount: Tensor  # [B, 1]
    next_obs: Tensor
    noise: Tensor  # [B, D], standard normal, as the one below
    next_noise: Tensor


def squashed(outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return (actions [B, D], log-densities [B, 1]) of a squashed normal distribution."""
    mean, log_std = outputs.chunk(2, dim=1)
    log_std = log_std.clamp(-20, 2)
    u = mean + log_std.exp() * noise
    log_normal = -0.5 * noise**2 - log_std - 0.5 * LOG_2_PI
    log_derivative = 2 * (np.log(2) - u - functional.softplus(-2 * u))  # of tanh, exact where 1 - tanh(u)^2 is 0
    return u.tanh(), (log_normal - log_derivative).sum(dim=1, keepdim=True)


def net(sizes: tuple[int, ...]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for position in range(len(sizes) - 1):
        layers += [nn.utils.skip_init(nn.Linear, sizes[position], sizes[position + 1]), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Reference:
    """An actor and separate critics, with target networks of their own.

    Args:
        policy: whose weights and sizes these have.
        lr: of all optimizers.
        tau: of all targets.
    """

    def __init__(self, policy: ActorCriticPolicy, lr: float, tau: float) -> None:
        sizes = [tuple(layer.weight.shape) for layer in policy.critics.layers]  # type: ignore[union-attr]  # ours
        own = (sizes[0][2], *(shape[1] for shape in sizes))
        n_features = own[0] - policy.distribution.n_dimensions
        self.actor = net((n_features, *own[1:-1], policy.distribution.width)).double()
        self.critics = nn.ModuleList([net(own).double() for _ in range(sizes[0][0])])
        self.target_actor, self.target_critics = copy.deepcopy(self.actor), copy.deepcopy(self.critics)
        self.log_temperature = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.lr, self.tau, self.n_updates = lr, tau, 0
        self.take_weights(policy)
        self.optimizers = {
            "critic": torch.optim.Adam(self.critics.parameters(), lr),
            "actor": torch.optim.Adam(self.actor.parameters(), lr),
            "temperature": torch.optim.Adam([self.log_temperature], lr),
        }
        self.gradients: dict[str, Tensor] = {}

    @torch.no_grad()
    def take_weights(self, policy: ActorCriticPolicy) -> None:
        """Copy the policy's weights."""
        pairs = [(self.actor, policy.actor)]
        pairs += [] if policy.target_actor is None else [(self.target_actor, policy.target_actor)]
        for own, theirs in pairs:
            for mine, parameter in zip(own.parameters(), theirs.parameters(), strict=True):
                mine.copy_(parameter)
        for mine, parameter in stacked_pairs(self.critics, policy.critics):
            mine.copy_(parameter)
        assert policy.target_critics is not None
        for mine, parameter in stacked_pairs(self.target_critics, policy.target_critics):
            mine.copy_(parameter)
        if policy.learned_temperature is not None:
            self.log_temperature.copy_(policy.learned_temperature.log)

    def q(self, critics: Any, obs: Tensor, action: Tensor) -> Tensor:
        """Return the outputs of all critics, [B, C, W]."""
        return torch.stack([critic(torch.cat([obs, action], dim=1)) for critic in critics], dim=1)

    def step(self, name: str, loss: Tensor, parameters: Iterator[nn.Parameter]) -> None:
        """Take a gradient step, and keep its gradient."""
        optimizer, own = self.optimizers[name], list(parameters)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own
        self.gradients[name] = torch.cat([one.grad.flatten() for one in own if one.grad is not None])
        optimizer.step()

    @torch.no_grad()
    def follow(self, *pairs: tuple[nn.Module, nn.Module]) -> None:
        for target, online in pairs:
            for own, followed in zip(target.parameters(), online.parameters(), strict=True):
                own.copy_(self.tau * followed + (1 - self.tau) * own)

    def update(self, rows: Rows) -> None:
        """Take one update."""
        raise NotImplementedError

    def weights(self) -> dict[str, Tensor]:
        """Return all weights, flat."""
        own: dict[str, nn.Module] = {"actor": self.actor, "critics": self.critics, "targets": self.target_critics}
        return {
            name: torch.cat([one.detach().flatten() for one in module.parameters()]) for name, module in own.items()
        }


def stacked_pairs(critics: nn.Module, stacked: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (parameter of a separate critic, its part of the stacked critics)."""
    for number, critic in enumerate(critics.children()):
        linears = [layer for layer in critic.modules() if isinstance(layer, nn.Linear)]
        for layer, whole in zip(linears, stacked.layers, strict=True):  # type: ignore[arg-type]  # ours
            yield layer.weight, whole.weight[number]
            yield layer.bias, whole.bias[number, 0]


class TD3(Reference):
    """Fujimoto et al. (2018), algorithm 1, in the order of stable-baselines3."""

    def update(self, rows: Rows) -> None:
        self.n_updates += 1
        with torch.no_grad():
            noise = (0.2 * rows.next_noise).clamp(-0.5, 0.5)
            next_action = (self.target_actor(rows.next_obs).tanh() + noise).clamp(-1, 1)
            after = self.q(self.target_critics, rows.next_obs, next_action).min(dim=1).values
            target = rows.reward + rows.discount * after
        q = self.q(self.critics, rows.obs, rows.action)
        losses = [functional.mse_loss(q[:, number], target) for number in range(q.shape[1])]
        self.step("critic", torch.stack(losses).sum(), self.critics.parameters())
        if self.n_updates % 2 == 0:
            action = self.actor(rows.obs).tanh()
            self.step("actor", -self.q(self.critics, rows.obs, action)[:, 0].mean(), self.actor.parameters())
            self.follow((self.target_critics, self.critics), (self.target_actor, self.actor))


class TQC(Reference):
    """Kuznetsov et al. (2020), algorithm 1: the loss of each critic is a mean over its quantiles and the targets."""

    drop = 2

    def update(self, rows: Rows) -> None:
        temperature = self.log_temperature.detach().exp()
        action, log_prob = squashed(self.actor(rows.obs), rows.noise)
        with torch.no_grad():
            next_action, next_log_prob = squashed(self.actor(rows.next_obs), rows.next_noise)
            pooled = self.q(self.target_critics, rows.next_obs, next_action).flatten(1).sort(dim=1).values
            pooled = pooled[:, : pooled.shape[1] - self.drop * len(self.critics)]
            target = rows.reward + rows.discount * (pooled - temperature * next_log_prob)  # [B, T]
        q = self.q(self.critics, rows.obs, rows.action)  # [B, C, M]
        n_quantiles = q.shape[2]
        fractions = (torch.arange(n_quantiles, dtype=torch.float64) + 0.5) / n_quantiles
        td = target[:, None, None, :] - q[:, :, :, None]  # [B, C, M, T]
        huber = torch.where(td.abs() > 1, td.abs() - 0.5, 0.5 * td**2)
        pinball = (fractions.view(1, 1, -1, 1) - (td.detach() < 0).double()).abs() * huber
        self.step("critic", pinball.mean(dim=(0, 2, 3)).sum(), self.critics.parameters())
        value = self.q(self.critics, rows.obs, action).mean(dim=(1, 2)).unsqueeze(1)
        self.step("actor", (temperature * log_prob - value).mean(), self.actor.parameters())
        excess = log_prob.detach() - rows.action.shape[1]
        self.step("temperature", -(self.log_temperature * excess).mean(), iter([self.log_temperature]))
        self.follow((self.target_critics, self.critics))


class MeanOfTwo(Reference):
    """The part of DroQ and REDQ that is not random: the target is the least, the actor ascends the mean."""

    def update(self, rows: Rows) -> None:
        temperature = self.log_temperature.detach().exp()
        action, log_prob = squashed(self.actor(rows.obs), rows.noise)
        with torch.no_grad():
            next_action, next_log_prob = squashed(self.actor(rows.next_obs), rows.next_noise)
            least = self.q(self.target_critics, rows.next_obs, next_action).min(dim=1).values
            target = rows.reward + rows.discount * (least - temperature * next_log_prob)
        q = self.q(self.critics, rows.obs, rows.action)
        self.step("critic", 0.5 * ((q - target.unsqueeze(1)) ** 2).sum(dim=1).mean(), self.critics.parameters())
        value = self.q(self.critics, rows.obs, action).mean(dim=1)
        self.step("actor", (temperature * log_prob - value).mean(), self.actor.parameters())
        excess = log_prob.detach() - rows.action.shape[1]
        self.step("temperature", -(self.log_temperature * excess).mean(), iter([self.log_temperature]))
        self.follow((self.target_critics, self.critics))


class GivenNoise(ActorCriticPolicy):
    """A policy whose losses are given their noise."""

    unwatched = ActorCriticPolicy.unwatched | {"given"}
    given: Mapping[str, Tensor | None]

    def loss_noise(self, n_rows: int) -> dict[str, Any]:
        return dict(self.given)


def made(**options: Any) -> ActorCriticPolicy:
    """Make a policy for `PUSH`, whose networks have one hidden layer."""
    usual: dict[str, Any] = {"hidden": (16,), "device": "cpu", "seed": 0, "lr": 1e-3, "tau": 0.05}
    return GivenNoise.for_envs(Spaces(FOUR_NUMBERS, PUSH), **usual | options)


def drawn_rows(policy: ActorCriticPolicy, seed: int) -> tuple[TransitionBatch, Rows]:
    """Make up rows, for the policy and for a reference; the policy's next noise is that of the reference."""
    rng = np.random.default_rng(seed)
    obs, next_obs = rng.normal(size=(2, N_ROWS, 4)).astype(np.float32)
    batch = TransitionBatch(
        obs=obs,
        action=rng.uniform(PUSH.low, PUSH.high, (N_ROWS, 2)).astype(np.float32),
        reward=rng.normal(size=N_ROWS).astype(np.float32),
        discount=np.where(rng.random(N_ROWS) < 0.2, 0.0, 0.9).astype(np.float32),
        next_obs=next_obs,
        weight=np.ones(N_ROWS, np.float32),
        slots=np.arange(N_ROWS),
    )
    noise, next_noise = torch.randn(2, N_ROWS, 2, generator=torch.Generator().manual_seed(seed))
    unit = policy.action_scale.to_unit(torch.as_tensor(batch.action)).clamp(-1, 1)
    numbers = [torch.as_tensor(column).double().unsqueeze(1) for column in (batch.reward, batch.discount)]
    features = [policy.features(one).double() for one in (batch.obs, batch.next_obs)]
    rows = Rows(features[0], unit.double(), *numbers, features[1], noise.double(), next_noise.double())
    return batch, rows


def updated(policy: ActorCriticPolicy, batch: TransitionBatch, rows: Rows, step: int) -> Mapping[str, Tensor]:
    """Update a policy with the noise of the rows; return the gradients of the steps that it took, flat."""
    assert isinstance(policy, GivenNoise)
    policy.given = {"noise": rows.noise.float(), "next_noise": rows.next_noise.float(), "drawn": None}
    policy.update(batch, step=step)
    return {name: flat_gradient(one.module) for name, one in policy.gradient_steps.items()}


def flat_gradient(module: Any) -> Tensor:
    """Return a module's gradients, of stacked critics in the order of separate ones; [0] before its first step."""
    if not hasattr(module, "layers"):
        found = [one.grad.flatten() for one in module.parameters() if one.grad is not None]
    else:
        own = [part.grad for layer in module.layers for part in layer.parameters()]
        found = [gradient[number].flatten() for number in range(module.n_critics) for gradient in own]
    return torch.cat([torch.zeros(0), *found])
