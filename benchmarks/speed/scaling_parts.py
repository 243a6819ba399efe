"""Parts of `scaling`: learning while environments step, background evaluations, several policies, simulators."""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch

import trainkit as tk
from examples.two_agents import TwoPoles

Row = tuple[str, str, str]  # what, measured, bar
STEP_MS = (0.5, 1.0, 2.0, 4.0)  # of `Busy`
EPISODE = 200
N_GAMES = 4
N_SIMULATED, SOLVED = 4_096, 475.0


def medians(sides: dict[Any, Callable[[], tuple[float, ...]]], n_rounds: int) -> dict[Any, list[float]]:
    """Return the medians of what each side measures, over rounds in which they take turns."""
    rounds = {side: [] for side in sides}
    for _ in range(n_rounds):
        for side, measured in sides.items():
            rounds[side].append(measured())
    return {side: [statistics.median(column) for column in zip(*own, strict=True)] for side, own in rounds.items()}


# ---- learning while environments step ----


class Busy(gym.Env[Any, int]):
    """Compute for so long in every step."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (8,), np.float32)
    action_space = gym.spaces.Discrete(4)

    def __init__(self, step_ms: float) -> None:
        self._seconds, self._clock = step_ms / 1e3, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._clock = 0
        return np.zeros(8, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        end = time.perf_counter() + self._seconds
        while time.perf_counter() < end:
            pass
        self._clock += 1
        return np.full(8, 0.1, np.float32), 1.0, False, self._clock == EPISODE, {}


def measured(step_ms: float, n_steps: int, *, overlap: bool) -> tuple[float, float]:
    """Return environment steps per second, and milliseconds of learning per step."""
    envs = tk.make_envs(partial(Busy, step_ms), 1, backend="async")
    policy = tk.DQNPolicy.for_envs(envs, hidden=(256, 256), device="cpu")
    with tk.OffpolicyTrainer(
        policy,
        tk.Collector(policy, envs, tk.ReplayBuffer(10_000)),
        max_epoch=1,
        step_per_epoch=n_steps,
        batch_size=64,
        update_per_step=2,
        overlap=overlap,
        threads=1,
        seed=1,
        verbose=False,
        show_progress=False,
    ) as trainer:
        began = time.perf_counter()
        _, stats, info = next(trainer)
        seconds = time.perf_counter() - began
    assert info.gradient_step == 2 * (n_steps - 63)  # from the step that completes a batch on
    return n_steps / seconds, 1e3 * stats.time.update * stats.time.seconds / n_steps


def overlap() -> list[Row]:
    """Compare runs with and without `overlap=True`, by how long a step computes."""
    rows: list[Row] = []
    for step_ms in STEP_MS:
        found = medians({on: partial(measured, step_ms, 1_500, overlap=on) for on in (False, True)}, 3)
        (plain, plain_ms), (both, both_ms) = found[False], found[True]
        rates = f"{plain:.0f} ({plain_ms:.1f}), {both:.0f} ({both_ms:.1f}) steps/s: {both / plain:.2f} x"
        rows.append((f"a step computes {step_ms} ms: one after the other, `overlap=True`", rates, ""))
    return rows


# ---- an evaluation in the background ----


def trained(*, background: bool, n_epochs: int, n_steps: int) -> dict[str, Any]:
    """Train; return seconds, and CPU seconds of this process."""
    torch.set_num_threads(1)
    evaluation = tk.BackgroundEvaluation() if background else None
    with tk.presets.dqn(
        "CartPole-v1", seed=1, zoo=False, max_epoch=n_epochs, step_per_epoch=n_steps, evaluation=evaluation,
        device="cpu", verbose=False, show_progress=False,
    ) as trainer:  # fmt: skip
        clocks = [(time.perf_counter(), time.process_time()) for _ in trainer]
        (start, start_cpu), (end, end_cpu) = clocks[0], clocks[-2]
        return {"seconds": end - start, "cpu_seconds": end_cpu - start_cpu}


def in_process(**options: Any) -> dict[str, Any]:
    """Run in a process of its own."""
    code = (
        f"import json; from benchmarks.speed import scaling_parts as own; print(json.dumps(own.trained(**{options!r})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def evaluation() -> list[Row]:
    """Compare runs with and without a background evaluation, in new processes in turn."""
    found = {on: partial(in_process, background=on, n_epochs=8, n_steps=5_000) for on in (False, True)}
    pairs = [(found[False](), found[True]()) for _ in range(5)]
    names = {"cpu_seconds": "CPU time of the training process", "seconds": "time"}
    return [
        (
            f"{text} with a background evaluation after each epoch, compared with none",
            f"{statistics.median(other[name] / one[name] for one, other in pairs):.3f} x",
            "",
        )
        for name, text in names.items()
    ]


# ---- several policies ----


class OnePole(TwoPoles):
    """The same game with its left agent alone."""

    possible_agents = ("left",)


def dqn(envs: tk.Envs) -> tk.DQNPolicy:
    """Return a DQN with the network of the example."""
    return tk.DQNPolicy.for_envs(
        envs, hidden=(256, 256), lr=1e-3, target=tk.Target(80), exploration=tk.EpsilonGreedy(0.3), device="cpu", seed=1
    )


def seconds_of(policy: Any, envs: tk.Envs, buffer: Any, n_steps: int) -> float:
    """Return the CPU time of a run of so many steps, after a tenth of them."""
    train = tk.Collector(policy, envs, buffer)
    how: dict[str, Any] = {"batch_size": 64, "verbose": False, "show_progress": False, "seed": 1}
    with tk.OffpolicyTrainer(policy, train, max_epoch=11, step_per_epoch=n_steps // 10, **how) as trainer:
        next(trainer)
        started = time.process_time()
        for _ in trainer:
            pass
        return time.process_time() - started


def two_policies(n_steps: int) -> float:
    """Return the seconds of a run of two policies."""
    envs = tk.make_envs(TwoPoles, N_GAMES, seed=1)
    policy = tk.MultiAgentPolicy({"left": dqn(envs), "right": dqn(envs)})
    buffers = tk.MultiAgentBuffer({name: tk.ReplayBuffer(20_000) for name in ("left", "right")})
    return seconds_of(policy, envs, buffers, n_steps)


def two_single_runs(n_steps: int) -> float:
    """Return the seconds of two runs of one agent, one after the other."""
    total = 0.0
    for _ in range(2):
        envs = tk.make_envs(OnePole, N_GAMES, seed=1)
        total += seconds_of(dqn(envs), envs, tk.ReplayBuffer(20_000), n_steps // 2)
    return total


def one_policy(n_steps: int) -> float:
    """Return the seconds of a run of one policy for both agents."""
    envs = tk.make_envs(TwoPoles, N_GAMES, seed=1)
    return seconds_of(dqn(envs), envs, tk.ReplayBuffer(40_000), n_steps)


def policies() -> list[Row]:
    """Compare two policies with two single runs, and with one shared policy."""
    runs = (two_policies, two_single_runs, one_policy)
    rounds = [{run.__name__: run(4_000) for run in (runs if number % 2 else runs[::-1])} for number in range(9)]
    return [
        (
            f"a policy for each of two agents, compared with {what}",
            f"{statistics.median(one['two_policies'] / one[name] for one in rounds):.3f} x the CPU time",
            bar,
        )
        for name, what, bar in (
            ("two_single_runs", "two single runs", "<= 1.15 x"),
            ("one_policy", "one shared policy", "<= 1.5 x"),
        )
    ]


# ---- simulators ----


class Settings(NamedTuple):
    """How PPO collects and learns; learning rate, discount and lambda are those of `examples/ppo_cartpole.py`."""

    step_per_collect: int
    repeat_per_collect: int
    batch_size: int


FEW = Settings(512, 10, 128)  # of examples/ppo_cartpole.py
FEW_LESS_LEARNING = Settings(512, 2, 128)
MANY = Settings(16 * N_SIMULATED, 2, 1_024)
MANY_MORE_LEARNING = Settings(16 * N_SIMULATED, 10, 1_024)


def gymnasium_collector(policy: Any) -> tk.Collector:
    """Return a collector of 8 environments in arrays."""
    return tk.Collector(policy, tk.make_envs("CartPole-v1", 8), tk.RolloutBuffer())


def simulator_collector(policy: Any) -> tk.simulators.TensorCollector:
    """Return a collector of 4,096 environments in tensors."""
    return tk.simulators.TensorCollector(policy, tk.simulators.CartPole(N_SIMULATED))


MakeCollector = Callable[[Any], tk.Collector | tk.simulators.TensorCollector]
SIDES: dict[str, tuple[MakeCollector, Settings, int]] = {  # and the number of rollouts that are measured
    "8 of gymnasium": (gymnasium_collector, FEW, 20),
    "4,096 of tensors": (simulator_collector, MANY, 6),
    "8 of gymnasium, 2 passes": (gymnasium_collector, FEW_LESS_LEARNING, 40),
    "4,096 of tensors, 10 passes": (simulator_collector, MANY_MORE_LEARNING, 2),
}


def trainer_of(make: MakeCollector, settings: Settings, n_rollouts: int, seed: int) -> tk.OnpolicyTrainer[Any]:
    """Return a trainer whose epochs have this many rollouts."""
    policy = tk.PPOPolicy.for_envs(
        tk.simulators.CartPole(1), hidden=(64, 64), lr=1e-3, gamma=0.98, lam=0.9, device="cpu"
    )
    return tk.OnpolicyTrainer(
        policy,
        make(policy),
        max_epoch=1_000,
        step_per_epoch=n_rollouts * settings.step_per_collect,
        **settings._asdict(),
        seed=seed,
        verbose=False,
        show_progress=False,
    )


def rate(make: MakeCollector, settings: Settings, n_rollouts: int) -> tuple[float, float]:
    """Return environment steps per CPU second, and the share of time that collecting took, in the second epoch."""
    with trainer_of(make, settings, n_rollouts, seed=1) as trainer:
        next(trainer)
        started = time.process_time()
        _, stats, _ = next(trainer)
        seconds = time.process_time() - started
    return n_rollouts * settings.step_per_collect / seconds, stats.time.collect


def solve(make: MakeCollector, settings: Settings, seed: int) -> tuple[float, int]:
    """Return CPU seconds and environment steps until the task is solved, in epochs of one or of ten rollouts."""
    n_rollouts = 1 if settings.step_per_collect > 10_000 else 10
    with trainer_of(make, settings, n_rollouts, seed) as trainer:
        seconds = 0.0
        while True:
            started = time.process_time()
            next(trainer)
            seconds += time.process_time() - started
            played = tk.evaluate(trainer.policy, "CartPole-v1", n_episode=100, n_envs=100, seed=1_000 + trainer.epoch)
            if played.returns.mean is not None and played.returns.mean >= SOLVED:
                return seconds, trainer.env_step


def simulators() -> list[Row]:
    """Compare 8 environments of gymnasium with 4,096 of tensors."""
    found = medians({name: partial(rate, *side) for name, side in SIDES.items()}, 3)
    first = found["8 of gymnasium"][0]
    rows: list[Row] = [
        (f"PPO, {name}", f"{own[0]:,.0f} steps/s, {own[1]:.0%} collecting: {own[0] / first:.1f} x", "")
        for name, own in found.items()
    ]
    for name in list(SIDES)[:2]:
        make, settings, _ = SIDES[name]
        runs = [solve(make, settings, seed) for seed in (1, 2, 3)]
        cells = "; ".join(f"{seconds:.1f} s, {steps:,} steps" for seconds, steps in runs)
        rows.append((f"PPO, {name}, until solved", cells, ""))
    return rows


MEASURES: dict[str, Callable[[], list[Row]]] = {
    "overlap": overlap, "evaluation": evaluation, "policies": policies, "simulators": simulators
}  # fmt: skip
