"""Replay: rows on their way from the collector to the learner, in numpy."""

from trainkit.buffer.replay import PrioritizedReplayBuffer, ReplayBuffer
from trainkit.buffer.rollout import RolloutBuffer
from trainkit.buffer.segment_tree import MinTree, SumTree

__all__ = ["MinTree", "PrioritizedReplayBuffer", "ReplayBuffer", "RolloutBuffer", "SumTree"]
