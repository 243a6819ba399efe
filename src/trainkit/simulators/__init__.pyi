"""Simulators: environments that stay on a device, tensors in and out; how they are collected from and checked."""
# Written by `python -m tests.stubs`

from trainkit.extensions.simulators.check_simulator import check_simulator
from trainkit.extensions.simulators.classic_control import CartPole, Pendulum
from trainkit.extensions.simulators.simulator import Simulator
from trainkit.extensions.simulators.tensor_collector import TensorCollector
from trainkit.extensions.simulators.tensor_envs import TensorEnvs
from trainkit.extensions.simulators.tensor_rollout_buffer import TensorRolloutBuffer
from trainkit.extensions.simulators.vector_env import SimulatorVectorEnv
from trainkit.policy.advantages import TensorRollout

__all__ = [
    "CartPole",
    "Pendulum",
    "Simulator",
    "SimulatorVectorEnv",
    "TensorCollector",
    "TensorEnvs",
    "TensorRollout",
    "TensorRolloutBuffer",
    "check_simulator",
]
