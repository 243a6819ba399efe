"""Recording of a collector's transitions in files of complete episodes."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from trainkit.collector import Collector
from trainkit.core.data import EpochResult
from trainkit.core.errors import Checks, ConfigError
from trainkit.core.extras import import_extra
from trainkit.core.folders import check_folder
from trainkit.core.signatures import checked
from trainkit.extensions.offline.format import Header
from trainkit.extensions.offline.writer import EpisodeWriter
from trainkit.trainer.callbacks.base import Callback

if TYPE_CHECKING:
    from trainkit.trainer.base import Trainer


@checked
class DatasetWriter(Callback):
    """Write complete episodes to numbered files in a folder; `load_dataset` reads them.

    As a callback it records the training collector, writes whole episodes at the end of every epoch, and closes at the
    end of the run. Any other collector is recorded by a `with` statement:
    `with DatasetWriter(folder).record(collector): collector.collect(...)`. Episodes that do not fill a file are in
    memory only until the end of the epoch or `close`. An episode that runs when recording starts is left out; files
    that are there are never overwritten.

    Args:
        folder: created when the first file is written.
        max_bytes: where the next file begins; only a single episode makes a larger one. Before compression.
        open_episodes: "cut" writes those that run at the end as cut, neither terminated nor truncated; "drop" leaves
            them out.
        compress: for images; it takes time.
        format: "npz", or "hdf5", which needs h5py and adds a checksum to every piece of data.

    Attributes:
        files: those written, in order.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        max_bytes: int = 64 * 2**20,
        open_episodes: Literal["cut", "drop"] = "cut",
        compress: bool = False,
        format: Literal["npz", "hdf5"] = "npz",
    ) -> None:
        self.folder = Path(folder)
        with Checks("DatasetWriter") as checks:
            checks.integer("max_bytes", max_bytes, low=1)
            checks.one_of("open_episodes", open_episodes, ["cut", "drop"])
            checks.one_of("format", format, ["npz", "hdf5"])
            check_folder(checks, self.folder)
        if format == "hdf5":
            import_extra('DatasetWriter(format="hdf5")', "h5py", "hdf5")
        self._keeps_open = open_episodes == "cut"
        self._writer = EpisodeWriter(self.folder, max_bytes=max_bytes, compress=compress, suffix=format)
        self._collector: Collector | None = None  # None while nothing is recorded

    @property
    def files(self) -> list[Path]:
        """The files written, in order."""
        return self._writer.files

    def record(self, collector: Collector) -> Self:
        """Record all steps of a collector from now on, until `close`."""
        if self._collector is collector:
            return self
        if self._collector is not None:
            raise ConfigError("DatasetWriter records another collector already: close it first, or make a second one")
        envs = collector.envs
        header = Header(
            env=envs.name,
            observation_space=envs.frame_space,
            action_space=envs.action_space,
            stack=envs.stack,
            pad=envs.pad,
            extras=collector.extras_spec,
            agents=envs.agents,
        )
        self._writer.start(header, envs.n, collector.open_ids)
        self._collector = collector
        collector.recorders.append(self._writer)
        return self

    def close(self) -> None:
        """Write the remaining episodes and stop recording; a second call has no effect, `record` may start again."""
        if self._collector is not None:
            self._collector.recorders.remove(self._writer)
            env_ids, self._collector = self._collector.envs.all_ids, None
            self._writer.stop(env_ids, keeps_open=self._keeps_open)
        self._writer.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def on_train_start(self, trainer: "Trainer") -> None:
        collector = trainer.train_collector
        if not isinstance(collector, Collector):
            has = "no training collector" if collector is None else f"a {type(collector).__name__}"
            raise ConfigError(f"DatasetWriter records a Collector, and {type(trainer).__name__} has {has}")
        self.record(collector)

    def on_epoch_end(self, trainer: "Trainer", result: EpochResult) -> None:
        self._writer.flush()

    def on_train_end(self, trainer: "Trainer") -> None:
        self.close()
