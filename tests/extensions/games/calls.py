"""Calls of games that work, for the table of all public calls."""

from pathlib import Path
from typing import Any

import trainkit as tk
from tests.faults.makers import Call
from tests.helpers.learning import THREE_ACTIONS
from tests.helpers.pairs import Corridors, SeenCorridors

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
