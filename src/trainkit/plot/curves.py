"""Learning curves: the middle of several seeds, and a band around it."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trainkit.core.errors import Checks
from trainkit.core.signatures import checked
from trainkit.loggers.runs import RunFolder
from trainkit.plot.comparing import interval, iqm
from trainkit.plot.drawing import COLOURS, Run, blank, count, series, unit_of
from trainkit.trainer import History, Trainer

Middle = Literal["iqm", "mean", "median"]
Band = Literal["interval", "std", "all", "none"]

_RESAMPLES = 2_000
_LABELS = {"test/returns/mean": "return, greedy", "train/returns/mean": "return in training"}
_MIDDLES: dict[str, Callable[[Sequence[float]], float]] = {
    "iqm": iqm,
    "mean": lambda scores: float(np.mean(scores)),
    "median": lambda scores: float(np.median(scores)),
}


@checked
def curves(
    runs: Run | Sequence[Run] | Mapping[str, Run | Sequence[Run]],
    *,
    tag: str = "test/returns/mean",
    middle: Middle = "iqm",
    band: Band | None = None,
    title: str | None = None,
    goal: float | None = None,
    width: float = 6.4,
    height: float = 3.0,
) -> Any:
    """Draw a number over the steps, and return matplotlib's figure.

    Seeds that were told at other steps are read off between their points, as far as all of them go.

    Args:
        runs: {label: the runs of its seeds}, or the runs of one. A run is a folder of a `JsonlLogger`, a trainer or
            its history.
        tag: which number.
        middle: of the seeds: the interquartile mean (of fewer than four that is the mean), the mean or the median.
        band: around it: the 95 % bootstrap "interval" of the interquartile mean (default, around one), mean +- "std"
            of the seeds (default, around others), "all" of them, or "none". One seed has none.
        title: default: nothing.
        goal: a return to draw a line at.
        width: in inches.
        height: in inches.

    Raises:
        ConfigError: there is no run, or one never told the tag.
        MissingExtraError: matplotlib is not installed.
    """
    groups = _groups(runs)
    band = band or ("interval" if middle == "iqm" else "std")
    checks = Checks("plot.curves")
    checks.require(bool(groups) and all(map(len, groups.values())), ".runs must be at least one run per label")
    checks.one_of("middle", middle, _MIDDLES)
    checks.one_of("band", band, ["interval", "std", "all", "none"])
    goes_with = band != "interval" or middle == "iqm"
    checks.require(goes_with, f'.band "interval" is around the iqm, not the {middle}: choose "std", "all" or "none"')
    checks.done()
    with blank(width=width, height=height) as (figure, ((axes,),)):
        for (label, own), colour in zip(groups.items(), itertools.cycle(COLOURS), strict=False):
            steps, values = together([series(run, tag) for run in own])
            centre = [_MIDDLES[middle](column) for column in values.T]
            n_seeds = len(own)
            told = f"{label} ({n_seeds} seeds)".strip() if n_seeds > 1 else label
            marker = "." if len(steps) == 1 else None
            axes.plot(steps, centre, label=as_text(told) or None, color=colour, marker=marker)
            if n_seeds > 1 and band != "none":
                low, high = np.array([_bounds(column, band) for column in values.T]).T
                axes.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)
        if goal is not None:
            axes.axhline(goal, color="grey", linewidth=0.8, linestyle=":", label=f"{goal:g}", zorder=0)
        axes.set(xlabel=unit_of(own[0]), ylabel=as_text(_LABELS.get(tag, tag)), title=as_text(title or ""))
        axes.xaxis.set_major_formatter(count)
        axes.margins(x=0.01)
        if axes.get_ylim()[0] > 0:
            axes.set_ylim(bottom=0)  # a rise looks as large as it is
        if any(groups) or goal is not None or any(len(own) > 1 for own in groups.values()):
            axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))  # beside: inside it would cover a curve
    return figure


def as_text(text: str) -> str:
    """Return text that matplotlib draws as it is: no mathematics, no characters that control a terminal."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text).replace("$", r"\$")


def together(
    curves: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the steps [T] that all curves (steps, numbers) span, and every curve's numbers there [curves, T]."""
    first = max(steps[0] for steps, _ in curves)
    last = min(steps[-1] for steps, _ in curves)
    union = np.unique(np.concatenate([steps for steps, _ in curves]))
    shared = union[(union >= first) & (union <= last)]
    if not len(shared):  # seeds that were never told at one time
        shared = np.array([last])
    return shared, np.array([np.interp(shared, steps, numbers) for steps, numbers in curves])


def _bounds(scores: NDArray[np.float64], band: str) -> tuple[float, float]:
    if band == "interval":
        told = interval([scores.tolist()], resamples=_RESAMPLES)
        return told.low, told.high
    if band == "std":
        return float(scores.mean() - scores.std()), float(scores.mean() + scores.std())
    return float(scores.min()), float(scores.max())


def _groups(runs: Any) -> dict[str, list[Run]]:
    """Return {label: runs}, whatever way they were given."""
    if isinstance(runs, Mapping):
        return {str(label): _listed(own) for label, own in runs.items()}
    return {"": _listed(runs)}


def _listed(runs: Any) -> list[Run]:
    is_one = isinstance(runs, (str, Path, RunFolder, History, Trainer))
    return [runs] if is_one else list(runs)
