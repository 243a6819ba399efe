"""Policy-gradient presets: PPO, A2C and REINFORCE, their settings and the table of each."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Unpack

from gymnasium import spaces as gym_spaces
from typing_extensions import TypedDict

from trainkit.buffer import RolloutBuffer
from trainkit.core.extensions import exported
from trainkit.core.protocols import EnvSpaces
from trainkit.core.schedules import Linear, Scheduled
from trainkit.core.spaces import StructuredHybrid
from trainkit.envs import Envs
from trainkit.envs.envs_config import EnvSpec
from trainkit.envs.kinds import Gymnasium, kind_of
from trainkit.policy import A2CPolicy, Noise, PPOPolicy, ReinforcePolicy
from trainkit.policy.on_policy import OnpolicyPolicy
from trainkit.presets.base import (
    ATARI_ENVS,
    EnvPreset,
    EnvSettings,
    P,
    by_name,
    memory_options,
    network_options,
    noise,
    table_of,
    training_collector,
)
from trainkit.trainer import OnpolicyTrainer


class AdvantageSettings(TypedDict, total=False):
    """Settings of advantages and of the losses that they weight, as far as an algorithm has them.

    Args:
        lam: lambda of generalized advantage estimation, of PPO and A2C.
        clip_ratio: how far an update may move the probability ratio from 1, of PPO.
        clip_value: largest change of the value by an update, of PPO; None is unlimited.
        target_kl: stop learning from a rollout at a larger divergence, of PPO.
        value_weight: of the critic's loss, of PPO and A2C.
        entropy_weight: of the entropy bonus, of PPO and A2C.
        normalize_advantage: to mean 0 and standard deviation 1 in each batch.
    """

    lam: Annotated[float, 0.95]
    clip_ratio: Annotated[Scheduled | Linear | None, 0.2]
    clip_value: Annotated[float | None, None]
    target_kl: Annotated[float | None, None]
    value_weight: Annotated[float, 0.5]
    entropy_weight: Annotated[Scheduled | Linear, 0.0]
    normalize_advantage: Annotated[bool, True]


class OnpolicySettings(AdvantageSettings, EnvSettings, total=False):
    """Settings of the policy-gradient presets.

    Args:
        shared: one network for actor and critic up to their heads.
        critic_only: leaves of a Dict observation that the critic sees and the actor does not.
        action_scaling: map actions of a Box from [-1, 1] to the bounds of the space.
        action_bound_method: "clip" actions of a Box at the bounds, or squash them by "tanh".
        log_std: initial logarithm of the standard deviation of Box actions; None is the policy's own.
        exploration: noise of Box actions, such as `ColoredNoise()`, whose beta a number is; None is independent noise.
        sequence_length: rows of an episode that gradients of a memory reach back through.
        step_per_collect: environment steps per rollout, in all environments together.
        episode_per_collect: instead of it, together with step_per_collect=None, whole episodes.
        repeat_per_collect: how often each row of a rollout is learned from.
        batch_size: rows per update; None is the whole rollout.
    """

    shared: Annotated[bool, False]
    critic_only: Annotated[tuple[str, ...], ()]
    action_scaling: Annotated[bool, True]
    action_bound_method: Annotated[Literal["clip", "tanh"], "clip"]
    log_std: Annotated[float | None, None]
    exploration: Annotated[Noise | float | None, None]
    step_per_collect: Annotated[int | None, 2_048]
    episode_per_collect: Annotated[int | None, None]
    repeat_per_collect: Annotated[int, 10]
    batch_size: Annotated[int | None, 64]


# Those of stable-baselines3's PPO, in 8 environments.
_USUAL = OnpolicySettings(
    n_envs=8,
    hidden=(64, 64),
    sequence_length=64,
    gamma=0.99,
    lr=3e-4,
    adam_eps=1e-5,  # Huang et al. (2022), "The 37 implementation details of PPO"; stable-baselines3's too
    max_grad_norm=0.5,
    max_epoch=20,
    step_per_epoch=6_144,
)


def onpolicy_settings(**given: Unpack[OnpolicySettings]) -> OnpolicySettings:
    """Return all settings of a policy-gradient preset."""
    return table_of(OnpolicySettings, _USUAL, given)


_CLASSIC = onpolicy_settings()

# The numbers of Schulman et al. (2017), table 3, with observations and rewards normalized as by stable-baselines3's
# VecNormalize.
_CONTINUOUS = onpolicy_settings(normalize_obs=True, reward="return_scale")

_MUJOCO = _CONTINUOUS | OnpolicySettings(n_envs=1, step_per_epoch=51_200)

# Schulman et al. (2017), table 5, in environment steps of 4 frames, on the environments of `presets.dqn`.
_ATARI = onpolicy_settings(
    n_test_envs=8,
    env_options=ATARI_ENVS,
    hidden=(512,),
    shared=True,
    reward="sign",
    lr=Linear(2.5e-4, 0.0),
    clip_ratio=Linear(0.1, 0.0),
    value_weight=1.0,
    entropy_weight=0.01,
    step_per_collect=1_024,
    repeat_per_collect=3,
    batch_size=256,
    max_epoch=40,
    step_per_epoch=250_000,
)

_GRID = _CLASSIC | OnpolicySettings(hidden=(128,), shared=True)  # after the convolution of Young and Tian (2019)

_TABLES = {"classic": _CLASSIC, "grid": _GRID, "continuous": _CONTINUOUS, "mujoco": _MUJOCO, "atari": _ATARI}

_OF_ACTOR_CRITIC = ("lam", "value_weight", "entropy_weight", "normalize_advantage")
_OF_LEARNER: dict[type[OnpolicyPolicy], tuple[str, ...]] = {
    PPOPolicy: (*_OF_ACTOR_CRITIC, "clip_ratio", "clip_value", "target_kl"),
    A2CPolicy: _OF_ACTOR_CRITIC,
    ReinforcePolicy: ("normalize_advantage",),
}


class OnpolicyPreset(EnvPreset[P, OnpolicySettings, OnpolicyTrainer[OnpolicyPolicy]]):
    """A preset of a policy that learns from rollouts.

    Args:
        learner: the policy's class.
        preset: as in `Preset`.
    """

    kind = OnpolicySettings
    of_box = frozenset(("action_scaling", "action_bound_method", "log_std", "exploration"))

    def _steps_between(self, settings: OnpolicySettings) -> int:
        """Return the steps between rounds of updates; whole episodes count as an epoch, since theirs are not known."""
        if settings["episode_per_collect"] is not None:
            return settings["step_per_epoch"]
        return settings["n_envs"] if settings["step_per_collect"] is None else settings["step_per_collect"]

    def __init__(
        self,
        name: str,
        summary: str,
        settings: Callable[P, OnpolicySettings],
        tables: Mapping[str, OnpolicySettings],
        *,
        learner: type[OnpolicyPolicy],
        parts: Mapping[str, Any] | None = None,
        **domains: Mapping[str, Any],
    ) -> None:
        super().__init__(name, summary, settings, tables, parts=parts, **domains)
        self._learner = learner

    def domain_of(self, spaces: EnvSpaces) -> str:
        has_box = isinstance(spaces.action_space, (gym_spaces.Box, StructuredHybrid))
        return "continuous" if has_box else super().domain_of(spaces)

    def _no_effect(self, name: str, settings: OnpolicySettings) -> str | None:
        is_others = name in _OF_LEARNER[PPOPolicy] and name not in _OF_LEARNER[self._learner]
        if is_others:
            return f"{self._learner.__name__} has no such option"
        return super()._no_effect(name, settings)

    def make_policy(self, envs: Envs, settings: OnpolicySettings) -> OnpolicyPolicy:
        return self._learner.for_envs(
            envs,
            hidden=settings["hidden"],
            shared=settings["shared"],
            critic_only=settings["critic_only"],
            **network_options(settings),
            **memory_options(settings, burn_in=0),
            normalize_obs=settings["normalize_obs"],
            action_scaling=settings["action_scaling"],
            action_bound_method=settings["action_bound_method"],
            log_std=settings["log_std"],
            exploration=noise(settings["exploration"]),
            gamma=settings["gamma"],
            reward=settings["reward"],
            optimizer=settings["optimizer"],
            max_grad_norm=settings["max_grad_norm"],
            device=settings["device"],
            engine=settings["engine"],
            precision=settings["precision"],
            **{name: by_name(settings)[name] for name in _OF_LEARNER[self._learner]},
        )

    def make_trainer(
        self, policy: OnpolicyPolicy, envs: Envs, settings: OnpolicySettings, common: Mapping[str, Any]
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


# A learning rate and an entropy bonus that fall: with the defaults above 7 of 24 runs on FrozenLake-v1 ended with a
# policy that reaches the goal in less than 68 % of the episodes, with these 1 of 20; the optimum is 74 %.
ppo = OnpolicyPreset(
    "ppo",
    "PPO: as far as the clip allows, several times over (Schulman et al., 2017)",
    onpolicy_settings,
    _TABLES,
    learner=PPOPolicy,
    classic={"lr": Linear(1e-3, 0.0), "entropy_weight": Linear(0.05, 0.0)},
)

# From stable-baselines3's A2C, 5 steps in each of 8 environments; Adam in RMSProp's place. With independent noise and a
# quarter of the steps, runs on Pendulum-v1 ended worse than random actions; the noise is that of Hollenstein et al.
# (2024), "Colored noise in PPO".
a2c = OnpolicyPreset(
    "a2c",
    "A2C: one step down the policy gradient per rollout (Mnih et al., 2016, in step)",
    onpolicy_settings,
    _TABLES,
    learner=A2CPolicy,
    parts={
        "lr": Linear(7e-4, 0.0),
        "lam": 1.0,
        "normalize_advantage": False,
        "clip_ratio": None,
        "step_per_collect": 40,
        "repeat_per_collect": 1,
        "batch_size": None,
    },
    continuous={"lr": Linear(1e-3, 0.0), "lam": 0.9, "exploration": 0.5, "step_per_collect": 64, "max_epoch": 80},
    mujoco={"n_envs": 8},
    atari={"value_weight": 0.25},
)

reinforce = OnpolicyPreset(
    "reinforce",
    "REINFORCE: follow the return itself, episode by episode (Williams, 1992)",
    onpolicy_settings,
    _TABLES,
    learner=ReinforcePolicy,
    parts={
        "clip_ratio": None,
        "step_per_collect": None,
        "episode_per_collect": 8,
        "repeat_per_collect": 1,
        "batch_size": None,
    },
    classic={"lr": Linear(5e-3, 0.0)},
)


# ---- with a memory ----


# Behind the last hidden layer of each table.
_RECURRENT_TABLES = {
    domain: table | OnpolicySettings(recurrent="lstm", hidden=table["hidden"][-1:]) for domain, table in _TABLES.items()
}

recurrent_ppo = OnpolicyPreset(
    "recurrent_ppo",
    "PPO with a memory, whose rollouts are divided into sequences (Schulman et al., 2017)",
    onpolicy_settings,
    _RECURRENT_TABLES,
    learner=PPOPolicy,
)


# ---- for games of several agents ----

# Yu et al. (2022), appendix, for the particle environments: 10 passes over a rollout, theirs of 128 games of 25 steps,
# here of 32. Returns are scaled by their standard deviation in place of their value normalization, and the critic's
# loss is squared in place of Huber's. Short games are valued beyond their time limit here, which a critic learns late
# from 10 updates per rollout and a gamma of 0.99, theirs: hence 4 batches per pass, and 0.9.
_COOPERATIVE = onpolicy_settings(
    n_envs=32,
    lr=7e-4,
    entropy_weight=0.01,
    max_grad_norm=10.0,
    reward="return_scale",
    gamma=0.9,
    step_per_collect=2_400,
    repeat_per_collect=10,
    batch_size=600,
    step_per_epoch=48_000,
)
_COOPERATIVE_TABLES = {
    "classic": _COOPERATIVE,
    "grid": _COOPERATIVE | OnpolicySettings(hidden=(128,)),
    "continuous": _COOPERATIVE | OnpolicySettings(normalize_obs=True),
}


class CentralizedCriticPreset(OnpolicyPreset[P]):
    """A preset whose critic sees the state of a game; in environments of one agent it is like any other."""

    def _make_envs(self, env: EnvSpec, count: str, settings: OnpolicySettings, options: Mapping[str, Any]) -> Envs:
        wrappers = [*settings["env_options"].get("wrappers", ()), _with_state]
        seen = settings | OnpolicySettings(env_options={**settings["env_options"], "wrappers": wrappers})
        return super()._make_envs(env, count, seen, options)

    def make_policy(self, envs: Envs, settings: OnpolicySettings) -> OnpolicyPolicy:
        return super().make_policy(envs, settings if envs.agents else settings | OnpolicySettings(critic_only=()))


def _with_state(env: Any) -> Any:
    return env if isinstance(kind_of(env), Gymnasium) else exported("ObserveState")(env)


ippo = OnpolicyPreset(
    "ippo",
    "IPPO: one PPO for all agents of a game, each by its own observation (de Witt et al., 2020)",
    onpolicy_settings,
    _COOPERATIVE_TABLES,
    learner=PPOPolicy,
)

mappo = CentralizedCriticPreset(
    "mappo",
    "MAPPO: IPPO whose critic sees the state of the whole game, too (Yu et al., 2022)",
    onpolicy_settings,
    _COOPERATIVE_TABLES,
    learner=PPOPolicy,
    parts={"critic_only": ("state",)},  # the leaf of `ObserveState`
)
