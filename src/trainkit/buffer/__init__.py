"""Replay buffers: rows on their way from the collector to the learner, in numpy."""

from trainkit.buffer.from_config import buffer_from_config
from trainkit.buffer.mixed import MixedBuffer
from trainkit.buffer.prioritized import PrioritizedReplayBuffer
from trainkit.buffer.replay import ReplayBuffer
from trainkit.buffer.rollout import RolloutBuffer
from trainkit.buffer.segment_tree import MinTree, SumTree

__all__ = [
    "MinTree",
    "MixedBuffer",
    "PrioritizedReplayBuffer",
    "ReplayBuffer",
    "RolloutBuffer",
    "SumTree",
    "buffer_from_config",
]
