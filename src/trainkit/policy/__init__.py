"""Policies: torch modules that act and learn."""

from trainkit.core.data import ActOutput
from trainkit.core.extensions import attach
from trainkit.policy.advantages import discounted_returns, gae
from trainkit.policy.backups import (
    Backup,
    ConservativePenalty,
    DoubleBackup,
    MaxBackup,
    MunchausenBackup,
    Penalty,
    VDNBackup,
)
from trainkit.policy.base import Policy
from trainkit.policy.baselines import RandomPolicy, ScriptedPolicy
from trainkit.policy.dqn import DQNPolicy
from trainkit.policy.exploration import EpsilonGreedy, Exploration, EZGreedy, Greedy, SoftQ
from trainkit.policy.noise import ColoredNoise, Noise
from trainkit.policy.persistence import load_policy
from trainkit.policy.ppo import A2CPolicy, PPOPolicy, ReinforcePolicy
from trainkit.policy.sac import SACPolicy
from trainkit.policy.target import Target
from trainkit.policy.update_result import UpdateResult
from trainkit.policy.values import (
    CategoricalValue,
    ExpectedValue,
    HLGaussValue,
    ImplicitQuantileValue,
    QuantileValue,
    Value,
)

__all__ = [
    "A2CPolicy",
    "ActOutput",
    "Backup",
    "CategoricalValue",
    "ColoredNoise",
    "ConservativePenalty",
    "DQNPolicy",
    "DoubleBackup",
    "EZGreedy",
    "EpsilonGreedy",
    "ExpectedValue",
    "Exploration",
    "Greedy",
    "HLGaussValue",
    "ImplicitQuantileValue",
    "MaxBackup",
    "MunchausenBackup",
    "Noise",
    "PPOPolicy",
    "Penalty",
    "Policy",
    "QuantileValue",
    "RandomPolicy",
    "ReinforcePolicy",
    "SACPolicy",
    "ScriptedPolicy",
    "SoftQ",
    "Target",
    "UpdateResult",
    "VDNBackup",
    "Value",
    "discounted_returns",
    "gae",
    "load_policy",
]

__dir__, __getattr__ = attach(__name__, __all__)
