"""Pages that translate the names of other libraries."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {"tianshou": DOCS / "howto/tianshou_names.md", "rllib": DOCS / "howto/rllib_names.md"}


def expanded(name: str) -> list[str]:
    """Return the names that one with braces stands for: x{,_y} is x and x_y."""
    parts = re.split(r"\{([^}]*)\}", name)
    choices = [part.split(",") if i % 2 else [part] for i, part in enumerate(parts)]
    return ["".join(chosen) for chosen in itertools.product(*choices)]


def rows_of(page: Path) -> Iterator[tuple[str, list[str], str]]:
    """Yield the section, their names and the middle column of each row that translates names."""
    section, is_table = "", False
    for line in page.read_text().splitlines():
        if line.startswith("## "):
            section = line[3:]
        if not line.startswith("|"):
            is_table = False
        elif re.match(r"\| (Tianshou|RLlib) \| trainkit \|", line):
            is_table = True
        elif is_table and not line.startswith("|---"):
            theirs, ours = (cell.strip() for cell in line.split("|")[1:3])
            yield section, [name for span in re.findall(r"`([^`]+)`", theirs) for name in expanded(span)], ours
