"""What a person sees while a run goes on: one bar and one line per epoch, each of which can be off."""

import sys
from typing import Any

from tqdm.auto import tqdm

from trainkit.data import EpochResult
from trainkit.stats import EpochStats


class Progress:
    """One bar over the whole run, and lines above it.

    Args:
        total: steps of the whole run.
        show_bar: None shows it on a terminal and in a notebook, and nowhere else.
        show_lines: whether to print a line per epoch.
        unit: of the steps.
    """

    def __init__(self, total: int, *, show_bar: bool | None, show_lines: bool, unit: str) -> None:
        self._total, self._unit = total, unit
        self._show_bar, self._show_lines = show_bar, show_lines
        self._bar: Any = None

    def advance_to(self, step: int) -> None:
        """Move the bar, opening it at the first call."""
        if self._bar is None:
            wanted = _is_watched() if self._show_bar is None else self._show_bar
            self._bar = tqdm(total=self._total, unit=self._unit, disable=not wanted, dynamic_ncols=True)
        if step > self._bar.n:
            self._bar.update(min(step, self._total) - self._bar.n)

    def show(self, stats: EpochStats) -> None:
        """Write a few numbers behind the bar."""
        if self._bar is not None and not self._bar.disable:
            self._bar.set_postfix(_postfix(stats), refresh=False)

    def epoch(self, result: EpochResult) -> None:
        """Print one line about an epoch."""
        if self._show_lines:
            self._print(epoch_line(result, self._unit))

    def close(self) -> None:
        """Take the bar off; a later `advance_to` opens it again."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _print(self, line: str) -> None:
        try:
            if self._bar is not None and not self._bar.disable:
                self._bar.write(line)
            else:
                print(line, flush=True)  # noqa: T201  # what `verbose` asks for
        except (BrokenPipeError, ValueError):  # `| head` has gone, or the stream is closed: the run goes on
            self._show_lines = False


def epoch_line(result: EpochResult, unit: str = "step") -> str:
    """Tell an epoch in one line."""
    stats, info = result.stats, result.info
    parts = [f"epoch {result.epoch}", f"{info.env_step:,} steps", f"{info.gradient_step:,} updates"]
    if unit == "update":
        del parts[1]  # none are made
    for name, collect in (("test", stats.test), ("train", stats.train)):
        if collect is not None and collect.returns is not None:
            parts.append(f"{name} {collect.returns.mean:.1f} +- {collect.returns.std:.1f}")
    if "loss" in stats.update:
        parts.append(f"loss {stats.update['loss']:.4g}")
    parts.append(f"{stats.time.steps_per_second:,.0f} {unit}s/s")
    return " | ".join(parts)


def _postfix(stats: EpochStats) -> dict[str, str]:
    numbers = {}
    if stats.train is not None and stats.train.recent_returns is not None:
        numbers["return"] = f"{stats.train.recent_returns.mean:.1f}"
    if "loss" in stats.update:
        numbers["loss"] = f"{stats.update['loss']:.3g}"
    return numbers


def _is_watched() -> bool:
    """Whether somebody is looking: a terminal, or a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules
