"""What callbacks and processing cost: a run with every ready one of them beside one with none, in turn.

    python -m benchmarks.watched [--tasks ...] [--runs 10] [--out FILE]

DQN with episodes as long on all sides: on MountainCar 200 steps, as nobody arrives so early, on CartPole some 22, the
least there is, as all act at random. Every side is evaluated. Each is a run of its own that goes on from round to
round, and a round is an epoch of it, the first of which does not count. In that one an evaluation is filmed, which
takes as long as its frames take to be drawn and encoded. Seconds are of CPU time, the encoder's among them.
"""

import argparse
import os
import platform
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import trainkit as tk
from benchmarks.provenance import measured_at
from benchmarks.quiet import quiet_machine

TASKS = {"MountainCar-v0": 0.1, "CartPole-v1": 1.0}  # with the share of random actions
STEPS = 20_000  # of an epoch, in 10 environments, an update of 64 rows per vector step
FILMED_EVERY = 1_000  # evaluations


class Everything(tk.Callback):
    """Hear of all that happens often, and do nothing about it."""

    def on_collect_start(self, trainer: tk.Trainer) -> None: ...

    def on_episode_created(self, trainer: tk.Trainer, episode: tk.collector.Episode) -> None: ...

    def on_episode_start(self, trainer: tk.Trainer, episode: tk.collector.Episode) -> None: ...

    def on_episode_step(self, trainer: tk.Trainer, episode: tk.collector.Episode) -> None: ...

    def on_episode_end(self, trainer: tk.Trainer, episode: tk.collector.Episode) -> None: ...

    def on_collect_end(self, trainer: tk.Trainer, stats: tk.CollectStats) -> None: ...

    def on_train_batch(self, trainer: tk.Trainer, batch: Any) -> None: ...

    def on_update_end(self, trainer: tk.Trainer) -> None: ...


class Nothing(tk.Callback):
    """Override no event."""


def hearing() -> list[tk.Callback]:
    """Make those that hear of every step, or look at what it left."""
    shown = [tk.callbacks.LogInfo("score"), tk.callbacks.LogInfo("reward/part", of="sum"), tk.callbacks.Histograms()]
    return [
        Everything(),
        *shown,
        tk.callbacks.StopAt(env_step=10**9),
        tk.callbacks.Curriculum(lambda trainer: {"level": 1}),
    ]


def writing(folder: Path) -> list[tk.Callback]:
    """Make those that write files."""
    return [
        tk.callbacks.SaveBest(folder / "best"),
        tk.callbacks.SaveEvery(folder / "kept"),
        tk.callbacks.RecordVideo(folder / "videos", every=FILMED_EVERY),
        tk.callbacks.DatasetWriter(folder / "dataset"),
        tk.Checkpoint(folder / "checkpoints"),
    ]


def processing() -> list[tk.envs.Processor]:
    """Make processors that let the policy see more, and one vector of it."""
    return [tk.envs.PreviousStep(), tk.envs.TimeFeature(500), tk.envs.Flatten()]


def trainer(
    task: str, watchers: Sequence[tk.Callback] = (), processors: Sequence[tk.envs.Processor] = ()
) -> tk.OffpolicyTrainer:
    """Make one with or without them, the rest the same."""
    envs = tk.make_envs(task, 10, processors=processors)
    drawn = tk.make_envs(task, 10, processors=processors, env_kwargs={"render_mode": "rgb_array"})
    policy = tk.DQNPolicy.for_envs(
        envs, hidden=(128, 128, 128), exploration=tk.EpsilonGreedy(TASKS[task]), device="cpu"
    )
    return tk.OffpolicyTrainer(
        policy, tk.Collector(policy, envs, tk.ReplayBuffer(20_000)), max_epoch=1_000, step_per_epoch=STEPS,
        update_per_step=0.1, batch_size=64, callbacks=watchers, seed=1, verbose=False, show_progress=False,
        evaluation=tk.Evaluation(tk.Collector(policy, drawn), explore=True),
    )  # fmt: skip


def seconds_of(side: tk.OffpolicyTrainer) -> float:
    """Return the CPU time of one epoch, that of ended processes it started too."""
    before = os.times()
    next(side)
    return sum(os.times()[:4]) - sum(before[:4])


def measure(task: str, n_runs: int) -> Iterator[str]:
    """Run all sides in turn; yield a row for each: its median, and that of its ratios to nothing in the same round."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sides = {
            "nothing": trainer(task),
            "a callback that overrides nothing": trainer(task, [Nothing()]),
            "hearing": trainer(task, hearing()),
            "writing": trainer(task, writing(folder / "alone")),
            "processing": trainer(task, processors=processing()),
            "all of them": trainer(task, [*hearing(), *writing(folder / "all")], processing()),
        }
        for own in sides.values():
            next(own)
        seconds: dict[str, list[float]] = {side: [] for side in sides}
        for _ in range(n_runs):
            for side, own in sides.items():
                seconds[side].append(seconds_of(own))
    for side, told in seconds.items():
        ratio = statistics.median(own / plain for own, plain in zip(told, seconds["nothing"], strict=True))
        yield f"| {task} | {side} | {statistics.median(told):.3f} | {ratio:.3f} |"


@quiet_machine()
def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/watched.md"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    command = f"python -m benchmarks.watched --tasks {' '.join(options.tasks)} --runs {options.runs}"
    lines = [
        "# What callbacks and processing cost",
        "",
        measured_at(),
        "",
        f"`{command}` on {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, torch "
        f"{torch.__version__}, one thread; medians of {options.runs} rounds, seconds per {STEPS:,} environment steps.",
        "",
        *(__doc__ or "").strip().splitlines()[4:],
        "",
        "Hearing: a callback that overrides all that happens often, two `LogInfo`, `Histograms`, `StopAt` and "
        "`Curriculum`. Writing: `SaveBest`, `SaveEvery`, `RecordVideo`, `DatasetWriter`, `Checkpoint`. Processing: "
        "`PreviousStep`, `TimeFeature`, `Flatten`.",
        "",
        "| task | with | s | ratio |",
        "|---|---|---|---|",
    ]
    for task in options.tasks:
        for row in measure(task, options.runs):
            print(row, flush=True)
            lines.append(row)
    options.out.write_text("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
