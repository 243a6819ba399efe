"""Networks: torch modules from raw observations to action values, distributions and states' values."""

from trainkit.nets.action_scale import ActionScale
from trainkit.nets.actor_critic import ActorCriticNetwork, ActorNetwork, CriticNetwork
from trainkit.nets.distributions import Distribution, SquashedGaussian
from trainkit.nets.networks import MLP, ImplicitQNetwork, NatureCNN, Prediction, QNetwork
from trainkit.nets.noisy import NoisyLinear
from trainkit.nets.preprocess import Preprocess

__all__ = [
    "ActionScale",
    "ActorCriticNetwork",
    "ActorNetwork",
    "CriticNetwork",
    "Distribution",
    "ImplicitQNetwork",
    "MLP",
    "NatureCNN",
    "NoisyLinear",
    "Prediction",
    "Preprocess",
    "QNetwork",
    "SquashedGaussian",
]
