"""Pong by Rainbow on the CPU until a mean test return of 18, in sessions that may be cut at any moment.

    python -m benchmarks.pong --folder runs/pong --seed 1              # after a cut it continues where it was saved
    python -m benchmarks.pong --folder runs/pong --stochasticity noop  # no sticky actions
    python -m benchmarks.pong --report                                 # the page, from `benchmarks/results/pong.jsonl`

The settings are the zoo's. Its network, `SmallCNN`, has 512 features: the noise of Rainbow's layers, by feature, costs
more than convolutions on a CPU. Games, in training and evaluation, differ by sticky actions (Machado et al., 2018), or
as in the paper of Rainbow (Hessel et al., 2018) by up to 30 no-ops at their start. Every epoch of 50,000 environment
steps (of 4 frames each) is saved, and appended as one line to `pong.jsonl` in the folder: its steps, the mean return of
8 greedy games, and the hours of processor time until then. The lines of a finished run are moved to
`benchmarks/results/pong.jsonl` by hand.
"""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import trainkit as tk
from benchmarks.provenance import code_commit, measured_at
from benchmarks.running import machine

RESULTS = Path("benchmarks/results")
STOP_RETURN = 18.0
STOCHASTICITY = {  # how games differ: options of the emulator
    "sticky": {"repeat_action_probability": 0.25, "noop_max": 0},
    "noop": {"repeat_action_probability": 0.0, "noop_max": 30},
}

Runs = Mapping[tuple[int, str], Sequence[Mapping[str, Any]]]  # by seed and stochasticity


def write_page() -> None:
    """Write the page and the picture of the runs in `benchmarks/results/pong.jsonl`."""
    runs: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for line in map(json.loads, (RESULTS / "pong.jsonl").read_text().splitlines()):
        runs.setdefault((line["seed"], line.get("stochasticity", "sticky")), []).append(line)
    plot(runs, RESULTS / "pong.svg")
    commits = [line["commit"] for lines in runs.values() for line in lines]
    rows = [
        f"| {seed} | {differ_by} | {_reached(lines)} | {lines[-1]['steps']:,} | {lines[-1]['return']:.1f} | "
        f"{max(line['return'] for line in lines):.1f} | {lines[-1]['hours']:.2f} |"
        for (seed, differ_by), lines in runs.items()
    ]
    text = [
        "# Pong by Rainbow on the CPU",
        "",
        measured_at(sorted({*commits})),
        "",
        f"`python -m benchmarks.pong --folder runs/pong --seed 1` on {machine()}, one thread. A step is 4 frames. "
        "Games differ by sticky actions (probability 0.25), or by up to 30 no-ops at their start. A run ends at the "
        f"first evaluation of 8 greedy games with a mean of {STOP_RETURN:.0f}, and is saved every 50,000 steps: an "
        "interrupted run resumes with all its state but the emulators', whose games begin anew.",
        "",
        f"| seed | games differ by | steps until {STOP_RETURN:.0f} | steps | last evaluation | best | hours |",
        "|---|---|---|---|---|---|---|",
        *rows,
        "",
        "Hours are of one core.",
        "",
        "![Mean return of 8 greedy games by environment steps](pong.svg)",
        "",
    ]
    (RESULTS / "pong.md").write_text("\n".join(text))


def _reached(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the steps of the first evaluation at which a run stops."""
    return next((f"{line['steps']:,}" for line in lines if line["return"] >= STOP_RETURN), "not reached")


def plot(runs: Runs, path: Path) -> None:
    """Draw the evaluations of every run."""
    import matplotlib.pyplot as plt

    with plt.rc_context({"svg.fonttype": "none", "svg.hashsalt": "trainkit", "font.size": 8}):
        figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
        for (seed, differ_by), lines in runs.items():
            steps, returns = ([line[name] for line in lines] for name in ("steps", "return"))
            axes.plot(steps, returns, label=f"seed {seed}, {differ_by}")
        axes.axhline(STOP_RETURN, linewidth=0.8, linestyle=":", color="gray")
        axes.xaxis.set_major_formatter(lambda step, _: f"{step / 1000:.0f}k")
        axes.set(xlabel="environment steps of 4 frames", ylabel="mean return of 8 greedy games")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, or continue, by the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/pong"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stochasticity", choices=STOCHASTICITY, default="sticky", help="how games differ")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--report", action="store_true", help="write the page, train nothing")
    options = parser.parse_args(arguments)
    if options.report:
        write_page()
        return
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    curve = options.folder / "pong.jsonl"
    lines = [json.loads(line) for line in curve.read_text().splitlines()] if curve.exists() else []
    settings = {**tk.zoo.entry("rainbow", "ALE/Pong-v5").settings}
    env_options = dict(settings.pop("env_options"))
    env_options["env_kwargs"] = {**env_options["env_kwargs"], **STOCHASTICITY[options.stochasticity]}
    trainer = tk.presets.rainbow(
        "ALE/Pong-v5",
        zoo=False,  # whose settings are for sticky actions only
        env_options=env_options,
        **settings | {"max_epoch": options.steps // 50_000},
        seed=options.seed,
        episode_per_test=8,
        stop_return=STOP_RETURN,
        logger=str(options.folder / "log"),
        checkpoint=tk.Checkpoint(options.folder / "checkpoints", keep_last=2),
        resume_from="auto",
        show_progress=False,
    )
    with trainer:
        start = time.process_time() - 3600 * (lines[-1]["hours"] if lines else 0.0)
        for epoch, stats, _ in trainer:
            mean = stats.test.returns.mean
            if mean is None:  # cut before the epoch's end
                break
            line = {
                "seed": options.seed,
                "stochasticity": options.stochasticity,
                "epoch": epoch,
                "steps": trainer.env_step,
                "return": mean,
                "hours": round((time.process_time() - start) / 3600, 3),
                "commit": code_commit(),
            }
            with curve.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(line, flush=True)


if __name__ == "__main__":
    main()
