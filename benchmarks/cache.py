"""Finished runs in a file, so that an interrupted benchmark goes on where it stopped."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.provenance import code_commit


class Cache:
    """Keep what runs gave, a line of JSON each, with the commit it was measured at; a key is all a run depends on.

    Args:
        file: made when the first run is kept.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._results: dict[str, dict[str, Any]] = {}
        self._commits: dict[str, str] = {}
        if file.exists():
            for line in map(json.loads, file.read_text().splitlines()):
                self._results[json.dumps(line["key"])] = line["result"]
                self._commits[json.dumps(line["key"])] = line["commit"]

    def get(self, *key: Any) -> dict[str, Any] | None:
        """Return what a run gave, None where it was not made."""
        return self._results.get(json.dumps(key))

    def commit(self, *key: Any) -> str:
        """Return the commit of trainkit that a kept run was measured at."""
        return self._commits[json.dumps(key)]

    def rows(self) -> Iterator[tuple[list[Any], dict[str, Any], str]]:
        """Yield key, result and commit of every run that is kept."""
        for key, result in self._results.items():
            yield json.loads(key), result, self._commits[key]

    def put(self, result: dict[str, Any], *key: Any) -> None:
        """Keep what a run gave."""
        self._results[json.dumps(key)] = result
        self._commits[json.dumps(key)] = code_commit()
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a") as file:
            file.write(json.dumps({"key": key, "commit": code_commit(), "result": result}) + "\n")
