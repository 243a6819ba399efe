"""Making environments anew that failed: how often, after what pause, and what becomes of the episode they broke off."""

import logging
import time
from collections.abc import Iterable
from typing import Literal

import numpy as np

from trainkit.core import tree
from trainkit.core.data import ActOutput, Obs
from trainkit.core.errors import EnvError
from trainkit.envs.backends import Ids

_log = logging.getLogger(__name__)

_LONGEST_S = 30.0  # between two attempts


class Restarts:
    """Allow environments to be made anew, each so often in a row, and count.

    Args:
        n_envs: N.
        max_restarts: of one environment in a row; an episode that ends well begins a new row. None: the first error
            is raised.
        delay_s: before the second in a row, doubled for each that follows, 30 s at most; the first is made at once.
        faulty: whether rows of an episode that was broken off are taken back ("drop") or kept ("cut").
    """

    def __init__(
        self,
        n_envs: int,
        max_restarts: int | None = None,
        *,
        delay_s: float = 0.1,
        faulty: Literal["drop", "cut"] = "drop",
    ) -> None:
        self.are_allowed = max_restarts is not None
        self.drops = faulty == "drop"
        self._remade: list[int] = []  # and not told yet
        self._n_failed_resets = 0  # and not told yet
        self._max, self._delay_s = max_restarts or 0, delay_s
        self._in_a_row = np.zeros(n_envs, np.int64)  # [N]

    def take_remade(self) -> list[int]:
        """Return which environments were made anew since this was last asked, each as often as it was."""
        remade, self._remade = self._remade, []
        return remade

    def reset_failed(self, n_resets: int) -> None:
        """Count episodes that could not begin."""
        self._n_failed_resets += n_resets

    def take_failed_resets(self) -> int:
        """Return how many resets failed since this was last called."""
        n_resets, self._n_failed_resets = self._n_failed_resets, 0
        return n_resets

    def forgive(self, env_ids: Iterable[int]) -> None:
        """Hear that episodes ended well."""
        for env_id in env_ids:
            self._in_a_row[env_id] = 0

    def allow(self, env_id: int, error: EnvError) -> None:
        """Wait as long as is due, or raise the error that made one restart too many.

        Raises:
            EnvError: of the same kind, with the same cause.
        """
        in_a_row = int(self._in_a_row[env_id])
        if in_a_row == self._max:
            self._in_a_row[env_id] = 0  # who goes on after the error has all of them again
            raise type(error)(f"{error}; {_why_no_more(in_a_row)}", env_id=env_id) from error.__cause__
        self._in_a_row[env_id] += 1
        self._remade.append(env_id)
        delay_s = 0.0 if in_a_row == 0 else min(self._delay_s * 2.0 ** (in_a_row - 1), _LONGEST_S)
        _log.warning("%s; made anew in %g s, restart %d of %d in a row", error, delay_s, in_a_row + 1, self._max)
        time.sleep(delay_s)


def _why_no_more(in_a_row: int) -> str:
    """Tell why an environment is not made anew once more."""
    if in_a_row == 0:
        return "max_restarts=0 lets no environment be made anew"
    times = "once" if in_a_row == 1 else f"{in_a_row} times in a row"
    return f"it was made anew {times} (max_restarts), and no episode ended in between"


def left(asked: Ids, answered: Ids, obs: Obs, output: ActOutput) -> tuple[Obs, ActOutput]:
    """Return the rows [K] of observations and actions whose environments answered."""
    keep = np.isin(asked, answered)
    extras = {name: column[keep] for name, column in output.extras.items()}
    kept = output._replace(action=output.action[keep], extras=extras)
    return tree.map_tree(lambda leaf: leaf[keep], obs), kept
