"""TQC, REDQ and DroQ, soft actor-critics with other critics: their settings and tables."""

from typing import Annotated, Any, Unpack

from trainkit.envs import Envs
from trainkit.extensions.actor_critic.critic_reductions import MeanOfCritics, MinOfSubset, TruncatedQuantiles
from trainkit.extensions.actor_critic.dropout import DropoutNetworks
from trainkit.policy import ExpectedValue, QuantileValue
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


class TQCSettings(ActorCriticSettings, TargetSettings, EntropySettings, total=False):
    """Settings of TQC.

    Args:
        quantiles: of each critic.
        drop_per_critic: quantiles that are dropped for each critic, the largest of all.
    """

    quantiles: Annotated[int, 25]
    drop_per_critic: Annotated[int, 2]


def tqc_settings(**given: Unpack[TQCSettings]) -> TQCSettings:
    """Return all settings of TQC."""
    return table_of(TQCSettings, USUAL, given)


class REDQSettings(ActorCriticSettings, TargetSettings, EntropySettings, total=False):
    """Settings of REDQ.

    Args:
        subset: critics of which each update's target is the least.
    """

    subset: Annotated[int, 2]


class DroQSettings(ActorCriticSettings, TargetSettings, EntropySettings, total=False):
    """Settings of DroQ.

    Args:
        dropout: share of the outputs of the critics' hidden layers that are dropped.
    """

    dropout: Annotated[float, 0.01]


# 20 updates per step, with one of the actor's (Chen et al., 2021, and Hiraoka et al., 2022, and their code).
_MANY_UPDATES = ActorCriticSettings(update_per_step=20.0, actor_every=20, learning_starts=5_000)


def redq_settings(**given: Unpack[REDQSettings]) -> REDQSettings:
    """Return all settings of REDQ."""
    return table_of(REDQSettings, {**USUAL, **_MANY_UPDATES, "n_critics": 10}, given)


def droq_settings(**given: Unpack[DroQSettings]) -> DroQSettings:
    """Return all settings of DroQ."""
    return table_of(DroQSettings, {**USUAL, **_MANY_UPDATES}, given)


class TQCPreset(ActorCriticPreset[P, TQCSettings]):
    """A preset of TQC."""

    kind = TQCSettings

    def parts(self, settings: TQCSettings, envs: Envs) -> dict[str, Any]:
        return {
            "value": QuantileValue(settings["quantiles"], reduction="mean"),
            "reduction": TruncatedQuantiles(settings["drop_per_critic"]),
            "actor_reduction": MeanOfCritics(),
            "tau": scheduled(settings["tau"]),
            **entropy_options(settings),
        }


class REDQPreset(ActorCriticPreset[P, REDQSettings]):
    """A preset of REDQ."""

    kind = REDQSettings

    def parts(self, settings: REDQSettings, envs: Envs) -> dict[str, Any]:
        return {
            "value": ExpectedValue("mse"),
            "reduction": MinOfSubset(settings["subset"]),
            "actor_reduction": MeanOfCritics(),
            "tau": scheduled(settings["tau"]),
            **entropy_options(settings),
        }


class DroQPreset(ActorCriticPreset[P, DroQSettings]):
    """A preset of DroQ."""

    kind = DroQSettings

    def parts(self, settings: DroQSettings, envs: Envs) -> dict[str, Any]:
        return {
            "networks": DropoutNetworks(settings["dropout"]),
            "value": ExpectedValue("mse"),
            "actor_reduction": MeanOfCritics(),
            "tau": scheduled(settings["tau"]),
            **entropy_options(settings),
        }


tqc = TQCPreset(
    "tqc",
    "TQC: SAC towards the smaller quantiles of several critics (Kuznetsov et al., 2020)",
    tqc_settings,
    {"continuous": tqc_settings(), "mujoco": with_changes(tqc_settings(), ON_MUJOCO)},
)

_ON_MUJOCO = {"max_epoch": 25, "step_per_epoch": 5_000}  # 125,000 steps, as Hopper's in both papers

redq = REDQPreset(
    "redq",
    "REDQ: SAC of ten critics and 20 updates per step (Chen et al., 2021)",
    redq_settings,
    {"continuous": redq_settings(learning_starts=1_000), "mujoco": with_changes(redq_settings(), _ON_MUJOCO)},
)
droq = DroQPreset(
    "droq",
    "DroQ: SAC of critics with dropout and 20 updates per step (Hiraoka et al., 2022)",
    droq_settings,
    {"continuous": droq_settings(learning_starts=1_000), "mujoco": with_changes(droq_settings(), _ON_MUJOCO)},
)
