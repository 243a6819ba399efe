"""Loggers of a run: lines of JSON, several loggers at once, and what users may give as `logger=`."""

import json
import logging
import math
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from trainkit.core import files
from trainkit.core.errors import ConfigError
from trainkit.core.protocols import EpisodeLogger, HistogramLogger, Logger, PurgingLogger, TextLogger, VideoLogger
from trainkit.core.signatures import checked
from trainkit.core.stats import scalars
from trainkit.loggers.runs import EVENTS, claim_folder
from trainkit.loggers.tensorboard import EventWriter, TensorboardLogger

_log = logging.getLogger(__name__)


@checked
class JsonlLogger:
    """A logger that writes one line of JSON per report to `folder/numbers.jsonl`; nan and infinity become null.

    Episodes that are logged one by one are lines of `folder/episodes.jsonl`. With `resume` it continues in `folder`
    itself, unless another process logs to it. A folder that is deleted in the middle of a run is created again.
    """

    def __init__(self, folder: str | Path, *, resume: bool = False) -> None:
        self._claim = claim_folder(folder, resume=resume)
        self.is_closed = False
        self.folder: str | None = str(self._claim.folder)
        self._numbers = LineFile(self._claim.folder / "numbers.jsonl")
        self._numbers.open()
        self._episodes = LineFile(self._claim.folder / "episodes.jsonl")

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Write one line and flush it."""
        self._numbers.write([{"step": step, **_with_nulls({tag: float(x) for tag, x in numbers.items()})}])

    def write_episodes(self, step: int, rows: Sequence[Mapping[str, float]]) -> None:
        """Write a line per episode."""
        self._episodes.write([{"step": step, **row} for row in map(_with_nulls, rows)])

    def write_texts(self, step: int, texts: Mapping[str, str]) -> None:
        """Write the texts as a line of their own."""
        self._numbers.write([{"texts": dict(texts), "at_step": step}])

    def describe(self, settings: Mapping[str, Any]) -> None:
        """Write the settings as a line of their own."""
        self._numbers.write([{"settings": dict(settings)}])

    def purge(self, step: int) -> None:
        """Remove what was written after this step, and an incomplete line."""
        self._numbers.purge(step)
        self._episodes.purge(step)

    def close(self) -> None:
        """Close the files, and release the folder for other processes."""
        self.is_closed = True
        self._numbers.close()
        self._episodes.close()
        self._claim.release()


class LineFile:
    """A file of lines of JSON, opened with its first line; one that is deleted starts again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIO | None = None

    def open(self) -> TextIO:
        """Open the file at its end."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("a", encoding="utf-8")
        weakref.finalize(self, self._file.close)
        return self._file

    def write(self, contents: Sequence[Mapping[str, Any]]) -> None:
        """Write a line for each, and flush them."""
        file = self._file
        if file is not None and not self._path.exists():
            _log.warning("%s was deleted: the log starts again there", self._path)
            file.close()
            file = None
        file = file or self.open()
        file.writelines(json.dumps(content, default=str) + "\n" for content in contents)
        file.flush()

    def purge(self, step: int) -> None:
        """Remove the lines after this step, and an incomplete one."""
        if self._path.exists():
            kept = [line for line in self._path.read_bytes().splitlines(keepends=True) if _is_of(line, step)]
            self.close()
            files.write_whole(self._path, lambda file: file.writelines(kept))
            self.open()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def _with_nulls(numbers: Mapping[str, float]) -> dict[str, float | None]:
    """Return numbers with None in place of nan and infinity, which JSON does not have."""
    return {name: number if math.isfinite(number) else None for name, number in numbers.items()}


def _is_of(line: bytes, step: int) -> bool:
    """Return whether a line is complete and not later than this step."""
    try:
        content = json.loads(line)
        return bool(content.get("step", content.get("at_step", 0)) <= step)
    except ValueError:
        return False


class Loggers:
    """Several loggers at once; one that cannot write is warned about once, and does not end the run."""

    def __init__(self, loggers: Sequence[Logger]) -> None:
        self._loggers = list(loggers)
        self.former_folders: list[str | None] = []  # of the checkpoint that the run resumed from
        self._is_failing = [False] * len(self._loggers)

    @property
    def folder(self) -> str | None:
        """The first folder any of them writes to."""
        return next((logger.folder for logger in self._loggers if logger.folder is not None), None)

    @property
    def folders(self) -> list[str | None]:
        """The folders of all loggers."""
        return [logger.folder for logger in self._loggers]

    def purge(self, step: int) -> None:
        """Remove what was written after this step from each logger that can."""
        self._write("purge", step, only=PurgingLogger)

    def write(self, step: int, stats: object) -> None:
        """Write the numbers of a statistics record to each."""
        if self._loggers:
            self._write("write", step, scalars(stats))

    def write_histograms(self, step: int, values: Mapping[str, NDArray[Any]]) -> None:
        """Write to each logger that shows histograms."""
        if values:
            self._write("write_histograms", step, values, only=HistogramLogger)

    def write_episodes(self, step: int, rows: Sequence[Mapping[str, float]]) -> None:
        """Write to each logger that has a table of episodes."""
        if rows:
            self._write("write_episodes", step, rows, only=EpisodeLogger)

    def write_texts(self, step: int, texts: Mapping[str, str]) -> None:
        """Write to each logger that shows texts."""
        if texts:
            self._write("write_texts", step, texts, only=TextLogger)

    def write_video(self, step: int, tag: str, frames: NDArray[np.uint8], fps: float) -> None:
        """Write to each logger that shows videos."""
        self._write("write_video", step, tag, frames, fps, only=VideoLogger)

    def describe(self, settings: Callable[[], Mapping[str, Any]]) -> None:
        """Write the settings to each, if there is any."""
        if self._loggers:
            self._write("describe", settings())

    def close(self) -> None:
        """Close each."""
        self._each("close")

    def _write(self, method: str, *arguments: Any, only: type = object) -> None:
        for logger in self._loggers:
            _require_open(logger)
        self._each(method, *arguments, only=only)

    def _each(self, method: str, *arguments: Any, only: type = object) -> None:
        for number, logger in enumerate(self._loggers):
            if not isinstance(logger, only):
                continue
            try:
                getattr(logger, method)(*arguments)
            except OSError as error:
                if not self._is_failing[number]:
                    _log.warning("%s cannot %s, the run continues without: %s", type(logger).__name__, method, error)
                self._is_failing[number] = True
            else:
                self._is_failing[number] = False


def as_logger(logger: object, former: Sequence[str | None] = ()) -> Loggers:
    """Return the loggers of `logger=`: those of `run_loggers` for a folder, none for None, all items of a list.

    A resumed run continues in its `former` folders where they are the same but for a suffix.
    """
    return Loggers(_listed(logger, [Path(folder) for folder in former if folder is not None]))


def run_loggers(folder: str | Path, *, resume: bool = False) -> tuple[JsonlLogger, TensorboardLogger]:
    """Return the loggers of a run's folder: lines that the commands read in it, and TensorBoard's files below it."""
    lines = JsonlLogger(folder, resume=resume)
    try:
        return lines, TensorboardLogger(Path(str(lines.folder)) / EVENTS, resume=resume)
    except BaseException:
        lines.close()
        raise


def _listed(logger: object, former: Sequence[Path]) -> list[Logger]:
    if logger is None:
        return []
    if isinstance(logger, (str, Path)):
        base = Path(logger)
        pattern = re.compile(rf"{re.escape(base.name)}(_\d+)?")
        siblings = [path for path in former if path.resolve().parent == base.resolve().parent]
        own = [path for path in siblings if pattern.fullmatch(path.name) and path.is_dir()]
        return [*run_loggers(own[0] if own else base, resume=bool(own))]
    if isinstance(logger, Sequence):
        return [one for item in logger for one in _listed(item, former)]
    has_methods = all(callable(getattr(logger, name, None)) for name in ("write", "describe", "close"))
    if has_methods and hasattr(logger, "folder"):
        _require_open(logger)
        return [logger]  # type: ignore[list-item]  # it has the protocol's members
    if any(kind.__module__.startswith("torch.utils.tensorboard") for kind in type(logger).__mro__):
        return [EventWriter(logger)]
    if hasattr(logger, "add_scalar"):  # tensorboardX's, which Tianshou's loggers are given, too
        folder = getattr(logger, "log_dir", getattr(logger, "logdir", "runs/name"))
        kind = type(logger).__name__
        raise ConfigError(f"logger is a {kind}: give the folder it writes to instead, logger={str(folder)!r}")
    raise ConfigError(
        f"logger must be a folder, a logger with folder, write, describe and close, or a list of them, got {logger!r}"
    )


def _require_open(logger: Any) -> None:
    """Raise a `ConfigError` if a logger was closed."""
    if getattr(logger, "is_closed", False):
        kind = type(logger).__name__
        raise ConfigError(
            f"logger is the {kind} of {logger.folder}, which was closed with its run: make one for each run, or "
            f"{kind}(folder, resume=True) to continue"
        )
