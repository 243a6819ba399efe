"""Train every preset with the zoo's settings on CartPole-v1, evaluated on episodes that were never played before.

    python -m benchmarks.learning.cartpole [--presets dqn rainbow ...] [--seeds 1 2 3 4 5] [--plot] [--no-training]

The bar, for every preset: a mean return of 400 within 60,000 steps on 4 seeds of 5. Finished runs are kept in
`benchmarks/results/learning_cartpole.jsonl` and not run again. `--plot` draws a curve per preset into `docs/images`.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import trainkit as tk
from benchmarks import pages
from benchmarks.learning.training import check_fresh, curve, is_for_one_agent, settings_of

ENV, EVERY, N_EPOCHS, EPISODES = "CartPole-v1", 5_000, 12, 100
STEPS = EVERY * N_EPOCHS
LEARNED, SOLVED = 400.0, 475.0  # the bar, and what Gymnasium calls solved
SHARE = 0.8  # of the seeds that must reach the bar
PRESETS = [name for name, one in tk.presets.PRESETS.items() if "classic" in one.domains and is_for_one_agent(name)]
CACHE = pages.RESULTS / "learning_cartpole.jsonl"
PAGE = "learning_cartpole"

Run = Mapping[str, Any]  # preset, seed, returns, seconds, commit, is_outdated


def settings(preset: str) -> dict[str, str]:
    """Return the settings of a preset."""
    return settings_of(preset, ENV, {"max_epoch": N_EPOCHS, "step_per_epoch": EVERY})


def learn(preset: str, seed: int) -> dict[str, Any]:
    """Train; return the mean return of every evaluation, and seconds of CPU."""
    result: dict[str, Any] = curve(preset, ENV, seed, n_epochs=N_EPOCHS, every=EVERY, episodes=EPISODES)
    return result


def published(cache: pages.Cache, presets: Sequence[str], seeds: Sequence[int]) -> list[Run]:
    """Return the last finished run of each preset and seed."""
    runs = []
    for preset, seed in itertools.product(presets, seeds):
        if (result := cache.get(preset, seed)) is not None:
            run = {**result, "preset": preset, "seed": seed, "commit": cache.commit(preset, seed)}
            runs.append({**run, "is_outdated": cache.is_outdated(settings(preset), preset, seed)})
    return runs


def reached(run: Run, mean: float) -> float:
    """Return the steps of the first evaluation with at least this mean, infinity where there is none."""
    return next((EVERY * n for n, own in enumerate(run["returns"], start=1) if own >= mean), np.inf)


def meets_bar(runs: Sequence[Run]) -> bool:
    """Return whether the runs of a preset meet the bar."""
    return sum(np.isfinite(reached(run, LEARNED)) for run in runs) >= SHARE * len(runs)


def rows(runs: Sequence[Run]) -> Iterator[list[str]]:
    """Yield the cells of each preset."""
    for preset in dict.fromkeys(run["preset"] for run in runs):
        own = [run for run in runs if run["preset"] == preset]
        cells = [preset]
        for mean in (LEARNED, SOLVED):
            steps = [reached(run, mean) for run in own]
            median = float(np.median(steps))
            cells += [f"{np.isfinite(steps).sum()} of {len(own)}", "-" if np.isinf(median) else f"{median:,.0f}"]
        cells += [f"{np.median([run[name] for run in own]):.0f}" for name in ("last", "seconds")]
        commits = pages.listed(run["commit"] for run in own)
        commits += ", other settings then" if any(run["is_outdated"] for run in own) else ""
        yield [*cells, "met" if meets_bar(own) else "**missed**", commits]


def report(runs: Sequence[Run], command: str) -> list[str]:
    """Return the lines of the page."""
    runs = [{**run, "last": run["returns"][-1]} for run in runs]
    columns = [f"seeds at {LEARNED:.0f}", f"steps to {LEARNED:.0f}", f"seeds at {SOLVED:.0f}", f"steps to {SOLVED:.0f}"]
    return [
        *pages.heading(f"Learning {ENV}", command, [run["commit"] for run in runs], packages=["gymnasium", "numpy"]),
        f"The presets' defaults, with the zoo's settings; every {EVERY:,} steps the greedy policy plays {EPISODES} "
        f"episodes on fresh seeds. The bar: a mean of {LEARNED:.0f} within {STEPS:,} steps on {SHARE:.0%} of the "
        "seeds. Steps and the last mean are medians over the seeds; a mean that was never reached counts as more than "
        "all.",
        "",
        *pages.table(["preset", *columns, f"mean at {STEPS:,}", "seconds", "bar", "measured at"], rows(runs)),
        "All evaluations, in order:",
        "",
        "```",
        *(f"{run['preset']:16}{run['seed']:3} " + "".join(f"{one:5.0f}" for one in run["returns"]) for run in runs),
        "```",
    ]


def plot(preset: str, runs: Sequence[Run], path: Path) -> None:
    """Draw the median over seeds and the range of all of them."""
    returns = np.array([run["returns"] for run in runs])  # [seeds, evaluations]
    steps = EVERY * np.arange(1, returns.shape[1] + 1)
    with pages.figure(path, figsize=(5.2, 2.6)) as axes:
        axes.fill_between(steps, returns.min(axis=0), returns.max(axis=0), alpha=0.2, linewidth=0, label="all seeds")
        axes.plot(steps, np.median(returns, axis=0), label=f"median of {len(runs)} seeds")
        axes.axhline(SOLVED, color="grey", linewidth=0.8, linestyle=":", label=f"solved: {SOLVED:.0f}")
        axes.set(title=f"{preset}, {ENV}", xlabel="environment steps", ylabel="return, greedy", ylim=(0, 510))
        axes.xaxis.set_major_formatter(lambda step, _: f"{step / 1000:.0f}k")


def main() -> None:
    """Train what is missing, and write the page after every run."""
    parser = pages.arguments(__doc__)
    parser.add_argument("--presets", nargs="+", choices=PRESETS, default=PRESETS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument(
        "--plot", action="store_true", help="draw a figure per preset (pip install 'trainkit-rl[plot]')"
    )
    parser.add_argument("--no-training", action="store_true", help="write the page of the kept runs")
    options = parser.parse_args()
    torch.set_num_threads(1)  # the fastest for networks this small
    command = f"python -m benchmarks.learning.cartpole --seeds {' '.join(map(str, options.seeds))}"
    if options.presets != PRESETS:
        command += f" --presets {' '.join(options.presets)}"
    cache = pages.Cache(CACHE)
    for seed, preset in () if options.no_training else itertools.product(options.seeds, options.presets):
        if cache.is_due(settings(preset), preset, seed):
            check_fresh([preset], ENV, [seed])
            result = learn(preset, seed)
            cache.put(result, preset, seed, settings=settings(preset))
            pages.write(PAGE, report(published(cache, options.presets, options.seeds), command))
            print(f"{preset} {seed}: {[round(mean) for mean in result['returns']]}", flush=True)
    runs = published(cache, options.presets, options.seeds)
    pages.write(PAGE, report(runs, command))
    by_preset = {preset: [run for run in runs if run["preset"] == preset] for preset in options.presets}
    for preset, own in by_preset.items() if options.plot else ():
        plot(preset, own, pages.ROOT / "docs" / "images" / f"{preset}_cartpole.svg")
    raise SystemExit(not all(meets_bar(own) for own in by_preset.values()))


if __name__ == "__main__":
    main()
