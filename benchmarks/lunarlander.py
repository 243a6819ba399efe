"""Show that a preset lands: LunarLander-v3 within 300,000 steps, judged on 100 episodes never seen before.

    python -m benchmarks.lunarlander [--seeds 1 2 3] [--steps 300000] [--out FILE]

The bar, for every seed: 200 on average when training ends, which it does early when 50 episodes, and 50 others on
fresh seeds, both average 230. The preset is IQN; `SETTINGS` says what of it is otherwise. The table is written anew
after every run.
"""

import argparse
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

import trainkit as tk
from benchmarks.provenance import measured_at
from benchmarks.tuning_seeds import check_fresh

ENV = "LunarLander-v3"
STEPS = 300_000
EVERY, EPISODES, STOP = 25_000, 50, 230.0  # steps between the trainer's evaluations, their episodes, their end
FINAL, SOLVED = 100, 200.0  # the episodes that judge, and their bar

# Found on seed 11. A landing is worth a hundred times what a step of hovering costs, hundreds of steps later: sums over
# three steps reach it sooner, and a target that follows softly keeps it.
SETTINGS: dict[str, Any] = {
    "n_test_envs": 20,
    "double": True,
    "n_step": 3,
    "gamma": 0.99,
    "reward": 0.05,  # a scale: most errors are of the size at which huber is still square
    "lr": [(0, 1e-3), (100_000, 5e-4), (300_000, 1e-4)],
    "adam_eps": 1e-5,
    "epsilon": [(0, 1.0), (50_000, 0.1), (200_000, 0.02)],
    "target_every": 4,  # every update
    "target_tau": 0.005,
    "capacity": 300_000,  # the whole run
    "batch_size": 64,
    "update_per_step": 0.25,
    "learning_starts": 5_000,
    "warmup": "random",
    "stop_return": STOP,
    "device": "cpu",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One training: the trainer's evaluations, in order, where it ended, and the 100 episodes that judge it."""

    seed: int
    returns: tuple[float, ...]
    steps: int
    stop_reason: str | None
    mean: float
    std: float
    worst: float
    seconds: float

    @property
    def stands(self) -> bool:
        """Whether the bar does."""
        return self.mean >= SOLVED


def learn(seed: int, n_epochs: int) -> Run:
    """Train until the trainer is sure or the steps are spent, then judge on episodes no evaluation has had."""
    began = time.perf_counter()
    trainer = tk.presets.iqn(
        ENV,
        seed=seed,
        episode_per_test=EPISODES,
        max_epoch=n_epochs,
        step_per_epoch=EVERY,
        verbose=False,
        show_progress=False,
        zoo=False,
        **SETTINGS,
    )
    returns = []
    with trainer:
        for _, stats, _ in trainer:
            mean = stats["test/returns/mean"]
            assert mean is not None  # every epoch has an evaluation
            returns.append(mean)
            print(f"  seed {seed}, {EVERY * len(returns):,} steps: {mean:.0f}", flush=True)
    final = tk.evaluate(trainer.policy, ENV, n_episode=FINAL, n_envs=20, seed=1_000_000 + seed).returns
    return Run(
        seed=seed,
        returns=tuple(returns),
        steps=trainer.env_step,
        stop_reason=trainer.stop_reason,
        mean=final.mean,
        std=final.std,
        worst=final.min,
        seconds=time.perf_counter() - began,
    )


def report(runs: Sequence[Run], n_epochs: int, command: str) -> str:
    """Return the table of all runs, in markdown."""
    lines = [
        f"# Learning {ENV}",
        "",
        measured_at(),
        "",
        f"`{command}` on {platform.machine()}, one thread; Python {platform.python_version()}, trainkit "
        f"{tk.__version__}, torch {torch.__version__}, gymnasium {gymnasium.__version__}, numpy {np.__version__}.",
        f"`tk.presets.iqn` with the settings below. Every {EVERY:,} steps the greedy policy plays "
        f"{EPISODES} episodes; {STOP:.0f} on average, and again on fresh seeds, ends the run, "
        f"else {EVERY * n_epochs:,} steps do. Then {FINAL} fresh episodes judge it. The bar: {SOLVED:.0f} on average.",
        "",
        f"| seed | steps | ended by | mean of {FINAL} | std | worst | seconds | bar |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for run in runs:
        verdict = "stands" if run.stands else "**falls**"
        lines.append(
            f"| {run.seed} | {run.steps:,} | {run.stop_reason} | {run.mean:.1f} | {run.std:.1f} | {run.worst:.1f} "
            f"| {run.seconds:.0f} | {verdict} |"
        )
    lines += ["", f"The bar stands on {sum(run.stands for run in runs)} of {len(runs)} seeds.", ""]
    lines += ["| setting | here | preset |", "|---|---|---|"]
    preset = dict(tk.presets.iqn.settings())
    lines += [f"| `{name}` | {value} | {preset[name]} |" for name, value in SETTINGS.items()]
    lines += ["", f"All evaluations, every {EVERY:,} steps:", "", "```"]
    for run in runs:
        lines.append(f"seed {run.seed:3} " + "".join(f"{mean:5.0f}" for mean in run.returns))
    return "\n".join([*lines, "```", ""])


def main() -> None:
    """Train on every seed and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=STEPS, help=f"a multiple of {EVERY}; the schedules fit {STEPS}")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/learning_lunarlander.md"))
    options = parser.parse_args()
    if options.steps < EVERY or options.steps % EVERY:
        parser.error(f"--steps must be a multiple of {EVERY}, got {options.steps}")
    check_fresh(["iqn"], ENV, options.seeds)
    torch.set_num_threads(1)  # networks this small are fastest on one
    n_epochs = options.steps // EVERY
    command = f"python -m benchmarks.lunarlander --seeds {' '.join(map(str, options.seeds))} --steps {options.steps}"
    runs: list[Run] = []
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for seed in options.seeds:
        runs.append(learn(seed, n_epochs))
        options.out.write_text(report(runs, n_epochs, command))
        print(f"{seed}: {runs[-1].mean:.1f}, {runs[-1].seconds:.0f} s", flush=True)
    print(f"\n{report(runs, n_epochs, command)}")
    raise SystemExit(not all(run.stands for run in runs))


if __name__ == "__main__":
    main()
