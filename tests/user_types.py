"""Type-check what users write: examples/*.py and the code of README and docs; `make type-user` runs it.

basedpyright checks in its standard mode, mypy in its strict one. Any error fails, and so does a block noted as
`mistyped` in which a checker finds none.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.helpers.pages import PAGES, ROOT, Example, examples

FOLDER = ROOT / "build" / "user_types"
# Not installed by the extra `dev`, or without types.
OPTIONAL = ("optuna", "ray", "onnxruntime", "stable_baselines3", "envpool")

Found = tuple[Path, int, str]  # file, line, message


def write(folder: Path) -> dict[Path, Example]:
    """Write every example of a page as a file whose lines are the page's."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    written = {}
    for example in (example for page in PAGES for example in examples(page)):
        path = folder / f"{re.sub(r'[^a-z0-9]+', '_', example.name.lower())}.py"
        path.write_text(example.source)
        written[path] = example
    return written


def by_basedpyright(files: list[Path], folder: Path) -> Iterator[Found]:
    """Yield the errors of basedpyright in its standard mode."""
    config = folder / "pyrightconfig.json"
    settings = {"include": list(map(str, files)), "typeCheckingMode": "standard", "pythonVersion": "3.11"}
    config.write_text(json.dumps(settings | {"extraPaths": [str(ROOT / "src")]}))
    command = [Path(sys.executable).parent / "basedpyright", "-p", config, "--pythonpath", sys.executable]
    done = subprocess.run([*command, "--outputjson"], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(done.stdout + done.stderr)
    report = json.loads(done.stdout)
    if report["summary"]["filesAnalyzed"] != len(files):
        raise SystemExit(f"basedpyright checked {report['summary']['filesAnalyzed']} of {len(files)} files")
    for found in report["generalDiagnostics"]:
        missing = re.match(r'Import "(\w+).* could not be resolved', found["message"])
        is_optional = missing is not None and missing[1] in OPTIONAL
        if found["severity"] == "error" and not is_optional:
            yield Path(found["file"]), found["range"]["start"]["line"] + 1, found["message"].partition("\n")[0]


def by_mypy(files: list[Path], folder: Path) -> Iterator[Found]:
    """Yield the errors of mypy in its strict mode."""
    config = folder / "mypy.ini"
    ignored = "".join(f"[mypy-{name}.*]\nignore_missing_imports = true\nfollow_imports = skip\n" for name in OPTIONAL)
    config.write_text(f"[mypy]\nstrict = true\nmypy_path = {ROOT / 'src'}\nshow_error_end = false\n{ignored}")
    command = [sys.executable, "-m", "mypy", "--config-file", config, "--scripts-are-modules", "--output=json", *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode not in (0, 1):
        raise SystemExit(done.stdout + done.stderr)
    for found in map(json.loads, done.stdout.splitlines()):
        if found["severity"] == "error":
            yield ROOT / found["file"], found["line"], f"{found['message']} [{found['code']}]"


def main() -> int:
    """Check everything, print the errors and return how many there are."""
    blocks = write(FOLDER)
    files = [*blocks, *sorted((ROOT / "examples").glob("*.py"))]
    n_errors = 0
    for checker in (by_basedpyright, by_mypy):
        name = checker.__name__.removeprefix("by_")
        mistyped = {path for path, example in blocks.items() if example.note == "mistyped"}
        for path, line, message in checker(files, FOLDER):
            if blocks.get(path) and blocks[path].note == "mistyped":
                mistyped.discard(path)
                continue
            n_errors += 1
            page = blocks[path].page if path in blocks else path
            print(f"{page.relative_to(ROOT)}:{line}: {name}: {message}")  # noqa: T201
        for path in sorted(mistyped):
            n_errors += 1
            print(f"{blocks[path].name}: {name}: no error, though the block is noted as mistyped")  # noqa: T201
    print(f"{n_errors} errors in {len(files)} files")  # noqa: T201
    return n_errors


if __name__ == "__main__":
    sys.exit(min(main(), 1))
