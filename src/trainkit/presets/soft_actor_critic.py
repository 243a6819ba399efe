"""SAC: its settings and tables."""

from typing import Any, Unpack

from trainkit.envs import Envs
from trainkit.policy import SACPolicy
from trainkit.presets.base import P, scheduled, table_of, with_changes
from trainkit.presets.off_policy_actor_critic import (
    ON_MUJOCO,
    USUAL,
    ActorCriticPreset,
    ActorCriticSettings,
    EntropySettings,
    TargetSettings,
    entropy_options,
)


class SACSettings(ActorCriticSettings, TargetSettings, EntropySettings, total=False):
    """Settings of SAC."""


def sac_settings(**given: Unpack[SACSettings]) -> SACSettings:
    """Return all settings of SAC."""
    return table_of(SACSettings, USUAL, given)


class SACPreset(ActorCriticPreset[P, SACSettings]):
    """A preset of SAC."""

    kind = SACSettings
    learner = SACPolicy

    def parts(self, settings: SACSettings, envs: Envs) -> dict[str, Any]:
        return {"tau": scheduled(settings["tau"]), **entropy_options(settings)}


sac = SACPreset(
    "sac",
    "SAC: act well and unpredictably, taught by two critics (Haarnoja et al., 2018)",
    sac_settings,
    {"continuous": sac_settings(), "mujoco": with_changes(sac_settings(), ON_MUJOCO)},
)
