"""The backend of games of several agents, whatever runs them: a row for each agent of each game."""

import contextlib
import copy
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit.core import tree
from trainkit.core.data import Obs, any_true
from trainkit.core.errors import BadEnvDataError, ConfigError
from trainkit.core.names import did_you_mean
from trainkit.core.spaces import Spaces, check_spaces, flat_actions, structure_of
from trainkit.envs.backends import (
    MISREAD,
    Begun,
    EachOptions,
    Failure,
    Fingerprint,
    HasEnvironments,
    Ids,
    ListInfos,
    RawStep,
    Runner,
    Seeds,
    Take,
    Work,
    whole_groups,
)
from trainkit.envs.validation import RowReader
from trainkit.extensions.games.games import ByAgent, GameAnswer, by_name
from trainkit.extensions.games.joint_spaces import AgentView, JointSpaces

_log = logging.getLogger(__name__)

Entry = tuple[int, Any, dict[str, Any]]  # (row, first observation, info) of an agent whose episode starts
_NAMES = ("observations", "rewards", "terminated", "truncated", "infos")  # of a step's five dicts

_ONE = {"observations": "an observation", "rewards": "a reward"}


class GamesBackend(HasEnvironments):
    """Games of several agents; row `game * number of agents + agent` is one agent of one game.

    An agent's row is open from its action until it is observed again or its episode ends; the rewards in between are
    summed. Its episode ends when it is terminated or truncated, is no longer among the game's `agents` (parallel API),
    or with the game. It then waits for the next game, unless the game observes it again. A game is over when no agent
    in it has an observation to act on. The reward of an agent without an open row is in `RawStep.late_rewards`.

    Args:
        runner: of the games, each in the form of `games.py`; closed if they are rejected.
        kept_infos: keys whose last values complete a row, as its last observation does, where an agent is not observed
            at its end.
    """

    takes_options = seeds_episodes = True
    no_action_remedy = (
        "All agents that are observed act in each step: where they take turns, give make_envs the game with "
        "PettingZoo's turn-based API, not one that turn_based_aec_to_parallel has converted"
    )

    runner: Runner

    def __init__(self, runner: Runner, kept_infos: Sequence[str] = ()) -> None:
        self.runner, self._kept_infos = runner, kept_infos
        with contextlib.ExitStack() as unfinished:
            unfinished.callback(runner.close)
            self.agents, self._is_parallel, own = self._spaces_by_agent()
            self.n = len(runner.spaces) * len(self.agents)
            first = own[self.agents[0]]
            is_joint = any(one != first for one in own.values())
            self._joint = JointSpaces(own) if is_joint else None
            common = first if self._joint is None else self._joint
            check_spaces(common.observation_space, common.action_space)
            self.observation_space, self.action_space = common.observation_space, flat_actions(common.action_space)
            whole = Spaces(observation_space=self.observation_space, action_space=self.action_space)
            alike = dict.fromkeys(self.agents, AgentView(whole, None, None))  # each sees whole rows
            self.agent_views: Mapping[str, AgentView] = alike if self._joint is None else self._joint.views
            self._structure = structure_of(self.action_space)
            self._reader = RowReader(self.observation_space)
            self._own_readers = {name: RowReader(one.observation_space) for name, one in own.items() if is_joint}
            unfinished.pop_all()
        self._awaits = np.zeros(self.n, np.bool_)  # [N], whether the agent is observed and to act
        self._is_open = np.zeros(self.n, np.bool_)  # [N], whether it has acted and its row is not complete
        self._is_sent = np.zeros(self.n, np.bool_)  # [N], whether its action is in flight
        self._has_acted = np.zeros(self.n, np.bool_)  # [N], whether the agent has acted in this game
        self._gain = np.zeros(self.n, np.float64)  # [N], the rewards of open rows so far
        self._seen: Obs = self._reader.empty(self.n)  # [N, ...], what it observed last; not in parallel games
        self._seen_infos: list[dict[str, Any]] = [{}] * self.n  # those of `kept_infos` with it
        self._index = {name: agent for agent, name in enumerate(self.agents)}
        self._has_warned = False  # of a reward for an agent without an open row

    @property
    def in_flight(self) -> Ids:
        return np.flatnonzero(self._is_sent)

    def reset(self, seeds: Seeds, options: EachOptions) -> Begun:
        return self.begin(np.arange(self.n), seeds, options)

    def begin(self, env_ids: Ids, seeds: Seeds, options: EachOptions) -> Begun:
        """Reset games, and return the rows of all their agents that are to act."""
        entries: list[Entry] = []
        by_game = list(self._by_game(env_ids))
        games = np.array([game for game, _ in by_game])
        with self._failures_by_row(env_ids):
            first_rows = [rows.start for _, rows in by_game]
            own = [options[row] for row in first_rows]
            take = self.runner.reset(games, [seeds[row] for row in first_rows], own)
        failures: dict[int, Failure] = {}
        for index, (game, rows) in enumerate(by_game):
            for flags in (self._awaits, self._is_open, self._is_sent, self._has_acted):
                flags[self._rows_of(game)] = False
            first = int(env_ids[rows.start])
            try:
                entries += self._first_entries(game, first, self._taken(take, index, game, first))
            except Failure as failure:
                failures[first] = failure.without_frames()
        return self._begun(entries, failures)

    def step(self, action: NDArray[Any], env_ids: Ids, work: Work) -> RawStep:
        each = self._own_actions(action, env_ids)
        moves: list[dict[int, Any]] = []
        by_game = list(self._by_game(env_ids))
        for game, rows in by_game:
            here = env_ids[rows]
            n_awaiting = np.count_nonzero(self._awaits[self._rows_of(game)])
            assert len(here) == n_awaiting, (
                f"{len(here)} of {n_awaiting} agents act: all who are in a game act together"
            )
            agents = (here % len(self.agents)).tolist()
            moves.append(dict(zip(agents, each[rows.start : rows.stop], strict=True)))
        self._awaits[env_ids] = False
        self._is_open[env_ids] = self._is_sent[env_ids] = self._has_acted[env_ids] = True
        self._gain[env_ids] = 0.0
        games, take = self.runner.step(moves, np.array([game for game, _ in by_game], np.intp), work)
        n_open = sum(int(np.count_nonzero(self._is_open[self._rows_of(game)])) for game in games.tolist())
        read = _RowsRead(self._reader.empty(n_open))
        for index, game in enumerate(games.tolist()):
            own, n_before = self._rows_of(game), len(read.env_ids)
            first = own.start + int(self._is_sent[own].argmax())
            self._is_sent[own] = False
            try:
                self._read_game(game, first, self._taken(take, index, game, first), read)
            except Failure as failure:
                read.forget_after(n_before)
                read.failures[own.start] = failure.without_frames()
        return self._raw_step(read, env_ids)

    def rebuild(self, env_id: int) -> None:
        game = env_id // len(self.agents)
        spaces = self.runner.rebuild(game)
        first = self.runner.spaces[0]
        if (spaces.observation_space, spaces.action_space) != (first.observation_space, first.action_space):
            raise ConfigError(f"make_envs: game {game} has other spaces than when it was made first: make it the same")

    def call(self, name: str, args: tuple[Any, ...], env_ids: Ids) -> list[Any]:
        """Call a method once per game; all rows of a game get its result."""
        games = env_ids // len(self.agents)
        with self._failures_by_row(env_ids):
            results = self.runner.call(name, args, np.unique(games))
        return [results[index] for index in np.searchsorted(np.unique(games), games).tolist()]

    def fingerprints(self) -> list[Fingerprint]:
        """Return the fingerprints of the games."""
        return self.runner.fingerprints()

    def close(self) -> None:
        self.runner.close()

    def detach(self) -> None:
        self.runner.detach()

    # ---- one game's answer ----

    def _taken(self, take: Take, index: int, game: int, env_id: int) -> GameAnswer:
        """Take a game's answer; a failure is that of a row."""
        try:
            answer: GameAnswer = take(index, game)
        except Failure as failure:
            own = Failure(env_id, failure.what, failure.kind)
            raise own from failure.__cause__
        return answer

    def _read_game(self, game: int, first: int, answer: GameAnswer, read: "_RowsRead") -> None:
        """Read one step of a game: the rows that it completes, the agents that are to act, the rewards of others.

        Args:
            game: its index.
            first: the first row that acted, for errors.
            answer: of the game.
            read: receives what is read.
        """
        columns = self._five_dicts(first, answer)
        obs, rewards, ends, cuts, infos = columns
        present = set(map(str, answer.present))
        self._check_agents(game, first, dict(zip(_NAMES[:4], columns, strict=False)))
        late = self._add_rewards(game, first, rewards)
        entries: list[Entry] = []
        is_open = self._is_open[self._rows_of(game)].tolist()
        for agent, name in enumerate(self.agents):
            env_id = game * len(self.agents) + agent
            flags = self._flags(env_id, name, columns, present, answer) if is_open[agent] else None
            is_seen = name in obs and name in present and not ends.get(name) and not cuts.get(name)
            if flags is not None and (name in obs or any(flags)):
                self._complete(env_id, obs.get(name), flags, infos.get(name, {}), read)
                self._awaits[env_id] = not any(flags) and is_seen
            elif flags is None and is_seen and not (answer.terminated or answer.truncated):
                entries.append((env_id, obs[name], infos.get(name, {})))
                self._awaits[env_id] = True
        own = self._rows_of(game)
        is_over = not self._awaits[own].any()
        if is_over:  # the future of an agent that is gone without a flag is not observed
            for env_id in (np.flatnonzero(self._is_open[own]) + own.start).tolist():
                self._complete(env_id, None, (False, True), {}, read)
        read.over += [is_over] * (len(read.env_ids) - len(read.over))
        read.entries += entries
        read.late |= late

    def _check_agents(self, game: int, first: int, columns: dict[str, dict[str, Any]]) -> None:
        """Raise for an agent that the game does not have, and for an observation that is None."""
        known = self._index.keys()
        for what, own in columns.items():
            if not own.keys() <= known:
                name = next(name for name in own if name not in known)
                hint = did_you_mean(name, self.agents)
                rule = f"not one of its possible_agents {list(self.agents)}{hint}"
                raise Failure(first, f"returned {_ONE.get(what, what)} for {name!r}, {rule}", BadEnvDataError)
        for name, value in columns[_NAMES[0]].items():
            if value is None:
                raise Failure(
                    game * len(self.agents) + self._index[name],
                    f"returned the observation None for agent {name!r}: return one that its space has, the last one "
                    "where its episode ended",
                    BadEnvDataError,
                )

    def _complete(
        self, env_id: int, obs: Any, flags: tuple[bool, bool], info: dict[str, Any], read: "_RowsRead"
    ) -> None:
        """Complete an open row; without an observation, by the one that its agent saw last."""
        if obs is None:
            self._copy_row(self._seen, env_id, read.next_obs, len(read.env_ids))
            info = {**self._seen_infos[env_id], **info}
        else:
            self._write(read.next_obs, len(read.env_ids), env_id, obs, info)
        read.add(env_id, self._gain[env_id], flags, info)
        self._is_open[env_id] = False

    def _flags(
        self, env_id: int, name: str, columns: tuple[dict[str, Any], ...], present: set[str], answer: GameAnswer
    ) -> tuple[bool, bool]:
        """Return whether an agent that has acted is terminated and truncated by this step."""
        _, _, ends, cuts, _ = columns
        if self._is_parallel:
            missing = [what for what, own in zip(_NAMES[:4], columns, strict=False) if name not in own]
            if missing:
                raise Failure(
                    env_id,
                    f"acted, but step returned no {', '.join(missing)} for it: return them for all who acted, "
                    "and its last observation where it is gone",
                    BadEnvDataError,
                )
        try:
            terminated = self._reader.flag("terminated", ends.get(name, False))
            truncated = self._reader.flag("truncated", cuts.get(name, False))
        except MISREAD as error:
            raise Failure(env_id, str(error), BadEnvDataError) from None
        if name not in answer.ended_before:
            terminated, truncated = terminated or answer.terminated, truncated or answer.truncated
        # The future of an agent that is gone without a flag is not observed.
        is_gone = self._is_parallel and name not in present and not terminated
        return terminated, truncated or is_gone

    def _five_dicts(self, first: int, answer: GameAnswer) -> tuple[dict[str, Any], ...]:
        """Return a step's dicts by agent."""
        try:
            columns = self._reader.unpack_step(answer.result)
        except MISREAD as error:
            raise Failure(first, str(error), BadEnvDataError) from None
        for what, own in zip(_NAMES, columns, strict=True):
            if not isinstance(own, dict):
                raise Failure(first, f"returned {what} {own!r} from step, not a dict by agent", BadEnvDataError)
        return tuple(own if own.keys() <= self._index.keys() else by_name(own) for own in columns)

    def _add_rewards(self, game: int, first: int, rewards: dict[str, Any]) -> dict[int, float]:
        """Add rewards to the open rows; return those of agents without one, {row: reward}, such as those who left."""
        late: dict[int, float] = {}
        for name, gain in rewards.items():
            env_id = game * len(self.agents) + self._index[name]
            try:
                value = self._reader.reward(gain)
            except MISREAD as error:
                whose = (env_id, "") if self._is_open[env_id] else (first, f", for agent {name!r}")
                raise Failure(whose[0], f"{error}{whose[1]}", BadEnvDataError) from None
            if self._is_open[env_id]:
                self._gain[env_id] += value
            elif not math.isfinite(value):
                raise Failure(first, f"returned reward {value} for agent {name!r}", BadEnvDataError)
            elif value != 0.0:
                late[env_id] = value
        if late and not self._has_warned:
            self._has_warned = True
            env_id, value = next(iter(late.items()))
            why = "it has left or is not observed" if self._has_acted[env_id] else "it has made no move yet"
            _log.warning(
                "agent %r of game %d got reward %g in a step in which it did not act: %s; the reward counts in the "
                "return, but belongs to no row, so that nothing is learned from it",
                *(self.agents[env_id % len(self.agents)], game, value, why),
            )
        return late

    def _first_entries(self, game: int, first: int, answer: GameAnswer) -> list[Entry]:
        """Return the agents that a reset observes, each with its first observation."""
        try:
            obs, infos = self._reader.unpack_reset(answer.result)
        except MISREAD as error:
            raise Failure(first, str(error), BadEnvDataError) from None
        if not isinstance(obs, dict):
            raise Failure(first, f"returned observations {obs!r} from reset, not a dict by agent", BadEnvDataError)
        obs, infos, present = by_name(obs), by_name(infos), set(map(str, answer.present))
        self._check_agents(game, first, {_NAMES[0]: obs})
        entries: list[Entry] = []
        for agent, name in enumerate(self.agents):
            if name in obs and name in present:
                entries.append((game * len(self.agents) + agent, obs[name], infos.get(name, {})))
                self._awaits[entries[-1][0]] = True
        if not entries:
            raise Failure(first, "returned no observation from reset: an agent must be there to act", BadEnvDataError)
        return entries

    # ---- arrays of rows ----

    def _raw_step(self, read: "_RowsRead", env_ids: Ids) -> RawStep:
        """Return what was read as arrays, in the order of the rows."""
        begun = self._begun(read.entries, read.failures) if read.entries else None
        completed = np.array(read.env_ids, np.intp)
        flags = np.array(read.flags, np.bool_).reshape(len(completed), 2)
        rows: Any = slice(len(completed))
        infos = read.infos
        if any_true(completed[1:] < completed[:-1]):  # a game that is over completes last what it did not mention
            rows = np.argsort(completed)
            infos = [read.infos[row] for row in rows.tolist()]
        ids = completed[rows]
        return RawStep(
            env_ids=env_ids if len(ids) == len(env_ids) and not any_true(ids != env_ids) else ids,
            next_obs=tree.map_tree(lambda leaf: leaf[rows], read.next_obs),
            reward=np.array(read.reward, np.float64)[rows],
            terminated=flags[rows, 0],
            truncated=flags[rows, 1],
            over=np.array(read.over, np.bool_)[rows],
            infos=ListInfos(infos),
            begun=begun,
            failures=read.failures,
            late_rewards=read.late,
        )

    def _write(self, rows: Obs, row: int, env_id: int, obs: Any, info: dict[str, Any]) -> None:
        """Copy an observation into its row, and keep it and its info where a later row may need them."""
        try:
            self._write_own(rows, row, env_id, obs)
            if not self._is_parallel:
                self._copy_row(rows, row, self._seen, env_id)
                self._seen_infos[env_id] = {key: copy.copy(info[key]) for key in self._kept_infos if key in info}
        except MISREAD as error:
            raise Failure(env_id, str(error), BadEnvDataError) from None

    def _write_own(self, rows: Obs, row: int, env_id: int, obs: Any) -> None:
        """Copy an observation, in the agent's own space, into a row."""
        if self._joint is None:
            self._reader.write(rows, row, obs)
            return
        name = self.agents[env_id % len(self.agents)]
        own = self._own_readers[name].empty(1)
        self._own_readers[name].write(own, 0, obs)
        self._joint.write(rows, row, name, own)

    @staticmethod
    def _copy_row(source: Obs, index: int, rows: Obs, row: int) -> None:
        """Copy a row that is read already."""
        for leaf, own in zip(tree.leaves(rows), tree.leaves(source), strict=True):
            leaf[row] = own[index]

    def _own_actions(self, action: NDArray[Any], env_ids: Ids) -> Sequence[Any] | NDArray[Any]:
        """Return the policy's actions [K, ...] as the agents take them."""
        if self._joint is None:
            return action if self._structure is None else list(map(self._structure.unpack, action))
        own: list[Any] = []
        for env_id, one in zip(env_ids.tolist(), action, strict=True):
            name = self.agents[env_id % len(self.agents)]
            try:
                own.append(self._joint.views[name].own_action(one))
            except ValueError as error:
                raise Failure(env_id, str(error), BadEnvDataError) from None
        return own

    def _begun(self, entries: list[Entry], failures: dict[int, Failure]) -> Begun:
        """Return the first observations of agents; what cannot be read is added to the failures of games."""
        obs: Obs = self._reader.empty(len(entries))
        for row, (env_id, first, info) in enumerate(entries):
            try:
                self._write(obs, row, env_id, first, info)
            except Failure as failure:
                failures[env_id - env_id % len(self.agents)] = failure.without_frames()
        env_ids = np.array([env_id for env_id, _, _ in entries], np.intp)
        begun = Begun(env_ids, obs, ListInfos([info for _, _, info in entries]), failures)
        return begun.without(whole_groups(np.array(sorted(failures)), len(self.agents))) if failures else begun

    def _by_game(self, env_ids: Ids) -> Iterator[tuple[int, slice]]:
        """Yield (game, slice of its rows) for rows in ascending order."""
        at = 0
        for game, rows in groupby((env_ids // len(self.agents)).tolist()):
            n_rows = len(list(rows))
            yield game, slice(at, at + n_rows)
            at += n_rows

    def _rows_of(self, game: int) -> slice:
        return slice(game * len(self.agents), (game + 1) * len(self.agents))

    # ---- spaces ----

    def _spaces_by_agent(self) -> tuple[tuple[str, ...], bool, dict[str, Spaces]]:
        """Return the agents' names, whether the API is the parallel one, and the spaces of each agent.

        Raises:
            ConfigError: the agents or their spaces are not the same in all games.
        """
        first: ByAgent | None = None
        own: dict[str, Spaces] = {}
        for game, both in enumerate(self.runner.spaces):
            space, actions = both.observation_space, both.action_space
            if not isinstance(space, ByAgent) or not isinstance(actions, ByAgent):
                raise ConfigError(f"make_envs: env 0 is a game of several agents, env {game} is not, got {space}")
            first = space if first is None else first
            names = list(space.names)
            if not names or names != list(first.names) or len(set(names)) < len(names):
                raise ConfigError(
                    f"make_envs: game {game} has possible_agents {names}, game 0 has {list(first.names)}: there must "
                    "be some, of different names, the same in every game"
                )
            for name, *pair in zip(names, space.spaces, actions.spaces, strict=True):
                here = Spaces(observation_space=pair[0], action_space=pair[1])
                if own.setdefault(name, here) != here:
                    raise ConfigError(
                        f"make_envs: agent {name!r} of game {game} has spaces {here}, in game 0 it has {own[name]}: "
                        "they must be equal"
                    )
        assert first is not None, "there is a game"
        return first.names, first.is_parallel, own

    @contextlib.contextmanager
    def _failures_by_row(self, env_ids: Ids) -> Iterator[None]:
        """Name, in a failure of a game, the first of these rows that belongs to it."""
        try:
            yield
        except Failure as failure:
            if failure.env_id is None:
                raise
            rows = env_ids[env_ids // len(self.agents) == failure.env_id]
            raise Failure(int(rows[0]), failure.what, failure.kind) from failure.__cause__


class _RowsRead:
    """The rows that a vector step completes, game by game.

    Attributes:
        next_obs: with space for all open rows.
        env_ids: of the rows so far; `reward`, `flags`, `over` and `infos` are of the same rows.
        entries: agents whose episodes start within the step.
        late: rewards of agents without an open row.
        failures: of games, by their first row.
    """

    def __init__(self, next_obs: Obs) -> None:
        self.next_obs = next_obs
        self.env_ids: list[int] = []
        self.reward: list[float] = []
        self.flags: list[tuple[bool, bool]] = []
        self.over: list[bool] = []
        self.infos: list[dict[str, Any]] = []
        self.entries: list[Entry] = []
        self.late: dict[int, float] = {}
        self.failures: dict[int, Failure] = {}

    def add(self, env_id: int, reward: float, flags: tuple[bool, bool], info: dict[str, Any]) -> None:
        """Add a row, whose observation is written already."""
        self.env_ids.append(env_id)
        self.reward.append(float(reward))
        self.flags.append(flags)
        self.infos.append(info)

    def forget_after(self, n_rows: int) -> None:
        """Forget the rows of a game that failed."""
        for column in (self.env_ids, self.reward, self.flags, self.over, self.infos):
            del column[n_rows:]
