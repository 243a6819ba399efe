"""Networks: torch modules from raw observations to action values, distributions and states' values."""

from trainkit.core.extensions import attach

__dir__, __getattr__ = attach(
    __name__,
    {
        "nets.action_scale": "ActionScale",
        "nets.actor_critic_networks": "ActorCriticNetwork ActorNetwork CriticNetwork",
        "nets.distributions": "Distribution SquashedGaussian",
        "nets.encoders": "ImpalaCNN MinAtarCNN NatureCNN SmallCNN encoder_names register_encoder",
        "nets.layers": "MLP activation_names",
        "nets.networks": "ImplicitQNetwork Prediction QNetwork",
        "nets.noisy": "NoisyLinear",
        "nets.preprocess": "Preprocess",
    },
)
