"""Q-learning presets, DQN to Rainbow: their settings, and the table of each algorithm.

`_CLASSIC` is DQN on vectors, `_GRID` on small grids such as MinAtar's, and `_ATARI` on images; what they leave open is
in `_USUAL`. A preset adds `parts`, the algorithm, and what else differs in a domain: on images as in the paper.
Settings for one environment are in the zoo.
"""

import copy
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Unpack

from typing_extensions import TypedDict

from trainkit.core.config import Part, arguments_of, with_arguments
from trainkit.core.errors import Checks
from trainkit.core.extensions import exported
from trainkit.core.schedules import Linear, Scheduled
from trainkit.engine.optimizers import Adam
from trainkit.envs import Envs
from trainkit.policy import (
    CategoricalValue,
    ConservativePenalty,
    DoubleBackup,
    DQNPolicy,
    EpsilonGreedy,
    ExpectedValue,
    EZGreedy,
    Greedy,
    ImplicitQuantileValue,
    MunchausenBackup,
    QuantileValue,
    SoftQ,
)
from trainkit.policy.acting_copy import ActOn
from trainkit.policy.exploration import Exploration
from trainkit.presets.base import (
    ACTION_VALUE_WORDS,
    ATARI_ENVS,
    P,
    QLearningSettings,
    action_value_options,
    memory_options,
    policy_options,
    q_options,
    scheduled,
    table_of,
)
from trainkit.presets.off_policy import BUFFER_WORDS, SEQUENCES, OffpolicyPreset, OffpolicySettings


class ExplorationSettings(TypedDict, total=False):
    """Settings of how a Q-learner explores.

    Args:
        epsilon: probability of a random action, also of a table's `exploration` that has one; None explores without.
        exploration: another way, such as `SoftQ(1.0)` or `EZGreedy(Linear(1.0, 0.02), mu=1.25)`, in place of epsilon.
    """

    epsilon: Annotated[Scheduled | Linear | None, Linear(1.0, 0.02, share=0.15)]
    exploration: Annotated[Exploration | None, None]


class QSettings(QLearningSettings, ExplorationSettings, OffpolicySettings, total=False):
    """Settings of the Q-learning presets.

    Args:
        store_action_prob: store the probability of each action, for off-policy evaluation.
        act_on: where the acting network is: with the "policy", or a copy on the "cpu".
    """

    store_action_prob: Annotated[bool, False]
    act_on: Annotated[ActOn, "policy"]


# What most of rl-zoo's DQN settings have in common (batch, network, capacity, lr, target), at half of their updates per
# step. Layer normalization keeps values from oscillating (Gallici et al., 2025, "Simplifying deep temporal difference
# learning"), and the learning rate falls to 0 over the run, so that what was learned stays.
_USUAL = QSettings(
    n_envs=8,
    hidden=(256, 256),
    network={"norm": "layer"},
    gamma=0.99,
    lr=Linear(6.3e-4, 0.0),
    optimizer=Adam(eps=1.5e-4),  # Hessel et al. (2018)
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
    network={"head": (512,)},
    value=ExpectedValue("huber"),
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

_GRID = q_settings(
    hidden=(128,),  # after the convolution; Young and Tian (2019)
    network={},
    epsilon=None,
    exploration=EZGreedy(Linear(1.0, 0.02, share=0.15), mu=1.25, max_repeat=100),
)

_TABLES = {"classic": _CLASSIC, "grid": _GRID, "atari": _ATARI}


class QPreset(OffpolicyPreset[P, QSettings, DQNPolicy]):
    """A preset of `DQNPolicy`, whose parts are its settings."""

    kind = QSettings
    learner = DQNPolicy
    words: ClassVar[Mapping[str, Mapping[str, Any]]] = {**ACTION_VALUE_WORDS, "buffer": BUFFER_WORDS}

    def make_policy(self, envs: Envs, settings: QSettings) -> DQNPolicy:
        return (settings["policy_class"] or self.learner).for_envs(
            envs,
            **policy_options(settings),
            **action_value_options(settings),
            **q_options(settings),
            **memory_options(settings, *SEQUENCES),
            exploration=_exploration(settings),
            n_step=settings["n_step"],
            store_action_prob=settings["store_action_prob"],
            act_on=settings["act_on"],
        )

    def _part_classes(self) -> dict[str, list[Any]]:
        more: dict[str, list[Any]] = {"exploration": [EpsilonGreedy, EZGreedy, SoftQ], "penalty": [ConservativePenalty]}
        return {**super()._part_classes(), **more}

    def _replacing(self, settings: QSettings, given: Mapping[str, Any]) -> dict[str, Any]:
        options = super()._replacing(settings, given)
        epsilon, exploration, current = given.get("epsilon"), given.get("exploration"), settings["exploration"]
        with Checks(repr(self)) as checks:
            is_single = epsilon is None or exploration is None
            checks.require(is_single, ".epsilon has no effect: exploration is given, give one")
        if exploration is not None:
            return {"epsilon": None, **options}
        if "epsilon" not in given or "exploration" in given:
            return options
        if epsilon is None or not isinstance(current, Part) or "epsilon" not in arguments_of(current):
            return {**options, "exploration": None}
        return {**options, "epsilon": None, "exploration": with_arguments(current, {"epsilon": epsilon})}


def _exploration(settings: ExplorationSettings) -> Exploration:
    """Return the exploration of a run, a copy of a given one, whose state is of one policy."""
    epsilon, exploration = settings["epsilon"], settings["exploration"]
    if exploration is not None:
        return copy.deepcopy(exploration)
    return Greedy() if epsilon is None else EpsilonGreedy(scheduled(epsilon))


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
    parts={"backup": DoubleBackup()},
)

dueling_dqn = QPreset(
    "dueling_dqn",
    "Dueling double DQN: a value and advantages (Wang et al., 2016)",
    q_settings,
    _TABLES,
    parts={"backup": DoubleBackup(), "network": {"dueling": True}},
    classic={"hidden": (256,), "network": {"head": (256,)}},
    grid={"hidden": (), "network": {"head": (128,)}},
)

prioritized_dqn = QPreset(
    "prioritized_dqn",
    "Double DQN with proportional prioritized replay (Schaul et al., 2016)",
    q_settings,
    _TABLES,
    parts={"backup": DoubleBackup(), "buffer": "prioritized"},
)

noisy_dqn = QPreset(
    "noisy_dqn",
    "NoisyNet-DQN: noise in the weights explores (Fortunato et al., 2018)",
    q_settings,
    _TABLES,
    # Without random actions at first, a first guess may never meet another action.
    parts={"network": {"noisy": 0.5}, "epsilon": None, "warmup": "random"},
    classic={"hidden": (256,), "network": {"head": (256,), "noisy": 0.1}},  # paper: 0.5
    grid={"hidden": (), "network": {"head": (128,), "noisy": 0.1}},
)

c51 = QPreset(
    "c51",
    "C51: a distribution over 51 fixed returns (Bellemare et al., 2017)",
    q_settings,
    _TABLES,
    parts={"value": CategoricalValue(51)},
    atari={"value": CategoricalValue(51, -10.0, 10.0), "lr": 2.5e-4, "optimizer": Adam(eps=0.01 / 32)},
)

qrdqn = QPreset(
    "qrdqn",
    "QR-DQN: quantiles of the return at fixed fractions (Dabney et al., 2018)",
    q_settings,
    _TABLES,
    parts={"value": QuantileValue(200)},
    classic={"value": QuantileValue(21)},
    atari={"lr": 5e-5, "optimizer": Adam(eps=0.01 / 32)},
)

iqn = QPreset(
    "iqn",
    "IQN: quantiles of the return at drawn fractions (Dabney et al., 2018)",
    q_settings,
    _TABLES,
    parts={"value": ImplicitQuantileValue(64, target_quantiles=64)},
    classic={"value": ImplicitQuantileValue(8, target_quantiles=8)},
    atari={"lr": 5e-5, "optimizer": Adam(eps=0.01 / 32)},
)

munchausen_dqn = QPreset(
    "munchausen_dqn",
    "Munchausen DQN: a soft policy, rewarded for being sure (Vieillard et al., 2020)",
    q_settings,
    _TABLES,
    parts={"backup": MunchausenBackup(0.03), "value": ExpectedValue("mse")},
    atari={"lr": 5e-5, "optimizer": Adam(eps=0.01 / 32)},
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
        "backup": DoubleBackup(),
        "network": {"dueling": True, "noisy": 0.5},
        "epsilon": None,
        "value": CategoricalValue(51),
        "n_step": 3,
        "buffer": {"type": "PrioritizedReplayBuffer", "alpha": 0.5, "beta": Linear(0.4, 1.0)},
    },
    classic={
        "hidden": (256,),
        "network": {"head": (256,), "noisy": 0.1},
        "epsilon": Linear(1.0, 0.02, share=0.15),
        "update_per_step": 0.25,
        "warmup": "random",
    },
    grid={"hidden": (), "network": {"head": (128,), "noisy": 0.1}, "warmup": "random"},
    atari={"value": CategoricalValue(51, -10.0, 10.0)},  # Bellemare et al. (2017)
)


# ---- with a memory ----


def _sequences(*options: Any) -> Any:
    """Return what a memory learns from; None where there is no memory, and so no preset with one."""
    kind = exported("Sequences")
    return None if kind is None else kind(*options)


_RECURRENT = q_settings(
    recurrent="lstm",
    hidden=(64,),
    network={},
    lr=1e-3,
    batch_size=32,
    update_per_step=0.125,
)
_RECURRENT_TABLES = {
    "classic": _RECURRENT,
    "grid": _RECURRENT | QSettings(hidden=(128,)),
    # The sequences and the network of R2D2.
    "atari": _ATARI | QSettings(recurrent="lstm", hidden=(512,), sequences=_sequences(80, 40)),
}

drqn = QPreset(
    "drqn",
    "DRQN: double DQN with a memory, on uniform sequences from zero states (Hausknecht and Stone, 2015)",
    q_settings,
    _RECURRENT_TABLES,
    extension="memory",
    parts={"backup": DoubleBackup(), "sequences": _sequences(20, 10, False)},
    atari={"sequences": _sequences(80, 40, False)},
)

# Kapturowski et al. (2019): their priorities, n = 5, rescaling, and on images sequences of 80 rows after 40 of burn-in.
# In the place of their 256 actors there is one, with the epsilon of the other presets.
r2d2 = QPreset(
    "r2d2",
    "R2D2: a memory, sequences with burn-in and stored states (Kapturowski et al., 2019)",
    q_settings,
    _RECURRENT_TABLES,
    extension="memory",
    parts={
        "backup": DoubleBackup(),
        "network": {"dueling": True},
        "n_step": 5,
        "value": ExpectedValue("mse", rescale=1e-3),
        "buffer": {"type": "PrioritizedReplayBuffer", "alpha": 0.9, "beta": 0.6},
    },
    atari={
        "value": ExpectedValue("huber", rescale=1e-3),
        "gamma": 0.997,
        "reward": None,
        "lr": 1e-4,
        "optimizer": Adam(eps=1e-3),
        "max_grad_norm": 40.0,
        "target_every": 80_000,
    },
)
