"""Terminal output and argument parsing of all commands: one line per mistake, help with examples."""

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TextIO

from trainkit.core.names import option_hint

Commands = argparse._SubParsersAction  # what `add_subparsers` returns; argparse has no public name for it


def print_line(text: str = "") -> None:
    """Print a line of results."""
    _print(text, sys.stdout)


def print_note(text: str) -> None:
    """Print a note about a result to the error stream, so that it does not mix with the result."""
    _print(f"note: {text}", sys.stderr)


def print_error(text: str) -> None:
    """Print a mistake to the error stream, in one line."""
    _print(f"trainkit: {'; '.join(text.splitlines())}", sys.stderr)


def _print(text: str, stream: TextIO | None) -> None:
    """Print text with control characters, and characters that the terminal cannot show, as escapes."""
    if stream is None:  # a process without standard streams
        return
    encoding = getattr(stream, "encoding", None) or "utf-8"
    shown = "".join(char if char.isprintable() or char in "\n\t" else repr(char)[1:-1] for char in text)
    print(shown.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)


def format_table(rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Format rows as aligned columns, the first `left` of them left-aligned; the first row is the heading."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligned = [[*map(str.ljust, row[:left], widths), *map(str.rjust, row[left:], widths[left:])] for row in rows]
    return "\n".join("  ".join(row).rstrip() for row in aligned)


class Parser(argparse.ArgumentParser):
    """A parser that reports a mistake in one line, and names the flag that was meant; `_` in flags is `-`.

    Words that begin like a negative number, such as `-1e1` and `-1,1`, are values.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._negative_number_matcher = re.compile(r"-\.?\d")  # argparse's own takes -1e1 for a flag
        self._to_add: list[Callable[[Sequence[str]], None]] = []
        self.hints: Mapping[str, str] = {}  # {name of an unknown flag: what is meant}

    def before_parsing(self, add: Callable[[Sequence[str]], None]) -> None:
        """Call `add` with the words before they are parsed: it adds the arguments that depend on them, or are slow."""
        self._to_add.append(add)

    def add_all(self, words: Sequence[str] = ()) -> None:
        """Add what is to be added before parsing."""
        while self._to_add:
            self._to_add.pop(0)(words)

    def runs(self, run: Callable[[argparse.Namespace], int], *, examples: str) -> None:
        """Set the function that the command runs, and the examples at the end of its help."""
        self.set_defaults(run=run)
        self.epilog = f"examples:\n{examples}"

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = [*(sys.argv[1:] if args is None else args)]
        self.add_all(words)
        options, rest = super().parse_known_args([_spelled(word) for word in words], namespace)
        for action in self._get_positional_actions():  # Python before 3.12.7 ends them at the first flag
            if rest and not rest[0].startswith("-") and getattr(options, action.dest, "") is None:
                setattr(options, action.dest, rest.pop(0))
        if rest:
            is_flag = rest[0].startswith("-")
            self.error(f"unknown flag {self._hint(rest[0])}" if is_flag else f"unexpected {rest[0]!r}")
        return options, rest

    def _hint(self, word: str) -> str:
        """Return an unknown flag with the one that was meant."""
        name, known = _as_option(word), [_as_option(own) for own in self._option_string_actions]
        if name in self.hints:
            return f"{word.partition('=')[0]}, did you mean {self.hints[name]}?"
        hint = option_hint(name, known) if word.startswith("--") else ""
        meant = re.sub(r"^, did you mean '(\w+)'\?$", lambda found: f", did you mean {as_flag(found[1])}?", hint)
        return f"{word.partition('=')[0]}{meant}"

    def error(self, message: str) -> NoReturn:
        print_error(f"{self.prog.removeprefix('trainkit').strip() or 'command'}: {message} ({self.prog} --help)")
        sys.exit(2)


def _spelled(word: str) -> str:
    """Return a flag with `-` for `_`; other words as they are."""
    name, equals, value = word.partition("=")
    return f"{name.replace('_', '-')}{equals}{value}" if word.startswith("--") else word


def _as_option(word: str) -> str:
    return word.partition("=")[0].lstrip("-").replace("-", "_")


def as_flag(name: str) -> str:
    """Return the flag of a setting."""
    return f"--{name.replace('_', '-')}"


def add_command(commands: "Commands[Parser]", name: str, about: str) -> Parser:
    """Add a command, whose help begins with what it is about."""
    return commands.add_parser(
        name,
        help=about,
        description=f"{about[0].upper()}{about[1:]}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
