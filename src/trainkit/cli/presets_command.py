"""`trainkit presets`: what there is to train, and what of it can be set."""

import argparse
from typing import Any

from trainkit.cli.output import Commands, Parser, add_command, say, table
from trainkit.core.errors import refuse_unknown
from trainkit.core.schedules import Linear
from trainkit.presets import PRESETS

_EXAMPLES = """\
  trainkit presets
  trainkit presets rainbow          every setting and its default, per kind of environment"""


def add(commands: "Commands[Parser]") -> None:
    """Add the command."""
    about = "list the presets, or the settings of one"
    parser = add_command(commands, "presets", run, about=about, examples=_EXAMPLES)
    parser.add_argument("preset", metavar="PRESET", nargs="?", help="one of them")


def run(options: argparse.Namespace) -> int:
    """List all, or one."""
    if options.preset is None:
        rows = [["preset", "for", "what it is"]]
        rows += [[name, ", ".join(preset.domains), preset.summary] for name, preset in PRESETS.items()]
        say(table(rows, left=3))
        say("\n`trainkit presets NAME` lists its settings; `trainkit train NAME ENV --set setting=value` changes one")
        return 0
    refuse_unknown("trainkit presets", [options.preset], PRESETS)
    preset = PRESETS[options.preset]
    tables = {domain: preset.settings(domain) for domain in preset.domains}
    names = list(dict.fromkeys(name for settings in tables.values() for name in settings))
    rows = [["setting", *tables]]
    rows += [
        [name, *(told(settings[name]) if name in settings else "" for settings in tables.values())] for name in names
    ]
    say(f"{preset.name}: {preset.summary}\n")
    say(table(rows, left=len(rows[0])))
    say("\nand the options of its trainer: max_env_step, max_seconds, log_every, episode_per_test ...")
    say("what a number is from, and where it differs from the paper, stands beside it in trainkit/presets")
    return 0


def told(value: Any) -> str:
    """Write a setting as `--set` takes it."""
    if isinstance(value, Linear):
        return f"Linear({value.start:g}, {value.end:g}, {value.share:g})"
    return value if isinstance(value, str) else repr(value)
