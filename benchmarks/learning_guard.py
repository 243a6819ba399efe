"""Guard what is learned: six short runs on five seeds, compared with those recorded before a change.

    python -m benchmarks.learning_guard [--runs dqn ...] [--seeds 301 302 303 304 305] [--record] [--no-training]

The score of a run is the mean of all its evaluations, which a slower start lowers as well as a poorer end. A run fails
where the 95 % bootstrap interval of the difference of interquartile means, of today's code and the recorded one, lies
wholly below 0. `--record` trains what `benchmarks/results/learning_guard.jsonl` lacks and keeps it there; without it,
today's runs are kept below `runs/learning_guard`, a file per commit, so that an interrupted call resumes.
Breakout needs `pip install minatar`.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import torch

import trainkit as tk
from benchmarks.cache import Cache
from benchmarks.memory_tasks import cartpole_positions
from benchmarks.provenance import code_commit, listed
from benchmarks.running import machine
from benchmarks.tuning_seeds import check_fresh
from trainkit.plot.comparing import difference

RESULTS = Path("benchmarks/results")
RECORDED = RESULTS / "learning_guard.jsonl"
TODAY = Path("runs/learning_guard")
SEEDS = range(301, 306)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A preset on a task, with the settings that make it short; everything else is the preset's general table."""

    preset: str
    env: str | Callable[[], Any]
    title: str
    settings: Mapping[str, Any]


RUNS = {
    "dqn": Run(
        preset="dqn", env="CartPole-v1", title="CartPole-v1", settings={"max_epoch": 10, "step_per_epoch": 5_120}
    ),
    "rainbow": Run(
        preset="rainbow", env="CartPole-v1", title="CartPole-v1", settings={"max_epoch": 10, "step_per_epoch": 5_120}
    ),
    "ppo": Run(
        preset="ppo", env="Acrobot-v1", title="Acrobot-v1", settings={"max_epoch": 10, "step_per_epoch": 12_288}
    ),
    "sac": Run(
        preset="sac", env="Pendulum-v1", title="Pendulum-v1", settings={"max_epoch": 8, "step_per_epoch": 1_000}
    ),
    "recurrent": Run(
        preset="recurrent_ppo",
        env=cartpole_positions,
        title="CartPole-v1 without velocities",
        settings={"max_epoch": 10, "step_per_epoch": 12_288},
    ),
    "minatar": Run(
        preset="dqn",
        env="MinAtar/Breakout-v1",
        title="MinAtar's Breakout",
        settings={"max_epoch": 10, "step_per_epoch": 6_000},
    ),
}


def learn(name: str, seed: int) -> dict[str, Any]:
    """Train a run without the zoo; return the mean returns of its evaluations, and seconds of CPU."""
    run, began = RUNS[name], time.process_time()
    if str(run.env).startswith("MinAtar/") and run.env not in gymnasium.registry:
        import minatar.gym

        minatar.gym.register_envs()
    trainer = tk.presets.PRESETS[run.preset](
        run.env, seed=seed, zoo=False, device="cpu", threads=1, verbose=False, show_progress=False, **run.settings
    )
    with trainer:
        returns = [stats["test/returns/mean"] for _, stats, _ in trainer]
    return {"returns": returns, "seconds": round(time.process_time() - began, 1)}


def scores(cache: Cache, name: str, seeds: Sequence[int]) -> list[float]:
    """Return the mean over all evaluations of each seed's run."""
    found = (cache.get(name, seed) for seed in seeds)
    return [statistics.fmean(run["returns"]) for run in found if run is not None]


def rows(before: Cache, now: Cache, seeds: Sequence[int]) -> Iterator[tuple[list[str], bool]]:
    """Yield the cells of each run that was made on both sides, and whether it learns worse than recorded."""
    for name, run in RUNS.items():
        recorded, own = (scores(cache, name, seeds) for cache in (before, now))
        if len(recorded) < 2 or len(own) < 2:
            continue
        found = difference(own, recorded)
        is_worse = found.high < 0
        yield (
            [
                f"{run.preset}, {run.title}",
                ", ".join(f"{score:.4g}" for score in recorded),
                ", ".join(f"{score:.4g}" for score in own),
                f"{found.estimate:.3g} [{found.low:.3g}, {found.high:.3g}]",
                "**worse**" if is_worse else "equal" if recorded == own else "not worse",
            ],
            is_worse,
        )


def report(before: Cache, now: Cache, cells: Sequence[Sequence[str]], seeds: Sequence[int]) -> str:
    """Return the page, in markdown."""
    old, new = (
        [cache.commit(name, seed) for name in RUNS for seed in seeds if cache.get(name, seed)]
        for cache in (before, now)
    )
    lines = [
        "# The learning guard",
        "",
        f"Measured at commit {listed(new)}, beside runs recorded at {listed(old)}.",
        "",
        f"`make learning-guard` on {machine()}, one thread; trainkit {tk.__version__}, torch {torch.__version__}, "
        f"gymnasium {gymnasium.__version__}.",
        "",
        "Six short runs with the presets' general tables, seeds "
        f"{seeds[0]} to {seeds[-1]}; of each the mean of all its evaluations, 20 greedy episodes each. The difference "
        "is that of the interquartile means with its 95 % bootstrap interval; a run that lies wholly below 0 fails. "
        "Equal means equal to the last bit.",
        "",
        "| run | recorded, by seed | now, by seed | difference | result |",
        "|---|---|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in cells),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Train what is missing, write the page, and fail where a run learns worse than recorded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="+", choices=list(RUNS), default=list(RUNS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--record", action="store_true", help="keep runs as those that later ones are compared with")
    parser.add_argument("--no-training", action="store_true", help="write the page of what there is")
    given = parser.parse_args()
    torch.set_num_threads(1)
    cache = Cache(RECORDED if given.record else TODAY / f"{code_commit()}.jsonl")
    for seed in given.seeds:
        for name in () if given.no_training else given.runs:
            check_fresh([RUNS[name].preset], RUNS[name].title, [seed])
            if cache.get(name, seed) is None:
                run = learn(name, seed)
                cache.put(run, name, seed)
                print(f"{name} {seed}: {statistics.fmean(run['returns']):.4g}, {run['seconds']:.0f} s", flush=True)
    if given.record:
        return
    before = Cache(RECORDED)
    found = list(rows(before, cache, given.seeds))
    if not found:
        raise SystemExit(
            "no run was made on both sides: --record records them, a call without --no-training makes them"
        )
    (RESULTS / "learning_guard.md").write_text(report(before, cache, [cells for cells, _ in found], given.seeds))
    for cells, _ in found:
        print(" | ".join(cells))
    raise SystemExit(any(is_worse for _, is_worse in found))


if __name__ == "__main__":
    main()
