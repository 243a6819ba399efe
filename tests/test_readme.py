"""What the README and docs say is true: every Python block runs, every link leads somewhere."""

import re
from functools import cache
from pathlib import Path

import pytest

from tests.helpers.pages import PAGES, ROOT, Example, examples

FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^()\s]+)\)")
HEADING = re.compile(r"^#+ +(.+?)\s*$", re.MULTILINE)


def param(example: Example) -> object:
    marks = []
    if example.note.startswith("skip"):
        marks = [pytest.mark.skip(reason=example.note.removeprefix("skip, "))]
    elif example.note == "slow":
        marks = [pytest.mark.slow]
    return pytest.param(example, id=example.name, marks=marks)


@cache
def anchors(page: Path) -> set[str]:
    """Name the headings of a page as links do: `## Stats, tags` is `stats-tags`."""
    headings = HEADING.findall(FENCED.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.no_cover  # pages show what other tests cover
@pytest.mark.global_rng  # a reader's own code may draw where it likes
@pytest.mark.parametrize("example", [param(example) for page in PAGES for example in examples(page)])
def test_the_code_runs(example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in example.blocks:
        exec(compile(block, str(example.page), "exec"), namespace)  # noqa: S102 - our own pages


def test_the_links_lead_somewhere() -> None:
    broken = []
    for page in PAGES:
        for link in LINK.findall(FENCED.sub("", page.read_text())):
            if re.match(r"\w+:", link):  # another site, or an address: not ours to follow
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / path) if path else page
            if not target.exists() or (anchor and anchor not in anchors(target)):
                broken.append(f"{page.relative_to(ROOT)}: {link}")
    assert broken == []


def test_there_is_a_readme_with_code() -> None:
    assert examples(ROOT / "README.md")
