"""What the command says, and how it reads its arguments: one line per mistake, help with examples."""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn, TextIO

Commands = argparse._SubParsersAction  # what `add_subparsers` returns; argparse has no public name for it


def say(text: str = "") -> None:
    """Print a line, at once."""
    _print(text, sys.stdout)


def note(text: str) -> None:
    """Print what a reader should know of a result, in one line, where it does not mix with the result."""
    _print(f"note: {text}", sys.stderr)


def complain(text: str) -> None:
    """Print a mistake, in one line, where mistakes go."""
    _print(f"trainkit: {'; '.join(text.splitlines())}", sys.stderr)


def _print(text: str, stream: TextIO | None) -> None:
    """Print what any terminal can show: other characters, and those that would control it, as escapes."""
    if stream is None:  # a process without standard streams
        return
    encoding = getattr(stream, "encoding", None) or "utf-8"
    shown = "".join(char if char.isprintable() or char in "\n\t" else repr(char)[1:-1] for char in text)
    print(shown.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)


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
