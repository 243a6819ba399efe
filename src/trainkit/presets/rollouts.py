"""On-policy presets: the settings of rollouts and their trainer; the base of those of an extension, too."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from gymnasium import spaces as gym_spaces

from trainkit.buffer import RolloutBuffer
from trainkit.core.protocols import EnvSpaces
from trainkit.core.spaces import StructuredHybrid
from trainkit.envs import Envs
from trainkit.policy import Noise
from trainkit.policy.on_policy import OnpolicyPolicy
from trainkit.presets.base import (
    EnvPreset,
    EnvSettings,
    MemorySettings,
    NetworkOptions,
    P,
    by_name,
    memory_options,
    network_options,
    noise,
    policy_options,
    training_collector,
)
from trainkit.trainer import OnpolicyTrainer


class ActorCriticOptions(NetworkOptions, total=False):
    """Options of the networks of an actor and a critic.

    Args:
        shared: one network for both up to their heads.
        critic_only: leaves of a Dict observation that the critic sees and the actor does not.
    """

    shared: bool
    critic_only: tuple[str, ...]


class OnpolicySettings(MemorySettings, EnvSettings, total=False):
    """Settings of every policy-gradient preset.

    Args:
        network: options of `ActorCriticOptions`, such as {"shared": True}; the others stay.
        normalize_advantage: to mean 0 and standard deviation 1 in each batch.
        action_scaling: map actions of a Box from [-1, 1] to the bounds of the space.
        action_bound_method: "clip" actions of a Box at the bounds, or squash them by "tanh".
        log_std: initial logarithm of the standard deviation of Box actions; None is the policy's own.
        exploration: noise of Box actions, such as `ColoredNoise()`, whose beta a number is; None is independent noise.
        step_per_collect: environment steps per rollout, in all environments together.
        episode_per_collect: instead of it, whole episodes.
        repeat_per_collect: how often each row of a rollout is learned from.
        batch_size: rows per update; None is the whole rollout.
        policy_class: a subclass of the preset's policy, made by its `for_envs`; None is that itself.
    """

    network: Annotated[ActorCriticOptions, {}]
    normalize_advantage: Annotated[bool, True]
    action_scaling: Annotated[bool, True]
    action_bound_method: Annotated[Literal["clip", "tanh"], "clip"]
    log_std: Annotated[float | None, None]
    exploration: Annotated[Noise | float | None, None]
    step_per_collect: Annotated[int | None, 2_048]
    episode_per_collect: Annotated[int | None, None]
    repeat_per_collect: Annotated[int, 10]
    batch_size: Annotated[int | None, 64]
    policy_class: Annotated[type[OnpolicyPolicy] | None, None]


OnpolicySettingsT = TypeVar("OnpolicySettingsT", bound=OnpolicySettings)


class OnpolicyPreset(EnvPreset[P, OnpolicySettingsT, OnpolicyTrainer[OnpolicyPolicy]]):
    """A preset of a policy that learns from rollouts.

    Attributes:
        options: settings that it has and others have not.
    """

    kind = OnpolicySettings
    learner: ClassVar[type[OnpolicyPolicy]]
    options: ClassVar[tuple[str, ...]] = ()
    of_box = frozenset(("action_scaling", "action_bound_method", "log_std", "exploration"))

    def _steps_between(self, settings: OnpolicySettingsT) -> int:
        """Return the steps between rounds of updates; whole episodes count as an epoch, since theirs are not known."""
        if settings["episode_per_collect"] is not None:
            return settings["step_per_epoch"]
        return settings["n_envs"] if settings["step_per_collect"] is None else settings["step_per_collect"]

    def domain_of(self, spaces: EnvSpaces) -> str:
        has_box = isinstance(spaces.action_space, (gym_spaces.Box, StructuredHybrid))
        return "continuous" if has_box else super().domain_of(spaces)

    def make_policy(self, envs: Envs, settings: OnpolicySettingsT) -> OnpolicyPolicy:
        return (settings["policy_class"] or self.learner).for_envs(
            envs,
            **policy_options(settings),
            **{"shared": False, **network_options(settings["network"])},
            **memory_options(settings, 64, 0),
            normalize_advantage=settings["normalize_advantage"],
            action_scaling=settings["action_scaling"],
            action_bound_method=settings["action_bound_method"],
            log_std=settings["log_std"],
            exploration=noise(settings["exploration"]),
            **{name: by_name(settings)[name] for name in self.options},
        )

    def make_trainer(
        self, policy: OnpolicyPolicy, envs: Envs, settings: OnpolicySettingsT, common: Mapping[str, Any]
    ) -> OnpolicyTrainer[OnpolicyPolicy]:
        return OnpolicyTrainer(
            policy,
            training_collector(policy, envs, RolloutBuffer()),
            max_epoch=settings["max_epoch"],
            step_per_epoch=settings["step_per_epoch"],
            step_per_collect=settings["step_per_collect"],
            episode_per_collect=settings["episode_per_collect"],
            repeat_per_collect=settings["repeat_per_collect"],
            batch_size=settings["batch_size"],
            **common,
        )
