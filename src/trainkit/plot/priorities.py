"""What a prioritised buffer prefers: its priorities, how unequally rows are drawn, and the weights that undo it."""

from typing import Any

import numpy as np

from trainkit.buffer import PrioritizedReplayBuffer
from trainkit.core.errors import ConfigError
from trainkit.core.signatures import checked
from trainkit.plot.drawing import COLOURS, GREY, blank, count

_BINS = 40


@checked
def priorities(buffer: PrioritizedReplayBuffer, *, step: int = 0, width: float = 7.6, height: float = 2.5) -> Any:
    """Draw priorities, draws and weights of all rows of a buffer as they are now, and return matplotlib's figure.

    Args:
        buffer: prioritised, with rows in it.
        step: the environment step, for beta's schedule.
        width: in inches.
        height: in inches.
    """
    if not isinstance(buffer, PrioritizedReplayBuffer) or len(buffer) == 0:
        raise ConfigError(f"plot.priorities needs a PrioritizedReplayBuffer with rows in it, got {buffer!r}")
    priority, weight = buffer.priorities(), buffer.weights(step)
    probability = np.sort(buffer.probabilities())[::-1]  # [size]
    with blank(1, 3, width=width, height=height) as (figure, ((left, middle, right),)):
        left.hist(priority, bins=_BINS, color=COLOURS[0])
        left.set(xlabel="priority", ylabel="rows", yscale="log", title="priorities")

        rows = 100 * np.arange(len(buffer) + 1) / len(buffer)
        drawn = 100 * np.concatenate([[0.0], np.cumsum(probability)])
        middle.plot(rows, drawn, color=COLOURS[1])
        middle.plot([0, 100], [0, 100], color=GREY, linewidth=0.8, linestyle=":")
        half = float(np.interp(50.0, drawn, rows))
        middle.plot([half], [50.0], marker="o", markersize=4, color=COLOURS[1])
        middle.annotate(f"half of the draws\nfrom {half:.0f} % of the rows", (half, 50.0), (half + 8, 22.0))
        middle.set(xlabel="rows, the likeliest first, %", ylabel="draws, %", title="who is drawn")
        middle.set(xlim=(0, 100), ylim=(0, 100))

        right.hist(weight, bins=_BINS, range=(0.0, 1.0), color=COLOURS[2], label="rows", alpha=0.9)
        right.hist(
            weight, bins=_BINS, range=(0.0, 1.0), weights=len(buffer) * buffer.probabilities(), color=COLOURS[1],
            histtype="step", linewidth=1.3, label="as drawn",
        )  # fmt: skip
        right.set(xlabel="importance weight", ylabel="rows", title="weights")
        right.legend(loc="upper right")
        right.yaxis.set_major_formatter(count)
    return figure
