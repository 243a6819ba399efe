"""The metrics of a run's epochs, in bounded memory: rows to read, a table, a plot."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from trainkit.core.data import EpochResult
from trainkit.core.drawing import blank
from trainkit.core.errors import ConfigError
from trainkit.core.extras import import_extra
from trainkit.core.names import did_you_mean
from trainkit.core.signatures import checked
from trainkit.core.stats import Numbers, html_table, scalars
from trainkit.trainer.callbacks.base import Callback

if TYPE_CHECKING:
    from trainkit.trainer.base import Trainer

Row = Mapping[str, float]

_COUNTS = ("epoch", "env_step", "gradient_step")  # whole numbers
_N_NEWEST = 1_000  # epochs of which every row is kept
_N_OLDER = 500  # rows of older ones that thinning leaves at most, evenly spaced
_N_MOST = 2_500  # rows in all, at which older ones are thinned
_SHOWN = ("test/returns/mean", "train/returns/mean", "update/loss")  # what `plot` draws by default


@checked
class History(Callback, Sequence[Row]):
    """The epochs of a run, one row each: epoch, env_step, gradient_step, seconds and every tag that had a number.

    `history[-1]["update/loss"]` is a row's number, `history["update/loss"]` a column, None where there was none. Rows
    are for reading only; they are saved in checkpoints, and a `reset` of the trainer forgets them.

    Memory is bounded: all of the newest 1,000 epochs are kept, of older ones every second, fourth, eighth ... epoch, so
    that there are never more than 2,500 rows; a row's "epoch" says which it is. `JsonlLogger` writes all of them.
    """

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._newest: EpochResult | None = None  # whose row is not written yet: `on_epoch_end` may still log
        self._tags: dict[str, int] = {}  # {tag: column}
        self._n_rows = 0
        self._values: NDArray[np.float64] = np.zeros((0, 0))  # [capacity, columns]
        self._is_there: NDArray[np.bool_] = np.zeros((0, 0), np.bool_)

    def __len__(self) -> int:
        self._write_newest()
        return self._n_rows

    def __iter__(self) -> Iterator[Row]:
        return (self._row(index) for index in range(len(self)))

    @overload
    def __getitem__(self, which: int) -> Row: ...
    @overload
    def __getitem__(self, which: slice) -> Sequence[Row]: ...
    @overload
    def __getitem__(self, which: str) -> list[float | None]: ...

    def __getitem__(self, which: int | slice | str) -> Row | Sequence[Row] | list[float | None]:
        if isinstance(which, slice):
            return [self._row(index) for index in range(len(self))[which]]
        if not isinstance(which, str):
            return self._row(range(len(self))[which])
        self._write_newest()
        if which not in self._tags:
            raise KeyError(f"no epoch has {which!r}{did_you_mean(which, list(self._tags))}")
        column = self._tags[which]
        pairs = zip(self._column(column), self._is_there[: self._n_rows, column].tolist(), strict=True)
        return [value if is_there else None for value, is_there in pairs]

    def newest(self, tag: str, n_epochs: int | None = None) -> NDArray[np.float64]:
        """Return a tag's numbers in the newest epochs, oldest first, nan where there was none; None: in all epochs."""
        self._write_newest()
        first = 0 if n_epochs is None else max(0, self._n_rows - n_epochs)
        if tag not in self._tags:
            return np.full(self._n_rows - first, np.nan)
        rows, column = slice(first, self._n_rows), self._tags[tag]
        return np.where(self._is_there[rows, column], self._values[rows, column], np.nan)

    def to_rows(self) -> list[dict[str, float]]:
        """Return the rows as new dicts."""
        return [dict(row) for row in self]

    def to_frame(self) -> Any:
        """Return a pandas `DataFrame`, nan where there was no number.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        return import_extra("History.to_frame", "pandas", "pandas").DataFrame(self.to_rows())

    def plot(self, *tags: str, x: str = "env_step") -> Any:
        """Plot tags over `x`, one below the other, and return matplotlib's figure.

        Args:
            tags: default: test and training returns and the loss, those that there are.
            x: "env_step", "gradient_step", "epoch" or "seconds".

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        if not len(self):
            raise ConfigError("History.plot has nothing to draw: no epoch is over yet")
        chosen = tags or [tag for tag in _SHOWN if tag in self._tags]
        with blank(len(chosen), width=6.4, height=2.4 * len(chosen), sharex=True) as (figure, grid):
            for tag, axes in zip(chosen, grid[:, 0], strict=True):
                points = [(a, b) for a, b in zip(self[x], self[tag], strict=True) if a is not None and b is not None]
                axes.plot([a for a, _ in points], [b for _, b in points], marker=".")
                axes.set_title(tag)
            axes.set_xlabel(x)
        return figure

    def _ipython_key_completions_(self) -> list[str]:
        return [*self._tags]

    def __repr__(self) -> str:
        last = f", the last: {_as_text(self[-1], ('env_step', 'gradient_step', *_SHOWN))}" if len(self) else ""
        return f"History({len(self)} epochs{last})"

    def _repr_html_(self) -> str:
        shown = ("epoch", "env_step", "gradient_step", *_SHOWN)
        rows = [(f"epoch {row['epoch']:.0f}", _as_text(row, shown[1:])) for row in self[-20:]]
        return html_table(f"History of {len(self)} epochs", rows)

    # ---- events ----

    def on_train_start(self, trainer: "Trainer") -> None:
        """Discard the epochs of the run before a `reset`."""
        if len(self):
            self._keep(self._epochs() <= trainer.epoch)

    def on_epoch_end(self, trainer: "Trainer", result: EpochResult) -> None:
        self.record(result)

    def record(self, result: EpochResult) -> None:
        """Append an epoch's row, or replace the last row if it is of the same epoch."""
        if self._newest is not None and self._newest.epoch != result.epoch:
            self._write_newest()
        self._newest = result

    def add(self, epoch: int, numbers: Mapping[str, float]) -> None:
        """Add numbers to the row of an epoch that is over, as those of an evaluation that came late."""
        self._write_newest()
        found: list[int] = np.flatnonzero(self._epochs() == epoch).tolist() if self._n_rows else []
        if not found:  # it is not over, or was thinned out
            return
        for tag in numbers:
            self._tags.setdefault(tag, len(self._tags))
        self._reserve(self._n_rows, len(self._tags))
        columns = [self._tags[tag] for tag in numbers]
        self._values[found[0], columns] = list(numbers.values())
        self._is_there[found[0], columns] = True

    def _write_newest(self) -> None:
        if self._newest is None:
            return
        info, stats, self._newest = self._newest.info, self._newest.stats, None
        counts = {"epoch": info.epoch, "env_step": info.env_step, "gradient_step": info.gradient_step}
        if self._n_rows and self._epochs()[-1] == info.epoch:
            self._n_rows -= 1
        self._append({**counts, "seconds": info.seconds, **scalars(stats)})

    def state_dict(self) -> dict[str, Any]:
        n_rows, n_tags = len(self), len(self._tags)
        kept = {"values": self._values[:n_rows, :n_tags].copy(), "is_there": self._is_there[:n_rows, :n_tags].copy()}
        return {"rows": {"tags": list(self._tags), **kept}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._clear()
        rows = state["rows"]
        values, is_there = np.asarray(rows["values"], np.float64), np.asarray(rows["is_there"], np.bool_)
        self._tags = {str(tag): column for column, tag in enumerate(rows["tags"])}
        self._n_rows, self._values, self._is_there = len(values), values.copy(), is_there.copy()

    # ---- storage ----

    def _row(self, index: int) -> Row:
        values, is_there = self._values[index].tolist(), self._is_there[index].tolist()
        row = {tag: values[column] for tag, column in self._tags.items() if is_there[column]}
        return MappingProxyType(_Row(row | {tag: int(row[tag]) for tag in _COUNTS}))

    def _column(self, column: int) -> list[float]:
        values: list[float] = self._values[: self._n_rows, column].tolist()
        return [int(value) for value in values] if column in [self._tags[tag] for tag in _COUNTS] else values

    def _epochs(self) -> NDArray[np.float64]:
        return self._values[: self._n_rows, self._tags["epoch"]]

    def _append(self, row: Mapping[str, float]) -> None:
        if self._n_rows >= _N_MOST:
            self._thin()
        for tag in row:
            self._tags.setdefault(tag, len(self._tags))
        self._reserve(self._n_rows + 1, len(self._tags))
        columns = [self._tags[tag] for tag in row]
        self._is_there[self._n_rows] = False
        self._values[self._n_rows] = 0.0  # the same bits in a checkpoint, whatever stood there
        self._values[self._n_rows, columns] = list(row.values())
        self._is_there[self._n_rows, columns] = True
        self._n_rows += 1

    def _reserve(self, n_rows: int, n_tags: int) -> None:
        """Make room for rows and columns."""
        capacity, n_columns = self._values.shape
        if n_rows <= capacity and n_tags <= n_columns:
            return
        shape = (
            max(n_rows, min(2 * capacity, _N_MOST)) if n_rows > capacity else capacity,
            max(n_tags, n_columns + n_columns // 4) if n_tags > n_columns else n_columns,
        )
        values, is_there = np.zeros(shape), np.zeros(shape, np.bool_)
        values[:capacity, :n_columns], is_there[:capacity, :n_columns] = self._values, self._is_there
        self._values, self._is_there = values, is_there

    def _thin(self) -> None:
        """Thin out older epochs: keep multiples of the smallest power of two that leaves few enough.

        Which are kept follows from the epochs' numbers alone, so that a resumed run keeps the same.
        """
        epochs = self._epochs().astype(np.int64)
        is_older = np.arange(self._n_rows) < self._n_rows - _N_NEWEST
        stride = max(1, int(epochs[1] - epochs[0]))  # that of the last time: the oldest rows have its gap
        while np.count_nonzero(is_older & (epochs % stride == 0)) > _N_OLDER:
            stride *= 2
        self._keep(~is_older | (epochs % stride == 0))

    def _keep(self, chosen: NDArray[np.bool_]) -> None:
        """Keep some rows, and the tags that have a number in one of them."""
        values, is_there = self._values[: self._n_rows][chosen], self._is_there[: self._n_rows][chosen]
        tags = [tag for tag, column in self._tags.items() if tag in _COUNTS or is_there[:, column].any()]
        columns = [self._tags[tag] for tag in tags]
        self._tags = {tag: column for column, tag in enumerate(tags)}
        self._n_rows, self._values, self._is_there = len(values), values[:, columns], is_there[:, columns]


class _Row(Numbers):
    """The numbers of a row; an error names the tag that is most like a missing one."""

    def __missing__(self, tag: object) -> float:
        raise KeyError(f"epoch {self['epoch']} has no {tag!r}{did_you_mean(tag, self)}")


def _as_text(row: Row, tags: Sequence[str]) -> str:
    """Format some numbers of a row as a line."""
    return " | ".join(f"{tag} {row[tag]:.5g}" for tag in tags if tag in row)
