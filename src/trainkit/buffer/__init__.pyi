"""Replay buffers and rollouts: transitions on their way from the collector to the learner, in numpy."""
# Written by `python -m tests.stubs`

from trainkit.buffer.prioritized import PrioritizedReplayBuffer, buffer_from_config
from trainkit.buffer.replay import ReplayBuffer
from trainkit.buffer.rollout import RolloutBuffer
from trainkit.buffer.samplers import UniformSampler
from trainkit.buffer.segment_tree import MinTree, SumTree
from trainkit.core.data import Horizon, ReturnScale, Rollout, Transition, TransitionBatch
from trainkit.core.protocols import Buffer, Dataset, RoundBuffer
from trainkit.extensions.games.lockstep import LockstepReplayBuffer
from trainkit.extensions.games.multi_agent_buffer import MultiAgentBuffer
from trainkit.extensions.memory.sequences import SequenceBatch, Sequences, sample_sequences
from trainkit.extensions.offline.mixed import MixedBuffer

__all__ = [
    "Buffer",
    "Dataset",
    "Horizon",
    "LockstepReplayBuffer",
    "MinTree",
    "MixedBuffer",
    "MultiAgentBuffer",
    "PrioritizedReplayBuffer",
    "ReplayBuffer",
    "ReturnScale",
    "Rollout",
    "RolloutBuffer",
    "RoundBuffer",
    "SequenceBatch",
    "Sequences",
    "SumTree",
    "Transition",
    "TransitionBatch",
    "UniformSampler",
    "buffer_from_config",
    "sample_sequences",
]
