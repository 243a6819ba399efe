"""What the command says, and how it reads its arguments: one line per mistake, help with examples."""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

Commands = argparse._SubParsersAction  # what `add_subparsers` returns; argparse has no public name for it


def say(text: str = "") -> None:
    """Print a line, at once."""
    print(text, flush=True)  # noqa: T201  # what a command is for


def note(text: str) -> None:
    """Print what a reader should know of a result, in one line, where it does not mix with the result."""
    print(f"note: {text}", file=sys.stderr, flush=True)  # noqa: T201  # as above


def complain(text: str) -> None:
    """Print a mistake, in one line, where mistakes go."""
    print(f"trainkit: {'; '.join(text.splitlines())}", file=sys.stderr, flush=True)  # noqa: T201  # as above


def table(rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Align rows in columns, the first `left` of them to the left; the first row is the heading."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]

    def line(row: Sequence[str]) -> str:
        cells = [
            cell.ljust(w) if i < left else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    return "\n".join(map(line, rows))


class Parser(argparse.ArgumentParser):
    """Tell a mistake in one line; show examples as they are written."""

    def error(self, message: str) -> NoReturn:
        complain(f"{self.prog.removeprefix('trainkit').strip() or 'command'}: {message} ({self.prog} --help)")
        sys.exit(2)


def add_command(
    commands: "Commands[Parser]", name: str, run: Callable[[argparse.Namespace], int], *, about: str, examples: str
) -> Parser:
    """Add a command that does `run`; its help shows `about` and the examples."""
    parser = commands.add_parser(
        name,
        help=about,
        description=f"{about[0].upper()}{about[1:]}.",
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser
