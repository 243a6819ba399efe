"""How a table of settings becomes a Q-learner's trainer."""

from collections.abc import Mapping
from typing import Any, Literal, TypedDict, Unpack

from gymnasium.vector import VectorEnv

from trainkit.buffer import PrioritizedReplayBuffer, ReplayBuffer
from trainkit.collector import Collector, Envs, make_envs
from trainkit.collector.make import EnvSpec
from trainkit.errors import ConfigError, refuse_unknown
from trainkit.policy import (
    Adam,
    CategoricalValue,
    DoubleBackup,
    DQNPolicy,
    EpsilonGreedy,
    ExpectedValue,
    Greedy,
    ImplicitQuantileValue,
    MaxBackup,
    MunchausenBackup,
    Preprocess,
    QuantileValue,
    SoftQ,
    Target,
    Value,
)
from trainkit.policy.backups import Backup
from trainkit.policy.exploration import Exploration
from trainkit.schedules import Linear, Scheduled
from trainkit.trainer import OffpolicyTrainer
from trainkit.trainer.options import CommonOptions, TrainerOptions

Domain = Literal["classic", "atari"]


class QSettings(TypedDict, total=False):
    """What a preset of the Q-learner may override, beside the options of every trainer.

    Schedules may be `Linear`, over the run's max_epoch * step_per_epoch steps.
    """

    n_envs: int
    test_env: EnvSpec | None
    n_test_envs: int
    env_options: dict[str, Any]  # of make_envs, for training and evaluation
    lives_key: str | None  # of training alone: evaluation plays whole games
    hidden: tuple[int, ...]
    head: tuple[int, ...]
    dueling: bool
    noisy: bool
    sigma0: float
    value: Literal["expected", "categorical", "quantile", "implicit"]
    loss: Literal["huber", "mse"]  # of an expected value
    rescale: float | None  # of all values but the categorical
    atoms: int
    v_min: float
    v_max: float
    quantiles: int | None  # None: as many as the value's paper
    double: bool
    munchausen: bool
    entropy_temperature: float  # of munchausen
    n_step: int | tuple[int, int]
    gamma: float
    reward: Any
    lr: Scheduled | Linear
    adam_eps: float
    max_grad_norm: float | None
    epsilon: Scheduled | Linear | None
    temperature: Scheduled | Linear | None  # of a soft exploration, instead of epsilon
    target_every: int
    target_tau: Scheduled | Linear
    prioritized: bool
    alpha: float
    beta: Scheduled | Linear
    capacity: int
    batch_size: int
    step_per_collect: int | None
    update_per_step: float
    learning_starts: int
    warmup: Literal["policy", "random"]
    max_epoch: int
    step_per_epoch: int
    stop_return: float | None
    device: str


class QOverrides(QSettings, TrainerOptions, total=False):
    """All overrides of a Q-learner's preset."""


class QPreset:
    """A named table of settings; called with an environment, it returns a trainer.

    Attributes:
        name: as in `tk.presets`.
        summary: the algorithm and its paper, in a line.
    """

    def __init__(
        self,
        name: str,
        summary: str,
        tables: Mapping[str, QSettings],
        *,
        parts: QSettings | None = None,
        classic: QSettings | None = None,
        atari: QSettings | None = None,
    ) -> None:
        self.name, self.summary = name, summary
        own = {"classic": classic or {}, "atari": atari or {}}
        self._tables = {domain: {**table, **(parts or {}), **own[domain]} for domain, table in tables.items()}
        self.__doc__ = f"{summary}.\n\n{type(self).__call__.__doc__}"

    def __repr__(self) -> str:
        return f"presets.{self.name}"

    def settings(self, domain: Domain = "classic") -> QSettings:
        """Return the table, for vectors ("classic") or for images ("atari")."""
        refuse_unknown(f"presets.{self.name}", [domain], self._tables)
        return QSettings(**self._tables[domain])  # type: ignore[typeddict-item, no-any-return]  # made of QSettings alone

    def __call__(self, env: EnvSpec, *, seed: int | None = None, **overrides: Unpack[QOverrides]) -> OffpolicyTrainer:
        """Return a trainer.

        Args:
            env: an id, a factory, or a gymnasium vector environment (then evaluation makes its own from its id). Ids
                "ALE/..." and observations that are images take the "atari" table.
            seed: of everything.
            overrides: of `settings()`, or options of `OffpolicyTrainer`.
        """
        refuse_unknown(repr(self), overrides, {*QSettings.__annotations__, *TrainerOptions.__annotations__})
        for option in ("test_collector", "evaluation"):
            if overrides.get(option) is not None:
                raise ConfigError(f"{self} makes the policy, which {option} would have to share: give test_env")
        making: dict[str, Any] = {**self.settings("atari" if _is_ale(env) else "classic"), **overrides}
        envs = self._make(env, "n_envs", making, overrides, lives_key=making["lives_key"])
        domain: Domain = "atari" if Preprocess(envs.observation_space).sees_images else "classic"
        chosen = _over_the_run({**self.settings(domain), **overrides})
        policy = _policy(self, envs, chosen)
        common = CommonOptions(
            **{key: value for key, value in overrides.items() if key in CommonOptions.__annotations__}  # type: ignore[typeddict-item]  # filtered by its own keys
        )
        if "test_collector" not in common:
            again = self._again(env) if chosen["test_env"] is None else chosen["test_env"]
            common["test_collector"] = Collector(policy, self._make(again, "n_test_envs", making, overrides))
        common.setdefault("episode_per_test", 20)
        stop_return = chosen["stop_return"]
        if stop_return is not None:
            if "stop_fn" in common:
                raise ConfigError(f"{self} was given both stop_return and stop_fn: give one")
            common["stop_fn"] = lambda score: score >= stop_return
        return OffpolicyTrainer(
            policy,
            Collector(policy, envs, _buffer(chosen)),
            max_epoch=chosen["max_epoch"],
            step_per_epoch=chosen["step_per_epoch"],
            batch_size=chosen["batch_size"],
            step_per_collect=chosen["step_per_collect"],
            update_per_step=chosen["update_per_step"],
            learning_starts=chosen["learning_starts"],
            warmup=chosen["warmup"],
            **{**common, "seed": seed},
        )

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
        says_how_many = is_made or not (isinstance(env, str) or callable(env))
        n = int((overrides if says_how_many else making).get(count, 1))
        options = (overrides if is_made else making).get("env_options", {})
        return make_envs(env, n, lives_key=lives_key, **options)

    def _again(self, env: EnvSpec) -> EnvSpec:
        """Return what evaluation's own environments can be made of."""
        if isinstance(env, VectorEnv) and env.spec is not None:
            return env.spec.id
        if isinstance(env, (VectorEnv, Envs)):
            raise ConfigError(f"{self} cannot make {env} again for evaluation: give test_env")
        return env


def _is_ale(env: EnvSpec) -> bool:
    return isinstance(env, str) and env.split(":")[-1].startswith("ALE/")


def _over_the_run(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Stretch what is `Linear` over all steps of the run."""
    n_steps = chosen["max_epoch"] * chosen["step_per_epoch"]
    return {key: value.over(n_steps) if isinstance(value, Linear) else value for key, value in chosen.items()}


def _policy(preset: QPreset, envs: Envs, chosen: Mapping[str, Any]) -> DQNPolicy:
    """Make the Q-learner of the parts that settings name."""
    return DQNPolicy.for_envs(
        envs,
        hidden=chosen["hidden"],
        head=chosen["head"],
        dueling=chosen["dueling"],
        noisy=chosen["noisy"],
        sigma0=chosen["sigma0"],
        value=_value(preset, chosen),
        backup=_backup(preset, chosen),
        exploration=_exploration(preset, chosen),
        n_step=chosen["n_step"],
        gamma=chosen["gamma"],
        reward=chosen["reward"],
        optimizer=Adam(chosen["lr"], eps=chosen["adam_eps"]),
        max_grad_norm=chosen["max_grad_norm"],
        target=Target(chosen["target_every"], tau=chosen["target_tau"]),
        device=chosen["device"],
    )


def _value(preset: QPreset, chosen: Mapping[str, Any]) -> Value:
    kind, rescale, n = chosen["value"], chosen["rescale"], chosen["quantiles"]
    if kind == "expected":
        return ExpectedValue(chosen["loss"], rescale=rescale)
    if kind == "quantile":
        return QuantileValue(200 if n is None else n, rescale=rescale)
    if kind == "implicit":
        n = 64 if n is None else n
        return ImplicitQuantileValue(n, target_quantiles=n, rescale=rescale)
    if kind != "categorical":
        raise ConfigError(f"{preset}.value must be 'expected', 'categorical', 'quantile' or 'implicit', got {kind!r}")
    if rescale is not None:
        raise ConfigError(f"{preset} cannot rescale a categorical value, whose returns are fixed: set v_min and v_max")
    return CategoricalValue(chosen["atoms"], chosen["v_min"], chosen["v_max"])


def _backup(preset: QPreset, chosen: Mapping[str, Any]) -> Backup:
    if chosen["double"] and chosen["munchausen"]:
        raise ConfigError(f"{preset} was told both double and munchausen, each says what the next value is: choose one")
    if chosen["munchausen"]:
        return MunchausenBackup(chosen["entropy_temperature"])
    return DoubleBackup() if chosen["double"] else MaxBackup()


def _exploration(preset: QPreset, chosen: Mapping[str, Any]) -> Exploration:
    epsilon, temperature = chosen["epsilon"], chosen["temperature"]
    if temperature is None:
        return Greedy() if epsilon is None else EpsilonGreedy(epsilon)
    if epsilon is not None:
        raise ConfigError(f"{preset} was told both epsilon and temperature, each says how to explore: set one to None")
    return SoftQ(temperature)


def _buffer(chosen: Mapping[str, Any]) -> ReplayBuffer:
    if chosen["prioritized"]:
        return PrioritizedReplayBuffer(chosen["capacity"], alpha=chosen["alpha"], beta=chosen["beta"])
    return ReplayBuffer(chosen["capacity"])
