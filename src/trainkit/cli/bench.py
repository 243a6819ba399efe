"""`trainkit bench`: how fast this machine trains, and where the time goes."""

import argparse

from trainkit.cli.output import Commands, Parser, add_command, format_table, print_line
from trainkit.core.errors import ConfigError, reject_unknown
from trainkit.presets import PRESETS

_EXAMPLES = """\
  trainkit bench --quick
  trainkit bench --presets rainbow ppo --env CartPole-v1 --steps 20000

Small networks are fastest on one thread: OMP_NUM_THREADS=1 trainkit bench --quick"""

_STEPS, _QUICK_STEPS = 20_000, 4_000


def add_bench(commands: "Commands[Parser]") -> None:
    """Add the command."""
    parser = add_command(commands, "bench", run, about="measure how fast this machine trains", examples=_EXAMPLES)
    parser.add_argument("--quick", action="store_true", help=f"{_QUICK_STEPS:,} steps each instead of {_STEPS:,}")
    parser.add_argument("--presets", nargs="+", default=["dqn", "rainbow", "ppo"], help="default: dqn rainbow ppo")
    parser.add_argument("--env", default="CartPole-v1", help="default CartPole-v1")
    parser.add_argument("--steps", metavar="N", type=int, help="environment steps each, after as many to warm up")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")


def run(options: argparse.Namespace) -> int:
    """Train shortly by each preset, and print the rates of the second half."""
    reject_unknown("trainkit bench", options.presets, PRESETS)
    n_steps = options.steps or (_QUICK_STEPS if options.quick else _STEPS)
    rows = [["preset", "steps/s", "updates/s", "collect", "update", "env ms", "act ms", "store ms"]]
    for name in options.presets:
        overrides = {"max_epoch": 2, "step_per_epoch": n_steps, "device": options.device, "test_collector": None}
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
