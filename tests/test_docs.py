"""The site of the docs: it builds by itself, loads nothing from elsewhere, and its ported scripts are what they say."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```(diff|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LOADED = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=[\"']?([^\"'\s>]+)")


@pytest.mark.parametrize("page", ["port_tianshou", "port_sb3"])
def test_a_ported_script_is_the_green_side_of_its_diff(page: str) -> None:
    blocks = dict(reversed(BLOCK.findall((DOCS / "howto" / f"{page}.md").read_text())))  # the first of each
    green = [line[1:] for line in blocks["diff"].splitlines() if not line.startswith("-")]
    assert green == blocks["python"].splitlines()
    red = "\n".join(line[1:] for line in blocks["diff"].splitlines() if not line.startswith("+"))
    compile(red, page, "exec")  # a whole script, too


def test_names_side_by_side_are_names_of_ours() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    known = set(re.findall(r"[A-Za-z_]\w*", sources))
    rows = [line.split("|") for line in (DOCS / "coming_from.md").read_text().splitlines() if line.startswith("| `")]
    assert len(rows) > 60
    ours = [span for row in rows for span in re.findall(r"`([^`]+)`", row[2])]
    named = {name for span in ours for name in re.findall(r"[A-Za-z_]\w*", re.sub(r'"[^"]*"', "", span))}
    assert named - known == set()


def test_every_page_is_in_the_navigation() -> None:
    nav = (ROOT / "mkdocs.yml").read_text()
    pages = [page.relative_to(DOCS).as_posix() for page in sorted(DOCS.rglob("*.md"))]
    assert [page for page in pages if page not in nav] == []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocstrings", reason="the extra `docs` is not installed")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", folder],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr  # strict: a link that leads nowhere is an error
    return folder


@pytest.mark.slow
def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 50
    loaded = {(page.name, url) for page in pages for url in LOADED.findall(page.read_text())}
    assert len(loaded) > 100
    assert {(page, url) for page, url in loaded if re.match(r"(https?:)?//", url)} == set()
    styles = [style.read_text() for style in site.rglob("*.css")]
    assert [style for style in styles if re.search(r"(url\(|@import )[\"']?(https?:)?//", style)] == []


@pytest.mark.slow
def test_search_and_reference_know_the_public_names(site: Path) -> None:
    import trainkit

    index = json.loads((site / "search/search_index.json").read_text())
    assert "gamma**m after m real steps" in json.dumps(index)
    places = {place["location"] for place in index["docs"]}
    missing = [name for name in trainkit.__all__ if not any(place.endswith(f"#trainkit.{name}") for place in places)]
    assert missing == ["plot", "presets"]  # which are pages
    assert any(place.endswith("#trainkit.plot.curves.curves") for place in places)
