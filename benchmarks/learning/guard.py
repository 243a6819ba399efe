"""Guard what is learned: six short runs on five seeds, compared with those recorded before a change.

    python -m benchmarks.learning.guard [--runs dqn ...] [--seeds 301 302 303 304 305] [--record] [--no-training]

The score of a run is the mean of all its evaluations, which a slower start lowers as well as a poorer end. A run fails
where the 95 % bootstrap interval of the difference of interquartile means, of today's code and the recorded one, lies
wholly below 0. `--record` trains what `benchmarks/results/learning_guard.jsonl` lacks and keeps it there; without it,
today's runs are kept below `runs/learning_guard`, a file per commit, so that an interrupted call resumes.
Breakout needs `pip install minatar`.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import pages
from benchmarks.learning.memory_tasks import cartpole_positions
from benchmarks.learning.training import check_fresh, preset_trainer
from benchmarks.pages import Cache, code_commit, listed
from trainkit.plot.comparing import difference

RECORDED = pages.RESULTS / "learning_guard.jsonl"
TODAY = Path("runs/learning_guard")
SEEDS = range(301, 306)


@dataclass(frozen=True, slots=True)
class Run:
    """A preset on a task, with the epochs that make it short; everything else is the preset's general table."""

    preset: str
    env: str | Callable[[], Any]
    title: str
    max_epoch: int
    step_per_epoch: int


RUNS = {
    "dqn": Run("dqn", "CartPole-v1", "CartPole-v1", 10, 5_120),
    "rainbow": Run("rainbow", "CartPole-v1", "CartPole-v1", 10, 5_120),
    "ppo": Run("ppo", "Acrobot-v1", "Acrobot-v1", 10, 12_288),
    "sac": Run("sac", "Pendulum-v1", "Pendulum-v1", 8, 1_000),
    "recurrent": Run("recurrent_ppo", cartpole_positions, "CartPole-v1 without velocities", 10, 12_288),
    "minatar": Run("dqn", "MinAtar/Breakout-v1", "MinAtar's Breakout", 10, 6_000),
}


def learn(name: str, seed: int) -> dict[str, Any]:
    """Train a run without the zoo; return the mean returns of its evaluations, and seconds of CPU."""
    run, began = RUNS[name], time.process_time()
    epochs = {"max_epoch": run.max_epoch, "step_per_epoch": run.step_per_epoch}
    with preset_trainer(run.preset, run.env, seed, zoo=False, threads=1, **epochs) as trainer:
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


def report(before: Cache, now: Cache, cells: Sequence[Sequence[str]], seeds: Sequence[int]) -> list[str]:
    """Return the lines of the page."""
    old, new = (
        [cache.commit(name, seed) for name in RUNS for seed in seeds if cache.get(name, seed)]
        for cache in (before, now)
    )
    return [
        *pages.heading("The learning guard", "make learning-guard", new, packages=["gymnasium"]),
        f"Compared with runs recorded at {listed(old)}: six short runs with the presets' general tables, seeds "
        f"{seeds[0]} to {seeds[-1]}; of each the mean of all its evaluations, 20 greedy episodes each. The difference "
        "is that of the interquartile means with its 95 % bootstrap interval; a run that lies wholly below 0 fails. "
        "Equal means equal to the last bit.",
        "",
        *pages.table(["run", "recorded, by seed", "now, by seed", "difference", "result"], cells),
    ]


def main() -> None:
    """Train what is missing, write the page, and fail where a run learns worse than recorded."""
    parser = pages.arguments(__doc__)
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
    pages.write("learning_guard", report(before, cache, [cells for cells, _ in found], given.seeds))
    for cells, _ in found:
        print(" | ".join(cells))
    raise SystemExit(any(is_worse for _, is_worse in found))


if __name__ == "__main__":
    main()
