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


def test_the_speeds_in_the_readme_are_those_of_their_pages() -> None:
    readme = " ".join((ROOT / "README.md").read_text().split())
    claimed = re.findall(r"([\d.]+) times as fast as (?:Stable|Tianshou|RLlib)", readme)
    claimed += re.findall(r"PPO is ([\d.]+) and ([\d.]+) times", readme)[0]
    pages = {name: (ROOT / f"benchmarks/results/{name}.md").read_text().splitlines() for name in ("peers", "ppo_speed")}

    def ratio(page: str, column: int, *start: str) -> float:
        rows = [[cell.strip() for cell in line.split("|")[1:]] for line in pages[page] if line.startswith("| ")]
        return next(float(row[column]) for row in rows if tuple(row[: len(start)]) == start)

    sides = [
        ("one step, huber, clipped", "sb3 2.9.2"),
        ("one step, mse", "tianshou 1.2.0"),
        ("one step, mse", "tianshou2 2.0.1"),
        ("one step, huber, clipped", "rllib 2.60.0"),
    ]
    measured = [ratio("peers", 6, work, "loop steps/s", peer, "default") for work, peer in sides]
    measured += [ratio("ppo_speed", 7, peer) for peer in ("stable-baselines3 2.9.2", "tianshou 1.2.0")]
    assert [float(number) for number in claimed] == [float(f"{number:.2g}") for number in measured]
