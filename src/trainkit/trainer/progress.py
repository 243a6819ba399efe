"""Progress output of a run: one bar and one line per epoch, each of which can be off.

A stream that is missing (`pythonw`, `2>&-`), closed or broken does not end a run: its output is dropped.
"""

import logging
import sys
from collections.abc import Callable
from typing import Any, TextIO

from tqdm.auto import tqdm

from trainkit.core.data import EpochResult
from trainkit.core.stats import CollectStats, EpochStats, RunInfo, Summary

_log = logging.getLogger(__name__)

_MOST_POLICIES = 2  # in a line
_FEW = 5  # episodes below which a line has their number


class Progress:
    """One bar over the whole run, and lines above it.

    Args:
        total: steps of the whole run.
        show_bar: None shows it on a terminal and in a notebook, and nowhere else.
        show_lines: whether to print a line per epoch; if not, it is logged.
        unit: of the steps.
    """

    def __init__(self, total: int, *, show_bar: bool | None, show_lines: bool, unit: str) -> None:
        self._total, self._unit = total, unit
        self.is_shown = _is_watched() if show_bar is None else show_bar  # the bar; False after its stream broke
        self._show_lines = show_lines
        self._bar: Any = None

    def extend_to(self, total: int) -> None:
        """Change the number of steps of the whole run."""
        self._total = total
        if self._bar is not None:
            self._bar.total = total

    def advance_to(self, step: int) -> None:
        """Move the bar, and open it at the first call; without a bar, tqdm is never used."""
        if not (self.is_shown and _is_open(sys.stderr)):
            return
        if self._bar is None:
            self._draw(self._open)
        if self._bar is not None and step > self._bar.n:
            self._draw(lambda: self._bar.update(min(step, self._total) - self._bar.n))

    def show(self, stats: EpochStats) -> None:
        """Show a few numbers after the bar."""
        if self._bar is not None:
            self._bar.set_postfix(_postfix(stats), refresh=False)

    def epoch(self, result: EpochResult) -> None:
        """Print one line about an epoch, or log it where lines are not printed."""
        if self._show_lines:
            self._print(epoch_line(result, self._unit))
        elif _log.isEnabledFor(logging.INFO):
            _log.info("%s", epoch_line(result, self._unit))

    def note(self, line: str) -> None:
        """Print a line about the run."""
        if self._show_lines:
            self._print(line)

    def close(self) -> None:
        """Remove the bar; a later `advance_to` opens it again."""
        if self._bar is not None:
            self._draw(self._bar.close)
            self._bar = None

    def _open(self) -> None:
        self._bar = tqdm(total=self._total, unit=self._unit, dynamic_ncols=True)

    def _draw(self, draw: Callable[[], object]) -> None:
        """Draw the bar, and stop showing it if its stream cannot be written."""
        try:
            draw()
        except (OSError, ValueError):
            self.is_shown = False
            if self._bar is not None:
                self._bar.disable = True
                self._bar = None

    def _print(self, line: str) -> None:
        if not _is_open(sys.stdout):
            return
        try:
            if self._bar is not None:
                self._bar.write(line)
            else:
                print(line, flush=True)  # noqa: T201  # what `verbose` is for
        except (OSError, ValueError):  # `| head` has ended, or the stream is closed: the run continues
            self._show_lines = False


def epoch_line(result: EpochResult, unit: str = "step") -> str:
    """Return one line about an epoch."""
    stats, info = result.stats, result.info
    parts = [f"epoch {result.epoch}", f"{info.env_step:,} steps", f"{info.gradient_step:,} updates"]
    if unit == "update":
        del parts[1]  # none are made
    for name, collect in (("test", stats.test), ("train", stats.train)):
        if shown := _returns(collect):
            parts.append(f"{name} {shown}")
    parts += [f"{name.replace('_', ' ')} {stats.update[name]:.4g}" for name in _losses(stats)]
    parts.append(f"{stats.time.steps_per_second:,.0f} {unit}s/s")
    for one in stats.warnings.values():  # in full when it is new
        is_new = one.first_epoch == result.epoch
        parts.append(f"! {one.name}: {one.message}" if is_new else f"! {one.name} since epoch {one.first_epoch}")
    return " | ".join(parts)


def _losses(stats: EpochStats) -> list[str]:
    """Return the names of the losses of an epoch: `loss`, or those of several gradient steps."""
    if "loss" in stats.update:
        return ["loss"]
    return [name for name in stats.update if name.endswith("_loss") and not name.startswith("smoothed_")]


def end_line(info: RunInfo, clock: int, unit: str = "step") -> str:
    """Return why a run ended, and what it reached."""
    best = "" if info.best_score is None else f", best score {info.best_score:g} at step {info.best_env_step:,}"
    return f"{info.stop_reason} after {clock:,} {unit}s, {info.seconds:.0f} s{best}"


def _returns(collect: CollectStats) -> str:
    """Return the mean of returns +- their standard deviation; where several policies play, of the first two by name.

    The mean over a group of rows says nothing where they play each other.
    """
    named = [f"{name} {_spread(own.returns, 2)}" for name, own in collect.policies.items() if not own.returns.is_empty]
    if named:
        return ", ".join(named[:_MOST_POLICIES])
    return "" if collect.returns.is_empty else _spread(collect.returns, 1)


def _spread(returns: Summary, n_decimals: int) -> str:
    """Return mean and standard deviation, with the number of episodes where it is small."""
    few = f" (n = {returns.count})" if returns.count < _FEW else ""
    return f"{returns.mean:.{n_decimals}f} +- {returns.std:.{n_decimals}f}{few}"


def _postfix(stats: EpochStats) -> dict[str, str]:
    numbers = {}
    if not stats.train.recent_returns.is_empty:
        numbers["return"] = f"{stats.train.recent_returns.mean:.1f}"
    if "smoothed_loss" in stats.update:
        numbers["loss"] = f"{stats.update['smoothed_loss']:.3g}"
    return numbers


def _is_watched() -> bool:
    """Return whether the output is a terminal or a notebook."""
    return "ipykernel" in sys.modules or (_is_open(sys.stderr) and sys.stderr.isatty())


def _is_open(stream: TextIO | None) -> bool:
    """Return whether a standard stream exists and is open; Python sets it to None for a process started without it."""
    return stream is not None and not getattr(stream, "closed", False)
