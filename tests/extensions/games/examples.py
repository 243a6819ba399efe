"""Examples of games: calls that work, and runs in which options matter, for tests of all public names."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import trainkit as tk
from examples.two_agents import TwoPoles
from tests.faults.makers import Call
from tests.helpers.learning import THREE_ACTIONS
from tests.helpers.matrix_games import MatrixGame
from tests.helpers.pairs import Corridors, SeenCorridors
from tests.outside.constructors import (
    REPLAY,
    ROLLOUTS,
    Build,
    Run,
    replayed,
    stepped,
)

NOT_CALLED = {"GameEpisode", "Tournament", "WinRate"}  # records


def tournament_arguments() -> dict[str, Any]:
    agents = {"left": 0, "right": 1}
    players = {name: tk.RandomPolicy(Corridors(agents).action_space("left"), seed=0) for name in ("one", "other")}
    return {"policies": players, "env": lambda: Corridors(agents), "n_episode": 2, "seed": 0}


def calls(folder: Path) -> dict[str, Call]:
    return {
        "LockstepReplayBuffer": Call(tk.buffer.LockstepReplayBuffer, {"capacity": 10, "n_agents": 2}),
        "MultiAgentBuffer": Call(tk.MultiAgentBuffer, {"buffers": {"main": tk.ReplayBuffer(10)}}),
        "MultiAgentPolicy": Call(
            tk.MultiAgentPolicy, {"policies": {"main": tk.RandomPolicy(THREE_ACTIONS)}, "policy_mapping": {"a": "main"}}
        ),
        "ObserveState": Call(tk.envs.ObserveState, {"game": SeenCorridors({"left": 0, "right": 1})}),
        "OpponentPool": Call(tk.callbacks.OpponentPool, {"name": "main", "add_every": 10}),
        "VDNBackup": Call(tk.VDNBackup, {}),
        "group_agents": Call(tk.envs.group_agents, {"groups": {"team": ["a", "b"]}}),
        "tournament": Call(tk.trainer.tournament, tournament_arguments()),
    }


def unseeded(build: Build) -> tuple[tk.Envs, Any]:
    made = tk.make_envs(TwoPoles, 2, seed=3)
    return made, build({name: tk.RandomPolicy(made.action_space) for name in ("left", "right")}, seed=1)


def agents(build: Build) -> Any:
    made = tk.make_envs(TwoPoles, 2, seed=3)
    policies = {name: tk.DQNPolicy.for_envs(made, hidden=(4,), device="cpu") for name in ("left", "right")}
    return replayed(build(policies), made, tk.MultiAgentBuffer({name: tk.ReplayBuffer(100) for name in policies}))


def pool(game: Any, **how: Any) -> Run:
    def run(build: Build) -> tk.Trainer:
        opponents = build("main", **how)
        made, test = (tk.make_envs(game, 2, seed=seed) for seed in (3, 4))
        learner = tk.DQNPolicy.for_envs(made, hidden=(4,), exploration=tk.EpsilonGreedy(0.5), device="cpu")
        policy: Any = tk.MultiAgentPolicy({"main": learner, "random": tk.RandomPolicy(made.action_space)}, opponents)
        buffer = tk.MultiAgentBuffer({"main": tk.ReplayBuffer(400)})
        more = {"test_collector": tk.Collector(policy, test), "episode_per_test": 4, "step_per_epoch": 300}
        return replayed(policy, made, buffer, callbacks=[opponents], **more)

    return run


def lockstep(build: Build) -> tk.Trainer:
    made = tk.make_envs(TwoPoles, 2, seed=3)
    policy = tk.DQNPolicy.for_envs(made, hidden=(4,), backup=tk.VDNBackup(), device="cpu")
    return replayed(policy, made, build(100, n_agents=2))


def vdn(build: Build) -> tk.Trainer:
    made = tk.make_envs(TwoPoles, 2, seed=3)
    policy = tk.DQNPolicy.for_envs(made, hidden=(4,), backup=build(), target=tk.Target(9), lr=0.1, device="cpu")
    return replayed(policy, made, tk.buffer.LockstepReplayBuffer(100, n_agents=2), update_per_step=2.0)


def agents_in(build: Build) -> tk.Trainer:
    """Return a run of a policy for each agent."""
    made = tk.make_envs(TwoPoles, 2, seed=3)
    learners = {name: tk.DQNPolicy.for_envs(made, hidden=(4,), device="cpu") for name in ("a", "b")}
    policy = tk.MultiAgentPolicy(learners, lambda agent, game: "ab"[agent == "left"])
    return replayed(policy, made, build({name: tk.ReplayBuffer(20) for name in learners}))


def in_game(kind: Any, buffer: Callable[[], Any], own: dict[str, Any]) -> Run:
    """Return a run of a trainer's constructor in a game."""

    def run(build: Build) -> tk.Trainer:
        made = tk.make_envs(TwoPoles, 2, seed=3)
        learner = kind.for_envs(made, hidden=(4,), device="cpu")
        policy = tk.MultiAgentPolicy({"one": learner}, {"left": "one", "right": "one"})
        trainer: tk.Trainer = build(policy, tk.Collector(policy, made, tk.MultiAgentBuffer({"one": buffer()})), **own)
        return trainer

    return run


RUNS: dict[Any, list[Run]] = {
    tk.MultiAgentPolicy: [agents, lambda build: stepped(*unseeded(build))],
    tk.VDNBackup: [vdn],
    tk.buffer.LockstepReplayBuffer: [lockstep],
    tk.MultiAgentBuffer: [agents_in],
    tk.callbacks.OpponentPool: [pool(MatrixGame, add_every=10), pool(MatrixGame, add_at_win_rate=0.3)],
    tk.OffpolicyTrainer: [in_game(tk.DQNPolicy, lambda: tk.ReplayBuffer(100), REPLAY)],
    tk.OnpolicyTrainer: [in_game(tk.PPOPolicy, tk.RolloutBuffer, ROLLOUTS)],
}
