"""Policies: torch modules that act and learn."""
# Written by `python -m tests.stubs`

from trainkit.core.data import ActOutput
from trainkit.extensions.actor_critic.batch_norm import BatchNormNetworks, JointPass
from trainkit.extensions.actor_critic.critic_reductions import (
    FirstCritic,
    MeanOfCritics,
    MinOfSubset,
    TruncatedQuantiles,
)
from trainkit.extensions.actor_critic.deterministic import Deterministic
from trainkit.extensions.actor_critic.dropout import DropoutNetworks
from trainkit.extensions.actor_critic.ornstein_uhlenbeck import OrnsteinUhlenbeckNoise
from trainkit.extensions.export.export import export
from trainkit.extensions.games.game_behavior import GameEpisode
from trainkit.extensions.games.multi_agent_policy import MultiAgentPolicy
from trainkit.extensions.games.vdn import VDNBackup
from trainkit.extensions.offline.bc import BCPolicy
from trainkit.extensions.offline.bcq import DiscreteBCQPolicy
from trainkit.extensions.parameter_noise.parameter_noise import ParameterNoise
from trainkit.policy.actor_critic import ActorCriticPolicy, SACPolicy
from trainkit.policy.advantages import discounted_returns, gae
from trainkit.policy.backups import Backup, ConservativePenalty, DoubleBackup, MaxBackup, MunchausenBackup, Penalty
from trainkit.policy.base import Policy
from trainkit.policy.baselines import RandomPolicy, ScriptedPolicy
from trainkit.policy.critics import CriticInputs, CriticPass, CriticReduction, MinOfCritics, SeparatePasses
from trainkit.policy.dqn import DQNPolicy
from trainkit.policy.exploration import EpsilonGreedy, Exploration, EZGreedy, Greedy, SoftQ
from trainkit.policy.noise import ColoredNoise, Noise
from trainkit.policy.persistence import load_policy
from trainkit.policy.ppo import A2CPolicy, PPOPolicy, ReinforcePolicy
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
    "ActorCriticPolicy",
    "BCPolicy",
    "Backup",
    "BatchNormNetworks",
    "CategoricalValue",
    "ColoredNoise",
    "ConservativePenalty",
    "CriticInputs",
    "CriticPass",
    "CriticReduction",
    "DQNPolicy",
    "Deterministic",
    "DiscreteBCQPolicy",
    "DoubleBackup",
    "DropoutNetworks",
    "EZGreedy",
    "EpsilonGreedy",
    "ExpectedValue",
    "Exploration",
    "FirstCritic",
    "GameEpisode",
    "Greedy",
    "HLGaussValue",
    "ImplicitQuantileValue",
    "JointPass",
    "MaxBackup",
    "MeanOfCritics",
    "MinOfCritics",
    "MinOfSubset",
    "MultiAgentPolicy",
    "MunchausenBackup",
    "Noise",
    "OrnsteinUhlenbeckNoise",
    "PPOPolicy",
    "ParameterNoise",
    "Penalty",
    "Policy",
    "QuantileValue",
    "RandomPolicy",
    "ReinforcePolicy",
    "SACPolicy",
    "ScriptedPolicy",
    "SeparatePasses",
    "SoftQ",
    "Target",
    "TruncatedQuantiles",
    "UpdateResult",
    "VDNBackup",
    "Value",
    "discounted_returns",
    "export",
    "gae",
    "load_policy",
]
