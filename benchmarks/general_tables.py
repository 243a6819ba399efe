"""Show what the general tables learn, without the zoo: every preset on seven tasks, on seeds that none was tuned on.

    python -m benchmarks.general_tables [--tasks frozenlake ...] [--presets dqn ...] [--seeds 201 202 203 204 205]
                                        [--no-training]

A run has the preset's defaults and `zoo=False`, and ends after the table's own steps, or those that the task names.
Then its last policy plays greedy episodes that neither training nor its evaluations have played. Tables of a preset are
chosen by spaces, so all tasks of a kind have the same settings. Presets with bars, and SAC, have five seeds, the others
three. Finished runs are kept in `benchmarks/results/general_tables.jsonl` with their settings, and not run again.
Breakout needs `pip install minatar`, LunarLander `pip install 'gymnasium[box2d]'`.
"""

import argparse
import itertools
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import torch

import trainkit as tk
from benchmarks.cache import Cache
from benchmarks.provenance import listed, measured_at
from benchmarks.tuning_seeds import check_fresh
from trainkit.core.config import to_text
from trainkit.plot.comparing import interval

RESULTS = Path("benchmarks/results")
CACHE = RESULTS / "general_tables.jsonl"
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

    def register(self) -> None:
        """Register the environment with Gymnasium."""
        if self.env.startswith("MinAtar/") and self.env not in gymnasium.registry:
            import minatar.gym

            minatar.gym.register_envs()


TASKS = {
    "cartpole": Task(env="CartPole-v1", bar=450.0),
    "acrobot": Task(env="Acrobot-v1", bar=-90.0),
    "mountaincar": Task(env="MountainCar-v0"),
    "frozenlake": Task(env="FrozenLake-v1", bar=0.68, episodes=1_000),
    "lunarlander": Task(env="LunarLander-v3"),
    "pendulum": Task(env="Pendulum-v1", domain="continuous"),
    "breakout": Task(env="MinAtar/Breakout-v1", domain="grid", bar=5.0, steps=200_000),
}


def is_judged(name: str) -> bool:
    """Return whether a preset learns in environments of one agent; those with a memory have a page of their own."""
    preset = tk.presets.PRESETS[name]
    is_offline = preset.learns_from_data
    return not is_offline and name not in ("ippo", "mappo") and preset.table()["recurrent"] is None


def accepts(name: str, task: Task) -> bool:
    """Return whether a preset accepts the actions of a task."""
    preset = tk.presets.PRESETS[name]
    is_continuous = task.domain == "continuous"
    if isinstance(preset, tk.presets.QPreset):
        return not is_continuous
    return is_continuous or not isinstance(preset, tk.presets.SACPreset)


PRESETS = [name for name in tk.presets.PRESETS if is_judged(name)]
PAIRS = [(name, preset) for name, task in TASKS.items() for preset in PRESETS if accepts(preset, task)]


def key_of(name: str, preset: str, seed: int) -> tuple[Any, ...]:
    """Return all that a run depends on: task, preset, seed, steps, and the settings of the preset's table."""
    return name, preset, seed, *_steps_and_settings(name, preset)


def _steps_and_settings(name: str, preset: str) -> tuple[Any, ...]:
    if preset == RANDOM:
        return ()
    one = tk.presets.PRESETS[preset]
    table = one.table(_domain(one, TASKS[name]))
    settings = {option: to_text(value) for option, value in one.complete_settings(table).items()}
    return _n_epochs(table, TASKS[name]), settings


def _domain(preset: Any, task: Task) -> str:
    return task.domain if task.domain in preset.domains else preset.domains[0]


def _n_epochs(table: Any, task: Task) -> int:
    return int(table["max_epoch"] if task.steps is None else task.steps // table["step_per_epoch"])


def learn(name: str, preset: str, seed: int) -> dict[str, Any]:
    """Train a preset without the zoo; return its evaluations, the last one on fresh episodes, and its warnings."""
    task, began = TASKS[name], time.process_time()
    task.register()
    if preset == RANDOM:
        envs = tk.make_envs(task.env, 1)
        policy = tk.RandomPolicy(envs.action_space, seed=seed)
        envs.close()
        return {"returns": [_final(policy, task, seed)], "seconds": time.process_time() - began}
    one: Any = tk.presets.PRESETS[preset]
    domain = _domain(one, task)
    trainer = one(
        task.env,
        seed=seed,
        zoo=False,
        device="cpu",
        threads=1,
        max_epoch=_n_epochs(one.table(domain), task),
        verbose=False,
        show_progress=False,
    )
    assert trainer.config["domain"] == domain, f"{task.env} has the table {trainer.config['domain']}, not {domain}"
    with trainer:
        returns = [stats["test/returns/mean"] for _, stats, _ in trainer]
        info = trainer.info
    if info.epoch < trainer.max_epoch:
        raise SystemExit(f"{preset} on {task.env}, seed {seed}, was stopped after {info.epoch} epochs")
    return {
        "returns": [*returns, _final(trainer.policy, task, seed)],
        "steps": info.env_step,
        "warnings": {one.name: [one.first_epoch, one.last_epoch] for one in info.warnings.values()},
        "seconds": time.process_time() - began,
    }


def _final(policy: Any, task: Task, seed: int) -> float:
    """Return the mean return of greedy episodes whose root no evaluation during training has."""
    mean = tk.evaluate(policy, task.env, n_episode=task.episodes, seed=1_000_000 + seed).returns.mean
    assert mean is not None, "episodes were requested"
    return mean


# ---- the page ----


Runs = Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]  # by task and preset


def kept(cache: Cache) -> Runs:
    """Return all finished runs with today's settings, with their seeds and commits."""
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    pairs = [*PAIRS, *((name, RANDOM) for name in TASKS)]
    for name, preset in pairs:
        same = _steps_and_settings(name, preset)  # of all seeds
        for seed in REPORTED:
            key = name, preset, seed, *same
            if (run := cache.get(*key)) is not None:
                runs.setdefault((name, preset), []).append({**run, "seed": seed, "commit": cache.commit(*key)})
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


def table(runs: Runs, name: str) -> Iterator[str]:
    """Yield the rows of a task: what each preset reached, its warnings, time and commit."""
    task = TASKS[name]
    random = runs[name, RANDOM][0]["returns"][-1]
    yield f"## {task.env}"
    yield ""
    yield f"{task.episodes:,} greedy episodes per seed; random actions return {random:.4g}."
    yield ""
    yield "| preset | steps | mean over seeds | of each seed | result | warnings | seconds | measured at |"
    yield "|---|---|---|---|---|---|---|---|"
    for preset in PRESETS:
        own = runs.get((name, preset), ())
        if not own:
            continue
        finals = [run["returns"][-1] for run in own]
        mean = interval([finals], statistic="mean")
        warnings = [text for run, final in zip(own, finals, strict=True) for text in warned(run, final > random)]
        cells = [
            preset,
            f"{own[0]['steps']:,}",
            f"{mean.estimate:.4g} [{mean.low:.4g}, {mean.high:.4g}]",
            ", ".join(f"{run['seed']}: {final:.4g}" for run, final in zip(own, finals, strict=True)),
            verdict(task, preset, own, random),
            ", ".join(sorted(warnings)) or "none",
            f"{sum(run['seconds'] for run in own) / len(own):.0f}",
            listed(run["commit"] for run in own),
        ]
        yield f"| {' | '.join(cells)} |"
    yield ""


def not_run(runs: Runs) -> Iterator[str]:
    """Yield a list of the presets that no run of a task exists of."""
    missing = {
        task.env: [preset for own, preset in PAIRS if own == name and (name, preset) not in runs]
        for name, task in TASKS.items()
    }
    yield "## Not run"
    yield ""
    yield from (f"- {env}: {', '.join(presets)}" for env, presets in missing.items() if presets)
    if not any(missing.values()):
        yield "Nothing is missing."
    yield ""


def report(runs: Runs) -> str:
    """Return the page, in markdown."""
    tasks = [name for name in TASKS if any(task == name and preset != RANDOM for task, preset in runs)]
    lines = [
        "# The general tables on fresh seeds",
        "",
        measured_at([run["commit"] for (_, preset), own in runs.items() for run in own if preset != RANDOM]),
        "",
        f"`python -m benchmarks.general_tables` on {platform.machine()}, one thread; Python "
        f"{platform.python_version()}, trainkit {tk.__version__}, torch {torch.__version__}, gymnasium "
        f"{gymnasium.__version__}.",
        "",
        "Presets with their defaults and `zoo=False`; the last policy plays greedy episodes that training and its "
        "evaluations have not played. No seed is one on which a table was tuned. Means over seeds have the 95 % "
        f"interval of the percentile bootstrap. {', '.join(MAIN)} must reach the bar that a result names, and every "
        "seed must be better than random actions. Warnings, with the seed, are those of the last epoch, and all "
        "where a seed is not better than random actions. Seconds are of CPU, with evaluations.",
        "",
        *itertools.chain(*(table(runs, name) for name in tasks)),
        *not_run(runs),
    ]
    return "\n".join(lines)


def main() -> None:
    """Train what is missing and write the page after every run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--presets", nargs="+", choices=PRESETS, default=PRESETS)
    parser.add_argument("--seeds", nargs="+", type=int, help="default: 201 to 205, or to 203")
    parser.add_argument("--no-training", action="store_true", help="write the page of what there is")
    given = parser.parse_args()
    torch.set_num_threads(1)  # networks this small are fastest on one
    cache = Cache(CACHE)
    for name in given.tasks:
        chosen = [preset for preset in given.presets if (name, preset) in PAIRS]
        own = [(preset, seed) for preset in chosen for seed in given.seeds or REPORTED[: N_SEEDS.get(preset, 3)]]
        check_fresh(chosen, TASKS[name].env, [seed for _, seed in own])
        for preset, seed in () if given.no_training else [(RANDOM, REPORTED[0]), *own]:
            key = key_of(name, preset, seed)
            if cache.get(*key) is None:
                run = learn(name, preset, seed)
                cache.put(run, *key)
                print(f"{name} {preset} {seed}: {run['returns'][-1]:.4g}, {run['seconds']:.0f} s", flush=True)
    (RESULTS / "general_tables.md").write_text(report(kept(cache)))


if __name__ == "__main__":
    main()
