"""Policies: torch modules that act and learn."""

from trainkit.engine.gradient_step import Adam, Clip, GradientStep
from trainkit.policy.action_scale import ActionScale
from trainkit.policy.actor_critic import ActorCriticNetwork
from trainkit.policy.advantages import discounted_returns, gae
from trainkit.policy.backups import Backup, DoubleBackup, MaxBackup, MunchausenBackup
from trainkit.policy.base import Policy
from trainkit.policy.bc import BCPolicy
from trainkit.policy.bcq import DiscreteBCQPolicy
from trainkit.policy.critics import ActorNetwork, CriticNetwork
from trainkit.policy.device import TensorBatch
from trainkit.policy.dqn import DQNPolicy
from trainkit.policy.exploration import EpsilonGreedy, Exploration, Greedy, SoftQ
from trainkit.policy.hl_gauss import HLGaussValue
from trainkit.policy.implicit import ImplicitQNetwork
from trainkit.policy.loading import load_policy
from trainkit.policy.meter import UpdateResult
from trainkit.policy.networks import MLP, NatureCNN, Prediction, QNetwork
from trainkit.policy.noisy import NoisyLinear
from trainkit.policy.penalties import ConservativePenalty, Penalty
from trainkit.policy.ppo import A2CPolicy, PPOPolicy, ReinforcePolicy
from trainkit.policy.preprocess import Preprocess
from trainkit.policy.quantiles import ImplicitQuantileValue, QuantileValue
from trainkit.policy.random import RandomPolicy
from trainkit.policy.resident import DeviceFrames
from trainkit.policy.sac import SACPolicy
from trainkit.policy.squashed import SquashedGaussian
from trainkit.policy.target import Target
from trainkit.policy.values import CategoricalValue, ExpectedValue, Value

__all__ = [
    "A2CPolicy",
    "ActionScale",
    "ActorCriticNetwork",
    "ActorNetwork",
    "Adam",
    "BCPolicy",
    "Backup",
    "CategoricalValue",
    "Clip",
    "CriticNetwork",
    "ConservativePenalty",
    "DQNPolicy",
    "DeviceFrames",
    "DiscreteBCQPolicy",
    "DoubleBackup",
    "EpsilonGreedy",
    "ExpectedValue",
    "Exploration",
    "GradientStep",
    "Greedy",
    "HLGaussValue",
    "ImplicitQNetwork",
    "ImplicitQuantileValue",
    "MLP",
    "MaxBackup",
    "MunchausenBackup",
    "NatureCNN",
    "NoisyLinear",
    "PPOPolicy",
    "Penalty",
    "Policy",
    "Prediction",
    "Preprocess",
    "QNetwork",
    "QuantileValue",
    "RandomPolicy",
    "ReinforcePolicy",
    "SACPolicy",
    "SoftQ",
    "SquashedGaussian",
    "Target",
    "TensorBatch",
    "UpdateResult",
    "Value",
    "discounted_returns",
    "gae",
    "load_policy",
]
