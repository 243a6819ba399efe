"""The presets of the on-policy learners, and their tables."""

from collections.abc import Mapping
from typing import Any, Literal, Unpack

from gymnasium import spaces

from trainkit.buffer import RolloutBuffer
from trainkit.collector import Collector
from trainkit.core.protocols import EnvSpaces
from trainkit.core.schedules import Linear, Scheduled
from trainkit.core.signatures import checked
from trainkit.core.structured_actions import StructuredHybrid
from trainkit.envs import Envs
from trainkit.envs.make import EnvSpec
from trainkit.policy import A2CPolicy, PPOPolicy, ReinforcePolicy
from trainkit.policy.on_policy import OnpolicyPolicy
from trainkit.presets.atari import ATARI_ENVS
from trainkit.presets.base import Preset, Settings, Switches, given
from trainkit.presets.preset_config import PresetConfig
from trainkit.trainer import OnpolicyTrainer
from trainkit.trainer.options import TrainerOptions


class OnpolicySettings(Settings, total=False):
    """What a preset of an on-policy learner may override, beside the options of every trainer."""

    shared: bool
    action_scaling: bool  # of Box actions: to the bounds of the space
    action_bound_method: Literal["clip", "tanh"]  # of Box actions
    log_std: float | None  # of Box actions
    lam: float
    clip_ratio: Scheduled | Linear | None  # of PPO
    clip_value: float | None  # of PPO
    target_kl: float | None  # of PPO
    value_weight: float  # of PPO and A2C
    entropy_weight: Scheduled | Linear  # of PPO and A2C
    normalize_advantage: bool
    step_per_collect: int | None
    episode_per_collect: int | None
    repeat_per_collect: int
    batch_size: int | None


class OnpolicyOverrides(OnpolicySettings, Switches, TrainerOptions, total=False):
    """All overrides of an on-policy learner's preset."""


class OnpolicyPreset(Preset):
    """An on-policy learner's table of settings; called with an environment, it returns a trainer."""

    known = OnpolicySettings

    def __init__(self, name: str, summary: str, learner: type[OnpolicyPolicy], tables: Any, **more: Any) -> None:
        super().__init__(name, summary, tables, **more)
        self._learner = learner

    @checked
    def __call__(
        self, env: EnvSpec, *, seed: int | None = None, **overrides: Unpack[OnpolicyOverrides]
    ) -> OnpolicyTrainer[OnpolicyPolicy]:
        """Return a trainer.

        Args:
            env: an id, a factory, or a gymnasium vector environment (then evaluation makes its own from its id). Ids
                "ALE/..." and observations that are images take the "atari" table, Gymnasium's ids of MuJoCo "mujoco",
                other actions with a Box "continuous".
            seed: of everything.
            overrides: of `settings()`, a switch of the policy, or options of `OnpolicyTrainer`.
        """
        trainer: OnpolicyTrainer[OnpolicyPolicy] = self._compose(env, seed, overrides)
        return trainer

    def config(
        self, env: EnvSpec, *, seed: int | None = None, **overrides: Unpack[OnpolicyOverrides]
    ) -> PresetConfig[OnpolicyTrainer[OnpolicyPolicy]]:
        """Return the arguments as a frozen object, from which to build."""
        return PresetConfig(preset=self, env=env, seed=seed, options=dict(overrides))

    def _domain(self, envs: EnvSpaces) -> str:
        domain = super()._domain(envs)
        has_box = isinstance(envs.action_space, (spaces.Box, StructuredHybrid))
        return "continuous" if domain == "classic" and has_box else domain

    def _why_idle(self, name: str, chosen: Mapping[str, Any]) -> str | None:
        is_others = any(name in own for own in _OF.values()) and name not in _OF[self._learner]
        return f"{self._learner.__name__} has none" if is_others else None

    def _policy(self, envs: Envs, chosen: Mapping[str, Any]) -> OnpolicyPolicy:
        own = {name: chosen[name] for name in _OF[self._learner]} | given(Switches, chosen)
        layers = ("hidden", "shared", "action_scaling", "action_bound_method", "log_std", "normalize_obs")
        names = (*layers, "gamma", "reward", "lr", "adam_eps", "max_grad_norm", "device")
        return self._learner.for_envs(envs, **{name: chosen[name] for name in names}, **own)

    def _trainer(
        self, policy: OnpolicyPolicy, envs: Envs, chosen: Mapping[str, Any], common: Mapping[str, Any]
    ) -> OnpolicyTrainer[OnpolicyPolicy]:
        names = ("max_epoch", "step_per_epoch", "step_per_collect", "episode_per_collect", "repeat_per_collect")
        rates = {name: chosen[name] for name in (*names, "batch_size")}
        return OnpolicyTrainer(policy, Collector(policy, envs, RolloutBuffer()), **rates, **common)


_OF: dict[type[OnpolicyPolicy], tuple[str, ...]] = {
    PPOPolicy: (
        *("lam", "clip_ratio", "clip_value", "target_kl"),
        *("value_weight", "entropy_weight", "normalize_advantage"),
    ),
    A2CPolicy: ("lam", "value_weight", "entropy_weight", "normalize_advantage"),
    ReinforcePolicy: ("normalize_advantage",),
}

# PPO's of rl-zoo for CartPole-v1.
_CLASSIC = OnpolicySettings(
    n_envs=8,
    test_env=None,  # the same again
    n_test_envs=10,
    env_options={},
    lives_key=None,
    hidden=(64, 64),
    shared=False,
    action_scaling=True,
    action_bound_method="clip",
    log_std=None,
    normalize_obs=False,
    gamma=0.98,
    reward=None,
    lr=Linear(1e-3, 0.0),
    adam_eps=1e-5,  # Huang et al. (2022), "The 37 implementation details of PPO"; stable-baselines3's too
    max_grad_norm=0.5,
    lam=0.8,
    clip_ratio=Linear(0.2, 0.0),
    clip_value=None,
    target_kl=None,
    value_weight=0.5,
    entropy_weight=0.0,
    normalize_advantage=True,
    step_per_collect=256,
    episode_per_collect=None,
    repeat_per_collect=20,
    batch_size=256,
    max_epoch=20,
    step_per_epoch=5_000,
    stop_return=None,
    device="auto",
)

# PPO's of rl-zoo for Pendulum-v1, but for its 4 environments.
_CONTINUOUS = OnpolicySettings(
    **{
        **_CLASSIC,
        "gamma": 0.9,
        "lr": 1e-3,
        "lam": 0.95,
        "clip_ratio": 0.2,
        "step_per_collect": 4_096,
        "repeat_per_collect": 10,
        "batch_size": 64,
        "max_epoch": 10,
        "step_per_epoch": 20_480,
    }
)

# stable-baselines3's PPO, whose numbers are those of Schulman et al. (2017), table 3, with its VecNormalize.
_MUJOCO = OnpolicySettings(
    **{
        **_CLASSIC,
        "n_envs": 1,
        "normalize_obs": True,
        "gamma": 0.99,
        "reward": "return_scale",
        "lr": 3e-4,
        "lam": 0.95,
        "clip_ratio": 0.2,
        "step_per_collect": 2_048,
        "repeat_per_collect": 10,
        "batch_size": 64,
        "max_epoch": 20,
        "step_per_epoch": 51_200,
    }
)

# Schulman et al. (2017), table 5, in environment steps of 4 frames, on the environments of `presets.dqn`.
_ATARI = OnpolicySettings(
    **{
        **_CLASSIC,
        "n_test_envs": 8,
        "env_options": ATARI_ENVS,
        "hidden": (512,),
        "shared": True,
        "gamma": 0.99,
        "reward": "sign",
        "lr": Linear(2.5e-4, 0.0),
        "lam": 0.95,
        "clip_ratio": Linear(0.1, 0.0),
        "value_weight": 1.0,
        "entropy_weight": 0.01,
        "step_per_collect": 1_024,
        "repeat_per_collect": 3,
        "batch_size": 256,
        "max_epoch": 40,
        "step_per_epoch": 250_000,
    }
)

_TABLES = {"classic": _CLASSIC, "continuous": _CONTINUOUS, "mujoco": _MUJOCO, "atari": _ATARI}

ppo = OnpolicyPreset(
    "ppo",
    "PPO: as far as the clip allows, several times over (Schulman et al., 2017)",
    PPOPolicy,
    _TABLES,
)

# From stable-baselines3's A2C; Adam in RMSProp's place.
a2c = OnpolicyPreset(
    "a2c",
    "A2C: one step down the policy gradient per rollout (Mnih et al., 2016, in step)",
    A2CPolicy,
    _TABLES,
    parts={
        "clip_ratio": None,
        "repeat_per_collect": 1,
        "batch_size": None,
        "normalize_advantage": False,
        "lam": 1.0,
        "gamma": 0.99,
    },
    classic={"lr": Linear(1e-3, 0.0), "step_per_collect": 64},
    continuous={"gamma": 0.9, "lam": 0.9, "step_per_collect": 64},
    mujoco={"n_envs": 8, "step_per_collect": 64},
    atari={"lr": Linear(7e-4, 0.0), "value_weight": 0.25, "step_per_collect": 40},
)

reinforce = OnpolicyPreset(
    "reinforce",
    "REINFORCE: follow the return itself, episode by episode (Williams, 1992)",
    ReinforcePolicy,
    _TABLES,
    parts={
        "clip_ratio": None,
        "step_per_collect": None,
        "episode_per_collect": 8,
        "repeat_per_collect": 1,
        "batch_size": None,
    },
    classic={"lr": Linear(5e-3, 0.0), "gamma": 0.99},
)
