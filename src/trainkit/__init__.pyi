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
from trainkit.buffer.prioritized import PrioritizedReplayBuffer
from trainkit.buffer.replay import ReplayBuffer
from trainkit.buffer.rollout import RolloutBuffer
from trainkit.collector.collector import Collector
from trainkit.core.data import Horizon, Transition, TransitionBatch
from trainkit.core.errors import ConfigError, SpaceMismatchError, TrainkitError
from trainkit.core.schedules import Linear
from trainkit.core.stats import CollectStats, scalars
from trainkit.engine.gradient_step import Clip
from trainkit.engine.optimizers import Adam, TorchOptimizer
from trainkit.envs.env_checker import check_env
from trainkit.envs.envs import Envs
from trainkit.envs.make import make_envs
from trainkit.extensions.background.background import BackgroundEvaluation
from trainkit.extensions.export.export import export
from trainkit.extensions.games.multi_agent_buffer import MultiAgentBuffer
from trainkit.extensions.games.multi_agent_policy import MultiAgentPolicy
from trainkit.extensions.games.vdn import VDNBackup
from trainkit.extensions.many_runs.many_runs import run
from trainkit.extensions.memory.sequences import Sequences
from trainkit.extensions.offline.bc import BCPolicy
from trainkit.extensions.offline.bcq import DiscreteBCQPolicy
from trainkit.extensions.offline.loading import load_dataset
from trainkit.extensions.offline.mixed import MixedBuffer
from trainkit.extensions.parameter_noise.parameter_noise import ParameterNoise
from trainkit.loggers.logger import JsonlLogger
from trainkit.policy.actor_critic import ActorCriticPolicy, SACPolicy
from trainkit.policy.backups import ConservativePenalty, DoubleBackup, MaxBackup, MunchausenBackup
from trainkit.policy.base import Policy
from trainkit.policy.baselines import RandomPolicy
from trainkit.policy.dqn import DQNPolicy
from trainkit.policy.exploration import EpsilonGreedy, EZGreedy, Greedy, SoftQ
from trainkit.policy.noise import ColoredNoise
from trainkit.policy.persistence import load_policy
from trainkit.policy.ppo import A2CPolicy, PPOPolicy, ReinforcePolicy
from trainkit.policy.target import Target
from trainkit.policy.values import CategoricalValue, ExpectedValue, HLGaussValue, ImplicitQuantileValue, QuantileValue
from trainkit.trainer.base import Trainer
from trainkit.trainer.callbacks.base import Callback, on
from trainkit.trainer.callbacks.checkpointing import Checkpoint
from trainkit.trainer.evaluation import Evaluation, evaluate
from trainkit.trainer.offline import OfflineTrainer
from trainkit.trainer.offpolicy import OffpolicyTrainer
from trainkit.trainer.onpolicy import OnpolicyTrainer
from trainkit.trainer.paired_comparison import compare

__version__: str

__all__ = [
    "A2CPolicy",
    "ActorCriticPolicy",
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
