"""trainkit: reinforcement learning trainers that are iterators, in one process, on PyTorch."""
# Written by `python -m tests.stubs`

from trainkit import (
    buffer,
    callbacks,
    collector,
    datasets,
    engine,
    envs,
    errors,
    loggers,
    nets,
    plot,
    policy,
    presets,
    schedules,
    simulators,
    testing,
    trainer,
    zoo,
)
from trainkit.buffer import Horizon, PrioritizedReplayBuffer, ReplayBuffer, RolloutBuffer, Transition, TransitionBatch
from trainkit.callbacks import Callback, Checkpoint, on
from trainkit.collector import Collector
from trainkit.engine import Adam, Clip, TorchOptimizer
from trainkit.envs import Envs, check_env, make_envs
from trainkit.errors import ConfigError, SpaceMismatchError, TrainkitError
from trainkit.extensions.background.background import BackgroundEvaluation
from trainkit.extensions.export.export import export
from trainkit.extensions.games.multi_agent_buffer import MultiAgentBuffer
from trainkit.extensions.games.multi_agent_policy import MultiAgentPolicy
from trainkit.extensions.many_runs.many_runs import run
from trainkit.extensions.memory.sequences import Sequences
from trainkit.extensions.offline.bc import BCPolicy
from trainkit.extensions.offline.bcq import DiscreteBCQPolicy
from trainkit.extensions.offline.loading import load_dataset
from trainkit.extensions.offline.mixed import MixedBuffer
from trainkit.extensions.parameter_noise.parameter_noise import ParameterNoise
from trainkit.loggers import JsonlLogger
from trainkit.policy import (
    A2CPolicy,
    CategoricalValue,
    ColoredNoise,
    ConservativePenalty,
    DoubleBackup,
    DQNPolicy,
    EpsilonGreedy,
    ExpectedValue,
    EZGreedy,
    Greedy,
    HLGaussValue,
    ImplicitQuantileValue,
    MaxBackup,
    MunchausenBackup,
    Policy,
    PPOPolicy,
    QuantileValue,
    RandomPolicy,
    ReinforcePolicy,
    SACPolicy,
    SoftQ,
    Target,
    VDNBackup,
    load_policy,
)
from trainkit.schedules import Linear
from trainkit.trainer import (
    CollectStats,
    Evaluation,
    OfflineTrainer,
    OffpolicyTrainer,
    OnpolicyTrainer,
    Trainer,
    compare,
    evaluate,
    scalars,
)

__version__: str

__all__ = [
    "A2CPolicy",
    "Adam",
    "BCPolicy",
    "BackgroundEvaluation",
    "Callback",
    "CategoricalValue",
    "Checkpoint",
    "Clip",
    "CollectStats",
    "Collector",
    "ColoredNoise",
    "ConfigError",
    "ConservativePenalty",
    "DQNPolicy",
    "DiscreteBCQPolicy",
    "DoubleBackup",
    "EZGreedy",
    "Envs",
    "EpsilonGreedy",
    "Evaluation",
    "ExpectedValue",
    "Greedy",
    "HLGaussValue",
    "Horizon",
    "ImplicitQuantileValue",
    "JsonlLogger",
    "Linear",
    "MaxBackup",
    "MixedBuffer",
    "MultiAgentBuffer",
    "MultiAgentPolicy",
    "MunchausenBackup",
    "OfflineTrainer",
    "OffpolicyTrainer",
    "OnpolicyTrainer",
    "PPOPolicy",
    "ParameterNoise",
    "Policy",
    "PrioritizedReplayBuffer",
    "QuantileValue",
    "RandomPolicy",
    "ReinforcePolicy",
    "ReplayBuffer",
    "RolloutBuffer",
    "SACPolicy",
    "Sequences",
    "SoftQ",
    "SpaceMismatchError",
    "Target",
    "TorchOptimizer",
    "Trainer",
    "TrainkitError",
    "Transition",
    "TransitionBatch",
    "VDNBackup",
    "buffer",
    "callbacks",
    "check_env",
    "collector",
    "compare",
    "datasets",
    "engine",
    "envs",
    "errors",
    "evaluate",
    "export",
    "load_dataset",
    "load_policy",
    "loggers",
    "make_envs",
    "nets",
    "on",
    "plot",
    "policy",
    "presets",
    "run",
    "scalars",
    "schedules",
    "simulators",
    "testing",
    "trainer",
    "zoo",
]
