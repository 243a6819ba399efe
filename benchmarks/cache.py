"""Finished runs in a file, so that an interrupted benchmark goes on where it stopped."""

import json
from pathlib import Path
from typing import Any


class Cache:
    """Keep what runs gave, a line of JSON each; a key is all that a run depends on.

    Args:
        file: made when the first run is kept.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._results: dict[str, dict[str, Any]] = {}
        if file.exists():
            for line in map(json.loads, file.read_text().splitlines()):
                self._results[json.dumps(line["key"])] = line["result"]

    def get(self, *key: Any) -> dict[str, Any] | None:
        """Return what a run gave, None where it was not made."""
        return self._results.get(json.dumps(key))

    def put(self, result: dict[str, Any], *key: Any) -> None:
        """Keep what a run gave."""
        self._results[json.dumps(key)] = result
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a") as file:
            file.write(json.dumps({"key": key, "result": result}) + "\n")
