"""trainkit: reinforcement learning trainers that are iterators, in one process, on PyTorch.

The names of everyday use are here; the others in the namespaces `tk.nets`, `tk.envs`, `tk.datasets`, `tk.schedules`,
`tk.simulators`, `tk.callbacks`, `tk.errors`, `tk.engine`, `tk.loggers`, `tk.testing`, `tk.policy`, `tk.buffer`,
`tk.collector`, `tk.trainer` and `tk.zoo`.
"""

from trainkit.core.extensions import attach
from trainkit.core.names import class_hint

__version__ = "0.2.0"

_NAMESPACES = (
    "buffer callbacks collector datasets engine envs errors loggers nets plot policy presets schedules simulators "
    "testing trainer zoo"
)


def _hint(name: str) -> str:
    """Return where a name is, or the nearest ones, for an error."""
    inside = {own: f"{space}.{own}" for space in _NAMESPACES.split() for own in __getattr__(space).__all__}
    return class_hint(name, {**inside, **{own: own for own in __dir__()}})


__dir__, __getattr__ = attach(
    __name__,
    {
        "buffer.prioritized": "PrioritizedReplayBuffer",
        "buffer.replay": "ReplayBuffer",
        "buffer.rollout": "RolloutBuffer",
        "collector.collector": "Collector",
        "core.data": "Horizon Transition TransitionBatch",
        "core.errors": "ConfigError SpaceMismatchError TrainkitError",
        "core.schedules": "Linear",
        "core.stats": "CollectStats scalars",
        "engine.gradient_step": "Clip",
        "engine.optimizers": "Adam TorchOptimizer",
        "envs.env_checker": "check_env",
        "envs.envs": "Envs",
        "envs.make": "make_envs",
        "loggers.logger": "JsonlLogger",
        "policy.actor_critic": "ActorCriticPolicy SACPolicy",
        "policy.backups": "ConservativePenalty DoubleBackup MaxBackup MunchausenBackup",
        "policy.base": "Policy",
        "policy.baselines": "RandomPolicy",
        "policy.dqn": "DQNPolicy",
        "policy.exploration": "EpsilonGreedy EZGreedy Greedy SoftQ",
        "policy.noise": "ColoredNoise",
        "policy.persistence": "load_policy",
        "policy.ppo": "A2CPolicy PPOPolicy ReinforcePolicy",
        "policy.target": "Target",
        "policy.values": "CategoricalValue ExpectedValue HLGaussValue ImplicitQuantileValue QuantileValue",
        "trainer.base": "Trainer",
        "trainer.callbacks.base": "Callback on",
        "trainer.callbacks.checkpointing": "Checkpoint",
        "trainer.evaluation": "Evaluation evaluate",
        "trainer.offline": "OfflineTrainer",
        "trainer.offpolicy": "OffpolicyTrainer",
        "trainer.onpolicy": "OnpolicyTrainer",
        "trainer.paired_comparison": "compare",
    },
    modules=_NAMESPACES,
    hint=_hint,
)
