"""Policies: torch modules that act and learn."""

from trainkit.policy.backups import Backup, DoubleBackup, MaxBackup, MunchausenBackup
from trainkit.policy.base import Policy
from trainkit.policy.device import TensorBatch
from trainkit.policy.dqn import DQNPolicy
from trainkit.policy.exploration import EpsilonGreedy, Exploration, Greedy, SoftQ
from trainkit.policy.gradient_step import Adam, Clip, GradientStep
from trainkit.policy.implicit import ImplicitQNetwork
from trainkit.policy.meter import UpdateResult
from trainkit.policy.networks import MLP, NatureCNN, Prediction, QNetwork
from trainkit.policy.noisy import NoisyLinear
from trainkit.policy.preprocess import Preprocess
from trainkit.policy.quantiles import ImplicitQuantileValue, QuantileValue
from trainkit.policy.random import RandomPolicy
from trainkit.policy.target import Target
from trainkit.policy.values import CategoricalValue, ExpectedValue, Value

__all__ = [
    "Adam",
    "Backup",
    "CategoricalValue",
    "Clip",
    "DQNPolicy",
    "DoubleBackup",
    "EpsilonGreedy",
    "ExpectedValue",
    "Exploration",
    "GradientStep",
    "Greedy",
    "ImplicitQNetwork",
    "ImplicitQuantileValue",
    "MLP",
    "MaxBackup",
    "MunchausenBackup",
    "NatureCNN",
    "NoisyLinear",
    "Policy",
    "Prediction",
    "Preprocess",
    "QNetwork",
    "QuantileValue",
    "RandomPolicy",
    "SoftQ",
    "Target",
    "TensorBatch",
    "UpdateResult",
    "Value",
]
