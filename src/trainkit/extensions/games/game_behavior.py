"""The behavior policy of a `MultiAgentPolicy`: which policy controls each agent of games, and one `act` for all."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from trainkit.core import seeding, tree
from trainkit.core.data import ActOutput, ArraySpec, Obs, RowSpec, Transition, any_true
from trainkit.core.errors import CheckpointError, ConfigError
from trainkit.core.names import did_you_mean
from trainkit.core.protocols import ActingPolicy, GroupedEnvs
from trainkit.core.spaces import array_specs
from trainkit.extensions.games.joint_spaces import AgentView
from trainkit.extensions.games.row_parts import PLAYED_BY, DividedRowSpec, RowPart
from trainkit.policy.persistence import acting_state

if TYPE_CHECKING:
    from trainkit.extensions.games.multi_agent_policy import MultiAgentPolicy

_NUMBER = ArraySpec(shape=(), dtype=np.dtype(np.int16))
_N_EXAMPLES = 10  # episodes of each game to which a mapping is applied in advance

_Rows = NDArray[np.intp] | slice


@dataclass(frozen=True, kw_only=True)
class GameEpisode:
    """One episode of one game, as a `policy_mapping` receives it, a new object in every call.

    Attributes:
        game: index of the game.
        number: of the episode in this game, from 0.
        seed: of the game's reset.
        in_evaluation: whether nothing is stored and learned from it.
    """

    game: int
    number: int
    seed: int
    in_evaluation: bool = False

    @cached_property
    def rng(self) -> np.random.Generator:
        """The generator of one call, a stream of the episode's seed: equal draws for all agents of a game."""
        return seeding.generator(self.seed, "policy_mapping")


class PolicyClock:
    """The number of steps in which a policy has acted in training: the step of its schedules.

    Attributes:
        env_step: this number.
    """

    def __init__(self, env_step: int = 0) -> None:
        self.env_step = env_step


class Player(NamedTuple):
    """A policy in play, which may have been removed since."""

    name: str
    policy: ActingPolicy
    clock: PolicyClock
    view: AgentView | None  # None where it sees rows as they are
    copy_of: str | None  # the name of the policy that it is a frozen copy of


class GameBehavior:
    """The policies of all rows of one collector: assigned by the mapping when an agent first acts in an episode.

    An agent keeps its policy to the end of the game, also if it leaves and returns, or if the policy is removed.

    Args:
        policy: has the policies and their mapping.
        games: the collector's environments.
        in_evaluation: of its episodes.

    Attributes:
        acts: has `act`, this object.
        normal: None, as the policies are several.
    """

    acts_here = True
    max_lag = 0

    def __init__(self, policy: "MultiAgentPolicy", games: GroupedEnvs, *, in_evaluation: bool) -> None:
        if not games.agents:
            raise ConfigError(
                f"MultiAgentPolicy plays games of several agents, and {games.name} has one: give the collector one of "
                f"its policies, such as policy[{next(iter(policy.policies))!r}], or make_envs a parallel game"
            )
        self.acts, self.normal = self, None
        self._policy, self._games, self._in_evaluation = policy, games, in_evaluation
        self._numbers = np.full(games.n, -1, np.int64)  # [N], of the policies; -1 of none
        self._keys = np.full(games.n, -1, np.int64)  # [N], of the episodes they were assigned for
        self._in_play: dict[int, Player] = {}  # by number, those that were assigned to a row
        self._restored: dict[int, tuple[int, int]] = {}  # {row: numbers of its saved episode, policy}, not played on
        self._division: tuple[bytes, list[tuple[Player, _Rows]]] = b"", []  # of the last rows that acted
        self._rows_of = self._possible_rows()
        for name in policy.policies:
            self._view_of(name)

    @property
    def extras_spec(self) -> Mapping[str, ArraySpec]:
        """The columns of all policies, and the number of the one that acted."""
        return {**self._policy.extras_spec, PLAYED_BY: _NUMBER}

    # ---- acting ----

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
        """Choose the actions [K, ...] of all rows, by one `act` of each policy that controls some of them.

        Schedules of each policy follow its own clock; `step` is not used.
        """
        assert env_ids is not None, "collectors give it"
        assert starts is not None, "collectors give it"
        numbers = self._assigned(env_ids)
        states: dict[str, Any] = {} if state is None else dict(state)
        outputs: list[tuple[_Rows, ActOutput]] = []
        for player, rows in self._divided(numbers):
            own = obs if isinstance(rows, slice) else tree.map_tree(lambda leaf, rows=rows: leaf[rows], obs)
            output = player.policy.act(
                player.view.obs(own) if player.view is not None else own,
                step=player.clock.env_step,
                explore=explore,
                state=states.get(player.name),
                starts=starts[rows],
                env_ids=env_ids[rows],
            )
            if player.view is not None:
                output = output._replace(action=player.view.joint_action(output.action))
            outputs.append((rows, output))
            states[player.name] = output.state
        kept = {name: own for name, own in states.items() if own is not None}
        return ActOutput(*self._merged(numbers, outputs), kept or None)

    def _divided(self, numbers: NDArray[np.int64]) -> list[tuple[Player, _Rows]]:
        """Return the policies of rows [K] with the indices of their rows, a slice where one has all."""
        key = numbers.tobytes()
        if key != self._division[0]:
            in_play = [self._in_play[number] for number in np.unique(numbers).tolist()]
            rows = [np.flatnonzero(numbers == number) for number in np.unique(numbers).tolist()]
            self._division = key, list(zip(in_play, rows if len(rows) > 1 else [slice(None)], strict=True))
        return self._division[1]

    def _merged(
        self, numbers: NDArray[np.int64], outputs: list[tuple[_Rows, ActOutput]]
    ) -> tuple[NDArray[Any], dict[str, NDArray[Any]]]:
        """Return the actions and columns of all rows; 0 where a policy does not have a column, or a narrower one."""
        action = outputs[0][1].action
        if len(outputs) > 1:
            action = np.empty((len(numbers), *action.shape[1:]), action.dtype)
            for rows, output in outputs:
                action[rows] = output.action
        extras: dict[str, NDArray[Any]] = {PLAYED_BY: numbers.astype(np.int16)}
        for name, spec in self._policy.extras_spec.items():
            extras[name] = np.zeros((len(numbers), *spec.shape), spec.dtype)
            for rows, output in outputs:
                if name not in output.extras:
                    continue
                if spec.zero_filled:
                    extras[name][rows, : output.extras[name].shape[1]] = output.extras[name]
                else:
                    extras[name][rows] = output.extras[name]
        return action, extras

    def row_extras(self, env_ids: NDArray[np.intp]) -> dict[str, NDArray[Any]]:
        """Return the number of each row's policy."""
        return {PLAYED_BY: self._assigned(env_ids).astype(np.int16)}

    # ---- who plays ----

    def players(self, env_ids: NDArray[np.intp]) -> list[str]:
        """Return the names of the policies that control these rows [K] in their current episodes."""
        return [self._in_play[number].name for number in self._assigned(env_ids).tolist()]

    def last_players(self) -> tuple[NDArray[np.int64], Mapping[int, str]]:
        """Return the numbers of the policies that acted last in all rows [N], -1 for none, and their names."""
        return self._numbers, {number: player.name for number, player in self._in_play.items()}

    def _assigned(self, env_ids: NDArray[np.intp]) -> NDArray[np.int64]:
        """Return the numbers of the policies of rows [K], assigned now where an episode is new."""
        keys = self._games.episode_keys
        is_new = keys[env_ids] != self._keys[env_ids]
        if any_true(is_new):
            for env_id in env_ids[is_new].tolist():
                episode, number = self._restored.pop(env_id, (-1, -1))
                if episode == self._games.episodes[env_id]:
                    self._numbers[env_id] = number
                    self._division = b"", []
                else:
                    game, agent = divmod(env_id, len(self._games.agents))
                    self._set(env_id, self._mapped(self._games.agents[agent], self._episode_of(game, env_id)))
                self._keys[env_id] = keys[env_id]
        return self._numbers[env_ids]

    def _episode_of(self, game: int, env_id: int) -> GameEpisode:
        """Return the current episode of a game, for one call of the mapping."""
        number, seed = int(self._games.episodes[env_id]), self._games.episode_seed(env_id)
        return GameEpisode(game=game, number=number, seed=seed, in_evaluation=self._in_evaluation)

    def _set(self, env_id: int, name: str) -> None:
        """Let a policy control a row to the end of its current episode."""
        number = self._policy.number_of(name)
        if number not in self._in_play:
            view, copy_of = self._view_of(name), self._policy.copied_from(name)
            self._in_play[number] = Player(name, self._policy[name], self._policy.clocks[name], view, copy_of)
        self._numbers[env_id] = number
        self._division = b"", []
        if len(self._in_play) > len(self._policy.policies):  # some were removed
            in_use = {*self._numbers.tolist(), *map(self._policy.number_of, self._policy.policies)}
            self._in_play = {own: player for own, player in self._in_play.items() if own in in_use}

    def _mapped(self, agent: str, episode: GameEpisode) -> str:
        """Return the name that the mapping gives; raise a ConfigError if there is no such policy."""
        name: object = self._policy.policy_mapping(agent, episode)
        if not isinstance(name, str) or name not in self._policy.policies:
            known = list(self._policy.policies)
            hint = did_you_mean(name, known) if isinstance(name, str) else ""
            raise ConfigError(
                f"MultiAgentPolicy.policy_mapping gave {name!r} for agent {agent!r} of game {episode.game}, and the "
                f"policies are {known}: return one of them, or add_policy({name!r}, ...){hint}"
            )
        return name

    # ---- the rows that a policy may control ----

    def _possible_rows(self) -> dict[str, set[int]]:
        """Return the rows that each policy controls in example episodes; all rows for one that changes them."""
        agents = self._games.agents
        found: dict[str, set[int]] = {}
        varying: set[str] = set()
        for game in range(self._games.n // len(agents)):
            names: list[set[str]] = [set() for _ in agents]
            for number in range(_N_EXAMPLES):
                seed = seeding.derive(0, "example", game, number)
                for agent, own in zip(agents, names, strict=True):
                    episode = GameEpisode(game=game, number=number, seed=seed, in_evaluation=self._in_evaluation)
                    own.add(self._mapped(agent, episode))
            for agent_index, own in enumerate(names):
                varying |= own if len(own) > 1 else set()
                for name in own:
                    found.setdefault(name, set()).add(game * len(agents) + agent_index)
        return found | {name: set(range(self._games.n)) for name in varying}

    def _view_of(self, name: str) -> AgentView | None:
        """Return how a policy sees its agents; see `MultiAgentPolicy.view_of`."""
        return self._policy.view_of(name, self._games, self._agents_of(name))

    def _agents_of(self, name: str) -> set[str]:
        """Return the agents that a policy may control."""
        n_agents = len(self._games.agents)
        return {self._games.agents[row % n_agents] for row in self._rows_of.get(name, range(n_agents))}

    def row_spec(self, spec: RowSpec) -> DividedRowSpec:
        """Return the spec of all rows, with the parts that single policies control."""

        def part_of(name: str, *, all_rows: bool = False) -> RowPart:
            """Return a policy's part: the rows it may control, or all if the mapping did not name it yet."""
            rows = np.arange(self._games.n)
            if name in self._rows_of and not all_rows:
                rows = np.array(sorted(self._rows_of[name]))
            of_others = {PLAYED_BY, *self._policy.extras_spec} - {*self._policy[name].extras_spec}
            columns = {column: own for column, own in spec.extras.items() if column not in of_others}
            columns |= self._policy[name].extras_spec
            view = self._view_of(name)
            obs = spec.obs if view is None else array_specs(view.observation_space)
            action = spec.action if view is None else array_specs(view.action_space)
            own_spec = RowSpec(n_envs=len(rows), obs=obs, action=action, extras=columns, pad=spec.pad)
            own_rows = _same if view is None else view.own_rows
            return RowPart(
                number=self._policy.number_of(name),
                env_ids=rows,
                spec=own_spec,
                own_rows=own_rows,
                clock=self._policy.clocks[name],
            )

        own = {item.name: getattr(spec, item.name) for item in fields(spec)}
        return DividedRowSpec(**own, part_of=part_of)

    # ---- saving and resuming ----

    def state_dict(self) -> dict[str, Any]:
        """Return who plays the current episodes of all rows, their numbers, and copies in play that were removed."""
        is_current = self._keys == self._games.episode_keys  # else the agent has not acted in its new episode yet
        for env_id, (episode, _) in self._restored.items():
            is_current[env_id] |= episode == self._games.episodes[env_id]
        numbers = np.where(is_current, self._numbers, -1).tolist()
        known = set(self._policy.policy_numbers.values())
        removed = {number: self._in_play[number] for number in {*numbers} - known - {-1}}
        return {
            "players": [self._in_play[number].name if number >= 0 else "" for number in numbers],
            "numbers": numbers,
            "episodes": np.where(is_current, self._games.episodes, -1),
            "removed": {
                str(number): {"clock": one.clock.env_step, "name": one.name, **state_of_copy(one.policy, one.copy_of)}
                for number, one in removed.items()
                if one.copy_of is not None
            },
        }

    def load_state_dict(self, state: Mapping[str, Any], *, with_running: bool) -> None:
        """Let the rows of saved episodes have the policies that they had, if the episodes continue.

        Raises:
            CheckpointError: there is no policy of a name.
        """
        names, removed = state["players"], state["removed"]
        known = {*self._policy.policies, *(own["name"] for own in removed.values())}
        lost = sorted({name for name in names if name} - known)
        if lost and with_running:
            raise CheckpointError(f"policies {lost} played when the run was saved: add_policy them before it resumes")
        self._keys[:] = self._numbers[:] = -1
        self._division, self._restored = (b"", []), {}
        self._in_play = {int(number): self._saved_copy(own) for number, own in removed.items()}
        for env_id, (name, number, episode) in enumerate(
            zip(names, state["numbers"], state["episodes"].tolist(), strict=True)
        ):
            if number in self._in_play:
                self._numbers[env_id] = number
            elif name in self._policy.policies:
                self._set(env_id, name)
            if with_running and name:
                self._restored[env_id] = episode, int(self._numbers[env_id])

    def _saved_copy(self, state: Mapping[str, Any]) -> Player:
        """Return a copy that was removed while it played."""
        policy, name = self._policy.saved_copy(state), state["name"]
        view = self._policy.view_by(policy, self._games, self._agents_of(name))
        return Player(name, policy, PolicyClock(state["clock"]), view, state["of"])


def state_of_copy(policy: Any, of: str) -> dict[str, Any]:
    """Return what a frozen copy of the policy named `of` acts by, for a checkpoint, with arrays in place of tensors."""
    state = {**acting_state(policy), "weights": policy.get_weights(), "streams": policy.streams_state()}
    return {"of": of, **_with_arrays(state)}


def _with_arrays(state: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _with_arrays(own) if isinstance(own, Mapping) else own.numpy() if isinstance(own, Tensor) else own
        for name, own in state.items()
    }


def _same(rows: Transition) -> Transition:
    return rows
