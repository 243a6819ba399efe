"""Draw the figures of docs/plotting.md that follow one run: episodes, priorities and time.

    python -m benchmarks.learning.figures [--out docs/images]

C51, QR-DQN and Rainbow on CartPole by the general tables, seed 1. Curves of several seeds come from the benchmarks
that train them.
"""

from pathlib import Path

import trainkit as tk
from benchmarks import pages

N_STEPS = {"c51": 12_000, "qrdqn": 12_000, "rainbow": 30_000}


def trained(name: str) -> tk.Trainer:
    """Return a run of a preset that has ended."""
    trainer: tk.Trainer = tk.presets.PRESETS[name](
        "CartPole-v1", seed=1, zoo=False, max_epoch=N_STEPS[name] // 2_000, step_per_epoch=2_000, evaluation=None,
        show_progress=False,
    )  # fmt: skip
    trainer.run()
    return trainer


def main() -> None:
    """Train, and write the figures."""
    parser = pages.arguments(__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    out = parser.parse_args().out
    for name in ("c51", "qrdqn"):
        with trained(name) as trainer:
            tk.plot.save(
                tk.plot.episode_values(trainer.policy, "CartPole-v1", seed=3), out / f"plot_episode_{name}.svg"
            )
    with trained("rainbow") as trainer:
        assert isinstance(trainer.buffer, tk.PrioritizedReplayBuffer), "Rainbow has priorities"
        tk.plot.save(tk.plot.priorities(trainer.buffer, step=trainer.clock), out / "plot_priorities.svg")
        tk.plot.save(tk.plot.time_shares(trainer), out / "plot_time.svg")


if __name__ == "__main__":
    main()
