"""Measure PPO in 4,096 CartPoles of tensors and in 8 of gymnasium, whole loops on one core.

    python -m benchmarks.simulators [--rounds 3] [--seeds 1 2 3]

Rates are environment steps per second of the process's CPU time, of collecting and learning together; the settings take
turns, and the table has medians. Then both learn until 475 is the mean return of 100 greedy episodes of gymnasium's
CartPole-v1, played on new seeds after every epoch; the time of these evaluations does not count.
"""

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

import trainkit as tk
from benchmarks.provenance import measured_at
from benchmarks.quiet import quiet_machine

OUT = Path("benchmarks/results/simulators.md")
N_SIMULATED = 4_096
SOLVED = 475.0


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


@quiet_machine()
def main() -> None:
    """Measure in turn and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in SIDES}
    for _ in range(options.rounds):
        for name, side in SIDES.items():
            measured[name].append(rate(*side))
            print(name, measured[name][-1], flush=True)
    medians = {name: [statistics.median(column) for column in zip(*own, strict=True)] for name, own in measured.items()}
    first = medians["8 of gymnasium"][0]
    lines = [
        "# Environments in tensors",
        "",
        measured_at(),
        "",
        f"`python -m benchmarks.simulators` on {platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__},"
        " one thread. PPO with a 64-64 network per torso learns CartPole: in 8 environments of gymnasium by `Collector`"
        ", and in 4,096 of `tk.simulators.CartPole` by `TensorCollector`, all on the CPU. Rates are environment steps "
        "per second of CPU time, of collecting and learning together; medians of "
        f"{options.rounds} turns. The first two rows have settings that suit their number of environments: few of them "
        "learn from each row more often. In the others each has the other's number of passes over a rollout.",
        "",
        "| environments | steps per rollout | passes | rows per update | steps per second | collecting | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, (_, settings, _) in SIDES.items():
        steps, passes, rows = settings
        per_second, collecting = medians[name]
        cells = [name, f"{steps:,}", passes, f"{rows:,}", f"{per_second:,.0f}", f"{collecting:.0%}"]
        lines.append(f"| {' | '.join(map(str, cells))} | {per_second / first:.1f} |")
    lines += [
        "",
        "How soon the mean return of 100 greedy episodes of gymnasium's CartPole-v1, on new seeds every 5,120 and "
        f"every 65,536 steps, is {SOLVED:.0f}, with seeds {', '.join(map(str, options.seeds))}. So many environments "
        "make more steps per second, and need more of them.",
        "",
        "| environments | CPU seconds | steps |",
        "|---|---|---|",
    ]
    for name in list(SIDES)[:2]:
        make, settings, _ = SIDES[name]
        runs = [solve(make, settings, seed) for seed in options.seeds]
        seconds, steps = zip(*runs, strict=True)
        lines.append(
            f"| {name} | {', '.join(f'{one:.1f}' for one in seconds)} | {', '.join(f'{one:,}' for one in steps)} |"
        )
        print(lines[-1], flush=True)
    options.out.write_text("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
