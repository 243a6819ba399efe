"""Networks: torch modules from raw observations to action values, distributions and states' values."""

from trainkit.nets.action_scale import ActionScale
from trainkit.nets.actor_critic import ActorCriticNetwork, ActorNetwork, CriticNetwork
from trainkit.nets.distributions import Distribution, SquashedGaussian
from trainkit.nets.encoders import ImpalaCNN, MinAtarCNN, NatureCNN, SmallCNN, encoder_names, register_encoder
from trainkit.nets.layers import MLP, activation_names
from trainkit.nets.networks import ImplicitQNetwork, Prediction, QNetwork
from trainkit.nets.noisy import NoisyLinear
from trainkit.nets.preprocess import Preprocess
from trainkit.nets.recurrent import GRU, LSTM, CausalTransformer, Memory

__all__ = [
    "GRU",
    "LSTM",
    "ActionScale",
    "ActorCriticNetwork",
    "ActorNetwork",
    "CausalTransformer",
    "CriticNetwork",
    "Distribution",
    "ImpalaCNN",
    "ImplicitQNetwork",
    "MLP",
    "Memory",
    "MinAtarCNN",
    "NatureCNN",
    "NoisyLinear",
    "Prediction",
    "Preprocess",
    "QNetwork",
    "SmallCNN",
    "SquashedGaussian",
    "activation_names",
    "encoder_names",
    "register_encoder",
]
