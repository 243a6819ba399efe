"""Making environments: from an id, a factory, a class, a list of factories, or a gymnasium vector environment."""

import contextlib
import functools
import importlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import VectorEnv

from trainkit.core.errors import Checks, ConfigError, EnvError, MissingExtraError
from trainkit.core.signatures import checked
from trainkit.envs.agents import GamesBackend, check_parallel, is_game
from trainkit.envs.backends import Backend
from trainkit.envs.envs import Envs
from trainkit.envs.factories import EnvContext, GameWithSpaces, WithSpaces, takes_context
from trainkit.envs.process import WorkerBackend
from trainkit.envs.processors import Processed, Processor
from trainkit.envs.recovery import Restarts
from trainkit.envs.sync import SyncBackend, with_flat_actions
from trainkit.envs.vector import VectorBackend

EnvSpec = str | Callable[..., Any] | Sequence[Callable[..., Any]] | VectorEnv[Any, Any, Any] | Envs
Wrapper = Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]]
ValidateEnv = Callable[[Any], object]

# Ids that a package registers when it is imported: {namespace: (package, our extra)}.
_PACKAGES = {"ALE": ("ale_py", "atari")}


@checked
def make_envs(
    spec: EnvSpec,
    n: int = 1,
    *,
    seed: int | None = None,
    backend: Literal["sync", "async", "vector"] = "sync",
    stack: int = 1,
    mask_key: str | None = None,
    lives_key: str | None = None,
    wrappers: Sequence[Wrapper] = (),
    processors: Sequence[Processor] = (),
    max_episode_steps: int | None = None,
    env_kwargs: dict[str, Any] | None = None,
    observation_space: gym.Space[Any] | None = None,
    action_space: gym.Space[Any] | None = None,
    validate_env: ValidateEnv | None = None,
    in_evaluation: bool = False,
    on_error: Literal["raise", "restart"] = "raise",
    max_restarts: int = 10,
    restart_delay_s: float = 0.1,
    faulty: Literal["drop", "cut"] = "drop",
    step_timeout_s: float | None = None,
) -> Envs:
    """Make N environments that are stepped together.

    Args:
        spec: a registered id, a factory or class, a list of factories (then N is its length), "module.Class", or a
            gymnasium vector environment, of any autoreset mode, to adapt (then N is its own). A factory may make
            parallel environments of several agents, known by `possible_agents`: each agent of each is a row.
        n: how many.
        seed: root of the episodes' seeds; None takes the trainer's. Every episode is seeded from (root, environment,
            episode); a vector environment that was passed in, or is the id's own, where all of it is reset.
        backend: "sync" steps one by one in this process, "async" each in a process of its own (worth it when a step
            takes milliseconds), "vector" takes the id's own vector environment (CartPole's, or ale-py's in C++).
        stack: frames per observation, on a new axis before the frame's own; before an episode's first frame there are
            copies of it. The buffer stores single frames.
        mask_key: the key of the info that holds the legal actions; an observation that is a dict with a leaf
            "action_mask" needs none.
        lives_key: the key of the info that counts lives. Losing one ends the learner's episode: the row is stored as
            terminated and the stack begins anew. The game goes on, and what is counted is whole games.
        wrappers: applied to each environment, the first innermost.
        processors: change what the policy sees and does, on rows of all environments at once, the first innermost.
            They see single frames, and no mask that `mask_key` lifts.
        max_episode_steps: truncate episodes there; replaces an id's own limit.
        env_kwargs: passed to the id's, class's or factory's constructor.
        observation_space: of one environment, or one agent, instead of what it declares: other bounds or another dtype,
            the same shapes. What comes back from `reset` and `step` is checked against it. Processors come after it.
        action_space: likewise, within what the environment declares.
        validate_env: called with each environment when it was made, wrappers included, in its own process; what it
            raises, or that it returns False, is a `ConfigError` that names the environment. It may reset and step.
        in_evaluation: what the factory's `EnvContext` says; a factory with one positional parameter that has no
            default is given one.
        on_error: "raise" ends the run with an `EnvError` that says everything; "restart" makes an environment anew
            that raises, dies, gives no answer or returns what must not be learnt from. The others lose nothing.
        max_restarts: of one environment in a row; an episode that ends well begins a new row.
        restart_delay_s: before the second in a row, doubled for each that follows, 30 s at most.
        faulty: what becomes of an episode that was so broken off: "drop" takes its rows back, "cut" keeps them, ended
            as by a forced reset.
        step_timeout_s: kill a process ("async") that gives no answer to a step or a reset for so long; making an
            environment has a minute at least. None waits for ever.
    """
    checks = Checks("make_envs")
    checks.integer("n", n, low=1)
    checks.integer("stack", stack, low=1)
    checks.one_of("backend", backend, ["sync", "async", "vector"])
    for name, key in (("mask_key", mask_key), ("lives_key", lives_key)):
        known = key is None or isinstance(key, str)
        checks.require(known, f".{name} must be the name of an info, got {key!r}")
    if seed is not None:
        checks.integer("seed", seed, low=0)
    if max_episode_steps is not None:
        checks.integer("max_episode_steps", max_episode_steps, low=1)
    for place, own in enumerate(processors):
        checks.require(isinstance(own, Processor), f".processors[{place}] must be a Processor, got {own!r}")
    checks.require(not isinstance(spec, gym.Env), " needs an id or a factory, not one environment: pass `lambda: env`")
    can_validate = validate_env is None or callable(validate_env)
    checks.require(can_validate, f".validate_env must be a function of an environment, got {validate_env!r}")
    checks.one_of("on_error", on_error, ["raise", "restart"])
    checks.integer("max_restarts", max_restarts, low=0)
    checks.number("restart_delay_s", restart_delay_s, low=0)
    checks.one_of("faulty", faulty, ["drop", "cut"])
    if step_timeout_s is not None:
        checks.number("step_timeout_s", step_timeout_s, low=0, above_low=True)
        lives_apart = backend == "async" and not isinstance(spec, (VectorEnv, Envs))
        checks.require(lives_apart, '.step_timeout_s can end a process, not what runs in this one: use backend="async"')
    is_whole = backend == "vector" or isinstance(spec, VectorEnv)
    told = "needs single environments to make anew, which a vector environment does not give: give an id or factories"
    checks.require(not (is_whole and on_error == "restart"), f'.on_error "restart" {told}')
    told = "is called with single environments, which a vector environment does not give: give an id or factories"
    checks.require(not (is_whole and validate_env is not None), f".validate_env {told}")
    if isinstance(spec, (VectorEnv, Envs)):
        n_made = spec.num_envs if isinstance(spec, VectorEnv) else spec.n
        checks.require(n in (1, n_made), f".n is {n}, but {n_made} environments were given: leave n out")
        given: dict[str, Any] = {"wrappers": wrappers, "max_episode_steps": max_episode_steps, "env_kwargs": env_kwargs}
        if isinstance(spec, Envs):
            given |= {"stack": stack > 1, "mask_key": mask_key, "lives_key": lives_key, "seed": seed is not None}
            given |= {"processors": processors, "on_error": on_error == "restart", "validate_env": validate_env}
            given |= {"observation_space": observation_space, "action_space": action_space}
        late = ", ".join(name for name, value in given.items() if value)
        checks.require(not late, f": {late} came too late for environments already made")
    elif backend == "vector":
        is_id = isinstance(spec, str) and not _is_class_path(spec)
        checks.require(is_id, f'.backend "vector" needs a registered id, got {spec!r}: use "sync"')
        checks.require(not wrappers, '.backend "vector" has no single environments for wrappers to go on: use "sync"')
    checks.done()
    options: dict[str, Any] = {"stack": stack, "mask_key": mask_key, "lives_key": lives_key, "seed": seed}
    options["name"] = _name(spec)
    if isinstance(spec, Envs):
        return spec
    arguments = dict(env_kwargs or {})
    with contextlib.ExitStack() as made:  # closed only where they are refused
        if isinstance(spec, str):
            spec = _with_package(spec)
            if backend == "vector":
                spec = made.enter_context(contextlib.closing(_make_vector(spec, n, max_episode_steps, arguments)))
        driver: Backend
        if isinstance(spec, VectorEnv):
            _refuse_two_stacks(spec, stack)
            driver = VectorBackend(spec, observation_space=observation_space, action_space=action_space)
        else:
            recipes = _listed(spec, n)
            finish = functools.partial(
                _finish_flat, observation_space=observation_space, action_space=action_space, validate_env=validate_env
            )
            contexts = EnvContext.all_of(len(recipes), seed, in_evaluation=in_evaluation)
            factories = [
                functools.partial(_make_one, one, context, tuple(wrappers), max_episode_steps, arguments, finish)
                for one, context in zip(recipes, contexts, strict=True)
            ]
            driver = _drive(factories) if backend == "sync" else _start(factories, step_timeout_s)
            made.enter_context(contextlib.closing(driver))
            options["agents"] = driver.agents if isinstance(driver, GamesBackend) else ()
            if on_error == "restart":
                if isinstance(driver, GamesBackend):
                    raise ConfigError('make_envs.on_error "restart" is for environments of one agent: use "raise"')
                options["restarts"] = Restarts(driver.n, max_restarts, delay_s=restart_delay_s, faulty=faulty)
        options["max_episode_steps"] = _own_limit(spec) if max_episode_steps is None else max_episode_steps
        envs = Envs(Processed(driver, processors) if processors else driver, **options)
        made.pop_all()
    envs.made_with = {
        "env_kwargs": {str(name): _described(value) for name, value in sorted(arguments.items())},
        "max_episode_steps": max_episode_steps,
        "wrappers": [_described(wrapper) for wrapper in wrappers],
        "processors": [type(processor).__name__ for processor in processors],
    }
    return envs


def _described(value: Any) -> str:
    """Describe an argument in a word that is the same in every process: objects by the name of their kind."""
    if isinstance(value, (bool, int, float, str, list, tuple, dict, type(None))):
        return repr(value)
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def says_how_many(spec: EnvSpec) -> bool:
    """Return whether `spec` itself says how many environments there are."""
    return isinstance(spec, (VectorEnv, Envs)) or not (isinstance(spec, str) or callable(spec))


@contextlib.contextmanager
def borrowed_envs(spec: EnvSpec, n: int, **options: Any) -> Iterator[Envs]:
    """Make environments for a while: what was passed in, an `Envs` or a vector environment, stays open.

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


def make_single(spec: str | Callable[..., Any], env_kwargs: dict[str, Any]) -> gym.Env[Any, Any]:
    """Make one environment, an id's without gymnasium's own checks at each step."""
    context = EnvContext(index=0, n_envs=1, seed=None, in_evaluation=False)
    if isinstance(spec, str):
        spec = _with_package(spec)
        if not _is_class_path(spec):
            env_kwargs = {"disable_env_checker": True, **env_kwargs}
    elif not callable(spec):
        raise ConfigError(f"check_env needs an id, a factory or an environment, got {spec!r}")
    make = functools.partial(_make_one, spec, context, (), None, env_kwargs, _finish)
    return _alone(
        make, "check_env looks at environments of one agent", "pettingzoo.test.parallel_api_test looks at those"
    )


def _listed(spec: Any, n: int) -> list[Any]:
    """List what to make each environment from."""
    if isinstance(spec, str) or callable(spec):
        return [spec] * n
    if not isinstance(spec, Sequence) or len(spec) == 0 or not all(callable(one) for one in spec):
        raise ConfigError(
            f"make_envs needs an id, a factory, a list of factories or a vector environment, got {spec!r}"
        )
    if n not in (1, len(spec)):
        raise ConfigError(f"make_envs.n is {n}, but {len(spec)} factories were given: leave n out")
    return list(spec)


def _drive(factories: Sequence[Callable[[], Any]]) -> SyncBackend | GamesBackend:
    """Make environments, of one agent or of several each, to be driven in this process."""
    made = [factories[0]()]
    kind = GamesBackend if is_game(made[0]) else SyncBackend
    return kind([lambda: made.pop() if made else factories[0](), *factories[1:]])


def _start(factories: Sequence[Callable[[], gym.Env[Any, Any]]], timeout_s: float | None) -> WorkerBackend:
    """Start a process for each environment."""
    told = 'make_envs.backend "async" is for environments of one agent', 'use "sync"'
    return WorkerBackend([functools.partial(_alone, factory, *told) for factory in factories], timeout_s)


def _alone(make: Callable[[], Any], rule: str, advice: str) -> gym.Env[Any, Any]:
    """Make an environment; refuse one of several agents."""
    env: gym.Env[Any, Any] = make()
    if is_game(env):
        raise ConfigError(f"{rule}, and {env!r} is a game of several: {advice}")
    return env


def _make_one(
    spec: str | Callable[..., Any],
    context: EnvContext,
    wrappers: Sequence[Wrapper],
    max_episode_steps: int | None,
    env_kwargs: dict[str, Any],
    finish: Callable[[Any, int], Any],
) -> gym.Env[Any, Any]:
    """Make one environment from an id, "module.Class" or a factory."""
    with _faults_told(f"env {context.index}"):
        if isinstance(spec, str) and not _is_class_path(spec):
            env = gym.make(spec, max_episode_steps=max_episode_steps, **env_kwargs)
        else:
            factory = _load_class(spec) if isinstance(spec, str) else spec
            env = factory(*([context] if takes_context(factory, env_kwargs) else ()), **env_kwargs)
            if not isinstance(env, gym.Env) and not is_game(env):
                raise ConfigError(
                    "make_envs: the factory must return a gymnasium.Env, or a parallel environment of several agents, "
                    f"got {env!r}"
                )
            if max_episode_steps is not None and is_game(env):
                raise ConfigError(f"make_envs.max_episode_steps is not for a game of several agents: limit {env!r}")
            if max_episode_steps is not None:
                env = gym.wrappers.TimeLimit(env, max_episode_steps)
        for wrapper in wrappers:
            env = wrapper(env)
        check_parallel(env)  # only now: a wrapper may turn one API into the other
        made: gym.Env[Any, Any] = finish(env, context.index)
        return made


def _finish(
    env: Any,
    index: int,
    *,
    observation_space: gym.Space[Any] | None = None,
    action_space: gym.Space[Any] | None = None,
    validate_env: ValidateEnv | None = None,
) -> Any:
    """Give an environment the spaces a user wants, and have the user's function look at it."""
    if observation_space is not None or action_space is not None:
        kind: Any = GameWithSpaces if is_game(env) else WithSpaces
        env = kind(env, observation_space=observation_space, action_space=action_space)
    if validate_env is not None:
        check_with(validate_env, env, f"env {index}")
    return env


def check_with(validate_env: ValidateEnv, env: Any, name: str) -> None:
    """Raise a ConfigError where a user's function raises, or returns False, for an environment."""
    try:
        is_fine = validate_env(env)
    except Exception as error:
        raise ConfigError(f"make_envs.validate_env rejects {name}: {type(error).__name__}: {error}") from error
    if is_fine is False:
        raise ConfigError(f"make_envs.validate_env rejects {name}: it returned False for {env!r}")


def _finish_flat(env: Any, index: int, **how: Any) -> Any:
    """Do what `_finish` does; then let the environment take flat rows of actions, where they are nested."""
    return _flattened(_finish(env, index, **how))


def _flattened(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """Return an environment that takes flat rows of actions; close one whose actions have none."""
    try:
        return with_flat_actions(env)
    except ConfigError:
        env.close()
        raise


def _make_vector(
    env_id: str, n: int, max_episode_steps: int | None, env_kwargs: dict[str, Any]
) -> VectorEnv[Any, Any, Any]:
    """Make an id's own vector environment."""
    arguments = dict(env_kwargs)
    with _faults_told(env_id):
        package, _, registered = env_id.rpartition(":")
        if package:
            importlib.import_module(package)
        entry_point = gym.spec(registered).vector_entry_point
        if entry_point is None:
            raise ConfigError(f'make_envs: {registered} has no vector environment of its own: use backend="sync"')
        if max_episode_steps is not None:
            maker = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
            if "max_episode_steps" not in inspect.signature(maker).parameters:
                raise ConfigError(
                    f"make_envs.max_episode_steps: the vector environment of {registered} takes none: give env_kwargs "
                    'a limit it has, or use backend="sync"'
                )
            arguments["max_episode_steps"] = max_episode_steps
        return gym.make_vec(env_id, n, "vector_entry_point", **arguments)


@contextlib.contextmanager
def _faults_told(who: str) -> Iterator[None]:
    """Turn what goes wrong in making environments into errors of ours."""
    try:
        yield
    except ConfigError:
        raise
    except gym.error.Error as error:  # no such id, or something it needs is not installed
        raise ConfigError(f"make_envs: {error}") from error
    except Exception as error:
        raise EnvError(f"make_envs: {who} raised {type(error).__name__} when it was made: {error}") from error


def _with_package(env_id: str) -> str:
    """Return "package:id" where importing a package is what registers the id."""
    namespace = env_id.partition("/")[0]
    if namespace not in _PACKAGES:
        return env_id
    package, extra = _PACKAGES[namespace]
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise MissingExtraError(
            f"make_envs: {env_id} needs {package} ({error}): pip install trainkit[{extra}]"
        ) from error
    return f"{package}:{env_id}"


def _refuse_two_stacks(vector_env: VectorEnv[Any, Any, Any], stack: int) -> None:
    """Refuse to stack the stacks of a vector environment: ale-py's begin with zeros, ours with the first frame."""
    made, shape = type(vector_env.unwrapped), vector_env.single_observation_space.shape
    if stack > 1 and shape and shape[0] > 1 and "stack_num" in inspect.signature(made).parameters:
        raise ConfigError(
            f"make_envs.stack is {stack}, but {made.__name__} stacks {shape[0]} frames itself: ask it for single ones, "
            'env_kwargs={"stack_num": 1}'
        )


def is_registered(env: str) -> bool:
    """Return whether an environment is an id that is registered already, so that making it imports no named module.

    An id without its version, and one of a namespace whose package trainkit knows (ALE), count; "module:id" and
    "module.Class" do not.
    """
    known = env in gym.registry or any(env == spec.id.rpartition("-v")[0] for spec in gym.registry.values())
    return known or (env.partition("/")[0] in _PACKAGES and ":" not in env)


def _is_class_path(spec: str) -> bool:
    return spec not in gym.registry and "." in spec and all(part.isidentifier() for part in spec.split("."))


def _load_class(path: str) -> Callable[..., Any]:
    module, _, name = path.rpartition(".")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"make_envs: {path!r} is neither a registered id nor a class that can be imported: {error}"
        ) from error
    return found


def _own_limit(spec: Any) -> int | None:
    """Return the time limit an id was registered with, None where there is none or no id is known."""
    registered = gym.registry.get(spec.rpartition(":")[2]) if isinstance(spec, str) else getattr(spec, "spec", None)
    limit = getattr(registered, "max_episode_steps", None)
    return limit if isinstance(limit, int) else None


def _name(spec: Any) -> str:
    """Name what was asked for, for messages and manifests."""
    if isinstance(spec, str):
        return spec
    if isinstance(spec, VectorEnv):
        return spec.spec.id if spec.spec is not None else type(spec).__name__
    return str(getattr(spec, "__name__", "custom"))
