"""The presets of the Q-learner: which parts their words stand for."""

import copy
from collections.abc import Mapping
from typing import Any, Literal, Unpack

from trainkit.core.errors import ConfigError
from trainkit.core.schedules import Linear, Scheduled
from trainkit.core.signatures import checked
from trainkit.engine import Adam
from trainkit.envs import Envs
from trainkit.envs.make import EnvSpec
from trainkit.policy import (
    CategoricalValue,
    DoubleBackup,
    DQNPolicy,
    EpsilonGreedy,
    ExpectedValue,
    Greedy,
    ImplicitQuantileValue,
    MaxBackup,
    MunchausenBackup,
    QuantileValue,
    SoftQ,
    Target,
    Value,
)
from trainkit.policy.backups import Backup
from trainkit.policy.cpu_copy import ActOn
from trainkit.policy.exploration import Exploration
from trainkit.policy.precision import Precision
from trainkit.presets.base import Preset, Switches, given
from trainkit.presets.off_policy import BufferSwitches, OffpolicySettings, OffpolicySwitches, offpolicy_trainer
from trainkit.presets.preset_config import PresetConfig
from trainkit.trainer import OffpolicyTrainer
from trainkit.trainer.options import TrainerOptions


class QSettings(OffpolicySettings, total=False):
    """What a preset of the Q-learner may override, beside the options of every trainer."""

    head: tuple[int, ...]
    dueling: bool
    noisy: bool
    sigma0: float
    value: Literal["expected", "categorical", "quantile", "implicit"] | Value
    loss: Literal["huber", "mse"]  # of an expected value
    rescale: float | None  # of all values but the categorical
    atoms: int
    v_min: float
    v_max: float
    quantiles: int | None  # None: as many as the value's paper
    double: bool
    munchausen: bool
    entropy_temperature: float  # of munchausen
    epsilon: Scheduled | Linear | None
    temperature: Scheduled | Linear | None  # of a soft exploration, instead of epsilon
    target_every: int
    target_tau: Scheduled | Linear


class LearningSwitches(Switches, total=False):
    """How a Q-learner computes: as `DQNPolicy` does unless given."""

    precision: Precision
    act_on: ActOn


class QSwitches(LearningSwitches, OffpolicySwitches, BufferSwitches, total=False):
    """All switches of a Q-learner's preset."""


class QOverrides(QSettings, QSwitches, TrainerOptions, total=False):
    """All overrides of a Q-learner's preset."""


class QPreset(Preset):
    """A Q-learner's table of settings; called with an environment, it returns a trainer."""

    known = QSettings
    switches = QSwitches

    @checked
    def __call__(
        self, env: EnvSpec, *, seed: int | None = None, **overrides: Unpack[QOverrides]
    ) -> OffpolicyTrainer[DQNPolicy]:
        """Return a trainer.

        Args:
            env: an id, a factory, or a gymnasium vector environment (then evaluation makes its own from its id). Ids
                "ALE/..." and observations that are images take the "atari" table.
            seed: of everything.
            overrides: of `settings()`, switches of `DQNPolicy`, `frames_on_device` (as `DeviceFrames`), or options of
                `OffpolicyTrainer`.
        """
        trainer: OffpolicyTrainer[DQNPolicy] = self._compose(env, seed, overrides)
        return trainer

    def config(
        self, env: EnvSpec, *, seed: int | None = None, **overrides: Unpack[QOverrides]
    ) -> PresetConfig[OffpolicyTrainer[DQNPolicy]]:
        """Return the arguments as a frozen object, from which to build."""
        return PresetConfig(preset=self, env=env, seed=seed, options=dict(overrides))

    def _why_idle(self, name: str, chosen: Mapping[str, Any]) -> str | None:
        return why_idle(name, chosen)

    def _policy(self, envs: Envs, chosen: Mapping[str, Any]) -> DQNPolicy:
        """Make the Q-learner of the parts that settings name."""
        return DQNPolicy.for_envs(
            envs,
            hidden=chosen["hidden"],
            head=chosen["head"],
            dueling=chosen["dueling"],
            noisy=chosen["noisy"],
            sigma0=chosen["sigma0"],
            normalize_obs=chosen["normalize_obs"],
            value=value_of(self, chosen),
            backup=_backup(self, chosen),
            exploration=_exploration(self, chosen),
            n_step=chosen["n_step"],
            gamma=chosen["gamma"],
            reward=chosen["reward"],
            optimizer=Adam(chosen["lr"], eps=chosen["adam_eps"]),
            max_grad_norm=chosen["max_grad_norm"],
            target=Target(chosen["target_every"], tau=chosen["target_tau"]),
            device=chosen["device"],
            **given(LearningSwitches, chosen),
        )

    def _trainer(
        self, policy: DQNPolicy, envs: Envs, chosen: Mapping[str, Any], common: Mapping[str, Any]
    ) -> OffpolicyTrainer[DQNPolicy]:
        return offpolicy_trainer(policy, envs, chosen, common)


# {setting: (another, what it must be for the first to do something)}
_NEEDS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "sigma0": ("noisy", (True,)),
    "loss": ("value", ("expected",)),
    "atoms": ("value", ("categorical",)),
    "v_min": ("value", ("categorical",)),
    "v_max": ("value", ("categorical",)),
    "quantiles": ("value", ("quantile", "implicit")),
    "entropy_temperature": ("munchausen", (True,)),
    "alpha": ("prioritized", (True,)),
    "beta": ("prioritized", (True,)),
}


def why_idle(name: str, chosen: Mapping[str, Any]) -> str | None:
    """Say which other setting makes this one of a Q-learner do nothing, None if none does."""
    other, working = _NEEDS.get(name, ("", ()))
    if other not in chosen or chosen[other] in working:
        return None
    return f"{other} is {chosen[other]!r}, and it is for {' or '.join(map(repr, working))}"


def value_of(preset: Preset, chosen: Mapping[str, Any]) -> Value:
    """Return the value part that settings name, or a copy of the one they have."""
    kind, rescale, n = chosen["value"], chosen["rescale"], chosen["quantiles"]
    if not isinstance(kind, str):
        if rescale is not None:
            raise ConfigError(f"{preset} cannot rescale a value part, which was given: give the part its own rescale")
        part: Value = copy.deepcopy(kind)  # as a part moves to its policy's device
        return part
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
