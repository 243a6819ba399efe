"""A policy: Q-learning by one network and nothing else."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

import trainkit as tk


class PlainQ(tk.Policy):
    """Act epsilon-greedily; learn the Bellman target of the same network (Watkins, 1989).

    Args:
        envs: for their spaces.
        hidden: layers of the network.
        lr: learning rate of Adam.
        epsilon: share of random actions.
        options: of `tk.Policy`.
    """

    def __init__(
        self, envs: Any, *, hidden: tuple[int, ...] = (64,), lr: float = 1e-3, epsilon: float = 0.1, **options: Any
    ) -> None:
        preprocess = tk.nets.Preprocess(envs.observation_space)
        spaces: dict[str, Any] = {name: getattr(envs, name) for name in ("observation_space", "action_space")}
        super().__init__(**spaces, preprocess=preprocess, **options)
        self.epsilon, self.n_actions = epsilon, int(envs.action_space.n)
        self.network = tk.nets.QNetwork(preprocess.shapes, self.n_actions, hidden=hidden)
        self.add_gradient_step("network", self.network, tk.Adam(lr), loss=self.loss)

    def act(self, obs: Any, *, explore: bool = False, **_: Any) -> tk.policy.ActOutput:
        """Return an action [K] for each observation."""
        action = self.engine.call("greedy", self.greedy, obs)["action"]
        if explore:
            is_random = self.rng.random(len(action)) < self.epsilon
            action = np.where(is_random, self.rng.integers(self.n_actions, size=len(action)), action)
        return tk.policy.ActOutput(action, {}, None)

    def q(self, features: Any) -> Tensor:
        """Return the values [K, A] of all actions."""
        return self.network(features).outputs.squeeze(2)

    def greedy(self, obs: Any) -> dict[str, Tensor]:
        """Return the best actions [K]."""
        return {"action": self.q(self.preprocess(obs)).argmax(dim=1)}

    def loss(self, rows: tk.engine.TensorBatch) -> tk.engine.Loss:
        """Return the squared TD error [B]."""
        with torch.no_grad():
            target = rows.reward + rows.discount * self.q(rows.next_obs).amax(dim=1)
        td = self.q(rows.obs).gather(1, rows.action.unsqueeze(1)).squeeze(1) - target
        return tk.engine.Loss(td.square(), td.abs(), {"target_mean": target.mean()})
