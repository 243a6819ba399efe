"""Environments: made, stepped and validated, whatever backend and autoreset mode they have."""

from trainkit.core.extensions import attach
from trainkit.core.protocols import EnvSpaces
from trainkit.core.spaces import ActionStructure, flat_actions
from trainkit.envs.backends import AroundBackend, RunsEnvs
from trainkit.envs.check_env import Finding, check_env
from trainkit.envs.envs import Envs
from trainkit.envs.factories import EnvContext
from trainkit.envs.make import make_envs

__all__ = [
    "ActionStructure",
    "AroundBackend",
    "EnvContext",
    "EnvSpaces",
    "Envs",
    "Finding",
    "RunsEnvs",
    "check_env",
    "flat_actions",
    "make_envs",
]

__dir__, __getattr__ = attach(__name__, __all__)
