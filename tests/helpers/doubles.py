"""Stand-ins for the collector's neighbours: a policy that plays by rule, a buffer that keeps everything."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import ArrayLike, NDArray

from tests.helpers.tagged import N_ACTIONS, decode
from trainkit.collector.events import Calls, Listener
from trainkit.core import tree
from trainkit.core.data import ActOutput, ArraySpec, Horizon, Obs, RowSpec, Transition, TransitionBatch
from trainkit.core.spaces import legal_actions


class Call(NamedTuple):
    """One call of a policy's `act`."""

    tags: NDArray[np.int64]  # [K, 4], of the newest frames
    step: int
    explore: bool
    state: Any
    starts: NDArray[np.bool_]
    env_ids: NDArray[np.intp]


class Player:
    """Act in tagged environments by rule, legally, and write down every call; `state` counts the calls."""

    observes = False
    policies: Mapping[str, Any] = {}

    def __init__(self, *, has_extras: bool = False) -> None:
        self.extras_spec: Mapping[str, ArraySpec] = {}
        if has_extras:
            self.extras_spec = {"wish": ArraySpec(shape=(2,), dtype=np.dtype(np.float32))}
        self.calls: list[Call] = []

    def check_spaces(self, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> None:
        """Take any."""

    def behavior_for(self, games: Any, **how: Any) -> None:
        """Act in all rows."""

    def act(
        self,
        obs: Obs,
        *,
        step: int = 0,
        explore: bool = False,
        state: Any = None,
        starts: NDArray[np.bool_] | None = None,
        env_ids: NDArray[np.intp] | None = None,
    ) -> ActOutput:
        tags = decode(obs)
        tags = tags[:, -1] if tags.ndim == 3 else tags
        assert starts is not None
        assert env_ids is not None
        self.calls.append(Call(tags, step, explore, state, starts.copy(), env_ids.copy()))
        action = tags[:, :3].sum(axis=1) % N_ACTIONS
        mask = legal_actions(obs)
        if mask is not None:
            action = np.where(mask[np.arange(len(tags)), action], action, mask.argmax(axis=1))
        extras = {name: tags[:, :2].astype(np.float32) for name in self.extras_spec}
        return ActOutput(action, extras, len(self.calls))


class Still(Player):
    """Always answer the same action, in any environment."""

    def __init__(self, action: ArrayLike = 0) -> None:
        super().__init__()
        self.action = np.asarray(action)

    def act(self, obs: Obs, *, env_ids: NDArray[np.intp] | None = None, **options: Any) -> ActOutput:
        assert env_ids is not None
        return ActOutput(np.repeat(self.action[None], len(env_ids), axis=0), {}, None)


class Ledger:
    """A buffer that copies every row, in the order they came."""

    prioritized = False
    is_seeded = True
    capacity = 2**62
    nbytes = 0
    columns = ()

    def __init__(self) -> None:
        self.spec: RowSpec | None = None
        self.steps: list[Transition] = []
        self.cuts: list[int] = []  # rows there were at each cut

    def __len__(self) -> int:
        return sum(len(step.env_ids) for step in self.steps)

    def bind(self, spec: RowSpec) -> None:
        self.spec = spec

    def add(self, transition: Transition) -> NDArray[np.int64]:
        extras = {name: column.copy() for name, column in transition.extras.items()}
        columns = [tree.map_tree(np.copy, column) for column in transition[:-1]]
        self.steps.append(Transition(*columns, extras))
        return np.arange(len(transition.env_ids))

    def cut(self, env_ids: ArrayLike) -> None:
        self.cuts.append(len(self))

    def drop(self, env_ids: ArrayLike) -> int:
        raise NotImplementedError

    def rows(self) -> Transition:
        """Return all rows, [rows, ...]."""

        def joined(*columns: Any) -> Any:
            return tree.map_tree(lambda *leaves: np.concatenate(leaves), *columns)

        return Transition(*(joined(*columns) for columns in zip(*self.steps, strict=True)))

    def seed(self, root: int) -> None:
        raise NotImplementedError

    def sample(self, batch_size: int, *, horizon: Horizon, step: int = 0, columns: Any = ()) -> TransitionBatch:
        raise NotImplementedError

    def update_priorities(self, slots: NDArray[np.int64], priority: NDArray[Any]) -> None:
        raise NotImplementedError

    def metrics(self, step: int) -> dict[str, float]:
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        raise NotImplementedError

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


def one_by_one(note: Callable[..., object]) -> Listener:
    """Let `EpisodeEvents` call `note(event, episode, ...)` for every event."""

    def listen(event: str, calls: Calls) -> None:
        for one in calls:
            note(event, *one)

    return listen
