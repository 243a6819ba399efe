"""Measure what `overlap=True` gains where environments step in processes of their own, by how long a step computes.

    python -m benchmarks.overlap [--steps 1500] [--rounds 3]

One environment on a core of its own, two updates of a 256-256 network per step on the other: needs two cores. The two
settings take turns; the table has medians.
"""

import argparse
import os
import platform
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

import trainkit as tk
from benchmarks.provenance import measured_at
from benchmarks.quiet import quiet_machine

OUT = Path("benchmarks/results/overlap.md")
STEP_MS = (0.5, 1.0, 2.0, 4.0)
EPISODE = 200


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


@quiet_machine()
def main() -> None:
    """Measure in turn and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    lines = [
        "# Learning while environments step",
        "",
        measured_at(),
        "",
        f"`python -m benchmarks.overlap` on {platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}. "
        "One environment in a process of its own; two updates of a 256-256 network, batch 64, per step. Environment "
        f"steps per second and, in brackets, milliseconds of learning per step; medians of {options.rounds} turns. Two "
        "things done at once take at least the time of the longer: what is gained beyond is not the overlap's, but "
        "that nobody waits and is woken up.",
        "",
        "| a step computes | one after the other | `overlap=True` | ratio |",
        "|---|---|---|---|",
    ]
    for step_ms in STEP_MS:
        runs: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
        for _ in range(options.rounds):
            for overlap, own in runs.items():
                own.append(measured(step_ms, options.steps, overlap=overlap))
        (plain, plain_ms), (both, both_ms) = (
            [statistics.median(column) for column in zip(*own, strict=True)] for own in runs.values()
        )
        cells = [f"{step_ms} ms", f"{plain:.0f} ({plain_ms:.1f})", f"{both:.0f} ({both_ms:.1f})", f"{both / plain:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    options.out.write_text("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
