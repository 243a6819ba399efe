"""Measure recurrent PPO beside stable-baselines3-contrib's, on CartPole without velocities in 8 environments.

    python -m benchmarks.recurrent_speed [--rounds 5] [--core 0] [--peer .peers/sb3-contrib@2.9.2/bin/python]

Both sides do the work in `recurrent_work.py`, and report steps, updates, trained parameters and environments of each
block, which must be equal: actor and critic have an LSTM of 64 units each, on the two inputs, and a linear head. They
are processes pinned to one core with one thread, which take turns, and seconds are of their CPU time. The first block
of each is not counted.
"""

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks.provenance import measured_at
from benchmarks.quiet import quiet_machine
from benchmarks.recurrent_work import BATCH, BLOCK, EPOCHS, N_ENVS, PARAMETERS, ROLLOUT, WORK
from benchmarks.running import Live, machine

RESULT = Path("benchmarks/results/recurrent_speed.md")


def rates(python: str, peer: str, core: int, n_rounds: int) -> tuple[list[dict[str, float]], dict[str, str]]:
    """Return the environment steps per second of CPU of each side in each round, and the sides' versions."""
    rounds: list[dict[str, float]] = []
    versions: dict[str, str] = {}
    ours, theirs = (
        [one, "-m", f"benchmarks.{name}", "1"]
        for one, name in ((python, "recurrent_trainkit"), (peer, "recurrent_sb3"))
    )
    with Live(ours, core) as trainkit, Live(theirs, core) as contrib:
        for number in range(n_rounds + 1):
            own: dict[str, float] = {}
            for name, side in (("trainkit", trainkit), ("sb3-contrib", contrib)):
                answer: dict[str, Any] = side.ask("block", WORK)
                own[name], versions[name] = BLOCK / answer["seconds"], answer["version"]
            if number:
                rounds.append(own)
                print({side: round(rate) for side, rate in own.items()}, flush=True)
    return rounds, versions


def report(rounds: list[dict[str, float]], versions: dict[str, str]) -> str:
    """Return the page, in markdown."""
    ratios = [own["trainkit"] / own["sb3-contrib"] for own in rounds]
    return "\n".join(
        [
            "# Speed of recurrent PPO",
            "",
            measured_at(),
            "",
            f"`python -m benchmarks.recurrent_speed` on {machine()}; one core, one thread each, in turn.",
            "",
            f"CartPole-v1 without velocities, {N_ENVS} environments, rollouts of {ROLLOUT} steps of each, {EPOCHS} "
            f"passes in batches of {BATCH} rows, {PARAMETERS:,} parameters: an LSTM of 64 units for the actor and one "
            "for the critic, and linear heads. Rates are environment steps per second of CPU, learning included.",
            "",
            "| side | version | steps/s, median | lowest | highest |",
            "|---|---|---|---|---|",
            *(
                f"| {side} | {versions[side]} | {statistics.median(one):,.0f} | {min(one):,.0f} | {max(one):,.0f} |"
                for side in versions
                for one in [[own[side] for own in rounds]]
            ),
            "",
            f"trainkit's rate by sb3-contrib's, round by round: median {statistics.median(ratios):.1f}, "
            f"{min(ratios):.1f} to {max(ratios):.1f} in {len(ratios)} rounds.",
            "",
        ]
    )


@quiet_machine()
def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--peer", default=".peers/sb3-contrib@2.9.2/bin/python", help="Python that has sb3-contrib")
    given = parser.parse_args()
    RESULT.write_text(report(*rates(sys.executable, given.peer, given.core, given.rounds)))


if __name__ == "__main__":
    main()
