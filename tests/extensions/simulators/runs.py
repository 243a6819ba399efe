"""Runs of simulators in which options of constructors matter."""

from typing import Any

import trainkit as tk
from tests.outside.constructors import Build, Run


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
