"""Environments on a device, tensors in and out: a collector of tensors, and an environment of arrays made of one."""

NAMES = {
    "simulators.CartPole": "classic_control:CartPole",
    "simulators.Pendulum": "classic_control:Pendulum",
    "simulators.Simulator": "simulator:Simulator",
    "simulators.SimulatorVectorEnv": "vector_env:SimulatorVectorEnv",
    "simulators.TensorCollector": "tensor_collector:TensorCollector",
    "simulators.TensorEnvs": "tensor_envs:TensorEnvs",
    "simulators.TensorRolloutBuffer": "tensor_rollout_buffer:TensorRolloutBuffer",
    "simulators.check_simulator": "check_simulator:check_simulator",
}
ENV_SPECS = {"simulators": "vector_env:as_vector_env"}
