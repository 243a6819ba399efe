"""Solve CartPole with Rainbow: all six parts, until 100 fresh episodes average 475. `make demo` runs this."""

import time

import torch

import trainkit as tk

SOLVED = 475.0


def main() -> None:
    """Train, then tell what was reached and where to look."""
    torch.set_num_threads(1)  # networks this small are fastest on one
    began = time.perf_counter()
    trainer = tk.presets.rainbow(
        "CartPole-v1",
        seed=1,
        stop_return=SOLVED,  # judged twice: on the seeds of every evaluation, then on fresh ones
        episode_per_test=100,
        max_epoch=40,
        step_per_epoch=2_500,
        logger="runs/rainbow_cartpole",
        checkpoint="runs/rainbow_cartpole_checkpoint",
    )
    with trainer:
        results = list(trainer)
    _, stats, info = results[-1]
    reached = info.last_test.returns
    verdict = "solved" if info.stop_reason == "stop_fn" else "not solved"
    print(f"\n{verdict}: {reached.mean:.1f} +- {reached.std:.1f} over {reached.count} episodes it had never seen,")
    seconds = time.perf_counter() - began
    print(f"after {info.env_step:,} steps and {info.gradient_step:,} updates, in {seconds:.0f} seconds.")
    print(f"{stats['update/clipped_share']:.1%} of the value distribution lay beyond its support's ends.")
    print(f"\nlook at it:  .venv/bin/tensorboard --logdir {info.run_dir}")
    print("go on from:  runs/rainbow_cartpole_checkpoint  (resume_from=)")


if __name__ == "__main__":
    main()
