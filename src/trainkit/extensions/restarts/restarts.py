"""Restarts of environments that failed: each environment has a limit in a row, and all are counted."""

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit.core.data import any_true
from trainkit.core.errors import EnvError
from trainkit.envs.backends import AroundBackend, Backend, Begun, EachOptions, Ids, Lost, RawStep, Seeds, Work
from trainkit.envs.envs_config import FailureOptions

_log = logging.getLogger(__name__)

_MAX_DELAY_S = 30.0  # between two restarts


@dataclass(frozen=True, slots=True)
class Restarts:
    """What `make_envs(on_error="restart")` does: replace an environment that failed by a new one."""

    options: FailureOptions

    def around(self, backend: Backend) -> Backend:
        """Return a backend that replaces environments."""
        return Restarting(backend, self.options)


class Restarting(AroundBackend):
    """A backend in which the failure of an environment ends its episode alone: the next one begins in a new one.

    A game of several agents is restarted as a whole, and named by its first row.

    Args:
        inner: the other backend, of single environments or games.
        options: `max_restarts` of one environment in a row, where an episode that ends normally resets the count;
            `restart_delay_s` before the second in a row, doubled for each that follows, 30 s at most, while the first
            is immediate; `failed_episodes`, whether rows of lost episodes are removed ("drop") or kept ("cut").
    """

    def __init__(self, inner: Backend, options: FailureOptions) -> None:
        super().__init__(inner)
        self.source, self.may_lose_episodes = inner.source, True
        self._max, self._delay_s = options.max_restarts, options.restart_delay_s
        self._are_dropped = options.failed_episodes == "drop"
        self._group_size = max(1, len(self.agents))
        self._errors: dict[int, EnvError] = {}  # of environments that are not replaced yet
        self._lost = Lost({}, self._are_dropped)
        self._in_a_row: dict[int, int] = {}  # restarts, by environment
        self._ended: dict[int, int] = {}  # those of environments whose episode ended in the last step
        self._replaced: list[int] = []  # since they were taken

    @property
    def lost(self) -> Lost:
        return self._lost

    def lose(self, error: EnvError) -> Ids:
        if error.env_id is None:
            raise error
        first = error.env_id - error.env_id % self._group_size
        self._errors[first] = error
        self._update_lost()
        if first in self._ended:  # a row with invalid data is no normal end
            self._in_a_row[first] = self._ended.pop(first)
        return np.arange(first, first + self._group_size)

    def take_replaced(self) -> list[int]:
        replaced, self._replaced = self._replaced, []
        return replaced

    def step(self, action: NDArray[Any], env_ids: Ids, work: Work) -> RawStep:
        raw = self.inner.step(action, env_ids, work)
        self._ended.clear()
        if self._in_a_row and any_true(raw.over):
            self._reset_counts(raw.env_ids[raw.over].tolist())
        return raw

    def reset(self, seeds: Seeds, options: EachOptions) -> Begun:
        self._ended.clear()
        return self.inner.reset(seeds, options)

    def begin(self, env_ids: Ids, seeds: Seeds, options: EachOptions) -> Begun | None:
        self._ended.clear()
        if (first := int(env_ids[0])) not in self._errors:
            return self.inner.begin(env_ids, seeds, options)
        self._count_restart(first)
        return self._begin_in_another(first, env_ids, seeds, options)

    def replace_environments(self, backend: Backend) -> Backend:
        self._errors.clear()
        self._update_lost()
        return super().replace_environments(backend)

    def _update_lost(self) -> None:
        by_row = {row: error for first, error in self._errors.items() for row in range(first, first + self._group_size)}
        self._lost = Lost(by_row, self._are_dropped)

    def _reset_counts(self, env_ids: Iterable[int]) -> None:
        """Reset the counts of environments whose episodes ended normally, so far as the step shows."""
        for env_id in env_ids:
            first = env_id - env_id % self._group_size
            if first in self._in_a_row:
                self._ended[first] = self._in_a_row.pop(first)

    def _begin_in_another(self, first: int, env_ids: Ids, seeds: Seeds, options: EachOptions) -> Begun | None:
        """Replace an environment, and begin an episode in the new one; None if it cannot be made."""
        before = self._errors.pop(first)
        try:
            self.inner.rebuild(first)
            return self.inner.begin(env_ids, seeds, options)
        except EnvError as error:
            self._errors[first] = error
            return None
        except BaseException:  # Ctrl-C: it is not whole yet
            self._errors[first] = before
            raise
        finally:
            self._update_lost()

    def _count_restart(self, first: int) -> None:
        """Count a restart and wait for its delay.

        Raises:
            EnvError: it would be one restart too many; of the same kind as the environment's error, with its cause.
        """
        n_before, error = self._in_a_row.get(first, 0), self._errors[first]
        if n_before == self._max:
            self._in_a_row.pop(first, None)  # a caller that continues after the error may restart again
            if n_before == 0:
                reason = "max_restarts=0 allows no restart"
            else:
                times = "once" if n_before == 1 else f"{n_before} times in a row"
                reason = f"it was restarted {times} (max_restarts), and no episode ended in between"
            raise type(error)(f"{error}; {reason}", env_id=first) from error.__cause__
        self._in_a_row[first] = n_before + 1
        self._replaced.append(first)
        delay_s = 0.0 if n_before == 0 else min(self._delay_s * 2.0 ** (n_before - 1), _MAX_DELAY_S)
        _log.warning("%s; restarted in %g s, restart %d of %d in a row", error, delay_s, n_before + 1, self._max)
        time.sleep(delay_s)
