"""List what a vector step does, and what each function of it costs: collecting with one environment that costs nothing.

    python -m benchmarks.step_cost [--against COMMIT] [--n-envs 1] [--steps 5000] [--top 40] [--loop]

A vector step is one `Collector.step`: act by a small Q-network that explores by epsilon, step, store. For each function
of the package, and for all others together, it prints microseconds of its own time per vector step, without the
functions that it calls, and how often a step calls it. The profiler is on: it adds to each call about as much as a
small function takes, so read the list for where the time goes, and measure gains with `benchmarks.loops`. `--loop`
adds updates of 32 rows after each step. With `--against` the same functions are listed beside those of that commit.
"""

import argparse
import cProfile
import json
import os
import pstats
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

import trainkit as tk
from benchmarks.provenance import ROOT
from benchmarks.running import checkout

OTHERS = "all other code"
WARM_UP = 2_000  # vector steps
EPISODE = 200

Costs = dict[str, tuple[float, float]]  # {function: (microseconds of its own, calls) per vector step}


class Nothing(gym.Env[Any, Any]):
    """Return one observation again and again, in episodes of 200 steps."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self._obs, self._clock = np.zeros(4, np.float32), 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        self._clock = 0
        return self._obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Count."""
        self._clock += 1
        return self._obs, 0.0, False, self._clock == EPISODE, {}


def measure(n_envs: int, n_steps: int, *, loop: bool) -> Costs:
    """Profile vector steps of the package that was imported."""
    envs = tk.make_envs([Nothing] * n_envs, seed=1)
    policy: Any = tk.DQNPolicy.for_envs(envs, hidden=(64, 64), exploration=tk.EpsilonGreedy(0.1), device="cpu", seed=1)
    collector: Any = tk.Collector(policy, envs, tk.ReplayBuffer(20_000, seed=1))

    def run(steps: int) -> None:
        if not loop:
            collector.collect(n_step=steps * n_envs)
            return
        options: dict[str, Any] = {"step_per_epoch": steps * n_envs, "step_per_collect": n_envs, "batch_size": 32}
        options |= {"update_per_step": 1 / n_envs, "max_epoch": 1, "verbose": False, "show_progress": False}
        tk.OffpolicyTrainer(policy, collector, **options).run()

    collector.collect(n_step=WARM_UP * n_envs)
    run(WARM_UP)
    profile = cProfile.Profile()
    profile.enable()
    run(n_steps)
    profile.disable()
    package = Path(tk.__file__).parent
    costs: Costs = {}
    rows: dict[Any, Any] = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    for (file, _, function), (_, n_calls, own, *_) in rows.items():
        is_ours = Path(file).is_relative_to(package)
        name = f"{Path(file).relative_to(package)}:{function}" if is_ours else OTHERS
        before = costs.get(name, (0.0, 0.0))
        costs[name] = before[0] + 1e6 * own / n_steps, before[1] + n_calls / n_steps
    return costs


def measured_by(tree: Path, n_envs: int, n_steps: int, *, loop: bool) -> Costs:
    """Profile in a process that imports the package from a tree."""
    path = os.pathsep.join([str(tree / "src"), str(ROOT)])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.step_cost", "--json", f"--n-envs={n_envs}", f"--steps={n_steps}"]
    ran = subprocess.run([*command, *["--loop"] * loop], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    imported, costs = json.loads(ran.stdout.splitlines()[-1])
    if not Path(imported).is_relative_to(tree / "src"):
        raise SystemExit(f"the side of {tree} imported {imported}")
    return {name: (own, n_calls) for name, (own, n_calls) in costs.items()}


def listed(ours: Costs, theirs: Costs, top: int) -> str:
    """Return the table: the functions that cost most on either side, and sums."""
    names = sorted(ours.keys() | theirs.keys(), key=lambda name: -max(_cost(ours, name), _cost(theirs, name)))
    columns = [ours, theirs] if theirs else [ours]
    lines = [f"{'us':>8} {'calls':>6}   " * len(columns) + "own time per vector step; here" + ", there" * bool(theirs)]
    for name in names[:top]:
        cells = [f"{costs[name][0]:8.2f} {costs[name][1]:6.1f}" if name in costs else " " * 15 for costs in columns]
        lines.append("   ".join([*cells, name]))
    sums = [
        f"{sum(own for own, _ in costs.values()):8.2f} {sum(n for _, n in costs.values()):6.1f}" for costs in columns
    ]
    return "\n".join([*lines, "   ".join([*sums, "everything"])])


def _cost(costs: Costs, name: str) -> float:
    return costs[name][0] if name in costs else 0.0


def main() -> None:
    """Print the list, here alone or beside another commit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="COMMIT")
    parser.add_argument("--n-envs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=5_000)
    parser.add_argument("--top", type=int, default=40)
    parser.add_argument("--loop", action="store_true", help="with an update after each step")
    parser.add_argument("--json", action="store_true", help=argparse.SUPPRESS)  # the package that PYTHONPATH names
    given = parser.parse_args()
    how = (given.n_envs, given.steps)
    if given.json:
        print(json.dumps([tk.__file__, measure(*how, loop=given.loop)]))
        return
    ours, theirs = measured_by(ROOT, *how, loop=given.loop), {}
    if given.against:
        with checkout(given.against) as tree:
            theirs = measured_by(tree, *how, loop=given.loop)
    print(listed(ours, theirs, given.top))


if __name__ == "__main__":
    main()
