"""Updates as a researcher writes them on a page of torch, without a library: what `rates` compares with.

Networks, losses and rows are those of `workloads`: the numbers of parameters and of floating-point operations are
equal (`tests/test_benchmark_gpu.py`). Adam is fused, where the device has it. IQN has no plain side. `InGraph` repeats
what a learner does with its rows by one CUDA graph, which may be of compiled functions.
"""

import math
from collections.abc import Callable
from copy import deepcopy
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.gpu.workloads import FORCES, MINIBATCHES, NUMBERS, REPEAT, SIX, Workload
from trainkit.extensions.cuda.cuda_graph import CAPTURES, garbage_kept

N_NUMBERS, N_FORCES, N_ACTIONS = NUMBERS.shape[0], FORCES.shape[0], int(SIX.n)
ATOMS, LOW, HIGH = 51, -10.0, 10.0


def dense(*sizes: int, activation: Any = nn.ReLU) -> nn.Sequential:
    """Return linear layers with an activation between them."""
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers[:-1])


def convolutions() -> list[nn.Module]:
    """Return the layers of Mnih et al. (2015) below the dense ones."""
    return [
        *(nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU()),
        *(nn.Conv2d(64, 64, 3, 1), nn.ReLU(), nn.Flatten()),
    ]


class Noisy(nn.Module):
    """A noisy layer (Fortunato et al., 2018), whose noise every pass draws."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.mean, self.sigma = nn.Linear(n_in, n_out), nn.Linear(n_in, n_out)

    def forward(self, x: Tensor) -> Tensor:
        n_out, n_in = self.mean.weight.shape
        noise = torch.randn(n_in + n_out, device=x.device)
        noise = noise.sign() * noise.abs().sqrt()
        e_in, e_out = noise[:n_in], noise[n_in:]
        weight = self.mean.weight + self.sigma.weight * torch.outer(e_out, e_in)
        return F.linear(x, weight, self.mean.bias + self.sigma.bias * e_out)


class Dueling(nn.Module):
    """Rainbow's network: noisy dueling streams of logits [B, A, atoms]."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(*convolutions())
        self.advantage = nn.Sequential(Noisy(3136, 512), nn.ReLU(), Noisy(512, N_ACTIONS * ATOMS))
        self.state = nn.Sequential(Noisy(3136, 512), nn.ReLU(), Noisy(512, ATOMS))

    def forward(self, obs: Tensor) -> Tensor:
        x = self.body(obs)
        advantage = self.advantage(x).view(-1, N_ACTIONS, ATOMS)
        return self.state(x)[:, None] + advantage - advantage.mean(1, keepdim=True)


class Learner:
    """Networks on the device; each update sends its rows there, as from a numpy replay buffer.

    An update is `learn`, which is all work of the device, with the next `rows`, and then `finish`.
    """

    def __init__(self, workload: Workload, n_rows: int, device: str) -> None:
        self.device = torch.device(device)
        made = [workload.batch(n_rows, seed) for seed in range(4)]
        columns = [(one.obs, one.action, one.reward, one.discount, one.next_obs) for one in made]
        self.batches = [[torch.from_numpy(column) for column in batch] for batch in columns]
        self.n = 0

    def adam(self, module: nn.Module) -> torch.optim.Adam:
        on_device: dict[str, Any] = {} if self.device.type == "cpu" else {"fused": True, "capturable": True}
        return torch.optim.Adam(module.parameters(), lr=1e-4, **on_device)

    def send(self, column: Any) -> Tensor:
        return torch.from_numpy(column).to(self.device)

    def rows(self) -> list[Tensor]:
        """Return the next batch: observations, actions, rewards, discounts, next observations."""
        self.n += 1
        return self.batches[self.n % 4]

    def update(self) -> None:
        self.learn(*[column.to(self.device) for column in self.rows()])
        self.finish()

    def learn(self, *rows: Tensor) -> None:
        """Take the gradient steps of an update."""
        raise NotImplementedError

    def finish(self) -> None:
        """Do what not every update does."""

    @staticmethod
    def step(adam: torch.optim.Adam, loss: Tensor) -> None:
        adam.zero_grad()
        loss.backward()
        adam.step()


class DQN(Learner):
    """Double DQN (van Hasselt et al., 2016) by Huber's loss."""

    def __init__(self, workload: Workload, n_rows: int, device: str) -> None:
        super().__init__(workload, n_rows, device)
        self.online = self.network(workload).to(device)
        self.target = deepcopy(self.online)
        self.optimizer = self.adam(self.online)
        self.trained = [self.online]

    @staticmethod
    def network(workload: Workload) -> nn.Module:
        if workload.obs is NUMBERS:
            return dense(N_NUMBERS, 256, 256, N_ACTIONS)
        return nn.Sequential(*convolutions(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, N_ACTIONS))

    def learn(self, *rows: Tensor) -> None:
        obs, action, reward, discount, next_obs = rows
        obs, next_obs = (x / 255.0 if x.dtype == torch.uint8 else x for x in (obs, next_obs))
        self.step(self.optimizer, self.loss(obs, action, reward, discount, next_obs))

    def finish(self) -> None:
        if self.n % 2_000 == 0:
            self.target.load_state_dict(self.online.state_dict())

    def loss(self, obs: Tensor, action: Tensor, reward: Tensor, discount: Tensor, next_obs: Tensor) -> Tensor:
        with torch.no_grad():
            best = self.online(next_obs).argmax(1, keepdim=True)
            target = reward + discount * self.target(next_obs).gather(1, best)[:, 0]
        return F.smooth_l1_loss(self.online(obs).gather(1, action[:, None])[:, 0], target)


class Rainbow(DQN):
    """The update of Rainbow (Hessel et al., 2018): double, dueling, noisy, categorical."""

    def __init__(self, workload: Workload, n_rows: int, device: str) -> None:
        super().__init__(workload, n_rows, device)
        self.support = torch.linspace(LOW, HIGH, ATOMS, device=device)

    @staticmethod
    def network(workload: Workload) -> nn.Module:
        return Dueling()

    def loss(self, obs: Tensor, action: Tensor, reward: Tensor, discount: Tensor, next_obs: Tensor) -> Tensor:
        every = torch.arange(len(obs), device=obs.device)
        with torch.no_grad():
            best = (self.online(next_obs).softmax(2) @ self.support).argmax(1)
            after = self.target(next_obs)[every, best].softmax(1)
            moved = (reward[:, None] + discount[:, None] * self.support).clamp(LOW, HIGH)
            place = (moved - LOW) / (HIGH - LOW) * (ATOMS - 1)
            below = place.floor().clamp(max=ATOMS - 2)
            share = place - below
            target = torch.zeros_like(after).scatter_add_(1, below.long(), after * (1 - share))
            target.scatter_add_(1, below.long() + 1, after * share)
        return -(target * self.online(obs)[every, action].log_softmax(1)).sum(1).mean()


class SAC(Learner):
    """Soft actor-critic (Haarnoja et al., 2018) with two critics and a trained temperature."""

    def __init__(self, workload: Workload, n_rows: int, device: str) -> None:
        super().__init__(workload, n_rows, device)
        self.actor = dense(N_NUMBERS, 256, 256, 2 * N_FORCES).to(device)
        self.critics = nn.ModuleList(dense(N_NUMBERS + N_FORCES, 256, 256, 1) for _ in range(2)).to(device)
        self.targets = deepcopy(self.critics)
        self.temperature = nn.ParameterList([torch.zeros((), device=device)])
        self.trained = [self.actor, self.critics, self.temperature]
        self.adams = [self.adam(module) for module in self.trained]

    def sample(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.actor(obs).chunk(2, dim=1)
        log_std, noise = log_std.clamp(-20.0, 2.0), torch.randn_like(mean)
        action = torch.tanh(mean + log_std.exp() * noise)
        log_prob = -0.5 * noise**2 - log_std - 0.5 * math.log(2.0 * math.pi) - torch.log(1.0 - action**2 + 1e-6)
        return action, log_prob.sum(1)

    @staticmethod
    def smallest(critics: nn.ModuleList, obs: Tensor, action: Tensor) -> Tensor:
        x = torch.cat([obs, action], 1)
        return torch.minimum(critics[0](x)[:, 0], critics[1](x)[:, 0])

    def learn(self, *rows: Tensor) -> None:
        obs, action, reward, discount, next_obs = rows
        log_alpha = self.temperature[0]
        alpha = log_alpha.detach().exp()
        with torch.no_grad():
            next_action, next_log_prob = self.sample(next_obs)
            next_q = self.smallest(self.targets, next_obs, next_action) - alpha * next_log_prob
            target = reward + discount * next_q
        x = torch.cat([obs, action], 1)
        critic_loss = sum(F.mse_loss(critic(x)[:, 0], target) for critic in self.critics)
        assert isinstance(critic_loss, Tensor)
        self.step(self.adams[1], critic_loss)
        own, log_prob = self.sample(obs)
        self.step(self.adams[0], (alpha * log_prob - self.smallest(self.critics, obs, own)).mean())
        self.step(self.adams[2], (-log_alpha * (log_prob.detach() - N_FORCES)).mean())
        with torch.no_grad():
            torch._foreach_lerp_(list(self.targets.parameters()), list(self.critics.parameters()), 0.005)


class PPO(Learner):
    """Proximal policy optimization (Schulman et al., 2017); of numbers, actor and critic have networks of their own."""

    def __init__(self, workload: Workload, n_rows: int, device: str) -> None:
        super().__init__(workload, 1, device)
        self.n_rows, rollout = n_rows, workload.rollout(n_rows)
        flat = [column.reshape(-1, *column.shape[2:]) for column in (rollout.obs, rollout.action)]
        self.obs, self.action = (self.send(column) for column in flat)
        self.reward = rollout.reward
        module = self.networks().to(device)
        self.trained, self.optimizer, self.order = [module], self.adam(module), torch.zeros(0)

    def networks(self) -> nn.Module:
        self.actor = dense(N_NUMBERS, 64, 64, N_FORCES, activation=nn.Tanh)
        self.critic = dense(N_NUMBERS, 64, 64, 1, activation=nn.Tanh)
        self.log_std = nn.ParameterList([torch.zeros(N_FORCES)])
        return nn.ModuleList([self.actor, self.critic, self.log_std])

    def evaluate(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and values [B]."""
        log_std = self.log_std[0]
        normal = torch.distributions.Normal(self.actor(obs), log_std.exp(), validate_args=False)  # which would wait
        return normal.log_prob(action).sum(1), self.critic(obs)[:, 0]

    def start_epochs(self) -> None:
        """Compute advantages once for a rollout."""
        with torch.no_grad():
            self.old, values = self.evaluate(self.obs, self.action)
        value = values.view(self.reward.shape).cpu().numpy()
        advantage, after = np.zeros_like(value), np.zeros(value.shape[1], np.float32)
        for i in reversed(range(len(value))):
            next_value = value[i + 1] if i + 1 < len(value) else value[i]
            after = self.reward[i] + 0.99 * next_value - value[i] + 0.99 * 0.95 * after
            advantage[i] = after
        self.advantage, self.returns = (self.send(column.reshape(-1)) for column in (advantage, advantage + value))

    def rows(self) -> list[Tensor]:
        """Return the next minibatch: observations, actions, log-probabilities, advantages, returns."""
        turn = self.n % (MINIBATCHES * REPEAT)
        if turn == 0:
            self.start_epochs()
        if turn % MINIBATCHES == 0:
            self.order = torch.randperm(len(self.obs), device=self.device)
        self.n += 1
        first = turn % MINIBATCHES * self.n_rows
        rows = self.order[first : first + self.n_rows]
        return [column[rows] for column in (self.obs, self.action, self.old, self.advantage, self.returns)]

    def learn(self, *rows: Tensor) -> None:
        obs, action, old, advantage, returns = rows
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        log_prob, value = self.evaluate(obs, action)
        ratio = (log_prob - old).exp()
        gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        self.optimizer.zero_grad()
        (0.5 * F.mse_loss(value, returns) - gain).backward()
        nn.utils.clip_grad_norm_(self.trained[0].parameters(), 0.5)
        self.optimizer.step()


class PPOOfFrames(PPO):
    """PPO of frames, by convolutions that actor and critic share."""

    def networks(self) -> nn.Module:
        self.body = nn.Sequential(*convolutions(), nn.Linear(3136, 512), nn.ReLU())
        self.actor, self.critic = nn.Linear(512, N_ACTIONS), nn.Linear(512, 1)
        return nn.ModuleList([self.body, self.actor, self.critic])

    def evaluate(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        x = self.body(obs / 255.0)
        log_probs = self.actor(x).log_softmax(1)
        return log_probs.gather(1, action[:, None])[:, 0], self.critic(x)[:, 0]


class InGraph:
    """A learner whose gradient steps are one launch of a CUDA graph; its rows are copied to where the graph reads them.

    Args:
        learner: whose `learn` is recorded.
        compiled: whether by `torch.compile` first.
    """

    def __init__(self, learner: Learner, *, compiled: bool) -> None:
        self._learner, learn = learner, torch.compile(learner.learn) if compiled else learner.learn
        self._given = [column.to(learner.device, copy=True) for column in learner.rows()]
        learner.batches = [[column.pin_memory() for column in batch] for batch in learner.batches]
        capture = CAPTURES[learner.device.type](learner.device)
        for _ in range(3):
            capture.warm_up(lambda: learn(*self._given))
        with garbage_kept:
            _, self._replay = capture.record(lambda: learn(*self._given), torch.Generator(learner.device))

    def update(self) -> None:
        torch._foreach_copy_(self._given, self._learner.rows(), non_blocking=True)
        self._replay()
        self._learner.finish()


LEARNERS: dict[str, Callable[[Workload, int, str], Any]] = {
    "DQN, 256-256": DQN,
    "DQN, Nature CNN": DQN,
    "Rainbow, Nature CNN": Rainbow,
    "SAC, 256-256": SAC,
    "PPO, 64-64": PPO,
    "PPO, Nature CNN": PPOOfFrames,
}
