"""Rows that a collector keeps: open ones, until their outcome is known, and copies of a collect's, for `stream`."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit.core import tree
from trainkit.core.data import ActOutput, Transition


class OpenRows:
    """The last action of each of N environments, with its extra columns, until its row is complete.

    A row stays open while its environment has not answered (`wait_num`), and in a group that takes turns until it is
    observed again.
    """

    def __init__(self, n_envs: int) -> None:
        self._n = n_envs
        self._columns: dict[str, Any] = {}  # {"action": [N, ...], "extras": {name: [N, ...]}}, from the first row on

    def put(self, env_ids: NDArray[np.intp], output: ActOutput) -> None:
        """Open rows of environments [K]."""
        given = {"action": output.action, "extras": dict(output.extras)}
        if len(env_ids) == 0:  # nothing acted: its columns may be missing
            return
        if not self._columns:
            self._columns = tree.map_tree(lambda rows: np.zeros((self._n, *rows.shape[1:]), rows.dtype), given)
        for kept, rows in zip(tree.leaves(self._columns), tree.leaves(given), strict=True):
            kept[env_ids] = rows

    def complete(self, env_ids: NDArray[np.intp], state: Any) -> ActOutput:
        """Return the rows of environments [K], with the policy's state."""
        if not self._columns:
            return ActOutput(np.zeros(0), {}, state)
        rows = tree.map_tree(lambda kept: kept[env_ids], self._columns)
        return ActOutput(rows["action"], rows["extras"], state)

    def state_dict(self) -> dict[str, Any]:
        """Return all columns."""
        copied: dict[str, Any] = tree.map_tree(np.copy, self._columns)
        return copied

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore saved columns."""
        self._columns = tree.map_tree(np.array, state)


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
