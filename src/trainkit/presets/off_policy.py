"""What the presets of off-policy learners share: their buffer, and the rates of their trainer."""

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from trainkit.buffer import PrioritizedReplayBuffer, ReplayBuffer
from trainkit.collector import Collector, Envs
from trainkit.policy import DeviceFrames
from trainkit.presets.base import Settings, given
from trainkit.protocols import Learner
from trainkit.schedules import Linear, Scheduled
from trainkit.trainer import OffpolicyTrainer
from trainkit.trainer.updates import Refresh


class OffpolicySettings(Settings, total=False):
    """What every preset of an off-policy learner may override, beside the options of every trainer."""

    n_step: int | tuple[int, int]
    prioritized: bool
    alpha: float
    beta: Scheduled | Linear
    capacity: int
    batch_size: int
    step_per_collect: int | None
    update_per_step: float
    learning_starts: int
    warmup: Literal["policy", "random"]


class OffpolicySwitches(TypedDict, total=False):
    """When updates are taken and priorities written: as `OffpolicyTrainer` does unless given."""

    refresh_priorities: Refresh
    updates_per_round: int
    overlap: bool


class BufferSwitches(TypedDict, total=False):
    """Where the buffer keeps its rows: in ordinary memory alone unless given."""

    frames_on_device: bool  # images on the policy's device too


def offpolicy_trainer(
    policy: Learner, envs: Envs, chosen: Mapping[str, Any], common: Mapping[str, Any]
) -> OffpolicyTrainer:
    """Make the trainer of a policy, with the buffer that the settings name."""
    how: dict[str, Any] = {"frames": DeviceFrames(chosen["device"]) if chosen.get("frames_on_device") else None}
    if chosen["prioritized"]:
        how |= {"alpha": chosen["alpha"], "beta": chosen["beta"]}
    buffer = (PrioritizedReplayBuffer if chosen["prioritized"] else ReplayBuffer)(chosen["capacity"], **how)
    names = ("max_epoch", "step_per_epoch", "batch_size", "step_per_collect", "update_per_step", "learning_starts")
    rates = {name: chosen[name] for name in (*names, "warmup")} | given(OffpolicySwitches, chosen)
    return OffpolicyTrainer(policy, Collector(policy, envs, buffer), **rates, **common)
