"""Hooks of MkDocs that add the pages outside docs/: the files that pages link to, benchmarks, examples, API reference.

In the repository links are relative paths, which GitHub follows. On the site every linked file outside docs/ becomes a
page: source files are shown as code, notebooks are rendered by mkdocs-jupyter.
"""

import ast
import json
import os
import posixpath
import re
from collections.abc import Iterator
from functools import cache
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # imported where it is used, so that a test can import this file without MkDocs
    from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SOURCES = ROOT / "src/trainkit"
LINK = re.compile(r"(?<=\]\()(?P<path>[^()\s#:]+)(?P<anchor>#[^()\s]*)?(?=\))")
FENCED = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
EQUATION = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">(?:\\\((?P<inline>.*?)\\\)|\\\[(?P<block>.*?)\\\])</(?P=tag)>', re.DOTALL
)
LIMITS = re.compile(
    r"<msub>(<mo>(?:max|min)</mo>(?:<mi>\w+</mi>|<mrow>(?:(?!<mrow>).)*?</mrow>))</msub>"
)  # below the operator instead of to its right
REMOTE_SCRIPT = re.compile(
    r"<script[^>]*\bsrc=\"https?://.*?</script>|<script type=\"(?:module|text/x-mathjax-config)\">.*?</script>",
    re.DOTALL,
)  # MathJax and Mermaid, which our notebooks do not use
HREF = re.compile(r'(?<= href=")(?P<path>[^":#]+)(?P<anchor>#[^"]*)?(?=")')
LINKING = (".md", ".ipynb")  # files whose text has links
MOVED = """<!doctype html>
<title>Moved</title>
<link rel="canonical" href="{url}">
<meta http-equiv="refresh" content="0; url={url}">
<a href="{url}">This page has moved.</a>
"""
NAMESPACES = {
    "envs": "Environments",
    "collector": "Collectors",
    "buffer": "Replay buffers",
    "datasets": "Datasets and off-policy evaluation",
    "policy": "Policies and their parts",
    "nets": "Networks",
    "engine": "Engines",
    "simulators": "Simulators",
    "schedules": "Schedules",
    "callbacks": "Callbacks",
    "trainer": "Trainers, evaluation, statistics",
    "loggers": "Loggers",
    "errors": "Errors",
    "plot": "Plots",
    "presets": "Presets",
    "zoo": "The zoo",
    "testing": "Testing",
}


def on_config(config: Any) -> Any:
    """Add the generated pages to the navigation."""
    generated = {"API reference": list(_reference()), "Benchmarks": list(_results()), "Examples": list(_examples())}
    config.nav = [
        {title: pages + generated[title] if title in generated else pages}
        for entry in config.nav
        for title, pages in entry.items()
    ]
    return config


def on_files(files: "Files", config: Any) -> "Files":
    """Add the generated pages and every file that a page links to."""
    from mkdocs.structure.files import File

    for uri, text in reference_pages().items():
        files.append(File.generated(config, uri, content=text))
    waiting = [*_all_paths(), *(Path(file.abs_src_path) for file in files.documentation_pages() if file.abs_src_path)]
    seen: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path in seen or not path.exists():
            continue
        seen.add(path)
        if DOCS not in path.parents:
            files.append(_generated(config, path))
        if path.suffix in LINKING:
            text = _notebook_text(path) if path.suffix == ".ipynb" else path.read_text()
            waiting += [_resolved(path, match["path"]) for match in LINK.finditer(FENCED.sub("", text))]
    return files


on_files.__dict__["mkdocs_priority"] = 100  # before mkdocs-jupyter, which then finds the notebooks


def on_page_markdown(markdown: str, page: Any, config: Any, files: "Files") -> str:
    """Replace links to files of the repository by links to their pages, and describe pages without a description."""
    source = _source(page.file.src_uri)
    page.meta.setdefault("description", f"{_title(markdown, source)}: {_section(page.file)} of trainkit.")
    if page.file.src_uri.startswith(("src/", "tests/", "CONTRIBUTING", "CHANGELOG")):
        page.meta["search"] = {"exclude": True}  # pages link to them; who searches asks what to do
    elif page.file.src_uri.startswith(("benchmarks/", "examples/", "reference/")) or "_names" in page.file.src_uri:
        page.meta["search"] = {"boost": 0.3}  # below the pages that explain the same topic
    if source is None or source.suffix not in LINKING:
        return markdown

    def replaced(match: re.Match[str]) -> str:
        target = _resolved(source, match["path"])
        if not target.exists():
            return match[0]
        return posixpath.relpath(_uri(target), posixpath.dirname(page.file.src_uri) or ".") + (match["anchor"] or "")

    parts = FENCED.split(markdown)
    return "".join(part if number % 2 else LINK.sub(replaced, part) for number, part in enumerate(parts))


def on_page_content(html: str, page: Any, config: Any, files: "Files") -> str:
    """Convert equations to MathML, which browsers typeset without a script; make notebooks self-contained."""
    from latex2mathml.converter import convert

    if page.file.src_uri.endswith(".ipynb"):
        return _notebook_html(html, page, files)

    def typeset(match: re.Match[str]) -> str:
        display = "block" if match["tag"] == "div" else "inline"
        mathml = convert(unescape(match["block"] or match["inline"]), display=display)
        if display == "inline":
            return mathml
        mathml = re.sub(r"<mtd\b", '<mtd displaystyle="true"', mathml)  # else sums and fractions in tables are small
        return LIMITS.sub(r"<munder>\1</munder>", mathml)

    return EQUATION.sub(typeset, html)


def on_post_build(config: Any) -> None:
    """Write a redirect for every former page named in mkdocs.yml."""
    for former, current in config.extra["redirects"].items():
        path = Path(config.site_dir, former).with_suffix(".html")
        path.parent.mkdir(parents=True, exist_ok=True)
        url = posixpath.relpath(current, posixpath.dirname(former) or ".").removesuffix(".md") + ".html"
        path.write_text(MOVED.format(url=url))


def _notebook_html(html: str, page: Any, files: "Files") -> str:
    """Remove the scripts that a notebook's page would load from other hosts, and make its links lead to pages."""
    source = ROOT / page.file.src_uri

    def replaced(match: re.Match[str]) -> str:
        target = files.get_file_from_path(_uri(_resolved(source, match["path"])))
        if target is None:
            raise FileNotFoundError(f"{page.file.src_uri}: the link {match['path']} leads to no page")
        return target.url_relative_to(page.file) + (match["anchor"] or "")

    return HREF.sub(replaced, REMOTE_SCRIPT.sub("", html))


def _title(markdown: str, source: Path | None) -> str:
    """Return the first heading of a page, or the first line of an example."""
    if source is not None and source.parent == ROOT / "examples":
        return _first_line(source).rstrip(".")
    return next((line.lstrip("# ") for line in markdown.splitlines() if line.startswith("# ")), "trainkit")


def _section(file: "File") -> str:
    sections = {"reference": "API reference", "examples": "example", "benchmarks": "benchmark", "src": "source file"}
    return sections.get(file.src_uri.partition("/")[0], "page")


def _resolved(source: Path, link: str) -> Path:
    return Path(os.path.normpath(source.parent / link))


def _uri(path: Path) -> str:
    """Return the source path on the site of a file of the repository."""
    if path == ROOT / "README.md":
        return "index.md"
    if path.is_dir():
        return f"{path.relative_to(ROOT).as_posix()}/index.md"
    if DOCS in path.parents:
        return path.relative_to(DOCS).as_posix()
    uri = path.relative_to(ROOT).as_posix()
    return f"{uri}.md" if path.suffix == ".py" or path.name == "LICENSE" else uri


def _source(uri: str) -> Path | None:
    """Return the file of the repository that a page comes from, None for a generated page."""
    for path in (DOCS / uri, ROOT / uri, ROOT / uri.removesuffix(".md")):
        if path.is_file():
            return path
    return None


def _generated(config: Any, path: Path) -> "File":
    from mkdocs.structure.files import File

    uri = _uri(path)
    if path.is_dir():
        return File.generated(config, uri, content=_folder_text(path))
    if path.suffix == ".ipynb":
        return File(uri, str(ROOT), config.site_dir, config.use_directory_urls)
    if uri.endswith(".md") and path.suffix != ".md":
        language = "python" if path.suffix == ".py" else "text"
        return File.generated(config, uri, content=f"# {path.name}\n\n````{language}\n{path.read_text()}````\n")
    return File.generated(config, uri, abs_src_path=str(path))


def _folder_text(folder: Path) -> str:
    lines = [f"- [{path.name}]({posixpath.basename(_uri(path))}): {_first_line(path)}" for path in _shown(folder)]
    return "\n".join([f"# {folder.name.capitalize()}", "", *lines, ""])


def _first_line(path: Path) -> str:
    if path.suffix == ".ipynb":
        return str(json.loads(path.read_text())["cells"][0]["source"][0]).lstrip("# ").strip()
    return (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n")[0]


def _notebook_text(path: Path) -> str:
    """Return the text cells of a notebook."""
    cells = json.loads(path.read_text())["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def _shown(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix in (".py", ".ipynb"))


def _pages() -> Iterator[tuple[str, str, list[str]]]:
    """Yield (namespace, page, paths of public names); a name of several namespaces is on the first one's page."""
    shown: set[str] = set()
    for namespace in NAMESPACES:
        names = [name for name in _exported(namespace) if name not in shown]
        shown.update(names)
        paths = [f"{_module(namespace, name)}.{name}" for name in names]
        yield namespace, f"reference/{namespace}.md", paths


def _exported(namespace: str) -> list[str]:
    """Return the names in a namespace's `__all__`: in its stub, where extensions add to them."""
    package = SOURCES / namespace / "__init__.py"
    stub = package.with_suffix(".pyi")
    for node in ast.parse((stub if stub.exists() else package).read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return sorted(ast.literal_eval(node.value), key=str.lower)
    return []


def _module(namespace: str, name: str) -> str:
    """Return the module in which a name is documented: the namespace, unless a module in it has the same name."""
    if (SOURCES / namespace / f"{name}.py").exists():
        return f"trainkit.{namespace}.{name}"
    return f"trainkit.{namespace}"


def _reference_text(namespace: str, names: list[str]) -> str:
    """Return a page: the docstring of the package and each name's section; a module that is one page shows all."""
    members = ", members: false" if names else ""
    package = f"::: trainkit.{namespace}\n    options: {{ show_root_heading: false{members} }}"
    return "\n\n".join([f"# {NAMESPACES[namespace]}", package, *map(_name_text, names)]) + "\n"


def _name_text(path: str) -> str:
    """Return a name's section: its docstring, or the summary that a preset is made with."""
    name = path.rpartition(".")[2]
    if path != f"trainkit.presets.{name}" or name not in _preset_summaries():
        return f"::: {path}"
    kind, summary = _preset_summaries()[name]
    return f"## {name} {{ #{path} }}\n\n{summary}. Its class is [`{kind}`][trainkit.presets.{kind}]."


@cache
def _preset_summaries() -> dict[str, tuple[str, str]]:
    """Return {name: (class, summary)} of the presets, each of which is `name = SomePreset("name", "summary", ...)`."""
    nodes = (node for path in sorted((SOURCES / "presets").glob("*.py")) for node in ast.parse(path.read_text()).body)
    calls = (node.value for node in nodes if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call))
    made = ((ast.unparse(call.func), call.args) for call in calls)
    return {
        ast.literal_eval(args[0]): (kind, ast.literal_eval(args[1])) for kind, args in made if kind.endswith("Preset")
    }


def reference_pages() -> dict[str, str]:
    """Return {page: text} of the API reference: an index, and a page per namespace; `::: name` is its documentation."""
    pages = {uri: _reference_text(namespace, names) for namespace, uri, names in _pages()}
    return {"reference/index.md": _reference_index(), **pages}


def _reference_index() -> str:
    """List every public name by namespace, each with a link to its documentation."""
    lines = [
        "# API reference",
        "Every public name, by namespace. `import trainkit as tk` has the names of everyday use at top level.",
    ]
    for namespace, uri, paths in _pages():
        page = posixpath.basename(uri)
        lines.append(f"## [`tk.{namespace}`]({page}): {NAMESPACES[namespace].lower()}")
        lines.append(", ".join(f"[`{path.rpartition('.')[2]}`]({page}#{path})" for path in paths))
    return "\n\n".join(lines) + "\n"


def _reference() -> Iterator[Any]:
    yield "reference/index.md"
    for namespace, uri, _ in _pages():
        yield {NAMESPACES[namespace]: uri}


def _results() -> Iterator[Any]:
    for path in sorted((ROOT / "benchmarks/results").glob("*.md")):
        yield {path.read_text().split("\n")[0].lstrip("# "): _uri(path)}


def _examples() -> Iterator[Any]:
    yield "examples/index.md"
    for path in _shown(ROOT / "examples"):
        yield {path.name: _uri(path)}


def _all_paths() -> list[Path]:
    """List the files outside docs/ that the navigation names."""
    folder = ROOT / "examples"
    results = (ROOT / "benchmarks/results").glob("*.md")
    return [folder, *_shown(folder), *results, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]
