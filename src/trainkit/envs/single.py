"""The backend of Gymnasium's environments, whatever runs them: a row for each."""

import contextlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit.core.spaces import check_spaces
from trainkit.envs.backends import (
    Begun,
    EachOptions,
    Fingerprint,
    HasEnvironments,
    Ids,
    RawStep,
    Runner,
    Seeds,
    Work,
    check_equal,
)
from trainkit.envs.validation import RowReader


class SingleBackend(HasEnvironments):
    """Environments of a row each, each reset explicitly and seeded for each episode.

    Args:
        runner: of the environments; closed if they are rejected.
    """

    takes_options = seeds_episodes = True
    runner: Runner

    def __init__(self, runner: Runner) -> None:
        self.runner, self.n = runner, len(runner.spaces)
        with contextlib.ExitStack() as unfinished:
            unfinished.callback(runner.close)
            first = runner.spaces[0]
            self.observation_space, self.action_space = first.observation_space, first.action_space
            for env_id, own in enumerate(runner.spaces):
                check_equal(env_id, own, self)
            check_spaces(self.observation_space, self.action_space)
            self._reader = RowReader(self.observation_space)
            unfinished.pop_all()

    @property
    def in_flight(self) -> Ids:
        return np.array(self.runner.in_flight, np.intp)

    def reset(self, seeds: Seeds, options: EachOptions) -> Begun:
        return self.begin(np.arange(self.n), seeds, options)

    def begin(self, env_ids: Ids, seeds: Seeds, options: EachOptions) -> Begun:
        return self._reader.read_resets(env_ids, self.runner.reset(env_ids, seeds, options))

    def step(self, action: NDArray[Any], env_ids: Ids, work: Work) -> RawStep:
        return self._reader.read_steps(*self.runner.step(action, env_ids, work))

    def rebuild(self, env_id: int) -> None:
        check_equal(env_id, self.runner.rebuild(env_id), self)

    def call(self, name: str, args: tuple[Any, ...], env_ids: Ids) -> list[Any]:
        return self.runner.call(name, args, env_ids)

    def fingerprints(self) -> list[Fingerprint]:
        return self.runner.fingerprints()

    def close(self) -> None:
        self.runner.close()

    def detach(self) -> None:
        self.runner.detach()
