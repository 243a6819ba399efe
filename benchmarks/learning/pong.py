"""Train Rainbow on Pong on the CPU until a mean test return of 18, in sessions that may be stopped at any moment.

    python -m benchmarks.learning.pong [--folder runs/pong] [--seed 1] [--stochasticity noop]   # or continue
    python -m benchmarks.learning.pong --folder runs/pong --games 100                           # of the best policy
    python -m benchmarks.learning.pong --report                                                 # write the page

The settings are the zoo's. Its network, `SmallCNN`, has 512 features: the noise of Rainbow's layers, by feature, costs
more than convolutions on a CPU. Games, in training and evaluation, differ by sticky actions (Machado et al., 2018), or
as in the paper of Rainbow (Hessel et al., 2018) by up to 30 no-ops at their start. Every epoch of 50,000 environment
steps (of 4 frames each) is saved, and appended as one line to `pong.jsonl` in the folder: its steps, the mean return of
8 greedy games, and the hours of processor time until then. `--games` writes a line to `games.jsonl` there: the mean
return in games on other seeds of the policy whose evaluation was the best. The lines of a finished run are moved to
`benchmarks/results/pong.jsonl` by hand.
"""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import trainkit as tk
from benchmarks import pages
from benchmarks.pages import code_commit
from trainkit.plot.comparing import interval

STOP_RETURN = 18.0
STOCHASTICITY = {  # how games differ: options of the emulator
    "sticky": {"repeat_action_probability": 0.25, "noop_max": 0},
    "noop": {"repeat_action_probability": 0.0, "noop_max": 30},
}

Line = dict[str, Any]
Runs = Mapping[tuple[int, str], Sequence[Line]]  # by seed and stochasticity


def write_page() -> None:
    """Write the page and the picture of the runs in `benchmarks/results/pong.jsonl`."""
    runs: dict[tuple[int, str], list[Line]] = {}
    evaluated: dict[tuple[int, str], Line] = {}
    commits = []
    for line in map(json.loads, (pages.RESULTS / "pong.jsonl").read_text().splitlines()):
        run = line["seed"], line.get("stochasticity", "sticky")
        commits.append(line["commit"])
        if "games" in line:
            evaluated[run] = line
        else:
            runs.setdefault(run, []).append(line)
    plot(runs, pages.RESULTS / "pong.svg")
    columns = f"seed, games differ by, steps until {STOP_RETURN:.0f}, steps, last evaluation, best, best policy, hours"
    cells = (
        [
            *run,
            _reached(lines),
            f"{lines[-1]['steps']:,}",
            f"{lines[-1]['return']:.1f}",
            f"{max(line['return'] for line in lines):.1f}",
            _evaluated(evaluated.get(run)),
            f"{lines[-1]['hours']:.2f}",
        ]
        for run, lines in runs.items()
    )
    command = "python -m benchmarks.learning.pong --folder runs/pong --seed 1"
    text = [
        *pages.heading("Pong by Rainbow on the CPU", command, commits),
        "A step is 4 frames. Games differ by sticky actions (probability 0.25), or by up to 30 no-ops at their start. "
        f"An evaluation is 8 greedy games; a run ends when its mean is {STOP_RETURN:.0f}, and that of 8 more games, "
        "too. It is saved every 50,000 steps: an interrupted run resumes with all its state but the emulators', whose "
        "games begin again. The best policy is that of the best evaluation, in games on other seeds (`--games`).",
        "",
        *pages.table(columns.split(", "), cells),
        "Hours are of one core.",
        "",
        "![Mean return of 8 greedy games by environment steps](pong.svg)",
    ]
    pages.write("pong", text)


def _reached(lines: Sequence[Line]) -> str:
    """Return the steps of the first evaluation at which a run stops."""
    return next((f"{line['steps']:,}" for line in lines if line["return"] >= STOP_RETURN), "not reached")


def _evaluated(line: Line | None) -> str:
    """Return the mean return of the best policy's games, with the interval of the mean."""
    if line is None:
        return "not evaluated"
    return f"{line['return']:.1f} [{line['low']:.1f}, {line['high']:.1f}], {line['games']} games"


def plot(runs: Runs, path: Path) -> None:
    """Draw the evaluations of every run."""
    with pages.figure(path, figsize=(6, 3)) as axes:
        for (seed, differ_by), lines in runs.items():
            steps, returns = ([line[name] for line in lines] for name in ("steps", "return"))
            axes.plot(steps, returns, label=f"seed {seed}, {differ_by}")
        axes.axhline(STOP_RETURN, linewidth=0.8, linestyle=":", color="gray")
        axes.xaxis.set_major_formatter(lambda step, _: f"{step / 1000:.0f}k")
        axes.set(xlabel="environment steps of 4 frames", ylabel="mean return of 8 greedy games")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, or continue, by the arguments."""
    parser = pages.arguments(__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/pong"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stochasticity", choices=STOCHASTICITY, default="sticky", help="how games differ")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--games", type=int, help="judge the best policy of the run by so many games, train nothing")
    parser.add_argument("--report", action="store_true", help="write the page, train nothing")
    options = parser.parse_args(arguments)
    if options.report:
        write_page()
        return
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    curve = options.folder / "pong.jsonl"
    settings = {**tk.zoo.entry("rainbow", "ALE/Pong-v5").settings}
    env_options = dict(settings.pop("env_options"))
    env_options["env_kwargs"] = {**env_options["env_kwargs"], **STOCHASTICITY[options.stochasticity]}
    about = {"seed": options.seed, "stochasticity": options.stochasticity}
    if options.games is not None:
        _append(
            options.folder / "games.jsonl", about | evaluate(options.folder, options.games, options.seed, env_options)
        )
        return
    trainer = tk.presets.rainbow(
        "ALE/Pong-v5",
        zoo=False,  # whose settings are for sticky actions only
        env_options=env_options,
        **settings | {"max_epoch": options.steps // 50_000},
        seed=options.seed,
        episode_per_test=8,
        stop_return=STOP_RETURN,
        logger=str(options.folder / "log"),
        checkpoint=tk.Checkpoint(options.folder / "checkpoints", keep_last=2),
        resume_from="auto",
        show_progress=False,
    )
    lines = [json.loads(line) for line in curve.read_text().splitlines()] if curve.exists() else []
    with trainer:
        start = time.process_time() - 3600 * (lines[-1]["hours"] if lines else 0.0)
        for epoch, stats, _ in trainer:
            mean = stats.test.returns.mean
            if mean is None:  # cut before the epoch's end
                break
            measured = {
                "epoch": epoch,
                "steps": trainer.env_step,
                "return": mean,
                "hours": round((time.process_time() - start) / 3600, 3),
                "commit": code_commit(),
            }
            _append(curve, about | measured)


def evaluate(folder: Path, games: int, seed: int, env_options: Mapping[str, Any]) -> Line:
    """Return the mean return of greedy games of a run's best policy, and the 95 % bootstrap interval of the mean."""
    policy = tk.load_policy(folder / "checkpoints" / "best", device="cpu")
    played = tk.evaluate(policy, "ALE/Pong-v5", n_episode=games, n_envs=8, seed=1_000_000 + seed, **env_options)
    mean = interval([played.episode_returns], statistic="mean")
    return {"games": games, "return": mean.estimate, "low": mean.low, "high": mean.high, "commit": code_commit()}


def _append(path: Path, line: Line) -> None:
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(line, flush=True)


if __name__ == "__main__":
    main()
