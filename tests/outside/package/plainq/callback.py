"""A callback: it keeps the best return, and warns where none was positive."""

from typing import Any

import trainkit as tk


class BestReturn(tk.Callback):
    """Keep the best return of training.

    Attributes:
        best: of all episodes so far; None before the first.
    """

    best: float | None = None

    def on_collect_end(self, trainer: tk.Trainer, stats: tk.CollectStats) -> None:
        """Look at the episodes of a collect."""
        if stats.returns.max is not None:
            self.best = max(stats.returns.max, -float("inf") if self.best is None else self.best)

    def warnings(self, trainer: tk.Trainer) -> dict[str, str]:
        """Warn of runs without a positive return."""
        return {} if self.best is None or self.best > 0 else {"no_gain": "no return was positive"}

    def state_dict(self) -> dict[str, Any]:
        """Return the best return."""
        return {"best": self.best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the best return."""
        self.best = state["best"]
