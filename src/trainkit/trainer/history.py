"""What every epoch told, kept: rows to read, a table, a picture."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, overload

from trainkit.data import EpochResult
from trainkit.errors import ConfigError, MissingExtraError, nearest
from trainkit.stats import html_table, scalars
from trainkit.trainer.callbacks import Callback

if TYPE_CHECKING:
    from trainkit.trainer.base import Trainer

Row = Mapping[str, float]

_SHOWN = ("test/returns/mean", "train/returns/mean", "update/loss")  # what `plot` draws unless told


class History(Callback, Sequence[Row]):
    """The epochs of a run, one row each: epoch, env_step, gradient_step, seconds and every tag that had a number.

    `history[-1]["update/loss"]` is a row's number, `history["update/loss"]` a column, None where there was none. Rows
    are for reading only; they are saved in checkpoints, and a `reset` of the trainer forgets them.
    """

    def __init__(self) -> None:
        self._rows: list[Row] = []

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    @overload
    def __getitem__(self, which: int) -> Row: ...
    @overload
    def __getitem__(self, which: slice) -> Sequence[Row]: ...
    @overload
    def __getitem__(self, which: str) -> list[float | None]: ...

    def __getitem__(self, which: int | slice | str) -> Row | Sequence[Row] | list[float | None]:
        if not isinstance(which, str):
            return self._rows[which]
        known = {tag: None for row in self._rows for tag in row}
        if which not in known:
            raise KeyError(f"no epoch told {which!r}{nearest(which, list(known))}")
        return [row.get(which) for row in self._rows]

    def to_rows(self) -> list[dict[str, float]]:
        """Return the rows as dicts of one's own."""
        return [dict(row) for row in self._rows]

    def to_frame(self) -> Any:
        """Return a pandas `DataFrame`, nan where there was no number.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise MissingExtraError("History.to_frame needs pandas: pip install pandas, or use to_rows()") from error
        return pd.DataFrame(self.to_rows())

    def plot(self, *tags: str, x: str = "env_step") -> Any:
        """Draw tags over `x`, one below the other, and return matplotlib's figure.

        Args:
            tags: default: test and training returns and the loss, those that there are.
            x: "env_step", "gradient_step", "epoch" or "seconds".

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise MissingExtraError("History.plot needs matplotlib: pip install trainkit[plot]") from error
        if not self._rows:
            raise ConfigError("History.plot has nothing to draw: no epoch is over yet")
        chosen = tags or [tag for tag in _SHOWN if any(tag in row for row in self._rows)]
        figure = Figure(figsize=(6.4, 2.4 * len(chosen)), layout="constrained")
        for tag, axes in zip(chosen, figure.subplots(len(chosen), sharex=True, squeeze=False)[:, 0], strict=True):
            points = [(a, b) for a, b in zip(self[x], self[tag], strict=True) if a is not None and b is not None]
            axes.plot([a for a, _ in points], [b for _, b in points], marker=".")
            axes.set_title(tag, loc="left", fontsize="medium")
            axes.grid(alpha=0.3)
        axes.set_xlabel(x)
        return figure

    def _repr_html_(self) -> str:
        shown = ("epoch", "env_step", "gradient_step", *_SHOWN)
        rows = [(f"epoch {row['epoch']:.0f}", _told(row, shown[1:])) for row in self._rows[-20:]]
        return html_table(f"History of {len(self)} epochs", rows)

    # ---- what a trainer tells ----

    def on_train_start(self, trainer: "Trainer") -> None:
        """Forget epochs that are still to come: of a run before `reset`."""
        self._rows = [row for row in self._rows if row["epoch"] <= trainer.epoch]

    def on_epoch_end(self, trainer: "Trainer", result: EpochResult) -> None:
        info = result.info
        place = {"epoch": info.epoch, "env_step": info.env_step, "gradient_step": info.gradient_step}
        self._rows.append(MappingProxyType({**place, "seconds": info.seconds, **scalars(result.stats)}))

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.to_rows()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._rows = [MappingProxyType(dict(row)) for row in state["rows"]]


def _told(row: Row, tags: Sequence[str]) -> str:
    """Tell some numbers of a row in a line."""
    return " | ".join(f"{tag} {row[tag]:.5g}" for tag in tags if tag in row)
