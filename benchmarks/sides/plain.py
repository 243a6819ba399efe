"""The plain side of `peers`: DQN, SAC and PPO as a researcher writes them on one page of torch, with no library.

Environments are stepped one by one in a Python loop, rows are stored in numpy arrays, losses and gradients are torch's.
With `--flush` Adam is fused and numbers below 1e-38 count as 0, two lines that make such a loop faster.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.sides import side
from benchmarks.sides.work import (
    ADAM_EPS,
    ALPHA,
    BETA,
    CLIP_RATIO,
    EPOCHS,
    LAMBDA,
    ROLLOUT_STEPS,
    TAU,
    VALUE_WEIGHT,
    Work,
    make_env,
)


class Envs:
    """Environments stepped in a loop, each reset where its episode ends."""

    def __init__(self, work: Work) -> None:
        self._envs = [make_env(work) for _ in range(work.n_envs)]
        self.id = self._envs[0].spec.id
        self.n = len(self._envs)
        self.space = self._envs[0].action_space
        self.obs = np.stack([env.reset(seed=i)[0] for i, env in enumerate(self._envs)])  # [N, ...]

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any]:
        """Return next observations, rewards, and which episodes terminated and ended, [N, ...] each."""
        next_obs = np.empty_like(self.obs)
        rewards, terminations, ends = (np.zeros(self.n, kind) for kind in (np.float32, np.bool_, np.bool_))
        self.obs = self.obs.copy()
        for i, env in enumerate(self._envs):
            next_obs[i], rewards[i], terminations[i], truncated, _ = env.step(actions[i])
            ends[i] = terminations[i] or truncated
            self.obs[i] = env.reset()[0] if ends[i] else next_obs[i]
        return next_obs, rewards, terminations, ends


class Replay:
    """A ring of transitions; with priorities, a sum tree over its rows."""

    def __init__(self, work: Work, obs: Any, action: Any) -> None:
        self._capacity, self._size, self._next = work.capacity, 0, 0
        self.obs, self.next_obs = (np.zeros((work.capacity, *obs.shape[1:]), obs.dtype) for _ in range(2))
        self.action = np.zeros((work.capacity, *action.shape[1:]), action.dtype)
        self.reward, self.discount = (np.zeros(work.capacity, np.float32) for _ in range(2))
        self._leaves = 1 << (work.capacity - 1).bit_length()
        self._tree = np.zeros(2 * self._leaves) if work.prioritized else None
        self._largest = 1.0

    def add(self, obs: Any, action: Any, reward: Any, next_obs: Any, discount: Any) -> None:
        """Store rows."""
        rows = (self._next + np.arange(len(obs))) % self._capacity
        self.obs[rows], self.action[rows], self.reward[rows] = obs, action, reward
        self.next_obs[rows], self.discount[rows] = next_obs, discount
        self._next = (self._next + len(obs)) % self._capacity
        self._size = min(self._size + len(obs), self._capacity)
        if self._tree is not None:
            self._set(rows, np.full(len(obs), self._largest))

    def sample(self, batch: int, rng: np.random.Generator) -> tuple[Any, Any]:
        """Return rows, and their importance weights if there are priorities."""
        if self._tree is None:
            return rng.integers(self._size, size=batch), None
        mass, node = rng.random(batch) * self._tree[1], np.ones(batch, np.int64)
        while node[0] < self._leaves:
            node *= 2
            left = self._tree[node]
            goes_right = mass > left
            mass -= left * goes_right
            node += goes_right
        rows = np.minimum(node - self._leaves, self._size - 1)
        weights = (self._size * self._tree[rows + self._leaves] / self._tree[1]) ** -BETA
        return rows, torch.from_numpy((weights / weights.max()).astype(np.float32))

    def update_priorities(self, rows: Any, errors: Any) -> None:
        """Set priorities from TD errors."""
        priorities = (np.abs(errors) + 1e-6) ** ALPHA
        self._largest = max(self._largest, float(priorities.max()))
        self._set(rows, priorities)

    def _set(self, rows: Any, priorities: Any) -> None:
        assert self._tree is not None
        node = rows + self._leaves
        self._tree[node] = priorities
        while node[0] > 1:
            node = np.unique(node // 2)
            self._tree[node] = self._tree[2 * node] + self._tree[2 * node + 1]


class NStep:
    """The last n steps of every environment, which become one transition."""

    def __init__(self, n: int, gamma: float) -> None:
        self._n, self._gamma = n, gamma
        self._steps: list[Any] = []

    def rows(self, obs: Any, action: Any, reward: Any, next_obs: Any, terminated: Any, ended: Any) -> Iterator[Any]:
        """Yield transitions that are complete: all environments' at once, and shorter ones where episodes end."""
        if self._n == 1:
            yield obs, action, reward, next_obs, self._gamma * ~terminated
            return
        self._steps.append((obs, action, reward, ended))
        self._steps = self._steps[-self._n :]
        for first in range(len(self._steps)):
            is_oldest = first == 0 and len(self._steps) == self._n
            is_complete = np.ones(len(obs), np.bool_) if is_oldest else ended
            if not is_complete.any():
                continue
            total, discount = np.zeros(len(obs), np.float32), np.ones(len(obs), np.float32)
            runs = np.ones(len(obs), np.bool_)  # no episode ended between the first step and this one
            for _, _, rewards, ends in self._steps[first:]:
                total += discount * rewards
                discount *= self._gamma
                runs &= ~ends | (ends is ended)
            which = np.flatnonzero(is_complete & runs)
            first_obs, first_action, *_ = self._steps[first]
            if len(which):
                columns = first_obs, first_action, total, next_obs, discount * ~terminated
                yield tuple(column[which] for column in columns)


class Plain:
    """What the learners share: environments, an Adam, counters."""

    online: nn.Module  # trained by `adam`, which counts the updates

    def __init__(self, work: Work, *, is_fast: bool) -> None:
        torch.manual_seed(1)  # noqa: TID251  # a plain script's way
        self.work, self.envs, self.rng = work, Envs(work), np.random.default_rng(1)
        self._adam = partial(torch.optim.Adam, lr=work.lr, fused=is_fast or None)

    def n_updates(self) -> int:
        return side.n_steps_of(self.adam)

    @contextmanager
    def count_calls(self) -> Iterator[list[int]]:
        with side.calls_of(self.acting) as count:
            yield count

    def settings(self) -> dict[str, Any]:
        parameters = side.count_parameters(*self.trained)
        return {"env": self.envs.id, "envs": self.envs.n, "gamma": self.work.gamma, "parameters": parameters}

    def collect(self, n_steps: int) -> int:
        for _ in range(n_steps // self.envs.n):
            self.step()
        return n_steps

    def loop(self, n_steps: int) -> int:
        every = self.work.steps_per_update // self.envs.n
        for i in range(n_steps // self.envs.n):
            self.step()
            if i % every == every - 1:
                self.update()
        return n_steps

    def step(self) -> None:
        """Act, step, store."""
        obs = self.envs.obs
        action = self.act(obs)
        next_obs, reward, terminated, ended = self.envs.step(action)
        for rows in self.n_step.rows(obs, action, reward, next_obs, terminated, ended):
            self.replay.add(*rows)


class DQN(Plain):
    """Deep Q-learning (Mnih et al., 2015), double and prioritized where the workload is."""

    def __init__(self, work: Work, *, is_fast: bool) -> None:
        super().__init__(work, is_fast=is_fast)
        self.online = side.Images(side.network(work)) if work.convolutions else side.network(work)
        self.target = deepcopy(self.online)
        self.adam = self._adam(self.online.parameters())
        self.acting, self.trained = self.online, [self.online]
        self.replay = Replay(work, self.envs.obs, np.zeros(1, np.int64))
        self.n_step = NStep(work.n_step, work.gamma)
        self._updates = 0

    def act(self, obs: Any) -> Any:
        with torch.no_grad():
            action = self.online(torch.from_numpy(obs)).argmax(1).numpy()
        is_random = self.rng.random(len(obs)) < self.work.epsilon
        return np.where(is_random, self.rng.integers(self.work.n_outputs, size=len(obs)), action)

    def update(self) -> None:
        work, replay = self.work, self.replay
        rows, weight = replay.sample(work.batch, self.rng)
        action = torch.from_numpy(replay.action[rows])[:, None]
        with torch.no_grad():
            next_obs = torch.from_numpy(replay.next_obs[rows])
            next_q = self.target(next_obs)
            best = self.online(next_obs).argmax(1, keepdim=True) if work.double else next_q.argmax(1, keepdim=True)
            discount = torch.from_numpy(replay.discount[rows])
            target = torch.from_numpy(replay.reward[rows]) + discount * next_q.gather(1, best)[:, 0]
        q = self.online(torch.from_numpy(replay.obs[rows])).gather(1, action)[:, 0]
        loss = F.smooth_l1_loss(q, target) if weight is None else (weight * (q - target) ** 2).mean()
        self.adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.online.parameters(), work.clip)
        self.adam.step()
        if weight is not None:
            replay.update_priorities(rows, (q - target).detach().numpy())
        self._updates += 1
        if self._updates % work.target_every == 0:
            self.target.load_state_dict(self.online.state_dict())


class SAC(Plain):
    """Soft actor-critic (Haarnoja et al., 2018) with two critics and a trained temperature."""

    def __init__(self, work: Work, *, is_fast: bool) -> None:
        super().__init__(work, is_fast=is_fast)
        self.actor = side.dense(work.n_features, *work.hidden, 2 * work.n_outputs)
        self.critics = nn.ModuleList(side.dense(work.n_features + work.n_outputs, *work.hidden, 1) for _ in range(2))
        self.targets = deepcopy(self.critics)
        self.log_alpha = torch.zeros(1, requires_grad=True)
        self.adam = self._adam(self.actor.parameters())
        self.critics_adam = self._adam(self.critics.parameters())
        self.alpha_adam = self._adam([self.log_alpha])
        self.acting, self.trained = self.actor, [self.actor, self.critics]
        self.replay = Replay(work, self.envs.obs, np.zeros((1, work.n_outputs), np.float32))
        self.n_step = NStep(1, work.gamma)
        self.high = float(self.envs.space.high[0])

    def sample(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return actions in [-1, 1] and their log probabilities."""
        mean, log_std = self.actor(obs).chunk(2, dim=1)
        log_std = log_std.clamp(-20.0, 2.0)
        noise = torch.randn_like(mean)
        x = mean + log_std.exp() * noise
        action = torch.tanh(x)
        log_prob = -0.5 * noise**2 - log_std - 0.5 * np.log(2.0 * np.pi) - torch.log(1.0 - action**2 + 1e-6)
        return action, log_prob.sum(1)

    def step(self) -> None:
        obs = self.envs.obs
        with torch.no_grad():
            action = self.sample(torch.from_numpy(obs))[0].numpy()
        next_obs, reward, terminated, _ = self.envs.step(self.high * action)
        self.replay.add(obs, action, reward, next_obs, self.work.gamma * ~terminated)

    def update(self) -> None:
        replay, alpha = self.replay, self.log_alpha.detach().exp()
        rows, _ = replay.sample(self.work.batch, self.rng)
        obs, next_obs = torch.from_numpy(replay.obs[rows]), torch.from_numpy(replay.next_obs[rows])
        taken = torch.cat([obs, torch.from_numpy(replay.action[rows])], 1)
        with torch.no_grad():
            next_action, next_log_prob = self.sample(next_obs)
            next_taken = torch.cat([next_obs, next_action], 1)
            next_q = torch.minimum(*(target(next_taken)[:, 0] for target in self.targets)) - alpha * next_log_prob
            goal = torch.from_numpy(replay.reward[rows]) + torch.from_numpy(replay.discount[rows]) * next_q
        critic_loss = sum(F.mse_loss(critic(taken)[:, 0], goal) for critic in self.critics)
        self.critics_adam.zero_grad()
        critic_loss.backward()
        self.critics_adam.step()
        action, log_prob = self.sample(obs)
        q = torch.minimum(*(critic(torch.cat([obs, action], 1))[:, 0] for critic in self.critics))
        self.adam.zero_grad()
        (alpha * log_prob - q).mean().backward()
        self.adam.step()
        self.alpha_adam.zero_grad()
        (-self.log_alpha * (log_prob.detach() - self.work.n_outputs)).mean().backward()
        self.alpha_adam.step()
        with torch.no_grad():
            for target, parameter in zip(self.targets.parameters(), self.critics.parameters(), strict=True):
                target.lerp_(parameter, TAU)


class PPO(Plain):
    """Proximal policy optimization (Schulman et al., 2017) with an actor and a critic of their own layers."""

    def __init__(self, work: Work, *, is_fast: bool) -> None:
        super().__init__(work, is_fast=is_fast)
        self.actor = side.dense(work.n_features, *work.hidden, work.n_outputs, activation=nn.Tanh)
        self.critic = side.dense(work.n_features, *work.hidden, 1, activation=nn.Tanh)
        self.trained = [self.actor, self.critic]
        self.parameters = [*self.actor.parameters(), *self.critic.parameters()]
        self.adam = self._adam(self.parameters, eps=ADAM_EPS)
        self.acting = self.actor

    def collect(self, n_steps: int) -> int:
        self.rollout(n_steps // self.envs.n)
        return n_steps

    def rollout(self, n_steps: int) -> tuple[torch.Tensor, ...]:
        """Step, and return observations, actions, log probabilities, advantages and returns, flat."""
        envs, shape = self.envs, (n_steps, self.envs.n)
        obs = torch.zeros(*shape, *self.work.shape)
        actions = torch.zeros(shape, dtype=torch.int64)
        log_probs, rewards, values, next_values = (torch.zeros(shape) for _ in range(4))
        terminations, ends = (torch.zeros(shape) for _ in range(2))
        with torch.no_grad():
            for t in range(n_steps):
                obs[t] = torch.from_numpy(envs.obs)
                choice = torch.distributions.Categorical(logits=self.actor(obs[t]))
                actions[t] = choice.sample()
                log_probs[t], values[t] = choice.log_prob(actions[t]), self.critic(obs[t])[:, 0]
                next_obs, reward, terminated, ended = envs.step(actions[t].numpy())
                rewards[t], terminations[t], ends[t] = map(torch.from_numpy, (reward, terminated, ended))
                if ended.any():
                    next_values[t] = self.critic(torch.from_numpy(next_obs))[:, 0]
                if t:
                    next_values[t - 1] = torch.where(ends[t - 1] > 0, next_values[t - 1], values[t])
            last = self.critic(torch.from_numpy(envs.obs))[:, 0]
            next_values[-1] = torch.where(ends[-1] > 0, next_values[-1], last)
            advantages, total = torch.zeros(shape), torch.zeros(envs.n)
            for t in reversed(range(n_steps)):
                error = rewards[t] + self.work.gamma * (1.0 - terminations[t]) * next_values[t] - values[t]
                total = error + self.work.gamma * LAMBDA * (1.0 - ends[t]) * total
                advantages[t] = total
        return tuple(x.flatten(0, 1) for x in (obs, actions, log_probs, advantages, advantages + values))

    def loop(self, n_steps: int) -> int:
        for _ in range(n_steps // (self.envs.n * ROLLOUT_STEPS)):
            columns = self.rollout(ROLLOUT_STEPS)
            for _ in range(EPOCHS):
                for rows in torch.randperm(len(columns[0])).split(self.work.batch):
                    self.minibatch(*(column[rows] for column in columns))
        return n_steps

    def minibatch(self, obs: Any, action: Any, old_log_prob: Any, advantage: Any, goal: Any) -> None:
        """Take one gradient step."""
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        ratio = (torch.distributions.Categorical(logits=self.actor(obs)).log_prob(action) - old_log_prob).exp()
        clipped = ratio.clamp(1.0 - CLIP_RATIO, 1.0 + CLIP_RATIO)
        policy_loss = -torch.minimum(ratio * advantage, clipped * advantage).mean()
        loss = policy_loss + VALUE_WEIGHT * F.mse_loss(self.critic(obs)[:, 0], goal)
        self.adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, self.work.clip)
        self.adam.step()


LEARNERS: dict[str, Callable[..., Plain]] = {"dqn": DQN, "sac": SAC, "ppo": PPO}


def make(work: Work, *, is_fast: bool) -> Plain:
    """Make the learner of a workload."""
    return LEARNERS[work.learner](work, is_fast=is_fast)


if __name__ == "__main__":
    flush = side.options().parse_args().flush
    side.serve(partial(make, is_fast=flush), torch.__version__, flush=flush)
