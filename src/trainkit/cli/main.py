"""All commands under one name, and what becomes of mistakes and interrupts.

Exit codes: 0 done; 1 an environment that check-env found fault with; 2 a mistake, told in one line; 130 interrupted;
143 ended by SIGTERM.
"""

import argparse
import logging
import os
import sys
from collections.abc import Sequence

import gymnasium as gym

from trainkit.cli import bench, compare, environments, evaluate, exporting, inspecting, pictures, train
from trainkit.cli import presets_command as presets
from trainkit.cli.output import Parser, complain
from trainkit.core.errors import TrainkitError

_EXAMPLES = """\
examples:
  trainkit train rainbow CartPole-v1 --seed 1     train, log and save below runs/
  trainkit train ppo CartPole-v1 --seeds 5        the same on seeds 1 to 5
  trainkit eval runs/rainbow-CartPole-v1/seed1    play with what was learnt
  trainkit plot runs -o curves.svg                learning curves of all runs, seeds together
  trainkit compare runs                           who is better, and how sure that is

`trainkit COMMAND --help` tells more. It works from any folder; nothing is downloaded."""


def build_parser() -> Parser:
    """Make the parser of all commands."""
    parser = Parser(
        prog="trainkit",
        description="Train reinforcement learners, and look at what they learnt.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--traceback", action="store_true", help="show where a mistake came from, not only which it is")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=Parser)
    for module in (train, evaluate, pictures, compare, inspecting, exporting, presets, environments, bench):
        module.add(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the arguments say, default those of the shell, and return the exit code."""
    _open_closed_descriptors()
    options = build_parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    try:
        code: int = options.run(options)
    except KeyboardInterrupt:
        complain("interrupted")
        return 130
    except BrokenPipeError:  # `| head` has gone; what is still buffered must not be told of at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (TrainkitError, gym.error.Error, OSError) as error:
        if options.traceback:
            raise
        complain(str(error) or type(error).__name__)
        return 2
    except Exception as error:
        if options.traceback:
            raise
        complain(f"{type(error).__name__}: {error}; trainkit --traceback shows where it came from")
        return 2
    return code


def _open_closed_descriptors() -> None:
    """Open standard streams that the process was started without, so that no other file takes their numbers."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
