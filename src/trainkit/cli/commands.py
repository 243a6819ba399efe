"""The parser of all commands, and the exit code of each outcome.

0 done; 1 `check-env` found errors; 2 a mistake, reported in one line; 130 interrupted; 143 ended by SIGTERM.
"""

import argparse
import functools
import logging
import os
import sys
from collections.abc import Sequence

import gymnasium as gym

from trainkit import cli
from trainkit.cli.output import Parser, add_command, print_error
from trainkit.core.errors import TrainkitError
from trainkit.core.extensions import table
from trainkit.core.versions import versions

_COMMANDS = {  # `add_train` of `trainkit.cli` adds the arguments of `train`, and so on
    "train": "train a preset in an environment, log and save",
    "eval": "play episodes with what a run learned",
    "plot": "draw learning curves, seeds together",
    "compare": "compare runs by interquartile means with intervals",
    "inspect": "show what the folder of a run or a checkpoint holds",
    "export": "write a run's policy as ONNX",
    "presets": "list the presets, or the settings of one",
    "zoo": "list, add and evaluate the tuned settings that presets use",
    "check-env": "check an environment before training",
    "bench": "measure how fast this machine trains",
    "completion": "write the file with which bash, zsh or fish completes commands and flags",
}

_EXAMPLES = """\
examples:
  trainkit train rainbow CartPole-v1 --seed 1     train, log and save below runs/
  trainkit train dqn CartPole-v1 --lr 5e-4        the same with another setting: trainkit train dqn --help
  trainkit train ppo CartPole-v1 --seeds 5        the same on seeds 1 to 5
  trainkit eval runs/rainbow-CartPole-v1/seed1    play with what was learned
  trainkit plot runs -o curves.svg                learning curves of all runs, seeds together
  trainkit compare runs                           scores, with intervals over seeds

`trainkit COMMAND --help` shows more. It works from any folder; nothing is downloaded."""


def build_parser(*, completes: bool = False) -> Parser:
    """Make the parser of all commands; that of a command gets its arguments when it is used.

    With `completes`, all have them, and every preset is a command below `train`, with its own flags.
    """
    parser = Parser(
        prog="trainkit",
        description="Train reinforcement learners, and look at what they learned.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--traceback", action="store_true", help="show where a mistake came from, not only which it is")
    parser.add_argument("--version", action="version", version=_versions())
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=Parser)
    for name, about in _COMMANDS.items():
        if name == "export" and "export" not in table("NAMES"):
            continue
        command = add_command(commands, name, about)
        command.before_parsing(functools.partial(_add_arguments, command, name, completes))
        if completes:
            command.add_all()
    return parser


def _add_arguments(parser: Parser, name: str, completes: bool, words: Sequence[str]) -> None:
    """Import what a command needs, and add its arguments."""
    if name == "completion":
        cli.add_completion(parser, functools.partial(build_parser, completes=True))
    elif name == "train" and completes:
        cli.add_train_of_each_preset(parser)
    else:
        getattr(cli, f"add_{name.replace('-', '_')}")(parser)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command of these arguments, by default those of the shell, and return the exit code."""
    _open_closed_descriptors()
    arguments = sys.argv[1:] if arguments is None else arguments
    if os.getcwd() not in sys.path:  # so that a folder's own modules are found, as by `python -m trainkit`
        sys.path.append(os.getcwd())
    options = build_parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    try:
        code: int = options.run(options)
    except KeyboardInterrupt:
        print_error("interrupted")
        return 130
    except BrokenPipeError:  # of `| head`; what is still buffered must not be reported at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (TrainkitError, gym.error.Error, OSError) as error:
        if options.traceback:
            raise
        print_error(str(error) or type(error).__name__)
        return 2
    except Exception as error:
        if options.traceback:
            raise
        print_error(f"{type(error).__name__}: {error}; trainkit --traceback shows where it came from")
        return 2
    return code


def _versions() -> str:
    """Return the versions that a report of a problem needs."""
    own, *others = (f"{name} {number}" for name, number in versions().items())
    return f"{own} ({', '.join(others)})"


def _open_closed_descriptors() -> None:
    """Open missing standard streams, so that no other file gets their descriptors."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
