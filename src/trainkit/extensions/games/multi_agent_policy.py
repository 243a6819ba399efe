"""`MultiAgentPolicy`: several policies as one, which dispatches the agents of games to them."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from gymnasium import Space
from numpy.typing import NDArray

from trainkit.core import seeding, tree
from trainkit.core.checkpoint import save_checkpoint
from trainkit.core.config import Plain
from trainkit.core.data import ActOutput, ArraySpec, Obs, Transition
from trainkit.core.errors import CheckpointError, Checks, ConfigError, SpaceMismatchError
from trainkit.core.names import did_you_mean
from trainkit.core.observations import ObservationReader
from trainkit.core.protocols import ActingPolicy, Component, GroupedEnvs, Learner, RowStore, Seedable, StepClock
from trainkit.core.signatures import checked
from trainkit.core.spaces import structure_of
from trainkit.extensions.games.game_behavior import GameBehavior, GameEpisode, PolicyClock, state_of_copy
from trainkit.extensions.games.joint_spaces import AgentView
from trainkit.extensions.games.multi_agent_buffer import MultiAgentBuffer
from trainkit.extensions.games.row_parts import PLAYED_BY
from trainkit.policy.persistence import about_policy, acting_state, current_config, plain_spaces

PolicyMapping = Callable[[str, GameEpisode], str]


@checked
class MultiAgentPolicy:
    """Several policies for the agents of games, as one policy for collectors, trainers and evaluations.

    In every vector step each policy acts once, on the rows of all agents that it controls. Each learns from its own
    rows, with its own horizon, optimizer, target network and random streams; its schedules follow its own clock, the
    number of rows in which it acted. Agents with the same name of a policy share its parameters.

    Args:
        policies: {name: policy}, of any kind: learners, frozen ones, `RandomPolicy`, `ScriptedPolicy`.
        policy_mapping: called with (agent, episode) when an agent first acts in an episode of its game; returns the
            name of its policy, which it keeps to the game's end. `episode` has `game`, `number`, `seed`,
            `in_evaluation` and `rng`, whose draws are equal for all agents of a game. Or {agent: name}. None: an agent
            has the policy of its own name. It is also called in advance, for example episodes, and must have no side
            effects.
        policies_to_train: names of those that learn; None: all that can. Empty: none.
        seed: root of the policies without a seed; None uses the trainer's.

    Attributes:
        clocks: {name: clock}; `clock.env_step` is the number of rows in which the policy acted in training, also before
            it was added; of steps of games with `Collector(count_steps_by="env_steps")`.
    """

    def __init__(
        self,
        policies: Mapping[str, Any],
        policy_mapping: PolicyMapping | Mapping[str, str] | None = None,
        *,
        policies_to_train: Sequence[str] | None = None,
        seed: int | None = None,
    ) -> None:
        with Checks("MultiAgentPolicy") as checks:
            is_given = isinstance(policies, Mapping) and len(policies) > 0
            checks.require(is_given, f".policies must be a dict {{name: policy}}, got {policies!r}")
            checks.integer("seed", seed, low=0, optional=True)
        self._policies: dict[str, ActingPolicy] = {}
        self._numbers: dict[str, int] = {}
        self._n_added = self._n_removed_updates = 0
        self.clocks: dict[str, PolicyClock] = {}
        self._views: dict[str, AgentView | None] = {}  # of policies that see their agents' own spaces
        self._root: int | None = None
        self._rows_per_step = 1
        self._copies: dict[str, str] = {}  # {name: the policy that it is a copy of}
        self.observation_space: Space[Any] | None = None
        self.action_space: Space[Any] | None = None
        for name, policy in policies.items():
            self._add(name, policy)
        self.policy_mapping = policy_mapping
        self.policies_to_train = policies_to_train
        if seed is not None:
            self.seed(seed)

    def __repr__(self) -> str:
        members = ", ".join(f"{name}: {type(policy).__name__}" for name, policy in self._policies.items())
        return f"MultiAgentPolicy({members}; trains {', '.join(self.policies_to_train) or 'none'})"

    def __getitem__(self, name: str) -> Any:
        if name not in self._policies:
            known = list(self._policies)
            raise ConfigError(f"MultiAgentPolicy has no policy {name!r}, only {known}{did_you_mean(name, known)}")
        return self._policies[name]

    # ---- the policies and who they control ----

    @property
    def policies(self) -> Mapping[str, Any]:
        """The policies by name."""
        return MappingProxyType(self._policies)

    @property
    def policy_mapping(self) -> PolicyMapping:
        """The function (agent, episode) -> name; may be set: games in progress keep their policies."""
        return self._mapping

    @policy_mapping.setter
    def policy_mapping(self, mapping: PolicyMapping | Mapping[str, str] | None) -> None:
        if mapping is None:
            self._mapping: PolicyMapping = _own_name
        elif isinstance(mapping, Mapping):
            self._mapping = TableMapping(mapping)
        elif callable(mapping):
            self._mapping = mapping
        else:
            raise ConfigError(
                "MultiAgentPolicy.policy_mapping must be a function (agent, episode) -> name, or a dict, got "
                f"{mapping!r}"
            )

    @property
    def policies_to_train(self) -> tuple[str, ...]:
        """The names of the policies that learn; may be set: trainers follow from their next epoch on."""
        return tuple(name for name in self._policies if name in self._to_train)

    @policies_to_train.setter
    def policies_to_train(self, names: Sequence[str] | None) -> None:
        if names is None:
            self._to_train = {name for name, policy in self._policies.items() if _learns(policy)}
            return
        with Checks("MultiAgentPolicy") as checks:
            is_list = not isinstance(names, str)
            checks.require(is_list, f".policies_to_train must be a sequence of names, got {names!r}: give ({names!r},)")
            checks.done()
            for name in names:
                checks.one_of("policies_to_train", name, self._policies)
            checks.done()
            for name in names:
                kind = type(self._policies[name]).__name__
                rule = f".policies_to_train names {name!r}, a {kind}, which does not learn: leave it out"
                checks.require(_learns(self._policies[name]), rule)
        self._to_train = set(names)

    @checked
    def add_policy(
        self,
        name: str,
        policy: Any,
        *,
        policy_mapping: PolicyMapping | Mapping[str, str] | None = None,
        train: bool = False,
    ) -> None:
        """Add a policy, which the mapping may name from the next episodes on.

        Args:
            name: of the policy.
            policy: of any kind.
            policy_mapping: replaces the mapping; None keeps it.
            train: whether it learns; then the buffer needs one for it, `buffer.add_buffer(name, ...)`.
        """
        if name in self._policies:
            raise ConfigError(f"MultiAgentPolicy has a policy {name!r} already: remove_policy it first")
        self._add(name, policy)
        if train:
            self.policies_to_train = (*self.policies_to_train, name)
        if policy_mapping is not None:
            self.policy_mapping = policy_mapping

    def add_copy(self, name: str, of: str) -> None:
        """Add a frozen copy of a policy as it is now; a run that resumes makes it again.

        Args:
            name: of the copy.
            of: name of the policy.
        """
        copied = copy.deepcopy(self[of])
        copied.start_streams(seeding.derive(self._root or 0, "policies", name))
        self.add_policy(name, copied)
        self.clocks[name].env_step = self.clocks[of].env_step
        self._copies[name] = of

    def copied_from(self, name: str) -> str | None:
        """Return the name of the policy that a frozen copy is of; None for other policies."""
        return self._copies.get(name)

    def saved_copy(self, state: Mapping[str, Any]) -> Any:
        """Return the frozen copy that `state_of_copy` describes."""
        copied = copy.deepcopy(self[state["of"]])
        copied.load_weights(state["weights"])
        copied.load_streams_state(state["streams"])
        copied.n_updates, copied.last_step = state["n_updates"], state["last_step"]
        return copied

    @checked
    def remove_policy(self, name: str, *, policy_mapping: PolicyMapping | Mapping[str, str] | None = None) -> None:
        """Remove a policy; games in progress keep it to their end.

        Args:
            name: of the policy.
            policy_mapping: replaces the mapping, which must not name the policy any more; None keeps it.
        """
        policy = self[name]
        if len(self._policies) == 1:
            raise ConfigError(f"MultiAgentPolicy cannot remove {name!r}, its only policy: add another one first")
        if name not in self._copies:
            self._n_removed_updates += getattr(policy, "n_updates", 0)
        del self._policies[name], self._numbers[name], self.clocks[name]
        self._to_train.discard(name)
        self._copies.pop(name, None)
        if policy_mapping is not None:
            self.policy_mapping = policy_mapping

    def _add(self, name: str, policy: Any) -> None:
        with Checks("MultiAgentPolicy") as checks:
            is_name = isinstance(name, str) and bool(name) and "/" not in name and name.isprintable()
            rule = "a policy's name must be a non-empty string of printable characters without '/'"
            checks.require(is_name, f": {rule}, got {name!r}")
            acts = callable(getattr(policy, "act", None)) and not isinstance(policy, MultiAgentPolicy)
            checks.require(acts, f".policies[{name!r}] must be a policy, with a method act, got {policy!r}")
        for other, own in self._policies.items():
            if own is policy:
                raise ConfigError(
                    f"MultiAgentPolicy: {name!r} and {other!r} are the same object: to share a policy, let "
                    "policy_mapping give several agents its one name"
                )
        self._check_columns(name, policy)
        if self._root is not None and isinstance(policy, Seedable) and not policy.is_seeded:
            policy.seed(seeding.derive(self._root, "policies", name))
        self._policies[name] = policy
        self._numbers[name] = self._n_added
        self._n_added += 1
        self.clocks[name] = PolicyClock(getattr(policy, "last_step", 0))

    def _check_columns(self, name: str, policy: Any) -> None:
        """Raise a ConfigError if a policy stores a column, not `zero_filled`, in another form than the others."""
        for column, spec in policy.extras_spec.items():
            own = self.extras_spec.get(column, spec)
            if own != spec and not (own.zero_filled and spec.zero_filled):
                raise ConfigError(
                    f"MultiAgentPolicy: {name!r} stores the column {column!r} as {spec}, and another policy as {own}: "
                    "policies of one game must store equal columns"
                )

    def view_of(self, name: str, games: GroupedEnvs, agents: Iterable[str]) -> AgentView | None:
        """Check a policy's spaces, and return its view of these agents; None where it sees rows as they are.

        A policy sees its agents' own spaces where they have the same kind, unless it is made for the joint ones.

        Raises:
            SpaceMismatchError: it is for other spaces.
        """
        self._views[name] = self.view_by(self[name], games, agents)
        return self._views[name]

    def view_by(self, policy: ActingPolicy, games: GroupedEnvs, agents: Iterable[str]) -> AgentView | None:
        """Check the spaces of any policy, and return its view of these agents; see `view_of`."""
        kinds = {one.part: one for agent, one in games.agent_views.items() if agent in agents}
        is_own = getattr(policy, "observation_space", None) != games.observation_space
        view = next(iter(kinds.values())) if is_own and len(kinds) == 1 and games.stack == 1 else None
        seen = games if view is None or view.part is None else view
        policy.check_spaces(seen.observation_space, seen.action_space)
        return None if view is None or view.part is None else view

    @property
    def policy_numbers(self) -> Mapping[str, int]:
        """The numbers of the policies by name now, see `number_of`."""
        return dict(self._numbers)

    def number_of(self, name: str) -> int:
        """Return the number of a policy in the column `played_by`; no other policy ever has it."""
        return self._numbers[name]

    def behavior_for(self, envs: GroupedEnvs, *, in_evaluation: bool = False, rows_per_step: int = 1) -> GameBehavior:
        """Return the behavior policy of a collector with these environments.

        Args:
            games: the environments.
            in_evaluation: of the episodes that the mapping receives; then nothing is stored.
            rows_per_step: up to this many rows of a game, stored together, are one step of a policy's clock.

        Raises:
            ConfigError: they have one agent each, or the mapping gives no name of a policy.
        """
        behavior = GameBehavior(self, envs, in_evaluation=in_evaluation)
        if not in_evaluation:
            self._rows_per_step = rows_per_step
        return behavior

    # ---- as one policy ----

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
        """Raise a ConfigError: which policy acts depends on the game, which a collector knows."""
        name = next(iter(self._policies))
        raise ConfigError(
            f"MultiAgentPolicy acts in the games of a collector: call policy[{name!r}].act, or predict({{agent: obs}})"
        )

    @checked
    def predict(
        self,
        obs: Mapping[str, Any],
        *,
        policies: Mapping[str, str] | None = None,
        explore: bool = False,
        return_extra: bool = False,
        state: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return {agent: action} for {agent: observation}, or for K observations each.

        Of an agent whose policy carries a state it is (action, state), and with `return_extra` there is an extra more,
        as its policy's own `predict` returns them.

        Args:
            obs: by agent, as the game returns them.
            policies: {agent: name}; default: as the mapping gives them in a first episode.
            explore: whether to explore.
            return_extra: see `Policy.predict`; a policy without an observation space has none, {}.
            state: {agent: the state that the last call returned}; an agent that is not there starts an episode.

        Raises:
            ConfigError: no policy has an observation space, without which one observation looks like several; or there
                is a state of an agent without an observation.
        """
        if unknown := sorted(set(state or {}) - set(obs)):
            raise ConfigError(f"MultiAgentPolicy.predict(state=) has {unknown}, of which obs has none: leave them out")
        names = {agent: self.policy_mapping(agent, GameEpisode(game=0, number=0, seed=0)) for agent in obs}
        names |= dict(policies or {})
        spaces = {agent: getattr(self[name], "observation_space", None) for agent, name in names.items()}
        known = [agent for agent, space in spaces.items() if space is not None]
        if not known:
            raise ConfigError(
                "MultiAgentPolicy.predict needs an observation space, which no policy of these agents has: give one at "
                "construction, or collect first"
            )
        _, is_one = ObservationReader(spaces[known[0]]).read(f"MultiAgentPolicy.predict({known[0]!r})", obs[known[0]])
        return {
            agent: self[names[agent]].predict(
                own, explore=explore, return_extra=return_extra, state=None if state is None else state.get(agent)
            )
            if agent in known
            else _act_unread(self[names[agent]], own, is_one=is_one, explore=explore, return_extra=return_extra)
            for agent, own in obs.items()
        }

    def on_cpu(self) -> "MultiAgentPolicy":
        """Return this policy with those that are on a device copied to the CPU, to be sent to another process."""
        sent = copy.copy(self)
        own = self._policies.items()
        sent._policies = {name: policy.on_cpu() if hasattr(policy, "on_cpu") else policy for name, policy in own}
        return sent

    def get_weights(self) -> dict[str, dict[str, NDArray[Any]]]:
        """Return {name: copies of all weights} of the policies, see `Policy.get_weights`."""
        return {name: policy.get_weights() for name, policy in self._policies.items() if hasattr(policy, "get_weights")}

    def set_weights(self, weights: Mapping[str, Mapping[str, NDArray[Any]]]) -> None:
        """Load copies of the weights of these policies, {name: what its `get_weights` returned}.

        Raises:
            ConfigError: a policy is not here.
            CheckpointError: as `Policy.load_weights`.
        """
        for name in weights:
            self[name]
        for name, own in weights.items():
            self[name].set_weights(own)

    @property
    def extras_spec(self) -> Mapping[str, ArraySpec]:
        """The columns of all policies, those that are `zero_filled` as wide as the widest."""
        merged: dict[str, ArraySpec] = {}
        for policy in self._policies.values():
            for name, spec in policy.extras_spec.items():
                merged[name] = max(merged.get(name, spec), spec, key=lambda one: one.shape)
        return merged

    def check_spaces(self, observation_space: Space[Any], action_space: Space[Any]) -> None:
        """Store the spaces; those of the policies are checked by `behavior_for`, which knows their agents."""
        if self.observation_space is not None and (self.observation_space, self.action_space) != (
            observation_space,
            action_space,
        ):
            raise SpaceMismatchError(
                f"MultiAgentPolicy played games of {self.observation_space} -> {self.action_space}, and these have "
                f"{observation_space} -> {action_space}: make another policy for them"
            )
        self.observation_space, self.action_space = observation_space, action_space

    @property
    def observes(self) -> bool:
        """True: collectors that fill a buffer move the clocks."""
        return True

    def observe(self, transition: Transition) -> None:
        """Count the steps of each policy, and update the running statistics of those that are trained."""
        numbers, env_ids = transition.extras[PLAYED_BY], transition.env_ids
        for name, policy in self._policies.items():
            is_own = numbers == self._numbers[name]
            n_own = int(np.count_nonzero(is_own))
            is_one_each = self._rows_per_step == 1
            self.clocks[name].env_step += (
                n_own if is_one_each else len(np.unique(env_ids[is_own] // self._rows_per_step))
            )
            if n_own and policy.observes and name in self._to_train:
                view, rows = self._views[name], transition.at(is_own)
                policy.observe(rows if view is None else view.own_rows(rows))

    def cut(self, env_ids: NDArray[np.intp]) -> None:
        """End the open episodes of these environments in the running statistics of all policies."""
        for policy in self._policies.values():
            if policy.observes:
                policy.cut(env_ids)

    def settings(self) -> dict[str, Plain]:
        """Return the settings of all policies by `name/setting`, for the record of a run."""
        record: dict[str, Plain] = {"policies_to_train": ", ".join(self.policies_to_train)}
        for name, policy in self._policies.items():
            own = policy.settings() if hasattr(policy, "settings") else {"class": type(policy).__name__}
            record |= {f"{name}/{key}": value for key, value in own.items()}
        return record

    # ---- learning ----

    @property
    def _members(self) -> dict[str, Any]:
        """The policies that can learn, trained or not, by name."""
        return {name: policy for name, policy in self._policies.items() if _learns(policy)}

    def buffer_for(self, buffer: RowStore) -> MultiAgentBuffer:
        """Return what stores the rows of a run whose only learner learns from this buffer.

        Raises:
            ConfigError: it has no learner, or several.
        """
        if len(self.policies_to_train) != 1:
            raise ConfigError(
                f"MultiAgentPolicy.buffer_for is for one that trains, and {list(self.policies_to_train)} do: give "
                "Collector a MultiAgentBuffer({name: buffer})"
            )
        return MultiAgentBuffer({self.policies_to_train[0]: buffer})

    def learners(self, buffer: MultiAgentBuffer, clock: StepClock, names: Sequence[str] | None = None) -> list[Learner]:
        """Return the policies that are trained, each with its buffer and its own clock.

        Args:
            buffer: has the buffer of each.
            clock: of an only policy, not used.
            names: of those that were trained when a run was saved; None: those that are trained now.

        Raises:
            ConfigError: the buffer has none for one of them.
        """
        if not hasattr(buffer, "buffers"):
            raise ConfigError(
                f"MultiAgentPolicy learns from a buffer for each policy, got {buffer!r}: Collector(policy, envs, "
                "MultiAgentBuffer({name: buffer}))"
            )
        learners = []
        for name in self.policies_to_train if names is None else filter(self._policies.__contains__, names):
            if name not in buffer.buffers:
                raise ConfigError(
                    f"MultiAgentPolicy trains {name!r}, and the buffers are of {list(buffer.buffers)}: give "
                    f"MultiAgentBuffer one for it, or leave it out of policies_to_train"
                )
            learners.append(Learner(name=name, policy=self[name], buffer=buffer.buffers[name], clock=self.clocks[name]))
        return learners

    def check_modules(self) -> None:
        """Raise `ConfigError` if a module of a policy that learns was replaced by another one."""
        for policy in self._members.values():
            policy.check_modules()

    @property
    def n_updates(self) -> int:
        """The number of updates of all policies, those that were removed included, without those of copies."""
        own = [name for name in self._policies if name not in self._copies]
        return self._n_removed_updates + sum(int(getattr(self[name], "n_updates", 0)) for name in own)

    @property
    def last_step(self) -> int:
        """The clock of the policy that has acted most."""
        return max(clock.env_step for clock in self.clocks.values())

    @property
    def config(self) -> None:
        """None: each policy has its own."""
        return None

    @property
    def n_threads(self) -> int:
        """The number of threads torch computes on, in the whole process; may be set."""
        return int(self._first.n_threads)

    @n_threads.setter
    def n_threads(self, count: int) -> None:
        self._first.n_threads = count

    @property
    def _first(self) -> Any:
        """A policy that computes by torch."""
        return next(policy for policy in self._policies.values() if hasattr(policy, "n_threads"))

    @property
    def on_nan(self) -> Any:
        """What happens to an update that is not finite; may be set, for all policies."""
        return next((policy.on_nan for policy in self._members.values()), "raise")

    @on_nan.setter
    def on_nan(self, on_nan: Any) -> None:
        for policy in self._members.values():
            policy.on_nan = on_nan

    def check_divergence(self) -> None:
        """Raise `DivergedError` if an earlier update of a policy was not finite."""
        for policy in self._members.values():
            policy.check_divergence()

    def read_metrics(self) -> dict[str, float]:
        """Return the means of all policies since the last call by `name/metric`, and reset them."""
        own = {name: policy.read_metrics() for name, policy in self._members.items()}
        return {f"{name}/{metric}": mean for name, means in own.items() for metric, mean in means.items()}

    def explore_metrics(self, step: int) -> dict[str, float]:
        """Return the metrics of exploration of the policies that are trained, each at its own clock."""
        return {
            f"{name}/{metric}": value
            for name in self.policies_to_train
            for metric, value in self[name].explore_metrics(self.clocks[name].env_step).items()
        }

    # ---- seeds ----

    @property
    def is_seeded(self) -> bool:
        """Whether every policy has a seed."""
        return all(policy.is_seeded for policy in self._policies.values() if isinstance(policy, Seedable))

    def seed(self, root: int) -> None:
        """Seed every policy without a seed from a stream of this root, by its name."""
        self._root = root
        for name, policy in self._policies.items():
            if isinstance(policy, Seedable) and not policy.is_seeded:
                policy.seed(seeding.derive(root, "policies", name))

    @property
    def is_random(self) -> bool:
        """Whether the actions of any policy are random without exploration, too."""
        return any(getattr(policy, "is_random", False) for policy in self._policies.values())

    def start_streams(self, root: int) -> None:
        """Restart the random streams of every policy, and nothing else."""
        for name, policy in self._policies.items():
            policy.start_streams(seeding.derive(root, "policies", name))

    def streams_state(self) -> dict[str, Any]:
        """Return the states of the random streams by policy."""
        return {name: policy.streams_state() for name, policy in self._policies.items()}

    def load_streams_state(self, state: Mapping[str, Any]) -> None:
        """Load the states of the random streams of the policies that had some."""
        for name, policy in self._policies.items():
            if name in state:
                policy.load_streams_state(state[name])

    # ---- saving and loading ----

    @checked
    def save(self, path: str | Path) -> Path:
        """Save every policy that can be saved in a folder, for `load_policy(path, name="main")`."""
        saved = {name: policy for name, policy in self._policies.items() if hasattr(policy, "state_dict")}
        states = {f"policy/{name}": acting_state(policy) for name, policy in saved.items()}
        return save_checkpoint(path, states, about_policy(self))

    @property
    def configs(self) -> dict[str, Mapping[str, Any] | None]:
        """How each policy was made, and its spaces, by its name; None where that is not known."""
        made = {name: current_config(own) for name, own in self._policies.items() if hasattr(own, "config")}
        known = {name: {**how, "spaces": plain_spaces(self._policies[name])} for name, how in made.items() if how}
        return {name: known.get(name) for name in self._policies}

    def components(self) -> dict[str, Component]:
        """Return the parts of a checkpoint, {"policy": ..., "policy/main": ...}: how each is read and restored."""
        return {
            "policy": (self._own_state, self._load_own_state),
            **{
                f"policy/{name}": (policy.training_state, policy.load_training_state)
                for name, policy in self.policies.items()
                if _is_saved(policy) and name not in self._copies
            },
        }

    def training_state(self) -> dict[str, Any]:
        """Return the states of all components by name."""
        return {name: read() for name, (read, _) in self.components().items()}

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """Continue from the saved state of a `MultiAgentPolicy` with the same policies.

        Raises:
            CheckpointError: a policy is missing, here or there.
        """
        for name, (_, restore) in self.components().items():
            if name in state:
                restore(state[name])

    def _own_state(self) -> dict[str, Any]:
        return {
            "to_train": list(self.policies_to_train),
            "clocks": {name: clock.env_step for name, clock in self.clocks.items()},
            "numbers": dict(self._numbers),
            "n_added": self._n_added,
            "n_removed_updates": self._n_removed_updates,
            "root": self._root,
            "copies": {name: state_of_copy(self[name], of) for name, of in self._copies.items()},
        }

    def _load_own_state(self, state: Mapping[str, Any]) -> None:
        for name in [name for name in self._copies if name not in state["copies"]]:
            self.remove_policy(name)
        for name, saved_copy in state["copies"].items():
            if name in self._policies:
                self.remove_policy(name)
            self.add_policy(name, self.saved_copy(saved_copy))
            self._copies[name] = saved_copy["of"]
        saved, here = set(state["clocks"]), set(self._policies)
        if saved != here:
            raise CheckpointError(
                f"the policies {sorted(saved)} were saved, and here are {sorted(here)}: add_policy or remove_policy "
                "those that differ before the run resumes"
            )
        self._to_train = set(state["to_train"])
        for name, count in state["clocks"].items():
            self.clocks[name].env_step = count
        self._numbers, self._n_added = dict(state["numbers"]), state["n_added"]
        self._n_removed_updates, self._root = state["n_removed_updates"], state["root"]


class TableMapping:
    """A mapping of agents to policies by a table.

    Args:
        names: {agent: name of its policy}.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = dict(names)

    def __call__(self, agent: str, episode: GameEpisode) -> str:
        if agent not in self.names:
            raise ConfigError(
                f"MultiAgentPolicy.policy_mapping has no agent {agent!r}, only {list(self.names)}: add it"
            )
        return self.names[agent]


def _act_unread(policy: Any, obs: Any, *, is_one: bool, explore: bool, return_extra: bool) -> Any:
    """Return the actions of a policy that knows no observation space, such as a random one."""
    rows = tree.map_tree(lambda leaf: np.asarray(leaf)[None] if is_one else np.asarray(leaf), obs)
    action = policy.act(rows, step=getattr(policy, "last_step", 0), explore=explore).action
    structure = structure_of(policy.action_space)
    action = action[0] if is_one else action
    action = action if structure is None else structure.unpack(action)
    return (action, {}) if return_extra else action


def _own_name(agent: str, episode: GameEpisode) -> str:
    """Return the agent's own name as that of its policy."""
    return agent


def _is_saved(policy: Any) -> bool:
    """Return whether a policy has a state to be saved."""
    return hasattr(policy, "training_state") and hasattr(policy, "load_training_state")


def _learns(policy: Any) -> bool:
    """Return whether a policy has a way to learn."""
    return bool(getattr(policy, "learning_methods", hasattr(policy, "update") or hasattr(policy, "learn")))
