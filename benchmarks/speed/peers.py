"""Measure trainkit, a plain loop of torch, and three other libraries on the same work, in turn on one core.

    python -m benchmarks.speed.peers [--minutes 34] [--core 0] [--only TEXT ...] [--out FILE]

Design, for readers who doubt such tables:

- Work. `work.py` has every workload: environments, networks, batch, updates per environment step. Episodes have one
  length whatever a policy does. Every side acts by its network, with epsilon 0.1 where it explores by epsilon.
- Equality. A side reports of every block what it did: environment, environments, environment steps, optimizer steps,
  trained parameters, gamma, threads. It must equal the workload, or everything stops. Before that, calls of the acting
  network are counted in a block: at least nine in ten vector steps, within four standard deviations.
- Sides. A plain loop (`side_plain.py`) tells what no library costs; a second one has fused Adam and flushed denormals.
  Each library has a second column with denormals flushed (`torch.set_flush_denormal`), which trainkit does by itself.
- Noise. All sides are processes that stay, pinned to one core, with one thread each. They take turns of half a second
  of CPU time at least, so that the machine's changing pace meets all alike. A ratio is the median over rounds of
  trainkit's rate by the side's in the same round; a second table has the lowest and the highest round.
- Time. The minutes are divided by the number of cells, a side on a workload, and every workload has the rounds that fit
  into its cells' seconds. What one overruns the later ones have less. RLlib takes part in one round of four.
"""

import json
import math
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import pages
from benchmarks.measuring import Live, quiet_machine
from benchmarks.pages import code_commit, machine, measured_at
from benchmarks.sides.side import BLOCK, CALLS
from benchmarks.sides.work import COLLECT, LOOP, PLAIN, PLAIN_FAST, RLLIB, SB3, TIANSHOU, TIANSHOU2, WORKS, Work

OURS = "trainkit"
FLUSHED = ", flushed"
PYTHONS = {
    SB3: ".peers/sb3-contrib@2.9.2/bin/python",
    TIANSHOU: ".peers/tianshou@1.2.0/bin/python",
    TIANSHOU2: ".peers/tianshou@2.0.1/bin/python",
    RLLIB: ".peers/ray[rllib]@2.60.0/bin/python",
}
MODULES = {OURS: "trainkit", PLAIN: "plain", SB3: "sb3", TIANSHOU: "tianshou", TIANSHOU2: "tianshou2", RLLIB: "rllib"}
COLUMNS = {  # title: whose workloads it has, and whether denormals are flushed
    PLAIN: (PLAIN, False),
    PLAIN_FAST: (PLAIN, True),
    **{title + end: (title, end != "") for title in (SB3, TIANSHOU, TIANSHOU2) for end in ("", FLUSHED)},
    RLLIB: (RLLIB, False),
}
TURN_S = 0.5
START_S = 8.0  # of a side's process: its imports
MIN_ROUNDS = 3
RARE = 4  # RLlib takes part in one round of so many

Rounds = list[dict[str, float]]  # {side: environment steps per CPU second}, round by round
Row = dict[str, Any]  # of a workload: name, rounds, version and calls by side; commit, command, machine


def columns_of(work: Work) -> list[str]:
    """Return the sides of a workload, without trainkit."""
    return [title for title, (side, _) in COLUMNS.items() if side in work.sides]


def command_of(title: str) -> list[str]:
    """Return the command of a side's process."""
    side, is_flushed = COLUMNS.get(title, (OURS, False))
    python = PYTHONS.get(side, sys.executable)
    return [python, "-m", f"benchmarks.sides.{MODULES[side]}", *(["--flush"] if is_flushed else [])]


# ---- measuring ----


def count_calls(name: str, sides: Mapping[str, Live]) -> dict[str, Any]:
    """Return each side's version and how often it calls its acting network in a block; check that it does."""
    work = WORKS[name]
    settings = {key: work.done[key] for key in ("env", "envs", "gamma", "parameters")}
    answers = {title: side.ask(f"{name}\t{CALLS}", settings) for title, side in sides.items()}
    n_vector_steps = work.block // work.n_envs
    least = 0.9 * n_vector_steps - 4 * math.sqrt(0.09 * n_vector_steps)
    for title, answer in answers.items():
        if not least <= answer["calls"] <= n_vector_steps + 2:  # RLlib: a call more where all environments reset
            raise SystemExit(f"{title} called its network {answer['calls']} times in {n_vector_steps} vector steps")
    return {key: {title: answer[key] for title, answer in answers.items()} for key in ("version", "calls")}


def take_turn(name: str, title: str, side: Live) -> float:
    """Let a side run blocks for `TURN_S` seconds of CPU time; return its environment steps per second."""
    work = WORKS[name]
    slack = {"steps": work.n_envs} if title == RLLIB else {}
    n_blocks, seconds = 0, 0.0
    while seconds < TURN_S:
        seconds += side.ask(f"{name}\t{BLOCK}", work.done, slack)["seconds"]
        n_blocks += 1
    return n_blocks * work.block / seconds


def measure(name: str, sides: Mapping[str, Live], seconds: float) -> Row:
    """Let the sides of a workload take turns for some seconds."""
    ends = time.monotonic() + seconds
    counted = count_calls(name, sides)
    rounds: Rounds = []
    while len(rounds) <= MIN_ROUNDS or time.monotonic() < ends:
        takes_part = [title for title in sides if title != RLLIB or len(rounds) % RARE == 1]
        rounds.append({title: take_turn(name, title, sides[title]) for title in takes_part})
    return {"name": name, "commit": code_commit(), **counted, "rounds": rounds[1:]}  # the first warms up


# ---- the page ----


def ratios(row: Row, title: str) -> list[float]:
    """Return trainkit's rate by a side's in each round that both took part in."""
    return [one[OURS] / one[title] for one in row["rounds"] if title in one]


def ratio(row: Row, title: str) -> float:
    """Return how many times as fast trainkit is, the median over rounds."""
    return statistics.median(ratios(row, title))


def shown(value: float) -> str:
    """Return a ratio with two digits, or one from 10 on."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table of rates and ratios."""
    yield f"| workload | trainkit, steps/s | {' | '.join(COLUMNS)} |"
    yield "|---" * (len(COLUMNS) + 2) + "|"
    for row in rows:
        rate = statistics.median(one[OURS] for one in row["rounds"])
        cells = [cell(ratio(row, title)) if title in row["calls"] else "" for title in COLUMNS]
        yield f"| {row['name']} | {rate:,.0f} | {' | '.join(cells)} |"


def cell(value: float) -> str:
    """Return a ratio, bold where the side is as fast as trainkit or faster."""
    return f"**{shown(value)}**" if value <= 1.0 else shown(value)


def spread(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table of the lowest and highest ratios."""
    yield f"| workload | rounds | {' | '.join(COLUMNS)} |"
    yield "|---" * (len(COLUMNS) + 2) + "|"
    for row in rows:
        found = [ratios(row, title) if title in row["calls"] else [] for title in COLUMNS]
        cells = [f"{shown(min(own))} to {shown(max(own))}" if own else "" for own in found]
        yield f"| {row['name']} | {len(row['rounds'])} | {' | '.join(cells)} |"


def checks(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table of what every block did, and of the calls of acting networks."""
    titles = [OURS, *COLUMNS]
    yield f"| workload | environment steps | vector steps | optimizer steps | parameters | {' | '.join(titles)} |"
    yield "|---" * (len(titles) + 5) + "|"
    for row in rows:
        work = WORKS[row["name"]]
        done = [work.block, work.block // work.n_envs, work.n_updates, work.n_parameters]
        calls = [str(row["calls"].get(title, "")) for title in titles]
        yield f"| {row['name']} | {' | '.join(f'{count:,}' for count in done)} | {' | '.join(calls)} |"


def span(rows: Sequence[Row], title: str, rate: str) -> tuple[Row, Row] | None:
    """Return the workloads of the lowest and the highest ratio to a side; None where it has none."""
    own = [row for row in rows if title in row["calls"] and WORKS[row["name"]].rate == rate]
    by_ratio = sorted(own, key=lambda row: ratio(row, title))
    return (by_ratio[0], by_ratio[-1]) if by_ratio else None


def ranges(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table of lowest and highest ratios by side."""
    yield "| beside | training loops, from | on | to | on | collecting, from | to |"
    yield "|---|---|---|---|---|---|---|"
    for title in COLUMNS:
        cells = []
        for rate in (LOOP, COLLECT):
            found = span(rows, title, rate)
            if rate == LOOP and found:
                cells += [text for row in found for text in (cell(ratio(row, title)), row["name"])]
            elif found:
                cells += [cell(ratio(row, title)) for row in found]
            else:
                cells += [""] * (4 if rate == LOOP else 2)
        if any(cells):
            yield f"| {title} | {' | '.join(cells)} |"


def not_faster(rows: Sequence[Row]) -> list[str]:
    """Return the workloads on which some side is as fast as trainkit or faster, each with those sides."""
    found = {
        row["name"]: [title for title in COLUMNS if title in row["calls"] and ratio(row, title) <= 1.0] for row in rows
    }
    return [f"{name} ({'; '.join(titles)})" for name, titles in found.items() if titles]


FRONT_PAGE = {  # of README: kinds of workloads, by the beginnings of their names
    "DQN, 64-64 to 512-512, batches of 32 to 1,024": ("DQN 64", "DQN 128", "DQN 256", "DQN 512"),
    "Prioritized DQN and Rainbow": ("Prioritized", "Rainbow"),
    "DQN on images": ("DQN on images",),
    "SAC": ("SAC",),
    "TD3 and TQC": ("TD3", "TQC"),
    "PPO": ("PPO",),
    "collecting alone, 1 to 256 environments": ("Collecting",),
}


def front_page(rows: Sequence[Row]) -> str:
    """Return README's table: the range of each side, with and without flushed denormals, over kinds of workloads."""
    sides = {
        "a plain torch loop": (PLAIN, PLAIN_FAST),
        "Stable-Baselines3": (SB3, SB3 + FLUSHED),
        "Tianshou 1.2": (TIANSHOU, TIANSHOU + FLUSHED),
        "Tianshou 2.0": (TIANSHOU2, TIANSHOU2 + FLUSHED),
    }
    lines = [f"| times as fast as | {' | '.join(sides)} |", "|---" * (len(sides) + 1) + "|"]
    for kind, names in FRONT_PAGE.items():
        own = [row for row in rows if row["name"].startswith(names)]
        if not own:
            continue  # not measured
        cells = []
        for titles in sides.values():
            found = [ratio(row, title) for row in own for title in titles if title in row["calls"]]
            cells.append(f"{min(found):.1f} to {max(found):.1f}" if found else "")
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    return "\n".join(lines)


METHOD = """
One thread each, pinned to one core, sides in turn, half a second of CPU time or more per turn. How it is measured, and
what is equal on all sides, is in the docstring of `benchmarks/speed/peers.py`. Numbers are ratios: trainkit's
environment steps per second by the side's, the median of rounds. **Bold**: the side is as fast as trainkit or faster.
Plain: DQN, SAC and PPO by hand in one file of torch (`benchmarks/sides/plain.py`); fused: the same with fused Adam and
denormals flushed. Flushed: the library after `torch.set_flush_denormal(True)`; trainkit flushes denormals within its
updates by default.
"""
CHECKED = """
What every block of every side did, and how often it called its acting network in a block that was collected.
Stable-Baselines3 draws one number per vector step: below epsilon it does not call its network. For SAC, TD3 and TQC
optimizer steps are those of the critics.
"""
WORKLOADS = """
Observations and rewards are those of MountainCar-v0, whose episodes have 200 steps, of Pendulum-v1 for SAC, TD3 and
TQC, and of HalfCheetah-v5 where it is named; images are random bytes that cost no time. Each side steps `gym.make`'s
environments one by one in a loop of its own (RLlib: gymnasium's SyncVectorEnv). Where nothing else is said there are
ten environments and one update per vector step; images have 8 environments. PPO: 8 environments, 128 steps of each per
rollout, 10 epochs over it. DQN: Huber loss, Adam, gradients clipped at 10, the target network copied every 320 updates;
prioritized: squared error. Tianshou's DQN cannot clip gradients and is spared it. Empty cells: the side has no such
learner; the plain loop has no Rainbow, and RLlib is measured on one workload. TD3 and TQC are measured beside Stable-
Baselines3 alone.
"""


def commands(rows: Sequence[Row]) -> str:
    """Return the command of most workloads, and those of others with their names."""
    by_command: dict[str, list[str]] = {}
    for row in rows:
        by_command.setdefault(row["command"], []).append(row["name"])
    most, *others = sorted(by_command, key=lambda command: -len(by_command[command]))
    return "; ".join([f"`{most}`", *(f"`{other}` for {' and '.join(by_command[other])}" for other in others)])


def report(rows: Sequence[Row]) -> str:
    """Return the page."""
    versions = {COLUMNS.get(title, (title, False))[0]: own for row in rows for title, own in row["version"].items()}
    listed = ", ".join(f"{name.split()[0]} {version}" for name, version in versions.items() if name != PLAIN)
    of_torch = f"; torch {versions[PLAIN]} on all sides" if PLAIN in versions else ""
    parts = {
        "Ranges": [
            *ranges(rows),
            "",
            f"Not faster than every side on: {', '.join(not_faster(rows)) or 'no workload'}.",
        ],
        "Ratios": table(rows),
        "Lowest and highest round": spread(rows),
        "What was checked": [*CHECKED.strip().splitlines(), "", *checks(rows)],
        "The workloads": WORKLOADS.strip().splitlines(),
    }
    heading = [
        "# Speed compared with a plain loop and with peers",
        "",
        measured_at([row["commit"] for row in rows]),
        "",
        f"{commands(rows)} on {rows[0]['machine']}; {listed}{of_torch}.",
        *METHOD.strip().splitlines(),
    ]
    return "\n".join(
        [*heading, *(line for title, lines in parts.items() for line in ("", f"## {title}", "", *lines)), ""]
    )


def kept(file: Path) -> list[Row]:
    """Return the rows of a measurement, from which its page is made."""
    return [json.loads(line) for line in file.read_text().splitlines()]


@quiet_machine()
def main() -> None:
    """Measure, and write the page after every workload."""
    parser = pages.arguments(__doc__)
    parser.add_argument("--minutes", type=float, default=34.0)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--only", nargs="+", default=[""], help="texts in workloads' names; others keep rows")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/peers.md"))
    options = parser.parse_args()
    command = f"python -m benchmarks.speed.peers --minutes {options.minutes:g} --core {options.core}"
    if options.only != [""]:
        command += " --only " + " ".join(f'"{text}"' for text in options.only)
    works = {name: work for name, work in WORKS.items() if any(text in name for text in options.only)}
    titles = [OURS, *(title for title in COLUMNS if any(title in columns_of(work) for work in works.values()))]
    n_cells = {name: 1 + len(columns_of(work)) for name, work in works.items()}
    ends = time.monotonic() + 60 * options.minutes
    per_cell = (60 * options.minutes - START_S * len(titles)) / sum(n_cells.values())
    print(
        f"{sum(n_cells.values())} cells of {per_cell:.1f} s and {len(titles)} starts of {START_S:.0f} s: "
        f"{options.minutes:g} minutes",
        flush=True,
    )
    raw = options.out.with_suffix(".jsonl")
    raw.parent.mkdir(parents=True, exist_ok=True)
    found = {row["name"]: row for row in kept(raw)} if options.only != [""] and raw.exists() else {}
    with ExitStack() as stack:
        stay = {
            title: stack.enter_context(Live(command_of(title), [options.core])) for title in titles if title != RLLIB
        }
        first = next(iter(works))
        count_calls(first, {title: stay[title] for title in (OURS, *columns_of(works[first])) if title != RLLIB})
        for position, (name, work) in enumerate(works.items()):  # all processes have started
            left = sum(n_cells[later] for later in list(works)[position:])
            seconds = (ends - time.monotonic()) * n_cells[name] / left
            with ExitStack() as own:  # RLlib's helpers would take the core's time from the other workloads
                sides = {title: stay[title] for title in (OURS, *columns_of(work)) if title != RLLIB}
                if RLLIB in work.sides:
                    sides[RLLIB] = own.enter_context(Live(command_of(RLLIB), [options.core]))
                row = measure(name, sides, seconds)
            found[name] = {**row, "command": command, "machine": machine()}
            rows = [found[known] for known in WORKS if known in found]
            raw.write_text("".join(json.dumps(row) + "\n" for row in rows))
            options.out.write_text(report(rows))
            print(f"{(ends - time.monotonic()) / 60:4.1f} minutes left {list(table([found[name]]))[-1]}", flush=True)
    if len(works) == len(WORKS):
        print(f"\n{front_page(list(found.values()))}")


if __name__ == "__main__":
    main()
