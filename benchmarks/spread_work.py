"""What is learned in simple_spread alongside BenchMARL, in numbers that both sides share, and how it is evaluated.

A side is a script that takes `--algorithm --seed`, learns in an environment of its own, and prints one line of JSON:
`returns` of the evaluations, and `done`, which must be equal on both sides.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpe2 import simple_spread_v3

SEEDS = (1, 2, 3)
EVALUATIONS, EPISODES = 3, 200  # evaluations in a run, evenly spread, and games in each
GAME: dict[str, Any] = {"N": 3, "max_cycles": 25, "local_ratio": 0.5, "continuous_actions": False}
N_AGENTS, N_OBS, N_STATE, N_ACTIONS = 3, 18, 54, 5

SETTINGS: dict[str, Any] = {
    "rollouts": 60,
    "games at the same time": 32,
    "steps of each game per rollout": 25,
    "hidden layers, tanh, of actor and critic each": [64, 64],
    "passes over each rollout": 5,
    "batches per pass": 4,
    "Adam: lr": 3e-4,
    "Adam: eps": 1e-5,
    "gradients' norm clipped at": 10.0,
    "gamma": 0.9,
    "lambda": 0.95,
    "ratio clipped at": 0.2,
    "value weight": 0.5,
    "entropy weight": 0.01,
    "advantages, rewards, observations": "as they are",
}
STEPS_PER_ROLLOUT = SETTINGS["games at the same time"] * SETTINGS["steps of each game per rollout"]
STEPS = SETTINGS["rollouts"] * STEPS_PER_ROLLOUT  # of games; those of agents are three times as many
DONE = {
    "game_steps": STEPS,
    "updates": SETTINGS["rollouts"] * SETTINGS["passes over each rollout"] * SETTINGS["batches per pass"],
}


def make_game() -> Any:
    """Return a game with PettingZoo's parallel API."""
    return simple_spread_v3.parallel_env(**GAME)


def is_evaluated_after(n_rollouts: int) -> bool:
    """Return whether an evaluation follows this many rollouts."""
    return n_rollouts > 0 and n_rollouts % (SETTINGS["rollouts"] // EVALUATIONS) == 0


class Judge:
    """Play the most probable actions now and then, in the same games whoever learns, and keep the CPU time it took."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.returns: list[float] = []
        self.seconds = 0.0
        self._games = [make_game() for _ in range(EPISODES)]

    def play(self, act: Callable[[Any], Any]) -> None:
        """Note the mean return of an agent under `act`, from observations [games, agents, 18] to actions."""
        started = time.process_time()
        seeds = np.random.SeedSequence([self.seed, len(self.returns)]).generate_state(EPISODES) % 2**31
        seen = [game.reset(seed=int(seed))[0] for game, seed in zip(self._games, seeds, strict=True)]
        agents, total = self._games[0].possible_agents, 0.0
        for _ in range(GAME["max_cycles"]):  # nothing but the time limit ends a game
            actions = act(np.array([[obs[agent] for agent in agents] for obs in seen], np.float32))
            seen = []
            for game, own in zip(self._games, actions, strict=True):
                obs, rewards, *_ = game.step({agent: int(one) for agent, one in zip(agents, own, strict=True)})
                seen.append(obs)
                total += sum(rewards.values())
        self.returns.append(total / EPISODES / N_AGENTS)
        self.seconds += time.process_time() - started
