"""Tensorboard: event files by torch's `SummaryWriter`, and how the dashboard is sorted."""

import contextlib
import io
import logging
import re
import weakref
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit.core.signatures import checked
from trainkit.loggers.runs import claim_folder

_log = logging.getLogger(__name__)
_BINS = 30  # of a histogram

# {group: {title of a chart: its tags, whole, as a regular expression}}; docs/metrics.md says what each number means.
CHARTS: Mapping[str, Mapping[str, str]] = {
    "returns": {
        "mean return: test, train": "(test|train)/returns/mean",
        "test return: best, mean, worst": "test/returns/(max|mean|min)",
        "mean return of the last 100 training episodes": "train/recent_returns/mean",
        "steps of an episode: test, train": "(test|train)/lengths/mean",
    },
    "learning": {
        "loss": r"update/(\w+_)?loss",
        "expected return": "update/((q|value|return)_mean|q_max|q_min)",
        "predicted at the start of test episodes, and what followed": "test/(start_values|discounted_returns)/mean",
        "absolute TD error: mean, largest": "update/td_abs_(mean|max)",
        "entropy of the predicted distribution": "update/value_entropy",
        "norm of the gradient, before the clip": r"update/(\w+_)?grad_norm",
        "learning rate": r"update/(\w+_)?lr",
        "share of the target beyond v_min, v_max": "update/clipped_share",
        "rows beyond PPO's clip": "update/clip_share",
        "divergence from the policy that collected": "update/approx_kl",
    },
    "exploration": {
        "epsilon, or a temperature": "explore/(epsilon|temperature)|update/temperature",
        "entropy": "update/entropy",
    },
    "buffer": {
        "transitions": "buffer/size",
        "rows replayed per row collected": "update/replay_ratio",
        "largest priority": "buffer/largest_priority",
        "importance weights: mean, effective share, beta": "update/(weight_mean|effective_share)|buffer/beta",
    },
    "time": {
        "where it went, in shares": "time/(collect|update|evaluate|other)",
        "steps per second": "time/steps_per_second",
        "milliseconds per vector step": "train/(act|action|env|obs|render|store|other)_ms",
    },
    "system": {
        "memory of the process, megabytes": "system/memory_mb",
        "processor cores busy": "system/cpu_cores",
        "memory on the device, megabytes: now, at most": "system/device_memory(_peak)?_mb",
    },
    "custom": {"what you log": "custom/.+", "what processors log": "(test|train)/processors/.+/mean"},
}


def charts_of(tags: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the groups and charts that have data: {group: {title: pattern}}."""
    known = list(tags)
    shown = {
        group: {title: tag for title, tag in charts.items() if any(re.fullmatch(tag, one) for one in known)}
        for group, charts in CHARTS.items()
    }
    return {group: charts for group, charts in shown.items() if charts}


def as_gif(frames: NDArray[np.uint8], fps: float) -> io.BytesIO:
    """Return frames [T, H, W, 3] as an animated GIF.

    It has 256 colors per frame and frame times in hundredths of a second, at least two.
    """
    from PIL import Image

    first, *others = [Image.fromarray(frame) for frame in frames]
    gif = io.BytesIO()
    first.save(gif, "GIF", save_all=True, append_images=others, duration=max(20, 10 * round(100 / fps)), loop=0)
    gif.seek(0)
    return gif


class EventWriter:
    """Write statistics, histograms, videos and settings as events of a `SummaryWriter` of torch.

    Args:
        writer: belongs to the user, who closes it.
    """

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self.folder: str | None = str(writer.log_dir)
        self._tags: set[str] = set()  # written so far
        self._n_charts = 0  # in the layout

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Write numbers as one event and flush it, so that a dashboard sees all of them at once."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=tag, simple_value=number) for tag, number in numbers.items()]
        self._add_summary(step, Summary(value=values))
        if not self._tags.issuperset(numbers):
            self._tags.update(numbers)
            self._write_layout()

    def write_histograms(self, step: int, values: Mapping[str, NDArray[Any]]) -> None:
        """Write the counts of 30 equal bins from the smallest to the largest number."""
        with self._writing() as writer:
            for tag, numbers in values.items():
                writer.add_histogram(tag, numbers, step, bins=_BINS)

    def write_video(self, step: int, tag: str, frames: NDArray[np.uint8], fps: float) -> None:
        """Write frames [T, H, W, 3] as an animated GIF, which tensorboard shows among images."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        _, height, width, _ = frames.shape
        gif = as_gif(frames, fps).getvalue()
        image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=gif)
        self._add_summary(step, Summary(value=[Summary.Value(tag=tag, image=image)]))

    def write_texts(self, step: int, texts: Mapping[str, str]) -> None:
        """Write texts, in Markdown."""
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.text.metadata import create_summary_metadata
        from tensorboard.util.tensor_util import make_tensor_proto

        metadata = create_summary_metadata(display_name="", description="")
        tensors = {tag: make_tensor_proto([text.encode()], shape=(1,)) for tag, text in texts.items()}
        values = [Summary.Value(tag=tag, metadata=metadata, tensor=tensor) for tag, tensor in tensors.items()]
        self._add_summary(step, Summary(value=values))

    def describe(self, settings: Mapping[str, Any]) -> None:
        """Write the settings as text, and those that are not None as hyperparameters, lists as strings.

        TensorBoard's table of hyperparameters shows them next to the last value of every tag.
        """
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb

        rows = "\n".join(f"| {name} | {value} |" for name, value in settings.items())
        self.write_texts(0, {"run/settings": f"| setting | value |\n|---|---|\n{rows}"})
        plain = {
            name: value if isinstance(value, (bool, int, float, str)) else str(value)
            for name, value in settings.items()
            if value is not None
        }
        self._add_summary(0, Summary.FromString(hparams_pb(plain).SerializeToString()))

    def purge(self, step: int) -> None:
        """Make dashboards ignore what was written after this step; it stays in the files."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        with self._writing() as writer:  # as a `SummaryWriter` begins its file that has a `purge_step`
            writer.file_writer.add_event(Event(step=step + 1, session_log=SessionLog(status=SessionLog.START)))

    def close(self) -> None:
        """Write what is pending."""
        self._writer.flush()

    def _write_layout(self) -> None:
        """Write the layout of the charts if new charts have data; TensorBoard uses the last layout."""
        charts = charts_of(self._tags)
        n_charts = sum(map(len, charts.values()))
        if n_charts != self._n_charts:
            self._n_charts = n_charts
            with self._writing() as writer:
                writer.add_custom_scalars(
                    {
                        group: {title: ["Multiline", [f"({pattern})$"]] for title, pattern in patterns.items()}
                        for group, patterns in charts.items()
                    }
                )

    def _add_summary(self, step: int, summary: Any) -> None:
        with self._writing() as writer:
            writer.file_writer.add_summary(summary, step)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Any]:  # a SummaryWriter, whose `file_writer` torch declares as None
        """Flush at the end of the block."""
        self._writer._get_file_writer()  # which a writer has closed that was closed
        yield self._writer
        self._writer.flush()


@checked
class TensorboardLogger(EventWriter):
    """A logger that writes tensorboard's event files into `folder`, or `folder_2`, ... where another run is in it.

    With `resume` it continues in `folder` itself, unless another process logs to it. A folder that is deleted in the
    middle of a run is created again.
    """

    def __init__(self, folder: str | Path, *, resume: bool = False) -> None:
        self._claim = claim_folder(folder, resume=resume)
        self.is_closed = False
        self.folder = str(self._claim.folder)
        self._has_failed = False
        self._open()
        super().__init__(self._writer)

    def close(self) -> None:
        """Close the file, and release the folder for other processes."""
        self.is_closed = True
        self._writer.close()
        self._claim.release()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Any]:  # a SummaryWriter, whose `file_writer` torch declares as None
        """Open a new file if the last one was deleted or not writable, and flush at the end of the block."""
        is_there = any(self._claim.folder.glob("events.out.tfevents.*"))
        if self._has_failed or not is_there:
            if not is_there:
                _log.warning("%s was deleted: the log continues in another file", self.folder)
            with contextlib.suppress(OSError):
                self._writer.close()
            self._open()
        try:
            yield self._writer
            self._writer.flush()
        except OSError:
            self._has_failed = True  # a writer's thread ends with its first error
            raise

    def _open(self) -> None:
        from torch.utils.tensorboard import SummaryWriter  # here: a second that a run without it does not need

        self._writer = SummaryWriter(str(self.folder))
        self._has_failed = False
        weakref.finalize(self, self._writer.close)
