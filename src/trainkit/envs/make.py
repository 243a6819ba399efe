"""Making environments: from an id, a factory, a class, a list of factories, or a gymnasium vector environment."""

import contextlib
import dataclasses
import functools
import importlib
import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import VectorEnv

from trainkit.core.errors import Checks, ConfigError
from trainkit.core.protocols import Simulator
from trainkit.core.signatures import checked
from trainkit.envs.actors import ActorRunner
from trainkit.envs.agents import GamesBackend
from trainkit.envs.backends import Backend, Runner
from trainkit.envs.envs import Envs
from trainkit.envs.factories import (
    EnvOptions,
    ValidateEnv,
    Wrapper,
    creation_errors,
    described,
    described_kwargs,
    is_class_path,
    replaced_action_space,
    replaced_observation_space,
    with_package,
)
from trainkit.envs.games import ByAgent, driver_of, is_game
from trainkit.envs.process import ProcessRunner
from trainkit.envs.processors import Processed, Processor
from trainkit.envs.recovery import Restarts
from trainkit.envs.single import SingleBackend
from trainkit.envs.sync import SyncRunner
from trainkit.envs.vector import VectorBackend


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions:
    """Options of environments in processes, as in `make_envs`."""

    step_timeout_s: float | None
    wait_num: int | None
    environment_variables: Mapping[str, str]
    actors: int | None


EnvSpec = str | Callable[..., Any] | Sequence[Callable[..., Any]] | VectorEnv[Any, Any, Any] | Envs


@checked
def make_envs(
    spec: EnvSpec,
    n: int = 1,
    *,
    seed: int | None = None,
    backend: Literal["sync", "async", "process", "ray", "vector"] = "sync",
    actors: int | None = None,
    stack: int = 1,
    mask_key: str | None = None,
    lives_key: str | None = None,
    wrappers: Sequence[Wrapper] = (),
    processors: Sequence[Processor] = (),
    max_episode_steps: int | None = None,
    soft_horizon: int | None = None,
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
            factories, or a gymnasium vector environment.
        n: number of environments, or of games of several agents; a list or a vector environment has its own.
        seed: root of the seeds of all episodes, by (root, environment, episode); None: the trainer's.
        backend: "sync" steps in this process, "async" in a process each, "process" and "ray" in actors, "vector" uses
            the id's own vector environment.
        actors: of the backends "process" and "ray": processes of this machine, or actors of a Ray cluster, each with
            n / actors environments that it steps one after the other.
        stack: frames per observation, on a new first axis; the buffer stores single frames.
        mask_key: info with the legal actions; not needed if the observation has a leaf "action_mask".
        lives_key: info with the number of lives; losing one terminates the learner's episode, not the game.
        wrappers: applied to each environment, the first innermost.
        processors: applied to all observations and actions, the first nearest to the environments.
        max_episode_steps: steps after which an episode is truncated.
        soft_horizon: steps after which an episode counts as finished in statistics alone: no flag and no reset.
        env_kwargs: arguments of the constructor or factory.
        observation_space: replaces the declared one of an environment or agent: the same shapes, other bounds or dtype.
        action_space: replaces the declared one of an environment or agent: a part of it.
        validate_env: called with each environment after its wrappers; it raises or returns False to reject it.
        in_evaluation: passed to factories in their `EnvContext`.
        on_error: "raise" ends the run when an environment fails, "restart" replaces that environment.
        max_restarts: of one environment in a row; an episode that ends normally resets the count.
        restart_delay_s: before the second restart in a row, doubled for each that follows, 30 s at most.
        failed_episodes: "drop" removes the rows of an episode that failed, "cut" keeps them as truncated by a reset.
        step_timeout_s: time for a step or reset of an "async" environment, or of an actor, before it is killed; None:
            no limit.
        wait_num: a step returns as soon as this many "async" environments have answered; None: when all have.
        environment_variables: set in the process of each "async" environment, or actor, before it is made.
    """
    single = EnvOptions(wrappers, max_episode_steps, env_kwargs or {}, observation_space, action_space, validate_env)
    process = ProcessOptions(
        step_timeout_s=step_timeout_s,
        wait_num=wait_num,
        environment_variables=environment_variables or {},
        actors=actors,
    )
    options = {"stack": stack, "mask_key": mask_key, "lives_key": lives_key, "seed": seed, "soft_horizon": soft_horizon}
    with Checks("make_envs") as checks:
        _check_options(checks, n, options, processors, single)
        checks.integer("max_restarts", max_restarts, low=0)
        checks.number("restart_delay_s", restart_delay_s, low=0)
        checks.one_of("failed_episodes", failed_episodes, ["drop", "cut"])
        _check_spec(checks, spec, n, backend, options, processors, single, on_error, process)
    if isinstance(spec, Envs):
        return spec
    n_allowed = max_restarts if on_error == "restart" else None
    restarts = Restarts(n_allowed, delay_s=restart_delay_s, failed_episodes=failed_episodes)
    make = functools.partial(_build, spec, n, backend, options, processors, single, in_evaluation, restarts, process)
    envs = make()
    envs.make_again = None if isinstance(spec, VectorEnv) else make
    return envs


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


# ---- validation ----


def _check_options(
    checks: Checks, n: int, options: Mapping[str, Any], processors: Sequence[Processor], single: EnvOptions
) -> None:
    checks.integer("n", n, low=1)
    checks.integer("stack", options["stack"], low=1)
    for name in ("mask_key", "lives_key"):
        key = options[name]
        checks.require(key is None or isinstance(key, str), f".{name} must be the name of an info, got {key!r}")
    checks.integer("seed", options["seed"], low=0, optional=True)
    checks.integer("max_episode_steps", single.max_episode_steps, low=1, optional=True)
    checks.integer("soft_horizon", options["soft_horizon"], low=1, optional=True)
    for index, processor in enumerate(processors):
        is_one = isinstance(processor, Processor)
        checks.require(is_one, f".processors[{index}] must be a Processor, got {processor!r}")
    validate = single.validate_env
    can_validate = validate is None or callable(validate)
    checks.require(can_validate, f".validate_env must be a function of an environment, got {validate!r}")


def _check_spec(
    checks: Checks,
    spec: EnvSpec,
    n: int,
    backend: str,
    options: Mapping[str, Any],
    processors: Sequence[Processor],
    single: EnvOptions,
    on_error: str,
    process: ProcessOptions,
) -> None:
    """Check that the specification of the environments supports the backend and the options."""
    checks.one_of("backend", backend, ["sync", "async", "process", "ray", "vector"])
    checks.one_of("on_error", on_error, ["raise", "restart"])
    is_single = isinstance(spec, gym.Env) and not isinstance(spec, VectorEnv)  # envpool's are of both classes
    checks.require(not is_single, " needs an id or a factory, not one environment: pass `lambda: env`")
    is_made = isinstance(spec, (VectorEnv, Envs))
    n_envs = len(spec) if isinstance(spec, Sequence) and not isinstance(spec, str) else n
    _check_actors(checks, process.actors, backend, n_envs, is_made=is_made)
    has_processes = backend in ("async", "process", "ray") and not is_made
    if process.step_timeout_s is not None:
        checks.number("step_timeout_s", process.step_timeout_s, low=0, above_low=True)
        rule = '.step_timeout_s can end a process, not what runs in this one: use backend="async"'
        checks.require(has_processes, rule)
    if process.wait_num is not None:
        if checks.integer("wait_num", process.wait_num, low=1):
            rule = f".wait_num {process.wait_num} is larger than the number of environments, {n_envs}: lower it"
            checks.require(process.wait_num <= n_envs, rule)
        rule = '.wait_num waits for processes, and environments in this one step in turn: use backend="async"'
        checks.require(has_processes and backend == "async", rule)
    if process.environment_variables:
        rule = '.environment_variables are those of a process: use backend="async", or set os.environ of this one'
        checks.require(has_processes, rule)
        given = process.environment_variables
        is_text = isinstance(given, Mapping) and all(isinstance(text, str) for pair in given.items() for text in pair)
        checks.require(is_text, f".environment_variables must be a dict of strings, got {given!r}")
    if backend == "vector" or isinstance(spec, VectorEnv):
        rule = "single environments, which a vector environment does not give: give an id or factories"
        checks.require(on_error != "restart", f'.on_error "restart" needs {rule}')
        checks.require(single.validate_env is None, f".validate_env is called with {rule}")
    late: dict[str, Any] = {name: getattr(single, name) for name in ("wrappers", "max_episode_steps", "env_kwargs")}
    if isinstance(spec, Simulator):
        checks.require(
            False,
            f".spec is the simulator {type(spec).__name__}: give tk.simulators.SimulatorVectorEnv(simulator), whose "
            "steps are copied to arrays, or use it in a tk.simulators.TensorCollector",
        )
    elif isinstance(spec, (VectorEnv, Envs)):
        n_envs = spec.num_envs if isinstance(spec, VectorEnv) else spec.n
        checks.require(n in (1, n_envs), f".n is {n}, but {n_envs} environments were given: leave n out")
        if isinstance(spec, Envs):
            late |= {**options, "stack": options["stack"] > 1, "seed": options["seed"] is not None}
            late |= {
                "processors": processors,
                "on_error": on_error == "restart",
                "validate_env": single.validate_env,
            }
            late |= {"observation_space": single.observation_space, "action_space": single.action_space}
        names = ", ".join(name for name, value in late.items() if value)
        checks.require(not names, f": {names} came too late for environments already made")
    elif backend == "vector":
        is_id = isinstance(spec, str) and not is_class_path(spec)
        checks.require(is_id, f'.backend "vector" needs a registered id, got {spec!r}: use "sync"')
        rule = '.backend "vector" has no single environments to apply wrappers to: use "sync"'
        checks.require(not single.wrappers, rule)


def _check_actors(checks: Checks, actors: int | None, backend: str, n_envs: int, *, is_made: bool) -> None:
    """Check the number of actors, which two of the backends need."""
    has_actors = backend in ("process", "ray")
    if actors is None:
        checks.require(not has_actors, f".backend {backend!r} needs actors=, the number of processes that share n")
        return
    rule = f'.actors are processes with environments that they make: use backend="process" or "ray", got {backend!r}'
    if checks.integer("actors", actors, low=1) and checks.require(has_actors and not is_made, rule):
        rule = f".actors {actors} is larger than the number of environments, {n_envs}: lower it"
        checks.require(actors <= n_envs, rule)


# ---- construction ----


def _build(
    spec: str | Callable[..., Any] | Sequence[Callable[..., Any]] | VectorEnv[Any, Any, Any],
    n: int,
    backend: str,
    options: Mapping[str, Any],
    processors: Sequence[Processor],
    single: EnvOptions,
    in_evaluation: bool,
    restarts: Restarts,
    process: ProcessOptions,
) -> Envs:
    """Make the backend and the `Envs` on it; close the environments made here if that fails."""
    make_driver = functools.partial(_driver, spec, n, backend, options, in_evaluation, process)
    driver = make_driver(single)
    with contextlib.ExitStack() as unfinished:
        if not isinstance(spec, VectorEnv):
            unfinished.enter_context(contextlib.closing(driver))
        if isinstance(driver, GamesBackend) and options["soft_horizon"] is not None:
            raise ConfigError("make_envs.soft_horizon is for environments of one agent: use max_episode_steps")
        limit = single.max_episode_steps
        envs = Envs(
            Processed(driver, processors) if processors else driver,
            name=_name(spec),
            agents=driver.agents if isinstance(driver, GamesBackend) else (),
            agent_views=driver.views if isinstance(driver, GamesBackend) and not processors else {},
            restarts=restarts,
            max_episode_steps=_registered_limit(spec) if limit is None else limit,
            **options,
        )
        unfinished.pop_all()
    if not isinstance(spec, VectorEnv):
        envs.make_backend = lambda env_kwargs: make_driver(dataclasses.replace(single, env_kwargs=env_kwargs))
    envs.made_with = {
        "env_kwargs": described_kwargs(single.env_kwargs),
        "max_episode_steps": limit,
        "wrappers": [described(wrapper) for wrapper in single.wrappers],
        "processors": [type(processor).__name__ for processor in processors],
    }
    return envs


def _driver(
    spec: str | Callable[..., Any] | Sequence[Callable[..., Any]] | VectorEnv[Any, Any, Any],
    n: int,
    backend: str,
    options: Mapping[str, Any],
    in_evaluation: bool,
    process: ProcessOptions,
    single: EnvOptions,
) -> Backend:
    """Make the environments, and the backend that steps them; close what was made here if that fails."""
    with contextlib.ExitStack() as unfinished:
        if isinstance(spec, str):
            spec = with_package(spec)
            if backend == "vector":
                spec = unfinished.enter_context(contextlib.closing(_make_vector(spec, n, single)))
        driver: Backend
        if isinstance(spec, VectorEnv):
            _check_single_stack(spec, options["stack"])
            driver = VectorBackend(
                spec,
                observation_space=replaced_observation_space(spec.single_observation_space, single.observation_space),
                action_space=replaced_action_space(spec.single_action_space, single.action_space),
            )
        else:
            made = single.factories(_listed(spec, n), options["seed"], in_evaluation=in_evaluation)
            factories = [functools.partial(_make_driven, make) for make in made]
            driver = _rows_of(SyncRunner(factories) if backend == "sync" else _processes(factories, backend, process))
        unfinished.pop_all()
    return driver


def _listed(spec: str | Callable[..., Any] | Sequence[Callable[..., Any]], n: int) -> list[str | Callable[..., Any]]:
    """Return the spec of each environment."""
    if isinstance(spec, str) or callable(spec):
        return [spec] * n
    if not isinstance(spec, Sequence) or len(spec) == 0 or not all(callable(one) for one in spec):
        raise ConfigError(
            f"make_envs needs an id, a factory, a list of factories or a vector environment, got {spec!r}"
        )
    if n not in (1, len(spec)):
        raise ConfigError(f"make_envs.n is {n}, but {len(spec)} factories were given: leave n out")
    return list(spec)


def _make_driven(make: Callable[[], Any]) -> Any:
    """Make an environment, or a game in the form that runners drive."""
    env = make()
    return driver_of(env) if is_game(env) else env


def _rows_of(runner: Runner) -> SingleBackend | GamesBackend:
    """Return the backend that reads the rows of what a runner runs: environments of one agent or games."""
    return (GamesBackend if isinstance(runner.spaces[0].observation_space, ByAgent) else SingleBackend)(runner)


def _processes(
    factories: Sequence[Callable[[], Any]], backend: str, process: ProcessOptions
) -> ProcessRunner | ActorRunner:
    """Start a process for each environment, or actors for several."""
    variables = process.environment_variables
    if variables:
        factories = [functools.partial(_with_variables, variables, make) for make in factories]
    if process.actors is not None:
        return ActorRunner(factories, process.actors, "ray" if backend == "ray" else "process", process.step_timeout_s)
    return ProcessRunner(factories, process.step_timeout_s, process.wait_num)


def _with_variables(variables: Mapping[str, str], make: Callable[[], Any]) -> Any:
    """Make an environment in its process, which has these environment variables from now on."""
    os.environ.update(variables)
    return make()


def _make_vector(env_id: str, n: int, single: EnvOptions) -> VectorEnv[Any, Any, Any]:
    """Make an id's own vector environment."""
    arguments = dict(single.env_kwargs)
    with creation_errors(env_id):
        package, _, registered = env_id.rpartition(":")
        if package:
            importlib.import_module(package)
        entry_point = gym.spec(registered).vector_entry_point
        if entry_point is None:
            raise ConfigError(f'make_envs: {registered} has no vector environment of its own: use backend="sync"')
        if single.max_episode_steps is not None:
            maker = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
            if "max_episode_steps" not in inspect.signature(maker).parameters:
                raise ConfigError(
                    f"make_envs.max_episode_steps: the vector environment of {registered} takes none: give env_kwargs "
                    'a limit it has, or use backend="sync"'
                )
            arguments["max_episode_steps"] = single.max_episode_steps
        return gym.make_vec(env_id, n, "vector_entry_point", **arguments)


def _check_single_stack(vector_env: VectorEnv[Any, Any, Any], stack: int) -> None:
    """Raise if frames would be stacked twice: ale-py's stacks start with zeros, ours with copies of the first frame."""
    kind, shape = type(vector_env.unwrapped), vector_env.single_observation_space.shape
    if stack > 1 and shape and shape[0] > 1 and "stack_num" in inspect.signature(kind).parameters:
        raise ConfigError(
            f"make_envs.stack is {stack}, but {kind.__name__} stacks {shape[0]} frames itself: set it to single "
            'frames, env_kwargs={"stack_num": 1}'
        )


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
