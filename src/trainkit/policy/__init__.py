"""Policies: torch modules that act and learn."""

from trainkit.policy.backups import Backup, DoubleBackup, MaxBackup, TensorBatch
from trainkit.policy.base import Policy, UpdateResult
from trainkit.policy.dqn import DQNPolicy
from trainkit.policy.exploration import EpsilonGreedy, Exploration, Greedy
from trainkit.policy.gradient_step import Adam, Clip, GradientStep
from trainkit.policy.networks import MLP, NatureCNN, Prediction, QNetwork
from trainkit.policy.noisy import NoisyLinear
from trainkit.policy.preprocess import Preprocess
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
    "MLP",
    "MaxBackup",
    "NatureCNN",
    "NoisyLinear",
    "Policy",
    "Prediction",
    "Preprocess",
    "QNetwork",
    "RandomPolicy",
    "Target",
    "TensorBatch",
    "UpdateResult",
    "Value",
]
