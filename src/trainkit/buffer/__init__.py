"""Replay buffers and rollouts: transitions on their way from the collector to the learner, in numpy."""

from trainkit.core.extensions import attach

__dir__, __getattr__ = attach(
    __name__,
    {
        "buffer.prioritized": "PrioritizedReplayBuffer buffer_from_config",
        "buffer.replay": "ReplayBuffer",
        "buffer.rollout": "RolloutBuffer",
        "buffer.samplers": "UniformSampler",
        "buffer.segment_tree": "MinTree SumTree",
        "core.data": "Horizon ReturnScale Rollout Transition TransitionBatch",
        "core.protocols": "Buffer Dataset RoundBuffer",
    },
)
