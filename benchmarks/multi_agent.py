"""The cost of several policies: two DQNs on the two-agent CartPole beside single runs and beside one shared policy.

    python -m benchmarks.multi_agent [--pairs 9] [--steps 4000]

Three sides run in turn, so that the machine's state is the same for all, and medians of their ratios are published:

- two policies, one for each agent of 4 games: rows of 8 environments, one update per row;
- two single runs, each a policy on one agent of 4 games, over half of the rows;
- one policy that both agents share, over all rows.
"""

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import trainkit as tk
from benchmarks.provenance import measured_at
from examples.two_agents import TwoPoles

N_GAMES = 4


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


def report(rows: Sequence[Mapping[str, float]], n_steps: int) -> str:
    """Return the page, in markdown, of the seconds of every pair of runs."""
    lines = [
        "# The cost of several policies",
        "",
        measured_at(),
        "",
        f"`python -m benchmarks.multi_agent` on {platform.machine()}, {os.cpu_count()} cores, one thread; Python "
        f"{platform.python_version()}, trainkit {tk.__version__}, torch {torch.__version__}. Seconds are of CPU time, "
        "on a machine that did other work, too.",
        "",
        f"DQN on the two-agent CartPole of `examples/two_agents.py`, {N_GAMES} games, {n_steps:,} rows after a tenth "
        f"of them, an update of 64 rows per row; {len(rows)} rounds of the three sides in turn, medians.",
        "",
        "- Two policies: one for each agent.",
        "- Two single runs: each a policy on one agent of as many games, over half of the rows.",
        "- One policy: shared by both agents, over all rows.",
        "",
        "| side | s | two policies / this | bar |",
        "|---|---|---|---|",
    ]
    for run in RUNS:
        name = run.__name__
        seconds = statistics.median(row[name] for row in rows)
        ratio = statistics.median(row["two_policies"] / row[name] for row in rows)
        bar = BARS.get(name, "")
        lines.append(f"| {name.replace('_', ' ')} | {seconds:.2f} | {ratio:.3f} | {bar} |")
    return "\n".join([*lines, ""])


RUNS: list[Callable[[int], float]] = [two_policies, two_single_runs, one_policy]
BARS = {"two_single_runs": 1.15, "one_policy": 1.5}


def main() -> None:
    """Time the runs in turn, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--steps", type=int, default=4_000)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/multi_agent.md"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, float]] = []
    for pair in range(options.pairs):
        seconds = {run.__name__: run(options.steps) for run in (RUNS if pair % 2 else RUNS[::-1])}
        rows.append(seconds)
        print(" ".join(f"{name} {own:.2f} s" for name, own in seconds.items()), flush=True)
    options.out.write_text(report(rows, options.steps))
    print(options.out.read_text())


if __name__ == "__main__":
    main()
