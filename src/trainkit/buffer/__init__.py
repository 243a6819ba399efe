"""Replay buffers and rollouts: transitions on their way from the collector to the learner, in numpy."""

from trainkit.buffer.prioritized import PrioritizedReplayBuffer, buffer_from_config
from trainkit.buffer.replay import ReplayBuffer
from trainkit.buffer.rollout import RolloutBuffer
from trainkit.buffer.segment_tree import MinTree, SumTree
from trainkit.core.data import Horizon, ReturnScale, Rollout, Transition, TransitionBatch
from trainkit.core.extensions import attach
from trainkit.core.protocols import Buffer, Dataset, RoundBuffer

__all__ = [
    "Buffer",
    "Dataset",
    "Horizon",
    "MinTree",
    "PrioritizedReplayBuffer",
    "ReplayBuffer",
    "ReturnScale",
    "Rollout",
    "RolloutBuffer",
    "RoundBuffer",
    "SumTree",
    "Transition",
    "TransitionBatch",
    "buffer_from_config",
]

__dir__, __getattr__ = attach(__name__, __all__)
