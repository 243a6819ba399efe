"""The code of README and docs: the blocks of a page, and which of them share a namespace.

A block runs in a folder and namespace of its own, unless the line above it says otherwise:

<!-- test: skip, REASON -->    it does not run, but is type-checked
<!-- test: slow -->            it runs in the slow suite
<!-- test: continue -->        it continues from the block before it
<!-- test: mistyped -->        it runs, and shows a mistake that a type checker must report, too
"""

import re
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]

BLOCK = re.compile(
    r"(?:^<!-- test: (?P<note>.+?) -->\n+)?^ *```py(?:thon)?\b[^\n]*\n(?P<code>.*?)^ *```$", re.MULTILINE | re.DOTALL
)


@dataclass(slots=True, kw_only=True)
class Example:
    """Blocks that run one after the other in one namespace; their line numbers are the page's."""

    page: Path
    line: int
    blocks: list[str] = field(default_factory=list)
    note: str = ""

    @property
    def name(self) -> str:
        """The page and the line before the first block's code."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def source(self) -> str:
        """All blocks as one file, whose line numbers are the page's."""
        lines: list[str] = []
        for block in self.blocks:
            lines += block.splitlines()[len(lines) :]
        return "\n".join(lines) + "\n"


def examples(page: Path) -> list[Example]:
    """Return the examples of a page, in order."""
    text, found = page.read_text(), []
    for match in BLOCK.finditer(text):
        note, line = match["note"] or "", text.count("\n", 0, match.start("code"))
        if not re.fullmatch(r"skip, .+|slow|continue|mistyped|", note):
            raise ValueError(f"{page.name}:{line} has the note {note!r}; see the docstring of {__file__}")
        if note != "continue":
            found.append(Example(page=page, line=line, note=note))
        found[-1].blocks.append("\n" * line + textwrap.dedent(match["code"]))
    return found


def rows_of(title: str, page: str = "migration.md") -> list[tuple[list[str], str]]:
    """Return (their names, ours) of each row of a section of a page."""
    section = re.split(rf"\n#+ {title}\n", (ROOT / "docs" / page).read_text())[-1].split("\n#")[0]
    rows = [line.split("|") for line in section.splitlines() if line.startswith("| `")]
    return [(re.findall(r"`([^`]+)`", row[1]), row[2].strip()) for row in rows]
