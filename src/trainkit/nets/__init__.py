"""Networks: torch modules from raw observations to action values, distributions and states' values."""

from trainkit.nets.action_scale import ActionScale
from trainkit.nets.actor_critic import ActorCriticNetwork
from trainkit.nets.critics import ActorNetwork, CriticNetwork
from trainkit.nets.implicit import ImplicitQNetwork
from trainkit.nets.networks import MLP, NatureCNN, Prediction, QNetwork
from trainkit.nets.noisy import NoisyLinear
from trainkit.nets.preprocess import Preprocess
from trainkit.nets.squashed import SquashedGaussian

__all__ = [
    "ActionScale",
    "ActorCriticNetwork",
    "ActorNetwork",
    "CriticNetwork",
    "ImplicitQNetwork",
    "MLP",
    "NatureCNN",
    "NoisyLinear",
    "Prediction",
    "Preprocess",
    "QNetwork",
    "SquashedGaussian",
]
