"""Show that offline learners learn more than their data show: CartPole-v1, 100,000 rows made here, judged greedily.

    python -m benchmarks.offline [--seeds 1 2 3 4 5] [--rows 100000] [--processes 1] [--out FILE]

Two datasets per seed: mixed, of 70 % random play and 30 % of a DQN that was stopped at a return of 100 to 200; and
random play alone. The bars: on mixed rows CQL reaches BC + 100 and 1.5 times the return of who made them; on random
rows CQL or plain DQN, whichever is better, reaches 5 times BC. All must stand for the mean over the seeds.
"""

import argparse
import itertools
import platform
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import torch

import trainkit as tk

ENV = "CartPole-v1"
EPISODES = 100  # in every evaluation
HALF_WAY = (100.0, 200.0)  # the return of the DQN that plays its share
SHARE = 0.3  # of rows that it plays
LEARNERS = {"mixed": ("bc", "cql", "bcq"), "random": ("bc", "cql", "dqn")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One seed: what the data show, and what came of learning from them, as mean returns."""

    seed: int
    dqn: float  # of who played its share of the mixed rows
    behaviour: dict[str, float]  # {data: of its actors, each by its share of the rows}
    returns: dict[str, dict[str, float]]  # {data: {learner: return}}
    seconds: float


def half_way(seed: int) -> tuple[tk.Policy, float]:
    """Train a DQN until it plays half-way, and return it with its mean return."""
    trainer = tk.presets.dqn(
        ENV, seed=seed, device="cpu", test_collector=None, max_epoch=200, step_per_epoch=250, verbose=False
    )
    with trainer:
        for epoch, _, info in trainer:
            if info.gradient_step:
                mean = judge(trainer.policy, 1_000 * seed + epoch)
                if HALF_WAY[0] <= mean <= HALF_WAY[1]:
                    return trainer.policy, mean
    raise RuntimeError(f"no DQN of seed {seed} was between {HALF_WAY}")


def play(buffer: tk.ReplayBuffer, policy: tk.Policy, n_rows: int, seed: int) -> float:
    """Add rows of a policy that does not explore, and return its mean return."""
    envs = tk.make_envs(ENV, 10, seed=seed)
    collector = tk.Collector(policy, envs, buffer)
    stats = collector.collect(n_step=n_rows, explore=False)
    buffer.cut(np.arange(10))
    collector.close()
    assert stats.returns is not None  # thousands of rows are hundreds of episodes
    return stats.returns.mean


def judge(policy: tk.Policy, seed: int) -> float:
    """Return the mean return of episodes nobody has seen, without exploring."""
    summary = tk.evaluate(policy, ENV, n_episode=EPISODES, n_envs=50, seed=seed).returns
    assert summary is not None  # the episodes were asked for
    return summary.mean


def learn(learner: str, buffer: tk.ReplayBuffer, seed: int) -> float:
    """Train a learner by its preset, and return what its last policy reaches; plain DQN is CQL without its penalty."""
    name, more = ("cql", {"penalty_weight": 0.0}) if learner == "dqn" else (learner, {})
    buffer.seed(seed)  # each learner draws as if it were alone
    spaces = tk.make_envs(ENV)
    options: dict[str, Any] = {"seed": seed, "device": "cpu", "verbose": False, "show_progress": False, **more}
    trainer = getattr(tk.presets, name)(buffer, SimpleNamespace(**vars_of(spaces)), **options)
    with trainer:
        trainer.run()
    spaces.close()
    return judge(trainer.policy, 900_000 + seed)


def vars_of(envs: tk.Envs) -> dict[str, Any]:
    """Return the spaces alone: with them nothing is evaluated on the way."""
    return {"observation_space": envs.observation_space, "action_space": envs.action_space}


def run(seed: int, n_rows: int) -> Run:
    """Make both datasets and learn from each."""
    torch.set_num_threads(1)
    began = time.perf_counter()
    player, dqn = half_way(seed)
    returns, behaviour = {}, {}
    for data, share in (("mixed", SHARE), ("random", 0.0)):
        buffer = tk.ReplayBuffer(n_rows)
        n_played = round(share * n_rows)
        random = tk.RandomPolicy(gymnasium.spaces.Discrete(2), seed=seed)
        behaviour[data] = (1.0 - share) * play(buffer, random, n_rows - n_played, 10_000 + seed)
        if n_played:
            behaviour[data] += share * play(buffer, player, n_played, 20_000 + seed)
        returns[data] = {learner: learn(learner, buffer, seed) for learner in LEARNERS[data]}
        print(seed, data, {k: round(v) for k, v in returns[data].items()}, round(behaviour[data]), flush=True)
    return Run(seed=seed, dqn=dqn, behaviour=behaviour, returns=returns, seconds=time.perf_counter() - began)


def bars(runs: Sequence[Run]) -> list[tuple[str, float, float]]:
    """Return (what, the number, what it has to reach)."""

    def mean(data: str, learner: str) -> float:
        return float(np.mean([one.returns[data][learner] for one in runs]))

    behaviour = float(np.mean([one.behaviour["mixed"] for one in runs]))
    return [
        ("mixed rows: CQL, and BC + 100", mean("mixed", "cql"), mean("mixed", "bc") + 100.0),
        ("mixed rows: CQL, and 1.5 times the behaviour", mean("mixed", "cql"), 1.5 * behaviour),
        (
            "random rows: CQL or DQN, and 5 times BC",
            max(mean("random", "cql"), mean("random", "dqn")),
            5.0 * mean("random", "bc"),
        ),
    ]


def report(runs: Sequence[Run], command: str, n_rows: int) -> str:
    """Write both tables and the bars as a page."""
    lines = [
        "# Offline learning on CartPole-v1",
        "",
        f"`{command}`: {n_rows:,} rows per dataset; the mean return of {EPISODES} episodes without exploring,",
        "after the presets' updates, whatever was reached on the way. dqn is cql without its penalty. The behaviour's",
        "return is its actors', each by its share of the rows.",
    ]
    for data in ("mixed", "random"):
        lines += [
            "",
            f"## {data.capitalize()} rows",
            "",
            f"| seed | DQN in the data | behaviour | {' | '.join(LEARNERS[data])} |",
        ]
        lines += ["|---:" * (3 + len(LEARNERS[data])) + "|"]
        for one in runs:
            own = " | ".join(f"{one.returns[data][learner]:.1f}" for learner in LEARNERS[data])
            player = f"{one.dqn:.1f}" if data == "mixed" else ""
            lines.append(f"| {one.seed} | {player} | {one.behaviour[data]:.1f} | {own} |")
        means = " | ".join(f"{np.mean([one.returns[data][learner] for one in runs]):.1f}" for learner in LEARNERS[data])
        lines.append(f"| mean | | {np.mean([one.behaviour[data] for one in runs]):.1f} | {means} |")
    lines += ["", "## The bars", "", "| bar | reached | needed | |", "|---|---:|---:|---|"]
    for what, reached, needed in bars(runs):
        lines.append(f"| {what} | {reached:.1f} | {needed:.1f} | {'stands' if reached >= needed else 'FAILS'} |")
    seconds = np.mean([one.seconds for one in runs])
    lines += ["", f"{seconds:.0f} s per seed. torch {torch.__version__}, gymnasium {gymnasium.__version__}, "]
    lines[-1] += f"Python {platform.python_version()}, one thread."
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run all seeds, print the page, and write it where asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with ProcessPoolExecutor(options.processes) as pool:
        runs = list(pool.map(run, options.seeds, itertools.repeat(options.rows)))
    command = f"python -m benchmarks.offline --seeds {' '.join(map(str, options.seeds))}"
    page = report(runs, command, options.rows)
    print(page)
    if options.out is not None:
        options.out.write_text(page)


if __name__ == "__main__":
    main()
