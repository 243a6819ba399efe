"""What the presets of off-policy learners share: their buffer, and the rates of their trainer."""

from collections.abc import Mapping
from typing import Any, Literal, TypedDict, TypeVar

from trainkit.buffer import buffer_from_config
from trainkit.collector import Collector
from trainkit.core.protocols import Learner
from trainkit.core.schedules import Linear, Scheduled
from trainkit.engine import DeviceFrames
from trainkit.envs import Envs
from trainkit.presets.base import Settings, given
from trainkit.trainer import OffpolicyTrainer
from trainkit.trainer.updates import Refresh

LearnerT = TypeVar("LearnerT", bound=Learner)


class OffpolicySettings(Settings, total=False):
    """What every preset of an off-policy learner may override, beside the options of every trainer."""

    n_step: int | tuple[int, int]
    prioritized: bool
    alpha: float
    beta: Scheduled | Linear
    capacity: int
    batch_size: int | None
    step_per_collect: int | None
    update_per_step: float
    learning_starts: int
    warmup: Literal["policy", "random"]


class OffpolicySwitches(TypedDict, total=False):
    """When updates are taken and priorities written: as `OffpolicyTrainer` does unless given."""

    episode_per_collect: int | None  # together with step_per_collect=None
    refresh_priorities: Refresh
    updates_per_round: int
    overlap: bool
    buffer: Mapping[str, Any]  # see `buffer_from_config`: overrides what prioritized, alpha, beta and capacity say


class BufferSwitches(TypedDict, total=False):
    """Where the buffer keeps its rows: in ordinary memory alone unless given."""

    frames_on_device: bool  # images on the policy's device too


def offpolicy_trainer(
    policy: LearnerT, envs: Envs, chosen: Mapping[str, Any], common: Mapping[str, Any]
) -> OffpolicyTrainer[LearnerT]:
    """Make the trainer of a policy, with the buffer that the settings name."""
    table: dict[str, Any] = {"type": "ReplayBuffer", "capacity": chosen["capacity"]}
    if chosen["prioritized"]:
        table |= {"type": "PrioritizedReplayBuffer", "alpha": chosen["alpha"], "beta": chosen["beta"]}
    config = dict(chosen.get("buffer", {}))
    if chosen.get("frames_on_device"):
        config["frames"] = DeviceFrames(chosen["device"])
    buffer = buffer_from_config(config, default=table)
    names = ("max_epoch", "step_per_epoch", "batch_size", "step_per_collect", "update_per_step", "learning_starts")
    rates = {name: chosen[name] for name in (*names, "warmup")} | given(OffpolicySwitches, chosen)
    rates.pop("buffer", None)
    return OffpolicyTrainer(policy, Collector(policy, envs, buffer), **rates, **common)
