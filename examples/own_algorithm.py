"""Two algorithms that trainkit does not have, from its public names alone, both trained by `OffpolicyTrainer`.

    python examples/own_algorithm.py

A value-based one is a part: everything else of the Q-learner stays. An actor-critic is a policy: it gives `act` and a
loss for each gradient step; weighting, counting, statistics, seeds and checkpoints are there already.
"""

from typing import Any

import torch
from gymnasium.spaces import Discrete
from torch import Tensor

import trainkit as tk

LR = [(0, 1e-3), (30_000, 2e-4), (60_000, 2e-5)]  # by environment steps


class AdvantageLearning:
    """Widen the gap between the best action and the others (Bellemare et al., 2016, "Increasing the action gap")."""

    def __init__(self, alpha: float = 0.3) -> None:
        self.alpha = alpha

    def __call__(self, online: Any, target: Any, batch: tk.engine.TensorBatch, value: Any) -> tuple[Tensor, Tensor]:
        """Return the numbers of the best next action, [B, W], and the reward less what the chosen one falls short."""
        q = value.mean(target(batch.obs, batch.legal).outputs)  # [B, A]
        gap = q.max(dim=1).values - q.gather(1, batch.action.unsqueeze(1)).squeeze(1)
        after, reward = tk.MaxBackup()(online, target, batch, value)
        return after, reward - self.alpha * gap


class SoftActorCritic(tk.Policy):
    """Follow the softmax of an actor that two critics teach: SAC for discrete actions (Christodoulou, 2019)."""

    def __init__(self, envs: tk.Envs, *, temperature: float = 0.1, gamma: float = 0.99, lr: Any = LR) -> None:
        spaces: dict[str, Any] = {"observation_space": envs.observation_space, "action_space": envs.action_space}
        assert isinstance(envs.action_space, Discrete)
        n_actions = int(envs.action_space.n)
        preprocess = tk.nets.Preprocess(envs.observation_space)
        super().__init__(**spaces, preprocess=preprocess, horizon=tk.Horizon(3, gamma))
        self.temperature = temperature
        self.actor = tk.nets.QNetwork(preprocess.shapes, n_actions, norm="layer")  # a logit per action
        self.critics = tk.nets.QNetwork(preprocess.shapes, n_actions, width=2, norm="layer")  # two values per action
        self.target_critics = self.add_target("critic", self.critics, tk.Target(every=1, unit="updates", tau=0.02))
        self.add_gradient_step("critic", self.critics, tk.Adam(lr), loss=self.critic_loss)
        self.add_gradient_step("actor", self.actor, tk.Adam(lr), loss=self.actor_loss)

    def act(self, obs: Any, *, explore: bool = False, **_: Any) -> tk.policy.ActOutput:
        """Take the most probable action, or sample one."""
        logits = self.engine.call("logits", self.logits, obs)["logits"]  # [K, A]
        if explore:
            logits = logits + self.rng.gumbel(size=logits.shape)  # the largest is distributed as the softmax
        return tk.policy.ActOutput(logits.argmax(axis=1), {}, None)

    def logits(self, obs: Any) -> dict[str, Tensor]:
        """Return the actor's logits [K, A] for raw observations."""
        return {"logits": self.actor(self.preprocess(obs)).outputs[:, :, 0]}

    def critic_loss(self, rows: tk.engine.TensorBatch) -> tk.engine.Loss:
        """Return the squared TD errors of both critics."""
        with torch.no_grad():
            target = rows.reward + rows.discount * self.soft_value(self.target_critics, rows.next_obs)
        index = rows.action.view(-1, 1, 1).expand(-1, 1, 2)
        q = self.critics(rows.obs).outputs.gather(1, index).squeeze(1)  # [B, 2]
        td_error = q - target.unsqueeze(1)
        priority = td_error.abs().mean(dim=1)
        return tk.engine.Loss(td_error.square().sum(dim=1), priority=priority, metrics={"target_mean": target.mean()})

    def actor_loss(self, rows: tk.engine.TensorBatch) -> tk.engine.Loss:
        """Return what following the actor is worth, negated."""
        return tk.engine.Loss(-self.soft_value(self.critics, rows.obs))

    def soft_value(self, critics: torch.nn.Module, obs: Any) -> Tensor:
        """Return the expected value [B] of the actor's action plus its entropy; gradients reach the actor alone."""
        log_policy = self.actor(obs).outputs[:, :, 0].log_softmax(dim=1)
        with torch.no_grad():
            q = critics(obs).outputs.min(dim=2).values  # [B, A]
        value: Tensor = (log_policy.exp() * (q - self.temperature * log_policy)).sum(dim=1)
        return value


def train(policy: tk.DQNPolicy | SoftActorCritic, envs: tk.Envs) -> float:
    """Train on CartPole and return the mean return of 20 episodes."""
    collector = tk.Collector(policy, envs, tk.PrioritizedReplayBuffer(50_000))
    trainer = tk.OffpolicyTrainer(
        policy,
        collector,
        max_epoch=8,
        step_per_epoch=5_000,
        batch_size=128,
        step_per_collect=256,  # then 128 updates
        update_per_step=0.5,
        learning_starts=1_000,
        seed=1,
    )
    trainer.run()
    mean = tk.evaluate(policy, "CartPole-v1", n_episode=20, seed=2).returns.mean
    assert mean is not None  # 20 episodes were requested
    return mean


def main() -> None:
    """Train both."""
    torch.set_num_threads(1)  # networks this small are fastest on one
    envs = tk.make_envs("CartPole-v1", 8)
    target = tk.Target(every=256)
    learner = tk.DQNPolicy.for_envs(
        envs, backup=AdvantageLearning(), norm="layer", n_step=3, gamma=0.98, lr=LR, target=target
    )
    print(f"advantage learning: {train(learner, envs):.0f}")
    envs = tk.make_envs("CartPole-v1", 8)
    print(f"soft actor-critic: {train(SoftActorCritic(envs), envs):.0f}")


if __name__ == "__main__":
    main()
