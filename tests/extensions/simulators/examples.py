"""Examples of simulators: calls that work, and runs in which options matter, for tests of all public names."""

from pathlib import Path
from typing import Any

import trainkit as tk
from tests.faults.makers import CPU, Call
from tests.outside.constructors import Build, Run

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


def simulated(build: Build) -> Any:
    simulator = build(2)
    collector = tk.simulators.TensorCollector(
        tk.PPOPolicy.for_envs(tk.simulators.TensorEnvs(simulator), seed=1, device="cpu"), simulator, seed=1
    )
    return [collector.collect(n_step=64).episode_lengths for _ in range(10)]


def collector_of_tensors(build: Build) -> Any:
    simulator = tk.simulators.CartPole(2)
    policy = tk.PPOPolicy.for_envs(tk.simulators.TensorEnvs(simulator), hidden=(4,), seed=1, device="cpu")
    collector = build(policy, simulator, seed=3)
    return [collector.collect(n_step=64).episode_returns for _ in range(10)]


RUNS: dict[Any, list[Run]] = {
    tk.simulators.CartPole: [simulated],
    tk.simulators.Pendulum: [simulated],
    tk.simulators.TensorCollector: [collector_of_tensors],
}
