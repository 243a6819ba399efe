"""Show that policies with a memory learn what takes one: a T-maze of length 50, and CartPole without velocities.

    python -m benchmarks.recurrent [--task tmaze cartpole] [--method r2d2 drqn ppo] [--seeds 1 2 3 4 5]
                                   [--steps 500000] [--without-memory]

A line per evaluation, on fresh episodes without exploring: of the maze the share of right turns in 200 episodes, whose
bar is 0.95 within 1,000,000 steps; of CartPole the mean return of 100 episodes, whose bar is 475 within 500,000. A run
ends where it reaches its bar. `--without-memory` runs the same settings without one, which must fail.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import trainkit as tk
from benchmarks.memory_tasks import TMaze, cartpole_positions


class Task(NamedTuple):
    """An environment, and what is asked of a policy in it."""

    make: Callable[[], Any]
    episodes: int
    bar: float
    steps: int
    score: Callable[[tuple[float, ...]], float]  # of the episodes' returns


TASKS = {
    "tmaze": Task(partial(TMaze, 50), 200, 0.95, 1_000_000, lambda returns: float(np.mean(np.array(returns) > 0))),
    "cartpole": Task(cartpole_positions, 100, 475.0, 500_000, lambda returns: float(np.mean(returns))),
}
EVERY = 10_000  # steps between evaluations
LENGTHS = {"tmaze": (60, None), "cartpole": (20, 10)}  # rows to learn from, burn-in; a maze is remembered whole


def q_learner(name: str, task: str, seed: int, steps: int, *, memory: bool) -> tk.Trainer[Any]:
    """Return the trainer of a preset with a memory, or of the same settings without one."""
    length, burn_in = LENGTHS[task]
    options: dict[str, Any] = {"epsilon": [(0, 1.0), (steps // 20, 0.02)], "lr": 1e-3, "hidden": (64,)}
    if memory:
        options |= {"sequence_length": length, "burn_in": burn_in}
        preset: Any = tk.presets.PRESETS[name]
    else:
        own = tk.presets.settings(name)
        kept = "double dueling n_step rescale prioritized alpha beta repeat".split()
        options |= {option: own[option] for option in kept} | {"batch_size": 128, "update_per_step": 0.25}
        preset = tk.presets.dqn
    common = {"max_epoch": steps // EVERY, "step_per_epoch": EVERY, "evaluation": None, "show_progress": False}
    trainer: tk.Trainer[Any] = preset(TASKS[task].make, seed=seed, device="cpu", **options, **common)
    return trainer


def ppo(task: str, seed: int, steps: int, *, memory: bool) -> tk.Trainer[Any]:
    """Return the trainer of PPO with a memory, or of the same settings without one."""
    preset: Any = tk.presets.recurrent_ppo if memory else tk.presets.ppo
    settings = {"hidden": (64,), "lr": 1e-3, "entropy_weight": 0.01, "step_per_collect": 1024, "batch_size": 256}
    common = {"max_epoch": steps // EVERY, "step_per_epoch": EVERY, "evaluation": None, "show_progress": False}
    how: dict[str, Any] = settings | common | {"repeat_per_collect": 4, "zoo": False}
    trainer: tk.Trainer[Any] = preset(TASKS[task].make, seed=seed, device="cpu", **how)
    return trainer


METHODS: dict[str, Callable[..., tk.Trainer[Any]]] = {
    "r2d2": partial(q_learner, "r2d2"),
    "drqn": partial(q_learner, "drqn"),
    "ppo": ppo,
}


def run(task: str, method: str, seed: int, steps: int | None, *, memory: bool) -> tuple[float, int]:
    """Train until the bar is reached or the steps are over; return the last score and the steps."""
    own = TASKS[task]
    started, score = time.perf_counter(), 0.0
    trainer = METHODS[method](task, seed, own.steps if steps is None else steps, memory=memory)
    trainer_steps = 0
    for epoch, _, info in trainer:
        test = tk.Collector(trainer.policy, tk.make_envs([own.make] * 20, seed=1_000 * seed + epoch))
        score = own.score(test.collect(n_episode=own.episodes).episode_returns)
        test.close()
        trainer_steps = info.env_step
        seconds = time.perf_counter() - started
        print(f"{task} {method} seed {seed} {trainer_steps:>9,} steps {score:8.3f} {seconds:7.0f} s", flush=True)
        if score >= own.bar:
            break
    return score, trainer_steps


def main() -> None:
    """Run the chosen tasks, methods and seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--method", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--steps", type=int, default=None, help="default: the task's own")
    parser.add_argument("--without-memory", action="store_true")
    given = parser.parse_args()
    for task in given.task:
        for method in given.method:
            results = [run(task, method, seed, given.steps, memory=not given.without_memory) for seed in given.seeds]
            reached = sorted(steps for score, steps in results if score >= TASKS[task].bar)
            print(f"{task} {method}: {len(reached)} of {len(results)} seeds at {TASKS[task].bar}, steps {reached}")


if __name__ == "__main__":
    main()
