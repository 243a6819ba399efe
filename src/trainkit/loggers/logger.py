"""Where numbers go: tensorboard event files, lines of JSON, or several places at once."""

import io
import json
import logging
import math
import os
import re
import socket
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from trainkit.core import files
from trainkit.core.errors import ConfigError
from trainkit.core.folders import FolderClaim
from trainkit.core.protocols import HistogramLogger, Logger, PurgingLogger, VideoLogger
from trainkit.core.signatures import checked
from trainkit.core.stats import scalars
from trainkit.loggers.dashboards import charts_of

_log = logging.getLogger(__name__)
CLAIM = ".trainkit-run"  # marks a folder that a run writes to
_BINS = 30  # of a histogram


def free_folder(folder: str | Path) -> Path:
    """Claim `folder` for one run, or `folder_2`, `folder_3`, ... where it already holds one."""
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
    raise ConfigError(f"no free folder beside {base}: remove old runs or name another folder")


def taken_up(folder: str | Path) -> Path:
    """Take up a folder that this very run wrote to before."""
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        (path / CLAIM).touch()
    except OSError as error:
        raise ConfigError(f"logger cannot write to {path}: {error}") from error
    return path


def _claimed(folder: str | Path, *, resume: bool) -> FolderClaim:
    """Take a folder for a log: of a run that is resumed the same one, and else one that holds no run.

    Raises:
        ConfigError: it cannot be written, or another process logs to it.
    """
    claim = FolderClaim("logger", taken_up(folder) if resume else free_folder(folder), "log")
    claim.take(continues=resume)
    return claim


@checked
class TensorboardLogger:
    """Write an event file for tensorboard into `folder`, or `folder_2`, ... where another run is in it.

    With `resume` it continues in `folder` itself, unless another process logs to it. A folder that is deleted meanwhile
    is made again.
    """

    def __init__(self, folder: str | Path, *, resume: bool = False) -> None:
        # imported here: half a second that a run without it need not pay
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary, self._histogram = event_pb2.Event, summary_pb2.Summary, summary_pb2.HistogramProto
        self._tags: set[str] = set()  # written so far
        self._n_charts = 0  # in the layout
        self._began, self._writer = SessionLog(status=SessionLog.START), RecordWriter
        self._claim = _claimed(folder, resume=resume)
        self.folder: str | None = str(self._claim.folder)
        self._open()

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Write numbers as one event and flush it, so that a dashboard sees all of them at once."""
        values = [self._summary.Value(tag=tag, simple_value=number) for tag, number in numbers.items()]
        self._add(step=step, summary=self._summary(value=values))
        if not self._tags.issuperset(numbers):
            self._tags.update(numbers)
            self._sort_charts()

    def purge(self, step: int) -> None:
        """Have dashboards forget what was written after this step; it stays in the files."""
        self._add(step=step + 1, session_log=self._began)

    def write_histograms(self, step: int, values: Mapping[str, NDArray[Any]]) -> None:
        """Write how often each size came, in 30 equal bins from the smallest to the largest."""
        told = []
        for tag, numbers in values.items():
            counts, edges = np.histogram(numbers, bins=_BINS)
            histogram = self._histogram(
                min=edges[0],
                max=edges[-1],
                num=len(numbers),
                sum=numbers.sum(),
                sum_squares=numbers @ numbers,
                bucket_limit=edges[1:].tolist(),
                bucket=counts.tolist(),
            )
            told.append(self._summary.Value(tag=tag, histo=histogram))
        self._add(step=step, summary=self._summary(value=told))

    def write_video(self, step: int, tag: str, frames: NDArray[np.uint8], fps: float) -> None:
        """Write frames [T, H, W, 3] as an animated GIF, which tensorboard shows among images.

        A GIF has 256 colors per frame and frame times in hundredths of a second, at least two.
        """
        from PIL import Image

        images = [Image.fromarray(frame) for frame in frames]
        encoded = io.BytesIO()
        duration = max(20, 10 * round(100 / fps))
        images[0].save(encoded, "GIF", save_all=True, append_images=images[1:], duration=duration, loop=0)
        _, height, width, _ = frames.shape
        image = self._summary.Image(height=height, width=width, colorspace=3, encoded_image_string=encoded.getvalue())
        self._add(step=step, summary=self._summary(value=[self._summary.Value(tag=tag, image=image)]))

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
        self._add(step=0, summary=self._summary(value=[text]))
        plain = {name: value for name, value in settings.items() if isinstance(value, (bool, int, float, str))}
        self._add(step=0, summary=self._summary.FromString(hparams.hparams_pb(plain).SerializeToString()))

    def close(self) -> None:
        """Close the file, and let other processes have the folder."""
        self._file.close()
        self._claim.release()

    def _sort_charts(self) -> None:
        """Write which charts there are, in order, when there are more of them; a dashboard takes the last word."""
        charts = charts_of(self._tags)
        n_charts = sum(map(len, charts.values()))
        if n_charts == self._n_charts:
            return
        from tensorboard.plugins.custom_scalar import layout_pb2, metadata
        from tensorboard.util import tensor_util

        self._n_charts = n_charts
        layout = layout_pb2.Layout()
        for group, patterns in charts.items():
            category = layout.category.add(title=group)
            for title, pattern in patterns.items():
                category.chart.add(title=title).multiline.tag.append(f"({pattern})$")
        value = self._summary.Value(
            tag=metadata.CONFIG_SUMMARY_TAG,
            metadata=metadata.create_summary_metadata(),
            tensor=tensor_util.make_tensor_proto(layout.SerializeToString()),
        )
        self._add(step=0, summary=self._summary(value=[value]))

    def _open(self) -> None:
        """Begin a file; readers take them in the order of their names."""
        folder = Path(str(self.folder))
        folder.mkdir(parents=True, exist_ok=True)
        stem = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
        self._path = folder / f"{stem}.{len(list(folder.glob(f'{stem}*')))}"
        self._file = self._path.open("xb")
        weakref.finalize(self, self._file.close)
        self._records = self._writer(self._file)
        self._put(file_version="brain.Event:2")

    def _add(self, **content: Any) -> None:
        if not self._path.exists():
            _log.warning("%s was deleted: the log goes on in another file", self._path)
            self._file.close()
            self._open()
        self._put(**content)

    def _put(self, **content: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), **content).SerializeToString())
        self._file.flush()


@checked
class JsonlLogger:
    """Write one line of JSON per report into `folder/numbers.jsonl`; nan and infinity become null.

    With `resume` it continues in `folder` itself, unless another process logs to it. A folder that is deleted meanwhile
    is made again.
    """

    def __init__(self, folder: str | Path, *, resume: bool = False) -> None:
        self._claim = _claimed(folder, resume=resume)
        self.folder: str | None = str(self._claim.folder)
        self._path = Path(self.folder) / "numbers.jsonl"
        self._open()

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Write one line and flush it."""
        self._line({"step": step, **{tag: float(x) if math.isfinite(x) else None for tag, x in numbers.items()}})

    def describe(self, settings: Mapping[str, Any]) -> None:
        """Write the settings as a line of their own."""
        self._line({"settings": dict(settings)})

    def purge(self, step: int) -> None:
        """Take out what was written after this step, and a line that was not finished."""
        kept = [line for line in self._path.read_bytes().splitlines(keepends=True) if _is_of(line, step)]
        self._file.close()
        files.write_whole(self._path, lambda file: file.writelines(kept))
        self._open()

    def close(self) -> None:
        """Close the file, and let other processes have the folder."""
        self._file.close()
        self._claim.release()

    def _open(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = self._path.open("a", encoding="utf-8")
        weakref.finalize(self, self._file.close)

    def _line(self, content: Mapping[str, Any]) -> None:
        if not self._path.exists():
            _log.warning("%s was deleted: the log begins anew there", self._path)
            self._file.close()
            self._open()
        self._file.write(json.dumps(content, default=str) + "\n")
        self._file.flush()


def _is_of(line: bytes, step: int) -> bool:
    """Whether a line is whole, and of nothing after this step."""
    try:
        return bool(json.loads(line).get("step", 0) <= step)
    except ValueError:
        return False


class Loggers:
    """Write to several loggers at once; one that cannot write is told about once, and does not end the run."""

    def __init__(self, loggers: Sequence[Logger]) -> None:
        self._loggers = list(loggers)
        self._is_failing = [False] * len(self._loggers)

    @property
    def folder(self) -> str | None:
        """The first folder any of them writes to."""
        return next((logger.folder for logger in self._loggers if logger.folder is not None), None)

    @property
    def folders(self) -> list[str | None]:
        """Where each of them writes to."""
        return [logger.folder for logger in self._loggers]

    def purge(self, step: int) -> None:
        """Have each that can forget what was written after this step."""
        self._each("purge", step, only=PurgingLogger)

    def write(self, step: int, stats: object) -> None:
        """Write the numbers of a statistics record to each."""
        if self._loggers:
            self._each("write", step, scalars(stats))

    def write_histograms(self, step: int, values: Mapping[str, NDArray[Any]]) -> None:
        """Write to each that shows histograms."""
        if values:
            self._each("write_histograms", step, values, only=HistogramLogger)

    def write_video(self, step: int, tag: str, frames: NDArray[np.uint8], fps: float) -> None:
        """Write to each that shows videos."""
        self._each("write_video", step, tag, frames, fps, only=VideoLogger)

    def describe(self, settings: Mapping[str, Any]) -> None:
        """Describe to each."""
        self._each("describe", settings)

    def close(self) -> None:
        """Close each."""
        self._each("close")

    def _each(self, method: str, *arguments: Any, only: type = object) -> None:
        for number, logger in enumerate(self._loggers):
            if not isinstance(logger, only):
                continue
            try:
                getattr(logger, method)(*arguments)
            except OSError as error:
                if not self._is_failing[number]:
                    _log.warning("%s cannot %s, the run goes on without: %s", type(logger).__name__, method, error)
                self._is_failing[number] = True
            else:
                self._is_failing[number] = False


def as_logger(logger: object, former: Sequence[str | None] = ()) -> Loggers:
    """Turn what a user gives into a logger: a folder means tensorboard there, None nothing, a list all of it.

    Of a run that goes on, `former` folders are taken up again where they are the same, suffixes aside.
    """
    return Loggers(_listed(logger, [Path(folder) for folder in former if folder is not None]))


def _listed(logger: object, former: Sequence[Path]) -> list[Logger]:
    if logger is None:
        return []
    if isinstance(logger, (str, Path)):
        base = Path(logger)
        pattern = re.compile(rf"{re.escape(base.name)}(_\d+)?")
        beside = [path for path in former if path.resolve().parent == base.resolve().parent]
        own = [path for path in beside if pattern.fullmatch(path.name)]
        return [TensorboardLogger(own[0], resume=True) if own and own[0].is_dir() else TensorboardLogger(base)]
    if isinstance(logger, Sequence):
        return [one for item in logger for one in _listed(item, former)]
    has_methods = all(callable(getattr(logger, name, None)) for name in ("write", "describe", "close"))
    if has_methods and hasattr(logger, "folder"):
        return [logger]  # type: ignore[list-item]  # it has the protocol's members
    if hasattr(logger, "add_scalar"):  # torch's and tensorboardX's, which Tianshou's loggers are given
        folder = getattr(logger, "log_dir", getattr(logger, "logdir", "runs/name"))
        kind = type(logger).__name__
        raise ConfigError(f"logger is a {kind}: give the folder it writes to instead, logger={str(folder)!r}")
    raise ConfigError(
        f"logger must be a folder, a logger with folder, write, describe and close, or a list of them, got {logger!r}"
    )
