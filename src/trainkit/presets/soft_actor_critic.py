"""SAC: its settings and tables."""

from typing import Annotated, Literal, Unpack

from trainkit.core.schedules import Linear, Scheduled
from trainkit.envs import Envs
from trainkit.policy import Noise, SACPolicy
from trainkit.presets.base import (
    MemorySettings,
    NetworkOptions,
    P,
    memory_options,
    network_options,
    noise,
    policy_options,
    scheduled,
    table_of,
)
from trainkit.presets.off_policy import SEQUENCES, OffpolicyPreset, OffpolicySettings


class SACSettings(MemorySettings, OffpolicySettings, total=False):
    """Settings of SAC.

    Args:
        network: options of `NetworkOptions`, such as {"norm": "layer"}; the others stay.
        tau: share by which the target critics move to the critics after each update.
        temperature: weight of the entropy; "auto" learns it.
        initial_temperature: where learning it starts; None is 1, as in their code.
        target_entropy: the entropy it is learned for; None is minus the number of components of an action.
        exploration: noise such as `ColoredNoise()`, whose beta a number is; None is independent noise.
        policy_class: a subclass of `SACPolicy`, made by its `for_envs`; None is `SACPolicy`.
    """

    network: Annotated[NetworkOptions, {}]
    tau: Annotated[Scheduled | Linear, 0.005]
    temperature: Annotated[Literal["auto"] | Scheduled | Linear, "auto"]
    initial_temperature: Annotated[float | None, None]
    target_entropy: Annotated[float | None, None]
    exploration: Annotated[Noise | float | None, None]
    policy_class: Annotated[type[SACPolicy] | None, None]


# Haarnoja et al. (2018), "Soft actor-critic algorithms and applications", table 1; others have their source named.
_USUAL = SACSettings(
    n_envs=1,
    hidden=(256, 256),
    gamma=0.99,
    lr=3e-4,
    max_grad_norm=None,
    capacity=1_000_000,
    batch_size=256,
    step_per_collect=None,
    update_per_step=1.0,
    learning_starts=1_000,  # their code, for most tasks
    warmup="random",  # their code
    max_epoch=20,  # Pendulum-v1 is solved by then
    step_per_epoch=1_000,
)


def sac_settings(**given: Unpack[SACSettings]) -> SACSettings:
    """Return all settings of SAC."""
    return table_of(SACSettings, _USUAL, given)


class SACPreset(OffpolicyPreset[P, SACSettings, SACPolicy]):
    """A preset of SAC, for actions in a bounded Box."""

    kind = SACSettings

    def make_policy(self, envs: Envs, settings: SACSettings) -> SACPolicy:
        return (settings["policy_class"] or SACPolicy).for_envs(
            envs,
            **policy_options(settings),
            **network_options(settings["network"]),
            **memory_options(settings, *SEQUENCES),
            n_step=settings["n_step"],
            tau=scheduled(settings["tau"]),
            temperature=settings["temperature"],
            initial_temperature=settings["initial_temperature"],
            target_entropy=settings["target_entropy"],
            exploration=noise(settings["exploration"]),
        )


sac = SACPreset(
    "sac",
    "SAC: act well and unpredictably, taught by two critics (Haarnoja et al., 2018)",
    sac_settings,
    {
        "continuous": sac_settings(),
        "mujoco": sac_settings(
            learning_starts=10_000, max_epoch=100, step_per_epoch=10_000
        ),  # theirs, of 1 to 3 million
    },
)
