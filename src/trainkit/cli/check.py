"""`trainkit check-env` and `trainkit bench`: an environment, and the speed of this machine, before training."""

import argparse

from trainkit.cli.output import Parser, format_table, print_line
from trainkit.cli.run_config import parse_dict
from trainkit.core.errors import ConfigError, reject_unknown
from trainkit.envs import check_env
from trainkit.presets import PRESETS

_CHECK_EXAMPLES = """\
  trainkit check-env CartPole-v1
  trainkit check-env mygame.Corridor --env-kwargs "{'length': 6}" --mask-key legal

The exit code is 1 where something would end training, 0 otherwise."""

_BENCH_EXAMPLES = """\
  trainkit bench --quick
  trainkit bench --presets rainbow ppo --env CartPole-v1 --steps 20000

Small networks are fastest on one thread: OMP_NUM_THREADS=1 trainkit bench --quick"""

_STEPS, _QUICK_STEPS = 20_000, 4_000


def add_check_env(parser: Parser) -> None:
    """Add the arguments of the command that checks an environment."""
    parser.runs(run_check_env, examples=_CHECK_EXAMPLES)
    parser.add_argument("env", metavar="ENV", help="an id, module.Class (also of this folder) or a/game_v1")
    parser.add_argument("--steps", metavar="N", type=int, default=1_000, help="of an episode at most, default 1000")
    parser.add_argument("--seed", type=int, default=0, help="of the episodes, default 0")
    parser.add_argument("--mask-key", metavar="KEY", help="of the info that holds the legal actions")
    parser.add_argument("--max-episode-steps", metavar="N", type=int, help="truncates episodes at this length")
    parser.add_argument("--env-kwargs", metavar="DICT", default="{}", help="for the environment's constructor")


def run_check_env(options: argparse.Namespace) -> int:
    """Print the findings, errors first."""
    findings = check_env(
        options.env,
        n_steps=options.steps,
        seed=options.seed,
        mask_key=options.mask_key,
        max_episode_steps=options.max_episode_steps,
        env_kwargs=parse_dict("--env-kwargs", options.env_kwargs),
    )
    for finding in findings:
        print_line(str(finding))
    n_errors = sum(finding.level == "error" for finding in findings)
    print_line(f"{options.env}: {n_errors} error{'' if n_errors == 1 else 's'} in {len(findings)} findings")
    return 1 if n_errors else 0


def add_bench(parser: Parser) -> None:
    """Add the arguments of the command that measures speed."""
    parser.runs(run_bench, examples=_BENCH_EXAMPLES)
    parser.add_argument("--quick", action="store_true", help=f"{_QUICK_STEPS:,} steps each instead of {_STEPS:,}")
    parser.add_argument("--presets", nargs="+", default=["dqn", "rainbow", "ppo"], help="default: dqn rainbow ppo")
    parser.add_argument("--env", default="CartPole-v1", help="default CartPole-v1")
    parser.add_argument("--steps", metavar="N", type=int, help="environment steps each, after as many to warm up")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, xpu ...")


def run_bench(options: argparse.Namespace) -> int:
    """Train each preset briefly, and print the rates of the second half."""
    reject_unknown("trainkit bench", options.presets, PRESETS)
    n_steps = options.steps or (_QUICK_STEPS if options.quick else _STEPS)
    rows = [["preset", "steps/s", "updates/s", "collect", "update", "env ms", "act ms", "store ms"]]
    for name in options.presets:
        overrides = {"max_epoch": 2, "step_per_epoch": n_steps, "device": options.device, "evaluation": None}
        quiet = {"verbose": False, "show_progress": False}
        with PRESETS[name](options.env, seed=1, **overrides, **quiet) as trainer:
            next(trainer)  # to warm up
            before, stats = trainer.gradient_step, next(trainer).stats
            n_updates, train, time = trainer.gradient_step - before, stats.train, stats.time
        if train.is_empty:
            raise ConfigError(f"{name} collects more than {n_steps} steps at once: raise --steps")
        rates = [f"{time.steps_per_second:,.0f}", f"{n_updates / time.seconds:,.0f}"]
        shares = [f"{100 * time.collect:.0f} %", f"{100 * time.update:.0f} %"]
        parts = [f"{part or 0.0:.3f}" for part in (train.env_ms, train.act_ms, train.store_ms)]
        rows.append([name, *rates, *shares, *parts])
    print_line(format_table(rows))
    print_line("\nsteps/s of the whole loop; collect and update are shares of its time; milliseconds per vector step")
    return 0
