"""Games of several agents in one form, whatever their API: who is observed, who is paid, whose episode ends.

ParallelGame    PettingZoo's parallel API: all agents in the game act in each step
TurnsGame       PettingZoo's turn-based API (AEC): one agent acts at a time
DictGame        RLlib's API: who is observed acts; `__all__` ends the game

No package is imported: a game is recognized by its members.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import gymnasium as gym

from trainkit.core.errors import ConfigError

_MAX_UNOBSERVED = 10_000  # steps of a dict game in which it observes no agent
_MAX_SEED = 2**31  # games in C++ take no larger seeds
_ALL = "__all__"  # RLlib's key of a flag for every agent
_COMMON = "__common__"  # RLlib's key of an info that belongs to no agent, and ours in the infos of agents


class ByAgent(gym.spaces.Tuple[Any]):
    """The spaces of a game's agents, in their order.

    Args:
        names: of the agents.
        spaces: of each.
        is_parallel: whether every agent that acts must be observed in the same step.
    """

    def __init__(self, names: Sequence[str], spaces: Sequence[gym.Space[Any]], *, is_parallel: bool) -> None:
        super().__init__(spaces)
        self.names, self.is_parallel = tuple(names), is_parallel


class GameAnswer(NamedTuple):
    """What a game returned from a step or a reset: nothing in it is validated but what a driver itself has read."""

    result: Any  # of a step (obs, rewards, terminated, truncated, infos), of a reset (obs, infos): dicts by agent
    present: Sequence[Any]  # the agents that are in the game; those of them that are observed act next
    terminated: bool = False  # whether the game ended, for all
    truncated: bool = False
    ended_before: frozenset[str] = frozenset()  # agents whose episodes ended in an earlier step of the same answer


class Game(Protocol):
    """What every game of several agents has."""

    possible_agents: Any

    def reset(self, seed: Any = None, options: Any = None) -> Any: ...

    def step(self, action: Any, /) -> Any: ...


class _Game:
    """A game as runners drive it: the part that all APIs share.

    Attributes:
        game: the game itself.
        observation_space: of each agent.
        action_space: of each agent.
    """

    is_parallel = False

    def __init__(self, game: Any) -> None:
        self.game = game
        self._agents = list(game.possible_agents)
        self.observation_space = self._spaces("observation_space")
        self.action_space = self._spaces("action_space")

    def __repr__(self) -> str:
        return repr(self.game)

    @property
    def unwrapped(self) -> Any:
        """The game without its wrappers."""
        return getattr(self.game, "unwrapped", self.game)

    def get_wrapper_attr(self, name: str) -> Any:
        """Return an attribute of the game."""
        return getattr(self.game, name)

    def close(self) -> None:
        """Close the game, if it can be closed."""
        close = getattr(self.game, "close", None)
        if close is not None:
            close()

    def _spaces(self, kind: str) -> ByAgent:
        spaces = [self._space(kind, agent) for agent in self._agents]
        for agent, space in zip(self._agents, spaces, strict=True):
            if not isinstance(space, gym.Space):
                raise ConfigError(f"make_envs: agent {agent!r} has {kind} {space!r}: give it one of gymnasium.spaces")
        return ByAgent(list(map(str, self._agents)), spaces, is_parallel=self.is_parallel)

    def _space(self, kind: str, agent: Any) -> Any:
        try:
            return space_of(self.game, kind, agent)
        except Exception as error:  # whatever the game raises
            raise ConfigError(
                f"make_envs: {kind}({agent!r}) raised {type(error).__name__}: {error}: return a space of "
                "gymnasium.spaces for each of possible_agents"
            ) from error


class ParallelGame(_Game):
    """A game with PettingZoo's parallel API."""

    is_parallel = True

    def reset(self, *, seed: int | None, options: dict[str, Any] | None) -> GameAnswer:
        """Reset the game."""
        return GameAnswer(self.game.reset(seed=seed, options=options), list(self.game.agents))

    def step(self, actions: Mapping[int, Any]) -> GameAnswer:
        """Step the game with the actions of agents, by their index."""
        result = self.game.step({self._agents[index]: action for index, action in actions.items()})
        return GameAnswer(result, list(self.game.agents))


class TurnsGame(_Game):
    """A game with PettingZoo's turn-based API, played as `agent_iter` and `last` play it.

    An agent is observed when it is to move, and at its end; its reward then is the sum since its last move.
    """

    def reset(self, *, seed: int | None, options: dict[str, Any] | None) -> GameAnswer:
        """Reset the game, and observe the agent that moves first."""
        self.game.reset(seed=None if seed is None else seed % _MAX_SEED, options=options)
        answer = self._next_turn()
        return answer._replace(result=(answer.result[0], answer.result[4]))

    def step(self, actions: Mapping[int, Any]) -> GameAnswer:
        """Make the move of one agent, {index: action}."""
        for action in actions.values():  # one: the agent that was observed last
            self.move(action)
        return self._next_turn()

    def move(self, action: Any) -> None:
        """Make a move of the agent whose turn it is."""
        self.game.step(action)

    def _next_turn(self) -> GameAnswer:
        """Observe the agents that end, which make no further move, up to the one that is to move."""
        columns: tuple[dict[Any, Any], ...] = ({}, {}, {}, {}, {})
        agent = None
        for _ in range(2 * len(self._agents) + 1):
            if not self.game.agents:
                return GameAnswer(columns, [])
            agent = self.game.agent_selection
            for column, value in zip(columns, self.game.last(), strict=True):
                column[agent] = value
            if not (columns[2][agent] or columns[3][agent]):
                return GameAnswer(columns, [agent])
            self.game.step(None)
        raise RuntimeError(f"agent {agent!r} has ended, but step(None) does not remove it from agents")


class DictGame(_Game):
    """A game with RLlib's API: agents that are observed act next, others wait for their next observation.

    It ends by `__all__`, or when the episodes of all agents have ended.
    """

    def __init__(self, game: Any) -> None:
        super().__init__(game)
        self._ended: set[Any] = set()  # agents that are not observed since their episodes ended

    def reset(self, *, seed: int | None, options: dict[str, Any] | None) -> GameAnswer:
        """Reset the game."""
        self._ended = set()
        result = self.game.reset(seed=None if seed is None else seed % _MAX_SEED, options=options)
        if isinstance(result, tuple) and len(result) == 2 and all(isinstance(own, dict) for own in result):
            result = result[0], _with_common(result[1], self._agents)
        return GameAnswer(result, self._agents)

    def step(self, actions: Mapping[int, Any]) -> GameAnswer:
        """Step the game with the actions of agents, by their index, until it observes an agent or ends."""
        result = self.game.step({self._agents[index]: action for index, action in actions.items()})
        ended_before: frozenset[str] = frozenset()
        for _ in range(_MAX_UNOBSERVED):
            if not _are_dicts(result):
                return GameAnswer(result, self._agents)  # for an error that names the agent
            obs, rewards, *flags, infos = result
            ends, cuts = ({agent: flag for agent, flag in own.items() if agent != _ALL} for own in flags)
            infos = _with_common(infos, self._agents)
            terminated, truncated = (bool(own.get(_ALL, False)) for own in flags)
            columns = obs, rewards, ends, cuts, infos
            whole = GameAnswer(columns, self._agents, terminated, truncated, ended_before)
            flagged = {agent for own in (ends, cuts) for agent, flag in own.items() if flag}
            self._ended = (self._ended | flagged) - (obs.keys() - flagged)
            is_over = whole.terminated or whole.truncated or self._ended.issuperset(self._agents)
            if is_over or any(not (ends.get(agent) or cuts.get(agent)) for agent in obs):
                return whole
            ended_before = frozenset(map(str, flagged))
            result = _joined(whole.result, self.game.step({}))
        raise RuntimeError(f"observed no agent in {_MAX_UNOBSERVED:,} steps, and did not end")


def _are_dicts(result: object) -> bool:
    """Return whether this is what a step must return: five dicts."""
    return isinstance(result, tuple) and len(result) == 5 and all(isinstance(own, dict) for own in result)


def _with_common(infos: Mapping[Any, Any], agents: Iterable[Any]) -> dict[Any, Any]:
    """Return infos by agent; what belongs to no agent is in those of all, under its key."""
    own = {agent: info for agent, info in infos.items() if agent != _COMMON}
    if _COMMON not in infos:
        return own
    shared = {_COMMON: infos[_COMMON]}
    by_agent = {**{agent: {} for agent in agents}, **own}
    return {agent: {**info, **shared} if isinstance(info, dict) else info for agent, info in by_agent.items()}


def _joined(before: tuple[dict[Any, Any], ...], result: Any) -> Any:
    """Return two steps as one: rewards are summed, everything else is the newest."""
    if not _are_dicts(result):
        return result
    sums = {agent: before[1].get(agent, 0.0) + reward for agent, reward in result[1].items()}
    columns = [{**old, **new} for old, new in zip(before, result, strict=True)]
    columns[1] = {**before[1], **sums}
    return tuple(columns)


def by_name(own: dict[Any, Any]) -> dict[str, Any]:
    """Return a dict by the names of agents, which some games number."""
    return own if all(type(key) is str for key in own) else {str(key): value for key, value in own.items()}


# ---- which API a game has ----


class GameWrapper:
    """Base of wrappers that give a game other spaces or observations; which API it has, the game itself decides."""

    def __init__(self, game: Any) -> None:
        self._game = game

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"a wrapped game has no attribute {name!r}")
        return getattr(self._game, name)


def space_of(game: Any, kind: str, agent: Any) -> Any:
    """Return an agent's space, of the kind "observation_space" or "action_space", None if there is none."""
    space = getattr(game, kind, None)
    if callable(space):
        return space(agent)
    for name in (f"{kind}s", kind):
        spaces = getattr(game, name, None)
        by_agent = dict(spaces.items()) if isinstance(spaces, (Mapping, gym.spaces.Dict)) else {}
        if agent in by_agent:
            return by_agent[agent]
    getter = getattr(game, f"get_{kind}", None)
    return getter(agent) if callable(getter) else None


def is_game(env: object) -> bool:
    """Return whether this is a game of several agents, of one of the three APIs."""
    agents = getattr(env, "possible_agents", None)
    if not isinstance(agents, Iterable) or not all(callable(getattr(env, name, None)) for name in ("reset", "step")):
        return False
    if all(callable(getattr(env, name, None)) for name in ("observation_space", "action_space")):
        return True
    return _has_spaces_by_agent(env)


def _has_spaces_by_agent(env: object) -> bool:
    """Return whether spaces are dicts by agent, or methods, as in RLlib's API."""
    spaces = getattr(env, "observation_spaces", None)
    return isinstance(spaces, (Mapping, gym.spaces.Dict)) or callable(getattr(env, "get_observation_space", None))


def driver_of(game: Any) -> ParallelGame | TurnsGame | DictGame:
    """Return a game in the form that runners drive."""
    kind: Callable[[Any], ParallelGame | TurnsGame | DictGame] = DictGame
    own = game
    while isinstance(own, GameWrapper):
        own = own._game
    if hasattr(own, "agent_iter") and hasattr(own, "last"):
        kind = TurnsGame
    elif callable(getattr(own, "observation_space", None)):
        kind = ParallelGame
    return kind(game)
