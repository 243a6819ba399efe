"""Two algorithms that trainkit does not have, from its public names alone, both trained by `OffpolicyTrainer`.

    python examples/own_algorithm.py

A value-based one is a part: everything else of the Q-learner stays. An actor-critic is a policy: it says how to act
and what to minimise; counting, statistics, seeds and checkpoints are there already.
"""

from typing import Any

import torch
from torch import Tensor

import trainkit as tk

LR = [(0, 1e-3), (30_000, 2e-4), (60_000, 2e-5)]  # by environment steps


class AdvantageLearning:
    """Widen the gap between the best action and the others (Bellemare et al., 2016, "Increasing the action gap")."""

    def __init__(self, alpha: float = 0.3) -> None:
        self.alpha = alpha

    def __call__(self, online: Any, target: Any, batch: tk.TensorBatch, value: Any) -> tuple[Tensor, Tensor]:
        """Return the numbers of the best next action, [B, W], and the reward less what the chosen one falls short."""
        q = value.mean(target(batch.obs, batch.legal).numbers)  # [B, A]
        gap = q.max(dim=1).values - q.gather(1, batch.action.unsqueeze(1)).squeeze(1)
        after, reward = tk.MaxBackup()(online, target, batch, value)
        return after, reward - self.alpha * gap


class SoftActorCritic(tk.Policy):
    """Follow the softmax of an actor that two critics teach: SAC for discrete actions (Christodoulou, 2019)."""

    def __init__(self, envs: tk.Envs, *, temperature: float = 0.1, gamma: float = 0.99, lr: Any = LR) -> None:
        spaces: dict[str, Any] = {"observation_space": envs.observation_space, "action_space": envs.action_space}
        preprocess = tk.Preprocess(envs.observation_space)
        super().__init__(**spaces, preprocess=preprocess, horizon=tk.Horizon(3, gamma))
        self.temperature = temperature
        self.actor = tk.QNetwork(preprocess.shapes, envs.action_space.n)  # a logit per action
        self.critics = tk.QNetwork(preprocess.shapes, envs.action_space.n, width=2)  # two values per action
        self.add_gradient_step("critic", self.critics, tk.Adam(lr))
        self.add_gradient_step("actor", self.actor, tk.Adam(lr))
        self.targets = self.add_target("critic", self.critics, tk.Target(every=1, unit="updates", tau=0.02))

    def act(self, obs: Any, *, explore: bool = False, **_: Any) -> tk.ActOutput:
        """Take the likeliest action, or draw one."""
        with torch.no_grad():
            logits = self.actor(self.features(obs)).numbers[:, :, 0].cpu().numpy()  # [K, A]
        if explore:
            logits = logits + self.rng.gumbel(size=logits.shape)  # the largest is distributed as the softmax
        return tk.ActOutput(logits.argmax(axis=1), {}, None)

    def update(self, batch: tk.TransitionBatch, *, step: int) -> tk.UpdateResult:
        """Teach the critics by what the actor would do next, then the actor by the critics."""
        rows = self.tensors(batch)
        with torch.no_grad():
            goal = rows.reward + rows.discount * self._soft_value(self.targets, rows.next_obs)

        def critic_loss() -> Tensor:
            index = rows.action.view(-1, 1, 1).expand(-1, 1, 2)
            chosen = self.critics(rows.obs).numbers.gather(1, index).squeeze(1)  # [B, 2]
            return (rows.weight * (chosen - goal.unsqueeze(1)).square().sum(dim=1)).mean()

        def actor_loss() -> Tensor:
            return -(rows.weight * self._soft_value(self.critics, rows.obs)).mean()

        self.minimise("critic", critic_loss, step=step)
        self.minimise("actor", actor_loss, step=step)
        return self.end_update(step=step, goal_mean=goal.mean())

    def _soft_value(self, critics: torch.nn.Module, obs: Any) -> Tensor:
        """Return the value [B] of following the actor, its entropy counted in; gradients reach the actor alone."""
        log_policy = self.actor(obs).numbers[:, :, 0].log_softmax(dim=1)
        with torch.no_grad():
            q = critics(obs).numbers.min(dim=2).values  # [B, A]
        return (log_policy.exp() * (q - self.temperature * log_policy)).sum(dim=1)


def train(policy: tk.Policy, envs: tk.Envs) -> float:
    """Train on CartPole and return the mean return of 20 episodes."""
    collector = tk.Collector(policy, envs, tk.PrioritizedReplayBuffer(50_000))
    trainer = tk.OffpolicyTrainer(
        policy,
        collector,
        max_epoch=8,
        step_per_epoch=5_000,
        batch_size=128,
        update_per_step=0.5,
        learning_starts=1_000,
        seed=1,
    )
    trainer.run()
    returns = tk.evaluate(policy, "CartPole-v1", n_episode=20, seed=2).returns
    return 0.0 if returns is None else returns.mean


def main() -> None:
    """Train both."""
    torch.set_num_threads(1)  # networks this small are fastest on one
    envs = tk.make_envs("CartPole-v1", 8)
    learner = tk.DQNPolicy.for_envs(envs, backup=AdvantageLearning(), n_step=3, gamma=0.98, lr=LR, target=tk.Target(80))
    print(f"advantage learning: {train(learner, envs):.0f}")
    envs = tk.make_envs("CartPole-v1", 8)
    print(f"soft actor-critic: {train(SoftActorCritic(envs), envs):.0f}")


if __name__ == "__main__":
    main()
