"""Environments: made, stepped and validated, whatever backend and autoreset mode they have."""
# Written by `python -m tests.stubs`

from trainkit.core.protocols import EnvSpaces
from trainkit.core.spaces import ActionStructure, flat_actions
from trainkit.envs.backends import AroundBackend, RunsEnvs
from trainkit.envs.env_checker import Finding, check_env
from trainkit.envs.envs import Envs
from trainkit.envs.factories import EnvContext
from trainkit.envs.make import make_envs
from trainkit.extensions.actors.actors import Actors
from trainkit.extensions.games.agent_groups import group_agents
from trainkit.extensions.games.game_state import ObserveState
from trainkit.extensions.processors.processors import (
    AgentId,
    DiscretizeActions,
    Flatten,
    MapActions,
    MapObs,
    PreviousStep,
    Processor,
    TimeFeature,
)

__all__ = [
    "ActionStructure",
    "Actors",
    "AgentId",
    "AroundBackend",
    "DiscretizeActions",
    "EnvContext",
    "EnvSpaces",
    "Envs",
    "Finding",
    "Flatten",
    "MapActions",
    "MapObs",
    "ObserveState",
    "PreviousStep",
    "Processor",
    "RunsEnvs",
    "TimeFeature",
    "check_env",
    "flat_actions",
    "group_agents",
    "make_envs",
]
