"""Two agents, each with a pole of its own, share one policy: by DQN from replayed steps, by PPO from rollouts.

    python examples/two_agents.py

The game is a PettingZoo-style parallel environment, written here without PettingZoo. Whoever's pole falls leaves; the
game is over when both have, or after 500 steps.
"""

from typing import Any

import gymnasium as gym
import torch

import trainkit as tk


class TwoPoles:
    """CartPole for two: the parallel API's dicts by agent, over two environments of one agent."""

    possible_agents = ("left", "right")

    def __init__(self) -> None:
        self._poles = {name: gym.make("CartPole-v1") for name in self.possible_agents}
        self.agents: list[str] = []  # who still plays

    def observation_space(self, agent: str) -> gym.Space[Any]:
        """Return the space of one agent's observations; all have the same."""
        return self._poles[agent].observation_space

    def action_space(self, agent: str) -> gym.Space[Any]:
        """Return the space of one agent's actions."""
        return self._poles[agent].action_space

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], ...]:
        """Put both poles up and return (observations, infos)."""
        self.agents = list(self.possible_agents)
        seeds = {name: None if seed is None else (seed + place) % 2**32 for place, name in enumerate(self.agents)}
        begun = {name: self._poles[name].reset(seed=seeds[name], options=options) for name in self.agents}
        return {name: obs for name, (obs, _) in begun.items()}, {name: info for name, (_, info) in begun.items()}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """Move everyone who plays and return (observations, rewards, terminated, truncated, infos)."""
        told = {name: self._poles[name].step(action) for name, action in actions.items()}
        self.agents = [name for name, (_, _, terminated, truncated, _) in told.items() if not (terminated or truncated)]
        return tuple({name: step[part] for name, step in told.items()} for part in range(5))

    def close(self) -> None:
        """Close both."""
        for pole in self._poles.values():
            pole.close()


def by_dqn(seed: int = 1, **options: Any) -> tk.OffpolicyTrainer:
    """Put DQN together: 4 games are 8 environments to it."""
    envs = tk.make_envs(TwoPoles, 4)
    policy = tk.DQNPolicy.for_envs(
        envs, hidden=(256, 256), double=True, gamma=0.99, lr=tk.schedules.Piecewise([(0, 2e-3), (50_000, 2e-4)]),
        target=tk.Target(80), exploration=tk.EpsilonGreedy.linear(1.0, 0.04, 8_000),
    )  # fmt: skip
    train = tk.Collector(policy, envs, tk.ReplayBuffer(100_000))
    test = tk.Collector(policy, tk.make_envs(TwoPoles, 10))
    settings = {"max_epoch": 12, "step_per_epoch": 5_000, "step_per_collect": 8, "update_per_step": 0.5}
    return tk.OffpolicyTrainer(
        policy, train, test_collector=test, batch_size=64, learning_starts=1_000, episode_per_test=20,
        stop_fn=lambda score: score >= 475, seed=seed, **settings | options,
    )  # fmt: skip


def by_ppo(seed: int = 1, **options: Any) -> tk.OnpolicyTrainer:
    """Put PPO together."""
    settings: dict[str, Any] = {"max_epoch": 12, "step_per_epoch": 10_240, "step_per_collect": 512}
    settings |= options
    n_steps = settings["max_epoch"] * settings["step_per_epoch"]
    lr = tk.Linear(1e-3, 0.0).over(n_steps + settings["step_per_collect"])  # not yet 0 in the last rollout
    envs = tk.make_envs(TwoPoles, 4)
    policy = tk.PPOPolicy.for_envs(envs, hidden=(64, 64), lr=lr, gamma=0.98, lam=0.9)
    train = tk.Collector(policy, envs, tk.RolloutBuffer())
    test = tk.Collector(policy, tk.make_envs(TwoPoles, 10))
    return tk.OnpolicyTrainer(
        policy, train, test_collector=test, repeat_per_collect=10, batch_size=128, episode_per_test=20,
        stop_fn=lambda score: score >= 475, seed=seed, **settings,
    )  # fmt: skip


def main() -> None:
    """Train both ways; the return shown is the mean of the two agents', at most 500."""
    torch.set_num_threads(1)  # networks this small are fastest on one
    for trainer in (by_dqn(), by_ppo()):
        with trainer:
            for _, stats, _ in trainer:
                print(", ".join(f"{name} {returns.mean:.0f}" for name, returns in stats.test.agents.items()))
            played = tk.evaluate(trainer.policy, TwoPoles, n_episode=50, seed=7)
            print(f"{type(trainer.policy).__name__}: {played.returns.mean:.0f} in {trainer.env_step} steps")


if __name__ == "__main__":
    main()
