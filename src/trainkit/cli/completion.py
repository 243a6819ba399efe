"""`trainkit completion`: a script with which a shell completes commands, presets, flags and their values.

The script is written once, so that pressing Tab starts no Python: importing torch would take seconds.
"""

import argparse
import contextlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainkit.cli.output import Parser, print_line
from trainkit.core.extras import import_extra, install_command

_EXAMPLES = f"""\
  trainkit completion bash > ~/.local/share/bash-completion/completions/trainkit
  trainkit completion zsh > ~/.zfunc/_trainkit           a folder of fpath, before compinit
  trainkit completion fish > ~/.config/fish/completions/trainkit.fish

Open a new shell then, and write the file again after an upgrade. It needs {install_command("completion")}"""


def add_completion(parser: Parser, build: Callable[[], Parser]) -> None:
    """Add the arguments of the command; `build` makes the parser whose words are completed."""
    parser.runs(lambda options: run_completion(options, build), examples=_EXAMPLES)
    parser.add_argument("shell", choices=["bash", "zsh", "fish"])


def run_completion(options: argparse.Namespace, build: Callable[[], Parser]) -> int:
    """Print the script of a shell."""
    shtab = import_extra("trainkit completion", "shtab", "completion")
    parser = build()
    _complete_files(parser, shtab.FILE)
    with contextlib.redirect_stderr(io.StringIO()):  # it logs there
        script: str = shtab.complete(parser, shell=options.shell)
    print_line(script)
    return 0


def _complete_files(parser: Any, how: object) -> None:
    """Complete the names of files where an argument is a path, also in the commands below."""
    for action in parser._actions:  # argparse has no public list of them
        if action.type is Path:
            action.complete = how
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                _complete_files(child, how)
