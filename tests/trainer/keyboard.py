"""Ctrl-C, a real one, at chosen moments of a run."""

import os
import signal
from collections.abc import Container
from typing import Any

import trainkit as tk


def press() -> None:
    """Press Ctrl-C."""
    os.kill(os.getpid(), signal.SIGINT)


class Keyboard(tk.Callback):
    """Count the moments of a run, and press Ctrl-C at some of them, once until it was received."""

    def __init__(self, moments: Container[int] = ()) -> None:
        self.moments = moments
        self.places: list[str] = []  # of every moment, in order
        self.pressed_in: list[str] = []
        self.is_received = True

    @property
    def n(self) -> int:
        return len(self.places)

    def tick(self, where: str) -> None:
        self.places.append(where)
        if self.n in self.moments and self.is_received:
            self.is_received = False
            self.pressed_in.append(where)
            press()

    def on_train_start(self, trainer: tk.Trainer) -> None:
        self.tick("start")

    def on_collect_start(self, trainer: tk.Trainer) -> None:
        self.tick("collect start")

    def on_collect_end(self, trainer: tk.Trainer, stats: tk.CollectStats) -> None:
        self.tick("collect end")

    def on_update_end(self, trainer: tk.Trainer) -> None:
        self.tick("update")

    def on_evaluate_start(self, trainer: tk.Trainer) -> None:
        self.tick("evaluate start")

    def on_best(self, trainer: tk.Trainer, stats: tk.CollectStats) -> None:
        self.tick("best")

    def on_evaluate_end(self, trainer: tk.Trainer, stats: tk.CollectStats) -> None:
        self.tick("evaluate end")

    def on_epoch_end(self, trainer: tk.Trainer, result: Any) -> None:
        self.tick("epoch end")

    def on_train_end(self, trainer: tk.Trainer) -> None:
        self.tick("end")
