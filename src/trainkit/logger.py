"""Where numbers go: tensorboard event files, lines of JSON, or several places at once."""

import json
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from trainkit.errors import ConfigError
from trainkit.protocols import Logger

_log = logging.getLogger(__name__)


def free_folder(folder: str | Path) -> Path:
    """Claim `folder` for one run, or `folder_2`, `folder_3`, ... where it already holds one."""
    base = Path(folder)
    for number in range(1, 10_000):
        candidate = base if number == 1 else base.with_name(f"{base.name}_{number}")
        candidate.mkdir(parents=True, exist_ok=True)
        try:
            (candidate / ".trainkit-run").touch(exist_ok=False)
        except FileExistsError:
            continue
        if number > 1:
            _log.warning("%s already holds a run: this one writes to %s", base, candidate)
        return candidate
    raise ConfigError(f"no free folder beside {base}: remove old runs or name another folder")


class TensorboardLogger:
    """Write event files for tensorboard into `folder`, or `folder_2`, ... where another run is in it."""

    def __init__(self, folder: str | Path) -> None:
        # imported here: half a second that a run without it need not pay
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        self.folder: str | None = str(free_folder(folder))
        self._writer = EventFileWriter(self.folder)

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Write numbers as one event and flush it, so that a dashboard sees all of them at once."""
        values = [self._summary.Value(tag=tag, simple_value=number) for tag, number in numbers.items()]
        self._add(self._summary(value=values), step)
        self._writer.flush()

    def describe(self, settings: Mapping[str, Any]) -> None:
        """Write the settings as text, and those that are numbers or words as hyper-parameters."""
        from tensorboard.plugins.hparams import summary_v2 as hparams
        from tensorboard.plugins.text import metadata
        from tensorboard.util import tensor_util

        rows = "\n".join(f"| {name} | {value} |" for name, value in settings.items())
        text = self._summary.Value(
            tag="run/settings",
            metadata=metadata.create_summary_metadata(display_name="", description=""),
            tensor=tensor_util.make_tensor_proto([f"| setting | value |\n|---|---|\n{rows}".encode()], shape=(1,)),
        )
        self._add(self._summary(value=[text]), 0)
        plain = {name: value for name, value in settings.items() if isinstance(value, (bool, int, float, str))}
        self._add(self._summary.FromString(hparams.hparams_pb(plain).SerializeToString()), 0)
        self._writer.flush()

    def close(self) -> None:
        """Flush and close the file."""
        self._writer.close()

    def _add(self, summary: Any, step: int) -> None:
        import time

        self._writer.add_event(self._event(wall_time=time.time(), step=step, summary=summary))


class JsonlLogger:
    """Write one line of JSON per report into `folder/numbers.jsonl`; nan and infinity become null."""

    def __init__(self, folder: str | Path) -> None:
        self.folder: str | None = str(free_folder(folder))
        self._file: TextIO = (Path(self.folder) / "numbers.jsonl").open("a", encoding="utf-8")

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Write one line and flush it."""
        self._line({"step": step, **{tag: x if math.isfinite(x) else None for tag, x in numbers.items()}})

    def describe(self, settings: Mapping[str, Any]) -> None:
        """Write the settings as a line of their own."""
        self._line({"settings": dict(settings)})

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _line(self, content: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(content, default=str) + "\n")
        self._file.flush()


class Loggers:
    """Write to several loggers at once."""

    def __init__(self, loggers: Sequence[Logger]) -> None:
        self._loggers = list(loggers)

    @property
    def folder(self) -> str | None:
        """The first folder any of them writes to."""
        return next((logger.folder for logger in self._loggers if logger.folder is not None), None)

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Write to each."""
        for logger in self._loggers:
            logger.write(step, numbers)

    def describe(self, settings: Mapping[str, Any]) -> None:
        """Describe to each."""
        for logger in self._loggers:
            logger.describe(settings)

    def close(self) -> None:
        """Close each."""
        for logger in self._loggers:
            logger.close()


def as_logger(logger: object) -> Logger:
    """Turn what a user gives into a logger: a folder means tensorboard there, None nothing, a list all of it."""
    if logger is None:
        return Loggers([])
    if isinstance(logger, (str, Path)):
        return TensorboardLogger(logger)
    if isinstance(logger, Sequence):
        return Loggers([as_logger(one) for one in logger])
    if all(callable(getattr(logger, name, None)) for name in ("write", "describe", "close")):
        return logger  # type: ignore[return-value]  # it has the protocol's methods
    raise ConfigError(
        f"logger must be a folder, a logger with write, describe and close, or a list of them, got {logger!r}"
    )
