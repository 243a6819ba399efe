"""Off-policy actor-critic presets: common settings and tables; the base of those of an extension, too."""

from abc import ABC, abstractmethod
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from typing_extensions import TypedDict

from trainkit.core.schedules import Linear, Scheduled
from trainkit.envs import Envs
from trainkit.policy import ActorCriticPolicy, Noise
from trainkit.presets.base import (
    MemorySettings,
    NetworkOptions,
    P,
    memory_options,
    network_options,
    noise,
    policy_options,
)
from trainkit.presets.off_policy import SEQUENCES, OffpolicyPreset, OffpolicySettings


class ActorCriticSettings(MemorySettings, OffpolicySettings, total=False):
    """Settings of every off-policy actor-critic.

    Args:
        network: options of `NetworkOptions`, such as {"norm": "layer"}; the others stay.
        critic_hidden: widths of each critic's hidden layers; None is `hidden`.
        n_critics: critics, each of which learns.
        actor_every: updates from one step of the actor to the next.
        exploration: noise that is correlated in time, such as `ColoredNoise()`, whose beta a number is; None is
            independent noise.
        policy_class: a subclass of `ActorCriticPolicy`, made by its `for_envs`; None is the preset's own.
    """

    network: Annotated[NetworkOptions, {}]
    critic_hidden: Annotated[tuple[int, ...] | None, None]
    n_critics: Annotated[int, 2]
    actor_every: Annotated[int, 1]
    exploration: Annotated[Noise | float | None, None]
    policy_class: Annotated[type[ActorCriticPolicy] | None, None]


class TargetSettings(TypedDict, total=False):
    """Settings of target networks.

    Args:
        tau: share by which they move to the networks that learn.
    """

    tau: Annotated[Scheduled | Linear, 0.005]


class EntropySettings(TypedDict, total=False):
    """Settings of the entropy that a stochastic actor keeps.

    Args:
        temperature: weight of the entropy; "auto" learns it.
        initial_temperature: where learning it starts; None is 1, as in SAC's code.
        target_entropy: the entropy it is learned for; None is minus the number of components of an action.
    """

    temperature: Annotated[Literal["auto"] | Scheduled | Linear, "auto"]
    initial_temperature: Annotated[float | None, None]
    target_entropy: Annotated[float | None, None]


ActorCriticSettingsT = TypeVar("ActorCriticSettingsT", bound=ActorCriticSettings)


class ActorCriticPreset(OffpolicyPreset[P, ActorCriticSettingsT, ActorCriticPolicy], ABC):
    """A preset of `ActorCriticPolicy`, for actions in a bounded Box; a subclass defines its parts."""

    learner: ClassVar[type[ActorCriticPolicy]] = ActorCriticPolicy

    @abstractmethod
    def parts(self, settings: ActorCriticSettingsT, envs: Envs) -> dict[str, Any]:
        """Return the arguments of `ActorCriticPolicy.for_envs` that make it this algorithm."""

    def make_policy(self, envs: Envs, settings: ActorCriticSettingsT) -> ActorCriticPolicy:
        return (settings["policy_class"] or self.learner).for_envs(
            envs,
            **policy_options(settings),
            **network_options(settings["network"]),
            **memory_options(settings, *SEQUENCES),
            n_step=settings["n_step"],
            critic_hidden=settings["critic_hidden"],
            n_critics=settings["n_critics"],
            actor_every=settings["actor_every"],
            exploration=noise(settings["exploration"]),
            **self.parts(settings, envs),
        )


def entropy_options(settings: EntropySettings) -> dict[str, Any]:
    """Return the arguments of `for_envs` for the entropy."""
    return {name: settings[name] for name in ("temperature", "initial_temperature", "target_entropy")}


# Haarnoja et al. (2018), "Soft actor-critic algorithms and applications", table 1; others have their source named.
USUAL = ActorCriticSettings(
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

ON_MUJOCO = {"learning_starts": 10_000, "max_epoch": 100, "step_per_epoch": 10_000}  # theirs, of 1 to 3 million
