"""Show what the general tables learn, without the zoo: every preset on seven tasks, on seeds that none was tuned on.

    python -m benchmarks.learning.general_tables [--tasks frozenlake ...] [--presets dqn ...] [--seeds 201 202 ...]
                                                 [--no-training]

A run has the preset's defaults and `zoo=False`, and ends after the table's own steps, or those that the task names.
Then its last policy plays greedy episodes that neither training nor its evaluations have played. Tables of a preset are
chosen by spaces, so all tasks of a kind have the same settings. Presets with bars, and SAC, have five seeds, the others
three. Finished runs are kept in `benchmarks/results/general_tables.jsonl` and not run again.
Breakout needs `pip install minatar`, LunarLander `pip install 'gymnasium[box2d]'`.
"""

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import trainkit as tk
from benchmarks import pages
from benchmarks.learning.training import check_fresh, is_for_one_agent, mean_return, preset_trainer, register
from trainkit.core.config import to_text
from trainkit.plot.comparing import interval

CACHE = pages.RESULTS / "general_tables.jsonl"
REPORTED = range(201, 301)  # the seeds that may be on the page
RANDOM = "random"  # in the place of a preset: random actions
MAIN = "dqn", "rainbow", "qrdqn", "ppo"  # the presets that have bars
N_SEEDS = dict.fromkeys((*MAIN, "sac"), 5)  # of other presets 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """An environment, which table of a preset it is learned with, and the mean return that the presets in `MAIN` need.

    Attributes:
        env: its id.
        domain: of the table; the first of a preset that has no such table.
        bar: None for none besides random play.
        episodes: greedy ones, of each run.
        steps: at most; None is the table's own number.
    """

    env: str
    domain: str = "classic"
    bar: float | None = None
    episodes: int = 100
    steps: int | None = None


TASKS = {
    "cartpole": Task(env="CartPole-v1", bar=450.0),
    "acrobot": Task(env="Acrobot-v1", bar=-90.0),
    "mountaincar": Task(env="MountainCar-v0"),
    "frozenlake": Task(env="FrozenLake-v1", bar=0.68, episodes=1_000),
    "lunarlander": Task(env="LunarLander-v3"),
    "pendulum": Task(env="Pendulum-v1", domain="continuous"),
    "breakout": Task(env="MinAtar/Breakout-v1", domain="grid", bar=5.0, steps=200_000),
}


def accepts(name: str, task: Task) -> bool:
    """Return whether a preset accepts the actions of a task."""
    preset = tk.presets.PRESETS[name]
    is_continuous = task.domain == "continuous"
    if isinstance(preset, tk.presets.QPreset):
        return not is_continuous
    return is_continuous or not isinstance(preset, tk.presets.ActorCriticPreset)


PRESETS = [name for name in tk.presets.PRESETS if is_for_one_agent(name)]
PAIRS = [(name, preset) for name, task in TASKS.items() for preset in PRESETS if accepts(preset, task)]


def settings(name: str, preset: str) -> dict[str, str]:
    """Return the settings of a preset's table for a task, and the number of epochs; none for random actions."""
    if preset == RANDOM:
        return {}
    one = tk.presets.PRESETS[preset]
    table = one.table(_domain(one, TASKS[name]))
    own = {option: to_text(value) for option, value in one.complete_settings(table).items()}
    return {**own, "epochs": str(_n_epochs(table, TASKS[name]))}


def _domain(preset: Any, task: Task) -> str:
    return task.domain if task.domain in preset.domains else preset.domains[0]


def _n_epochs(table: Any, task: Task) -> int:
    return int(table["max_epoch"] if task.steps is None else task.steps // table["step_per_epoch"])


def learn(name: str, preset: str, seed: int) -> dict[str, Any]:
    """Train a preset without the zoo; return its evaluations, the last one on fresh episodes, and its warnings."""
    task, began = TASKS[name], time.process_time()
    register(task.env)
    final = {"n_episode": task.episodes, "seed": 1_000_000 + seed}  # a seed that no evaluation during training has
    if preset == RANDOM:
        envs = tk.make_envs(task.env, 1)
        policy = tk.RandomPolicy(envs.action_space, seed=seed)
        envs.close()
        return {"returns": [mean_return(policy, task.env, **final)], "seconds": time.process_time() - began}
    one: Any = tk.presets.PRESETS[preset]
    domain = _domain(one, task)
    trainer = preset_trainer(preset, task.env, seed, zoo=False, threads=1, max_epoch=_n_epochs(one.table(domain), task))
    assert trainer.config["domain"] == domain, f"{task.env} has the table {trainer.config['domain']}, not {domain}"
    with trainer:
        returns = [stats["test/returns/mean"] for _, stats, _ in trainer]
        info = trainer.info
    if info.epoch < trainer.max_epoch:
        raise SystemExit(f"{preset} on {task.env}, seed {seed}, was stopped after {info.epoch} epochs")
    return {
        "returns": [*returns, mean_return(trainer.policy, task.env, **final)],
        "steps": info.env_step,
        "warnings": {one.name: [one.first_epoch, one.last_epoch] for one in info.warnings.values()},
        "seconds": time.process_time() - began,
    }


# ---- the page ----


Runs = Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]  # by task and preset


def kept(cache: pages.Cache) -> Runs:
    """Return all finished runs with their seeds and commits, and whether settings have changed since."""
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for name, preset in [*PAIRS, *((name, RANDOM) for name in TASKS)]:
        today = settings(name, preset)
        for seed in REPORTED:
            key = name, preset, seed
            if (run := cache.get(*key)) is not None:
                about = {"seed": seed, "commit": cache.commit(*key), "is_outdated": cache.is_outdated(today, *key)}
                runs.setdefault((name, preset), []).append({**run, **about})
    return runs


def verdict(task: Task, preset: str, own: Sequence[Mapping[str, Any]], random: float) -> str:
    """Return whether every seed is better than random play, and the mean reaches the bar."""
    finals = [run["returns"][-1] for run in own]
    worse = [str(run["seed"]) for run, final in zip(own, finals, strict=True) if final < random]
    if worse:
        return f"**worse than random**: {', '.join(worse)}"
    if task.bar is None or preset not in MAIN:
        return "better than random" if min(finals) > random else "random"
    n_missing = N_SEEDS[preset] - len(own)
    some = f" by {len(own)} of {N_SEEDS[preset]} seeds" if n_missing > 0 else ""
    return f"{task.bar:g} {'met' if sum(finals) / len(finals) >= task.bar else '**missed**'}{some}"


def warned(run: Mapping[str, Any], is_better: bool) -> Iterator[str]:
    """Yield a run's warnings: those of its last epoch, and where it is not better than random play all of them."""
    n_epochs = len(run["returns"]) - 1
    for name, (first, last) in run["warnings"].items():
        if last == n_epochs:
            yield f"{name} ({run['seed']})"
        elif not is_better:
            yield f"{name} ({run['seed']}, epochs {first} to {last} of {n_epochs})"


def rows(runs: Runs, name: str, random: float) -> Iterator[list[str]]:
    """Yield the cells of each preset on a task: what it reached, its warnings, time and commit."""
    for preset in PRESETS:
        own = runs.get((name, preset), ())
        if not own:
            continue
        finals = [run["returns"][-1] for run in own]
        mean = interval([finals], statistic="mean")
        warnings = [text for run, final in zip(own, finals, strict=True) for text in warned(run, final > random)]
        is_outdated = any(run.get("is_outdated") for run in own)
        yield [
            preset,
            f"{own[0]['steps']:,}",
            f"{mean.estimate:.4g} [{mean.low:.4g}, {mean.high:.4g}]",
            ", ".join(f"{run['seed']}: {final:.4g}" for run, final in zip(own, finals, strict=True)),
            verdict(TASKS[name], preset, own, random),
            ", ".join(sorted(warnings)) or "none",
            f"{sum(run['seconds'] for run in own) / len(own):.0f}",
            pages.listed(run["commit"] for run in own) + (", other settings then" if is_outdated else ""),
        ]


def part(runs: Runs, name: str) -> Iterator[str]:
    """Yield the part of the page about a task."""
    random = runs[name, RANDOM][0]["returns"][-1]
    columns = ["preset", "steps", "mean over seeds", "of each seed", "result", "warnings", "seconds", "measured at"]
    yield f"## {TASKS[name].env}"
    yield ""
    yield f"{TASKS[name].episodes:,} greedy episodes per seed; random actions return {random:.4g}."
    yield ""
    yield from pages.table(columns, rows(runs, name, random))


def report(runs: Runs) -> list[str]:
    """Return the lines of the page."""
    tasks = [name for name in TASKS if any(task == name and preset != RANDOM for task, preset in runs)]
    missing = {
        task.env: [preset for own, preset in PAIRS if own == name and (name, preset) not in runs]
        for name, task in TASKS.items()
    }
    return [
        *pages.heading(
            "The general tables on fresh seeds",
            "python -m benchmarks.learning.general_tables",
            [run["commit"] for (_, preset), own in runs.items() for run in own if preset != RANDOM],
            packages=["gymnasium"],
        ),
        "Presets with their defaults and `zoo=False`; the last policy plays greedy episodes that training and its "
        "evaluations have not played. No seed is one on which a table was tuned. Means over seeds have the 95 % "
        f"interval of the percentile bootstrap. {', '.join(MAIN)} must reach the bar that a result names, and every "
        "seed must be better than random actions. Warnings, with the seed, are those of the last epoch, and all "
        "where a seed is not better than random actions. Seconds are of CPU, with evaluations.",
        "",
        *itertools.chain(*(part(runs, name) for name in tasks)),
        "## Not run",
        "",
        *(f"- {env}: {', '.join(presets)}" for env, presets in missing.items() if presets),
        *([] if any(missing.values()) else ["Nothing is missing."]),
    ]


def main() -> None:
    """Train what is missing, and write the page."""
    parser = pages.arguments(__doc__)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--presets", nargs="+", choices=PRESETS, default=PRESETS)
    parser.add_argument("--seeds", nargs="+", type=int, help="default: 201 to 205, or to 203")
    parser.add_argument("--no-training", action="store_true", help="write the page of the kept runs")
    given = parser.parse_args()
    torch.set_num_threads(1)  # the fastest for networks this small
    cache = pages.Cache(CACHE)
    for name in given.tasks:
        chosen = [preset for preset in given.presets if (name, preset) in PAIRS]
        own = [(preset, seed) for preset in chosen for seed in given.seeds or REPORTED[: N_SEEDS.get(preset, 3)]]
        check_fresh(chosen, TASKS[name].env, [seed for _, seed in own])
        for preset, seed in () if given.no_training else [(RANDOM, REPORTED[0]), *own]:
            today = settings(name, preset)
            if cache.is_due(today, name, preset, seed):
                run = learn(name, preset, seed)
                cache.put(run, name, preset, seed, settings=today)
                print(f"{name} {preset} {seed}: {run['returns'][-1]:.4g}, {run['seconds']:.0f} s", flush=True)
    pages.write("general_tables", report(kept(cache)))


if __name__ == "__main__":
    main()
