"""Run folders: claiming one for a log, finding runs, and reading their settings and statistics.

A folder may be damaged or of unknown origin: its files are read with the limits of `reading`, and everything in them is
checked before it is used. A problem is one `ConfigError` that names the file.
"""

import json
import logging
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit.core import files
from trainkit.core.errors import Checks, ConfigError
from trainkit.core.files import write_whole
from trainkit.core.folders import FolderClaim
from trainkit.core.names import did_you_mean

_log = logging.getLogger(__name__)

CLAIM = ".trainkit-run"  # marks a folder that a run writes to
CONFIG, NUMBERS, EVENTS = "config.json", "numbers.jsonl", "events"

_SCORE, _SCORE_IN_GAMES = "test/returns/mean", "test/policies/main/returns/mean"

_LARGEST_LOG = 2**30  # bytes of numbers.jsonl
_LARGEST_NUMBER = 1e150  # whose square is finite; beyond it a number counts as infinite
_LARGEST_STEP = 2**63 - 1
_OPTIONAL_TEXT = (str, type(None))
_FIELDS: dict[str, tuple[type, ...]] = {  # of config.json, each of which may be missing
    **dict.fromkeys(("preset", "env", "data", "command", "began"), _OPTIONAL_TEXT),
    **dict.fromkeys(("seed", "shuffle_rows"), (int, type(None))),
    "settings": (dict,),
    "complete": (dict,),
    "versions": (dict,),
}


def _free_folder(folder: str | Path) -> Path:
    """Claim `folder` for one run, or `folder_2`, `folder_3` ... if it already has one."""
    base = Path(folder)
    for number in range(1, 10_000):
        candidate = base if number == 1 else base.with_name(f"{base.name}_{number}")
        try:
            candidate.mkdir(parents=True, exist_ok=True)
            (candidate / CLAIM).open("x").close()
        except FileExistsError:
            if not candidate.is_dir():
                raise ConfigError(f"logger cannot write to {candidate}, which is a file: name a folder") from None
            continue
        except OSError as error:
            raise ConfigError(f"logger cannot write to {candidate}: {error}") from error
        if number > 1:
            _log.warning("%s already holds a run: this one writes to %s", base, candidate)
        return candidate
    raise ConfigError(f"no free folder like {base}: remove old runs or name another folder")


def _former_folder(folder: str | Path) -> Path:
    """Return a folder that this run wrote to before."""
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        (path / CLAIM).touch()
    except OSError as error:
        raise ConfigError(f"logger cannot write to {path}: {error}") from error
    return path


def claim_folder(folder: str | Path, *, resume: bool) -> FolderClaim:
    """Claim a folder for a log: the same one for a resumed run, else one without a run.

    Raises:
        ConfigError: it cannot be written, or another process logs to it.
    """
    files.check_local(folder)
    claim = FolderClaim("logger", _former_folder(folder) if resume else _free_folder(folder), "log")
    claim.take(continues=resume)
    return claim


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """A folder with the files of a `JsonlLogger` and, if `trainkit train` made it, a `config.json`.

    Attributes:
        config: preset, env, seed, settings and the command to repeat it; empty where the shell did not make it.
    """

    path: Path
    config: Mapping[str, Any]

    @classmethod
    def read(cls, path: str | Path) -> "RunFolder":
        """Read a run's folder; its numbers are read at first use."""
        folder = Path(path)
        if not (folder / NUMBERS).is_file():
            raise ConfigError(
                f"{folder} is no run: it has no {NUMBERS}, which `trainkit train` writes, and in Python a run with "
                f"logger={str(folder)!r}"
            )
        file = folder / CONFIG
        config = files.read_json(file, error=ConfigError) if file.exists() or file.is_symlink() else {}
        check_config(file, config)
        return cls(path=folder, config=config)

    @cached_property
    def rows(self) -> list[dict[str, float]]:
        """The logged reports in order, one row each with its "step"; NaN and infinite values are left out.

        A run that was resumed logs some steps again: the later report counts. An evaluation in the background is
        reported on its own, after other steps: it belongs to the row of its step.

        Raises:
            ConfigError: a line, except the last, is not what `JsonlLogger` writes.
        """
        trained: dict[float, dict[str, float]] = {}
        evaluated: dict[float, dict[str, float]] = {}
        for report in self._lines:
            if "step" not in report:
                continue  # the settings
            step, row = report["step"], {tag: x for tag, x in report.items() if _is_finite(x)}
            if _is_evaluation(report):
                evaluated[step] = row
                continue
            for former in (trained, evaluated):
                while former and next(reversed(former)) > step:
                    former.popitem()
            trained[step] = row
        steps = sorted({*trained, *evaluated})
        return [evaluated.get(step, {}) | trained.get(step, {}) for step in steps]

    @cached_property
    def _lines(self) -> list[dict[str, Any]]:
        """The checked lines of numbers.jsonl, without an incomplete last line."""
        path = self.path / NUMBERS
        lines = files.read_bytes(path, max_bytes=_LARGEST_LOG, error=ConfigError).splitlines()
        read = []
        for number, line in enumerate(lines, 1):
            try:
                read.append(_checked_line(line, f"{path}, line {number}"))
            except ConfigError:
                if number < len(lines):
                    raise  # else killed while it was writing
        return read

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """The last settings that the trainer logged, empty if there are none."""
        logged = [line["settings"] for line in self._lines if "settings" in line]
        return logged[-1] if logged else {}

    @property
    def task(self) -> str:
        """The task of the run: its environment, else its dataset as named in the shell, else "offline"."""
        names = (self.config.get("env"), self.settings.get("env"), self.config.get("data"))
        nameless = "offline" if "update_per_epoch" in self.settings else "unknown"
        return str(next(filter(None, names), nameless))

    @property
    def seed(self) -> int | None:
        """The root seed of the run."""
        seed = self.config.get("seed", self.settings.get("seed"))
        return seed if isinstance(seed, int) and not isinstance(seed, bool) else None

    @property
    def score_tag(self) -> str:
        """The tag of the run's score: see `score_tag`."""
        return score_tag({tag for row in self.rows for tag in row})

    def has_logged(self, tag: str) -> bool:
        """Return whether a tag was ever logged."""
        return any(tag in row for row in self.rows)

    def series(self, tag: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return (steps [T], values [T]) of the reports that logged a tag.

        Raises:
            ConfigError: it never was.
        """
        points = [(row["step"], row[tag]) for row in self.rows if tag in row]
        if not points:
            known = {known for row in self.rows for known in row}
            raise ConfigError(f"{self.path} never logged {tag!r}{did_you_mean(tag, known)}")
        steps, numbers = np.array(points, np.float64).T
        return steps, numbers


def score_tag(tags: Container[str]) -> str:
    """Return the tag of a run's score among those that it logged: the mean return of its evaluations.

    Of self-play it is that of the policy that learns, "main": the mean over both sides of a game says nothing.
    """
    return _SCORE_IN_GAMES if _SCORE_IN_GAMES in tags else _SCORE


def check_config(path: Path, config: object) -> None:
    """Raise if a config.json is not an object, or a field has an unexpected type."""
    if not isinstance(config, dict):
        raise ConfigError(
            f"{path} must hold a JSON object, got a {type(config).__name__}: write it again, or remove it"
        )
    with Checks(str(path)) as checks:
        for name, types in _FIELDS.items():
            value = config.get(name)
            fits = name not in config or (isinstance(value, types) and not isinstance(value, bool))
            expected = " or ".join("null" if kind is type(None) else kind.__name__ for kind in types)
            checks.require(fits, f".{name} must be {expected}, got {value!r:.80}: write it again, or remove it")


def _checked_line(line: bytes, where: str) -> dict[str, Any]:
    """Read a line of numbers.jsonl: settings, or a step with its numbers."""
    value = files.parse_json(line, where, error=ConfigError)
    if not isinstance(value, dict):
        raise ConfigError(f"{where} must be a JSON object, got a {type(value).__name__}: remove it")
    if "step" not in value:
        if not isinstance(value.get("settings", {}), dict):
            raise ConfigError(f"{where} has settings that are no JSON object, got {value['settings']!r:.80}: remove it")
        return value
    step = value["step"]
    is_whole = isinstance(step, (int, float)) and not isinstance(step, bool) and step == step // 1
    if not is_whole or not 0 <= step <= _LARGEST_STEP:
        raise ConfigError(f"{where} has the step {step!r:.80}, which must be an integer >= 0: remove it")
    for tag, number in value.items():
        if number is not None and (not isinstance(number, (int, float)) or isinstance(number, bool)):
            raise ConfigError(f"{where} has {tag!r:.80}: {number!r:.80}, which must be a number or null: remove it")
    return value | {"step": int(step)}


def _is_evaluation(report: Mapping[str, Any]) -> bool:
    """Return whether a report has nothing but an evaluation."""
    return all(tag == "step" or tag.startswith(("test/", "custom/test/")) for tag in report)


def _is_finite(number: float | None) -> bool:
    """Return whether a value is a finite number."""
    return number is not None and abs(number) <= _LARGEST_NUMBER


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    """Write the config.json of a run, completely or not at all."""
    text = json.dumps(config, indent=2).encode() + b"\n"
    write_whole(folder / CONFIG, lambda file: file.write(text))


def find_runs(paths: Sequence[str | Path]) -> list[RunFolder]:
    """Read all runs in folders, at any depth, in the order of their names, each once.

    Raises:
        ConfigError: there is none in one of them.
    """
    found: dict[Path, RunFolder] = {}
    for path in map(Path, paths):
        own = sorted(file.parent for file in path.rglob(NUMBERS))
        if not own:
            what = "holds no run" if path.is_dir() else "is no folder"
            raise ConfigError(
                f'{path} {what}: name a folder that `trainkit train`, or in Python logger="runs/name", wrote, or one '
                "above it"
            )
        for folder in own:
            found.setdefault(folder.resolve(), RunFolder.read(folder))
    return list(found.values())
