"""How a table of settings becomes a trainer: what all presets share."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypedDict

import gymnasium as gym
from gymnasium.vector import VectorEnv

from trainkit.collector import Collector
from trainkit.core.errors import Checks, ConfigError, refuse_unknown
from trainkit.core.protocols import EnvSpaces
from trainkit.core.schedules import Linear, Scheduled
from trainkit.core.signatures import list_options, mismatch
from trainkit.engine.engine import EngineName
from trainkit.envs import Envs, make_envs
from trainkit.envs.make import EnvSpec, has_own_number
from trainkit.nets import Preprocess
from trainkit.trainer.options import CommonOptions, TrainerOptions


class Settings(TypedDict, total=False):
    """What every preset may override, beside the options of every trainer.

    Schedules may be `Linear`, over the run's max_epoch * step_per_epoch steps. `evaluation=None` or
    `test_collector=None` switches evaluation off.
    """

    n_envs: int
    test_env: EnvSpec | None
    n_test_envs: int
    env_options: dict[str, Any]  # of make_envs, for training and evaluation
    lives_key: str | None  # of training alone: evaluation plays whole games
    hidden: tuple[int, ...]
    normalize_obs: bool
    gamma: float
    reward: Any
    lr: Scheduled | Linear
    adam_eps: float
    max_grad_norm: float | None
    max_epoch: int
    step_per_epoch: int
    stop_return: float | None
    device: str


class Switches(TypedDict, total=False):
    """How a policy computes: no matter of a table, as the policy's own unless given."""

    engine: EngineName


class Preset:
    """A named table of settings per domain; called with an environment, it returns a trainer.

    A subclass says what its settings are, and makes policy and trainer of them.

    Attributes:
        name: as in `tk.presets`.
        summary: the algorithm and its paper, in a line.
    """

    known: ClassVar[type]  # the TypedDict of its settings
    switches: ClassVar[type] = Switches
    __call__: Callable[..., Any]  # with an environment, a seed and settings by name, as the subclass types them

    def __init__(
        self,
        name: str,
        summary: str,
        tables: Mapping[str, Any],
        *,
        parts: Mapping[str, Any] | None = None,
        **domains: Mapping[str, Any],
    ) -> None:
        self.name, self.summary = name, summary
        self._tables: dict[str, dict[str, Any]] = {
            domain: {**table, **(parts or {}), **domains.get(domain, {})} for domain, table in tables.items()
        }
        self.__doc__ = f"{summary}.\n\n{type(self).__call__.__doc__}"
        list_options(self)

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains it has a table for, the usual one first."""
        return tuple(self._tables)

    def __repr__(self) -> str:
        return f"presets.{self.name}"

    def settings(self, domain: str | None = None) -> dict[str, Any]:
        """Return the table of a domain; None is the first."""
        domain = self.domains[0] if domain is None else domain
        refuse_unknown(repr(self), [domain], self._tables)
        return dict(self._tables[domain])

    def domain_of_id(self, env: object) -> str | None:
        """Say by an environment's id which table to take; None where it tells nothing."""
        domain = "atari" if _is_ale(env) else "mujoco" if _is_mujoco(env) else None
        return domain if domain in self.domains else None

    def _domain(self, envs: EnvSpaces) -> str:
        """Say by the spaces which table to take."""
        return "atari" if Preprocess(envs.observation_space).sees_images else "classic"

    def _why_idle(self, name: str, chosen: Mapping[str, Any]) -> str | None:
        """Say why a setting does nothing beside the others chosen; None where it does something."""
        return None

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Raise ConfigError for options that this preset does not know, or that are not what their annotations say."""
        known = {*self.settings(), *self.switches.__annotations__, *TrainerOptions.__annotations__}
        refuse_unknown(repr(self), options, known)
        self._refuse_misfits(options)

    def _refuse_misfits(self, overrides: Mapping[str, Any]) -> None:
        """Refuse settings that are not what their annotations say; what is done with them may come much later."""
        checks = Checks(repr(self))
        hints = self.known.__annotations__ | self.switches.__annotations__
        for name, value in overrides.items():
            wrong = mismatch(value, hints.get(name, Any))
            checks.require(wrong is None, f".{name} {wrong}")
        checks.done()

    def _refuse_idle(self, chosen: Mapping[str, Any], table: Mapping[str, Any], overrides: Mapping[str, Any]) -> None:
        """Refuse what was changed and does nothing."""
        checks = Checks(repr(self))
        for name in overrides:
            reason = self._why_idle(name, chosen)
            if reason is not None:
                same = name in table and table[name] == overrides[name]  # a whole table may be passed back
                checks.require(same, f".{name} does nothing here: {reason}")
        checks.done()

    def _policy(self, envs: Envs, chosen: Mapping[str, Any]) -> Any:
        raise TypeError(f"{type(self).__name__} must define _policy")

    def _trainer(self, policy: Any, envs: Envs, chosen: Mapping[str, Any], common: Mapping[str, Any]) -> Any:
        raise TypeError(f"{type(self).__name__} must define _trainer")

    def _compose(self, env: EnvSpec, seed: int | None, overrides: Mapping[str, Any]) -> Any:
        """Make environments, policy and trainer of the table and what overrides it."""
        self._refuse_misfits(overrides)
        evaluates = self._evaluates(overrides, "test_env")
        domain = self.domain_of_id(env)
        making = {**self.settings(domain), **overrides}
        envs = self._make(env, "n_envs", making, overrides, lives_key=making["lives_key"])
        table = self.settings(self._domain(envs) if domain is None else domain)
        chosen = over_the_run({**table, **overrides})
        self._refuse_idle(chosen, table, overrides)
        policy = self._policy(envs, chosen)
        common = {key: value for key, value in overrides.items() if key in CommonOptions.__annotations__}
        if evaluates:
            again = self._again(env) if chosen["test_env"] is None else chosen["test_env"]
            common["test_collector"] = Collector(policy, self._make(again, "n_test_envs", making, overrides))
        common.setdefault("episode_per_test", 20)
        self._add_stop(common, chosen["stop_return"])
        return self._trainer(policy, envs, chosen, {**common, "seed": seed})

    def _evaluates(self, overrides: Mapping[str, Any], where: str) -> bool:
        """Return whether to evaluate: unless `evaluation` or `test_collector` is given as None, which switches it off.

        Args:
            overrides: what the preset is called with.
            where: the argument that says in which environment to evaluate.
        """
        given = [option for option in ("evaluation", "test_collector") if option in overrides]
        for option in given:
            if overrides[option] is not None:
                raise ConfigError(f"{self} makes the policy, which {option} would have to share: give {where}")
        if given and overrides.get("test_env") is not None:
            raise ConfigError(
                f"{self} was given test_env, and {given[0]}=None, which switches evaluation off: give one"
            )
        return not given

    def _add_stop(self, common: dict[str, Any], stop_return: float | None) -> None:
        """Say among the trainer's options which return ends the run."""
        if stop_return is None:
            return
        if "stop_fn" in common:
            raise ConfigError(f"{self} was given both stop_return and stop_fn: give one")
        common["stop_fn"] = lambda score: score >= stop_return

    def _make(
        self,
        env: EnvSpec,
        count: str,
        making: Mapping[str, Any],
        overrides: Mapping[str, Any],
        lives_key: str | None = None,
    ) -> Envs:
        """Make environments; where `env` itself says how many and how, only what the user asked for is passed on."""
        is_made = isinstance(env, (VectorEnv, Envs))
        n = int((overrides if has_own_number(env) else making).get(count, 1))
        options = (overrides if is_made else making).get("env_options", {})
        return make_envs(env, n, lives_key=lives_key, in_evaluation=count == "n_test_envs", **options)

    def _again(self, env: EnvSpec) -> EnvSpec:
        """Return what evaluation's own environments can be made of."""
        if isinstance(env, VectorEnv) and env.spec is not None and not _is_changed(env):
            return env.spec.id
        if isinstance(env, (VectorEnv, Envs)):
            raise ConfigError(f"{self} cannot make {env} again for evaluation: give test_env")
        return env


def _is_changed(env: VectorEnv[Any, Any, Any]) -> bool:
    """Whether a vector environment was made with more than its id says."""
    assert env.spec is not None, "asked of those with an id"
    usual = {**gym.spec(env.spec.id).kwargs, "max_episode_steps": gym.spec(env.spec.id).max_episode_steps}
    given = {key: value for key, value in env.spec.kwargs.items() if key not in ("num_envs", "vectorization_mode")}
    return any(usual.get(key) != value for key, value in given.items())


def _is_ale(env: object) -> bool:
    return isinstance(env, str) and env.split(":")[-1].startswith("ALE/")


def _is_mujoco(env: object) -> bool:
    """Whether an id is one of Gymnasium's own that MuJoCo simulates."""
    spec = gym.registry.get(env) if isinstance(env, str) else None
    return spec is not None and str(spec.entry_point).startswith("gymnasium.envs.mujoco")


def given(switches: type, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return those switches that somebody has set."""
    return {name: chosen[name] for name in switches.__annotations__ if name in chosen}


def over_the_run(chosen: Mapping[str, Any], per_epoch: str = "step_per_epoch") -> dict[str, Any]:
    """Stretch what is `Linear` over all steps of the run, in nested settings too."""
    n_steps = chosen["max_epoch"] * chosen[per_epoch]

    def stretched(value: Any) -> Any:
        if isinstance(value, Linear):
            return value.over(n_steps)
        return {key: stretched(own) for key, own in value.items()} if isinstance(value, dict) else value

    return {key: stretched(value) for key, value in chosen.items()}
