"""Show that actor-critics learn what the bars ask: CartPole, LunarLander and Pendulum by PPO, Pendulum by SAC.

    python -m benchmarks.learning_onpolicy [--tasks ...] [--out FILE]

Each run is judged once, when its steps are spent or when the trainer is sure before: on 100 episodes never seen before,
`explore=False`. What is not the preset's is in `TASKS`. A finished run is kept in the cache, with the settings it had;
the page is written anew after every run.
"""

import argparse
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

import trainkit as tk
from benchmarks.cache import Cache
from benchmarks.provenance import measured_at
from benchmarks.tuning_seeds import check_fresh

JUDGED = 100  # episodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A preset, where it learns, how long, and what mean return it must reach on every seed."""

    preset: str
    env: str
    steps: int  # whole rollouts, at most the steps that the bar allows
    bar: float
    seeds: tuple[int, ...]
    step_per_epoch: int  # from one of the trainer's evaluations to the next
    stop: float | None = None  # a mean, confirmed on fresh episodes, that ends the run
    settings: Mapping[str, Any] = field(default_factory=dict)  # over the preset's
    why: str = "the preset's settings"


TASKS = {
    "ppo-cartpole": Task(
        preset="ppo", env="CartPole-v1", steps=99_840, bar=475.0, seeds=(1, 2, 3, 4, 5), step_per_epoch=4_992
    ),
    "ppo-lunarlander": Task(
        preset="ppo",
        env="LunarLander-v3",
        steps=983_040,
        bar=200.0,
        seeds=(1, 2, 3),
        step_per_epoch=49_152,
        settings={
            "n_envs": 16,
            "step_per_collect": 16 * 1_024,
            "batch_size": 64,
            "repeat_per_collect": 4,
            "gamma": 0.999,
            "lam": 0.98,
            "entropy_weight": 0.01,
            "lr": 3e-4,
            "clip_ratio": 0.2,
        },
        why="rl-zoo's settings for LunarLander-v2",
    ),
    "ppo-pendulum": Task(
        preset="ppo", env="Pendulum-v1", steps=286_720, bar=-250.0, seeds=(1, 2, 3), step_per_epoch=20_480
    ),
    "sac-pendulum": Task(
        preset="sac", env="Pendulum-v1", steps=20_000, bar=-250.0, seeds=(1, 2, 3), step_per_epoch=2_000
    ),
}


def learn(task: Task, seed: int) -> dict[str, Any]:
    """Train, and judge on episodes that no evaluation has had."""
    began = time.process_time()
    trainer = getattr(tk.presets, task.preset)(
        task.env,
        seed=seed,
        device="cpu",
        max_epoch=task.steps // task.step_per_epoch,
        step_per_epoch=task.step_per_epoch,
        stop_return=task.stop,
        episode_per_test=10,
        verbose=False,
        show_progress=False,
        zoo=not task.settings,  # which are changes of the general table
        **task.settings,
    )
    with trainer:
        returns = [stats["test/returns/mean"] for _, stats, _ in trainer]
    final = tk.evaluate(trainer.policy, task.env, n_episode=JUDGED, n_envs=20, seed=1_000_000 + seed).returns
    return {
        "returns": returns,
        "steps": trainer.env_step,
        "stop_reason": trainer.stop_reason,
        "mean": final.mean,
        "std": final.std,
        "worst": final.min,
        "seconds": time.process_time() - began,
    }


def used(task: Task) -> dict[str, Any]:
    """Return all settings of a run that are numbers or words: the preset's and what replaces them."""
    preset = getattr(tk.presets, task.preset)
    domain = "continuous" if task.env == "Pendulum-v1" else "classic"
    chosen = {**preset.settings(domain), **task.settings}
    return {name: str(value) for name, value in sorted(chosen.items())}


def report(runs: Mapping[str, Sequence[tuple[int, Mapping[str, Any]]]], command: str) -> str:
    """Return the table of all runs, in markdown."""
    lines = [
        "# Learning on-policy, and by SAC",
        "",
        measured_at([run["commit"] for own in runs.values() for _, run in own]),
        "",
        f"`{command}` on {platform.machine()}, {os.cpu_count()} cores, one thread; Python {platform.python_version()}, "
        f"trainkit {tk.__version__}, torch {torch.__version__}, gymnasium {gymnasium.__version__}, numpy "
        f"{np.__version__}.",
        f"When its steps are spent, a policy plays {JUDGED} fresh episodes, `explore=False`; their mean must reach the "
        "bar on every seed. Seconds are of CPU, the evaluations' among them.",
        "",
        f"| task | steps | must reach | seed | mean of {JUDGED} | std | worst | seconds | bar | measured at |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, own in runs.items():
        task = TASKS[name]
        for seed, run in own:
            verdict = "stands" if run["mean"] >= task.bar else "**falls**"
            lines.append(
                f"| {task.preset.upper()}, {task.env} | {run['steps']:,} | {task.bar:.0f} | {seed} | {run['mean']:.1f} "
                f"| {run['std']:.1f} | {run['worst']:.1f} | {run['seconds']:.0f} | {verdict} "
                f"| `{run['commit']}` |"
            )
    lines += ["", "Settings:", ""]
    for name in runs:
        task = TASKS[name]
        own_settings = ", ".join(f"`{option}` {value}" for option, value in task.settings.items())
        lines.append(f"- {task.preset.upper()}, {task.env}: {task.why}{': ' if own_settings else ''}{own_settings}.")
    lines += ["", "Means of 10 episodes after each epoch, in order:", "", "```"]
    for name, own in runs.items():
        for seed, run in own:
            lines.append(f"{name:16}{seed:3} " + "".join(f"{mean:6.0f}" for mean in run["returns"]))
    return "\n".join([*lines, "```", ""])


def main() -> None:
    """Train what is not in the cache and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--cache", type=Path, default=Path("benchmarks/results/learning_onpolicy.jsonl"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/learning_onpolicy.md"))
    options = parser.parse_args()
    torch.set_num_threads(1)  # networks this small are fastest on one
    command = "python -m benchmarks.learning_onpolicy"
    command += "" if options.tasks == list(TASKS) else f" --tasks {' '.join(options.tasks)}"
    cache = Cache(options.cache)
    runs: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for name in options.tasks:
        task = TASKS[name]
        for seed in task.seeds:
            key = [name, seed, task.steps, task.step_per_epoch, task.stop, used(task)]
            run = cache.get(*key)
            if run is None:
                check_fresh([task.preset], task.env, [seed])
                run = learn(task, seed)
                cache.put(run, *key)
            runs.setdefault(name, []).append((seed, {**run, "commit": cache.commit(*key)}))
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(report(runs, command))
            print(f"{name} {seed}: {run['mean']:.1f}, {run['seconds']:.0f} s", flush=True)
    print(f"\n{report(runs, command)}")
    raise SystemExit(not all(run["mean"] >= TASKS[name].bar for name, own in runs.items() for _, run in own))


if __name__ == "__main__":
    main()
