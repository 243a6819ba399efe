"""Making environments: from an id, a factory, a class, a list of factories, or a gymnasium vector environment."""

import contextlib
import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any, Literal

import gymnasium as gym
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv

from trainkit.collector.backends import Backend, SyncBackend, VectorBackend
from trainkit.collector.envs import Envs
from trainkit.errors import Checks, ConfigError, EnvError

EnvSpec = str | Callable[..., Any] | Sequence[Callable[[], Any]] | VectorEnv[Any, Any, Any] | Envs
Wrapper = Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]]


def make_envs(
    spec: EnvSpec,
    n: int = 1,
    *,
    seed: int | None = None,
    backend: Literal["sync", "async"] = "sync",
    stack: int = 1,
    mask_key: str | None = None,
    wrappers: Sequence[Wrapper] = (),
    max_episode_steps: int | None = None,
    env_kwargs: dict[str, Any] | None = None,
) -> Envs:
    """Make N environments that are stepped together.

    Args:
        spec: a registered id, a factory or class, a list of factories (then N is its length), "module.Class", or a
            gymnasium vector environment, of any autoreset mode, to adapt (then N is its own).
        n: how many.
        seed: root of the episodes' seeds; None takes the trainer's. Every episode is seeded from (root, environment,
            episode); a vector environment that was passed in is seeded where all of it is reset.
        backend: "sync" steps one by one in this process, "async" each in a process of its own (worth it when a step
            takes milliseconds).
        stack: frames per observation, on a new axis before the frame's own; before an episode's first frame there are
            copies of it. The buffer stores single frames.
        mask_key: the key of the info that holds the legal actions; an observation that is a dict with a leaf
            "action_mask" needs none.
        wrappers: applied to each environment, the first innermost.
        max_episode_steps: truncate episodes there; replaces an id's own limit.
        env_kwargs: passed to the id's, class's or factory's constructor.
    """
    checks = Checks("make_envs")
    checks.integer("n", n, low=1)
    checks.integer("stack", stack, low=1)
    checks.one_of("backend", backend, ["sync", "async"])
    if seed is not None:
        checks.integer("seed", seed, low=0)
    if max_episode_steps is not None:
        checks.integer("max_episode_steps", max_episode_steps, low=1)
    checks.require(not isinstance(spec, gym.Env), " needs an id or a factory, not one environment: pass `lambda: env`")
    if isinstance(spec, (VectorEnv, Envs)):
        n_made = spec.num_envs if isinstance(spec, VectorEnv) else spec.n
        checks.require(n in (1, n_made), f".n is {n}, but {n_made} environments were given: leave n out")
        changes = not (wrappers or max_episode_steps or env_kwargs)
        checks.require(
            changes, ": wrappers, max_episode_steps and env_kwargs come too late for environments already made"
        )
    checks.done()
    options: dict[str, Any] = {"stack": stack, "mask_key": mask_key, "seed": seed, "name": _name(spec)}
    if isinstance(spec, Envs):
        return spec
    if isinstance(spec, VectorEnv):
        return Envs(VectorBackend(spec, owned=False), **options)
    factories = [
        functools.partial(_make_one, one, env_id, tuple(wrappers), max_episode_steps, dict(env_kwargs or {}))
        for env_id, one in enumerate(_listed(spec, n))
    ]
    with contextlib.ExitStack() as made:
        driver: Backend
        if backend == "sync":
            driver = made.enter_context(contextlib.closing(SyncBackend(factories)))
        else:
            driver = VectorBackend(made.enter_context(contextlib.closing(_start(factories))), owned=True)
        envs = Envs(driver, **options)
        made.pop_all()  # closed only where they were refused
    return envs


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


def _start(factories: Sequence[Callable[[], gym.Env[Any, Any]]]) -> AsyncVectorEnv:
    """Start a process for each environment."""
    try:
        # Without shared memory: gymnasium's would broadcast an observation of the wrong shape without a word.
        return AsyncVectorEnv(factories, autoreset_mode=AutoresetMode.DISABLED, shared_memory=False)
    except (EOFError, ConnectionError) as error:
        raise EnvError("make_envs: an environment's process died while it was made; its words are above") from error
    except RuntimeError as error:
        raise ConfigError(f"make_envs: {error}") from error  # spaces that differ


def _make_one(
    spec: str | Callable[..., Any],
    env_id: int,
    wrappers: Sequence[Wrapper],
    max_episode_steps: int | None,
    env_kwargs: dict[str, Any],
) -> gym.Env[Any, Any]:
    """Make one environment from an id, "module.Class" or a factory."""
    try:
        if isinstance(spec, str) and not _is_class_path(spec):
            env = gym.make(spec, max_episode_steps=max_episode_steps, **env_kwargs)
        else:
            factory = _load_class(spec) if isinstance(spec, str) else spec
            env = factory(**env_kwargs)
            if not isinstance(env, gym.Env):
                raise ConfigError(f"make_envs: the factory must return a gymnasium.Env, got {env!r}")
            if max_episode_steps is not None:
                env = gym.wrappers.TimeLimit(env, max_episode_steps)
        for wrapper in wrappers:
            env = wrapper(env)
    except ConfigError:
        raise
    except gym.error.Error as error:  # no such id, or something it needs is not installed
        raise ConfigError(f"make_envs: {error}") from error
    except Exception as error:
        raise EnvError(f"make_envs: env {env_id} raised {type(error).__name__} when it was made: {error}") from error
    return env


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


def _name(spec: Any) -> str:
    """Name what was asked for, for messages and manifests."""
    if isinstance(spec, str):
        return spec
    if isinstance(spec, VectorEnv):
        return spec.spec.id if spec.spec is not None else type(spec).__name__
    return str(getattr(spec, "__name__", "custom"))
