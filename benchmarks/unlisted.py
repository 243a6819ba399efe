"""Learn environments that no table was tuned on and the zoo does not have, beside Stable-Baselines3's defaults.

    python -m benchmarks.unlisted [--tasks Blackjack-v1 ...] [--seeds 201 202] [--core 0] [--no-training]

Presets and the peer's DQN and PPO have all their defaults, and 100,000 environment steps at most. Then each plays 100
greedy episodes. A row is better than random if its mean over seeds is above the 95 % interval of random actions. The
peer lives in an environment of its own, which `make bench-mujoco` builds; MinAtar needs `pip install minatar` in both.
Finished runs are kept in `benchmarks/results/unlisted.jsonl` with their settings, and not run again.
"""

import argparse
import platform
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import trainkit as tk
from benchmarks import unlisted_work as work
from benchmarks.cache import Cache
from benchmarks.provenance import listed, measured_at
from benchmarks.running import printed
from benchmarks.tuning_seeds import check_fresh
from trainkit.core.config import to_text
from trainkit.plot.comparing import interval

RESULTS = Path("benchmarks/results")
CACHE = RESULTS / "unlisted.jsonl"
PEER = [".peers/sb3-contrib@2.9.2/bin/python", "-m", "benchmarks.unlisted_sb3"]
RANDOM = "random actions"
PARTS = 10  # epochs of a run


def learners(task: str) -> tuple[str, ...]:
    """Return the rows of a task: our presets, and the peer's algorithms that accept its actions."""
    if task in work.DISCRETE:
        return "dqn", "rainbow", "ppo", "sb3 dqn", "sb3 ppo"
    return "sac", "ppo", "sb3 ppo"


def key_of(task: str, learner: str, seed: int) -> list[Any]:
    """Return all that a run depends on."""
    key = [task, learner, seed, work.STEPS, work.EPISODES]
    if learner not in tk.presets.PRESETS:
        return key
    preset: Any = tk.presets.PRESETS[learner]
    settings = preset.config(_make_envs(task)).settings()
    return [*key, {name: to_text(value) for name, value in settings.items()}]


def _make_envs(task: str) -> Any:
    """Register the environment, which a preset then makes by its id."""
    work.make(task).close()
    return task


def learn(task: str, learner: str, seed: int, core: int) -> dict[str, Any]:
    """Return the mean return of greedy episodes after training, the warnings at its end, and its seconds."""
    if learner.startswith("sb3 "):
        algorithm = learner.removeprefix("sb3 ")
        command = [*PEER, "--algorithm", algorithm, "--task", task, "--seed", str(seed)]
        result = printed(command, core)
        return {**result, "return": statistics.fmean(result.pop("returns"))}
    began = time.process_time()
    if learner == RANDOM:
        env = work.make(task)
        env.action_space.seed(seed)
        return {"returns": work.play(env, lambda _: env.action_space.sample(), seed)}
    preset: Any = tk.presets.PRESETS[learner]
    settings = preset.config(_make_envs(task)).settings()
    steps = min(settings["max_epoch"] * settings["step_per_epoch"], work.STEPS)
    options = {"device": "cpu", "threads": 1, "verbose": False, "show_progress": False}
    trainer = preset(task, seed=seed, max_epoch=PARTS, step_per_epoch=steps // PARTS, **options)
    with trainer:
        trainer.run()
        warnings = [one.name for one in trainer.info.warnings.values() if one.last_epoch == PARTS]
    mean = tk.evaluate(trainer.policy, task, n_episode=work.EPISODES, seed=1_000_000 + seed).returns.mean
    seconds = time.process_time() - began
    return {"return": mean, "steps": trainer.info.env_step, "warnings": warnings, "seconds": seconds}


# ---- the page ----


Runs = Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]  # by task and learner


def kept(cache: Cache) -> Runs:
    """Return all finished runs with today's settings, with their seeds and commits."""
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for task in work.TASKS:
        for learner in (RANDOM, *learners(task)):
            for seed in work.SEEDS:
                key = key_of(task, learner, seed)
                if (run := cache.get(*key)) is not None:
                    runs.setdefault((task, learner), []).append({**run, "commit": cache.commit(*key)})
    return runs


def table(runs: Runs, task: str) -> Iterator[str]:
    """Yield the rows of a task."""
    random = interval([[one for run in runs[task, RANDOM] for one in run["returns"]]], statistic="mean")
    yield f"## {task}"
    yield ""
    yield f"Random actions return {random.estimate:.4g} [{random.low:.4g}, {random.high:.4g}]."
    yield ""
    yield "| learner | steps | mean over seeds | of each seed | better than random | warnings | seconds | measured at |"
    yield "|---|---|---|---|---|---|---|---|"
    for learner in learners(task):
        own = runs.get((task, learner), ())
        if not own:
            continue
        is_peer = learner.startswith("sb3 ")
        mean = statistics.fmean(run["return"] for run in own)
        cells = [
            learner,
            f"{own[0].get('steps', work.STEPS):,}",
            f"{mean:.4g}",
            ", ".join(f"{run['return']:.4g}" for run in own),
            "yes" if mean > random.high else "**no**",
            "" if is_peer else ", ".join(sorted({name for run in own for name in run["warnings"]})) or "none",
            f"{statistics.fmean(run['seconds'] for run in own):.0f}",
            "" if is_peer else listed(run["commit"] for run in own),
        ]
        yield f"| {' | '.join(cells)} |"
    yield ""


def report(runs: Runs) -> str:
    """Return the page, in markdown."""
    ours = [run["commit"] for (_, learner), own in runs.items() for run in own if learner in tk.presets.PRESETS]
    tasks = [task for task in work.TASKS if any(task == own and learner != RANDOM for own, learner in runs)]
    missing = {task: [one for one in learners(task) if (task, one) not in runs] for task in work.TASKS}
    lines = [
        "# Environments that nothing was tuned on",
        "",
        measured_at(ours),
        "",
        f"`python -m benchmarks.unlisted` on {platform.machine()}, one thread; trainkit {tk.__version__}, torch "
        f"{torch.__version__}, stable-baselines3 2.9.2.",
        "",
        f"Presets and stable-baselines3's DQN and PPO (`MlpPolicy`, grids flattened) with all their defaults, for "
        f"{work.STEPS:,} environment steps at most, on seeds {', '.join(map(str, work.SEEDS))}. Then each plays "
        f"{work.EPISODES} greedy episodes. Random actions have a 95 % bootstrap interval of "
        f"{work.EPISODES * len(work.SEEDS)} episodes; better is a mean above it. Warnings are those of the last epoch. "
        "Seconds are of CPU.",
        "",
        *(line for task in tasks for line in table(runs, task)),
        *(("## Not run", "") if any(missing.values()) else ()),
        *(f"- {task}: {', '.join(names)}" for task, names in missing.items() if names),
        *(("",) if any(missing.values()) else ()),
    ]
    return "\n".join(lines)


def main() -> None:
    """Train what is missing and write the page after every run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=work.TASKS, default=work.TASKS)
    parser.add_argument("--seeds", nargs="+", type=int, choices=work.SEEDS, default=work.SEEDS)
    parser.add_argument("--core", type=int, default=0, help="that the peer is pinned to")
    parser.add_argument("--no-training", action="store_true", help="write the page of what there is")
    given = parser.parse_args()
    torch.set_num_threads(1)  # networks this small are fastest on one
    cache = Cache(CACHE)
    for task in () if given.no_training else given.tasks:
        check_fresh([one for one in learners(task) if one in tk.presets.PRESETS], task, given.seeds)
        for learner in (RANDOM, *learners(task)):
            for seed in given.seeds:
                key = key_of(task, learner, seed)
                if cache.get(*key) is None:
                    run = learn(task, learner, seed, given.core)
                    cache.put(run, *key)
                    print(f"{task} {learner} {seed} {run.get('return', '')}", flush=True)
    (RESULTS / "unlisted.md").write_text(report(kept(cache)))


if __name__ == "__main__":
    main()
