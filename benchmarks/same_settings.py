"""Learn beside peers at the same settings, in turn on one core, and judge whether trainkit learns as well.

    python -m benchmarks.same_settings [--pairings ...] [--tasks ...] [--seeds ...] [--cache FILE] [--out FILE]
    python -m benchmarks.same_settings --tasks LunarLander MinAtar-Breakout MinAtar-Asterix --seeds 1 2 3 4 5
    python -m benchmarks.same_settings --pairings dqn-tianshou --seeds 31 32 ... 50

Peers live in environments of their own, which `make bench-same` builds. A finished run is kept in the cache, with the
settings it had: an interrupted benchmark goes on, and writes its page anew after every seed.
"""

import argparse
import itertools
import platform
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import same_work as work
from benchmarks.cache import Cache
from benchmarks.provenance import listed, measured_at
from benchmarks.running import printed
from trainkit.plot.comparing import can_vary, difference, difference_over_tasks, iqm

PEERS = {
    "a plain loop": (sys.executable, "-m", "benchmarks.same_plain"),
    "tianshou": (".peers/tianshou@1.2.0/bin/python", "-m", "benchmarks.same_tianshou"),
    "stable-baselines3": (".peers/sb3-contrib@2.9.2/bin/python", "-m", "benchmarks.same_sb3"),
    "sb3-contrib": (".peers/sb3-contrib@2.9.2/bin/python", "-m", "benchmarks.same_sb3"),
}
OURS = "trainkit"

_DQN = work.PAIRINGS["dqn-sb3"].classic
REMAINS = f"""
What differs still, after reading the peers' code:

- **Loss, gradient, Adam, clip: nothing.** From the same weights and the same 300 batches each peer and trainkit come to
  weights less than 1e-7 apart (Tianshou once its late copy, below, is imitated). Huber is averaged over the batch; the
  quantile loss is the sum over own, the mean over target quantiles, for the action whose target quantiles have the
  largest mean; sb3-contrib's own Adam eps, 0.01 / batch, is replaced by the table's.
  Throughout one whole CartPole run of DQN and one of QR-DQN, trainkit's every update was within 2e-7 of a plain torch
  step, its target the copy it should be, its rows ones the environments gave, its share of random actions epsilon.
- **Truncation: nothing.** All bootstrap at a time limit, from the true last observation. **Replay: nothing.** All draw
  uniformly with replacement from a buffer that holds the whole run.
- **Exploration: nothing.** Epsilon is the same function of the step. Stable-Baselines3 tosses one coin per vector step:
  its 8 environments act at random all together or not at all. Beside it trainkit does, too (`OneCoin`, an exploration
  of public parts); its own tosses one per environment, as Tianshou's. With those the IQM of QR-DQN over 30 seeds was
  202 on CartPole and -323 on Acrobot, with one coin it is 217 and -287, the peer's 266 and -284.
- **Target.** Stable-Baselines3 copies before the round of updates at a multiple of the table's steps, trainkit after
  the first update of that round, on the classic tasks one update in {_DQN.target_every_updates} later. Tianshou counts
  updates, as trainkit does beside it, but copies after the batch's returns are computed: its copy counts one update
  later.
- **Start.** trainkit's first round of updates is where the random steps end, the peers' one vector step later: on the
  classic tasks {_DQN.updates_per_round} updates more, of {_DQN.n_updates:,} in DQN's runs.
- **Luck.** On the first seeds trainkit leaned half a standard deviation below Tianshou over all tasks pooled. On twenty
  fresh seeds of either classic task it does not, nor does it differ from a plain loop of torch that shares no code with
  either (`benchmarks/same_plain.py`): the lean was luck of the first ten seeds.
- **Randomness.** Initial weights have the same distribution, torch's own, but other numbers; the peers seed each
  environment once, trainkit each episode. Evaluations play the same episodes.
- **Numbers.** trainkit lets numbers below 1e-38 count as 0 within an update; Tianshou computes returns in float64.
- **Versions.** Tianshou 1.2 needs gymnasium 0.28; the same actions gave the same bits there and in the others'
  gymnasium on 30 episodes of either task.

The settings of the classic tasks lie between rl-zoo's for the two; they were tried on the DQN sides,
Stable-Baselines3's most, on seeds that are not judged here. Nobody's were tried on the longer tasks: LunarLander has
rl-zoo's learning rate, batch and exploration, MinAtar those of its authors for DQN.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One training of one side."""

    pairing: str
    side: str
    task: str
    seed: int
    result: dict[str, Any]  # what the side printed
    commit: str  # of trainkit

    @property
    def score(self) -> float:
        """The mean of the evaluations in the second half."""
        returns: list[float] = self.result["returns"]
        return statistics.fmean(returns[len(returns) // 2 :])


def key_of(pairing: str, side: str, task: str, seed: int) -> list[Any]:
    """Return all that a run depends on."""
    own = work.PAIRINGS[pairing]
    return [pairing, side, task, seed, asdict(work.settings(pairing, task)), own.max_grad_norm, own.has_one_coin]


def learn(pairing: str, side: str, task: str, seed: int, core: int) -> dict[str, Any]:
    """Run one side on one core and return what it printed, after checking that it did the work."""
    own = [sys.executable, "-m", "benchmarks.same_trainkit"] if side == OURS else PEERS[side]
    command = [*own, "--pairing", pairing, "--task", task, "--seed", str(seed)]
    result = printed(command, core)
    asked, done = work.settings(pairing, task), result["done"]
    extra = done["updates"] - asked.n_updates
    wanted = {
        "env_steps": asked.steps,
        "updates": asked.n_updates + extra,
        "parameters": work.n_parameters(task, asked.quantiles),
        "threads": 1,
    }
    n_judged = len(result["returns"])
    if done != wanted or extra not in (0, asked.updates_per_round) or n_judged != asked.steps // asked.every:
        raise SystemExit(f"{command} did {done} with {n_judged} evaluations, the work is {wanted}")
    return result


def runs_of(
    pairings: Sequence[str], tasks: Sequence[str], seeds: Sequence[int], cache: Cache, core: int
) -> Iterator[Run]:
    """Yield every run, from the cache where it is there; the two sides of a pairing take turns."""
    for pairing in pairings:
        for task in tasks:
            if task in work.LONG and not work.PAIRINGS[pairing].learns_long:
                continue
            for seed in seeds:
                for side in (work.PAIRINGS[pairing].peer, OURS):
                    key = key_of(pairing, side, task, seed)
                    result = cache.get(*key)
                    if result is None:
                        result = learn(pairing, side, task, seed, core)
                        cache.put(result, *key)
                    commit = cache.commit(*key)
                    yield Run(pairing=pairing, side=side, task=task, seed=seed, result=result, commit=commit)


def kept(cache: Cache, pairing: str, task: str, seeds: Sequence[int]) -> list[Run]:
    """List the cached runs of a pairing on a task; none where a run of either side is missing."""
    found: list[Run] = []
    for seed in seeds:
        for side in (work.PAIRINGS[pairing].peer, OURS):
            key = key_of(pairing, side, task, seed)
            result = cache.get(*key)
            if result is None:
                return []
            commit = cache.commit(*key)
            found.append(Run(pairing=pairing, side=side, task=task, seed=seed, result=result, commit=commit))
    return found


def report(runs: Sequence[Run], command: str, fresh: Sequence[Run] = (), longer: Sequence[Run] = ()) -> str:
    """Return the page: settings, verdicts, longer tasks, fresh seeds, all pooled, curves, what differs still."""
    versions = {side: ", ".join(" ".join(pair) for pair in ofs.items()) for side, ofs in _versions(runs).items()}
    lines = [
        "# Learning at the same settings",
        "",
        measured_at([run.commit for run in (*runs, *fresh, *longer) if run.side == OURS]),
        "",
        f"`{command}` on {platform.machine()}, one thread, pinned to one core, sides in turn. "
        + " ".join(f"Beside {side}: {told}." if side != OURS else f"Ours: {told}." for side, told in versions.items()),
        "",
        f"At each evaluation the greedy policy plays {work.EPISODES} episodes on environments of its own, the same "
        "episodes for both sides of a pairing. A run's score is the mean of the evaluations in the second half. "
        "Below are the interquartile means (IQM) of the scores over the seeds, their difference, trainkit's less "
        "the peer's, with a 95 % percentile bootstrap interval (10,000 resamples), and the verdict of a permutation "
        "test of the means, which names a winner among equals once in twenty times.",
        "",
        *_settings(),
        "",
        f"All: {work.N_ENVS} environments, one vector step between rounds of updates; hidden layers of "
        f"{_shown(list(work.HIDDEN))} units, relu; Adam with eps {work.ADAM_EPS}; a target that is copied; uniform "
        f"replay; epsilon from {work.EPSILON[0]} to {work.EPSILON[1]}. Gradients' norm is clipped at 10 beside "
        "stable-baselines3, whose default that is, and nowhere else.",
        "",
        *_HEAD,
        *_verdicts(runs),
        "",
        *(_long(longer) if longer else ()),
        *(_fresh(fresh, [*runs, *longer]) if fresh else ()),
        *_pooled([*runs, *longer], fresh),
        *REMAINS.strip().splitlines(),
        "",
        "All evaluations, in order:",
        "",
        "```",
        *(
            f"{run.pairing:13}{run.task:17}{run.side:18}{run.seed:3}"
            + "".join(f"{mean:6.0f}" for mean in run.result["returns"])
            for run in sorted(
                [*runs, *fresh, *longer], key=lambda run: (list(work.PAIRINGS).index(run.pairing), run.task, run.side)
            )
        ),
        "```",
        "",
    ]
    return "\n".join(lines)


_HEAD = (
    "| pairing | task | seeds | IQM of peer | IQM of trainkit | difference | 95 % interval | verdict | measured at |",
    "|---|---|---|---|---|---|---|---|---|",
)


def _fresh(fresh: Sequence[Run], first: Sequence[Run]) -> list[str]:
    """Return the verdicts on fresh seeds, and on these and the first together."""
    rows = {(run.pairing, run.task) for run in fresh}
    return [
        "**Fresh seeds**, none of which had been looked at before, tell luck from a cause where the first seeds leaned "
        "to one side:",
        "",
        *_HEAD,
        *_verdicts(fresh),
        "",
        "All seeds together, the first among them for whose sake the others were run:",
        "",
        *_HEAD,
        *_verdicts([*(run for run in first if (run.pairing, run.task) in rows), *fresh]),
        "",
    ]


def _pooled(first: Sequence[Run], fresh: Sequence[Run]) -> Iterator[str]:
    """Yield a table of differences over all tasks of a pairing, in standard deviations of each task's scores."""
    yield (
        "**All tasks of a pairing pooled.** Few seeds of one task hide a small difference that its tasks share. Scores "
        "are divided by their task's standard deviation, both sides taken together; then the IQM is over all tasks "
        "and seeds, resampled task by task."
    )
    yield ""
    yield "| pairing | seeds | tasks | runs a side | difference, in standard deviations | 95 % interval | verdict |"
    yield "|---|---|---|---|---|---|---|"
    for pairing in work.PAIRINGS:
        for label, runs in {"first": first, "fresh": fresh, "all": [*first, *fresh]}.items():
            scores = _standardized([run for run in runs if run.pairing == pairing])
            if not scores or (label == "all" and not any(run.pairing == pairing for run in fresh)):
                continue
            ours, theirs = ([own[side] for own in scores.values()] for side in (OURS, work.PAIRINGS[pairing].peer))
            if not can_vary([*ours, *theirs]):
                continue
            found = difference_over_tasks(ours, theirs)
            yield (
                f"| {pairing} | {label} | {len(scores)} | {sum(map(len, ours))} | {found.estimate:+.2f} | "
                f"{found.low:+.2f} to {found.high:+.2f} | {found.verdict(OURS, 'the peer')} |"
            )
    yield ""


def _standardized(runs: Sequence[Run]) -> dict[str, dict[str, list[float]]]:
    """Return the scores of each task and side, less the task's mean and divided by its standard deviation."""
    scores: dict[str, dict[str, list[float]]] = {}
    for task in dict.fromkeys(run.task for run in runs):
        own = [run for run in runs if run.task == task]
        mean, deviation = statistics.fmean(run.score for run in own), statistics.pstdev(run.score for run in own)
        scores[task] = {side: [] for side in dict.fromkeys(run.side for run in own)}
        for run in own:
            scores[task][run.side].append((run.score - mean) / deviation if deviation else 0.0)
    return scores


def _long(runs: Sequence[Run]) -> list[str]:
    """Tell the verdicts on the longer tasks."""
    first, last = work.LONG_SEEDS[0], work.LONG_SEEDS[-1]
    return [
        f"**Longer tasks**, DQN on seeds {first} to {last}. MinAtar's grids go through plain layers, with its own "
        "difficulty and sticky actions.",
        "",
        *_HEAD,
        *_verdicts(runs),
        "",
    ]


def _settings() -> Iterator[str]:
    """Yield a row for each setting, a column for each kind of task."""
    kinds = {
        "classic tasks, DQN": _DQN,
        "classic tasks, QR-DQN": work.PAIRINGS["qrdqn-sb3"].classic,
        "LunarLander": work.LONG["LunarLander"],
        "MinAtar": work.LONG["MinAtar-Breakout"],
    }
    rows: dict[str, Callable[[work.Settings], object]] = {
        "environment steps": lambda own: own.steps,
        "learning rate": lambda own: own.lr,
        "batch": lambda own: own.batch,
        "replay capacity": lambda own: own.capacity,
        "random steps before learning": lambda own: own.learning_starts,
        "epsilon falls over steps": lambda own: own.epsilon_steps,
        "gamma, 1-step": lambda own: own.gamma,
        "updates per environment step": lambda own: own.updates_per_round / work.N_ENVS,
        "steps from target copy to target copy": lambda own: own.target_every,
        "quantiles, kappa 1": lambda own: "" if own.quantiles is None else own.quantiles,
        "steps from evaluation to evaluation": lambda own: own.every,
    }
    yield "| setting | " + " | ".join(kinds) + " |"
    yield "|---|" + "---|" * len(kinds)
    for name, of in rows.items():
        yield f"| {name} | " + " | ".join(_shown(of(own)) for own in kinds.values()) + " |"


def _verdicts(runs: Sequence[Run]) -> Iterator[str]:
    """Yield a row for each pairing and task of which both sides have the same seeds."""
    for name, pairing in work.PAIRINGS.items():
        for task in work.TASKS:
            own = [run for run in runs if (run.pairing, run.task) == (name, task)]
            theirs, ours = ({run.seed: run for run in own if run.side == side} for side in (pairing.peer, OURS))
            if not ours or theirs.keys() != ours.keys():
                continue
            scores = [[run.score for run in side.values()] for side in (theirs, ours)]
            found = difference(scores[1], scores[0])
            yield (
                f"| {name} | {task} | {len(ours)} | {iqm(scores[0]):.1f} | {iqm(scores[1]):.1f} "
                f"| {found.estimate:+.1f} | {found.low:+.1f} to {found.high:+.1f} "
                f"| {found.verdict(OURS, 'the peer')} | {listed(run.commit for run in ours.values())} |"
            )


def _versions(runs: Sequence[Run]) -> dict[str, dict[str, str]]:
    """Return what each side ran with."""
    return {run.side: run.result["versions"] for run in runs}


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if value is None:
        return "not"
    return f"{value:,}" if isinstance(value, int) else str(value)


def main() -> None:
    """Run what is not in the cache and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairings", nargs="+", choices=list(work.PAIRINGS), default=list(work.PAIRINGS))
    parser.add_argument("--tasks", nargs="+", choices=work.TASKS, default=list(work.CLASSIC))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(work.SEEDS))
    parser.add_argument("--cache", type=Path, default=Path("benchmarks/results/same_settings.jsonl"))
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/same_settings.md"))
    options = parser.parse_args()
    is_all = options.pairings == list(work.PAIRINGS)
    command = "python -m benchmarks.same_settings" + ("" if is_all else f" --pairings {' '.join(options.pairings)}")
    command += "" if options.tasks == list(work.CLASSIC) else f" --tasks {' '.join(options.tasks)}"
    command += "" if options.seeds == list(work.SEEDS) else f" --seeds {' '.join(map(str, options.seeds))}"
    command += f" --core {options.core}"
    cache = Cache(options.cache)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    runs: list[Run] = []

    def page() -> str:
        is_whole = options.seeds == list(work.SEEDS) and options.tasks == list(work.CLASSIC)
        if not is_whole:
            return report(runs, command)
        fresh = [
            run for (pairing, task), seeds in work.FRESH_SEEDS.items() for run in kept(cache, pairing, task, seeds)
        ]
        pairs = itertools.product(work.PAIRINGS, work.LONG)
        longer = [run for pairing, task in pairs for run in kept(cache, pairing, task, work.LONG_SEEDS)]
        return report(runs, command, fresh, longer)

    for run in runs_of(options.pairings, options.tasks, options.seeds, cache, options.core):
        runs.append(run)
        print(f"{run.pairing} {run.side} {run.task} {run.seed}: {run.score:.1f}", flush=True)
        if run.side == OURS:
            options.out.write_text(page())
    print(f"\n{page()}")


if __name__ == "__main__":
    main()
