"""Pictures of runs, for papers and for understanding; each function returns a matplotlib figure.

    figure = tk.plot.curves({"rainbow": ["runs/a", "runs/b"], "dqn": ["runs/c", "runs/d"]})
    tk.plot.save(figure, "curves.svg")

They need matplotlib: pip install trainkit[plot].
"""

from trainkit.plot.curves import curves
from trainkit.plot.drawing import save
from trainkit.plot.episode_values import episode_values
from trainkit.plot.priorities import priorities
from trainkit.plot.times import time_shares

__all__ = ["curves", "episode_values", "priorities", "save", "time_shares"]
