"""What the site has besides the pages in docs/: whatever they link to, results, examples, and the API reference.

Hooks of mkdocs (see mkdocs.yml). In the repository links are relative paths, which GitHub follows; on the site a file
outside docs/ becomes a page of its own, source code as code and notebooks with their outputs.
"""

import ast
import json
import os
import posixpath
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # imported where it is used: a test reads the reference's pages without mkdocs
    from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"(?<=\]\()(?P<path>[^()\s#:]+)(?P<anchor>#[^()\s]*)?(?=\))")
FENCED = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
EQUATION = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">(?:\\\((?P<inline>.*?)\\\)|\\\[(?P<block>.*?)\\\])</(?P=tag)>', re.DOTALL
)
LIMITS = re.compile(
    r"<msub>(<mo>(?:max|min)</mo>(?:<mi>\w+</mi>|<mrow>(?:(?!<mrow>).)*?</mrow>))</msub>"
)  # below, not beside
WRITTEN = (".md", ".ipynb")  # files whose words have links
NAMESPACES = {
    "envs": "Environments",
    "collector": "Collectors",
    "buffer": "Replay buffers",
    "datasets": "Datasets and off-policy evaluation",
    "policy": "Policies and their parts",
    "nets": "Networks",
    "engine": "Engines",
    "schedules": "Schedules",
    "callbacks": "Callbacks",
    "trainer": "Trainers, evaluation, statistics",
    "loggers": "Loggers",
    "errors": "Errors",
    "plot": "Plots",
    "presets": "Presets",
    "testing": "Testing",
}


def on_config(config: Any) -> Any:
    """Fill the parts of the navigation that are made from what is there, and leave out what is not."""
    made = {"Reference": list(_reference()), "Results": list(_results()), "Examples": list(_examples())}
    config.nav = [
        {title: _present(pages) + made[title] if title in made else _present(pages)}
        for entry in config.nav
        for title, pages in entry.items()
    ]
    return config


def on_files(files: "Files", config: Any) -> "Files":
    """Add the pages that are made, and with them everything that a page links to."""
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
        if path.suffix in WRITTEN:
            text = _notebook_text(path) if path.suffix == ".ipynb" else path.read_text()
            waiting += [_resolved(path, match["path"]) for match in LINK.finditer(FENCED.sub("", text))]
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: "Files") -> str:
    """Lead links to where files of the repository are on the site."""
    source = _source(page.file.src_uri)
    if source is None or source.suffix not in WRITTEN:
        return markdown

    def lead(match: re.Match[str]) -> str:
        target = _resolved(source, match["path"])
        if not target.exists():
            return match[0]
        return posixpath.relpath(_uri(target), posixpath.dirname(page.file.src_uri) or ".") + (match["anchor"] or "")

    parts = FENCED.split(markdown)
    return "".join(part if number % 2 else LINK.sub(lead, part) for number, part in enumerate(parts))


def on_page_content(html: str, page: Any, config: Any, files: "Files") -> str:
    """Turn equations in LaTeX into MathML, which browsers typeset without a script."""
    from latex2mathml.converter import convert

    def typeset(match: re.Match[str]) -> str:
        display = "block" if match["tag"] == "div" else "inline"
        mathml = convert(unescape(match["block"] or match["inline"]), display=display)
        return LIMITS.sub(r"<munder>\1</munder>", mathml) if display == "block" else mathml

    return EQUATION.sub(typeset, html)


def _resolved(source: Path, link: str) -> Path:
    return Path(os.path.normpath(source.parent / link))


def _uri(path: Path) -> str:
    """Say where a file of the repository is on the site."""
    if path == ROOT / "README.md":
        return "index.md"
    if path.is_dir():
        return f"{path.relative_to(ROOT).as_posix()}/index.md"
    if DOCS in path.parents:
        return path.relative_to(DOCS).as_posix()
    uri = path.relative_to(ROOT).as_posix()
    return f"{uri}.md" if path.suffix in (".py", ".ipynb") or path.name == "LICENSE" else uri


def _source(uri: str) -> Path | None:
    """Say which file of the repository a page was written in, None for one that was made."""
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
        return File.generated(config, uri, content=_notebook_text(path))
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
    """Write a notebook as a page: its text, its code and what came out of it."""
    out = []
    for cell in json.loads(path.read_text())["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            out.append(text)
            continue
        out.append(f"```python\n{text}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                picture = "".join(data["image/png"]).replace("\n", "")
                out.append(f'<img alt="what the cell draws" src="data:image/png;base64,{picture}">')
            elif text := "".join(output.get("text", data.get("text/plain", []))):
                out.append(f"```text\n{text.rstrip()}\n```")
    return "\n\n".join(out) + "\n"


def _shown(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix in (".py", ".ipynb"))


def _pages() -> Iterator[tuple[str, str, list[str]]]:
    """Yield (namespace, page, paths of public names); a name of several namespaces is on the first one's page."""
    shown: set[str] = set()
    for namespace in NAMESPACES:
        names = [] if namespace == "presets" else [name for name in _exported(namespace) if name not in shown]
        shown.update(names)
        paths = [f"{_module(namespace, name)}.{name}" for name in names]
        yield namespace, f"reference/{namespace}.md", paths


def _exported(namespace: str) -> list[str]:
    """Return the names in a namespace's `__all__`."""
    for node in ast.parse((ROOT / f"src/trainkit/{namespace}/__init__.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return sorted(ast.literal_eval(node.value), key=str.lower)
    return []


def _module(namespace: str, name: str) -> str:
    """Return the module in which a name is documented: the namespace, unless a module in it has the same name."""
    if (ROOT / f"src/trainkit/{namespace}/{name}.py").exists():
        return f"trainkit.{namespace}.{name}"
    return f"trainkit.{namespace}"


def _reference_text(namespace: str, names: list[str]) -> str:
    title = NAMESPACES[namespace]
    if not names:  # a module is the page
        return f"# {title}\n\n::: trainkit.{namespace}\n    options: {{ show_root_heading: false }}\n"
    return "\n\n".join([f"# {title}", *(f"::: {name}" for name in names)]) + "\n"


def reference_pages() -> dict[str, str]:
    """Return {page: text} of the API reference, a page per namespace; `::: name` stands for its documentation."""
    return {uri: _reference_text(namespace, names) for namespace, uri, names in _pages()}


def _reference() -> Iterator[dict[str, str]]:
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
    """List what the navigation names outside docs/."""
    folder = ROOT / "examples"
    results = (ROOT / "benchmarks/results").glob("*.md")
    return [folder, *_shown(folder), *results, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]


def _present(pages: Any) -> Any:
    """Leave out what is not there yet."""
    if not isinstance(pages, list):
        return pages
    named = [(page if isinstance(page, str) else next(iter(page.values())), page) for page in pages]
    return [page for uri, page in named if _source(uri) is not None]
