"""Policies: torch modules that act and learn."""

from trainkit.core.extensions import attach

__dir__, __getattr__ = attach(
    __name__,
    {
        "core.data": "ActOutput",
        "policy.actor_critic": "ActorCriticPolicy SACPolicy",
        "policy.advantages": "discounted_returns gae",
        "policy.backups": "Backup ConservativePenalty DoubleBackup MaxBackup MunchausenBackup Penalty",
        "policy.base": "Policy",
        "policy.baselines": "RandomPolicy ScriptedPolicy",
        "policy.critics": "CriticInputs CriticPass CriticReduction MinOfCritics SeparatePasses",
        "policy.dqn": "DQNPolicy",
        "policy.exploration": "EpsilonGreedy Exploration EZGreedy Greedy SoftQ",
        "policy.noise": "ColoredNoise Noise",
        "policy.persistence": "load_policy",
        "policy.ppo": "A2CPolicy PPOPolicy ReinforcePolicy",
        "policy.target": "Target",
        "policy.update_result": "UpdateResult",
        "policy.values": "CategoricalValue ExpectedValue HLGaussValue ImplicitQuantileValue QuantileValue Value",
    },
)
