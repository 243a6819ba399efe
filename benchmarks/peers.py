"""Measure off-policy learners beside peers on the same work, in turn, and write a table of medians and ratios.

    python -m benchmarks.peers [--runs 15] [--cores 0] [--works NAME ...] [--out FILE]

Peers live in environments of their own, which `make bench-peers` builds. For each work all sides are there at once and
take turns. A turn is as many blocks of the same work as take half a second: this kind of machine changes its pace
several times a second, and a side that is done sooner must not be judged by one of its moods. A ratio is the median
over these rounds. A side that did not do the work that was wanted stops everything, and the rows before it stay. On two
cores every side has two threads.
"""

import argparse
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from benchmarks.provenance import measured_at
from benchmarks.running import Live, machine
from benchmarks.work import COLLECT, GAMMA, LOOP, RATES, UPDATES, WORKS

OURS = [sys.executable, "-m", "benchmarks.side_trainkit"]
PEERS = {
    "sb3": [".peers/sb3-contrib@2.9.2/bin/python", "-m", "benchmarks.side_sb3"],
    "tianshou": [".peers/tianshou@1.2.0/bin/python", "-m", "benchmarks.side_tianshou"],
    "tianshou2": [".peers/tianshou@2.0.1/bin/python", "-m", "benchmarks.side_tianshou2"],
    "rllib": [".peers/ray[rllib]@2.60.0/bin/python", "-m", "benchmarks.side_rllib"],
}


class Comparison(NamedTuple):
    """A work, a peer, and how many times its rate ours must be."""

    title: str
    work: str
    peer: str
    bars: Mapping[str, float] = {}  # {rate: ratio}
    rates: tuple[str, ...] = RATES
    is_short_at_resets: bool = False  # on one side a vector step has no row of an environment that only resets

    @property
    def slack(self) -> dict[str, int]:
        """By how much a side may miss what is wanted, so as to end with a whole vector step."""
        over = WORKS[self.work].n_envs - 1
        return {"collected": over, "loop_steps": over} if self.is_short_at_resets else {}


COMPARISONS = [
    Comparison("one step, huber, clipped", "huber", "sb3", {LOOP: 2.1, UPDATES: 2.5}),
    Comparison("the same, 64-64", "small", "sb3", {UPDATES: 2.5}),
    Comparison("the same, 128-128-128, 64 environments", "many", "sb3"),
    Comparison("one step, huber, clipped", "huber", "rllib", {LOOP: 12.0}, rates=(LOOP,), is_short_at_resets=True),
    Comparison("one step, mse", "mse", "tianshou", {LOOP: 3.7, COLLECT: 4.5}),
    Comparison("one step, mse", "mse", "tianshou2", {LOOP: 3.3}),
    Comparison(
        "the same, one action in twenty at random",
        "acting",
        "tianshou",
        {COLLECT: 4.5},
        rates=(COLLECT,),  # by networks that have not learnt: what they learn would make episodes longer
    ),
    Comparison("prioritised, 3-step, double, mse", "prioritised", "tianshou", {LOOP: 3.5}),
    Comparison("prioritised, 3-step, double, mse", "prioritised", "tianshou2"),
    Comparison("Rainbow, 128-128, batch 32", "rainbow", "tianshou", rates=(UPDATES, LOOP)),
    Comparison(
        "one step, mse; ours on gymnasium's vector CartPole in rounds of 16; both 160 steps per collect",
        "rounds",
        "tianshou",
        {LOOP: 5.0, COLLECT: 6.5},
        is_short_at_resets=True,
    ),
    Comparison(
        "the same, one action in twenty at random",
        "acting, own",
        "tianshou",
        {COLLECT: 6.5},
        rates=(COLLECT,),
        is_short_at_resets=True,
    ),
    Comparison(
        "one step, mse; gymnasium's vector CartPole, 64 environments",
        "many, own",
        "tianshou",
        is_short_at_resets=True,
    ),
    Comparison(
        "SAC on Pendulum, 1 environment, batch 256, 256-256",
        "sac",
        "sb3",
        {LOOP: 1.5},
        rates=(UPDATES, LOOP),
    ),
    Comparison("Pong, 8 environments, batch 32, Nature CNN", "pong", "sb3", is_short_at_resets=True),
]


TURN = 0.5  # seconds of work, at least


class Turn(NamedTuple):
    """What one side did before the next one did."""

    rate: float
    version: str


Rounds = Sequence[Mapping[str, Turn]]  # {side: its turn}, round by round


def take_turn(side: Live, rate: str, comparison: Comparison, n_cores: int) -> Turn:
    """Have a side do blocks of the work until they have taken `TURN` together."""
    work = WORKS[comparison.work]
    size = {COLLECT: work.collect_steps, UPDATES: work.updates, LOOP: work.loop_steps}[rate]
    n_blocks, seconds = 0, 0.0
    while seconds < TURN:
        answer = side.ask(rate, work.done((rate,), n_cores), comparison.slack)
        n_blocks += 1
        seconds += size / answer["rates"][rate]
    return Turn(n_blocks * size / seconds, answer["version"])


def measure(comparison: Comparison, n_runs: int, cores: Sequence[int]) -> dict[str, Rounds]:
    """Let all sides of a comparison take turns; return {rate: rounds}."""
    asked = [comparison.work, "--threads", str(len(cores))]
    commands = {"peer": [*PEERS[comparison.peer], *asked], "trainkit": [*OURS, *asked]}
    found: dict[str, Rounds] = {}
    with ExitStack() as stack:
        sides = {name: stack.enter_context(Live(command, cores)) for name, command in commands.items()}
        for rate in comparison.rates:
            found[rate] = [
                {name: take_turn(side, rate, comparison, len(cores)) for name, side in sides.items()}
                for _ in range(n_runs + 1)
            ][1:]  # the first warms up
    return found


def rows(comparison: Comparison, found: Mapping[str, Rounds]) -> Iterator[str]:
    """Yield a row per rate."""
    for rate, rounds in found.items():
        bar = comparison.bars.get(rate)
        theirs, ours = ([one[side].rate for one in rounds] for side in ("peer", "trainkit"))
        ratios = [b / a for a, b in zip(theirs, ours, strict=True)]
        ratio = statistics.median(ratios)
        verdict = "" if bar is None else f"{bar:.2f}: {'stands' if ratio >= bar else '**falls**'}"
        yield (
            f"| {comparison.title} | {rate} | {comparison.peer} {rounds[0]['peer'].version} | "
            f"{statistics.median(theirs):,.0f} | {statistics.median(ours):,.0f} | {ratio:.2f} | "
            f"{min(ratios):.2f} to {max(ratios):.2f} | {verdict} |"
        )


def heading(options: argparse.Namespace) -> list[str]:
    """Return the page but for its rows: what was done, by whom, on what."""
    n_cores, work = len(options.cores), WORKS["huber"]
    return [
        "# Beside peers",
        "",
        measured_at(),
        "",
        f"`python -m benchmarks.peers --runs {options.runs} --cores {' '.join(map(str, options.cores))}` on "
        f"{machine()}; "
        + ("one thread, pinned to one core" if n_cores == 1 else f"{n_cores} threads, pinned to {n_cores} cores")
        + ", sides in turn, half a second or more each; medians (ratios: median of rounds, and from which to which). "
        f"Rates are per second of {'CPU time' if n_cores == 1 else 'the clock'}.",
        "",
        f"CartPole-v1, {work.n_envs} environments where no other is named, each side stepping `gym.make`'s in a loop "
        f"of its own (trainkit: gymnasium's SyncVectorEnv); MLP {work.hidden} and batch {work.batch} where no other is "
        f"named, gamma {GAMMA}, one update per vector step, uniform replay where no other is named. `updates/s` counts "
        "drawing the batch, its returns and, where prioritised, writing priorities back. Q-learners act at random "
        "where it is not said otherwise, so that episodes are as short on all sides; trainkit, Tianshou and RLlib "
        "call their networks all the same, Stable-Baselines3 does not, which spares it a forward pass per vector step. "
        "With one action in twenty at random all do. trainkit is as it comes: `engine='auto'`, and numbers below "
        "1e-38 count as 0 within an update.",
        "",
        "All sides did as many rows, updates and parameters, or there would be no row here. An id's own vector "
        "environment spends a vector step on resetting those that ended, which is no row: there trainkit makes more "
        "vector steps, and its rows are within one of them of the peer's. So are those of RLlib, whose environment is "
        "gymnasium's SyncVectorEnv, which does the same. Pong: ale-py's own vector environment on our side, its single "
        "ones behind Stable-Baselines3's wrappers on the other, both with sticky actions, no "
        "random start, whole games, frames of 84x84, four stacked. RLlib has its env runner and learner in one "
        "process, whose CPU time counts; its helpers' does not. It wants gymnasium 1.2.2, Tianshou 1.2 wants 0.28.1, "
        "the others have ours; all have the torch of constraints.txt.",
        "",
        "| work | rate | peer | peer's | trainkit's | ratio | of rounds | bar |",
        "|---|---|---|---|---|---|---|---|",
    ]


def main() -> None:
    """Measure and write the table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--cores", type=int, nargs="+", default=[0])
    parser.add_argument("--works", nargs="+", choices=list(WORKS), default=list(WORKS))
    parser.add_argument("--peers", nargs="+", choices=list(PEERS), default=list(PEERS))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/peers.md"))
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("w") as page:
        print("\n".join(heading(options)), file=page, flush=True)
        for comparison in COMPARISONS:
            if comparison.work not in options.works or comparison.peer not in options.peers:
                continue
            for row in rows(comparison, measure(comparison, options.runs, options.cores)):
                print(row, flush=True)
                print(row, file=page, flush=True)


if __name__ == "__main__":
    main()
