"""Show that the presets learn: CartPole-v1, judged every 5,000 steps on 100 episodes never seen before.

    python -m benchmarks.learning [--presets dqn rainbow] [--seeds 1 2 3 4 5] [--steps 60000] [--out FILE]

The bar, for every seed: 475 on average within the steps, and at least 300 at their end. The table is written anew after
every run, so that an interrupted benchmark leaves what it knows.
"""

import argparse
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import gymnasium
import numpy as np
import torch

import trainkit as tk

ENV = "CartPole-v1"
EVERY, EPISODES = 5_000, 100  # steps from one evaluation to the next, episodes in each
SOLVED, HELD = 475.0, 300.0  # to be reached once, to be kept at the end


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One training: the mean return of every evaluation, in order, and how long all of it took."""

    preset: str
    seed: int
    returns: tuple[float, ...]
    seconds: float

    @property
    def solved_at(self) -> int | None:
        """The first evaluation's step at which the task counts as solved."""
        return next((EVERY * n for n, mean in enumerate(self.returns, start=1) if mean >= SOLVED), None)

    @property
    def stands(self) -> bool:
        """Whether the bar does."""
        return self.solved_at is not None and self.returns[-1] >= HELD


def learn(preset: str, seed: int, n_evaluations: int) -> Run:
    """Train a preset as it is, but for the evaluations, which are ours: each on episodes of its own."""
    began = time.perf_counter()
    make = {"dqn": tk.presets.dqn, "rainbow": tk.presets.rainbow}[preset]
    trainer = make(
        ENV,
        seed=seed,
        device="cpu",
        test_collector=None,
        max_epoch=n_evaluations,
        step_per_epoch=EVERY,
        verbose=False,
        show_progress=False,
    )
    returns = []
    with trainer:
        for epoch, _, _ in trainer:
            fresh = 1_000 * seed + epoch  # a root no other evaluation has
            summary = tk.evaluate(trainer.policy, ENV, n_episode=EPISODES, n_envs=50, seed=fresh).returns
            assert summary is not None  # the episodes were asked for
            returns.append(summary.mean)
    return Run(preset=preset, seed=seed, returns=tuple(returns), seconds=time.perf_counter() - began)


def report(runs: Sequence[Run], n_evaluations: int, command: str) -> str:
    """Return the table of all runs, in markdown."""
    steps = EVERY * n_evaluations
    lines = [
        f"# Learning {ENV}",
        "",
        f"`{command}` on {platform.machine()}, one thread; Python {platform.python_version()}, trainkit "
        f"{tk.__version__}, torch {torch.__version__}, gymnasium {gymnasium.__version__}, numpy {np.__version__}.",
        f"The presets' defaults; every {EVERY:,} steps the greedy policy plays {EPISODES} episodes on fresh seeds. "
        f"The bar: a mean of {SOLVED:.0f} within {steps:,} steps, and {HELD:.0f} at their end.",
        "",
        f"| preset | seed | {SOLVED:.0f} first reached at | mean at {steps:,} | seconds | bar |",
        "|---|---|---|---|---|---|",
    ]
    for run in runs:
        solved_at = "never" if run.solved_at is None else f"{run.solved_at:,}"
        verdict = "stands" if run.stands else "**falls**"
        lines.append(
            f"| {run.preset} | {run.seed} | {solved_at} | {run.returns[-1]:.1f} | {run.seconds:.0f} | {verdict} |"
        )
    lines.append("")
    for preset in dict.fromkeys(run.preset for run in runs):
        own = [run for run in runs if run.preset == preset]
        lines.append(f"- **{preset}**: the bar stands on {sum(run.stands for run in own)} of {len(own)} seeds.")
    lines += ["", "All evaluations, in order:", "", "```"]
    for run in runs:
        lines.append(f"{run.preset:8} {run.seed:3} " + "".join(f"{mean:6.0f}" for mean in run.returns))
    return "\n".join([*lines, "```", ""])


def main() -> None:
    """Train every preset on every seed and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", nargs="+", choices=["dqn", "rainbow"], default=["dqn", "rainbow"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--steps", type=int, default=60_000, help=f"a multiple of {EVERY}")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/learning_cartpole.md"))
    options = parser.parse_args()
    if options.steps < EVERY or options.steps % EVERY:
        parser.error(f"--steps must be a multiple of {EVERY}, got {options.steps}")
    torch.set_num_threads(1)  # networks this small are fastest on one
    command = (
        f"python -m benchmarks.learning --presets {' '.join(options.presets)} "
        f"--seeds {' '.join(map(str, options.seeds))} --steps {options.steps}"
    )
    runs: list[Run] = []
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for preset in options.presets:
        for seed in options.seeds:
            runs.append(learn(preset, seed, options.steps // EVERY))
            options.out.write_text(report(runs, options.steps // EVERY, command))
            print(
                f"{preset} {seed}: {runs[-1].solved_at}, {runs[-1].returns[-1]:.1f}, {runs[-1].seconds:.0f} s",
                flush=True,
            )
    print(f"\n{report(runs, options.steps // EVERY, command)}")
    raise SystemExit(not all(run.stands for run in runs))


if __name__ == "__main__":
    main()
