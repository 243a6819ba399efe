"""Factories of single environments: from an id, a class path or a user's function, with given spaces and validation."""

import contextlib
import functools
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym

from trainkit.core import seeding
from trainkit.core.data import ACTION_MASK
from trainkit.core.errors import RAISED, Checks, ConfigError, EnvError, MissingExtraError
from trainkit.core.extras import import_extra, import_named, install_command
from trainkit.envs.kinds import GYMNASIUM, added_kinds, kind_of

_log = logging.getLogger(__name__)

Space = gym.Space[Any]
Wrapper = Callable[[Any], Any]  # of an environment
ValidateEnv = Callable[[Any], object]

# Ids that a package registers when it is imported: {namespace: (package, our extra)}.
_PACKAGES = {"ALE": ("ale_py", "atari")}
_MINATAR = "MinAtar"  # the namespace of a package that registers its ids by a call, and is no extra of ours


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvContext:
    """The context of a factory: which environment it makes. It is the same when that environment is restarted.

    Attributes:
        index: of the environment, from 0.
        n_envs: number of environments.
        seed: for what the factory itself draws, a stream of its own, derived from `make_envs(seed=)`. None where
            that is None: environments are made before a trainer's seed is known. Episodes are seeded all the same, by
            their resets.
        in_evaluation: whether it is for evaluation, where rewards are not shaped and tasks not simplified.
    """

    index: int
    n_envs: int
    seed: int | None
    in_evaluation: bool


@dataclass(frozen=True, slots=True)
class EnvOptions:
    """How single environments are made; the fields are as in `make_envs`."""

    wrappers: Sequence[Wrapper] = ()
    max_episode_steps: int | None = None
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    observation_space: Space | None = None
    action_space: Space | None = None
    validate_env: ValidateEnv | None = None

    def check(self, checks: Checks) -> None:
        """Report options that cannot work."""
        checks.integer("max_episode_steps", self.max_episode_steps, low=1, optional=True)
        can_validate = self.validate_env is None or callable(self.validate_env)
        checks.require(can_validate, f".validate_env must be a function of an environment, got {self.validate_env!r}")

    def make(self, spec: str | Callable[..., Any], context: EnvContext) -> Any:
        """Make an environment with its own actions.

        Args:
            spec: an id, "module.Class" or a callable.
            context: of the environment.

        Raises:
            ConfigError: it cannot be made from these arguments.
            EnvError: its constructor or a wrapper raised.
        """
        name = f"env {context.index}"
        with creation_errors(name, spec):
            env = self._construct(spec, context)
            for wrapper in self.wrappers:
                env = wrapper(env)
            kind = kind_of(env) or GYMNASIUM  # whatever a wrapper returns
            if self.observation_space is not None or self.action_space is not None:
                env = kind.with_spaces(env, self.observation_space, self.action_space)
            kind.check_spaces(env, name)
            wrapper_name = mask_dissolver(env) if context.index == 0 else None
            if wrapper_name is not None:
                what = "makes the environment's action_mask a feature, or removes it"
                _log.warning("%s %s: %s", wrapper_name, what, MASK_IS_GONE)
            if self.validate_env is not None:
                run_validation(self.validate_env, env, name)
            return env

    def make_driven(self, spec: str | Callable[..., Any], context: EnvContext) -> Any:
        """Make an environment in the form that runners drive."""
        env = self.make(spec, context)
        return (kind_of(env) or GYMNASIUM).driven(env)

    def factories(
        self, specs: Sequence[str | Callable[..., Any]], seed: int | None, *, in_evaluation: bool
    ) -> list[Callable[[], Any]]:
        """Return a function for each spec that makes its environment."""
        n_envs = len(specs)
        seeds = [None if seed is None else seeding.derive(seed, "context", index) for index in range(n_envs)]
        contexts = [
            EnvContext(index=index, n_envs=n_envs, seed=own_seed, in_evaluation=in_evaluation)
            for index, own_seed in enumerate(seeds)
        ]
        return [functools.partial(self.make_driven, *pair) for pair in zip(specs, contexts, strict=True)]

    def _construct(self, spec: str | Callable[..., Any], context: EnvContext) -> Any:
        """Make the unwrapped environment, with its time limit."""
        if isinstance(spec, str) and not is_class_path(spec):
            return gym.make(spec, max_episode_steps=self.max_episode_steps, **self.env_kwargs)
        factory = _load_class(spec) if isinstance(spec, str) else spec
        env = factory(*([context] if accepts_context(factory, self.env_kwargs) else ()), **self.env_kwargs)
        kind = kind_of(env)
        if kind is None:
            kinds = ", or ".join([GYMNASIUM.what, *(kind.what for kind in added_kinds())])
            raise ConfigError(f"make_envs: the factory must return {kinds}, got {env!r}{_remedy_of(env)}")
        return env if self.max_episode_steps is None else kind.with_limit(env, self.max_episode_steps)


def run_validation(validate_env: ValidateEnv, env: Any, name: str) -> None:
    """Raise a ConfigError if the user's function raises, or returns False, for an environment."""
    try:
        is_valid = validate_env(env)
    except Exception as error:
        raise ConfigError(f"make_envs.validate_env rejects {name}: {type(error).__name__}: {error}") from error
    if is_valid is False:
        raise ConfigError(f"make_envs.validate_env rejects {name}: it returned False for {env!r}")


def accepts_context(factory: Callable[..., Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a factory receives its context: it has one positional parameter without a default.

    A class never does.

    Args:
        factory: makes an environment.
        kwargs: arguments it gets by name.
    """
    if inspect.isclass(factory):
        return False
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # built in, without a signature
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [
        parameter
        for parameter in parameters
        if parameter.kind in positional
        and parameter.default is inspect.Parameter.empty
        and parameter.name not in kwargs
    ]
    return len(required) == 1


@contextlib.contextmanager
def creation_errors(name: str, spec: object) -> Iterator[None]:
    """Convert errors of the construction of an environment of a specification to trainkit's errors."""
    try:
        yield
    except ConfigError:
        raise
    except gym.error.DependencyNotInstalled as error:
        extra = next((extra for extra in ("box2d", "mujoco") if f"gymnasium[{extra}]" in str(error)), None)
        remedy = str(error) if extra is None else f"{name} needs gymnasium[{extra}]: {install_command(extra)}"
        raise MissingExtraError(f"make_envs: {remedy}") from error
    except gym.error.Error as error:  # no such id
        remedy = "import the package that registers it, or give module:id, a class or a function that makes one"
        raise ConfigError(f"make_envs: {str(error).rstrip('.')}: {_spelling(spec) or remedy}") from error
    except RAISED as error:
        raise EnvError(f"make_envs: {name} raised {type(error).__name__} when it was made: {error}") from error


MASK_IS_GONE = (
    "illegal actions will be taken; keep action_mask as a leaf of a Dict, and wrap the other leaves, or flatten them "
    "by make_envs(processors=[tk.envs.Flatten()])"
)


def mask_dissolver(env: Any) -> str | None:
    """Return the name of the wrapper behind which an environment's observation has no action mask any more."""
    while isinstance(env, gym.Wrapper):
        if not has_mask(env) and has_mask(env.env):
            return type(env).__name__
        env = env.env
    return None


def has_mask(env: Any) -> bool:
    """Return whether an environment's observation has an action mask."""
    space = getattr(env, "observation_space", None)
    return isinstance(space, gym.spaces.Dict) and ACTION_MASK in space.spaces


def _remedy_of(env: object) -> str:
    """Return what to do with a known kind of object that is no environment."""
    modules = {kind.__module__.partition(".")[0] for kind in type(env).__mro__}
    if "gym" in modules:
        return (
            ": it is of gym, which gymnasium replaced; wrap it by shimmy, "
            'gymnasium.make("GymV26Environment-v0", env=env) or "GymV21Environment-v0"'
        )
    return f": {vector_remedy()}" if is_foreign_vector(env) else ""


def vector_remedy() -> str:
    """Return what to do with a vector environment of another library."""
    others = "".join(f", or {kind.what}" for kind in added_kinds())
    made_of = f"give make_envs what it is made of, an environment's factory and n{others}"
    return f"it is a vector environment of another library: {made_of}"


def is_foreign_vector(env: object) -> bool:
    """Return whether this is a vector environment of another API than gymnasium's, such as SB3's or SuperSuit's."""
    if isinstance(env, gym.vector.VectorEnv):
        names = "single_observation_space", "single_action_space", "num_envs"
        return any(getattr(env, name, None) is None for name in names)
    has_numbers = isinstance(getattr(env, "num_envs", None), int)
    return has_numbers and callable(getattr(env, "step", None)) and not isinstance(env, gym.Env)


# ---- ids and class paths ----


def with_package(env_id: str) -> str:
    """Return "package:id" for an id that is registered by importing a package; register those of MinAtar."""
    namespace = env_id.partition("/")[0]
    if namespace == _MINATAR and env_id not in gym.registry:
        _register_minatar(env_id)
    if namespace not in _PACKAGES:
        return env_id
    package, extra = _PACKAGES[namespace]
    import_extra(f"make_envs: {env_id}", package, extra)
    return f"{package}:{env_id}"


def _register_minatar(env_id: str) -> None:
    """Register MinAtar's environments (Young & Tian, 2019)."""
    try:
        package = import_named("minatar.gym")
    except ImportError as error:
        remedy = "pip install --no-deps minatar"  # its own dependencies draw pictures
        raise MissingExtraError(f"make_envs: {env_id} needs minatar ({error}): {remedy}") from error
    package.register_envs()


def is_registered(env: str) -> bool:
    """Return whether an environment is an id that is already registered, so that making it imports no further module.

    An id without its version, and one of a namespace whose package trainkit knows (ALE, MinAtar), count; "module:id"
    and "module.Class" do not.
    """
    return (
        env in gym.registry
        or bool(versions_of(env))
        or (env.partition("/")[0] in (*_PACKAGES, _MINATAR) and ":" not in env)
    )


def versions_of(env: str) -> list[str]:
    """Return the registered ids of an environment that is named without its version, the newest last."""
    if env in gym.registry:
        return []
    ids = [spec.id for spec in gym.registry.values() if env == spec.id.rpartition("-v")[0]]
    return sorted(ids, key=lambda own: int(own.rpartition("-v")[2]))


def is_class_path(spec: str) -> bool:
    """Return whether a text is "module.Class", or the name of an environment of an added kind, and no registered id."""
    is_path = "." in spec and all(part.isidentifier() for part in spec.split("."))
    return spec not in gym.registry and (is_path or any(kind.is_name(spec) for kind in added_kinds()))


def _spelling(spec: object) -> str:
    """Return the remedy for a name that is spelled as other libraries spell it, "" for others."""
    if not isinstance(spec, str):
        return ""
    for kind in added_kinds():
        if spelled := kind.spelling(spec):
            return f"{kind.what} is named {spelled}"
    module, colon, name = spec.partition(":")
    return f"a class is named {module}.{name}" if colon and name.isidentifier() else ""


def _load_class(path: str) -> Callable[..., Any]:
    """Return the class of "module.Class", or the factory of an environment of an added kind."""
    module, _, name = path.rpartition(".")
    kind = next((kind for kind in added_kinds() if kind.is_name(path)), None)
    try:
        made: Callable[..., Any] = getattr(import_named(module), name) if kind is None else kind.factory_of(path)
        if inspect.ismodule(made):
            remedy = _spelling(path) or "name a class in it, module.Class"
            raise ConfigError(f"make_envs: {path!r} is a module: {remedy}")
    except (ImportError, AttributeError) as error:
        what = "a class" if kind is None else kind.what
        raise ConfigError(
            f"make_envs: {path!r} is neither a registered id nor {what} that can be imported: {error}"
        ) from error
    return made
