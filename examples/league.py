"""A league of three roles learns rock, paper, scissors, after AlphaStar's (Vinyals et al., 2019).

    python examples/league.py

- The main agent plays itself, and all past players of the league, most often those that it loses to.
- The main exploiter plays the main agent as it is now, and starts again when its copy has joined the league.
- The league exploiter plays all past players, and starts again sometimes.

A copy of each role joins the league as a past player every 400 games. The example prints the win rates and Elo ratings
of a tournament, and the average policy of the main agent and its past players, which is near (1/3, 1/3, 1/3).
"""

from collections import deque
from typing import Any

import gymnasium as gym
import numpy as np
import torch

import trainkit as tk

ROLES = ("main", "main_exploiter", "league_exploiter")
ACTIONS = ("rock", "paper", "scissors")


class RockPaperScissors:
    """Both agents choose at once; paper beats rock, scissors beat paper, rock beats scissors."""

    possible_agents = ("left", "right")

    def __init__(self) -> None:
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> gym.Space[Any]:
        """Return the space of one number that is always 0."""
        return gym.spaces.Box(0, 1, (1,), np.float32)

    def action_space(self, agent: str) -> gym.Space[Any]:
        """Return the space of the three actions."""
        return gym.spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start a game."""
        self.agents = list(self.possible_agents)
        return self._obs(), {name: {} for name in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """Compare the actions and end the game."""
        won = float((int(actions["left"]) - int(actions["right"]) + 1) % 3 - 1)
        self.agents = []
        ends, cuts = dict.fromkeys(actions, True), dict.fromkeys(actions, False)
        return self._obs(), {"left": won, "right": -won}, ends, cuts, {name: {} for name in actions}

    def _obs(self) -> dict[str, Any]:
        return {name: np.zeros(1, np.float32) for name in self.possible_agents}


class League(tk.Callback):
    """Who plays whom, and which copies join: the `policy_mapping` and a callback of the run.

    Args:
        every: steps of a role's clock from one of its copies to the next.
    """

    episodes = "training"

    def __init__(self, every: int) -> None:
        self.every = every
        self.past: list[str] = []
        self._results: dict[str, deque[float]] = {}  # {"role against past player": 1, 0.5 or 0 of the last games}
        self._start: dict[str, Any] = {}  # {role: its first weights}

    def __call__(self, agent: str, episode: tk.policy.GameEpisode) -> str:
        """Draw a role and its opponent, equal for both agents of a game, and return the policy of one of them."""
        rng = episode.rng
        role = str(rng.choice(ROLES))
        left, right = rng.permutation([role, self._opponent(role, rng)])
        return str(left if agent == "left" else right)

    def _opponent(self, role: str, rng: np.random.Generator) -> str:
        if not self.past or role == "main_exploiter" or (role == "main" and rng.random() < 0.35):
            return "main"
        losses = np.array([1.0 - self.win_rate(role, name) for name in self.past]) ** 2
        return str(rng.choice(self.past, p=losses / losses.sum() if losses.any() else None))

    def win_rate(self, role: str, name: str) -> float:
        """Return the share of the last games against a past player that a role won, 0.5 before the first."""
        results = self._results.get(f"{role} against {name}")
        return float(np.mean(results)) if results else 0.5

    def on_train_start(self, trainer: tk.Trainer) -> None:
        """Remember the weights that exploiters start again from."""
        self._start = self._start or {role: trainer.policy[role].get_weights() for role in ROLES}

    def on_episode_end(self, trainer: tk.Trainer, episode: tk.collector.Episode) -> None:
        """Count a game, from the side of one agent."""
        assert isinstance(trainer.train_collector, tk.Collector)
        opponent = trainer.train_collector.player(episode.env_id ^ 1)  # the other row of the game
        results = self._results.setdefault(f"{episode.policy} against {opponent}", deque(maxlen=100))
        results.append(0.5 + 0.5 * float(np.sign(episode.total_reward)))

    def on_collect_end(self, trainer: tk.Trainer, stats: tk.CollectStats) -> None:
        """Add copies that are due, and let exploiters start again."""
        for role in ROLES:
            count = trainer.policy.clocks[role].env_step // self.every
            name = f"{role}-{count}"
            if count and name not in self.past:
                trainer.policy.add_copy(name, of=role)
                self.past.append(name)
                if role == "main_exploiter" or (role == "league_exploiter" and count % 4 == 0):
                    trainer.policy[role].set_weights(self._start[role])

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run continues with."""
        results = {pair: list(own) for pair, own in self._results.items()}
        return {"past": list(self.past), "results": results, "start": self._start}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with it."""
        self.past, self._start = list(state["past"]), state["start"]
        self._results = {pair: deque(own, maxlen=100) for pair, own in state["results"].items()}


def make_trainer(seed: int = 1, every: int = 400, **options: Any) -> tk.OnpolicyTrainer:
    """Put a PPO for each role and the league together."""
    envs = tk.make_envs(RockPaperScissors, 32)
    league = League(every)
    roles = {role: tk.PPOPolicy.for_envs(envs, hidden=(16,), lr=5e-3, entropy_weight=0.3) for role in ROLES}
    players = tk.MultiAgentPolicy(roles, policy_mapping=league)
    train = tk.Collector(players, envs, tk.MultiAgentBuffer({role: tk.RolloutBuffer() for role in ROLES}))
    settings: dict[str, Any] = {"max_epoch": 10, "step_per_epoch": 3_200, "step_per_collect": 128}
    return tk.OnpolicyTrainer(
        players, train, repeat_per_collect=4, callbacks=[league], seed=seed, **settings | options
    )  # fmt: skip


def main() -> None:
    """Train the league, let its roles and a random player play a tournament, and print the main agent's average."""
    torch.set_num_threads(1)  # networks this small are fastest on one
    with make_trainer(show_progress=False) as trainer:
        trainer.run()
        players = trainer.policy
        envs = tk.make_envs(RockPaperScissors, 1)
        contestants = {role: players[role] for role in ROLES} | {"random": tk.RandomPolicy(envs.action_space, seed=1)}
        print(tk.trainer.tournament(contestants, RockPaperScissors, n_episode=200, explore=True, seed=2))
        mains = [policy for name, policy in players.policies.items() if name.partition("-")[0] == "main"]
        shares = np.mean([policy.action_probability(np.zeros((1, 1)), explore=True)[0] for policy in mains], axis=0)
        print(", ".join(f"{action} {share:.2f}" for action, share in zip(ACTIONS, shares, strict=True)))


if __name__ == "__main__":
    main()
