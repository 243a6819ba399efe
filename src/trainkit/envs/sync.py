"""Running environments one by one in this process."""

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray

from trainkit.core.errors import RAISED
from trainkit.core.protocols import EnvSpaces
from trainkit.envs.backends import (
    EachOptions,
    Failure,
    Fingerprint,
    Ids,
    Seeds,
    Take,
    Work,
    call_or_read,
    what_raised,
)
from trainkit.envs.fingerprints import fingerprint
from trainkit.envs.ownership import claim_environment, free_environments

_log = logging.getLogger(__name__)


class SyncRunner:
    """Run environments one by one, in this process; each steps when its answer is taken."""

    in_flight: Sequence[int] = ()

    def __init__(self, factories: Sequence[Callable[[], Any]]) -> None:
        self.envs: list[Any] = []
        self._factories = factories
        with contextlib.ExitStack() as made:
            made.callback(self.close)  # those made before one was rejected
            for index, factory in enumerate(factories):
                env = factory()
                claim_environment(env, self, index)
                self.envs.append(env)
            made.pop_all()

    @property
    def spaces(self) -> Sequence[EnvSpaces]:
        return self.envs

    def reset(self, indices: Ids, seeds: Seeds, options: EachOptions) -> Take:
        return self.resets(seeds, options)

    def resets(self, seeds: Seeds, options: EachOptions) -> Take:
        """Return what resets an environment, with the seed and the options of its row."""

        def take(row: int, index: int) -> Any:
            try:
                own = options[row]
                return self.envs[index].reset(seed=seeds[row], options=None if own is None else dict(own))
            except RAISED as error:
                raise _raised("reset", index, error) from error

        return take

    def step(self, actions: Sequence[Any] | NDArray[Any], indices: Ids, work: Work) -> tuple[Ids, Take]:
        if work is not None:
            work()
        return indices, self.steps(actions)

    def steps(self, actions: Sequence[Any] | NDArray[Any]) -> Take:
        """Return what steps an environment, with the action of its row."""

        def take(row: int, index: int) -> Any:
            try:
                return self.envs[index].step(actions[row])
            except RAISED as error:
                raise _raised("step", index, error) from error

        return take

    def rebuild(self, index: int) -> Any:
        self._close_one(index)
        free_environments([self.envs[index]], self)
        self.envs[index] = self._factories[index]()
        claim_environment(self.envs[index], self, index)
        return self.envs[index]

    def call(self, name: str, args: tuple[Any, ...], indices: Ids) -> list[Any]:
        take = self.calls(name, args)
        return [take(row, index) for row, index in enumerate(indices.tolist())]

    def calls(self, name: str, args: tuple[Any, ...]) -> Take:
        """Return what calls a method of an environment, or reads an attribute."""

        def take(row: int, index: int) -> Any:
            try:
                return call_or_read(self.envs[index], name, args)
            except RAISED as error:
                raise _raised(name, index, error) from error

        return take

    def fingerprints(self) -> list[Fingerprint]:
        return [fingerprint(env) for env in self.envs]

    def close(self) -> None:
        self.detach()
        for index in range(len(self.envs)):
            self._close_one(index)

    def detach(self) -> None:
        free_environments(self.envs, self)

    def _close_one(self, index: int) -> None:
        """Close an environment; what it raises is logged, so that the others are closed, too."""
        try:
            self.envs[index].close()
        except RAISED as error:
            _log.warning("env %d raised %s in close: %s", index, type(error).__name__, error)


def _raised(method: str, index: int, error: BaseException) -> Failure:
    return Failure(index, what_raised(method, error))
