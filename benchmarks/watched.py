"""What callbacks and processing cost: a run with many of them beside one with none, in turn.

    python -m benchmarks.watched [--runs 7]

CPU time of whole epochs of DQN on CartPole, whose episodes are as short on all sides: all act at random.
"""

import argparse
import statistics
import time
from typing import Any

import torch

import trainkit as tk


class Everything(tk.Callback):
    """Hear of all that happens often, and do nothing about it."""

    def on_collect_start(self, trainer: tk.Trainer) -> None: ...

    def on_episode_created(self, trainer: tk.Trainer, episode: tk.Episode) -> None: ...

    def on_episode_start(self, trainer: tk.Trainer, episode: tk.Episode) -> None: ...

    def on_episode_step(self, trainer: tk.Trainer, episode: tk.Episode) -> None: ...

    def on_episode_end(self, trainer: tk.Trainer, episode: tk.Episode) -> None: ...

    def on_collect_end(self, trainer: tk.Trainer, stats: tk.CollectStats) -> None: ...

    def on_train_batch(self, trainer: tk.Trainer, batch: Any) -> None: ...

    def on_update_end(self, trainer: tk.Trainer) -> None: ...


def callbacks() -> list[tk.Callback]:
    """Make one of each ready one that needs neither evaluations nor files."""
    shown = [tk.LogInfo("score"), tk.LogInfo("reward/part", of="sum"), tk.Histograms(every=1_000)]
    return [Everything(), *shown, tk.StopAt(env_step=10**9), tk.Curriculum(lambda trainer: {"level": 1})]


def trainer(watchers: list[tk.Callback], processors: list[tk.Processor]) -> tk.OffpolicyTrainer:
    """Make one whose epochs are 500 vector steps and as many updates."""
    envs = tk.make_envs("CartPole-v1", 10, processors=processors)
    policy = tk.DQNPolicy.for_envs(envs, hidden=(128, 128, 128), exploration=tk.EpsilonGreedy(1.0), device="cpu")
    return tk.OffpolicyTrainer(
        policy, tk.Collector(policy, envs, tk.ReplayBuffer(20_000)), max_epoch=1_000, step_per_epoch=5_000,
        update_per_step=0.1, batch_size=64, callbacks=watchers, seed=1, verbose=False, show_progress=False,
    )  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    sides = {
        "nothing": trainer([], []),
        "callbacks": trainer(callbacks(), []),
        "processors": trainer([], [tk.PreviousStep(), tk.TimeFeature(500), tk.Flatten()]),
        "both": trainer(callbacks(), [tk.PreviousStep(), tk.TimeFeature(500), tk.Flatten()]),
    }
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for run in range(options.runs + 1):
        for name, side in sides.items():
            began = time.thread_time()
            next(side)
            if run:  # the first warms up
                seconds[name].append(time.thread_time() - began)
    for name, own in seconds.items():
        ratios = [a / b for a, b in zip(own, seconds["nothing"], strict=True)]
        print(f"{name:16} {statistics.median(own):.3f} s  {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
