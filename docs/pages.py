"""What the site has besides the pages in docs/: whatever they link to, results, examples, and a reference per room.

Hooks of mkdocs (see mkdocs.yml). In the repository links are relative paths, which GitHub follows; on the site a file
outside docs/ becomes a page of its own, source code as code and notebooks with their outputs.
"""

import ast
import json
import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # imported where it is used: a test reads the reference's pages without mkdocs
    from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"(?<=\]\()(?P<path>[^()\s#:]+)(?P<anchor>#[^()\s]*)?(?=\))")
FENCED = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
WRITTEN = (".md", ".ipynb")  # files whose words have links
PACKAGES = {
    "envs": "Environments",
    "collector": "Collectors",
    "buffer": "Replay buffers",
    "datasets": "Datasets and off-policy evaluation",
    "policy": "Policies and their parts",
    "nets": "Networks",
    "engine": "Engines",
    "trainer": "Trainers, evaluation, callbacks",
    "loggers": "Loggers",
    "core": "Data, statistics, schedules, errors",
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


def _packages() -> Iterator[tuple[str, str, list[str]]]:
    """Yield (package, page, paths of public names), as the package's own imports tell."""
    names: dict[str, list[str]] = {package: [] for package in PACKAGES}  # those without names are modules
    for module, name in _imports("__init__"):
        names.setdefault(module.split(".")[0], []).append(f"trainkit.{name}")
    names["plot"] = [f"trainkit.{module}.{name}" for module, name in _imports("plot/__init__")]  # beside their modules
    for package, found in names.items():
        yield package, f"reference/{package}.md", sorted(found, key=str.lower)


def _imports(file: str) -> Iterator[tuple[str, str]]:
    """Yield (module below trainkit, name) of everything that a file imports from our modules."""
    for node in ast.parse((ROOT / f"src/trainkit/{file}.py").read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("trainkit."):
            yield from ((node.module.removeprefix("trainkit."), alias.name) for alias in node.names)


def _reference_text(package: str, names: list[str]) -> str:
    title = PACKAGES.get(package, package.capitalize())
    if not names:  # a module is the page
        return f"# {title}\n\n::: trainkit.{package}\n    options: {{ show_root_heading: false }}\n"
    return "\n\n".join([f"# {title}", *(f"::: {name}" for name in names)]) + "\n"


def reference_pages() -> dict[str, str]:
    """Return {page: text} of the API reference, a page per package; `::: name` stands for a name's documentation."""
    return {uri: _reference_text(package, names) for package, uri, names in _packages()}


def _reference() -> Iterator[dict[str, str]]:
    for package, uri, _ in _packages():
        yield {PACKAGES.get(package, package.capitalize()): uri}


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
