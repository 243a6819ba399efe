"""Off-policy presets: the settings of a replay buffer and its trainer, and SAC with its tables."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar, Unpack

from trainkit.buffer import buffer_from_config
from trainkit.core.errors import ConfigError
from trainkit.core.extensions import exported
from trainkit.core.protocols import OffpolicyTrainee
from trainkit.core.schedules import Linear, Scheduled
from trainkit.envs import Envs
from trainkit.policy import Noise, SACPolicy
from trainkit.presets.base import (
    EnvPreset,
    EnvSettings,
    Needs,
    P,
    memory_options,
    network_options,
    noise,
    scheduled,
    table_of,
    training_collector,
)
from trainkit.trainer import OffpolicyTrainer
from trainkit.trainer.offpolicy import Refresh


class OffpolicySettings(EnvSettings, total=False):
    """Settings of presets that learn from a replay buffer.

    Args:
        n_step: rewards that a target adds up before it bootstraps; (low, high) draws their number per row.
        prioritized: sample rows by priority instead of uniformly.
        alpha: exponent of the priorities, 0 is uniform.
        beta: exponent of the importance weights, 1 corrects for the priorities completely.
        capacity: rows of the replay buffer.
        batch_size: rows per update; None is the whole buffer.
        buffer: type, capacity, alpha, beta and more as in `buffer_from_config`; overrides those settings.
        frames_on_device: keep images on the policy's device too, as `DeviceFrames`.
        step_per_collect: environment steps between rounds of updates; None is one step of each environment.
        episode_per_collect: instead of it, together with step_per_collect=None, whole episodes.
        update_per_step: updates per environment step.
        updates_per_round: updates whose batches are drawn in one pass, with refresh_priorities="round".
        refresh_priorities: when priorities are written: after each "update", "late" or after a "round".
        burn_in: rows before those of a sequence, which bring its state up to date; None begins with the episode.
        stored_state: begin a sequence at the state that was stored with its first row, instead of zero.
        overlap: learn while environments step in processes or in ale-py.
        learning_starts: environment steps before the first update.
        warmup: who acts before learning starts: the exploring "policy", or "random" actions.
    """

    n_step: Annotated[int | tuple[int, int], 1]
    prioritized: Annotated[bool, False]
    alpha: Annotated[float, 0.6]
    beta: Annotated[Scheduled | Linear, Linear(0.4, 1.0)]
    capacity: int
    batch_size: int | None
    buffer: Annotated[Mapping[str, Any], {}]
    frames_on_device: Annotated[bool, False]
    step_per_collect: int | None
    episode_per_collect: Annotated[int | None, None]
    update_per_step: float
    updates_per_round: Annotated[int, 1]
    refresh_priorities: Annotated[Refresh, "update"]
    burn_in: Annotated[int | None, 10]
    stored_state: Annotated[bool, True]
    overlap: Annotated[bool, False]
    learning_starts: int
    warmup: Annotated[Literal["policy", "random"], "policy"]


OffpolicySettingsT = TypeVar("OffpolicySettingsT", bound=OffpolicySettings)
TraineeT = TypeVar("TraineeT", bound=OffpolicyTrainee)


REPLAY_NEEDS: dict[str, Needs] = {"alpha": ("prioritized", (True,)), "beta": ("prioritized", (True,))}


class OffpolicyPreset(EnvPreset[P, OffpolicySettingsT, OffpolicyTrainer[TraineeT]]):
    """A preset that learns from a replay buffer."""

    needs = REPLAY_NEEDS

    def _no_effect(self, name: str, settings: OffpolicySettingsT) -> str | None:
        if name in ("alpha", "beta", "capacity") and name in settings["buffer"]:
            return f"buffer has {name}"
        is_uniform = not settings["prioritized"] and not settings["buffer"]
        if name == "refresh_priorities" and is_uniform and settings["refresh_priorities"] != "round":
            return "prioritized is False, and a uniform buffer has no priorities"
        return super()._no_effect(name, settings)

    def _steps_between(self, settings: OffpolicySettingsT) -> int:
        """Return the steps between rounds of updates; whole episodes count as an epoch, since theirs are not known."""
        if settings["episode_per_collect"] is not None:
            return settings["step_per_epoch"]
        return settings["n_envs"] if settings["step_per_collect"] is None else settings["step_per_collect"]

    def make_trainer(
        self, policy: TraineeT, envs: Envs, settings: OffpolicySettingsT, common: Mapping[str, Any]
    ) -> OffpolicyTrainer[TraineeT]:
        default: dict[str, Any] = {"type": "ReplayBuffer", "capacity": settings["capacity"]}
        if settings["prioritized"]:
            default |= {"type": "PrioritizedReplayBuffer", "alpha": settings["alpha"], "beta": settings["beta"]}
        config = dict(settings["buffer"])
        if settings["frames_on_device"]:
            store = exported("DeviceFrames")
            if store is None:
                folder = "trainkit/extensions/cuda, which is not there"
                raise ConfigError(f"{self.name}.frames_on_device needs {folder}: install all of trainkit")
            config["frames"] = store(settings["device"])
        return OffpolicyTrainer(
            policy,
            training_collector(policy, envs, buffer_from_config(config, default=default)),
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


class SACSettings(OffpolicySettings, total=False):
    """Settings of SAC.

    Args:
        tau: share by which the target critics move to the critics after each update.
        temperature: weight of the entropy; "auto" learns it.
        initial_temperature: where learning it starts.
        target_entropy: the entropy it is learned for; None is minus the number of components of an action.
        exploration: noise such as `ColoredNoise()`, whose beta a number is; None is independent noise.
    """

    tau: Annotated[Scheduled | Linear, 0.005]
    temperature: Annotated[Literal["auto"] | Scheduled | Linear, "auto"]
    initial_temperature: Annotated[float, 1.0]  # their code
    target_entropy: Annotated[float | None, None]
    exploration: Annotated[Noise | float | None, None]


# Haarnoja et al. (2018), "Soft actor-critic algorithms and applications", table 1; others have their source named.
_USUAL = SACSettings(
    n_envs=1,
    hidden=(256, 256),
    gamma=0.99,
    lr=3e-4,
    adam_eps=1e-8,  # torch's
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
    needs = REPLAY_NEEDS | {
        "initial_temperature": ("temperature", ("auto",)),
        "target_entropy": ("temperature", ("auto",)),
    }

    def make_policy(self, envs: Envs, settings: SACSettings) -> SACPolicy:
        return SACPolicy.for_envs(
            envs,
            hidden=settings["hidden"],
            **network_options(settings),
            **memory_options(settings, settings["burn_in"], stored_state=settings["stored_state"]),
            normalize_obs=settings["normalize_obs"],
            n_step=settings["n_step"],
            gamma=settings["gamma"],
            reward=settings["reward"],
            optimizer=settings["optimizer"],
            max_grad_norm=settings["max_grad_norm"],
            tau=scheduled(settings["tau"]),
            temperature=settings["temperature"],
            initial_temperature=settings["initial_temperature"],
            target_entropy=settings["target_entropy"],
            exploration=noise(settings["exploration"]),
            device=settings["device"],
            engine=settings["engine"],
            precision=settings["precision"],
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
