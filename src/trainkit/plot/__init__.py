"""Plots of runs; each function returns a matplotlib figure.

    figure = tk.plot.curves({"rainbow": ["runs/a", "runs/b"], "dqn": ["runs/c", "runs/d"]})
    tk.plot.save(figure, "curves.svg")

They need matplotlib, the extra `plot`.
"""

from trainkit.core.drawing import save
from trainkit.plot.curves import curves, time_shares
from trainkit.plot.learner import episode_values, priorities

__all__ = ["curves", "episode_values", "priorities", "save", "time_shares"]
