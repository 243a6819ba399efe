"""Policy-gradient presets: PPO, A2C and REINFORCE, their settings and the table of each."""

from collections.abc import Mapping
from typing import Annotated, Any, Unpack

from trainkit.core.extensions import exported
from trainkit.core.schedules import Linear, Scheduled
from trainkit.engine.optimizers import Adam
from trainkit.envs import Envs
from trainkit.envs.kinds import Gymnasium, kind_of
from trainkit.policy import A2CPolicy, PPOPolicy, ReinforcePolicy
from trainkit.policy.on_policy import OnpolicyPolicy
from trainkit.presets.base import (
    ATARI_ENVS,
    P,
    table_of,
)
from trainkit.presets.rollouts import ActorCriticOptions, OnpolicyPreset, OnpolicySettings


class A2CSettings(OnpolicySettings, total=False):
    """Settings of an actor with a critic.

    Args:
        lam: lambda of generalized advantage estimation.
        value_weight: of the critic's loss.
        entropy_weight: of the entropy bonus.
    """

    lam: Annotated[float, 0.95]
    value_weight: Annotated[float, 0.5]
    entropy_weight: Annotated[Scheduled | Linear, 0.0]


class PPOSettings(A2CSettings, total=False):
    """Settings of PPO.

    Args:
        clip_ratio: how far an update may move the probability ratio from 1; None is unlimited.
        clip_value: largest change of the value by an update; None is unlimited.
        target_kl: stop learning from a rollout at a larger divergence.
    """

    clip_ratio: Annotated[Scheduled | Linear | None, 0.2]
    clip_value: Annotated[float | None, None]
    target_kl: Annotated[float | None, None]


# Those of stable-baselines3's PPO, in 8 environments.
_USUAL: dict[str, Any] = {
    "n_envs": 8,
    "hidden": (64, 64),
    "gamma": 0.99,
    "lr": 3e-4,
    # Huang et al. (2022), "The 37 implementation details of PPO"; stable-baselines3's too
    "optimizer": Adam(eps=1e-5),
    "max_grad_norm": 0.5,
    "max_epoch": 20,
    "step_per_epoch": 6_144,
}


def ppo_settings(**given: Unpack[PPOSettings]) -> PPOSettings:
    """Return all settings of PPO."""
    return table_of(PPOSettings, _USUAL, given)


def a2c_settings(**given: Unpack[A2CSettings]) -> A2CSettings:
    """Return all settings of A2C."""
    return table_of(A2CSettings, _USUAL, given)


def reinforce_settings(**given: Unpack[OnpolicySettings]) -> OnpolicySettings:
    """Return all settings of REINFORCE."""
    return table_of(OnpolicySettings, _USUAL, given)


# The numbers of Schulman et al. (2017), table 3, with observations and rewards normalized as by stable-baselines3's
# VecNormalize.
_CONTINUOUS: dict[str, Any] = {"normalize_obs": True, "reward": "return_scale"}

# Schulman et al. (2017), table 5, in environment steps of 4 frames, on the environments of `presets.dqn`.
_ATARI: dict[str, Any] = {
    "n_test_envs": 8,
    "env_options": ATARI_ENVS,
    "hidden": (512,),
    "network": {"shared": True},
    "reward": "sign",
    "lr": Linear(2.5e-4, 0.0),
    "step_per_collect": 1_024,
    "repeat_per_collect": 3,
    "batch_size": 256,
    "max_epoch": 40,
    "step_per_epoch": 250_000,
}

_DOMAINS: dict[str, dict[str, Any]] = {
    "classic": {},
    "grid": {"hidden": (128,), "network": {"shared": True}},  # after the convolution of Young and Tian (2019)
    "continuous": _CONTINUOUS,
    "mujoco": _CONTINUOUS | {"n_envs": 1, "step_per_epoch": 51_200},
    "atari": _ATARI,
}


class ReinforcePreset(OnpolicyPreset[P, OnpolicySettings]):
    """A preset of `ReinforcePolicy`."""

    learner = ReinforcePolicy


class A2CPreset(OnpolicyPreset[P, A2CSettings]):
    """A preset of `A2CPolicy`."""

    kind = A2CSettings
    learner = A2CPolicy
    options = ("lam", "value_weight", "entropy_weight")


class PPOPreset(OnpolicyPreset[P, PPOSettings]):
    """A preset of `PPOPolicy`."""

    kind = PPOSettings
    learner = PPOPolicy
    options = ("lam", "value_weight", "entropy_weight", "clip_ratio", "clip_value", "target_kl")


_PPO_TABLES = {domain: ppo_settings(**own) for domain, own in _DOMAINS.items()}
_PPO_TABLES["atari"] |= PPOSettings(clip_ratio=Linear(0.1, 0.0), value_weight=1.0, entropy_weight=0.01)
_A2C_TABLES = {domain: a2c_settings(**own) for domain, own in _DOMAINS.items()}
_REINFORCE_TABLES = {domain: reinforce_settings(**own) for domain, own in _DOMAINS.items()}

# A learning rate and an entropy bonus that fall: with the defaults above 7 of 24 runs on FrozenLake-v1 ended with a
# policy that reaches the goal in less than 68 % of the episodes, with these 1 of 20; the optimum is 74 %.
ppo = PPOPreset(
    "ppo",
    "PPO: as far as the clip allows, several times over (Schulman et al., 2017)",
    ppo_settings,
    _PPO_TABLES,
    classic={"lr": Linear(1e-3, 0.0), "entropy_weight": Linear(0.05, 0.0)},
)

# From stable-baselines3's A2C, 5 steps in each of 8 environments; Adam in RMSProp's place. With independent noise and a
# quarter of the steps, runs on Pendulum-v1 ended worse than random actions; the noise is that of Hollenstein et al.
# (2024), "Colored noise in PPO".
a2c = A2CPreset(
    "a2c",
    "A2C: one step down the policy gradient per rollout (Mnih et al., 2016, in step)",
    a2c_settings,
    _A2C_TABLES,
    parts={
        "lr": Linear(7e-4, 0.0),
        "lam": 1.0,
        "normalize_advantage": False,
        "step_per_collect": 40,
        "repeat_per_collect": 1,
        "batch_size": None,
    },
    continuous={"lr": Linear(1e-3, 0.0), "lam": 0.9, "exploration": 0.5, "step_per_collect": 64, "max_epoch": 80},
    mujoco={"n_envs": 8},
    atari={"value_weight": 0.25, "entropy_weight": 0.01},
)

reinforce = ReinforcePreset(
    "reinforce",
    "REINFORCE: follow the return itself, episode by episode (Williams, 1992)",
    reinforce_settings,
    _REINFORCE_TABLES,
    parts={
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
    domain: table | PPOSettings(recurrent="lstm", hidden=table["hidden"][-1:]) for domain, table in _PPO_TABLES.items()
}

recurrent_ppo = PPOPreset(
    "recurrent_ppo",
    "PPO with a memory, whose rollouts are divided into sequences (Schulman et al., 2017)",
    ppo_settings,
    _RECURRENT_TABLES,
    extension="memory",
)


# ---- for games of several agents ----

# Yu et al. (2022), appendix, for the particle environments: 10 passes over a rollout, theirs of 128 games of 25 steps,
# here of 32. Returns are scaled by their standard deviation in place of their value normalization, and the critic's
# loss is squared in place of Huber's. Short games are valued beyond their time limit here, which a critic learns late
# from 10 updates per rollout and a gamma of 0.99, theirs: hence 4 batches per pass, and 0.9.
_COOPERATIVE = ppo_settings(
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
    "grid": _COOPERATIVE | PPOSettings(hidden=(128,)),
    "continuous": _COOPERATIVE | PPOSettings(normalize_obs=True),
}


class CentralizedCriticPreset(PPOPreset[P]):
    """A preset whose critic sees the state of a game; in environments of one agent it is like any other."""

    def wrapped(self, env_options: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**env_options, "wrappers": [*env_options.get("wrappers", ()), _with_state]}

    def make_policy(self, envs: Envs, settings: PPOSettings) -> OnpolicyPolicy:
        alone: ActorCriticOptions = {**settings["network"], "critic_only": ()}
        return super().make_policy(envs, settings if envs.agents else settings | PPOSettings(network=alone))


def _with_state(env: Any) -> Any:
    return env if isinstance(kind_of(env), Gymnasium) else exported("ObserveState")(env)


ippo = PPOPreset(
    "ippo",
    "IPPO: one PPO for all agents of a game, each by its own observation (de Witt et al., 2020)",
    ppo_settings,
    _COOPERATIVE_TABLES,
    extension="games",
)

mappo = CentralizedCriticPreset(
    "mappo",
    "MAPPO: IPPO whose critic sees the state of the whole game, too (Yu et al., 2022)",
    ppo_settings,
    _COOPERATIVE_TABLES,
    extension="games",
    parts={"network": {"critic_only": ("state",)}},  # the leaf of `ObserveState`
)
