"""`trainkit check-env`: check an environment before hours of training."""

import argparse

from trainkit.cli.output import Commands, Parser, add_command, print_line
from trainkit.cli.recipe import parse_dict
from trainkit.envs import check_env

_EXAMPLES = """\
  trainkit check-env CartPole-v1
  trainkit check-env mygame.Corridor --kwargs "{'length': 6}" --mask-key legal

The exit code is 1 where something would end training, 0 otherwise."""


def add_check_env(commands: "Commands[Parser]") -> None:
    """Add the command."""
    parser = add_command(commands, "check-env", run, about="check an environment before training", examples=_EXAMPLES)
    parser.add_argument("env", metavar="ENV", help="an id, or module.Class")
    parser.add_argument("--steps", metavar="N", type=int, default=1_000, help="of an episode at most, default 1000")
    parser.add_argument("--seed", type=int, default=0, help="of the episodes, default 0")
    parser.add_argument("--mask-key", metavar="KEY", help="of the info that holds the legal actions")
    parser.add_argument("--kwargs", metavar="DICT", default="{}", help="for the environment's constructor")


def run(options: argparse.Namespace) -> int:
    """Print the findings, the worst first."""
    findings = check_env(
        options.env,
        n_steps=options.steps,
        seed=options.seed,
        mask_key=options.mask_key,
        env_kwargs=parse_dict("--kwargs", options.kwargs),
    )
    for finding in findings:
        print_line(str(finding))
    n_errors = sum(finding.level == "error" for finding in findings)
    print_line(f"{options.env}: {n_errors} error{'' if n_errors == 1 else 's'} in {len(findings)} findings")
    return 1 if n_errors else 0
