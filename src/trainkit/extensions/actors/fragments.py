"""Fragments: several vector steps that an actor plays by itself, with a copy of the policy, for one message.

An actor steps its environments as `Envs` does here, and records what each of them returned. Here the same steps are
taken from these records, so that everything after `env.step` is what it is without actors. Random streams of the copy
follow from the seed of the environments and the clock alone: a fragment that is played again is equal.
"""

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trainkit.core import seeding
from trainkit.core.data import Obs
from trainkit.core.errors import RAISED, EnvError
from trainkit.core.worker_process import packed, unpacked
from trainkit.core.worker_protocol import Raised
from trainkit.envs.backends import EachOptions, Failure, Ids, Seeds, Take, Work
from trainkit.envs.envs import Envs, EpisodesState
from trainkit.envs.single import SingleBackend
from trainkit.envs.sync import SyncRunner
from trainkit.envs.worker import raised_by
from trainkit.extensions.actors.actor_runner import PlayedStep


class ActsAlone(Protocol):
    """A policy as an actor uses its copy."""

    def start_streams(self, root: int) -> None: ...

    def act(self, obs: Obs, **options: Any) -> Any: ...

    def set_weights(self, weights: Mapping[str, NDArray[Any]]) -> None: ...


@dataclass(frozen=True, slots=True)
class Start:
    """Where a fragment starts: the state of the actor's environments, and whether their next action is a first one."""

    state: EpisodesState
    starts: NDArray[np.bool_]  # [K]


class Player:
    """Plays fragments in an actor.

    Args:
        policy: a packed copy on the CPU.
        first: index of the actor's first environment.
        n_envs: the number of environments of all actors, by which the clock moves in a vector step.
        options: `stack`, `pad`, `mask_key` and `lives_key` of `make_envs`.
    """

    def __init__(self, policy: bytes, first: int, n_envs: int, options: Mapping[str, Any]) -> None:
        self._packed, self._first, self._n_envs, self._options = policy, first, n_envs, options
        self._step = 0  # the clock
        self._is_broken = False  # whether an environment failed since the last start

    def packed(self) -> bytes:
        """Return the player as it is sent."""
        return packed(self, "Actors.fragment", "the policy")

    def join(self, runner: SyncRunner) -> None:
        """Play in these environments, in their process."""
        self._recorder = _Recorder(runner)
        self._envs = Envs(SingleBackend(self._recorder), **self._options)
        self._policy: ActsAlone = unpacked(self._packed)
        self._starts = np.ones(self._envs.n, np.bool_)
        self._ids = self._first + self._envs.all_ids

    def play(
        self, n_steps: int, weights: Mapping[str, NDArray[Any]] | None, start: Start | None, step: int, explore: bool
    ) -> list[Any]:
        """Play vector steps and return them pickled; the last is the one in which an environment or the policy fails.

        Args:
            n_steps: their number.
            weights: of the policy; None: unchanged.
            start: None continues the last fragment, and plays nothing if that ended with a failure.
            step: the clock at the first step; ignored without `start`.
            explore: as in `Policy.act`.
        """
        if start is not None:
            self._envs.continue_from(start.state, self._first)
            self._starts, self._step, self._is_broken = start.starts, step, False
        played: list[Any] = []
        try:
            if weights is not None:
                self._policy.set_weights(weights)
            while len(played) < n_steps and not self._is_broken:
                played.append(self._play_step(explore=explore))
                self._step += self._n_envs
        except RAISED as error:  # of the policy: raised where the steps before it have been taken
            self._is_broken = True
            played.append(Raised.of(error, f"raised {type(error).__name__} in act: {error}"))
        return played

    def _play_step(self, *, explore: bool) -> bytes:
        """Act, step, and begin the episodes that follow."""
        envs, recorder = self._envs, self._recorder
        self._policy.start_streams(seeding.derive(envs.root, "fragment", self._first, self._step))
        output = self._policy.act(
            envs.obs, step=self._step, explore=explore, state=None, starts=self._starts, env_ids=self._ids
        )
        recorder.clear()
        try:
            outcome = envs.step(output.action, envs.all_ids)
            self._starts = outcome.ended
            if outcome.over.any():
                envs.begin(envs.all_ids[outcome.over])
        except EnvError:  # it fails again where the step is taken from the record
            self._is_broken = True
        step = PlayedStep(
            output.action, dict(output.extras), recorder.sent, recorder.answers, recorder.resets, self._is_broken
        )
        return pickle.dumps(tuple(step), pickle.HIGHEST_PROTOCOL)


class _Recorder:
    """A runner that records what its environments return in one vector step and the resets after it."""

    in_flight: Sequence[int] = ()

    def __init__(self, runner: SyncRunner) -> None:
        self._runner = runner
        self.clear()

    def clear(self) -> None:
        """Forget the last vector step."""
        self.sent: Sequence[Any] | NDArray[Any] = ()
        self.answers: list[Any] = []
        self.resets: dict[tuple[int, int], Any] = {}

    @property
    def spaces(self) -> Sequence[Any]:
        return self._runner.spaces

    def step(self, actions: Sequence[Any] | NDArray[Any], indices: Ids, work: Work) -> tuple[Ids, Take]:
        self.sent = actions
        _, take = self._runner.step(actions, indices, work)

        def recorded(row: int, index: int) -> Any:
            try:
                answer = take(row, index)
            except Failure as failure:
                self.answers.append(raised_by(failure))
                raise
            self.answers.append(answer)
            return answer

        return indices, recorded

    def reset(self, indices: Ids, seeds: Seeds, options: EachOptions) -> Take:
        take = self._runner.reset(indices, seeds, options)

        def recorded(row: int, index: int) -> Any:
            key = (index, seeds[row])
            try:
                self.resets[key] = take(row, index)
            except Failure as failure:
                self.resets[key] = raised_by(failure)
                raise
            return self.resets[key]

        return recorded

    def rebuild(self, index: int) -> Any:
        return self._runner.rebuild(index)

    def call(self, name: str, args: tuple[Any, ...], indices: Ids) -> list[Any]:
        return self._runner.call(name, args, indices)

    def fingerprints(self) -> list[Any]:
        return self._runner.fingerprints()

    def close(self) -> None:
        self._runner.close()

    def detach(self) -> None:
        self._runner.detach()
