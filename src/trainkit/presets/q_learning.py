"""Q-learning presets, DQN to Rainbow: their settings, and the table of each algorithm.

`_CLASSIC` is DQN on vectors, `_GRID` on small grids such as MinAtar's, and `_ATARI` on images; what they leave open is
in `_USUAL`. A preset adds `parts`, the algorithm, and what else differs in a domain: on images as in the paper.
Settings for one environment are in the zoo.
"""

import copy
from typing import Annotated, Any, Unpack

from typing_extensions import TypedDict

from trainkit.core.errors import ConfigError
from trainkit.core.schedules import Linear, Scheduled
from trainkit.envs import Envs
from trainkit.policy import (
    DoubleBackup,
    DQNPolicy,
    EpsilonGreedy,
    EZGreedy,
    Greedy,
    MaxBackup,
    MunchausenBackup,
    SoftQ,
)
from trainkit.policy.acting_copy import ActOn
from trainkit.policy.backups import Backup
from trainkit.policy.exploration import Exploration
from trainkit.presets.base import (
    ACTION_VALUE_NEEDS,
    ATARI_ENVS,
    ActionValueSettings,
    P,
    Preset,
    by_name,
    make_target,
    make_value,
    memory_options,
    network_options,
    scheduled,
    table_of,
)
from trainkit.presets.off_policy import REPLAY_NEEDS, OffpolicyPreset, OffpolicySettings


class ExplorationSettings(TypedDict, total=False):
    """Settings of how a Q-learner explores.

    Args:
        epsilon: probability of a random action; None explores without.
        repeat: exponent mu of the durations of repeated random actions, as in `EZGreedy`; None repeats none.
        max_repeat: the longest of these, in steps.
        temperature: of softmax exploration, instead of epsilon.
        exploration: another one, such as `EZGreedy(0.1, max_repeat=50)`, instead of epsilon.
    """

    epsilon: Annotated[Scheduled | Linear | None, Linear(1.0, 0.02, share=0.15)]
    repeat: Annotated[float | None, None]
    max_repeat: Annotated[int, 100]
    temperature: Annotated[Scheduled | Linear | None, None]
    exploration: Annotated[Exploration | None, None]


class QSettings(ActionValueSettings, ExplorationSettings, OffpolicySettings, total=False):
    """Settings of the Q-learning presets.

    Args:
        noisy: explore by noise in the weights.
        sigma0: initial scale of that noise.
        double: select the next action by the online network.
        munchausen: add the scaled log-probability of the action to the reward.
        entropy_temperature: of munchausen.
        act_on: where the acting network is: with the "policy", or a copy on the "cpu".
    """

    noisy: Annotated[bool, False]
    sigma0: Annotated[float, 0.5]
    double: Annotated[bool, False]
    munchausen: Annotated[bool, False]
    entropy_temperature: Annotated[float, 0.03]
    act_on: Annotated[ActOn, "policy"]


# What most of rl-zoo's DQN settings have in common (batch, network, capacity, lr, target), at half of their updates per
# step. Layer normalization keeps values from oscillating (Gallici et al., 2025, "Simplifying deep temporal difference
# learning"), and the learning rate falls to 0 over the run, so that what was learned stays.
_USUAL = QSettings(
    n_envs=8,
    hidden=(256, 256),
    norm="layer",
    gamma=0.99,
    lr=Linear(6.3e-4, 0.0),
    adam_eps=1.5e-4,  # Hessel et al. (2018)
    max_grad_norm=10.0,
    target_every=500,  # 250 updates
    capacity=100_000,
    batch_size=128,
    step_per_collect=8,
    update_per_step=0.5,
    learning_starts=1_000,
    max_epoch=20,
    step_per_epoch=5_000,
)


def q_settings(**given: Unpack[QSettings]) -> QSettings:
    """Return all settings of a Q-learner."""
    return table_of(QSettings, _USUAL, given)


# Mnih et al. (2015) as Dopamine runs it (Castro et al., 2018), in environment steps of 4 frames: Adam in RMSProp's
# place. 8 environments are stepped together, with as many updates per step.
_ATARI = q_settings(
    n_test_envs=8,
    env_options=ATARI_ENVS,
    hidden=(),
    norm=None,
    head=(512,),
    v_min=-10.0,  # Bellemare et al. (2017)
    v_max=10.0,
    loss="huber",
    reward="sign",
    lr=6.25e-5,
    epsilon=((0, 1.0), (250_000, 0.01)),  # Mnih et al.: to 0.1 over 1,000,000
    target_every=8_000,  # Mnih et al.: 10,000 updates
    capacity=1_000_000,
    batch_size=32,
    update_per_step=0.25,
    learning_starts=20_000,  # Mnih et al.: 50,000
    max_epoch=200,
    step_per_epoch=250_000,
)

# In rounds, as rl-zoo's CartPole: 256 steps, then 128 updates that fit one target. With 4 updates after each vector
# step CartPole's values kept oscillating, at `target_every` 128, 500 and 2,000.
# n = 3 and no repeated random actions: DQN returns 263 on LunarLander-v3; with n = 1, a capacity of 100,000 and repeats
# 31; with n = 3, repeats and a last epsilon of 0.005 -36 (one seed). Rewards of n steps are not corrected for the
# policy that earned them: on FrozenLake-v1 those of all 100,000 steps, and of repeated random actions, kept a policy
# that reaches 19 to 60 % of the goals; the last 10,000 did not, 74 %.
_CLASSIC = q_settings(step_per_collect=256, target_every=256, n_step=3, capacity=10_000)

_GRID = q_settings(hidden=(128,), norm=None, repeat=1.25)  # after the convolution; Young and Tian (2019)

_TABLES = {"classic": _CLASSIC, "grid": _GRID, "atari": _ATARI}


class QPreset(OffpolicyPreset[P, QSettings, DQNPolicy]):
    """A preset of `DQNPolicy`, whose parts the settings name."""

    kind = QSettings
    needs = (
        ACTION_VALUE_NEEDS
        | REPLAY_NEEDS
        | {"sigma0": ("noisy", (True,)), "entropy_temperature": ("munchausen", (True,))}
    )

    def make_policy(self, envs: Envs, settings: QSettings) -> DQNPolicy:
        return DQNPolicy.for_envs(
            envs,
            hidden=settings["hidden"],
            head=settings["head"],
            dueling=settings["dueling"],
            noisy=settings["noisy"],
            sigma0=settings["sigma0"],
            **network_options(settings),
            **memory_options(settings, settings["burn_in"], stored_state=settings["stored_state"]),
            normalize_obs=settings["normalize_obs"],
            value=make_value(self, settings),
            backup=self._backup(settings),
            exploration=make_exploration(self, settings),
            n_step=settings["n_step"],
            gamma=settings["gamma"],
            reward=settings["reward"],
            optimizer=settings["optimizer"],
            max_grad_norm=settings["max_grad_norm"],
            target=make_target(settings),
            device=settings["device"],
            engine=settings["engine"],
            precision=settings["precision"],
            act_on=settings["act_on"],
        )

    def _backup(self, settings: QSettings) -> Backup:
        if settings["double"] and settings["munchausen"]:
            raise ConfigError(f"{self} was given both double and munchausen, which define the next value: give one")
        if settings["munchausen"]:
            return MunchausenBackup(settings["entropy_temperature"])
        return DoubleBackup() if settings["double"] else MaxBackup()

    def _no_effect(self, name: str, settings: QSettings) -> str | None:
        is_way = name in ("epsilon", "repeat", "max_repeat", "temperature") and by_name(settings)[name] is not None
        if is_way and settings["exploration"] is not None:
            return "exploration is given"
        if name in ("repeat", "max_repeat") and settings["epsilon"] is None:
            return "epsilon is None, and only its random actions are repeated"
        if name == "max_repeat" and settings["repeat"] is None:
            return "repeat is None"
        return super()._no_effect(name, settings)


def make_exploration(preset: Preset[..., Any, Any], settings: ExplorationSettings) -> Exploration:
    """Make the exploration that the settings name, or copy a given one, whose state is of one policy."""
    epsilon, temperature = settings["epsilon"], settings["temperature"]
    if settings["exploration"] is not None:
        return copy.deepcopy(settings["exploration"])
    if temperature is not None and epsilon is not None:
        raise ConfigError(f"{preset} was given both epsilon and temperature, two ways to explore: set one to None")
    if temperature is not None:
        return SoftQ(scheduled(temperature))
    if epsilon is None:
        return Greedy()
    how = scheduled(epsilon)
    if settings["repeat"] is None:
        return EpsilonGreedy(how)
    return EZGreedy(how, mu=settings["repeat"], max_repeat=settings["max_repeat"])


dqn = QPreset(
    "dqn",
    "DQN: a replay buffer and a target network (Mnih et al., 2015)",
    q_settings,
    _TABLES,
)

double_dqn = QPreset(
    "double_dqn",
    "Double DQN: the online network selects, the target network evaluates (van Hasselt et al., 2016)",
    q_settings,
    _TABLES,
    parts={"double": True},
)

dueling_dqn = QPreset(
    "dueling_dqn",
    "Dueling double DQN: a value and advantages (Wang et al., 2016)",
    q_settings,
    _TABLES,
    parts={"double": True, "dueling": True},
    classic={"hidden": (256,), "head": (256,)},
    grid={"hidden": (), "head": (128,)},
)

prioritized_dqn = QPreset(
    "prioritized_dqn",
    "Double DQN with proportional prioritized replay (Schaul et al., 2016)",
    q_settings,
    _TABLES,
    parts={"double": True, "prioritized": True, "alpha": 0.6, "beta": Linear(0.4, 1.0)},
)

noisy_dqn = QPreset(
    "noisy_dqn",
    "NoisyNet-DQN: noise in the weights explores (Fortunato et al., 2018)",
    q_settings,
    _TABLES,
    parts={"noisy": True, "epsilon": None, "warmup": "random"},  # else a first guess may never meet another action
    classic={"hidden": (256,), "head": (256,), "sigma0": 0.1},  # paper: 0.5
    grid={"hidden": (), "head": (128,), "sigma0": 0.1},
)

c51 = QPreset(
    "c51",
    "C51: a distribution over 51 fixed returns (Bellemare et al., 2017)",
    q_settings,
    _TABLES,
    parts={"value": "categorical", "atoms": 51},
    atari={"lr": 2.5e-4, "adam_eps": 0.01 / 32},
)

qrdqn = QPreset(
    "qrdqn",
    "QR-DQN: quantiles of the return at fixed fractions (Dabney et al., 2018)",
    q_settings,
    _TABLES,
    parts={"value": "quantile"},
    classic={"quantiles": 21},  # paper: 200, 1
    atari={"lr": 5e-5, "adam_eps": 0.01 / 32},
)

iqn = QPreset(
    "iqn",
    "IQN: quantiles of the return at drawn fractions (Dabney et al., 2018)",
    q_settings,
    _TABLES,
    parts={"value": "implicit"},
    classic={"quantiles": 8},  # paper: 64
    atari={"lr": 5e-5, "adam_eps": 0.01 / 32},
)

munchausen_dqn = QPreset(
    "munchausen_dqn",
    "Munchausen DQN: a soft policy, rewarded for being sure (Vieillard et al., 2020)",
    q_settings,
    _TABLES,
    parts={"munchausen": True, "entropy_temperature": 0.03, "loss": "mse"},
    atari={"lr": 5e-5, "adam_eps": 0.01 / 32},
)

# Hessel et al. (2018): all six parts, with their alpha 0.5, beta 0.4 -> 1, 51 atoms and n = 3. On vectors
# sigma0 matters most: at their 0.5 no seed tried on CartPole-v1 reached 475. There epsilon explores, too
# (in Dopamine's Rainbow instead of it): by noise alone a first policy that reaches the goal of FrozenLake-v1 was the
# last on 3 of 5 seeds.
rainbow = QPreset(
    "rainbow",
    "Rainbow: double, dueling, noisy, categorical, 3-step, prioritized (Hessel et al., 2018)",
    q_settings,
    _TABLES,
    parts={
        "double": True,
        "dueling": True,
        "noisy": True,
        "epsilon": None,
        "value": "categorical",
        "atoms": 51,
        "n_step": 3,
        "prioritized": True,
        "alpha": 0.5,
        "beta": Linear(0.4, 1.0),
    },
    classic={
        "hidden": (256,),
        "head": (256,),
        "sigma0": 0.1,
        "epsilon": Linear(1.0, 0.02, share=0.15),
        "update_per_step": 0.25,
        "warmup": "random",
    },
    grid={"hidden": (), "head": (128,), "sigma0": 0.1, "warmup": "random"},
)


# ---- with a memory ----


_RECURRENT = q_settings(
    recurrent="lstm",
    hidden=(64,),
    norm=None,
    lr=1e-3,
    batch_size=32,
    update_per_step=0.125,
)
_RECURRENT_TABLES = {
    "classic": _RECURRENT,
    "grid": _RECURRENT | QSettings(hidden=(128,)),
    # The sequences and the network of R2D2.
    "atari": _ATARI | QSettings(recurrent="lstm", hidden=(512,), sequence_length=80, burn_in=40),
}

drqn = QPreset(
    "drqn",
    "DRQN: double DQN with a memory, on uniform sequences from zero states (Hausknecht and Stone, 2015)",
    q_settings,
    _RECURRENT_TABLES,
    parts={"double": True, "stored_state": False},
)

# Kapturowski et al. (2019): their priorities, n = 5, rescaling, and on images sequences of 80 rows after 40 of burn-in.
# In the place of their 256 actors there is one, with the epsilon of the other presets.
r2d2 = QPreset(
    "r2d2",
    "R2D2: a memory, sequences with burn-in and stored states (Kapturowski et al., 2019)",
    q_settings,
    _RECURRENT_TABLES,
    parts={
        "double": True,
        "dueling": True,
        "n_step": 5,
        "rescale": 1e-3,
        "prioritized": True,
        "alpha": 0.9,
        "beta": 0.6,
    },
    atari={"gamma": 0.997, "reward": None, "lr": 1e-4, "adam_eps": 1e-3, "max_grad_norm": 40.0, "target_every": 80_000},
)
