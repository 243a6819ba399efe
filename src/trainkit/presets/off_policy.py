"""Off-policy presets: the settings of a replay buffer and its trainer; the base of those of an extension, too."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from trainkit.buffer import PrioritizedReplayBuffer, ReplayBuffer, buffer_from_config
from trainkit.core.errors import Checks
from trainkit.core.protocols import OffpolicyTrainee
from trainkit.core.schedules import Linear
from trainkit.envs import Envs
from trainkit.presets.base import (
    EnvPreset,
    EnvSettings,
    P,
    by_name,
    training_collector,
)
from trainkit.trainer import OffpolicyTrainer
from trainkit.trainer.offpolicy import Refresh


class OffpolicySettings(EnvSettings, total=False):
    """Settings of presets that learn from a replay buffer.

    Args:
        n_step: rewards that a target adds up before it bootstraps; (low, high) draws their number per row.
        capacity: rows of the replay buffer.
        buffer: "uniform", "prioritized", or options as of `buffer_from_config`; those of the same type that are left
            out stay, as of {"alpha": 0.5}.
        batch_size: rows per update; None is the whole buffer.
        step_per_collect: environment steps between rounds of updates; None is one step of each environment.
        episode_per_collect: instead of it, whole episodes.
        update_per_step: updates per environment step.
        updates_per_round: updates whose batches are drawn in one pass, with refresh_priorities="round".
        refresh_priorities: when priorities are written: after each "update", "late" or after a "round".
        overlap: learn while environments step in processes or in ale-py.
        learning_starts: environment steps before the first update.
        warmup: who acts before learning starts: the exploring "policy", or "random" actions.
    """

    n_step: Annotated[int | tuple[int, int], 1]
    capacity: int
    buffer: Annotated[Literal["uniform", "prioritized"] | Mapping[str, Any], {"type": "ReplayBuffer"}]
    batch_size: int | None
    step_per_collect: int | None
    episode_per_collect: Annotated[int | None, None]
    update_per_step: float
    updates_per_round: Annotated[int, 1]
    refresh_priorities: Annotated[Refresh, "update"]
    overlap: Annotated[bool, False]
    learning_starts: int
    warmup: Annotated[Literal["policy", "random"], "policy"]


OffpolicySettingsT = TypeVar("OffpolicySettingsT", bound=OffpolicySettings)
TraineeT = TypeVar("TraineeT", bound=OffpolicyTrainee)


# Schaul et al. (2016), with proportional priorities.
BUFFER_WORDS: Mapping[str, Mapping[str, Any]] = {
    "uniform": {"type": "ReplayBuffer"},
    "prioritized": {"type": "PrioritizedReplayBuffer", "alpha": 0.6, "beta": Linear(0.4, 1.0)},
}

# What a memory learns from: consecutive rows, those before them, and whether states are stored.
SEQUENCES = 20, 10, True


class OffpolicyPreset(EnvPreset[P, OffpolicySettingsT, OffpolicyTrainer[TraineeT]]):
    """A preset that learns from a replay buffer."""

    words: ClassVar[Mapping[str, Mapping[str, Any]]] = {"buffer": BUFFER_WORDS}

    def _merged(self, name: str, value: Any, current: Any) -> Any:
        if name != "buffer":
            return super()._merged(name, value, current)
        given = BUFFER_WORDS[value] if isinstance(value, str) else value
        with Checks(repr(self)) as checks:
            checks.require("capacity" not in given, ".buffer has a capacity, an option of its own: give capacity=")
        if _name(given.get("type", current["type"])) != _name(current["type"]):
            return dict(given)
        return current if isinstance(value, str) else {**current, **given}

    def _part_classes(self) -> dict[str, list[Any]]:
        return {**super()._part_classes(), "buffer": []}

    def within_options(self) -> Iterator[tuple[str, str, str]]:
        yield from super().within_options()
        others = inspect.signature(ReplayBuffer).parameters.keys() - {"frames"}
        names = [name for name in inspect.signature(PrioritizedReplayBuffer).parameters if name not in others]
        yield from ((name, "buffer", f"{{{name!r}: ...}}") for name in names)

    def _steps_between(self, settings: OffpolicySettingsT) -> int:
        """Return the steps between rounds of updates; whole episodes count as an epoch, since theirs are not known."""
        if settings["episode_per_collect"] is not None:
            return settings["step_per_epoch"]
        return settings["n_envs"] if settings["step_per_collect"] is None else settings["step_per_collect"]

    def make_trainer(
        self, policy: TraineeT, envs: Envs, settings: OffpolicySettingsT, common: Mapping[str, Any]
    ) -> OffpolicyTrainer[TraineeT]:
        options = by_name(settings)["buffer"]  # a mapping, by `changed`
        return OffpolicyTrainer(
            policy,
            training_collector(policy, envs, buffer_from_config({"capacity": settings["capacity"], **options})),
            max_epoch=settings["max_epoch"],
            step_per_epoch=settings["step_per_epoch"],
            batch_size=settings["batch_size"],
            step_per_collect=settings["step_per_collect"],
            episode_per_collect=settings["episode_per_collect"],
            update_per_step=settings["update_per_step"],
            learning_starts=settings["learning_starts"],
            warmup=settings["warmup"],
            refresh_priorities=settings["refresh_priorities"],
            updates_per_round=settings["updates_per_round"],
            overlap=settings["overlap"],
            **common,
        )


def _name(kind: object) -> object:
    """Return the name of a type of buffers, which may be a class."""
    return getattr(kind, "__name__", kind)
