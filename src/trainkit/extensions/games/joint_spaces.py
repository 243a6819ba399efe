"""Joint spaces: one observation and action space for the agents of a game that have different ones.

Rows of all agents have the same arrays. A joint observation has a part for each kind of agent, blank in the rows of
others, and an `action_mask` where agents have different numbers of actions or masks of their own. An `AgentView` takes
an agent's own observations out of such rows and turns its own actions into joint ones.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from trainkit.core import tree
from trainkit.core.data import ACTION_MASK, Obs, Transition
from trainkit.core.errors import ConfigError
from trainkit.core.spaces import Spaces, check_spaces, leaf_spaces, space_bounds


class AgentView:
    """An agent's own part of joint rows.

    Args:
        own: the agent's spaces.
        part: the key of its part in a joint observation; None where all agents have the same spaces.
        width: of a joint action of floats; None for Discrete actions.

    Attributes:
        observation_space: the agent's own.
        action_space: the agent's own, a Discrete one counted from 0.
    """

    def __init__(self, own: Spaces, part: str | None, width: int | None) -> None:
        self.part, self._width, self._own_action = part, width, own.action_space
        self.observation_space = own.observation_space
        self._n_actions = _n_actions(own.action_space)
        self.action_space = spaces.Discrete(self._n_actions) if self._n_actions else own.action_space

    def obs(self, rows: Obs) -> Obs:
        """Return the agent's own observations [K, ...] of joint rows [K, ...], which are all its own."""
        if self.part is None:
            return rows
        own = rows[self.part]
        if _has_mask(self.observation_space):
            return {**own, ACTION_MASK: rows[ACTION_MASK][..., : self._n_actions]}
        return own

    def joint_action(self, action: NDArray[Any]) -> NDArray[Any]:
        """Return the agent's own actions [K, ...] as joint ones [K, ...]."""
        if self.part is None or self._width is None:
            return action
        padded = np.zeros((len(action), self._width), np.float32)
        flat = action.reshape(len(action), -1)
        padded[:, : flat.shape[1]] = flat
        return padded

    def own_rows(self, rows: Transition) -> Transition:
        """Return joint rows [K], which are all the agent's own, with its own observations and actions."""
        if self.part is None:
            return rows
        action = rows.action
        if self._width is not None:
            shape = self.action_space.shape or ()
            action = action[:, : _size(self.action_space)].reshape(len(action), *shape)
        return rows._replace(obs=self.obs(rows.obs), next_obs=self.obs(rows.next_obs), action=action)

    def own_action(self, action: NDArray[Any]) -> Any:
        """Return a joint action of one row as the agent's own environment takes it.

        Raises:
            ValueError: it is not one of the agent's actions.
        """
        space = self._own_action
        if isinstance(space, spaces.Discrete):
            if action >= space.n:
                raise ValueError(f"received action {action}, and has {space.n} actions: use the action_mask")
            return action + space.start
        assert isinstance(space, spaces.Box), "`JointSpaces` accepts no other"
        own = action[: _size(space)].reshape(space.shape)
        return np.clip(own, space.low, space.high).astype(space.dtype)


class JointSpaces:
    """The joint spaces of agents with different spaces.

    Args:
        own: {agent: its spaces}.

    Attributes:
        observation_space: joint: a Dict with a part for each kind of agent, named by the first agent of that kind.
        action_space: joint: a Discrete space with the largest number of actions, or a Box of the largest width.
        views: {agent: its view}.

    Raises:
        ConfigError: the agents' actions are not all Discrete or all of a Box.
    """

    def __init__(self, own: Mapping[str, Spaces]) -> None:
        kinds: dict[str, Spaces] = {}
        part_of: dict[str, str] = {}
        for agent, one in own.items():
            check_spaces(one.observation_space, one.action_space)
            part_of[agent] = next((name for name, known in kinds.items() if known == one), agent)
            kinds.setdefault(part_of[agent], one)
        self.action_space = _joint_actions({agent: one.action_space for agent, one in own.items()})
        is_discrete = isinstance(self.action_space, spaces.Discrete)
        parts = {name: _without_mask(one.observation_space) for name, one in kinds.items()}
        if is_discrete and (
            any(_has_mask(one.observation_space) for one in kinds.values())
            or len({_n_actions(one.action_space) for one in kinds.values()}) > 1
        ):
            parts[ACTION_MASK] = spaces.MultiBinary(_n_actions(self.action_space))
        self.observation_space = spaces.Dict(parts)
        width = None if is_discrete else _size(self.action_space)
        self.views = {agent: AgentView(one, part_of[agent], width) for agent, one in own.items()}
        self._blank = tree.map_tree(_blank, leaf_spaces(self.observation_space))

    def write(self, rows: Obs, row: int, agent: str, obs: Obs) -> None:
        """Write an agent's own observation, a row [1, ...], into joint rows [K, ...]."""
        view = self.views[agent]
        tree.map_tree(lambda leaf, blank: leaf.__setitem__(row, blank), rows, self._blank)
        assert view.part is not None, "views of different spaces have parts"
        own = {name: leaf for name, leaf in obs.items() if name != ACTION_MASK} if isinstance(obs, dict) else obs
        tree.map_tree(lambda leaf, one: leaf.__setitem__(row, one[0]), rows[view.part], own)
        if ACTION_MASK in rows:
            n_actions = _n_actions(view.action_space)
            rows[ACTION_MASK][row, :n_actions] = obs[ACTION_MASK][0] if _has_mask(view.observation_space) else 1


def _joint_actions(own: Mapping[str, Space[Any]]) -> Space[Any]:
    """Return one space for the actions of all agents."""
    if all(isinstance(space, spaces.Discrete) for space in own.values()):
        return spaces.Discrete(max(map(_n_actions, own.values())))
    if not all(isinstance(space, spaces.Box) for space in own.values()):
        raise ConfigError(
            f"make_envs: the agents have actions {dict(own)}: they must be all Discrete or all of a Box; convert them "
            "in a wrapper of the game"
        )
    width = max(map(_size, own.values()))
    low, high = np.full(width, np.inf, np.float32), np.full(width, -np.inf, np.float32)
    for space in own.values():
        own_low, own_high = (bound.ravel().astype(np.float32) for bound in space_bounds(space))
        low[: len(own_low)] = np.minimum(low[: len(own_low)], own_low)
        high[: len(own_high)] = np.maximum(high[: len(own_high)], own_high)
    return spaces.Box(low, high, dtype=np.float32)


def _n_actions(space: Space[Any]) -> int:
    """Return the number of actions of a Discrete space, 0 for any other."""
    return int(space.n) if isinstance(space, spaces.Discrete) else 0


def _size(space: Space[Any]) -> int:
    """Return the number of floats in an action of a Box."""
    return int(np.prod(space.shape or ()))


def _has_mask(space: Space[Any]) -> bool:
    return isinstance(space, spaces.Dict) and ACTION_MASK in space.spaces


def _without_mask(space: Space[Any]) -> Space[Any]:
    """Return an observation space without its action mask."""
    if not isinstance(space, spaces.Dict) or ACTION_MASK not in space.spaces:
        return space
    return spaces.Dict({name: leaf for name, leaf in space.spaces.items() if name != ACTION_MASK})


def _blank(space: Space[Any]) -> NDArray[Any]:
    """Return the value of a leaf in the rows of other agents: 0, or what is nearest to it in the space."""
    low, high = space_bounds(space)
    blank: NDArray[Any] = np.clip(np.zeros_like(low), low, high)
    return blank
