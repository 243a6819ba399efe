"""The behavior policy of a collector whose environments play fragments by themselves; see `fragments`.

It requests fragments, and returns the actions that were played vector step by vector step, as if the policy had been
called here.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from trainkit.collector.single_behavior import SingleBehavior
from trainkit.core import tree
from trainkit.core.data import ActOutput, ArraySpec, Obs
from trainkit.core.errors import Checks
from trainkit.core.protocols import ActingPolicy, OngoingCollect
from trainkit.core.worker_process import packed
from trainkit.envs.envs import Envs, rows_of
from trainkit.extensions.actors.actor_runner import Actor, ActorRunner
from trainkit.extensions.actors.fragments import Player, Start

VERSION = "policy_version"  # the column: the number of updates that the weights of a row's action had
_STREAMS = {"rng", "noise"}  # of a policy without a state from step to step

Weights = dict[str, NDArray[Any]]


@runtime_checkable
class Copyable(Protocol):
    """A policy whose copies act in other processes."""

    @property
    def n_updates(self) -> int: ...

    def on_cpu(self) -> Any: ...

    def get_weights(self) -> Weights: ...


@dataclass(slots=True)
class Requested:
    """A fragment that an actor was to play.

    Attributes:
        n_left: vector steps of it that are not taken yet.
        weights: of the policy that plays it.
        version: of the policy.
    """

    n_left: int
    weights: Weights
    version: int


class _Group:
    """An actor, its environments, and the fragments that it was to play."""

    def __init__(self, actor: Actor, envs: Envs, policy: bytes) -> None:
        assert envs.config is not None, "actors are made by make_envs"
        rows = envs.config.rows
        options = {name: getattr(rows, name) for name in ("stack", "pad", "mask_key", "lives_key")}
        self.actor = actor
        self.ids = envs.all_ids[actor.first : actor.first + actor.n]
        self.requested: deque[Requested] = deque()
        self._player = Player(policy, actor.first, envs.n, options)
        self._packed_player = self._player.packed()
        self._sent: Weights | None = None  # the weights that the actor has

    def request(self, fragment: Requested, start: Start | None, step: int, *, explore: bool) -> None:
        """Let the actor play a fragment."""
        has_policy = self.actor.player is self._player  # else it is a new actor
        weights = None if has_policy and self._sent is fragment.weights else fragment.weights
        self.actor.play(self._player, self._packed_player, fragment.n_left, (weights, start, step, explore))
        self._sent = fragment.weights
        self.requested.append(fragment)

    def forget_taken(self) -> None:
        """Forget vector steps that were taken, and those that are lost, as an environment failed or all were reset."""
        n_gone = sum(fragment.n_left for fragment in self.requested) - self.actor.n_ahead
        while n_gone > 0:
            n_of_first = min(n_gone, self.requested[0].n_left)
            self.requested[0].n_left -= n_of_first
            n_gone -= n_of_first
            if self.requested[0].n_left == 0:
                self.requested.popleft()


class FragmentBehavior(SingleBehavior):
    """Acts by what actors have played by themselves; see `BehaviorPolicy`.

    Where that is not possible, as in collects of episodes, the policy here acts.

    Args:
        policy: of which the actors have copies.
        collect: of the collector whose environments are in actors.
        fragment, lag: as in `Actors`.

    Raises:
        ConfigError: the policy cannot be copied, or has a state from step to step; the environments are games of
            several agents, or have processors.
    """

    acts_here = False

    def __init__(self, policy: ActingPolicy, collect: OngoingCollect, fragment: int, lag: int) -> None:
        self._collect, self._fragment, self.max_lag = collect, fragment, lag
        self._envs: Envs = collect.envs
        super().__init__(policy, self._envs.n, self._envs.action_space)
        self._policy: Any = policy
        config = self._envs.config
        assert config is not None, "actors are made by make_envs"
        remedy = "leave fragment and lag of Actors out"
        with Checks("Collector") as checks:
            rule = f".envs have several agents, and fragments are for environments of one: {remedy}"
            checks.require(not self._envs.agents, rule)
            rule = ".envs have processors, which transform what the policy here sees, and actors have a copy of it"
            checks.require(not config.processors, f"{rule}: {remedy}, or give wrappers instead")
            can_copy = isinstance(policy, Copyable)
            rule = f".policy {type(policy).__name__} cannot be copied to actors, without get_weights and on_cpu"
            if checks.require(can_copy, f"{rule}: {remedy}"):
                has_state = getattr(policy, "state_size", 0) > 0 or bool({*policy.streams_state()} - _STREAMS)
                rule = f".policy {type(policy).__name__} has a state from step to step, or its exploration has"
                checks.require(not has_state, f"{rule}, which copies in actors do not share: {remedy}")
        self._groups: list[_Group] = []
        self._weights: Weights = {}  # that were requested last
        self._to_repeat: list[list[Requested]] = []  # by group, of a run that is resumed
        self._repeats_in = np.zeros(0, np.int64)  # the episodes [N] that they are of

    @property
    def extras_spec(self) -> Mapping[str, ArraySpec]:
        return {**self._policy.extras_spec, VERSION: ArraySpec(shape=(), dtype=np.dtype(np.int64))}

    def row_extras(self, env_ids: NDArray[np.intp]) -> dict[str, NDArray[Any]]:
        return {VERSION: np.full(len(env_ids), self._policy.n_updates)}

    def act(
        self,
        obs: Obs,
        *,
        step: int,
        explore: bool,
        state: Any,
        starts: NDArray[np.bool_],
        env_ids: NDArray[np.intp],
    ) -> ActOutput:
        """Return the actions [K] that actors have played, and request the fragments that follow."""
        if len(env_ids) < self._envs.n or self._collect.n_vector_steps_left == 0:
            return self._act_here(obs, step, starts, env_ids, explore=explore)
        self._request(starts, step, explore=explore)
        outputs: list[ActOutput] = []
        for group in self._groups:
            head = group.actor.head()
            if head is None:  # its actor died: the step that follows reports it
                rows = rows_of(obs, group.ids), step, starts[group.ids], group.ids
                outputs.append(self._act_here(*rows, explore=explore))
            else:
                version = np.full(len(group.ids), group.requested[0].version)
                outputs.append(ActOutput(head.action, {**head.extras, VERSION: version}, None))
        action, extras = tree.map_tree(lambda *parts: np.concatenate(parts), *((one[0], one[1]) for one in outputs))
        return ActOutput(action, extras, None)

    def _act_here(
        self, obs: Obs, step: int, starts: NDArray[np.bool_], env_ids: NDArray[np.intp], *, explore: bool
    ) -> ActOutput:
        """Let the policy act in this process."""
        output = self._policy.act(obs, step=step, explore=explore, state=None, starts=starts, env_ids=env_ids)
        return ActOutput(output.action, {**output.extras, **self.row_extras(env_ids)}, None)

    # ---- requests ----

    def _request(self, starts: NDArray[np.bool_], step: int, *, explore: bool) -> None:
        """Request the vector steps that the weights may be used for, at most two fragments ahead."""
        runner = self._envs.runner
        assert isinstance(runner, ActorRunner), "it acts in actors"
        actors = runner.actors
        if [group.actor for group in self._groups] != [*actors]:  # at first, and when environments were rebuilt
            policy = packed(self._policy.on_cpu(), "Actors.fragment", type(self._policy).__name__)
            self._groups = [_Group(actor, self._envs, policy) for actor in actors]
        for group in self._groups:
            group.forget_taken()
        self._repeat(starts, step, explore=explore)
        ahead = max(group.actor.n_ahead for group in self._groups)
        missing = [group for group in self._groups if group.actor.n_ahead == 0]
        ahead = ahead or self._n_fresh(self._fragment)  # a new fragment, or one as long as those of the others
        both = ahead + self._fragment
        continues = self.max_lag > 0 and ahead <= self._fragment and self._n_fresh(both) == both
        if not (missing or continues):
            return
        weights, version = self._current_weights(), self._policy.n_updates
        for group in missing:
            start = Start(self._envs.episodes_state(group.ids), starts[group.ids])
            group.request(Requested(ahead, weights, version), start, step, explore=explore)
        for group in self._groups if continues else ():
            group.request(Requested(self._fragment, weights, version), None, step, explore=explore)

    def _current_weights(self) -> Weights:
        """Return the policy's weights: the same object as the last time if they have not changed."""
        weights = self._policy.get_weights()
        if not _are_equal(weights, self._weights):
            self._weights = weights
        return self._weights

    def _n_fresh(self, most: int) -> int:
        """Return for how many of the next vector steps, at most, these weights are new enough when they are stored."""
        n_steps = min(most, self._collect.n_vector_steps_left)  # no update is performed within a collect
        while n_steps < most and self._is_fresh_after(n_steps + 1):
            n_steps += 1
        return n_steps

    def _is_fresh_after(self, n_steps: int) -> bool:
        """Return whether the weights are new enough when the last of the next n vector steps is stored."""
        n_updates = self._collect.most_updates_before(n_steps)
        return self.max_lag > 0 and n_updates is not None and n_updates <= self.max_lag

    # ---- saving and resuming ----

    def state_dict(self) -> dict[str, Any]:
        """Return the fragments that are played and not taken: each is played again by a run that is resumed."""
        for group in self._groups:
            group.forget_taken()
        kept = self._to_repeat or [list(group.requested) for group in self._groups]
        if not any(kept):
            return {}
        weights = list({id(one.weights): one.weights for fragments in kept for one in fragments}.values())
        which = {id(one): index for index, one in enumerate(weights)}
        requested = [[[one.n_left, which[id(one.weights)], one.version] for one in fragments] for fragments in kept]
        return {"weights": weights, "requested": requested, "episodes": self._envs.episodes.copy()}

    def load_state_dict(self, state: Mapping[str, Any], *, with_running: bool) -> None:
        self._to_repeat = []
        if with_running and state:
            weights = state["weights"]
            self._to_repeat = [
                [Requested(n_left, weights[index], version) for n_left, index, version in fragments]
                for fragments in state["requested"]
            ]
            self._repeats_in = state["episodes"]

    def _repeat(self, starts: NDArray[np.bool_], step: int, *, explore: bool) -> None:
        """Request the fragments of a resumed run again."""
        to_repeat, self._to_repeat = self._to_repeat, []
        if len(to_repeat) != len(self._groups) or not np.array_equal(self._repeats_in, self._envs.episodes):
            return  # other actors, or a reset, as the episodes could not be continued
        for group, fragments in zip(self._groups, to_repeat, strict=True):
            start: Start | None = Start(self._envs.episodes_state(group.ids), starts[group.ids])
            for fragment in fragments:
                group.request(fragment, start, step, explore=explore)
                start = None


def _are_equal(one: Weights, other: Weights) -> bool:
    return one.keys() == other.keys() and all(map(np.array_equal, one.values(), other.values()))
