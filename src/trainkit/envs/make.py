"""Making environments: from an id, a factory, a class, a list of factories, or a gymnasium vector environment."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import gymnasium as gym
from gymnasium.vector import VectorEnv

from trainkit.core.errors import ConfigError
from trainkit.core.extensions import table
from trainkit.core.signatures import checked
from trainkit.envs.backends import Backend, RunsEnvs, StandsAround
from trainkit.envs.envs import Envs
from trainkit.envs.envs_config import EnvsConfig, EnvSpec, FailureOptions, ProcessOptions, RowOptions
from trainkit.envs.factories import EnvOptions, ValidateEnv, Wrapper, versions_of


@checked
def make_envs(
    spec: EnvSpec,
    n: int = 1,
    *,
    seed: int | None = None,
    backend: Literal["sync", "async", "vector"] | RunsEnvs = "sync",
    stack: int = 1,
    pad: Literal["repeat", "zero"] = "repeat",
    mask_key: str | None = None,
    lives_key: str | None = None,
    wrappers: Sequence[Wrapper] = (),
    processors: Sequence[StandsAround] = (),
    max_episode_steps: int | None = None,
    soft_horizon: int | None = None,
    truncate_at_soft_horizon: bool = False,
    env_kwargs: dict[str, Any] | None = None,
    observation_space: gym.Space[Any] | None = None,
    action_space: gym.Space[Any] | None = None,
    validate_env: ValidateEnv | None = None,
    in_evaluation: bool = False,
    on_error: Literal["raise", "restart"] = "raise",
    max_restarts: int = 10,
    restart_delay_s: float = 0.1,
    failed_episodes: Literal["drop", "cut"] = "drop",
    step_timeout_s: float | None = None,
    wait_num: int | None = None,
    environment_variables: Mapping[str, str] | None = None,
) -> Envs:
    """Make N environments that are stepped together; docs/environments.md describes the options in detail.

    Args:
        spec: an id, "module.Class", a game such as "pettingzoo/classic/chess_v6", a factory or class, a list of
            factories, or a gymnasium vector environment; or what an extension makes one of, such as a simulator.
        n: number of environments, or of games of several agents; a list or a vector environment has its own.
        seed: root of the seeds of all episodes, by (root, environment, episode); None: the trainer's.
        backend: "sync" steps in this process, "async" in a process each, "vector" uses the id's own vector environment;
            or what runs them otherwise, such as `envs.Actors(4)`.
        stack: frames per observation, on a new first axis; the buffer stores single frames.
        pad: what stands before an episode's first frame in a stack: that frame, or zeros.
        mask_key: info with the legal actions; not needed if the observation has a leaf "action_mask".
        lives_key: info with the number of lives; losing one terminates the learner's episode, not the environment's.
        wrappers: applied to each environment, the first innermost.
        processors: applied to all observations and actions, the first nearest to the environments.
        max_episode_steps: steps after which an episode is truncated.
        soft_horizon: steps after which an episode counts as finished in statistics alone: no flag and no reset.
        truncate_at_soft_horizon: store the row there as truncated, without a reset, so that the learner's episode ends.
        env_kwargs: arguments of the constructor or factory.
        observation_space: replaces the declared one of a row: the same shapes, other bounds or dtype.
        action_space: replaces the declared one of a row: a part of it.
        validate_env: called with each environment after its wrappers; it raises or returns False to reject it.
        in_evaluation: passed to factories in their `EnvContext`.
        on_error: "raise" ends the run when an environment fails, "restart" replaces that environment.
        max_restarts: of one environment in a row; an episode that ends normally resets the count.
        restart_delay_s: before the second restart in a row, doubled for each that follows, 30 s at most.
        failed_episodes: "drop" removes the rows of an episode that failed, "cut" keeps them as truncated by a reset.
        step_timeout_s: time for a step or reset of an environment in another process before that is killed; None: no
            limit.
        wait_num: a step returns as soon as this many "async" environments have answered; None: when all have.
        environment_variables: set in the other process of each environment before it is made.
    """
    config = EnvsConfig(
        spec=resolved(spec),
        n=n,
        seed=seed,
        rows=RowOptions(stack, pad, mask_key, lives_key, soft_horizon, truncate_at_soft_horizon),
        single=EnvOptions(wrappers, max_episode_steps, env_kwargs or {}, observation_space, action_space, validate_env),
        processors=processors,
        processes=ProcessOptions(backend, step_timeout_s, wait_num, environment_variables or {}),
        failures=FailureOptions(on_error, max_restarts, restart_delay_s, failed_episodes),
        in_evaluation=in_evaluation,
    )
    if isinstance(spec, Envs):
        config.check(spec.n)
        return spec
    config.check()
    return envs_of(config)


def resolved(spec: EnvSpec) -> EnvSpec:
    """Return what an extension makes of a specification of its own, such as a simulator; any other as it is.

    Raises:
        ConfigError: it is an id without its version, by which neither the zoo nor a repeated run finds it.
    """
    if isinstance(spec, str) and (versions := versions_of(spec)):
        raise ConfigError(f"make_envs: {spec!r} names no version, which may change: give {versions[-1]!r}")
    if isinstance(spec, (str, gym.Env, VectorEnv, Envs, Sequence)) or callable(spec):
        return spec
    made = (entry.load()(spec) for entry in table("ENV_SPECS").values())
    return next((one for one in made if one is not None), spec)


def has_own_number(spec: EnvSpec) -> bool:
    """Return whether `spec` itself determines the number of environments."""
    return isinstance(spec, (VectorEnv, Envs)) or not (isinstance(spec, str) or callable(spec))


@contextlib.contextmanager
def borrowed_envs(spec: EnvSpec, n: int, **options: Any) -> Iterator[Envs]:
    """Make environments and close them at the end; an `Envs` or a vector environment that is given stays open.

    Args:
        spec: as in `make_envs`.
        n: as in `make_envs`.
        options: of `make_envs`.
    """
    envs = make_envs(spec, n, **options)
    try:
        yield envs
    finally:
        if isinstance(spec, VectorEnv):
            envs.detach()
        elif not isinstance(spec, Envs):
            envs.close()


def envs_of(config: EnvsConfig) -> Envs:
    """Make the environments of a config; those made here are closed if that fails."""
    rows, limit = config.rows, config.single.max_episode_steps
    backend = config.make_backend()
    with contextlib.ExitStack() as unfinished:
        if not isinstance(config.spec, VectorEnv):
            unfinished.enter_context(contextlib.closing(backend))
        if backend.agents and rows.soft_horizon is not None:
            raise ConfigError("make_envs.soft_horizon is for environments of one agent: use max_episode_steps")
        around: Backend = backend
        for outer in [*config.processors, *config.failures.around()]:
            around = outer.around(around)
        envs = Envs(
            around,
            stack=rows.stack,
            pad=rows.pad,
            mask_key=rows.mask_key,
            lives_key=rows.lives_key,
            seed=config.seed,
            name=_name(config.spec),
            max_episode_steps=_registered_limit(config.spec) if limit is None else limit,
            soft_horizon=rows.soft_horizon,
            truncate_at_soft_horizon=rows.truncate_at_soft_horizon,
            config=config,
        )
        unfinished.pop_all()
    return envs


def _registered_limit(spec: Any) -> int | None:
    """Return the time limit that an id was registered with, None without a limit or an id."""
    registered = gym.registry.get(spec.rpartition(":")[2]) if isinstance(spec, str) else getattr(spec, "spec", None)
    limit = getattr(registered, "max_episode_steps", None)
    return limit if isinstance(limit, int) else None


def _name(spec: Any) -> str:
    """Return the name of environments, for messages and manifests."""
    if isinstance(spec, str):
        return spec
    if isinstance(spec, VectorEnv):
        return str(getattr(spec.spec, "id", type(spec).__name__))  # of other packages, which may have none
    return str(getattr(spec, "__name__", "custom"))
