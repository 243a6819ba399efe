"""The site of the docs: it builds by itself, loads nothing from elsewhere, and its ported scripts are what they say."""

import ast
import contextlib
import importlib.util
import inspect
import json
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import trainkit
from trainkit.core.extensions import present

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
DIFF = re.compile(r"^```diff\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LOADED = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=[\"']?([^\"'\s>]+)")


PORTED = {
    "port_tianshou": ["from_tianshou"],
    "port_rllib": ["from_rllib"],
    "port_sb3": ["from_sb3"],
    "port_multi_agent": ["from_rllib_game", "from_tianshou_game"],
}


@pytest.mark.parametrize("page", PORTED)
def test_a_ported_script_is_the_green_side_of_its_diff(page: str) -> None:
    text = (DOCS / "howto" / f"{page}.md").read_text()
    for diff, name in zip(DIFF.findall(text), PORTED[page], strict=True):
        green = [line[1:] for line in diff.splitlines() if line[1:] and not line.startswith("-")]
        _, *script = filter(None, (ROOT / "examples" / f"{name}.py").read_text().splitlines())  # after the docstring
        assert green == script
        assert f"../../examples/{name}.py" in text
        red = "\n".join(line[1:] for line in diff.splitlines() if not line.startswith("+"))
        compile(red, page, "exec")  # a whole script, too


def test_names_side_by_side_are_names_of_ours() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    known = set(re.findall(r"[A-Za-z_]\w*", sources))
    pages = ("migration.md", "howto/sb3_names.md", "howto/port_cleanrl.md")
    lines = [line for page in pages for line in (DOCS / page).read_text().splitlines()]
    rows = [line.split("|") for line in lines if line.startswith("| `")]
    assert len(rows) > 60
    ours = [span for row in rows for span in re.findall(r"`([^`]+)`", row[2])]
    named = {name for span in ours for name in re.findall(r"[A-Za-z_]\w*", re.sub(r'"[^"]*"', "", span))}
    assert named - known == set()


def test_what_the_page_of_missing_features_names_is_missing() -> None:
    """A row leaves the page when the feature arrives: no class or option named on its left is one of ours."""
    rows = [line.split("|") for line in (DOCS / "limitations.md").read_text().splitlines() if line.startswith("| ")]
    missing = {name for row in rows for name in re.findall(r"`(\w+)`", row[1])}
    assert len(missing) > 15
    assert sorted(name for name in missing if hasattr(trainkit, name)) == []
    instead = {name for row in rows for name in re.findall(r"`tk\.(\w+)`", row[2])}
    assert sorted(name for name in instead if not hasattr(trainkit, name)) == []


def rows_of_code(page: Path) -> list[tuple[str, Path]]:
    """List the lines of our code in a page's table of lines, each with its file: a row's link, or the one "there"."""
    table = re.search(r"^\| line \| file \|\n\|---\|---\|\n(.*?)\n\n", page.read_text(), re.MULTILINE | re.DOTALL)
    rows, file = [], page
    for row in table[1].splitlines() if table else ():
        line, place = re.fullmatch(r"\| `(.+?)` \| (.+) \|", row).groups()
        link = re.search(r"\]\((.+?)\)", place)
        file = page.parent / link[1] if link else file
        assert link or re.search(r"\bthere\b", place), f"{page.name} names no file for {line}"
        rows.append((line, file))
    return rows


def blocks_of_code(page: Path) -> list[str]:
    """List the lines of our code that a page shows in blocks of no language."""
    shown = []
    for block in re.findall(r"^```\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        lines = [line.partition("  #")[0] for line in block.splitlines()]
        with contextlib.suppress(SyntaxError):  # equations are none
            ast.parse("def f():\n" + "\n".join(f"    {line}" for line in lines))
            shown += [line for line in lines if not line.startswith("tk.")]
    return shown


def words_of(text: str) -> str:
    return " ".join(text.split())


PAGES = sorted((DOCS / "algorithms").glob("*.md"))


def test_lines_of_code_on_the_pages_of_algorithms_are_in_the_files_they_name() -> None:
    rows = [(page.stem, *row) for page in PAGES for row in rows_of_code(page)]
    assert len(rows) > 25
    assert [row for row in rows if words_of(row[1]) not in words_of(row[2].read_text())] == []


def test_blocks_of_code_on_the_pages_of_algorithms_are_in_the_sources() -> None:
    sources = [words_of(path.read_text()) for path in (ROOT / "src").rglob("*.py")]
    shown = [(page.stem, line) for page in PAGES for line in blocks_of_code(page)]
    assert [one for one in shown if not any(words_of(one[1]) in source for source in sources)] == []


def test_excerpts_on_the_page_of_custom_algorithms_are_lines_of_examples() -> None:
    sources = [path.read_text() for path in (ROOT / "examples").glob("*.py")]
    known = {" ".join(line.split()) for source in sources for line in source.splitlines()}
    blocks = re.findall(
        r"^```text\n(.*?)^```$", (DOCS / "howto" / "custom_algorithms.md").read_text(), re.MULTILINE | re.DOTALL
    )
    shown = [" ".join(line.split()) for block in blocks for line in block.splitlines() if line]
    assert len(shown) > 10
    assert [line for line in shown if line not in known] == []


def test_every_page_has_a_description_of_its_own() -> None:
    """Search engines show it: a sentence or two, in the front matter."""
    found = {
        page: re.match(r'---\ndescription: (?P<text>"?.+"?)\n---\n\n# ', page.read_text())
        for page in DOCS.rglob("*.md")
    }
    assert [page.name for page, match in found.items() if match is None] == []
    descriptions = [match["text"].strip('"') for match in found.values() if match is not None]
    assert len(descriptions) == len(set(descriptions))
    assert [text for text in descriptions if not 40 < len(text) <= 160] == []


def test_former_pages_are_redirected_to_pages_that_exist() -> None:
    text = (ROOT / "mkdocs.yml").read_text().partition("redirects:")[2].partition("extra_css")[0]
    redirects = re.findall(r"^    (\S+\.md): (\S+\.md)$", text, re.MULTILINE)
    assert len(redirects) > 15
    assert [former for former, _ in redirects if (DOCS / former).exists()] == []
    assert [current for _, current in redirects if not (DOCS / current).exists()] == []


def test_every_page_is_in_the_navigation() -> None:
    nav = (ROOT / "mkdocs.yml").read_text()
    pages = [page.relative_to(DOCS).as_posix() for page in sorted(DOCS.rglob("*.md"))]
    assert [page for page in pages if page not in nav] == []


def reference() -> dict[str, str]:
    """Return the pages of the API reference as docs/pages.py makes them, which needs no mkdocs."""
    found = importlib.util.spec_from_file_location("docs_pages", DOCS / "pages.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    pages: dict[str, str] = module.reference_pages()
    return pages


def test_every_public_name_is_on_a_page_of_the_reference() -> None:
    pages = reference()
    section = re.compile(r"^(?:::: |## \w+ \{ #)(\S+)", re.MULTILINE)
    named = [name for text in pages.values() for name in section.findall(text)]
    assert len(named) == len(set(named))
    modules = {name for name in trainkit.__all__ if inspect.ismodule(getattr(trainkit, name))}
    assert {f"reference/{name}.md" for name in modules} | {"reference/index.md"} == pages.keys()
    documented = {name.rpartition(".")[2] for name in named}
    assert {name for name in trainkit.__all__ if name not in modules} <= documented
    for module in modules:
        assert set(getattr(trainkit, module).__all__) <= documented
    listed = set(re.findall(r"\[`(\w+)`\]\(", pages["reference/index.md"]))
    assert {name for module in modules for name in getattr(trainkit, module).__all__} <= listed


def test_the_list_of_extensions_names_each() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    section = text[text.index("\nThe extensions: ") :]
    named = re.findall(r"`([a-z0-9_]+)`", section[: section.index("Each attaches")])
    assert named == list(present())


def test_every_public_name_and_method_has_a_docstring() -> None:
    """The reference leaves out what has none."""
    modules = [getattr(trainkit, name) for name in trainkit.__all__ if inspect.ismodule(getattr(trainkit, name))]
    public = {id(part): part for module in modules for part in (getattr(module, name) for name in module.__all__)}
    owners = [part for part in public.values() if inspect.isclass(part) or inspect.isfunction(part)]
    assert len(owners) > 150
    assert [part.__name__ for part in owners if not (part.__doc__ or "").strip()] == []
    generated = [part.__name__ for part in owners if part.__doc__.startswith(f"{part.__name__}(")]
    assert generated == [], "this is what dataclass and NamedTuple write when nobody else does"
    methods = [
        (f"{owner.__name__}.{name}", inspect.getdoc(getattr(owner, name)))
        for owner in owners
        if inspect.isclass(owner)
        for name, member in vars(owner).items()
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property | classmethod))
    ]
    assert len(methods) > 300
    assert [name for name, doc in methods if not doc] == []


def test_every_name_on_a_page_of_the_reference_exists() -> None:
    for text in reference().values():
        for name in re.findall(r"^::: (\S+)$", text, re.MULTILINE):
            assert pkgutil.resolve_name(name) is not None


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for plugin in ("mkdocstrings", "mkdocs_jupyter"):
        pytest.importorskip(plugin, reason="the extra `docs` is not installed")
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
    index = json.loads((site / "search/search_index.json").read_text())
    assert "gamma**m after m real steps" in json.dumps(index)
    places = {place["location"] for place in index["docs"]}
    modules = {name: getattr(trainkit, name) for name in trainkit.__all__ if inspect.ismodule(getattr(trainkit, name))}
    assert [name for name in modules if not (site / f"reference/{name}.html").is_file()] == []
    documented = {place.rpartition("#")[2].rpartition(".")[2] for place in places}
    public = {name for module in modules.values() for name in module.__all__} | set(trainkit.__all__) - modules.keys()
    assert sorted(public - documented) == []


@pytest.mark.slow
def test_search_finds_topics_by_the_words_people_use(site: Path) -> None:
    titles = {
        page["location"]: page["title"].lower()
        for page in json.loads((site / "search/search_index.json").read_text())["docs"]
    }
    assert titles["howto/hyperparameter_tuning.html"] == "hyperparameter tuning"
    assert titles["howto/custom_environments.html"] == "custom environments"
    assert titles["multi_agent.html"].startswith("multi-agent")
    assert titles["off_policy_evaluation.html"] == "off-policy evaluation"


@pytest.mark.slow
def test_a_notebook_is_rendered_with_its_tables_and_pictures(site: Path) -> None:
    page = (site / "examples/quickstart.html").read_text()
    assert "<table><caption>History of 3 epochs" in page
    assert page.count("data:image/png") >= 2
    assert 'href="../concepts.html"' in page


def test_every_row_of_the_table_of_what_can_differ_names_tests_that_exist() -> None:
    root = Path(__file__).parents[1]
    page = (root / "docs" / "howto" / "reproducibility.md").read_text()
    table = re.search(r"\| what changes \|.*\n\|[-|]+\n((?:\|.*\n)+)", page)
    assert table
    rows = table[1].splitlines()
    assert len(rows) > 15
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(?:(\w+)::)?(test_\w+)`", row)
        assert named, f"no `path::name` of a test: {row}"
        assert len(named) == row.count("`tests/"), f"a reference that is not `path::name`: {row}"
        for file, owner, test in named:
            text = (root / file).read_text()
            assert f"def {test}(" in text, (file, test)
            assert not owner or f"class {owner}:" in text, (file, owner)
