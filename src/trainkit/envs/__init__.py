"""Environments: made, stepped and validated, whatever backend and autoreset mode they have."""

from trainkit.core.extensions import attach

__dir__, __getattr__ = attach(
    __name__,
    {
        "core.protocols": "EnvSpaces",
        "core.spaces": "ActionStructure flat_actions",
        "envs.backends": "AroundBackend RunsEnvs",
        "envs.env_checker": "Finding check_env",
        "envs.envs": "Envs",
        "envs.factories": "EnvContext",
        "envs.make": "make_envs",
    },
)
