"""Where a run's time goes: its shares over the steps, and the milliseconds of a vector step."""

import contextlib
from typing import Any

import numpy as np

from trainkit.core.errors import ConfigError
from trainkit.core.signatures import checked
from trainkit.plot.drawing import COLOURS, GREY, Run, blank, count, series, unit_of

_SHARES = {"collect": COLOURS[0], "update": COLOURS[1], "evaluate": COLOURS[2], "other": GREY}
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
def time_shares(run: Run, *, width: float = 7.2, height: float = 2.6) -> Any:
    """Draw where the time of a run went, and return matplotlib's figure.

    On the left the shares of every report, over the steps; on the right the mean milliseconds of a vector step of
    training. A run without collecting, offline, has no right side.

    Args:
        run: a folder of a `JsonlLogger`, a trainer or its history.
        width: in inches.
        height: in inches.
    """
    shares = {part: series(run, f"time/{part}") for part in _SHARES}
    steps = shares["collect"][0]
    if len(steps) < 2:
        raise ConfigError("plot.time_shares needs two reports or more, got one: log oftener (log_every)")
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
        left.set_title("where the time went")
        # Beside the axes: inside, it would cover what it explains.
        left.legend(areas[::-1], list(shares)[::-1], loc="center left", bbox_to_anchor=(1.0, 0.5), handlelength=1.0)
        if parts:
            right = axes[0, 1]
            bars = right.barh(list(parts), list(parts.values()), color=COLOURS[0], height=0.6)
            right.bar_label(bars, fmt="%.2g", padding=3)
            right.invert_yaxis()
            right.margins(x=0.18)
            right.grid(False)
            right.set_xlabel("milliseconds")
            right.set_title("a vector step")
    return figure
