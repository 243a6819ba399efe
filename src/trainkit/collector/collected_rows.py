"""Copies of the rows of one collect, for `Collector.stream`."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit.core import tree
from trainkit.core.data import Transition


class CollectedRows:
    """The rows of one collect: a recorder that copies them."""

    def __init__(self) -> None:
        self._steps: list[Transition] = []
        self._kept: list[NDArray[np.bool_]] = []  # [K] of each step

    def add(self, transition: Transition) -> None:
        """Copy K rows."""
        columns = tuple(transition._replace(extras=dict(transition.extras)))
        self._steps.append(Transition(*tree.map_tree(np.array, columns)))
        self._kept.append(np.ones(len(transition.env_ids), np.bool_))

    def cut(self, env_ids: NDArray[np.intp]) -> None:
        """Do nothing: a row holds its own successor."""

    def drop(self, env_ids: NDArray[np.intp]) -> None:
        """Leave out the rows of the open episodes of these environments."""
        for env_id in env_ids.tolist():
            for step, kept in zip(reversed(self._steps), reversed(self._kept), strict=True):
                rows = step.env_ids == env_id
                if (rows & (step.terminated | step.truncated)).any():
                    break
                kept &= ~rows

    def rows(self) -> Transition | None:
        """Return all rows in the order of their steps, then of their environments; None before the first step."""
        if not self._steps:
            return None
        columns: list[Any] = [tuple(step.at(kept)) for step, kept in zip(self._steps, self._kept, strict=True)]
        return Transition(*tree.map_tree(lambda *parts: np.concatenate(parts), *columns))
