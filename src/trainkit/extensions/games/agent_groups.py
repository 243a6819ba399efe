"""Groups of agents that act as one agent: one observation, one action and one reward for all members."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from gymnasium import spaces

from trainkit.core import tree
from trainkit.core.errors import Checks, ConfigError
from trainkit.core.signatures import checked
from trainkit.core.spaces import zeros_of
from trainkit.extensions.games.games import Game, by_name, driver_of

_NOT_OF_GROUPS = ("observation_space", "action_space", "agent_iter", "last")  # of the agents' own API


@checked
def group_agents(groups: Mapping[str, Sequence[Any]]) -> Callable[[Any], "GroupedGame"]:
    """Return a wrapper, for `make_envs(wrappers=)`, after which groups of agents act as one agent each.

    A group observes a tuple of its members' observations: the last one of a member that is not observed now, zeros
    before its first. It acts by a tuple of actions as soon as one of its members is observed; actions of the others
    are not used. Its reward is the sum of theirs. Its episode ends when those of all members have: terminated if all
    of them are, else truncated.

    Args:
        groups: {name of a group: its members}; other agents stay as they are.

    Raises:
        ConfigError: `groups` is no such dict.
    """
    with Checks("group_agents") as checks:
        is_dict = isinstance(groups, Mapping) and len(groups) > 0
        lists = is_dict and all(isinstance(own, Sequence) and not isinstance(own, str) for own in groups.values())
        are_names = is_dict and all(isinstance(name, str) for name in groups)
        rule = f'.groups must be a dict such as {{"team": ["a", "b"]}}, got {groups!r}'
        checks.require(lists and are_names, rule)
    return partial(GroupedGame, groups=groups)


class GroupedGame:
    """A game, itself with RLlib's API, in which groups of agents of another game act as one.

    Args:
        game: of any API.
        groups: {name of a group: its members}.

    Attributes:
        possible_agents: the groups, each in the place of its first member, and the agents without a group.
        observation_spaces: of each; of a group a Tuple.
        action_spaces: of each; of a group a Tuple.

    Raises:
        ConfigError: a group has no members or another agent's name, or a member is not an agent or in two groups.
    """

    def __init__(self, game: Game, groups: Mapping[str, Sequence[Any]]) -> None:
        self._driver = driver_of(game)
        names = self._driver.observation_space.names
        _check_groups(groups, names)
        group_of = {str(member): group for group, members in groups.items() for member in members}
        own = {name: (name,) for name in names if name not in group_of}
        self._members = own | {group: tuple(map(str, members)) for group, members in groups.items()}
        self._is_group = frozenset(groups)
        self.possible_agents = list(dict.fromkeys(group_of.get(name, name) for name in names))
        self.agents = self.possible_agents
        self._index = {name: index for index, name in enumerate(names)}
        self._member_spaces = dict(zip(names, self._driver.observation_space.spaces, strict=True))
        self.observation_spaces = self._joined(self._member_spaces)
        self.action_spaces = self._joined(dict(zip(names, self._driver.action_space.spaces, strict=True)))
        self.unwrapped = self._driver.unwrapped
        self._seen: dict[str, Any] = {}  # {member: its last observation}
        self._awaits: set[str] = set()  # members that are to act
        self._ended: dict[str, bool] = {}  # {member whose episode has ended: whether it was terminated}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in _NOT_OF_GROUPS:
            raise AttributeError(f"a game of groups of agents has no attribute {name!r}")
        return getattr(self._driver.game, name)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Reset the game."""
        answer = self._driver.reset(seed=seed, options=options)
        obs, infos = map(by_name, answer.result)
        self._seen, self._ended = dict(obs), {}
        self._awaits = set(obs) & set(map(str, answer.present))
        return {name: self._observation(name) for name in self._acting()}, self._infos(infos)

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        """Step the game by the actions of groups and single agents."""
        moves: dict[int, Any] = {}
        for name, action in actions.items():
            each = action if name in self._is_group else (action,)
            pairs = zip(self._members[name], each, strict=True)
            moves |= {self._index[member]: own for member, own in pairs if member in self._awaits}
        answer = self._driver.step(moves)
        obs, rewards, ends, cuts, infos = map(by_name, answer.result)
        present = set(map(str, answer.present))
        for member in self._awaits - present if self._driver.is_parallel else ():  # gone without a flag
            self._ended[member] = False
        self._seen |= obs
        self._awaits = set()
        for member in self._index:
            if ends.get(member) or cuts.get(member) or answer.terminated or answer.truncated:
                self._ended[member] = bool(ends.get(member)) or answer.terminated
            elif member in obs and member in present:
                self._awaits.add(member)
                self._ended.pop(member, None)
        acting = self._acting()
        ended = [
            name
            for name, members in self._members.items()
            if not self._awaits or all(member in self._ended for member in members)
        ]
        is_terminated = {name: all(self._ended.get(member, False) for member in self._members[name]) for name in ended}
        gains = {
            name: sum(rewards.get(member, 0.0) for member in members)
            for name, members in self._members.items()
            if any(member in rewards for member in members)
        }
        return (
            {name: self._observation(name) for name in [*acting, *ended]},
            gains,
            is_terminated,
            {name: not terminated for name, terminated in is_terminated.items()},
            self._infos(infos),
        )

    def close(self) -> None:
        """Close the game."""
        self._driver.close()

    def _acting(self) -> list[str]:
        """Return who is to act: groups with a member that is."""
        return [name for name in self.possible_agents if not self._awaits.isdisjoint(self._members[name])]

    def _observation(self, name: str) -> Any:
        own = tuple(self._seen.get(member, self._blank(member)) for member in self._members[name])
        return own if name in self._is_group else own[0]

    def _blank(self, member: str) -> Any:
        return tree.map_tree(lambda leaf: leaf[0], zeros_of(self._member_spaces[member], 1))

    def _infos(self, infos: Mapping[str, Any]) -> dict[str, Any]:
        """Return the infos by group, {member: info}, and by agent."""
        return {
            name: {member: infos[member] for member in members if member in infos}
            if name in self._is_group
            else infos.get(name, {})
            for name, members in self._members.items()
        }

    def _joined(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Return the spaces of groups and single agents."""
        return {
            name: spaces.Tuple([own[member] for member in self._members[name]]) if name in self._is_group else own[name]
            for name in self.possible_agents
        }


def _check_groups(groups: Mapping[str, Sequence[Any]], names: Sequence[str]) -> None:
    """Raise a ConfigError unless each group has members of its own and a name of its own."""
    taken: set[str] = set()
    for group, members in groups.items():
        own = list(map(str, members))
        are_free = all(name in names and name not in taken for name in own) and len(set(own)) == len(own)
        if not own or not are_free or (group in names and group not in own):
            raise ConfigError(
                f"group_agents: group {group!r} has members {own}, and the game has agents {list(names)}: give it some "
                "of them, each in one group, and a name that no other agent has"
            )
        taken.update(own)
