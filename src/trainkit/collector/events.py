"""What callbacks are told of the episodes that run: one object each, from before its reset to its end."""

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


@dataclass(slots=True, eq=False, repr=False)
class Episode:
    """One episode of one environment. What it shows of its last step is borrowed until the next.

    Attributes:
        env_id: of its environment.
        in_evaluation: whether it is played to evaluate.
        length: steps so far.
        total_reward: undiscounted return so far.
        user_data: empty at first, for callbacks to keep what they like in.
    """

    env_id: int
    in_evaluation: bool = field(kw_only=True)
    length: int = field(default=0, init=False)
    total_reward: float = field(default=0.0, init=False)
    user_data: dict[Any, Any] = field(default_factory=dict, init=False)
    _slots: list[int] = field(default_factory=list, init=False)
    _first_obs: Obs = field(default=None, init=False)  # rows [N, ...], None before its reset
    _last: tuple[Transition, Infos] | None = field(default=None, init=False)  # the last vector step it took part in
    _row: int = field(default=0, init=False)  # its row there

    def __repr__(self) -> str:
        return f"Episode(env_id={self.env_id}, length={self.length}, total_reward={self.total_reward:.5g})"

    @property
    def obs(self) -> Obs:
        """The observation it stands at, None before its reset."""
        if self._last is not None:
            return _row(self._last[0].next_obs, self._row)
        return None if self._first_obs is None else _row(self._first_obs, self.env_id)

    @property
    def action(self) -> Any:
        """The last action, as the policy gave it; None before the first."""
        return self._of_last("action")

    @property
    def reward(self) -> float | None:
        """The last reward, None before the first step."""
        return None if self._last is None else float(self._of_last("reward"))

    @property
    def terminated(self) -> bool:
        """Whether the last step terminated it; a lost life may, for the learner, while the game goes on."""
        return bool(self._of_last("terminated"))

    @property
    def truncated(self) -> bool:
        """Whether the last step truncated it."""
        return bool(self._of_last("truncated"))

    @property
    def info(self) -> dict[str, Any]:
        """What the environment told with the last step; empty before the first."""
        if self._last is None:
            return {}
        return self._last[1].row(self._row)

    @property
    def slots(self) -> NDArray[np.int64] | None:
        """The buffer's names of its rows [length], for `buffer.rewrite`; None where nothing is stored."""
        return np.array(self._slots, np.int64) if self._slots else None

    def _of_last(self, column: str) -> Any:
        return None if self._last is None else getattr(self._last[0], column)[self._row]


News = Iterator[tuple[Any, ...]]
Tell = Callable[[str, News], None]


class Watch:
    """Keep the episodes that run, and tell of their events in order, each once, whatever a listener raises.

    Args:
        n_envs: N.
        tell: called with an event's name and an iterator over what there is to say: the episode, and what else. It
            takes them one by one; what an exception leaves there is told when it is called again.
        heard: the events anybody wants to hear.
        in_evaluation: whether the episodes are played to evaluate.
    """

    def __init__(self, n_envs: int, tell: Tell, heard: Collection[str], *, in_evaluation: bool = False) -> None:
        self._tell, self._heard, self._in_evaluation = tell, frozenset(heard), in_evaluation
        self._episodes = [self._new(env_id) for env_id in range(n_envs)]
        self._waiting: set[int] = set()  # environments whose episode was created and has not begun
        self._untold: deque[tuple[str, News]] = deque()  # what `tell` shall be called with

    def created(self, env_ids: NDArray[np.intp]) -> None:
        """Note that episodes are about to begin; a reset that failed is made again without another word."""
        new = [env_id for env_id in env_ids.tolist() if env_id not in self._waiting]
        self._waiting.update(new)
        for env_id in new:
            self._episodes[env_id] = self._new(env_id)
        self._note("on_episode_created", new)

    def started(self, env_ids: NDArray[np.intp], obs: Obs) -> None:
        """Note that they have begun, at observations [N, ...]."""
        begun = env_ids.tolist()
        self._waiting.difference_update(begun)
        for env_id in begun:
            self._episodes[env_id]._first_obs = obs
        self._note("on_episode_start", begun)

    def stepped(
        self,
        step: Transition,
        infos: Infos,
        slots: NDArray[np.int64] | None,
        late_rewards: Mapping[int, float] = _NO_REWARDS,
    ) -> None:
        """Note a step of K environments, and what agents were paid that did not act."""
        last, env_ids = (step, infos), step.env_ids.tolist()
        names = repeat(None) if slots is None else slots.tolist()
        for row, (env_id, reward, slot) in enumerate(zip(env_ids, step.reward.tolist(), names, strict=False)):
            episode = self._episodes[env_id]
            episode.length += 1
            episode.total_reward += reward
            episode._last, episode._row = last, row
            if slot is not None:
                episode._slots.append(slot)
        for env_id, reward in late_rewards.items():
            self._episodes[env_id].total_reward += reward
        self._note("on_episode_step", env_ids)

    def ended(self, env_ids: NDArray[np.intp]) -> None:
        """Note that they are over."""
        self._note("on_episode_end", env_ids.tolist())

    def failed(self, errors: Mapping[int, Exception]) -> None:
        """Note that environments failed in the middle of their episodes, and that others are about to begin."""
        if "on_episode_failed" in self._heard:
            told = [(self._episodes[env_id], errors[env_id]) for env_id in sorted(errors)]
            self._untold.append(("on_episode_failed", iter(told)))
        self.created(np.array(sorted(errors)))

    def remade(self, envs: Envs, env_ids: Iterable[int]) -> None:
        """Note that environments were made anew."""
        if "on_env_created" in self._heard:
            self._untold.append(("on_env_created", iter([(envs, env_id) for env_id in env_ids])))

    def state_dict(self) -> list[dict[str, Any]]:
        """Return what is known of the episodes that run; of what callbacks keep in them, what has a name."""
        return [
            {
                "length": episode.length,
                "total_reward": episode.total_reward,
                "slots": list(episode._slots),
                "user_data": {key: value for key, value in episode.user_data.items() if isinstance(key, str)},
            }
            for episode in self._episodes
        ]

    def load_state_dict(self, states: Sequence[Mapping[str, Any]], obs: Obs) -> None:
        """Take over saved episodes, which stand at `obs` [N, ...]; nobody is told."""
        for episode, state in zip(self._episodes, states, strict=False):
            episode.length, episode.total_reward = state["length"], state["total_reward"]
            episode._slots, episode.user_data = list(state["slots"]), dict(state["user_data"])
            episode._first_obs, episode._last = obs, None

    def deliver(self) -> None:
        """Tell all that was noted."""
        while self._untold:
            first = self._untold[0]
            self._tell(*first)
            if self._untold and self._untold[0] is first:  # else a listener had it delivered
                self._untold.popleft()

    def _note(self, event: str, env_ids: list[int]) -> None:
        if event in self._heard:
            self._untold.append((event, zip([self._episodes[env_id] for env_id in env_ids])))

    def _new(self, env_id: int) -> Episode:
        return Episode(env_id, in_evaluation=self._in_evaluation)


def _row(obs: Obs, row: int) -> Obs:
    return tree.map_tree(lambda leaf: leaf[row], obs)
