"""A game of two policies of RLlib 2, ported: docs/howto/port_multi_agent.md shows what changed."""

from typing import Any

import gymnasium as gym
import numpy as np

import trainkit as tk


class Pennies:
    """One agent wins where both choose the same side of a coin, the other where they differ."""

    possible_agents = ["even", "odd"]
    observation_spaces = {name: gym.spaces.Box(-1, 1, (2,), np.float32) for name in possible_agents}
    action_spaces = {name: gym.spaces.Discrete(2) for name in possible_agents}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.time, self.last = 0, np.zeros(2, np.float32)
        return self.seen(), {}

    def step(self, actions: Any) -> Any:
        self.time += 1
        self.last = np.array([2 * actions[name] - 1 for name in self.possible_agents], np.float32)
        won = float(self.last.prod())
        return self.seen(), {"even": won, "odd": -won}, {"__all__": self.time == 10}, {"__all__": False}, {}

    def seen(self) -> Any:
        return {"even": self.last, "odd": self.last[::-1].copy()}


def mapping(agent: str, episode: tk.policy.GameEpisode) -> str:
    sides = ["main", "rival"] if episode.rng.random() < 0.5 else ["rival", "main"]
    return sides[agent == "odd"]


envs = tk.make_envs(Pennies, 4)
policies = {name: tk.DQNPolicy.for_envs(envs, lr=1e-3, gamma=0.9) for name in ("main", "rival")}
policy = tk.MultiAgentPolicy(policies, policy_mapping=mapping, policies_to_train=["main"])
train = tk.Collector(policy, envs, tk.MultiAgentBuffer({"main": tk.ReplayBuffer(50_000)}))
trainer = tk.OffpolicyTrainer(
    policy, train, max_epoch=2, step_per_epoch=500, batch_size=32, learning_starts=100, update_per_step=0.25, seed=1
)
for epoch, stats, info in trainer:
    print(stats.train.policies["main"].returns.mean)
