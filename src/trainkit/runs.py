"""A run's folder: how the run was made, what it told, and where others like it are."""

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit.errors import ConfigError, nearest
from trainkit.files import write_whole

CONFIG, NUMBERS, CHECKPOINT, EVENTS = "config.json", "numbers.jsonl", "checkpoint", "events"


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """A folder that a `JsonlLogger` wrote to, and the shell's `trainkit train` its `config.json`.

    Attributes:
        config: preset, env, seed, settings and the command to repeat it; empty where the shell did not make it.
    """

    path: Path
    config: Mapping[str, Any]

    @classmethod
    def read(cls, path: str | Path) -> "RunFolder":
        """Read a run's folder; its numbers are read when they are asked for."""
        folder = Path(path)
        if not (folder / NUMBERS).is_file():
            raise ConfigError(f"{folder} is no run: it has no {NUMBERS}, as JsonlLogger and `trainkit train` write it")
        config = folder / CONFIG
        try:
            return cls(path=folder, config=json.loads(config.read_text()) if config.is_file() else {})
        except ValueError as error:
            raise ConfigError(f"{config} is no JSON ({error}): write it anew, or remove it") from error

    @cached_property
    def rows(self) -> list[dict[str, float]]:
        """What it told, in order: a row per report, with its "step"; a number that was nan or infinite is left out.

        A run that was resumed tells some steps again: the later telling counts.
        """
        rows: list[dict[str, float]] = []
        for number, line in enumerate(lines := (self.path / NUMBERS).read_text().splitlines()):
            try:
                row = json.loads(line)
            except ValueError as error:
                if number + 1 == len(lines):
                    break  # killed while it was writing
                raise ConfigError(f"{self.path / NUMBERS}, line {number + 1} is no JSON: remove it") from error
            if "step" not in row:
                continue  # the settings
            while rows and rows[-1]["step"] >= row["step"]:
                rows.pop()
            rows.append({tag: x for tag, x in row.items() if x is not None})
        return rows

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """The settings that the trainer told its loggers, after a resume anew: the last; empty where it told none."""
        told: Mapping[str, Any] = {}
        with (self.path / NUMBERS).open() as file:
            for line in file:
                if line.startswith('{"settings"'):
                    with contextlib.suppress(ValueError):  # killed while it was writing
                        told = json.loads(line)["settings"]
        return told

    @property
    def task(self) -> str:
        """What it was trained on: its environment, else its dataset as the shell was given it, else "offline"."""
        told = (self.config.get("env"), self.settings.get("env"), self.config.get("data"))
        nameless = "offline" if "update_per_epoch" in self.settings else "unknown"
        return str(next(filter(None, told), nameless))

    @property
    def seed(self) -> int | None:
        """The root of all its randomness."""
        seed = self.config.get("seed", self.settings.get("seed"))
        return None if seed is None else int(seed)

    def tells(self, tag: str) -> bool:
        """Whether a tag was ever told."""
        return any(tag in row for row in self.rows)

    def series(self, tag: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return (steps [T], numbers [T]) of a tag, where it was told.

        Raises:
            ConfigError: it never was.
        """
        points = [(row["step"], row[tag]) for row in self.rows if tag in row]
        if not points:
            known = {known for row in self.rows for known in row}
            raise ConfigError(f"{self.path} never told {tag!r}{nearest(tag, known)}")
        steps, numbers = np.array(points, np.float64).T
        return steps, numbers


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    """Write how a run is made into its folder, whole or not at all."""
    text = json.dumps(config, indent=2).encode() + b"\n"
    write_whole(folder / CONFIG, lambda file: file.write(text))


def find_runs(paths: Sequence[str | Path]) -> list[RunFolder]:
    """Read the runs that folders are, or have in them at any depth, in the order of their names, each once.

    Raises:
        ConfigError: there is none in one of them.
    """
    found: dict[Path, RunFolder] = {}
    for path in map(Path, paths):
        own = sorted(file.parent for file in path.rglob(NUMBERS))
        if not own:
            what = "holds no run" if path.is_dir() else "is no folder"
            raise ConfigError(f"{path} {what}: name a folder that `trainkit train` wrote, or one above it")
        for folder in own:
            found.setdefault(folder.resolve(), RunFolder.read(folder))
    return list(found.values())


def grouped(runs: Sequence[RunFolder]) -> dict[str, list[RunFolder]]:
    """Return {label: runs that differ by nothing but their seed and task}: the preset, and what sets it apart.

    Runs that the shell did not make are told apart by their folders: `mine/seed1` and `mine/seed2` are of `mine`.
    """
    made = [(run, _maker(run), dict(run.config.get("settings", {}))) for run in runs]
    apart = {}  # {maker: settings that are not the same in all of its runs}
    for maker in dict.fromkeys(maker for _, maker, _ in made):
        own = [settings for _, other, settings in made if other == maker]
        names = sorted({name for settings in own for name in settings})
        apart[maker] = [name for name in names if len({settings.get(name) for settings in own}) > 1]
    groups: dict[str, list[RunFolder]] = {}
    for run, maker, settings in made:
        told = [f"{name}={settings.get(name, 'default')}" for name in apart[maker]]
        groups.setdefault(" ".join([maker, *told]), []).append(run)
    return groups


def _maker(run: RunFolder) -> str:
    """Name what made a run: its preset, else its folder, or the one above where that is a seed's."""
    path = run.path.resolve()
    return str(
        run.config.get("preset") or (path.parent.name if re.fullmatch(r"seed_?\d+(_\d+)?", path.name) else path.name)
    )
