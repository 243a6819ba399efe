"""TD3 (Fujimoto et al., 2018) as a policy of one's own, learning to swing a pendulum up: `python examples/td3.py`."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

import trainkit as tk

EXPLORATION, SMOOTHING, LIMIT = 0.1, 0.2, 0.5  # in policy units, of which the bounds of the Box are -1 and 1


class TD3Policy(tk.Policy):
    """Act by a deterministic actor; learn towards the smaller of two critics at a noisy target action.

    The actor and all target networks move at every second update.
    """

    def __init__(self, envs: Any, *, hidden: tuple[int, ...] = (256, 256), lr: float = 1e-3, **options: Any) -> None:
        spaces: dict[str, Any] = {name: getattr(envs, name) for name in ("observation_space", "action_space")}
        preprocess = tk.nets.Preprocess(envs.observation_space)
        super().__init__(**spaces, preprocess=preprocess, **options)
        self.n_dimensions = int(np.prod(envs.action_space.shape))
        self.actor = tk.nets.ActorNetwork(preprocess.shapes, self.n_dimensions, hidden=hidden)
        self.critics = tk.nets.CriticNetwork(preprocess.shapes, self.n_dimensions, hidden=hidden)
        self.add_gradient_step("critic", self.critics, tk.Adam(lr), loss=self.critic_loss)
        self.add_gradient_step("actor", self.actor, tk.Adam(lr), loss=self.actor_loss, every=2)
        delayed = tk.Target(every=2, unit="updates", tau=0.005)
        self.target_actor = self.add_target("actor", self.actor, delayed)
        self.target_critics = self.add_target("critic", self.critics, delayed)

    def act(self, obs: Any, *, explore: bool = False, **_: Any) -> tk.policy.ActOutput:
        unit = self.engine.call("greedy", self.greedy, obs)["unit"]  # [K, D], an array
        if explore:
            unit = unit + EXPLORATION * self.rng.standard_normal(unit.shape, np.float32)
        return tk.policy.ActOutput(self.in_space(unit), {}, None)

    def greedy(self, obs: Any) -> dict[str, Tensor]:  # for `act` and `export`
        unit = self.actor(self.preprocess(obs)).tanh()  # [K, D]
        return {"action": self.in_space(unit), "unit": unit}

    def in_space(self, unit: Any) -> Any:
        return self.action_scale.to_space(unit.reshape(-1, *self.action_scale.low.shape))

    def loss_noise(self, n_rows: int) -> dict[str, Any]:
        return {"noise": torch.randn(n_rows, self.n_dimensions, generator=self.generator, device=self.device)}

    def critic_loss(self, rows: tk.engine.TensorBatch) -> tk.engine.Loss:
        with torch.no_grad():
            noise = (SMOOTHING * rows.inputs["noise"]).clamp(-LIMIT, LIMIT)
            next_unit = (self.target_actor(rows.next_obs).tanh() + noise).clamp(-1.0, 1.0)
            target = rows.reward + rows.discount * self.target_critics(rows.next_obs, next_unit).amin(dim=1)
        q = self.critics(rows.obs, self.action_scale.to_unit(rows.action).flatten(1))  # [B, 2]
        td = q - target.unsqueeze(1)
        metrics = {"q_mean": q.mean(), "target_mean": target.mean()}
        return tk.engine.Loss(td.square().sum(dim=1), td.abs().mean(dim=1), metrics)

    def actor_loss(self, rows: tk.engine.TensorBatch) -> tk.engine.Loss:
        return tk.engine.Loss(-self.critics(rows.obs, self.actor(rows.obs).tanh())[:, 0])


def main() -> None:
    """Train for 10,000 steps, and print the mean return of 20 episodes: about -150, -1,200 by random actions."""
    torch.set_num_threads(1)  # networks this small are fastest on one
    envs = tk.make_envs("Pendulum-v1", 1)
    policy = TD3Policy(envs, hidden=(64, 64))
    collector = tk.Collector(policy, envs, tk.ReplayBuffer(20_000))
    how: dict[str, Any] = {"max_epoch": 5, "step_per_epoch": 2_000, "batch_size": 128, "update_per_step": 1.0}
    tk.OffpolicyTrainer(policy, collector, **how, warmup="random", learning_starts=1_000, seed=1).run()
    print(f"mean return: {tk.evaluate(policy, 'Pendulum-v1', n_episode=20, seed=2).returns.mean:.0f}")


if __name__ == "__main__":
    main()
