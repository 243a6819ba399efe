"""DDPG and TD3: their settings and tables."""

from typing import Annotated, Any, Unpack

from trainkit.core.schedules import Linear, Scheduled
from trainkit.envs import Envs
from trainkit.extensions.actor_critic.critic_reductions import FirstCritic
from trainkit.extensions.actor_critic.deterministic import Deterministic
from trainkit.policy import ExpectedValue, Target
from trainkit.presets.base import P, scheduled, table_of, with_changes
from trainkit.presets.off_policy_actor_critic import (
    ON_MUJOCO,
    USUAL,
    ActorCriticPreset,
    ActorCriticSettings,
    TargetSettings,
)


class DDPGSettings(ActorCriticSettings, TargetSettings, total=False):
    """Settings of DDPG.

    Args:
        noise_std: standard deviation of the noise that explores, in units of which an action's range is 2.
    """

    noise_std: Annotated[Scheduled | Linear, 0.1]


class TD3Settings(DDPGSettings, total=False):
    """Settings of TD3.

    Args:
        target_noise_std: standard deviation of the noise at which the critics' target is computed.
        target_noise_clip: the largest size of that noise.
    """

    target_noise_std: Annotated[float, 0.2]
    target_noise_clip: Annotated[float, 0.5]


# The parts of Lillicrap et al. (2016); networks, batches, learning rate and noise are those of TD3, as in its code.
def ddpg_settings(**given: Unpack[DDPGSettings]) -> DDPGSettings:
    """Return all settings of DDPG."""
    return table_of(DDPGSettings, {**USUAL, "n_critics": 1}, given)


# Fujimoto et al. (2018), with the networks, batches and learning rate of their code.
def td3_settings(**given: Unpack[TD3Settings]) -> TD3Settings:
    """Return all settings of TD3."""
    return table_of(TD3Settings, {**USUAL, "actor_every": 2}, given)


def _parts(settings: DDPGSettings, target_noise: dict[str, float]) -> dict[str, Any]:
    """Return the parts of both: targets of actor and critics move when the actor learns."""
    target = Target(settings["actor_every"], unit="updates", tau=scheduled(settings["tau"]))
    return {
        "distribution": Deterministic(scheduled(settings["noise_std"]), **target_noise),
        "value": ExpectedValue("mse"),
        "actor_reduction": FirstCritic(),
        "temperature": None,
        "target": target,
        "actor_target": target,
    }


class DDPGPreset(ActorCriticPreset[P, DDPGSettings]):
    """A preset of DDPG."""

    kind = DDPGSettings

    def parts(self, settings: DDPGSettings, envs: Envs) -> dict[str, Any]:
        return _parts(settings, {"target_noise_std": 0.0})


class TD3Preset(ActorCriticPreset[P, TD3Settings]):
    """A preset of TD3."""

    kind = TD3Settings

    def parts(self, settings: TD3Settings, envs: Envs) -> dict[str, Any]:
        return _parts(settings, {name: settings[name] for name in ("target_noise_std", "target_noise_clip")})


ddpg = DDPGPreset(
    "ddpg",
    "DDPG: Q-learning for continuous actions by a deterministic actor (Lillicrap et al., 2016)",
    ddpg_settings,
    {"continuous": ddpg_settings(), "mujoco": with_changes(ddpg_settings(), ON_MUJOCO)},
)
td3 = TD3Preset(
    "td3",
    "TD3: DDPG with two critics, a delayed actor and smoothed targets (Fujimoto et al., 2018)",
    td3_settings,
    {"continuous": td3_settings(), "mujoco": with_changes(td3_settings(), ON_MUJOCO)},
)
