"""Rainbow on an Atari game: ale-py's environments in C++, frames stacked by the buffer, Hessel et al.'s (2018) numbers.

    pip install 'trainkit-rl[atari]'
    python examples/rainbow_atari.py                                    # Pong
    python examples/rainbow_atari.py --game ALE/Breakout-v5 --lives     # a lost life ends the learner's episode
    python examples/rainbow_atari.py --steps 4000 --capacity 10000 --learning-starts 1000     # minutes on a CPU

The buffer keeps single frames, 7.1 GB of them at its million; rewards are stored as they are and their sign is taken
on read, so that returns, lengths and the score of an evaluation are those of whole games.
"""

import argparse
import time
from collections.abc import Sequence

import trainkit as tk


def main(arguments: Sequence[str] | None = None) -> tk.trainer.RunInfo:
    """Train as the command line says and return how it ended."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--game", default="ALE/Pong-v5")
    parser.add_argument("--steps", type=int, default=10_000_000, help="of 4 frames each; the paper's are 50 million")
    parser.add_argument("--epochs", type=int, default=40, help="evaluations on the way")
    parser.add_argument("--lives", action="store_true", help="let a lost life end the learner's episode")
    parser.add_argument("--capacity", type=int, default=1_000_000)
    parser.add_argument("--learning-starts", type=int, default=20_000)
    parser.add_argument("--test-episodes", type=int, default=8)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--logdir", default=None, help="default: runs/rainbow_GAME_TIME")
    options = parser.parse_args(arguments)
    now = time.strftime("%Y%m%d_%H%M%S")
    logdir = options.logdir or f"runs/rainbow_{options.game.split('/')[-1]}_{now}"
    trainer = tk.presets.rainbow(
        options.game,
        seed=options.seed,
        zoo=False,  # the paper's settings
        env_options={"lives_key": "lives" if options.lives else None},
        capacity=options.capacity,
        learning_starts=options.learning_starts,
        max_epoch=options.epochs,
        step_per_epoch=max(options.steps // options.epochs, 1),
        episode_per_test=options.test_episodes,
        device=options.device,
        logger=logdir,
        checkpoint=f"{logdir}_checkpoint",
    )
    print(f"{trainer.policy.device}, buffer {trainer.buffer.nbytes / 1e9:.1f} GB, logs in {logdir}")
    with trainer:
        return trainer.run()


if __name__ == "__main__":
    main()
