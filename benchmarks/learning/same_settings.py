"""Learn alongside peers at the same settings, in turn on one core, and test whether trainkit learns as well.

    python -m benchmarks.learning.same_settings --page same_settings [--pairings ...] [--tasks ...] [--seeds ...]
    python -m benchmarks.learning.same_settings --page mujoco [--sides trainkit]
    python -m benchmarks.learning.same_settings --page recurrent_ppo, spread or time_to_475

Peers live in environments of their own, which `make bench-same`, `bench-mujoco`, `bench-spread` and `bench-race` build.
A finished run is kept with its settings: an interrupted benchmark continues, and writes its page after every run.
"""

import dataclasses
import itertools
import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from benchmarks import pages
from benchmarks.learning import same_work as work
from benchmarks.measuring import printed, quiet_machine
from trainkit.plot.comparing import can_vary, difference, difference_over_tasks, iqm

OURS = "trainkit"
_SB3 = ".peers/sb3-contrib@2.9.2/bin/python", "-m", "benchmarks.learning.same_sb3"
SIDES = {
    OURS: (sys.executable, "-m", "benchmarks.learning.same_trainkit"),
    work.PLAIN: (sys.executable, "-m", "benchmarks.learning.same_plain"),
    work.TIANSHOU: (".peers/tianshou@1.2.0/bin/python", "-m", "benchmarks.learning.same_tianshou"),
    work.SB3: _SB3,
    work.CONTRIB: _SB3,
    work.BENCHMARL: (".peers/benchmarl@1.5.2/bin/python", "-m", "benchmarks.learning.same_benchmarl"),
}

DQN_DIFFERENCES = """
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
  the first update of that round, on the classic tasks one update in 100 later. Tianshou counts
  updates, as trainkit does beside it, but copies after the batch's returns are computed: its copy counts one update
  later.
- **Start.** trainkit's first round of updates is where the random steps end, the peers' one vector step later: on the
  classic tasks 4 updates more, of 19,500 in DQN's runs.
- **Luck.** On the first seeds trainkit leaned half a standard deviation below Tianshou over all tasks pooled. On twenty
  fresh seeds of either classic task it does not, nor does it differ from a plain loop of torch that shares no code with
  either (`benchmarks/learning/same_plain.py`): the lean was luck of the first ten seeds.
- **Randomness.** Initial weights have the same distribution, torch's own, but other numbers; the peers seed each
  environment once, trainkit each episode. Evaluations play the same episodes.
- **Numbers.** trainkit lets numbers below 1e-38 count as 0 within an update; Tianshou computes returns in float64.
- **Versions.** Tianshou 1.2 needs gymnasium 0.28; the same actions gave the same bits there and in the others'
  gymnasium on 30 episodes of either task.

The settings of the classic tasks lie between rl-zoo's for the two; they were tried on the DQN sides,
Stable-Baselines3's most, on seeds that are not judged here. Nobody's were tried on the longer tasks: LunarLander has
rl-zoo's learning rate, batch and exploration, MinAtar those of its authors for DQN.
"""

MUJOCO_DIFFERENCES = """
What differs still, after reading the peer's code:

- **PPO, running statistics.** The peer's move with every step: the rows of a rollout are seen, and learnt from, each
  through the statistics of its moment. trainkit's move between rollouts, so that it learns with the features it acted
  on; its first rollout is not normalised. The peer divides a reward by the deviation known when it came, trainkit by
  the one known when its rollout is learnt from. Evaluations see observations by the statistics as they are.
- **PPO, advantages** are divided by the sample's deviation over a batch of 64 (peer), by the population's (trainkit):
  0.8 % apart. Clip, losses, Adam, bootstrap at the time limit: nothing.
- **SAC, densities.** The peer adds 1e-6 to 1 - tanh(u)**2 in the log-probability, trainkit computes it exactly. The
  peer moves the temperature first, trainkit last, by the same numbers. Losses, targets, Adam: nothing.
- **TD3, start.** The peer adds its noise to the random actions of the start, too, and clips them.
- **TQC, loss.** The peer's is the mean over the two critics, trainkit's the sum: twice the gradient, which Adam divides
  out. The peer's densities and temperature are those of its SAC.
- **TD3, luck.** One of three runs of either side ended below 2,000, on different seeds. On seed 4, which the peer has
  not run, trainkit had 4,395.
- **TQC, seeds.** trainkit's seed 2 learned late. The last evaluations of the three seeds have equal means, 4,739 and
  the peer's 4,738.
- **SAC, TD3 and TQC, start.** trainkit's first update is at 5,000 steps, the peer's one step later.
- **Randomness.** Initial weights have the same distributions but other numbers; the peer seeds its environment once,
  trainkit each episode.
- **Numbers.** trainkit lets numbers below 1e-38 count as 0 within an update.
"""

SPREAD_DIFFERENCES = """
Three agents learn to cover three landmarks in simple_spread, a particle environment with PettingZoo's API, of the
package mpe2. Steps are of games, those of agents are three times as many; returns are means over agents. Uniformly
random actions reach -26.2.

What differs, after reading the peer's code:

- **The critic of MAPPO.** The peer's sees the state alone, and has one value for all agents, although their rewards
  differ. trainkit's sees the agent's own observation, too.
- **Batches.** The peer divides the steps of games, whose agents stay together; trainkit the rows of agents.
- **Gradient clipping.** The peer clips actor and critic separately; trainkit both together.
- **Initial weights.** The peer's layers have torch's default initialization; trainkit's are orthogonal, with a small
  last layer of the actor.
- **Seeds.** The peer seeds its games once, trainkit each episode.
"""

RECURRENT_DIFFERENCES = """
CartPole-positions is CartPole-v1 without velocities. Actor and critic have an LSTM each, on the two inputs, and a
linear head.
"""

RACE_DIFFERENCES = """
What differs still: initial weights have the same distributions but other numbers; the peer seeds its environment once,
trainkit each episode; trainkit lets numbers below 1e-38 count as 0 within an update.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page of results: its pairings, and what differs between the sides apart from the settings."""

    title: str
    pairings: tuple[str, ...]
    differences: str
    has_rates: bool = False  # whether its runs' seconds were CPU time, on a machine that did little else
    is_race: bool = False


PAGES = {
    "same_settings": Page(
        title="Learning at the same settings",
        pairings=("dqn-tianshou", "dqn-plain", "dqn-sb3", "qrdqn-sb3"),
        differences=DQN_DIFFERENCES,
    ),
    "mujoco": Page(
        title="MuJoCo alongside stable-baselines3",
        pairings=("ppo-sb3", "sac-sb3", "td3-sb3", "tqc-sb3"),
        differences=MUJOCO_DIFFERENCES,
        has_rates=True,
    ),
    "recurrent_ppo": Page(
        title="Recurrent PPO alongside sb3-contrib",
        pairings=("recurrent-ppo",),
        differences=RECURRENT_DIFFERENCES,
        has_rates=True,
    ),
    "spread": Page(
        title="MAPPO and IPPO on simple_spread",
        pairings=("mappo", "ippo"),
        differences=SPREAD_DIFFERENCES,
        has_rates=True,
    ),
    "time_to_475": Page(
        title="Time to 475 on CartPole-v1", pairings=("dqn-race",), differences=RACE_DIFFERENCES, is_race=True
    ),
}
BAR = 1.5  # of the race: times the peer's seconds by ours


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One training of one side."""

    pairing: str
    task: str
    side: str
    seed: int
    result: Mapping[str, Any]  # what the side printed
    commit: str  # of trainkit

    @property
    def score(self) -> float:
        """The mean of the evaluations in the second half."""
        returns: list[float] = self.result["returns"]
        return statistics.fmean(returns[len(returns) // 2 :])

    @property
    def steps(self) -> int:
        """The environment steps."""
        steps: int = self.result["done"]["env_steps"]
        return steps

    @property
    def steps_to_solved(self) -> float:
        """The environment steps until the task was solved, infinity where it was not."""
        solved = work.PAIRINGS[self.pairing].tasks[self.task].solved
        return self.steps if solved is not None and self.result["returns"][-1] >= solved else math.inf


def settings_of(pairing: str, task: str) -> dict[str, str]:
    """Return what a run depends on besides its key."""
    return {name: repr(value) for name, value in dataclasses.asdict(work.PAIRINGS[pairing].tasks[task]).items()}


def learn(pairing: str, task: str, side: str, seed: int, core: int) -> dict[str, Any]:
    """Run one side on one core and return what it printed, after checking that it did the work."""
    own = work.PAIRINGS[pairing].tasks[task]
    command = [*SIDES[side], pairing, task, str(seed)]
    result = printed(command, core)
    done, n_evaluations = result["done"], len(result["returns"])
    steps = own.steps if own.solved is None else done["env_steps"]
    extra = done["updates"] - own.n_updates(steps)
    wanted = {
        "env_steps": steps,
        "updates": own.n_updates(steps) + extra,
        "parameters": done["parameters"] if task == "simple_spread" else work.n_parameters(task, own),
        "threads": 1,
    }
    is_complete = own.solved is not None or n_evaluations == len(own.evaluated_at)
    # Learning may start with the step that ends the random ones, or after it.
    if done != wanted or extra not in (0, own.updates_per_round) or not is_complete:
        raise SystemExit(f"{command} did {done} with {n_evaluations} evaluations, the work is {wanted}")
    return result


def kept(cache: pages.Cache, pairings: Sequence[str]) -> Iterator[Run]:
    """Yield the finished runs with today's settings."""
    for name in pairings:
        pairing = work.PAIRINGS[name]
        for task in pairing.tasks:
            today = settings_of(name, task)
            for seed, side in itertools.product(itertools.chain(*pairing.seeds[task]), (pairing.peer, OURS)):
                key = name, task, side, seed
                if not cache.is_due(today, *key):
                    result = cache.get(*key)
                    assert result is not None
                    yield Run(pairing=name, task=task, side=side, seed=seed, result=result, commit=cache.commit(*key))


# ---- the page ----


def report(page: Page, runs: Sequence[Run], command: str) -> list[str]:
    """Return the lines of a page: verdicts, settings, what differs still, all evaluations."""
    versions = {run.side: run.result["versions"] for run in runs}
    sides = [f"{side}: {', '.join(' '.join(pair) for pair in own.items())}." for side, own in versions.items()]
    episodes = {own.episodes for name in page.pairings for own in work.PAIRINGS[name].tasks.values()}
    commits = [run.commit for run in runs if run.side == OURS]
    return [
        *pages.heading(page.title, command, commits, how="one thread, pinned to one core, sides in turn"),
        " ".join(sides),
        "",
        f"At each evaluation the greedy policy, or the mean action, plays {' or '.join(map(str, sorted(episodes)))} "
        "episodes on environments of its own, the same episodes for both sides of a pairing.",
        "",
        *(race(page, runs) if page.is_race else verdicts(page, runs)),
        *page.differences.strip().splitlines(),
        "",
        "## Settings of both sides",
        "",
        *settings_table(page),
        "## All evaluations, in order",
        "",
        "```",
        *(
            f"{run.pairing:13}{run.task:17}{run.side:18}{run.seed:3}"
            + "".join(f"{mean:7.4g}" for mean in run.result["returns"])
            for run in sorted(runs, key=lambda run: (page.pairings.index(run.pairing), run.task, run.side))
        ),
        "```",
    ]


def verdicts(page: Page, runs: Sequence[Run]) -> Iterator[str]:
    """Yield the tables of a page that compares returns."""
    yield (
        "A run's score is the mean of the evaluations in its second half. The tables have the interquartile means "
        "(IQM) of the scores over the seeds, their difference, trainkit's minus the peer's, with a 95 % percentile "
        "bootstrap interval (10,000 resamples), and the verdict of a permutation test of the means, which names a "
        "winner among equals once in twenty times."
    )
    yield ""
    columns = "pairing, task, seeds, IQM of peer, IQM of trainkit, difference, 95 % interval, verdict, measured at"
    first, fresh = split(page, runs)
    yield from pages.table(columns.split(", "), rows(first))
    if page.has_rates:
        yield "Environment steps per second of CPU time, evaluations left out, medians over the seeds:"
        yield ""
        yield from pages.table(["pairing", "task", "peer", "trainkit"], rates(runs))
    if fresh:
        pairs = {(run.pairing, run.task) for run in fresh}
        yield (
            "**Fresh seeds**, none of which had been looked at before, tell luck from a cause where the first seeds "
            "leaned to one side:"
        )
        yield ""
        yield from pages.table(columns.split(", "), rows(fresh))
        yield "All seeds together, the first among them, which were the reason to run the others:"
        yield ""
        yield from pages.table(columns.split(", "), rows([run for run in runs if (run.pairing, run.task) in pairs]))
        yield (
            "**All tasks of a pairing pooled.** Few seeds of one task hide a small difference that its tasks share. "
            "Scores are divided by their task's standard deviation, both sides taken together; then the IQM is over "
            "all tasks and seeds, resampled task by task."
        )
        yield ""
        columns = "pairing, seeds, tasks, runs a side, difference in standard deviations, 95 % interval, verdict"
        yield from pages.table(columns.split(", "), pooled(page, first, fresh))


def split(page: Page, runs: Sequence[Run]) -> tuple[list[Run], list[Run]]:
    """Return the runs on the first seeds, and those on fresh seeds of which both sides are complete."""
    first, fresh = [], []
    for run in runs:
        seeds = work.PAIRINGS[run.pairing].seeds[run.task]
        (first if run.seed in seeds[0] else fresh).append(run)
    counts = {
        (run.pairing, run.task): sum((own.pairing, own.task) == (run.pairing, run.task) for own in fresh)
        for run in fresh
    }
    wanted = {pair: 2 * len(work.PAIRINGS[pair[0]].seeds[pair[1]][1]) for pair in counts}
    return first, [run for run in fresh if counts[run.pairing, run.task] == wanted[run.pairing, run.task]]


def both_sides(runs: Sequence[Run], pairing: str, task: str) -> tuple[list[Run], list[Run]]:
    """Return the peer's runs and ours on the seeds that both have."""
    own = [run for run in runs if (run.pairing, run.task) == (pairing, task)]
    theirs, ours = ({run.seed: run for run in own if (run.side == OURS) == is_ours} for is_ours in (False, True))
    seeds = sorted(theirs.keys() & ours.keys())
    return [theirs[seed] for seed in seeds], [ours[seed] for seed in seeds]


def rows(runs: Sequence[Run]) -> Iterator[list[str]]:
    """Yield a row for each pairing and task of which both sides have the same seeds."""
    for pairing, task in dict.fromkeys((run.pairing, run.task) for run in runs):
        theirs, ours = both_sides(runs, pairing, task)
        if len(ours) < 2:
            continue
        scores = [[run.score for run in side] for side in (theirs, ours)]
        found = difference(scores[1], scores[0])
        yield [
            pairing,
            task,
            str(len(ours)),
            *(f"{iqm(own):,.2f}" for own in scores),
            f"{found.estimate:+,.2f}",
            f"{found.low:+,.2f} to {found.high:+,.2f}",
            found.verdict(OURS, "the peer"),
            pages.listed(run.commit for run in ours),
        ]


def rates(runs: Sequence[Run]) -> Iterator[list[str]]:
    """Yield the steps per second of both sides, for each pairing and task that both have run."""
    for pairing, task in dict.fromkeys((run.pairing, run.task) for run in runs):
        theirs, ours = both_sides(runs, pairing, task)
        if ours:
            yield [pairing, task, f"{rate(theirs):,.0f}", f"{rate(ours):,.0f}"]


def rate(runs: Sequence[Run]) -> float:
    """Return the median of environment steps per second of CPU time."""
    return statistics.median(run.steps / run.result["seconds"] for run in runs)


def pooled(page: Page, first: Sequence[Run], fresh: Sequence[Run]) -> Iterator[list[str]]:
    """Yield differences over all tasks of a pairing, in standard deviations of each task's scores."""
    for pairing in page.pairings:
        has_fresh = any(run.pairing == pairing for run in fresh)
        for label, runs in {"first": first, "fresh": fresh, "all": [*first, *fresh]}.items():
            tasks = dict.fromkeys(run.task for run in runs if run.pairing == pairing)
            sides = [standardized(*both_sides(runs, pairing, task)) for task in tasks]
            theirs, ours = [side[0] for side in sides], [side[1] for side in sides]
            if not sides or (label == "all" and not has_fresh) or not can_vary([*ours, *theirs]):
                continue
            found = difference_over_tasks(ours, theirs)
            yield [
                pairing,
                label,
                str(len(sides)),
                str(sum(map(len, ours))),
                f"{found.estimate:+.2f}",
                f"{found.low:+.2f} to {found.high:+.2f}",
                found.verdict(OURS, "the peer"),
            ]


def standardized(theirs: Sequence[Run], ours: Sequence[Run]) -> list[list[float]]:
    """Return the scores of both sides, minus the task's mean and divided by its standard deviation."""
    scores = [run.score for run in (*theirs, *ours)]
    mean, deviation = statistics.fmean(scores), statistics.pstdev(scores)
    return [[(run.score - mean) / deviation if deviation else 0.0 for run in side] for side in (theirs, ours)]


def race(page: Page, runs: Sequence[Run]) -> Iterator[str]:
    """Yield the table and the verdict of a page that compares the time to a solved task."""
    (pairing,) = page.pairings
    ((task, own),) = work.PAIRINGS[pairing].tasks.items()
    yield (
        f"The first evaluation with a mean return of {own.solved:.0f} ends a run; {own.steps:,} steps give it up, "
        "which counts as more than all. Seconds are of CPU time, without the evaluations'."
    )
    yield ""
    sides = both_sides(runs, pairing, task)
    seconds = [
        statistics.median(run.result["seconds"] if math.isfinite(run.steps_to_solved) else math.inf for run in side)
        for side in sides
    ]
    columns = "side, solved, steps (median), seconds (median), steps per second, peer's seconds / its, measured at"
    yield from pages.table(
        columns.split(", "),
        (
            [
                side[0].side,
                f"{sum(math.isfinite(run.steps_to_solved) for run in side)} of {len(side)}",
                f"{statistics.median(run.steps_to_solved for run in side):,.0f}",
                f"{median:,.0f}",
                f"{rate(side):,.0f}",
                f"{seconds[0] / median:.2f}",
                pages.listed(run.commit for run in side) if side[0].side == OURS else "",
            ]
            for side, median in zip(sides, seconds, strict=True)
        ),
    )
    found = difference([run.steps for run in sides[1]], [run.steps for run in sides[0]])
    is_met = seconds[0] / seconds[1] >= BAR
    yield f"The bar, {BAR} times the peer's seconds by ours: {'met' if is_met else '**missed**'}."
    yield (
        f"Steps to the end (IQM), ours minus the peer's: {found.estimate:+,.0f}, 95 % bootstrap interval "
        f"{found.low:+,.0f} to {found.high:+,.0f}: {found.verdict('the peer', OURS)}."
    )
    yield ""
    yield "Steps and seconds, seed by seed:"
    yield ""
    yield "```"
    for side in sides:
        yield f"{side[0].side:18}" + "".join(f"{run.steps:8}/{run.result['seconds']:4.0f}" for run in side)
    yield "```"
    yield ""


def settings_table(page: Page) -> Iterator[str]:
    """Yield a column for each kind of settings, and a row for each setting that one of them has."""
    columns: dict[work.Settings, dict[str, list[str]]] = {}
    for name in page.pairings:
        for task, own in work.PAIRINGS[name].tasks.items():
            columns.setdefault(own, {}).setdefault(name, []).append(task)
    names = ["; ".join(f"{name}: {', '.join(tasks)}" for name, tasks in own.items()) for own in columns.values()]
    fields = [field.name for field in dataclasses.fields(work.Settings)]
    cells = ([name.replace("_", " "), *(shown(getattr(own, name)) for own in columns)] for name in fields)
    yield from pages.table(["setting", *names], (row for row in cells if any(row[1:])))


def shown(value: object) -> str:
    """Return a setting as text, nothing for one that a learner does not have."""
    if isinstance(value, tuple):
        return "-".join(map(str, value))
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def main() -> None:
    """Run what is missing, sides in turn, and write the page."""
    parser = pages.arguments(__doc__)
    parser.add_argument("--page", choices=PAGES, default="same_settings")
    parser.add_argument("--pairings", nargs="+", choices=work.PAIRINGS, help="default: those of the page")
    parser.add_argument("--tasks", nargs="+", choices=work.SIZES, help="default: those of the pairings")
    parser.add_argument("--seeds", nargs="+", type=int, help="default: the first ones of each task")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--no-training", action="store_true", help="write the page of the kept runs")
    options = parser.parse_args()
    page = PAGES[options.page]
    command = f"python -m benchmarks.learning.same_settings --page {options.page}"
    cache = pages.Cache(pages.RESULTS / f"{options.page}.jsonl")
    with quiet_machine() if page.is_race and not options.no_training else nullcontext():
        for name in () if options.no_training else options.pairings or page.pairings:
            pairing = work.PAIRINGS[name]
            for task in (task for task in pairing.tasks if task in (options.tasks or pairing.tasks)):
                for seed, side in itertools.product(options.seeds or pairing.seeds[task][0], (pairing.peer, OURS)):
                    key, today = (name, task, side, seed), settings_of(name, task)
                    if side in options.sides and cache.is_due(today, *key):
                        cache.put(learn(*key, options.core), *key, settings=today)
                        print(f"{name} {task} {side} {seed}: {cache.get(*key)}", flush=True)
                        pages.write(options.page, report(page, list(kept(cache, page.pairings)), command))
    pages.write(options.page, report(page, list(kept(cache, page.pairings)), command))


if __name__ == "__main__":
    main()
