"""Train the off-policy actor-critics on MuJoCo, on one core: return per environment step, and per minute of CPU time.

    python -m benchmarks.learning.continuous [--env HalfCheetah-v5] [--members sac td3 ...] [--seeds 11 12 13]

The presets' tables for MuJoCo, all with 5,000 random steps. Every 10,000 steps (of `redq` and `droq` 5,000, of a
million 25,000) the greedy policy plays 10 episodes, whose time is not counted. Finished runs are kept in
`benchmarks/results/continuous.jsonl` and not made again; an interrupted one continues after its last evaluation, from
`--work`, where the last policies stay (of the queue of runs in its folder `kept`). `--plot` draws the curves of each
environment into `docs/images`.
"""

import itertools
import json
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import trainkit as tk
from benchmarks import pages
from benchmarks.learning.simbav2 import SimbaV2Policy
from benchmarks.learning.training import check_fresh, mean_return, preset_trainer, settings_of

EPISODES = 10
CACHE = pages.RESULTS / "continuous.jsonl"
PAGE = "continuous"
WORK = pages.ROOT.parent / "kept" / "continuous"  # of interrupted runs, and the last policies
MINUTES = 5, 10, 15, 20, 30, 45, 60  # of CPU time


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """What is trained under a name on the page.

    Attributes:
        preset: of trainkit.
        changes: of its table for MuJoCo.
    """

    preset: str
    changes: Mapping[str, Any] = field(default_factory=dict)


COMPILED: dict[str, Any] = {"engine": "compile", "precision": "bf16"}
HOPPER_ENTROPY: dict[str, Any] = {**COMPILED, "target_entropy": -1.0}  # REDQ's and DroQ's; the presets' is -3
SMALL: dict[str, Any] = {"hidden": (128, 128), "critic_hidden": (128, 128)}
EARLY: dict[str, Any] = {"learning_starts": 5_000}  # as the others; the tables, for longer runs, have 10,000
MEMBERS = {
    **{name: Member(preset=name, changes=EARLY) for name in ("sac", "ddpg", "td3", "tqc")},
    **{name: Member(preset=name) for name in ("crossq", "xqc")},
    "xqc, 128 wide": Member(preset="xqc", changes=SMALL),
    "xqc, bf16": Member(preset="xqc", changes=COMPILED),
    "xqc, bf16, 2 updates": Member(preset="xqc", changes={**COMPILED, "update_per_step": 2.0}),
    "crossq, bf16": Member(preset="crossq", changes=COMPILED),
    "crossq, bf16, 2 updates": Member(preset="crossq", changes={**COMPILED, "update_per_step": 2.0}),
    "droq, bf16": Member(preset="droq", changes=COMPILED),
    "droq, bf16, entropy -1": Member(preset="droq", changes=HOPPER_ENTROPY),
    "redq, bf16, entropy -1": Member(preset="redq", changes=HOPPER_ENTROPY),
    "simbav2, 128 wide": Member(
        preset="xqc",
        changes={
            "policy_class": SimbaV2Policy,
            "hidden": (128,),
            "critic_hidden": (128, 128),
            "normalize_obs": True,
            "actor_every": 1,
            "lr": tk.Linear(1e-4, 5e-5),
        },
    ),
}
FIVE = "sac", "td3", "tqc", "crossq", "xqc"
ALSO = "xqc, 128 wide", "simbav2, 128 wide", "ddpg", "crossq, bf16"
SIX = *FIVE, "xqc, bf16"
XQC_TWICE, CROSSQ_TWICE = "xqc, bf16, 2 updates", "crossq, bf16, 2 updates"
EIGHT = *SIX, XQC_TWICE, "crossq, bf16"
UTD_20 = "redq, bf16, entropy -1", "droq, bf16, entropy -1", "droq, bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Runs of one environment: which members, and how long.

    Attributes:
        published: the mean return of a paper or its code at as many steps, with its source.
    """

    env: str
    steps: int
    every: int = 10_000
    members: tuple[str, ...] = FIVE
    seeds: tuple[int, ...] = (11, 12, 13)
    published: str = "-"


FOUR = "HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5"  # whose last policies make data for offline learning
PUBLISHED = "XQC's code, four layers of 512, two updates per step, 10 seeds, v4"
WORKS = (
    Work(env="HalfCheetah-v5", steps=100_000, members=(*FIVE, *ALSO), published="8,597"),
    Work(env="HalfCheetah-v5", steps=260_000, members=("xqc, bf16",)),  # some 60 minutes
    Work(env="Hopper-v5", steps=100_000, members=SIX, published="2,828"),
    Work(env="Walker2d-v5", steps=100_000, members=EIGHT, published="3,612"),
    Work(env="Ant-v5", steps=100_000, members=(*EIGHT, CROSSQ_TWICE), published="3,018"),
    Work(env="Ant-v4", steps=100_000, members=("xqc, bf16", XQC_TWICE), published="3,018"),  # no contact forces
    Work(env="Hopper-v5", steps=30_000, every=5_000, members=UTD_20, seeds=(11, 12)),
    Work(env="Humanoid-v5", steps=200_000, members=("xqc", "crossq, bf16"), seeds=(11, 12)),
    *(Work(env=env, steps=1_000_000, every=25_000, members=("xqc",), seeds=(11,)) for env in FOUR),
)

Run = Mapping[str, Any]  # member, env, steps, seed, returns, seconds (of CPU until each), commit, is_outdated


def changes_of(work: Work, member: str) -> dict[str, Any]:
    """Return what differs from the preset's general table."""
    return {"max_epoch": work.steps // work.every, "step_per_epoch": work.every, **MEMBERS[member].changes}


def settings(work: Work, member: str) -> dict[str, str]:
    """Return the settings of a run."""
    return settings_of(MEMBERS[member].preset, work.env, {"zoo": False, **changes_of(work, member)})


def learn(work: Work, member: str, seed: int, folder: Path) -> dict[str, list[float]]:
    """Train, or continue in a folder; return the mean return of every evaluation and the CPU seconds until each."""
    known, saved = folder / "evaluations.json", folder / "trainer"
    found: dict[str, list[float]] = {"returns": [], "seconds": []}
    if known.exists():
        found = json.loads(known.read_text())
    options: dict[str, Any] = {"zoo": False, "evaluation": None, **changes_of(work, member)}
    if found["returns"]:
        options["resume_from"] = saved
    spent = found["seconds"][-1] if found["seconds"] else 0.0
    with preset_trainer(MEMBERS[member].preset, work.env, seed, **options) as trainer:
        began = time.process_time()
        for epoch, _, info in trainer:
            if info.env_step < epoch * work.every:  # a signal stopped it: the whole epoch is repeated
                break
            spent += time.process_time() - began
            how: dict[str, Any] = {"n_episode": EPISODES, "seed": 1_000 * seed + epoch, "n_envs": EPISODES}
            found["returns"].append(mean_return(trainer.policy, work.env, **how))
            found["seconds"].append(spent)
            trainer.save(saved)
            known.write_text(json.dumps(found))
            began = time.process_time()
        if len(found["returns"]) < work.steps // work.every:
            raise SystemExit(f"{member} in {work.env}, seed {seed}, was stopped after {len(found['returns'])} epochs")
        trainer.policy.save(folder / "policy")
    shutil.rmtree(saved)
    return found


def published(cache: pages.Cache) -> list[Run]:
    """Return the last finished run of each member, environment, length and seed."""
    runs = []
    for work in WORKS:
        for member, seed in itertools.product(work.members, work.seeds):
            key = member, work.env, work.steps, seed
            if (result := cache.get(*key)) is not None:
                about = {"member": member, "work": work, "seed": seed, "commit": cache.commit(*key)}
                runs.append({**result, **about, "is_outdated": cache.is_outdated(settings(work, member), *key)})
    return runs


def of_work(runs: Iterable[Run], work: Work) -> dict[str, list[Run]]:
    """Return the runs of a work by member."""
    own = [run for run in runs if run["work"] is work]
    return {name: found for name in work.members if (found := [run for run in own if run["member"] == name])}


def after(run: Run, minutes: float) -> float:
    """Return the return of the last evaluation within so many CPU minutes; nan before the first, and after the end."""
    seconds = np.array(run["seconds"])
    within = int(np.searchsorted(seconds, 60 * minutes, side="right"))
    is_over = within == len(seconds) and seconds[-1] < 60 * minutes - (seconds[-1] / len(seconds))
    return float("nan") if within == 0 or is_over else float(run["returns"][within - 1])


def rows_per_step(runs: Sequence[Run]) -> Iterator[list[str]]:
    """Yield the cells of each environment and member."""
    for work in WORKS:
        for member, own in of_work(runs, work).items():
            last = [run["returns"][-1] for run in own]
            minutes = np.mean([run["seconds"][-1] for run in own]) / 60
            commits = pages.listed(run["commit"] for run in own)
            commits += ", other settings then" if any(run["is_outdated"] for run in own) else ""
            spread = f"{min(last):,.0f} to {max(last):,.0f}"
            yield [
                *(work.env, f"{work.steps:,}", member, str(len(own)), f"**{np.mean(last):,.0f}**", spread),
                *(f"{minutes:.0f}", work.published if member.startswith("xqc") else "-", commits),
            ]


def rows_per_minute(runs: Sequence[Run]) -> Iterator[list[str]]:
    """Yield the mean return of each environment and member after minutes of CPU time."""
    for work in WORKS:
        for member, own in of_work(runs, work).items():
            means = [np.mean([after(run, minutes) for run in own]) for minutes in MINUTES]
            yield [work.env, f"{work.steps:,}", member, *("-" if np.isnan(mean) else f"{mean:,.0f}" for mean in means)]


def evaluations(runs: Sequence[Run]) -> Iterator[str]:
    """Yield a line per run, with all of its evaluations in order."""
    for run in runs:
        about = f"{run['work'].env:15}{run['member']:24}{run['seed']:2} "
        yield about + "".join(f"{one:7.0f}" for one in run["returns"])


def plot(runs: Sequence[Run], work: Work) -> None:
    """Draw the mean and the range over seeds of each member, per step and per minute of CPU time."""
    path = pages.ROOT / "docs" / "images" / f"continuous_{work.env}_{work.steps}.svg"
    with pages.figure(path, 2, figsize=(7.2, 3.0), sharey=True) as (per_step, per_minute):
        for member, own in of_work(runs, work).items():
            returns = np.array([run["returns"] for run in own])  # [seeds, evaluations]
            minutes = np.mean([run["seconds"] for run in own], axis=0) / 60
            for axes, x in ((per_step, work.every * np.arange(1, returns.shape[1] + 1) / 1_000), (per_minute, minutes)):
                axes.fill_between(x, returns.min(axis=0), returns.max(axis=0), alpha=0.15, linewidth=0)
                axes.plot(x, returns.mean(axis=0), label=member if axes is per_minute else None)
        per_step.set(title=f"{work.env}, greedy policy", xlabel="environment steps, in thousands", ylabel="return")
        per_minute.set(xlabel="minutes of CPU time")


def report(runs: Sequence[Run], command: str) -> list[str]:
    """Return the lines of the page."""
    columns = ["environment", "steps", "member", "seeds", "return", "seeds' range", "CPU minutes", "published"]
    return [
        *pages.heading(
            "Off-policy actor-critics on MuJoCo", command, [run["commit"] for run in runs], packages=["gymnasium"]
        ),
        "The presets' tables for MuJoCo, with 5,000 random steps, on one core. Every 10,000 steps (of redq "
        f"and droq 5,000, of a million 25,000) the greedy policy plays {EPISODES} episodes on seeds of its own. "
        'CPU minutes are those of training, without evaluations; "bf16" is engine="compile", precision="bf16" on a CPU '
        f"with AMX. Published: {PUBLISHED}.",
        "",
        "## Return per step",
        "",
        "The mean over seeds of the last evaluation.",
        "",
        *pages.table([*columns, "measured at"], rows_per_step(runs)),
        "## Return per minute of CPU time",
        "",
        'The mean over seeds of the last evaluation within so many minutes; "-" where the runs had ended before.',
        "",
        *pages.table(
            ["environment", "steps", "member", *(f"{minutes} min" for minutes in MINUTES)], rows_per_minute(runs)
        ),
        "All evaluations, in order:",
        "",
        "```",
        *evaluations(runs),
        "```",
    ]


def main() -> None:
    """Train what is missing, and write the page after every run."""
    parser = pages.arguments(__doc__)
    parser.add_argument("--env", choices=list(dict.fromkeys(work.env for work in WORKS)), help="default: all")
    parser.add_argument("--steps", type=int, help="default: all lengths of runs")
    parser.add_argument("--members", nargs="+", choices=list(MEMBERS), help="default: those of each environment")
    parser.add_argument("--seeds", nargs="+", type=int, help="default: those of each environment")
    parser.add_argument("--work", type=Path, default=WORK, help="folder of interrupted runs and last policies")
    parser.add_argument("--plot", action="store_true", help="draw the curves (pip install 'trainkit-rl[plot]')")
    parser.add_argument("--no-training", action="store_true", help="write the page of the kept runs")
    options = parser.parse_args()
    torch.set_num_threads(1)  # one core
    command = "python -m benchmarks.learning.continuous"
    cache = pages.Cache(CACHE)
    for work in () if options.no_training else WORKS:
        if options.env not in (None, work.env) or options.steps not in (None, work.steps):
            continue
        members = [one for one in work.members if options.members is None or one in options.members]
        for seed, member in itertools.product(options.seeds or work.seeds, members):
            key = member, work.env, work.steps, seed
            if cache.is_due(settings(work, member), *key):
                check_fresh([MEMBERS[member].preset], work.env, [seed])
                folder = options.work / f"{member}-{work.env}-{work.steps}-{seed}".replace(" ", "")
                folder.mkdir(parents=True, exist_ok=True)
                result = learn(work, member, seed, folder)
                cache.put(result, *key, settings=settings(work, member))
                pages.write(PAGE, report(published(cache), command))
                print(f"{member} {work.env} {seed}: {[round(mean) for mean in result['returns']]}", flush=True)
    runs = published(cache)
    pages.write(PAGE, report(runs, command))
    for work in WORKS if options.plot else ():
        if of_work(runs, work):
            plot(runs, work)


if __name__ == "__main__":
    main()
