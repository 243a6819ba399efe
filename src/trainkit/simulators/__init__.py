"""Simulators: environments that stay on a device, tensors in and out; how they are collected from and checked."""

from trainkit.core.protocols import Simulator
from trainkit.policy.advantages import TensorRollout
from trainkit.simulators.check_simulator import check_simulator
from trainkit.simulators.classic_control import CartPole, Pendulum
from trainkit.simulators.tensor_collector import TensorCollector
from trainkit.simulators.tensor_envs import TensorEnvs
from trainkit.simulators.tensor_rollout_buffer import TensorRolloutBuffer
from trainkit.simulators.vector_env import SimulatorVectorEnv

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
