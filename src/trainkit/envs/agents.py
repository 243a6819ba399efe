"""Games of several agents that share one policy: a row for each agent of each game.

A game is a PettingZoo-style parallel environment, identified by its members: `possible_agents`, `agents` (now in it),
`observation_space(agent)`, `action_space(agent)`, `reset(seed=, options=) -> (obs, infos)` and `step(actions)`, which
returns observations, rewards, terminated, truncated and infos, each a dict by agent.
"""

import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from trainkit.core.data import Obs
from trainkit.core.errors import BadEnvDataError, ConfigError
from trainkit.core.spaces import check_spaces, flat_actions, structure_of
from trainkit.envs.backends import (
    MISREAD,
    Begun,
    Failure,
    Fingerprint,
    Ids,
    ListInfos,
    Options,
    RawStep,
    Seeds,
    Work,
)
from trainkit.envs.ownership import claim_environment, free_environments
from trainkit.envs.recovery import fingerprint
from trainkit.envs.validation import RowReader

_log = logging.getLogger(__name__)

Entry = tuple[int, Any, dict[str, Any]]  # (row, first observation, info) of an agent whose episode starts
_NAMES = ("observations", "rewards", "terminated", "truncated", "infos")  # of a step's five dicts


def is_game(env: object) -> bool:
    """Return whether this is an environment of several agents that act at the same time."""
    methods = ("observation_space", "action_space", "reset", "step")
    return hasattr(env, "possible_agents") and all(callable(getattr(env, name, None)) for name in methods)


def check_parallel(env: object) -> None:
    """Raise a ConfigError for PettingZoo's turn-based API (AEC), whose members look like those of its parallel one."""
    if is_game(env) and hasattr(env, "agent_iter") and hasattr(env, "last"):
        raise ConfigError(
            f"make_envs: {env!r} has PettingZoo's turn-based (AEC) API, in which one agent acts at a time, but "
            "trainkit needs the parallel one, in which all act in each step: take the package's parallel_env, or where "
            'all act before the game moves on, pettingzoo.utils.conversions.aec_to_parallel(env). See "Games of turns" '
            "in docs/multi_agent.md"
        )


class GamesBackend:
    """Step games one by one, in this process; row `game * number of agents + agent` is one agent of one game.

    An agent's episode ends when it is terminated or truncated, or is no longer among the game's `agents`. It then waits
    for the next game, unless the game observes it again. A game is over when no agent in it has an observation to act
    on. The reward of an agent in a step in which it does not act is in `RawStep.late_rewards`.
    """

    takes_options = True
    seeds_episodes = True

    def __init__(self, factories: Sequence[Callable[[], Any]]) -> None:
        self.games: list[Any] = []
        with contextlib.ExitStack() as made:
            made.callback(self.close)  # those made before one was rejected
            for factory in factories:
                self._append(factory())
            self._names = list(self.games[0].possible_agents)
            self.agents = tuple(map(str, self._names))
            self.n = len(self.games) * len(self.agents)
            self.observation_space, action_space = self._common_spaces()
            check_spaces(self.observation_space, action_space)
            self.action_space = flat_actions(action_space)
            self._structure = structure_of(self.action_space)
            self._reader = RowReader(self.observation_space)
            self._plays = np.zeros(self.n, np.bool_)  # [N], whether the agent is in its game
            self._has_warned = False  # of a reward for an agent that did not act
            made.pop_all()

    @property
    def in_flight(self) -> Ids:
        return np.zeros(0, np.intp)

    def reset(self, seeds: Seeds, options: Options) -> Begun:
        return self._reset(np.arange(self.n), seeds, options)

    def begin(self, env_ids: Ids, seeds: Seeds, options: Options) -> Begun:
        return self._reset(env_ids, seeds, options)

    def step(self, action: NDArray[Any], env_ids: Ids, work: Work) -> RawStep:
        if work is not None:
            work()
        n_rows = len(env_ids)
        next_obs = self._reader.empty(n_rows)
        reward = np.zeros(n_rows, np.float64)
        terminated, truncated, over = np.zeros((3, n_rows), np.bool_)
        infos: list[dict[str, Any]] = []
        joined: list[Entry] = []
        late: dict[int, float] = {}
        for game, rows in self._by_game(env_ids):
            here = env_ids[rows].tolist()
            answers = self._step_game(game, here, action[rows])
            obs, rewards, ends, cuts, agent_infos = answers
            present = set(self.games[game].agents)
            for row, env_id in zip(range(rows.start, rows.stop), here, strict=True):
                name = self._names[env_id % len(self._names)]
                missing = [what for what, own in zip(_NAMES[:4], answers, strict=False) if name not in own]
                if missing:
                    raise Failure(
                        env_id,
                        f"acted, but step returned no {', '.join(missing)} for it: return them for all who acted, "
                        "and its last observation where it is gone",
                        BadEnvDataError,
                    )
                try:
                    self._reader.write(next_obs, row, obs[name])
                    reward[row] = self._reader.reward(rewards[name])
                    terminated[row] = self._reader.flag("terminated", ends[name])
                    # The future of an agent that is gone without a flag is not observed.
                    truncated[row] = self._reader.flag("truncated", cuts[name]) or (
                        name not in present and not terminated[row]
                    )
                except MISREAD as error:
                    raise Failure(env_id, str(error), BadEnvDataError) from None
                infos.append(agent_infos.get(name, {}))
            if len(rewards) > len(here):
                late |= self._late_rewards(game, here, rewards)
            self._plays[here] = ~(terminated[rows] | truncated[rows])
            joined += self._joining(game, here, present, answers)
            over[rows] = not self._plays[self._rows_of(game)].any()
        begun = self._begun(joined) if joined else None
        step = RawStep(env_ids, next_obs, reward, terminated, truncated, over, ListInfos(infos), begun)
        return step._replace(late_rewards=late) if late else step

    def rebuild(self, env_id: int) -> None:
        raise NotImplementedError("make_envs allows no restart of games")

    def call(self, name: str, args: tuple[Any, ...], env_ids: Ids) -> list[Any]:
        """Call a method once per game; all rows of a game get its result."""
        answers: dict[int, Any] = {}
        for env_id in env_ids.tolist():
            game = env_id // len(self._names)
            if game not in answers:
                try:
                    found = getattr(self.games[game], name)
                    answers[game] = found(*args) if callable(found) else found
                except Exception as error:
                    raise Failure(env_id, f"raised {type(error).__name__} in {name}: {error}") from error
        return [answers[env_id // len(self._names)] for env_id in env_ids.tolist()]

    def fingerprints(self) -> list[Fingerprint]:
        """Return the fingerprints of the games."""
        return [fingerprint(game) for game in self.games]

    def close(self) -> None:
        self.detach()
        for game in self.games:
            close = getattr(game, "close", None)
            if close is not None:
                close()

    def detach(self) -> None:
        free_environments(self.games, self)

    def _reset(self, env_ids: Ids, seeds: Seeds, options: Options) -> Begun:
        """Reset games, and return the rows of all their agents."""
        begun: list[Entry] = []
        for game, rows in self._by_game(env_ids):
            first = int(env_ids[rows.start])
            try:
                result = self.games[game].reset(
                    seed=seeds[rows.start], options=None if options is None else dict(options)
                )
            except Exception as error:
                raise Failure(first, f"raised {type(error).__name__} in reset: {error}") from error
            try:
                obs, infos = self._reader.unpack_reset(result)
            except MISREAD as error:
                raise Failure(first, str(error), BadEnvDataError) from None
            self._plays[env_ids[rows]] = False
            here = self._joining(game, [], set(self.games[game].agents), (obs, {}, {}, {}, infos))
            if not here:
                raise Failure(
                    first, "returned no observation from reset: an agent must be there to act", BadEnvDataError
                )
            begun += here
        return self._begun(begun)

    def _step_game(self, game: int, here: list[int], action: NDArray[Any]) -> tuple[dict[Any, Any], ...]:
        """Step one game and return its results, a dict by agent each."""
        n_here = np.count_nonzero(self._plays[self._rows_of(game)])
        assert len(here) == n_here, f"{len(here)} of {n_here} agents act: all who are in a game act together"
        each = action if self._structure is None else map(self._structure.unpack, action)
        actions = {self._names[env_id % len(self._names)]: one for env_id, one in zip(here, each, strict=True)}
        try:
            result = self.games[game].step(actions)
        except Exception as error:
            raise Failure(here[0], f"raised {type(error).__name__} in step: {error}") from error
        try:
            answers = self._reader.unpack_step(result)
        except MISREAD as error:
            raise Failure(here[0], str(error), BadEnvDataError) from None
        for what, own in zip(_NAMES, answers, strict=True):
            if not isinstance(own, dict):
                raise Failure(here[0], f"returned {what} {own!r} from step, not a dict by agent", BadEnvDataError)
        return answers

    def _late_rewards(self, game: int, here: list[int], rewards: dict[Any, Any]) -> dict[int, float]:
        """Return rewards of agents that did not act, {row: reward}: they have left, or are not observed."""
        acted = {self._names[env_id % len(self._names)] for env_id in here}
        late: dict[int, float] = {}
        for name, gain in rewards.items():
            if name in acted:
                continue
            if name not in self._names:
                raise Failure(
                    here[0], f"returned a reward for {name!r}, not one of its possible_agents", BadEnvDataError
                )
            env_id = game * len(self._names) + self._names.index(name)
            try:
                value = self._reader.reward(gain)
            except MISREAD as error:
                raise Failure(here[0], f"{error}, for agent {name!r}", BadEnvDataError) from None
            if not math.isfinite(value):
                raise Failure(here[0], f"returned reward {value} for agent {name!r}", BadEnvDataError)
            if value != 0.0:
                late[env_id] = value
        if late and not self._has_warned:
            self._has_warned = True
            env_id, value = next(iter(late.items()))
            _log.warning(
                "agent %r of game %d got reward %g in a step in which it did not act: it has left or is not observed; "
                "the reward counts in the return, but belongs to no row, so that nothing is learned from it",
                *(self._names[env_id % len(self._names)], game, value),
            )
        return late

    def _joining(self, game: int, acted: list[int], present: set[Any], answers: Sequence[Any]) -> list[Entry]:
        """List agents observed in a game that did not act: all at its reset, later those that join or return."""
        obs, _, ends, cuts, infos = answers
        entries: list[Entry] = []
        for agent, name in enumerate(self._names):
            env_id = game * len(self._names) + agent
            is_seen = name in obs and name in present and not ends.get(name) and not cuts.get(name)
            if is_seen and env_id not in acted:
                entries.append((env_id, obs[name], infos.get(name, {})))
                self._plays[env_id] = True
        return entries

    def _begun(self, entries: list[Entry]) -> Begun:
        obs: Obs = self._reader.empty(len(entries))
        for row, (env_id, first, _) in enumerate(entries):
            try:
                self._reader.write(obs, row, first)
            except MISREAD as error:
                raise Failure(env_id, str(error), BadEnvDataError) from None
        return Begun(np.array([entry[0] for entry in entries]), obs, ListInfos([entry[2] for entry in entries]))

    def _by_game(self, env_ids: Ids) -> Iterator[tuple[int, slice]]:
        """Yield (game, slice of its rows) for rows in ascending order."""
        at = 0
        for game, rows in groupby((env_ids // len(self._names)).tolist()):
            n_rows = len(list(rows))
            yield game, slice(at, at + n_rows)
            at += n_rows

    def _rows_of(self, game: int) -> slice:
        return slice(game * len(self._names), (game + 1) * len(self._names))

    def _common_spaces(self) -> tuple[gym.Space[Any], gym.Space[Any]]:
        """Return the spaces that all agents share.

        Raises:
            ConfigError: an agent has others.
        """
        first: tuple[gym.Space[Any], gym.Space[Any]] | None = None
        for index, game in enumerate(self.games):
            for name in self._names:
                here = game.observation_space(name), game.action_space(name)
                first = here if first is None else first
                if here != first:
                    raise ConfigError(
                        f"make_envs: agent {name!r} of game {index} has spaces {here}, agent {self._names[0]!r} has "
                        f"{first}: agents that share a policy need equal ones; pad what differs in a wrapper"
                    )
        assert first is not None, "games have agents"
        return first

    def _append(self, game: Any) -> None:
        index = len(self.games)
        if not is_game(game):
            raise ConfigError(f"make_envs: env 0 is a game of several agents, env {index} is not, got {game!r}")
        claim_environment(game, self, index)
        self.games.append(game)
        names, first = list(game.possible_agents), list(self.games[0].possible_agents)
        if not names or names != first or len(set(map(str, names))) < len(names):
            raise ConfigError(
                f"make_envs: game {index} has possible_agents {names}, game 0 has {first}: there must be some, of "
                "different names, the same in every game"
            )


def whole_games(env_ids: Ids, n_agents: int) -> Ids:
    """Return the rows of all agents of the games to which these rows belong."""
    if n_agents == 1:
        return env_ids
    games: Ids = np.unique(env_ids // n_agents)
    return (games[:, None] * n_agents + np.arange(n_agents)).ravel()
