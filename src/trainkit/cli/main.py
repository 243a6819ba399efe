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

from trainkit.cli import check, compare, completion, evaluate, inspect, serve, train, zoo
from trainkit.cli.output import Parser, print_error
from trainkit.core.checkpoint import versions
from trainkit.core.errors import TrainkitError
from trainkit.core.extensions import table

_EXAMPLES = """\
examples:
  trainkit train rainbow CartPole-v1 --seed 1     train, log and save below runs/
  trainkit train dqn CartPole-v1 --lr 5e-4        the same with another setting: trainkit train dqn --help
  trainkit train ppo CartPole-v1 --seeds 5        the same on seeds 1 to 5
  trainkit eval runs/rainbow-CartPole-v1/seed1    play with what was learned
  trainkit plot runs -o curves.svg                learning curves of all runs, seeds together
  trainkit compare runs                           scores, with intervals over seeds

`trainkit COMMAND --help` shows more. It works from any folder; nothing is downloaded."""


def build_parser(arguments: Sequence[str] = (), *, completes: bool = False) -> Parser:
    """Make the parser of all commands; of `train`, with the flags of the preset that the arguments name.

    With `completes`, every preset is a command below `train`, with its own flags.
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
    if completes:
        train.add_train_of_each_preset(commands)
    else:
        train.add_train(commands, arguments)
    evaluate.add_eval(commands)
    compare.add_plot(commands)
    compare.add_compare(commands)
    inspect.add_inspect(commands)
    if "export" in table("NAMES"):
        evaluate.add_export(commands)
    serve.add_serve(commands)
    train.add_presets(commands)
    zoo.add_zoo(commands)
    check.add_check_env(commands)
    check.add_bench(commands)
    completion.add_completion(commands, functools.partial(build_parser, completes=True))
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command of these arguments, by default those of the shell, and return the exit code."""
    _open_closed_descriptors()
    arguments = sys.argv[1:] if arguments is None else arguments
    if os.getcwd() not in sys.path:  # so that a folder's own modules are found, as by `python -m trainkit`
        sys.path.append(os.getcwd())
    options = build_parser(arguments).parse_args(arguments)
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
