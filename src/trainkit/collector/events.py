"""Episode events: one `Episode` object for each episode, from before its reset to its end, for callbacks."""

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit.core import tree
from trainkit.core.data import Obs, Transition
from trainkit.envs.backends import Infos
from trainkit.envs.envs import Envs

_NO_REWARDS: Mapping[int, float] = {}
_OF_EPISODES = "on_episode_created", "on_episode_start", "on_episode_step", "on_episode_end"  # which checkpoints hold


@dataclass(slots=True, eq=False, repr=False)
class Episode:
    """One episode of one environment; the data of its last step are valid until the next step.

    Attributes:
        env_id: of its environment.
        in_evaluation: whether it is played to evaluate.
        agent: the name of its row of a group; "" where each row is alone.
        length: steps so far.
        total_reward: undiscounted return so far.
        seconds: from its start to its last step, including updates between its steps.
        user_data: empty at first; callbacks may store anything in it.
    """

    env_id: int
    in_evaluation: bool = field(kw_only=True)
    agent: str = field(default="", kw_only=True)
    _player: Callable[[int], str] | None = field(default=None, kw_only=True)
    length: int = field(default=0, init=False)
    total_reward: float = field(default=0.0, init=False)
    seconds: float = field(default=0.0, init=False)
    user_data: dict[Any, Any] = field(default_factory=dict, init=False)
    _slots: list[int] = field(default_factory=list, init=False)
    _first_obs: Obs = field(default=None, init=False)  # rows [N, ...], None before its reset
    _started: float = field(default_factory=time.perf_counter, init=False)
    # The last vector step it took part in; without infos where it comes from a checkpoint.
    _last: tuple[Transition, Infos | None] | None = field(default=None, init=False)
    _row: int = field(default=0, init=False)  # its row there

    def __repr__(self) -> str:
        return f"Episode(env_id={self.env_id}, length={self.length}, total_reward={self.total_reward:.5g})"

    @property
    def policy(self) -> str:
        """The name of the policy that controls the row, from the episode's start on; "" of an only policy."""
        return "" if self._player is None else self._player(self.env_id)

    @property
    def obs(self) -> Obs:
        """The current observation, None before its reset."""
        if self._last is not None:
            return _row(self._last[0].next_obs, self._row)
        return None if self._first_obs is None else _row(self._first_obs, self.env_id)

    @property
    def action(self) -> Any:
        """The last action, as the policy returned it; None before the first."""
        return self._of_last("action")

    @property
    def reward(self) -> float | None:
        """The last reward, None before the first step."""
        return None if self._last is None else float(self._of_last("reward"))

    @property
    def terminated(self) -> bool:
        """Whether the last step terminated it, for the learner: a lost life may, while the environment's continues."""
        return bool(self._of_last("terminated"))

    @property
    def truncated(self) -> bool:
        """Whether the last step truncated it."""
        return bool(self._of_last("truncated"))

    @property
    def info(self) -> dict[str, Any]:
        """The environment's info of the last step; empty before the first, and in a run that resumes at this event."""
        if self._last is None or self._last[1] is None:
            return {}
        return self._last[1].row(self._row)

    @property
    def slots(self) -> NDArray[np.int64] | None:
        """The slots of its rows in the buffer [length], for `buffer.rewrite`; None where nothing is stored."""
        return np.array(self._slots, np.int64) if self._slots else None

    def _of_last(self, column: str) -> Any:
        return None if self._last is None else getattr(self._last[0], column)[self._row]

    def state_dict(self, *, with_last: bool) -> dict[str, Any]:
        """Return the episode for a checkpoint, and its last step; of its user data, entries whose keys are strings."""
        last = self._last[0].at(slice(self._row, self._row + 1)) if with_last and self._last is not None else None
        return {
            "length": self.length,
            "total_reward": self.total_reward,
            "seconds": self.seconds,
            "slots": list(self._slots),
            "user_data": {key: value for key, value in self.user_data.items() if isinstance(key, str)},
            "last": None if last is None else [tree.to_plain(own) for own in last._replace(extras=dict(last.extras))],
        }

    def load_state_dict(self, state: Mapping[str, Any], obs: Obs) -> None:
        """Restore a saved episode; `obs` [N, ...] are the current observations."""
        self.length, self.total_reward = state["length"], state["total_reward"]
        self.seconds = state.get("seconds", 0.0)  # older files have none
        self._started = time.perf_counter() - self.seconds
        self._slots, self.user_data = list(state["slots"]), dict(state["user_data"])
        last = None if state["last"] is None else Transition(*map(tree.from_plain, state["last"]))
        self._first_obs, self._last, self._row = obs, None if last is None else (last, None), 0


Call = tuple[Any, ...]  # the arguments of a call of an event's listeners: the episode, and what else
Calls = Iterator[Call]
Listener = Callable[[str, Calls], None]


class EpisodeEvents:
    """The current episode of each environment, and the events to deliver: in order, each once, despite exceptions.

    Args:
        n_envs: N.
        listener: called with an event's name and an iterator over the arguments of its calls, which it consumes one by
            one; those that an exception leaves there are delivered when it is called again.
        subscribed: the events that have subscribers.
        in_evaluation: whether the episodes are played to evaluate.
        agents: the names of the rows of a group, in order; empty where each is alone.
        player: returns the name of the policy that controls a row.
    """

    def __init__(
        self,
        n_envs: int,
        listener: Listener,
        subscribed: Collection[str],
        *,
        in_evaluation: bool = False,
        agents: Sequence[str] = (),
        player: Callable[[int], str] | None = None,
    ) -> None:
        self._agents, self._player = agents, player
        self._listener, self._subscribed, self._in_evaluation = listener, frozenset(subscribed), in_evaluation
        self._episodes = [self._new(env_id) for env_id in range(n_envs)]
        self._waiting: set[int] = set()  # environments whose episode was created and has not started
        self._pending: deque[tuple[str, deque[Call]]] = deque()

    def created(self, env_ids: NDArray[np.intp]) -> None:
        """Record that episodes are about to start; repeating a failed reset creates no new ones."""
        new = [env_id for env_id in env_ids.tolist() if env_id not in self._waiting]
        self._waiting.update(new)
        for env_id in new:
            self._episodes[env_id] = self._new(env_id)
        self._note("on_episode_created", new)

    def started(self, env_ids: NDArray[np.intp], obs: Obs) -> None:
        """Record that episodes have started, with observations [N, ...]; those that run already go on."""
        ids = [env_id for env_id in env_ids.tolist() if env_id in self._waiting]
        self._waiting.difference_update(ids)
        now = time.perf_counter()
        for env_id in ids:
            self._episodes[env_id]._first_obs, self._episodes[env_id]._started = obs, now
        self._note("on_episode_start", ids)

    def stepped(
        self,
        step: Transition,
        infos: Infos,
        slots: NDArray[np.int64] | None,
        late_rewards: Mapping[int, float] = _NO_REWARDS,
    ) -> None:
        """Record a step of K environments, and the rewards of rows that did not act."""
        last, env_ids, now = (step, infos), step.env_ids.tolist(), time.perf_counter()
        slot_of_row = repeat(None) if slots is None else slots.tolist()
        for row, (env_id, reward, slot) in enumerate(zip(env_ids, step.reward.tolist(), slot_of_row, strict=False)):
            episode = self._episodes[env_id]
            episode.length += 1
            episode.total_reward += reward
            episode.seconds = now - episode._started
            episode._last, episode._row = last, row
            if slot is not None:
                episode._slots.append(slot)
        for env_id, reward in late_rewards.items():
            self._episodes[env_id].total_reward += reward
        self._note("on_episode_step", env_ids)

    def ended(self, env_ids: NDArray[np.intp]) -> None:
        """Record that episodes have ended."""
        self._note("on_episode_end", env_ids.tolist())

    def failed(self, errors: Mapping[int, Exception]) -> None:
        """Record that environments failed during their episodes, and that new episodes are about to start."""
        if "on_episode_failed" in self._subscribed:
            calls = [(self._episodes[env_id], errors[env_id]) for env_id in sorted(errors)]
            self._pending.append(("on_episode_failed", deque(calls)))
        self._waiting.difference_update(errors)  # a reset that failed is the end of its episode
        self.created(np.array(sorted(errors)))

    def rebuilt(self, envs: Envs, env_ids: Iterable[int]) -> None:
        """Record that environments were rebuilt."""
        if "on_env_created" in self._subscribed:
            self._pending.append(("on_env_created", deque([(envs, env_id) for env_id in env_ids])))

    def deliver(self) -> None:
        """Call the listener with all events noted so far."""
        while self._pending:
            first = self._pending[0]
            event, calls = first
            self._listener(event, _taken_from(calls))
            if self._pending and self._pending[0] is first:  # else a callback had it delivered
                self._pending.popleft()

    def state_dict(self) -> dict[str, Any]:
        """Return the current episodes, and the events that are to be delivered, with the episodes that are over."""
        pending = [(event, [one for one, *_ in calls]) for event, calls in self._pending if event in _OF_EPISODES]
        over = {one.env_id: one for _, calls in pending for one in calls if one is not self._episodes[one.env_id]}
        return {
            "current": [one.state_dict(with_last=bool(pending)) for one in self._episodes],
            "over": [[env_id, one.state_dict(with_last=True)] for env_id, one in over.items()],
            "pending": [
                [event, [[one.env_id, one is over.get(one.env_id)] for one in calls]] for event, calls in pending
            ],
            "waiting": sorted(self._waiting),
        }

    def load_state_dict(self, state: Mapping[str, Any], obs: Obs) -> None:
        """Restore saved episodes, whose current observations are `obs` [N, ...], and the events to be delivered."""
        for episode, own in zip(self._episodes, state["current"], strict=False):
            episode.load_state_dict(own, obs)
        over = {env_id: self._new(env_id) for env_id, _ in state["over"]}
        for env_id, own in state["over"]:
            over[env_id].load_state_dict(own, obs)
        self._waiting = set(state["waiting"])
        self._pending = deque(
            (event, deque([(over[env_id] if is_over else self._episodes[env_id],) for env_id, is_over in calls]))
            for event, calls in state["pending"]
            if event in self._subscribed
        )

    def _note(self, event: str, env_ids: list[int]) -> None:
        if event in self._subscribed:
            self._pending.append((event, deque([(self._episodes[env_id],) for env_id in env_ids])))

    def _new(self, env_id: int) -> Episode:
        agent = self._agents[env_id % len(self._agents)] if self._agents else ""
        return Episode(env_id, in_evaluation=self._in_evaluation, agent=agent, _player=self._player)


def _taken_from(calls: deque[Call]) -> Calls:
    """Yield the calls, each when it is no longer among them."""
    while calls:
        yield calls.popleft()


def _row(obs: Obs, row: int) -> Obs:
    return tree.map_tree(lambda leaf: leaf[row], obs)
