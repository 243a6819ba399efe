"""What environments are made from: the arguments of `make_envs`, grouped by what they are about."""

import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import VectorEnv

from trainkit.core.config import flatten
from trainkit.core.errors import Checks, ConfigError
from trainkit.core.extensions import table
from trainkit.core.extras import import_named
from trainkit.core.protocols import ActingPolicy, BehaviorPolicy, EnvSpaces, OngoingCollect
from trainkit.envs.backends import Backend, Runner, RunsEnvs, StandsAround
from trainkit.envs.factories import (
    EnvOptions,
    creation_errors,
    is_class_path,
    is_foreign_vector,
    vector_remedy,
    with_package,
)
from trainkit.envs.kinds import added_kinds, replaced_action_space, replaced_observation_space
from trainkit.envs.process import ProcessRunner
from trainkit.envs.single import SingleBackend
from trainkit.envs.sync import SyncRunner
from trainkit.envs.vector import VectorBackend

EnvSpec = str | Callable[..., Any] | Sequence[Callable[..., Any]] | VectorEnv[Any, Any, Any] | EnvSpaces  # or an Envs


@dataclass(frozen=True, slots=True)
class RowOptions:
    """How rows are read and counted; the fields are as in `make_envs`."""

    stack: int
    pad: str
    mask_key: str | None
    lives_key: str | None
    soft_horizon: int | None
    truncate_at_soft_horizon: bool

    def check(self, checks: Checks) -> None:
        """Report options that cannot work."""
        checks.integer("stack", self.stack, low=1)
        if checks.one_of("pad", self.pad, ["repeat", "zero"]):
            checks.require(self.pad == "repeat" or self.stack > 1, '.pad="zero" is for stacks of frames: give stack')
        for name, key in (("mask_key", self.mask_key), ("lives_key", self.lives_key)):
            checks.require(key is None or isinstance(key, str), f".{name} must be the name of an info, got {key!r}")
        checks.integer("soft_horizon", self.soft_horizon, low=1, optional=True)
        needs = self.soft_horizon is not None or not self.truncate_at_soft_horizon
        checks.require(needs, ".truncate_at_soft_horizon needs a soft_horizon: give one")


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """Where environments run; the fields are as in `make_envs`."""

    backend: str | RunsEnvs
    step_timeout_s: float | None
    wait_num: int | None
    environment_variables: Mapping[str, str]

    def check(self, checks: Checks, n_envs: int, *, is_made: bool) -> None:
        """Report options that cannot work; environments that are made already have no process of their own."""
        if isinstance(self.backend, str):
            checks.one_of("backend", self.backend, ["sync", "async", "vector"])
        else:
            rule = f".backend {self.backend!r} runs environments that it makes: give their id, class or factory"
            checks.require(not is_made, rule)
            is_one = not isinstance(self.backend, type)
            if checks.require(is_one, f".backend must be an object, got the class {self.backend!r}: call it"):
                self.backend.check(checks, n_envs)
        is_apart = self.backend == "async" if isinstance(self.backend, str) else self.backend.has_processes
        has_processes = is_apart and not is_made
        if self.step_timeout_s is not None:
            checks.number("step_timeout_s", self.step_timeout_s, low=0, above_low=True)
            rule = '.step_timeout_s can end a process, not what runs in this one: use backend="async"'
            checks.require(has_processes, rule)
        if self.wait_num is not None:
            if checks.integer("wait_num", self.wait_num, low=1):
                rule = f".wait_num {self.wait_num} is larger than the number of environments, {n_envs}: lower it"
                checks.require(self.wait_num <= n_envs, rule)
            rule = '.wait_num waits for processes, and environments in this one step in turn: use backend="async"'
            checks.require(has_processes and self.backend == "async", rule)
        if given := self.environment_variables:
            rule = '.environment_variables are those of a process: use backend="async", or set os.environ of this one'
            checks.require(has_processes, rule)
            is_text = isinstance(given, Mapping) and all(
                isinstance(text, str) for pair in given.items() for text in pair
            )
            checks.require(is_text, f".environment_variables must be a dict of strings, got {given!r}")

    def behavior(self, policy: ActingPolicy, collect: OngoingCollect) -> BehaviorPolicy | None:
        """Return what `Envs.behavior` does."""
        return None if isinstance(self.backend, str) else self.backend.behavior(policy, collect)

    def run(self, factories: Sequence[Callable[[], Any]]) -> Runner:
        """Make an environment by each factory, in this process or in others."""
        if self.backend == "sync":
            return SyncRunner(factories)
        if variables := self.environment_variables:
            factories = [functools.partial(_with_variables, variables, make) for make in factories]
        if not isinstance(self.backend, str):
            return self.backend.run(factories, self.step_timeout_s)
        return ProcessRunner(factories, self.step_timeout_s, self.wait_num)


@dataclass(frozen=True, slots=True)
class FailureOptions:
    """What follows when an environment fails; the fields are as in `make_envs`."""

    on_error: str
    max_restarts: int
    restart_delay_s: float
    failed_episodes: Literal["drop", "cut"]

    def check(self, checks: Checks) -> None:
        """Report options that cannot work."""
        checks.integer("max_restarts", self.max_restarts, low=0)
        checks.number("restart_delay_s", self.restart_delay_s, low=0)
        checks.one_of("failed_episodes", self.failed_episodes, ["drop", "cut"])
        checks.one_of("on_error", self.on_error, ["raise", *table("ON_ERROR")])

    @property
    def end_the_run(self) -> bool:
        """Whether a failure is raised."""
        return self.on_error == "raise"

    def around(self) -> Sequence[StandsAround]:
        """Return what makes a backend that allows failures; nothing where they are raised."""
        return [] if self.end_the_run else [table("ON_ERROR")[self.on_error].load()(self)]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvsConfig:
    """All arguments of `make_envs`, from which the environments are made: also again, and in another process."""

    spec: EnvSpec
    n: int
    seed: int | None
    rows: RowOptions
    single: EnvOptions
    processors: Sequence[StandsAround]
    processes: ProcessOptions
    failures: FailureOptions
    in_evaluation: bool

    @property
    def is_repeatable(self) -> bool:
        """Whether equal environments can be made again: not a vector environment that was passed in."""
        return not isinstance(self.spec, VectorEnv)

    def with_env_kwargs(self, env_kwargs: Mapping[str, Any]) -> "EnvsConfig":
        """Return the config of the same environments with other arguments of their constructor or factory."""
        return replace(self, single=replace(self.single, env_kwargs=env_kwargs))

    def arguments(self) -> dict[str, Any]:
        """Return the options of `make_envs`, without specification, number and seed; of variables only the names."""
        groups = (self.rows, self.single, self.processes, self.failures)
        grouped = {item.name: getattr(group, item.name) for group in groups for item in fields(group)}
        grouped["environment_variables"] = sorted(self.processes.environment_variables)  # a value may be a password
        return {**grouped, "processors": self.processors, "in_evaluation": self.in_evaluation}

    def of_environments(self) -> dict[str, Any]:
        """Return the arguments that decide what the environments are, which a resumed run compares."""
        return {
            "env_kwargs": flatten("", self.single.env_kwargs),
            "max_episode_steps": self.single.max_episode_steps,
            **flatten("wrappers", list(self.single.wrappers)),
            "processors": [type(processor).__name__ for processor in self.processors],
            **({} if self.rows.pad == "repeat" else {"pad": self.rows.pad}),
        }

    def for_evaluation(self) -> dict[str, Any]:
        """Return what `Envs.for_evaluation` does."""
        options = {
            "stack": self.rows.stack if self.rows.stack > 1 else None,
            "pad": self.rows.pad if self.rows.pad != "repeat" else None,
            "mask_key": self.rows.mask_key,
            "soft_horizon": self.rows.soft_horizon,
            "truncate_at_soft_horizon": self.rows.truncate_at_soft_horizon,
            "max_episode_steps": self.single.max_episode_steps,
            "env_kwargs": dict(self.single.env_kwargs),
            "backend": "vector" if self.processes.backend == "vector" else None,
        }
        given = {name: value for name, value in options.items() if value}
        others = ("wrappers", "observation_space", "action_space")
        unknown = [name for name in others if getattr(self.single, name)] + ["processors"] * bool(self.processors)
        unknown += [name for name, value in given.items() if not _is_plain(value)]
        return {
            "env": self.spec if isinstance(self.spec, str) else None,
            "env_options": {name: value for name, value in given.items() if name not in unknown},
            "unknown": unknown,
        }

    # ---- validation ----

    def check(self, n_made: int | None = None) -> None:
        """Raise one error for all arguments that cannot work.

        Args:
            n_made: the number of environments where the specification is an `Envs`, which needs none of the others.
        """
        spec = self.spec
        n_given = spec.num_envs if isinstance(spec, VectorEnv) else n_made
        with Checks("make_envs") as checks:
            checks.integer("n", self.n, low=1)
            self.rows.check(checks)
            checks.integer("seed", self.seed, low=0, optional=True)
            self.single.check(checks)
            for index, processor in enumerate(self.processors):
                is_one = isinstance(processor, StandsAround) and not isinstance(processor, type)
                checks.require(is_one, f".processors[{index}] must be a Processor, got {processor!r}")
            self.failures.check(checks)
            n_envs = len(spec) if isinstance(spec, Sequence) and not isinstance(spec, str) else self.n
            self.processes.check(checks, n_envs, is_made=n_given is not None)
            self._check_spec(checks, n_given)

    def _check_spec(self, checks: Checks, n_given: int | None) -> None:
        """Note where the specification, of this many environments if they are made, does not support the options."""
        spec, is_vector = self.spec, self.processes.backend == "vector"
        is_single = isinstance(spec, gym.Env) and not isinstance(spec, VectorEnv)  # envpool's are of both classes
        if is_foreign_vector(spec):
            raise ConfigError(f"make_envs.spec is {type(spec).__name__}: {vector_remedy()}")
        rule = " needs what makes environments, not one of them: pass its id, its class and env_kwargs=, or a factory"
        checks.require(not is_single, rule)
        if is_vector or isinstance(spec, VectorEnv):
            rule = "single environments, which a vector environment does not give: give an id or factories"
            checks.require(self.failures.end_the_run, f'.on_error "{self.failures.on_error}" needs {rule}')
            checks.require(self.single.validate_env is None, f".validate_env is called with {rule}")
        if n_given is not None:
            rule = f".n is {self.n}, but {n_given} environments were given: leave n out"
            checks.require(self.n in (1, n_given), rule)
            names = ", ".join(name for name, is_given in self._late_options().items() if is_given)
            checks.require(not names, f": {names} came too late for environments already made")
        elif is_vector:
            is_id = isinstance(spec, str) and not is_class_path(spec)
            checks.require(is_id, f'.backend "vector" needs a registered id, got {spec!r}: use "sync"')
            rule = '.backend "vector" has no single environments to apply wrappers to: use "sync"'
            checks.require(not self.single.wrappers, rule)

    def _late_options(self) -> dict[str, bool]:
        """Return the options that cannot be applied to made environments, and whether each was given."""
        single, rows = self.single, self.rows
        late = {name: bool(getattr(single, name)) for name in ("wrappers", "max_episode_steps", "env_kwargs")}
        late["backend"] = self.processes.backend == "async"
        if isinstance(self.spec, VectorEnv):
            return late
        return late | {
            "stack": rows.stack > 1,
            "pad": rows.pad != "repeat",
            "mask_key": rows.mask_key is not None,
            "lives_key": rows.lives_key is not None,
            "seed": self.seed is not None,
            "soft_horizon": rows.soft_horizon is not None,
            "truncate_at_soft_horizon": rows.truncate_at_soft_horizon,
            "processors": bool(self.processors),
            "on_error": not self.failures.end_the_run,
            "validate_env": single.validate_env is not None,
            "observation_space": single.observation_space is not None,
            "action_space": single.action_space is not None,
        }

    # ---- construction ----

    def make_backend(self) -> Backend:
        """Make the environments, and the backend that steps them; those made here are closed if that fails."""
        spec, single = self.spec, self.single
        with contextlib.ExitStack() as unfinished:
            if isinstance(spec, str):
                spec = with_package(spec)
                if self.processes.backend == "vector":
                    spec = unfinished.enter_context(contextlib.closing(_make_vector(spec, self.n, single)))
            backend: Backend
            if isinstance(spec, VectorEnv):
                _check_single_stack(spec, self.rows.stack)
                own = spec.single_observation_space, spec.single_action_space
                backend = VectorBackend(
                    spec,
                    observation_space=replaced_observation_space(own[0], single.observation_space),
                    action_space=replaced_action_space(own[1], single.action_space),
                )
            else:
                made = single.factories(_listed(spec, self.n), self.seed, in_evaluation=self.in_evaluation)
                backend = _backend_of(self.processes.run(made), self.rows)
            unfinished.pop_all()
        return backend


def _listed(spec: EnvSpec, n: int) -> list[str | Callable[..., Any]]:
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


def _backend_of(runner: Runner, rows: RowOptions) -> Backend:
    """Return the backend that reads the rows of what a runner runs."""
    kept_infos = [key for key in (rows.mask_key, rows.lives_key) if key is not None]
    for kind in added_kinds():
        backend = kind.backend(runner, kept_infos)
        if backend is not None:
            return backend
    return SingleBackend(runner)


def _with_variables(variables: Mapping[str, str], make: Callable[[], Any]) -> Any:
    """Make an environment in its process, which has these environment variables from now on."""
    os.environ.update(variables)
    return make()


def _make_vector(env_id: str, n: int, single: EnvOptions) -> VectorEnv[Any, Any, Any]:
    """Make an id's own vector environment."""
    arguments = dict(single.env_kwargs)
    with creation_errors(env_id, env_id):
        package, _, registered = env_id.rpartition(":")
        if package:
            import_named(package)
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


def _is_plain(value: object) -> bool:
    """Return whether a value is the same when it is read from a file of JSON."""
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_plain(child) for name, child in value.items())
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))
