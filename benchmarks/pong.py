"""Pong by Rainbow on the CPU until a mean test return of 18, in sessions that may be cut at any moment.

    python -m benchmarks.pong --folder runs/pong --seed 1        # again after a cut: the run goes on where it was saved

The screen is reduced to 42 by 42 pixels, which four small convolutions see in a fifth of the Nature network's time;
actions are sticky, as Machado et al. (2018) advise. Every epoch of 25,000 environment steps (of 4 frames each) is
saved, and appended as one line to `pong.jsonl` in the folder: its steps, the mean return of 8 greedy games, and the
hours of processor time until then.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

import trainkit as tk
from trainkit.presets.base import ATARI_ENVS

GOAL = 18.0
SCREEN = 42  # pixels


class FourConvolutions(nn.Module):
    """Four convolutions of 32 filters, 3 by 3 with stride 2, as universe-starter-agent has for 42 by 42 pixels.

    Args:
        shape: of the stacked frames, [C, H, W].
    """

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for channels in (shape[0], 32, 32, 32):
            layers += [nn.Conv2d(channels, 32, 3, stride=2, padding=1), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Flatten())

    def forward(self, frames: Tensor) -> Tensor:
        """Return features, [B, F], of frames [B, C, H, W]."""
        features: Tensor = self.layers(frames)
        return features


tk.nets.register_encoder("four_convolutions", FourConvolutions)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, or go on, as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/pong"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1_000_000)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    curve = options.folder / "pong.jsonl"
    lines = [json.loads(line) for line in curve.read_text().splitlines()] if curve.exists() else []
    trainer = tk.presets.rainbow(
        "ALE/Pong-v5",
        seed=options.seed,
        env_options={
            **ATARI_ENVS,
            "env_kwargs": {**ATARI_ENVS["env_kwargs"], "img_height": SCREEN, "img_width": SCREEN},
        },
        encoder="four_convolutions",
        head=(256,),
        lr=2e-4,
        capacity=200_000,
        learning_starts=10_000,
        target_every=4_000,
        max_epoch=options.steps // 25_000,
        step_per_epoch=25_000,
        episode_per_test=8,
        stop_return=GOAL,
        logger=str(options.folder / "log"),
        checkpoint=tk.Checkpoint(options.folder / "checkpoints", keep_last=2),
        resume_from="auto",
        show_progress=False,
    )
    with trainer:
        start = time.process_time() - 3600 * (lines[-1]["hours"] if lines else 0.0)
        for epoch, stats, _ in trainer:
            if stats.test.returns is None:  # cut before its end
                break
            line = {
                "seed": options.seed,
                "epoch": epoch,
                "steps": trainer.env_step,
                "return": stats.test.returns.mean,
                "hours": round((time.process_time() - start) / 3600, 3),
            }
            with curve.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(line, flush=True)


if __name__ == "__main__":
    main()
