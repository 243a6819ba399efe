"""Recording: every transition of a collector into files of whole episodes, to learn from another time."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

import numpy as np
from numpy.typing import NDArray

from trainkit.collector import Collector
from trainkit.core import tree
from trainkit.core.data import EpochResult, RecordedEpisode, Transition
from trainkit.core.errors import CheckpointError, Checks, ConfigError
from trainkit.core.folders import check_folder
from trainkit.core.signatures import checked
from trainkit.datasets.format import Header, write_shard
from trainkit.datasets.hdf5 import require_h5py
from trainkit.datasets.writer import OpenEpisodes
from trainkit.trainer.callbacks.base import Callback

if TYPE_CHECKING:
    from trainkit.trainer.base import Trainer

_NAME = re.compile(r"episodes-(\d+)\.(npz|hdf5)")


@checked
class DatasetWriter(Callback):
    """Write whole episodes into numbered files of a folder; `load_dataset` reads them.

    As a callback it records the training collector, writes what is whole at the end of every epoch, and closes at the
    end of the run. Any other is recorded by hand:
    `with DatasetWriter(folder).record(collector): collector.collect(...)`. What did not fill a file and saw no epoch's
    end is in memory only until `close`. An episode that runs when recording begins is left out; files that are there
    are never written over.

    Args:
        folder: made when the first file is written.
        max_bytes: where the next file begins; only a single episode makes a larger one. Before compression.
        open_episodes: "cut" writes those that run at the end as cut, which is neither terminated nor truncated;
            "drop" leaves them out.
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
        checks = Checks("DatasetWriter")
        checks.integer("max_bytes", max_bytes, low=1)
        checks.one_of("open_episodes", open_episodes, ["cut", "drop"])
        checks.one_of("format", format, ["npz", "hdf5"])
        check_folder(checks, self.folder)
        checks.done()
        if format == "hdf5":
            require_h5py('DatasetWriter(format="hdf5")')
        self.files: list[Path] = []
        self._max_bytes, self._keeps_open, self._compress = max_bytes, open_episodes == "cut", compress
        self._suffix = format
        self._collector: Collector | None = None  # None while nothing is recorded
        self._header: Header
        self._open: OpenEpisodes
        self._ended: list[tuple[RecordedEpisode, int]] = []  # whole and not written yet, each with its bytes
        self._n_bytes = 0  # of those

    def record(self, collector: Collector) -> Self:
        """Write down all that a collector does from now on, until `close`."""
        if self._collector is collector:
            return self
        if self._collector is not None:
            raise ConfigError("DatasetWriter records another collector already: close it first, or make a second one")
        envs = collector.envs
        self._header = Header(
            env=envs.name,
            observation_space=envs.frame_space,
            action_space=envs.action_space,
            stack=envs.stack,
            extras=collector.extras_spec,
        )
        self._open = OpenEpisodes(self._header, envs.n, collector.open_ids)
        self._collector = collector
        collector.recorders.append(self)
        return self

    def close(self) -> None:
        """Write what is left and record no more; closing twice is fine, and `record` may begin anew."""
        if self._collector is not None:
            self._collector.recorders.remove(self)
            all_ids, self._collector = self._collector.envs.all_ids, None
            open_ones = self._open.cut(all_ids)
            self._keep(open_ones if self._keeps_open else [])
        if self._ended:
            self._write(len(self._ended))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ---- what a collector tells ----

    def add(self, transition: Transition) -> None:
        """Hear of K steps."""
        self._keep(self._open.add(transition))

    def cut(self, env_ids: NDArray[np.intp]) -> None:
        """Hear that the open episodes of these environments ended here."""
        self._keep(self._open.cut(env_ids))

    def drop(self, env_ids: NDArray[np.intp]) -> None:
        """Hear that the open episodes of these environments were broken off."""
        self._open.drop(env_ids)

    # ---- what a trainer tells ----

    def on_train_start(self, trainer: "Trainer") -> None:
        if trainer.train_collector is None:
            raise ConfigError(f"DatasetWriter: {type(trainer).__name__} has no training collector to record")
        self.record(trainer.train_collector)

    def on_epoch_end(self, trainer: "Trainer", result: EpochResult) -> None:
        if self._ended:
            self._write(len(self._ended))

    def on_train_end(self, trainer: "Trainer") -> None:
        self.close()

    # ---- files ----

    def _keep(self, episodes: list[RecordedEpisode]) -> None:
        """Keep whole episodes, and write as many files as they fill; where that fails they stay."""
        for episode in episodes:
            arrays = [*tree.leaves(episode.obs), episode.action, episode.reward, *episode.extras.values()]
            self._ended.append((episode, sum(array.nbytes for array in arrays)))
            self._n_bytes += self._ended[-1][1]
        while self._n_bytes > self._max_bytes and len(self._ended) > 1:
            up_to = np.cumsum([n_bytes for _, n_bytes in self._ended])
            self._write(max(1, int(np.searchsorted(up_to, self._max_bytes, side="right"))))

    def _write(self, n_episodes: int) -> None:
        """Write the first episodes kept as the next file."""
        number = self._next_number()
        while True:
            path = self.folder / f"episodes-{number:06d}.{self._suffix}"
            try:
                episodes = [episode for episode, _ in self._ended[:n_episodes]]
                write_shard(path, self._header, episodes, compress=self._compress)
                break
            except FileExistsError:  # another writer was quicker
                number += 1
            except OSError as error:
                raise CheckpointError(f"DatasetWriter cannot write {path}: {error}; its episodes are kept") from error
        self.files.append(path)
        self._n_bytes -= sum(n_bytes for _, n_bytes in self._ended[:n_episodes])
        del self._ended[:n_episodes]

    def _next_number(self) -> int:
        if not self.folder.is_dir():
            return 0
        found = [match for file in self.folder.iterdir() if (match := _NAME.fullmatch(file.name))]
        return max((int(match[1]) + 1 for match in found), default=0)
