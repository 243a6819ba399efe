"""Networks: torch modules from raw observations to action values, distributions and states' values."""
# Written by `python -m tests.stubs`

from trainkit.extensions.memory.memories import GRU, LSTM, CausalTransformer, Memory
from trainkit.nets.action_scale import ActionScale
from trainkit.nets.actor_critic_networks import ActorCriticNetwork, ActorNetwork, CriticNetwork
from trainkit.nets.distributions import Distribution, SquashedGaussian
from trainkit.nets.encoders import ImpalaCNN, MinAtarCNN, NatureCNN, SmallCNN, encoder_names, register_encoder
from trainkit.nets.layers import MLP, activation_names
from trainkit.nets.networks import ImplicitQNetwork, Prediction, QNetwork
from trainkit.nets.noisy import NoisyLinear
from trainkit.nets.preprocess import Preprocess

__all__ = [
    "ActionScale",
    "ActorCriticNetwork",
    "ActorNetwork",
    "CausalTransformer",
    "CriticNetwork",
    "Distribution",
    "GRU",
    "ImpalaCNN",
    "ImplicitQNetwork",
    "LSTM",
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
