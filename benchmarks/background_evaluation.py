"""Measure what an evaluation in the background costs training: runs with and without it, in turn.

    python -m benchmarks.background_evaluation [--pairs 5] [--epochs 12] [--steps 5000]

DQN on CartPole by the general table of the preset, on one thread: 5,000 steps and 2,500 updates per epoch. The first of
a pair has no evaluation. The second plays 20 episodes after each epoch in a process of its own, which needs a second
core. Each run is in a new process, and its final weights and buffer are compared to the bit.

CPU seconds are those of the training process alone, without the worker's. Seconds are those of all epochs but the last,
which waits for its own evaluation, from the end of the first, in which the worker starts.
"""

import argparse
import hashlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

import trainkit as tk
from benchmarks.provenance import measured_at
from benchmarks.quiet import quiet_machine

OUT = Path("benchmarks/results/background_evaluation.md")


def digest(trainer: tk.Trainer) -> str:
    """Return a sha256 of all weights, and of a batch that the buffer's next draw returns."""
    found = hashlib.sha256()
    for name, weight in trainer.policy.state_dict().items():
        found.update(name.encode() + weight.numpy().tobytes())
    assert isinstance(trainer.buffer, tk.ReplayBuffer)
    batch = trainer.buffer.sample(256, horizon=tk.Horizon(gamma=0.99))
    for column in (batch.obs, batch.action, batch.reward, batch.next_obs):
        found.update(column.tobytes())
    return found.hexdigest()


def run(*, background: bool, n_epochs: int, n_steps: int) -> dict[str, Any]:
    """Train; return seconds, CPU seconds of this process, the digest and the evaluated epochs."""
    torch.set_num_threads(1)
    evaluation = tk.BackgroundEvaluation() if background else None
    with tk.presets.dqn(
        "CartPole-v1", seed=1, zoo=False, max_epoch=n_epochs, step_per_epoch=n_steps, evaluation=evaluation,
        device="cpu", verbose=False, show_progress=False,
    ) as trainer:  # fmt: skip
        clocks = [(time.perf_counter(), time.process_time()) for _ in trainer]
        (start, start_cpu), (end, end_cpu) = clocks[0], clocks[-2]
        n_evaluations = sum(row["test/n_episode"] is not None for row in trainer.history) if background else 0
        return {
            "seconds": end - start,
            "cpu_seconds": end_cpu - start_cpu,
            "digest": digest(trainer),
            "n_evaluations": n_evaluations,
        }


def in_process(**options: Any) -> dict[str, Any]:
    """Run in a process of its own."""
    code = (
        f"import json; from benchmarks import background_evaluation as own; print(json.dumps(own.run(**{options!r})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def page(pairs: list[tuple[dict[str, Any], dict[str, Any]]], command: str, cores: str) -> str:
    """Return the results page."""
    lines = [
        "# What an evaluation in the background costs",
        "",
        measured_at(),
        "",
        f"`{command}` on {platform.machine()}, {os.cpu_count()} cores{cores}, Python {platform.python_version()}, "
        f"torch {torch.__version__}.",
        "",
        *(__doc__ or "").strip().splitlines()[4:],
        "",
        "| pair | weights and buffer | evaluations | CPU s without | CPU s with | ratio | s without | s with | ratio |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    ratios: dict[str, list[float]] = {"cpu_seconds": [], "seconds": []}
    for number, (without, with_it) in enumerate(pairs, 1):
        cells = [str(number), "the same bits" if without["digest"] == with_it["digest"] else "**other bits**"]
        cells.append(str(with_it["n_evaluations"]))
        for name, own in ratios.items():
            own.append(with_it[name] / without[name])
            cells += [f"{without[name]:.2f}", f"{with_it[name]:.2f}", f"{own[-1]:.3f}"]
        lines.append(f"| {' | '.join(cells)} |")
    medians = [statistics.median(own) for own in ratios.values()]
    lines.append(f"| median | | | | | {medians[0]:.3f} | | | {medians[1]:.3f} |")
    return "\n".join([*lines, ""])


@quiet_machine()
def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--steps", type=int, default=5_000, help="per epoch")
    parser.add_argument("--cores", default="", help="what the page says about the cores, such as 'busy'")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    command = f"python -m benchmarks.background_evaluation --pairs {options.pairs} --epochs {options.epochs}"
    command += f" --steps {options.steps}"
    pairs = []
    for _ in range(options.pairs):
        without, with_it = (
            in_process(background=background, n_epochs=options.epochs, n_steps=options.steps)
            for background in (False, True)
        )
        pairs.append((without, with_it))
        print(without, with_it, flush=True)
        options.out.write_text(page(pairs, command, f", {options.cores}" if options.cores else ""))


if __name__ == "__main__":
    main()
