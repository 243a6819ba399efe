"""Calls of simulators that work, for the table of all public calls."""

from pathlib import Path

import trainkit as tk
from tests.faults.makers import CPU, Call

NOT_CALLED = {"TensorEnvs", "TensorRolloutBuffer"}  # made by collectors and trainers


def calls(folder: Path) -> dict[str, Call]:
    simulator = tk.simulators.CartPole(2)
    policy = tk.PPOPolicy.for_envs(simulator, hidden=(4,), **CPU)
    return {
        "CartPole": Call(tk.simulators.CartPole, {"n": 2}),
        "Pendulum": Call(tk.simulators.Pendulum, {"n": 2}),
        "SimulatorVectorEnv": Call(tk.simulators.SimulatorVectorEnv, {"simulator": tk.simulators.CartPole(2)}),
        "TensorCollector": Call(tk.simulators.TensorCollector, {"policy": policy, "simulator": simulator}),
        "check_simulator": Call(tk.simulators.check_simulator, {"simulator": tk.simulators.Pendulum(2), "n_steps": 3}),
    }
