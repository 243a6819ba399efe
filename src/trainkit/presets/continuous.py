"""The preset of SAC, and its table."""

from collections.abc import Mapping
from typing import Any, Literal, Unpack

from trainkit.core.protocols import EnvSpaces
from trainkit.core.schedules import Linear, Scheduled
from trainkit.core.signatures import checked
from trainkit.engine import Adam
from trainkit.envs import Envs
from trainkit.envs.make import EnvSpec
from trainkit.policy import SACPolicy
from trainkit.presets.base import Preset, Switches, given
from trainkit.presets.off_policy import BufferSwitches, OffpolicySettings, OffpolicySwitches, offpolicy_trainer
from trainkit.presets.preset_config import PresetConfig
from trainkit.trainer import OffpolicyTrainer
from trainkit.trainer.options import TrainerOptions


class SACSettings(OffpolicySettings, total=False):
    """What SAC's preset may override, beside the options of every trainer."""

    tau: Scheduled | Linear
    temperature: Literal["auto"] | Scheduled | Linear
    initial_temperature: float
    target_entropy: float | None  # None: minus the number of places of an action


class SACSwitches(Switches, OffpolicySwitches, BufferSwitches, total=False):
    """All switches of SAC's preset."""


class SACOverrides(SACSettings, SACSwitches, TrainerOptions, total=False):
    """All overrides of SAC's preset."""


class SACPreset(Preset):
    """SAC's table of settings; called with an environment, it returns a trainer."""

    known = SACSettings
    switches = SACSwitches

    @checked
    def __call__(
        self, env: EnvSpec, *, seed: int | None = None, **overrides: Unpack[SACOverrides]
    ) -> OffpolicyTrainer[SACPolicy]:
        """Return a trainer.

        Args:
            env: an id, a factory, or a gymnasium vector environment (then evaluation makes its own from its id), whose
                actions are a bounded Box.
            seed: of everything.
            overrides: of `settings()`, a switch of `SACPolicy`, `frames_on_device` (as `DeviceFrames`), or options of
                `OffpolicyTrainer`.
        """
        trainer: OffpolicyTrainer[SACPolicy] = self._compose(env, seed, overrides)
        return trainer

    def config(
        self, env: EnvSpec, *, seed: int | None = None, **overrides: Unpack[SACOverrides]
    ) -> PresetConfig[OffpolicyTrainer[SACPolicy]]:
        """Return the arguments as a frozen object, from which to build."""
        return PresetConfig(preset=self, env=env, seed=seed, options=dict(overrides))

    def _domain(self, envs: EnvSpaces) -> str:
        return "continuous"

    def _policy(self, envs: Envs, chosen: Mapping[str, Any]) -> SACPolicy:
        names = ("hidden", "normalize_obs", "gamma", "reward", "n_step", "tau", "max_grad_norm", "device")
        own = ("temperature", "initial_temperature", "target_entropy")
        parts = {name: chosen[name] for name in (*names, *own)} | given(Switches, chosen)
        return SACPolicy.for_envs(envs, optimizer=Adam(chosen["lr"], eps=chosen["adam_eps"]), **parts)

    def _trainer(
        self, policy: SACPolicy, envs: Envs, chosen: Mapping[str, Any], common: Mapping[str, Any]
    ) -> OffpolicyTrainer[SACPolicy]:
        return offpolicy_trainer(policy, envs, chosen, common)


# Haarnoja et al. (2018), "Soft actor-critic algorithms and applications", table 1; what is not in it is named.
_CONTINUOUS = SACSettings(
    n_envs=1,
    test_env=None,  # the same again
    n_test_envs=10,
    env_options={},
    lives_key=None,
    hidden=(256, 256),
    normalize_obs=False,
    gamma=0.99,
    reward=None,
    lr=3e-4,
    adam_eps=1e-8,  # torch's
    max_grad_norm=None,
    tau=0.005,
    temperature="auto",
    initial_temperature=1.0,  # their code
    target_entropy=None,
    n_step=1,
    prioritized=False,
    alpha=0.6,
    beta=Linear(0.4, 1.0),
    capacity=1_000_000,
    batch_size=256,
    step_per_collect=None,
    update_per_step=1.0,
    learning_starts=1_000,  # their code, for most tasks
    warmup="random",  # their code
    max_epoch=20,  # Pendulum-v1 is learnt by then
    step_per_epoch=1_000,
    stop_return=None,
    device="auto",
)

sac = SACPreset(
    "sac",
    "SAC: act well and unpredictably, taught by two critics (Haarnoja et al., 2018)",
    {"continuous": _CONTINUOUS, "mujoco": _CONTINUOUS},
    mujoco={"learning_starts": 10_000, "max_epoch": 100, "step_per_epoch": 10_000},  # theirs, of 1 to 3 million
)
