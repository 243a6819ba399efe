"""Plots of runs over their steps: learning curves with a band over the seeds, and shares of the time."""

import contextlib
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeGuard

import numpy as np
from numpy.typing import NDArray

from trainkit.core.drawing import COLORS, GREY, LINES, blank, count
from trainkit.core.errors import Checks, ConfigError
from trainkit.core.names import did_you_mean
from trainkit.core.signatures import checked
from trainkit.loggers.grouping import grouped, newest_of_each_seed
from trainkit.loggers.runs import NUMBERS, RunFolder, find_runs, score_tag
from trainkit.plot.comparing import interval, iqm
from trainkit.trainer import History, RunResult, Trainer

_log = logging.getLogger(__name__)

Run = str | Path | RunFolder | RunResult | History | Trainer
_Read = RunFolder | History  # a run whose numbers can be read
Series = tuple[NDArray[np.float64], NDArray[np.float64]]  # (steps [T], numbers [T])
Middle = Literal["iqm", "mean", "median"]
Band = Literal["interval", "std", "all", "none"]

_RESAMPLES = 2_000
_MOST_INSIDE = 8  # labels of a legend inside the axes
_CHARACTERS_PER_INCH, _HANDLE, _ROW_INCHES = 17.0, 6, 0.17  # of a small legend: text, what is in front of it, a row
_LABELS = {
    "test/returns/mean": "return, greedy",
    "test/policies/main/returns/mean": "return, greedy, of main",
    "train/returns/mean": "return in training",
}
_MIDDLES: dict[str, Callable[[Sequence[float]], float]] = {
    "iqm": iqm,
    "mean": lambda scores: float(np.mean(scores)),
    "median": lambda scores: float(np.median(scores)),
}

_SHARES = {"collect": COLORS[0], "update": COLORS[1], "evaluate": COLORS[2], "other": GREY}
_PARTS = {
    "env_ms": "environments",
    "obs_ms": "observations",
    "action_ms": "actions",
    "act_ms": "policy",
    "store_ms": "buffer",
    "render_ms": "rendering",
    "other_ms": "collector",
}


@checked
def curves(
    runs: Run | Sequence[Run] | Mapping[str, Run | Sequence[Run]],
    *,
    tag: str | None = None,
    middle: Middle = "iqm",
    band: Band | None = None,
    title: str | None = None,
    target_return: float | None = None,
    width: float = 6.4,
    height: float = 3.0,
) -> Any:
    """Plot a statistic over the steps, and return the matplotlib figure.

    Seeds that logged at different steps are interpolated, over the steps that all of them span.

    Args:
        runs: {label: the runs of its seeds}, or the runs of one. A run is its folder, a result of `tk.run`, a trainer
            or its history. A folder above runs is all of them: without labels they are grouped as by `trainkit plot`,
            and results by the names that `tk.run` was given.
        tag: which number; default: "test/returns/mean", of self-play "test/policies/main/returns/mean".
        middle: of the seeds: the interquartile mean (of fewer than four that is the mean), the mean or the median.
        band: around it: the 95 % bootstrap "interval" of the interquartile mean (default, around one), mean +- "std"
            of the seeds (default, around others), "all" of them, or "none". One seed has none.
        title: default: nothing.
        target_return: a return to draw a line at.
        width: in inches.
        height: in inches.

    Raises:
        ConfigError: there is no run, one never logged the tag, or those in a folder are of several environments.
        MissingExtraError: matplotlib is not installed.
    """
    groups = _groups(runs)
    tag = _score_tag(groups) if tag is None else tag
    band = band or ("interval" if middle == "iqm" else "std")
    with Checks("plot.curves") as checks:
        checks.require(bool(groups) and all(map(len, groups.values())), ".runs must be at least one run per label")
        checks.one_of("middle", middle, _MIDDLES)
        checks.one_of("band", band, ["interval", "std", "all", "none"])
        goes_with = band != "interval" or middle == "iqm"
        checks.require(
            goes_with, f'.band "interval" is around the iqm, not the {middle}: choose "std", "all" or "none"'
        )
    with blank(width=width, height=height) as (figure, ((axes,),)):
        styles = itertools.cycle(itertools.product(LINES, COLORS))
        for (label, own), (line, color) in zip(groups.items(), styles, strict=False):
            _draw_curve(axes, label, [series(run, tag) for run in own], middle, band, color=color, linestyle=line)
        if target_return is not None:
            axes.axhline(
                target_return, color="grey", linewidth=0.8, linestyle=":", label=f"{target_return:g}", zorder=0
            )
        axes.set(xlabel=unit_of(own[0]), ylabel=as_text(_LABELS.get(tag, tag)), title=as_text(title or ""))
        axes.xaxis.set_major_formatter(count)
        axes.margins(x=0.01)
        if axes.get_ylim()[0] > 0:
            axes.set_ylim(bottom=0)  # so that a rise is drawn to scale
        if any(groups) or target_return is not None or any(len(own) > 1 for own in groups.values()):
            _add_legend(figure, axes)
    return figure


def _add_legend(figure: Any, axes: Any) -> None:
    """Add the legend where it covers least, or below the axes in columns if it would cover most of them."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) <= _MOST_INSIDE:
        axes.legend(loc="best", frameon=True, framealpha=0.7, edgecolor="none", borderpad=0.2, labelspacing=0.3)
        return
    width, height = figure.get_size_inches()
    n_columns = max(1, int(width * _CHARACTERS_PER_INCH / (max(map(len, labels)) + _HANDLE)))
    n_rows = -(-len(labels) // n_columns)
    figure.set_size_inches(width, height + n_rows * _ROW_INCHES)
    figure.legend(handles, labels, loc="outside lower left", ncols=n_columns, fontsize="small", columnspacing=1.0)


def _draw_curve(
    axes: Any, label: str, seeds: Sequence[Series], middle: Middle, band: Band, *, color: str, linestyle: str
) -> None:
    """Draw the center line over the seeds, and the band around it."""
    steps, values = together(seeds)
    center = [_MIDDLES[middle](column) for column in values.T]
    text = f"{label} ({len(seeds)} seeds)".strip() if len(seeds) > 1 else label
    marker = "." if len(steps) == 1 else None
    axes.plot(steps, center, label=as_text(text) or None, color=color, linestyle=linestyle, marker=marker)
    if len(seeds) > 1 and band != "none":
        low, high = np.array([_bounds(column, band) for column in values.T]).T
        axes.fill_between(steps, low, high, color=color, alpha=0.2, linewidth=0)


@checked
def time_shares(run: Run, *, width: float = 7.2, height: float = 2.6) -> Any:
    """Plot the shares of the time of a run, and return the matplotlib figure.

    On the left the shares of every report, over the steps; on the right the mean milliseconds of a vector step of
    training. A run without collecting, offline, has no right side.

    Args:
        run: its folder, a result of `tk.run`, a trainer or its history.
        width: in inches.
        height: in inches.
    """
    runs = _read_all([run])
    if len(runs) != 1:
        raise ConfigError(f"plot.time_shares is of one run, {len(runs)} were given: name one")
    run = runs[0]
    shares = {part: series(run, f"time/{part}") for part in _SHARES}
    steps = shares["collect"][0]
    if len(steps) < 2:
        raise ConfigError("plot.time_shares needs two reports or more, got one: lower log_every")
    parts: dict[str, float] = {}
    for tag, name in _PARTS.items():
        with contextlib.suppress(ConfigError):  # offline there are none, and older logs have fewer
            parts[name] = float(np.mean(series(run, f"train/{tag}")[1]))
    ratios = [1.6, 1.0] if parts else [1.0]
    with blank(1, len(ratios), width=width, height=height, width_ratios=ratios) as (figure, axes):
        left = axes[0, 0]
        stacked = [100 * numbers for _, numbers in shares.values()]
        areas = left.stackplot(steps, stacked, labels=list(shares), colors=list(_SHARES.values()), alpha=0.85)
        left.set(ylim=(0, 100), xlim=(steps[0], steps[-1]), xlabel=unit_of(run), ylabel="share of the time, %")
        left.xaxis.set_major_formatter(count)
        left.grid(False)
        left.set_title("shares of the time")
        # Outside the axes: inside, it would cover what it explains.
        left.legend(areas[::-1], list(shares)[::-1], loc="center left", bbox_to_anchor=(1.0, 0.5), handlelength=1.0)
        if parts:
            right = axes[0, 1]
            bars = right.barh(list(parts), list(parts.values()), color=COLORS[0], height=0.6)
            right.bar_label(bars, fmt="%.2g", padding=3)
            right.invert_yaxis()
            right.margins(x=0.18)
            right.grid(False)
            right.set_xlabel("milliseconds")
            right.set_title("time of a vector step")
    return figure


def series(run: RunFolder | History, tag: str) -> Series:
    """Return (steps [T], numbers [T]) of a tag; offline, steps are updates.

    Raises:
        ConfigError: the run never logged it.
    """
    if isinstance(run, RunFolder):
        return run.series(tag)
    points = [(row["env_step"] or row["gradient_step"], row[tag]) for row in run if tag in row]
    if not points:
        hint = did_you_mean(tag, {known for row in run for known in row})
        raise ConfigError(f"this history has no {tag!r}: no epoch logged a number there{hint}")
    steps, numbers = np.array(points, np.float64).T
    return steps, numbers


def _score_tag(groups: Mapping[str, Sequence[_Read]]) -> str:
    """Return the tag of the score of the first run."""
    for run in itertools.chain.from_iterable(groups.values()):
        return run.score_tag if isinstance(run, RunFolder) else score_tag({tag for row in run for tag in row})
    return score_tag(())


def unit_of(run: RunFolder | History) -> str:
    """Return the unit of a run's steps."""
    is_offline = (
        "update_per_epoch" in run.settings if isinstance(run, RunFolder) else not any(row["env_step"] for row in run)
    )
    return "updates" if is_offline else "environment steps"


def as_text(text: str) -> str:
    """Return text that matplotlib draws literally, without mathematics and control characters."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text).replace("$", r"\$")


def together(curves: Sequence[Series]) -> Series:
    """Return the steps [T] that all curves (steps, values) cover, and the values of every curve at them [curves, T]."""
    first = max(steps[0] for steps, _ in curves)
    last = min(steps[-1] for steps, _ in curves)
    union = np.unique(np.concatenate([steps for steps, _ in curves]))
    shared = union[(union >= first) & (union <= last)]
    if not len(shared):  # seeds without a step in common
        shared = np.array([last])
    return shared, np.array([np.interp(shared, steps, numbers) for steps, numbers in curves])


def _bounds(scores: NDArray[np.float64], band: str) -> tuple[float, float]:
    if band == "interval":
        estimate = interval([scores.tolist()], resamples=_RESAMPLES)
        return estimate.low, estimate.high
    if band == "std":
        return float(scores.mean() - scores.std()), float(scores.mean() + scores.std())
    return float(scores.min()), float(scores.max())


def _groups(runs: Any) -> dict[str, list[_Read]]:
    """Return {label: runs} of runs given in any of the forms that `curves` accepts."""
    if isinstance(runs, Mapping):
        return {str(label): _read_all(_listed(own)) for label, own in runs.items()}
    listed = _listed(runs)
    if any(map(_is_above_runs, listed)):
        found = _read_all(listed)
        folders = [run for run in found if isinstance(run, RunFolder)]
        if len(folders) < len(found):
            raise ConfigError("plot.curves.runs mix folders of runs with trainers: give a label to each, {label: runs}")
        return {label: [*own] for label, own in newest_of_each_seed(grouped(folders), _log.warning).items()}
    results = [run for run in listed if isinstance(run, RunResult)]
    if len(results) < len(listed):
        return {"": _read_all(listed)}
    named: dict[str, list[Run]] = {}
    for result in results:
        named.setdefault(str(PurePosixPath(result.name).parent).strip("."), []).append(result)
    return {label: _read_all(own) for label, own in named.items()}


def _listed(runs: Any) -> list[Run]:
    is_one = isinstance(runs, (str, Path, RunFolder, RunResult, History, Trainer))
    return [runs] if is_one else list(runs)


def _read_all(runs: Sequence[Run]) -> list[_Read]:
    """Return all runs that are given, those below a folder each; results of runs that failed are left out.

    Raises:
        ConfigError: the runs below a folder are in several environments, whose returns have no common scale.
    """
    failed = [run.name for run in runs if isinstance(run, RunResult) and run.info is None]
    if failed:
        _log.warning("skipped, they failed: %s", ", ".join(failed))
    found: list[_Read] = []
    for run in runs:
        if _is_above_runs(run):
            below = find_runs([run])
            if len(tasks := sorted({one.task for one in below})) > 1:
                raise ConfigError(
                    f"{run} has runs in {len(tasks)} environments, {' and '.join(tasks)}: draw a figure of each, or "
                    "use `trainkit plot`, which does"
                )
            found += below
        elif isinstance(run, Trainer):
            found.append(run.history)
        elif isinstance(run, (str, Path)):
            found.append(RunFolder.read(run))
        elif isinstance(run, RunResult):
            found += [] if run.info is None else [RunFolder.read(run.folder)]
        else:
            found.append(run)
    return found


def _is_above_runs(run: Run) -> TypeGuard[str | Path]:
    """Return whether a run is given as a folder that has no log itself."""
    return isinstance(run, (str, Path)) and not (Path(run) / NUMBERS).is_file()
