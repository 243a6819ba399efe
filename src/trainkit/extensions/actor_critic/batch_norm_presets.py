"""CrossQ and XQC, soft actor-critics with batch normalization: their settings and tables."""

import math
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Unpack

from trainkit.core.schedules import Linear
from trainkit.engine.optimizers import Adam, OptimizerSpec, TorchOptimizer
from trainkit.envs import Envs
from trainkit.extensions.actor_critic.batch_norm import BatchNormNetworks, JointPass
from trainkit.policy import CategoricalValue
from trainkit.presets.base import P, scheduled, table_of, with_changes
from trainkit.presets.off_policy_actor_critic import (
    USUAL,
    ActorCriticPreset,
    ActorCriticSettings,
    EntropySettings,
    TargetSettings,
    entropy_options,
)


class BatchNormSettings(ActorCriticSettings, EntropySettings, total=False):
    """Settings of actor-critics with batch normalization.

    Args:
        momentum: share by which running statistics move to those of a batch.
    """

    momentum: Annotated[float, 0.01]


class CrossQSettings(BatchNormSettings, total=False):
    """Settings of CrossQ, which has no target networks.

    Args:
        warm_up: passes of a network while it learns before it renormalizes.
    """

    warm_up: Annotated[int | None, 100_000]


class XQCSettings(BatchNormSettings, TargetSettings, total=False):
    """Settings of XQC.

    Args:
        atoms: returns of the critics' distributions.
        v_min: the smallest one.
        v_max: the largest one.
    """

    atoms: Annotated[int, 101]
    v_min: Annotated[float, -5.0]
    v_max: Annotated[float, 5.0]


# Bhatt et al. (2024), table 2 and their code, with critics of a quarter of their width.
_CROSSQ = CrossQSettings(
    critic_hidden=(512, 512),
    lr=1e-3,
    optimizer=Adam(betas=(0.5, 0.999)),
    actor_every=3,
    learning_starts=5_000,
)


def crossq_settings(**given: Unpack[CrossQSettings]) -> CrossQSettings:
    """Return all settings of CrossQ."""
    return table_of(CrossQSettings, {**USUAL, **_CROSSQ}, given)


# Palenicek et al. (2025), their code, but two layers of 256, where critics have four of 512 and actors four of 256, and
# one update per step, of two: benchmarks/results/continuous.md compares what a CPU makes of an hour.
_XQC = XQCSettings(
    gamma=0.995,
    reward="return_scale",
    lr=Linear(3e-4, 3e-5),
    actor_every=3,
    initial_temperature=0.01,
    learning_starts=5_000,
)


def xqc_settings(**given: Unpack[XQCSettings]) -> XQCSettings:
    """Return all settings of XQC."""
    return table_of(XQCSettings, {**USUAL, **_XQC}, given)


def _with_usual_betas(optimizer: OptimizerSpec) -> OptimizerSpec:
    """Return the optimizer of the temperature, in their code an Adam with the usual betas."""
    if isinstance(optimizer, Adam):
        return replace(optimizer, betas=Adam().betas)
    if not isinstance(optimizer, TorchOptimizer):
        return optimizer
    factory = optimizer.factory  # of an `Adam` and a torch scheduler in `lr` a partial of torch's
    has_betas = isinstance(factory, partial) and "betas" in factory.keywords
    usual: dict[str, Any] = {"betas": Adam().betas}
    return replace(optimizer, factory=partial(factory, **usual)) if has_betas else optimizer


class CrossQPreset(ActorCriticPreset[P, CrossQSettings]):
    """A preset of CrossQ."""

    kind = CrossQSettings

    def parts(self, settings: CrossQSettings, envs: Envs) -> dict[str, Any]:
        return {
            "networks": BatchNormNetworks(warm_up=settings["warm_up"], momentum=settings["momentum"]),
            "critic_pass": JointPass(),
            "target": "none",
            "temperature_optimizer": _with_usual_betas(settings["optimizer"]),
            **entropy_options(settings),
        }


class XQCPreset(ActorCriticPreset[P, XQCSettings]):
    """A preset of XQC."""

    kind = XQCSettings

    def parts(self, settings: XQCSettings, envs: Envs) -> dict[str, Any]:
        entropy = entropy_options(settings)
        if entropy["temperature"] == "auto" and entropy["target_entropy"] is None:
            entropy["target_entropy"] = -0.5 * math.prod(envs.action_space.shape or ())
        if entropy["temperature"] != "auto" and entropy["initial_temperature"] == _XQC["initial_temperature"]:
            entropy["initial_temperature"] = None  # the table's is of a learned temperature
        return {
            "networks": BatchNormNetworks(norm_first=True, warm_up=None, momentum=settings["momentum"], on_sphere=True),
            "value": CategoricalValue(settings["atoms"], settings["v_min"], settings["v_max"]),
            "critic_pass": JointPass(),
            "tau": scheduled(settings["tau"]),
            **entropy,
        }


_ON_MUJOCO = {"max_epoch": 100, "step_per_epoch": 10_000}

crossq = CrossQPreset(
    "crossq",
    "CrossQ: SAC without target networks, by batch normalization (Bhatt et al., 2024)",
    crossq_settings,
    {"continuous": crossq_settings(learning_starts=1_000), "mujoco": with_changes(crossq_settings(), _ON_MUJOCO)},
)
xqc = XQCPreset(
    "xqc",
    "XQC: SAC of categorical critics with batch and weight normalization (Palenicek et al., 2025)",
    xqc_settings,
    {"continuous": xqc_settings(learning_starts=1_000, gamma=0.99), "mujoco": with_changes(xqc_settings(), _ON_MUJOCO)},
)
