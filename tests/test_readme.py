"""What the README and docs say is true: every Python block runs, every link leads somewhere.

A block runs in a folder and namespace of its own, unless the line above it says otherwise:

<!-- test: skip, REASON -->    it does not run
<!-- test: slow -->            it runs in the slow suite
<!-- test: continue -->        it goes on from the block before it
"""

import re
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]

BLOCK = re.compile(
    r"(?:^<!-- test: (?P<note>.+?) -->\n+)?^ *```py(?:thon)?\b[^\n]*\n(?P<code>.*?)^ *```$", re.MULTILINE | re.DOTALL
)
FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^()\s]+)\)")
HEADING = re.compile(r"^#+ +(.+?)\s*$", re.MULTILINE)


@dataclass(slots=True, kw_only=True)
class Example:
    """Blocks that run one after the other in one namespace; their line numbers are the page's."""

    page: Path
    line: int
    blocks: list[str] = field(default_factory=list)
    note: str = ""

    def param(self) -> object:
        marks = []
        if self.note.startswith("skip"):
            marks = [pytest.mark.skip(reason=self.note.removeprefix("skip, "))]
        elif self.note == "slow":
            marks = [pytest.mark.slow]
        return pytest.param(self, id=f"{self.page.relative_to(ROOT)}:{self.line}", marks=marks)


def examples(page: Path) -> list[Example]:
    text, found = page.read_text(), []
    for match in BLOCK.finditer(text):
        note, line = match["note"] or "", text.count("\n", 0, match.start("code"))
        if not re.fullmatch(r"skip, .+|slow|continue|", note):
            raise ValueError(f"{page.name}:{line} has the note {note!r}; see the docstring of {__file__}")
        if note != "continue":
            found.append(Example(page=page, line=line, note=note))
        found[-1].blocks.append("\n" * line + textwrap.dedent(match["code"]))
    return found


def anchors(page: Path) -> set[str]:
    """Name the headings of a page as links do: `## Stats, tags` is `stats-tags`."""
    headings = HEADING.findall(FENCED.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.global_rng  # a reader's own code may draw where it likes
@pytest.mark.parametrize("example", [example.param() for page in PAGES for example in examples(page)])
def test_the_code_runs(example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in example.blocks:
        exec(compile(block, str(example.page), "exec"), namespace)  # noqa: S102 - our own pages


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_the_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in LINK.findall(FENCED.sub("", page.read_text())):
        if re.match(r"\w+:", link):  # another site, or an address: not ours to follow
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_there_is_a_readme_with_code() -> None:
    assert examples(ROOT / "README.md")
