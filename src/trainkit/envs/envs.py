"""N environments as one: what the policy may act on now, and the true outcome of each step.

Stacks of frames are made here, lives counted, episodes seeded, and every row is validated before it is returned.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from trainkit.core import seeding, tree
from trainkit.core.data import ACTION_MASK, Obs, any_true
from trainkit.core.errors import BadEnvDataError, ConfigError, EnvError, NoLegalActionError
from trainkit.core.protocols import ActingPolicy, BehaviorPolicy, OngoingCollect
from trainkit.core.spaces import stacked_space, zeros_of
from trainkit.core.stats import Summary
from trainkit.envs.backends import Backend, Begun, Failure, Ids, Infos, Lost, Options, Players, RawStep, Runner, Work
from trainkit.envs.envs_config import EnvsConfig
from trainkit.envs.fingerprints import differences
from trainkit.envs.ownership import Ownership, Use, for_owner
from trainkit.envs.played_actions import PlayedActions
from trainkit.envs.validation import ActionValidator, StepValidator, Where, check_rendered

_Rows = TypeVar("_Rows", Begun, RawStep)
_Result = TypeVar("_Result")
_Acted = tuple[NDArray[Any], Ids]  # actions [K, ...] of a step, and their environments [K]


class VectorStep(NamedTuple):
    """The true outcome of one vector step, K rows, some of them perhaps of earlier actions; see `Envs.step`."""

    env_ids: Ids  # [K], ascending: those whose row is complete; the array that was passed where they are the same
    next_obs: Obs  # [K, ...], before any reset
    reward: NDArray[np.float64]  # [K]
    terminated: NDArray[np.bool_]  # [K], by the environment or, for the learner alone, by a lost life
    truncated: NDArray[np.bool_]  # [K]
    ended: NDArray[np.bool_]  # [K], terminated or truncated
    over: NDArray[np.bool_]  # [K], whose group ended: to be counted and begun again
    infos: Infos  # of K rows
    lost: Lost  # episodes that cannot go on; to be followed by others
    late_rewards: Mapping[int, float]  # of rows that did not act in this step
    begun: Ids | None  # that got a first observation within the step, by autoreset NEXT_STEP or as they joined a group


class Envs:
    """Environments stepped together; `make_envs` makes one.

    `obs` [N, ...] is what to act on, `ready` the ids of the environments that await an action. A collector calls
    `reset` once, then `step` and, where episodes ended, `begin`. An environment that has acted is ready again when its
    row is complete: within the step, or in a later one where it answers later (`wait_num`) or takes turns with others
    of its group; `obs` keeps the observation that it acted on until then. They have one owner, a `Collector`; without
    one, user code may reset and step them.

    Attributes:
        n: number of rows of `obs`, each an environment, or a member of a group.
        group_size: number of consecutive rows that begin and end together, and share a seed; 1: each row is alone.
        agents: the names of the rows of a group, in order; empty where each is alone.
        agent_views: {name: that row's own part of `obs` and of an action}; empty where each is alone, and with
            processors, which transform the rows of all.
        observation_space: of one environment as the policy sees it: stacked, with the mask in.
        action_space: of one environment as the policy sees it: a Discrete space starts at 0.
        stack: frames per observation.
        pad: what stands before an episode's first frame: that frame, "repeat", or "zero".
        max_episode_steps: the environments' own time limit, where it is known: given to `make_envs`, or the id's.
        soft_horizon: steps after which a collector counts an episode that continues; None: at its end only.
        truncate_at_soft_horizon: whether the row there is truncated for the learner.
        ownership: their one owner, and the thread that uses them.
        config: what `make_envs` was given, to make equal environments again; None without it.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        stack: int = 1,
        pad: str = "repeat",
        mask_key: str | None = None,
        lives_key: str | None = None,
        seed: int | None = None,
        name: str = "custom",
        max_episode_steps: int | None = None,
        soft_horizon: int | None = None,
        truncate_at_soft_horizon: bool = False,
        config: EnvsConfig | None = None,
    ) -> None:
        self._backend = backend
        self.n = backend.n
        self.agents, self.agent_views = backend.agents, backend.agent_views
        self.group_size = max(1, len(self.agents))
        self.name = name
        self.config = config
        self.stack, self.pad = stack, pad
        self.max_episode_steps, self.soft_horizon = max_episode_steps, soft_horizon
        self.truncate_at_soft_horizon = truncate_at_soft_horizon
        self._actions = ActionValidator(backend.action_space)
        self.action_space: gym.Space[Any] = self._actions.space
        self._validator = StepValidator(
            backend.observation_space,
            self.action_space,
            mask_key=mask_key,
            lives_key=lives_key,
            source=backend.source,
        )
        self.observation_space = stacked_space(self._validator.frame_space, stack)
        self._current = CurrentEpisodes(self.n, seed, self.agents)
        self.all_ids: Ids = np.arange(self.n)
        self.ready: Ids = self.all_ids
        self._is_ready = np.ones(self.n, np.bool_)  # [N], the same as a mask
        self.obs: Obs = None
        self._lives = np.zeros(self.n, np.int64)  # [N], left; only where they are counted
        self._options: Options | list[Options] = None
        self._unsent: tuple[NDArray[Any], Ids] | None = None  # actions to send again with the next step
        self._failed_starts: list[dict[int, EnvError]] = []  # since they were taken
        self.spent = backend.spent  # seconds, ever
        self._played = PlayedActions(self.n, keeps=backend.seeds_episodes)
        self.ownership = Ownership(f"the environments of {name}")

    def __repr__(self) -> str:
        return f"Envs({self.name!r}, n={self.n}, {self.observation_space} -> {self.action_space})"

    @property
    def n_agents(self) -> int:
        """The size of a group, by its name in games of several agents."""
        return self.group_size

    @property
    def may_lose_episodes(self) -> bool:
        """Whether the failure of an environment ends its episode alone, so that its rows are missing; else the run."""
        return self._backend.may_lose_episodes

    @property
    def made_with(self) -> dict[str, Any]:
        """The arguments of `make_envs` that decide what the environments are, which a resumed run compares."""
        return {} if self.config is None else self.config.of_environments()

    def for_evaluation(self) -> dict[str, Any]:
        """Return what evaluates in the same environments: {"env": id, "env_options": options, "unknown": names}.

        "unknown" are arguments of `make_envs` that no file can hold; the id is None where there is none.
        """
        return {} if self.config is None else self.config.for_evaluation()

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `make_envs` that are known, for the record of a run."""
        live = {
            name: getattr(self, name)
            for name in ("stack", "pad", "max_episode_steps", "soft_horizon", "truncate_at_soft_horizon")
        }
        return {**({} if self.config is None else self.config.arguments()), **live}

    def use_players(self, players: Players) -> None:
        """Receive the function that returns the names of the policies that control rows [K]."""
        self._backend.use_players(players)

    def seed(self, root: int) -> None:
        """Seed every episode that begins from now on by (root, environment, episode)."""
        self._current.seed(root)

    @property
    def is_seeded(self) -> bool:
        """Whether a root seed for the episodes was given."""
        return self._current.is_seeded

    @property
    def root(self) -> int:
        """The root of the episodes' seeds."""
        return self._current.root

    @property
    def episodes(self) -> NDArray[np.int64]:
        """The number of each environment's current episode [N], -1 before the first."""
        return self._current.number

    @property
    def in_flight(self) -> Ids:
        """The environments that have not answered their last action yet, ascending; see `make_envs(wait_num=)`."""
        return self._backend.in_flight

    @property
    def episode_keys(self) -> NDArray[np.int64]:
        """A number for each environment's current episode [N] that no other episode of it has, here."""
        return self._current.keys

    def episode_seed(self, env_id: int) -> int:
        """Return the seed of a row's current episode; a group shares one."""
        return self._current.seeds_of(np.array([env_id]))[0]

    @property
    def frame_space(self) -> gym.Space[Any]:
        """The observation space of one environment as the buffer stores it: one frame, including the mask."""
        return self._validator.frame_space

    @property
    def lives_key(self) -> str | None:
        """The key of the info that counts lives, None if they are not counted."""
        return self._validator.lives_key

    @property
    def takes_options(self) -> bool:
        """Whether `options` can reach the environments: not those that reset themselves."""
        return self._backend.takes_options

    @property
    def options(self) -> Options | list[Options]:
        """Options of the next resets, Gymnasium's `reset(options=)`, such as a level, or a list of each one's."""
        return self._options

    @options.setter
    def options(self, options: Options | list[Options]) -> None:
        each = options if isinstance(options, list) else [options]
        n = self.n // self.group_size if self._backend.seeds_episodes else 0  # a vector environment's are of all
        if (each is options and len(each) != n) or not all(own is None or isinstance(own, dict) for own in each):
            rule = f"a dict, None, or a list of {n}" if n else "a dict for all, or None"
            raise ConfigError(f"Envs.options of {self.name} must be {rule}, got {options!r}")
        if any(each) and not self.takes_options:
            raise ConfigError(
                f"Envs.options cannot reach the environments of {self.name}, which reset themselves: have the vector "
                "environment made with AutoresetMode.DISABLED, or give make_envs an id or factories"
            )
        self._options = options

    @for_owner
    def reset(self, *, seed: int | None = None, options: Options = None) -> Obs:
        """Reset every environment and return the observations [N, ...].

        With a `seed` the same episodes follow as the last time it was given, where the environments allow it. `options`
        replace this object's own.

        Raises:
            ConfigError: they are closed, or belong to a collector that is not resetting them.
            BusyError: they are in use.
        """
        if seed is not None:
            self._current.restart(seed)
        self._update_ready(ready=self.all_ids)
        self._unsent = None
        if self.obs is None:
            self.obs = zeros_of(self.observation_space, self.n)
        self._start_episodes(self.all_ids, self._options if options is None else options, is_reset=True)
        return self.obs

    @for_owner
    def step(self, action: NDArray[Any], env_ids: Ids, work: Work = None) -> VectorStep:
        """Step environments [K] with actions [K, ...] and return the outcome; call `work` while they step.

        The outcome has the rows that are complete: those of `env_ids`, or with `wait_num` and in groups that take turns
        also those of earlier steps, and not all of these. Without actions, K = 0, it waits for environments in flight.

        Raises:
            EnvError: an environment raised or returned invalid data, and is not replaced: reset before continuing.
            ConfigError, BusyError: as `reset`.
        """
        acted = (action, env_ids) if self._unsent is None else self._with_unsent(action, env_ids)
        raw = self._raw_step(acted, work)
        started = time.perf_counter()
        raw, (frame, lives) = self._checked(raw, self._validator.check_step, self._lives, self._describe(acted))
        self._record(acted)
        if raw.env_ids is not acted[1]:
            self._update_ready(waiting=acted[1], ready=raw.env_ids)
        next_obs = self._stacked(frame, raw.env_ids)
        self._put(next_obs, raw.env_ids)
        terminated, ended = raw.terminated, raw.over
        if lives is not None:
            terminated = terminated | self._lose_lives(lives, frame, raw.env_ids)
        if lives is not None or self.agents:
            ended = terminated | raw.truncated
        self.spent.obs += time.perf_counter() - started
        self._update_ready_within(raw)
        flags = terminated, raw.truncated, ended, raw.over
        begun = None if raw.begun is None else raw.begun.env_ids
        rest = raw.infos, self._backend.lost, raw.late_rewards, begun
        return VectorStep(raw.env_ids, next_obs, raw.reward, *flags, *rest)

    @for_owner
    def begin(self, env_ids: Ids) -> None:
        """Start the next episode where one ended or is lost; some are `ready` only one step later.

        Raises:
            EnvError: an environment failed too often in a row.
            ConfigError, BusyError: as `reset`.
        """
        self._start_episodes(env_ids, self._options)

    @for_owner
    def rebuild(self, env_kwargs: Mapping[str, Any]) -> None:
        """Make every environment again, with other arguments of its constructor or factory; a reset must follow.

        Backends around them keep their state. If an environment cannot be made, all stay as they were.

        Args:
            env_kwargs: as in `make_envs`, instead of those given there.

        Raises:
            ConfigError: the spaces would change; they are a vector environment that was passed in; they are closed, or
                belong to a collector: see `Collector.rebuild_envs`.
            EnvError: a constructor raised.
            BusyError: they are in use.
        """
        if self.config is None or not self.config.is_repeatable:
            raise ConfigError(
                f"Envs.rebuild cannot make {self.name} again, a vector environment that was passed in: make another "
                "one, and make_envs of it"
            )
        if not isinstance(env_kwargs, Mapping):
            raise ConfigError(
                f"Envs.rebuild.env_kwargs must be a dict of the constructor's arguments, got {env_kwargs!r}"
            )
        config, former = self.config.with_env_kwargs(env_kwargs), self._backend.environments
        backend = config.make_backend()
        if backend.n != former.n or any(
            getattr(backend, space) != getattr(former, space) for space in ("observation_space", "action_space")
        ):
            backend.close()
            raise ConfigError(
                f"Envs.rebuild: with {dict(env_kwargs)} {self.name} has other spaces, {backend.observation_space} -> "
                f"{backend.action_space}, than {former.observation_space} -> {former.action_space}: make_envs others, "
                "and a policy for them"
            )
        self._backend = self._backend.replace_environments(backend)
        self.config = config
        former.close()

    def call(self, name: str, *args: Any, env_ids: Ids | None = None) -> list[Any]:
        """Call a method of single environments, or read an attribute; return results [K], by default of all.

        Raises:
            ConfigError: they are closed.
            BusyError: another thread uses them.
        """
        use = Use()
        try:
            if self.ownership.thread != use.thread:  # else within a collect, as in a callback
                self.ownership.enter(use, by_anyone=True)
            return self._backend.call(name, args, self.all_ids if env_ids is None else np.asarray(env_ids))
        except Failure as failure:
            raise self._error_of(failure, self._current.describe) from failure.__cause__
        finally:
            self.ownership.leave(use)

    @property
    def runner(self) -> Runner | None:
        """What runs the single environments; None of a vector environment."""
        return self._backend.runner

    def behavior(self, policy: ActingPolicy, collect: OngoingCollect) -> BehaviorPolicy | None:
        """Return what acts for the policy that learns from them, where they are run by what may act itself; or None."""
        return None if self.config is None else self.config.processes.behavior(policy, collect)

    def take_metrics(self) -> dict[str, Summary]:
        """Return what the backend logged since the last call, by name."""
        return self._backend.take_metrics()

    def take_replaced(self) -> list[int]:
        """Return the environments replaced since the last call, by their first row, once for each time."""
        return self._backend.take_replaced()

    def take_failed_starts(self) -> list[dict[int, EnvError]]:
        """Return the errors, by row, of episodes since the last call that could not start, in their order."""
        failed, self._failed_starts = self._failed_starts, []
        return failed

    def render(self, env_ids: Ids | None = None) -> list[NDArray[np.uint8]]:
        """Return an image of each, [height, width, 3]; environments must be made with `render_mode="rgb_array"`."""
        started = time.perf_counter()
        frames = check_rendered(self.call("render", env_ids=env_ids), self.all_ids if env_ids is None else env_ids)
        self.spent.render += time.perf_counter() - started
        return frames

    def close(self) -> None:
        """Close the environments; a second call has no effect, any other use afterwards raises a ConfigError."""
        if self.ownership.close():
            self._backend.close()

    def detach(self) -> None:
        """Leave the environments open for the code that passed them in; this object is closed."""
        if self.ownership.close():
            self._backend.detach()

    def state_dict(self, *, with_running: bool = True) -> dict[str, Any]:
        """Return the seeds of the next episodes, the backend's state, and replay data of the current episodes."""
        played = self._played.state_dict(self.obs, self.in_flight) if with_running else None
        state: dict[str, Any] = {"root": self.root, "episodes": self.episodes.copy(), "played": played}
        if played is not None:
            state["fingerprints"] = self._backend.fingerprints()
        return state | {"backend": self._backend.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the seeds of the episodes after those saved; a reset must follow."""
        self._current.restart(state["root"], state["episodes"])
        self._backend.load_state_dict(state["backend"])

    def episodes_state(self, env_ids: Ids) -> "EpisodesState":
        """Return the state of current episodes [K], with which others continue them in these environments."""
        lives, number = self._lives[env_ids], self.episodes[env_ids]
        options = self._own(self._options, env_ids) if isinstance(self._options, list) else self._options
        return EpisodesState(rows_of(self.obs, env_ids), lives, number, self.root, options)

    def continue_from(self, state: "EpisodesState", first: int) -> None:
        """Continue the current episodes of other `Envs`, whose environments from the index `first` on these are."""
        self.obs, self._lives = state.obs, state.lives.copy()
        self._current.first = first
        self._current.restart(state.root, state.episodes)
        self._update_ready(ready=self.all_ids)
        self._options = state.options

    def send_again(self, action: NDArray[Any], env_ids: Ids) -> None:
        """Send actions [K, ...], to which a saved run had no answer yet, again with the next step."""
        self._unsent = action, env_ids
        self._update_ready(waiting=env_ids)

    def lost_attributes(self, state: dict[str, Any]) -> dict[int, list[str]]:
        """Return the attributes that differ from a saved state's, by environment; empty without fingerprints."""
        saved = state.get("fingerprints")
        return differences(saved, self._backend.fingerprints()) if saved else {}

    def _raw_step(self, acted: _Acted, work: Work) -> RawStep:
        """Step environments with valid actions, and give up the episodes of those that failed."""
        started, (action, env_ids) = time.perf_counter(), acted
        self._current.count_step(env_ids)  # from here on every error is of this step, the first being 1
        own_action = self._actions.convert(action, env_ids, self._current.describe)
        self.spent.action += time.perf_counter() - started
        try:
            raw = self._backend.step(own_action, env_ids, work)
        except Failure as failure:
            raise self._error_of(failure, self._describe(acted)) from failure.__cause__
        for failed in raw.failures.values():
            self._backend.lose(self._error_of(failed, self._describe(acted)))
        return raw

    def _describe(self, acted: _Acted) -> Where:
        """Return what describes where an environment stands after these actions."""
        return partial(self._current.describe, acted=acted)

    def _record(self, acted: _Acted) -> None:
        """Record the actions of a step, without those of lost episodes, for a replay."""
        action, env_ids = acted
        if lost := self._backend.lost.errors:
            continues = ~np.isin(env_ids, list(lost))
            action, env_ids = action[continues], env_ids[continues]
        self._played.add(action, env_ids)

    def _stacked(self, frame: Obs, env_ids: Ids) -> Obs:
        """Return the observations [K, ...] that frames [K, ...] lead to."""
        if self.stack == 1:
            return frame
        return shift(self.obs if len(env_ids) == self.n else rows_of(self.obs, env_ids), frame)

    def _put(self, obs: Obs, env_ids: Ids) -> None:
        """Put observations [K, ...] into `obs`."""
        self.obs = obs if len(env_ids) == self.n else put_rows(self.obs, env_ids, obs)

    def _update_ready_within(self, raw: RawStep) -> None:
        """Let rows of agents that left a game wait for its next episode, and those act whose episode began now."""
        if self.agents:
            self._update_ready(waiting=raw.env_ids[raw.terminated | raw.truncated])
        if raw.begun is not None:
            self._receive_first_obs(raw.begun)
            self._update_ready(ready=raw.begun.env_ids)

    def _with_unsent(self, action: NDArray[Any], env_ids: Ids) -> _Acted:
        """Return actions [K, ...] and their environments [K], with those to send again, ascending."""
        assert self._unsent is not None, "the caller checks"
        actions, ids = (np.concatenate(pair) for pair in zip(self._unsent, (action, env_ids), strict=True))
        self._unsent, order = None, np.argsort(ids)
        return actions[order], ids[order]

    def _update_ready(self, *, waiting: Ids | None = None, ready: Ids | None = None) -> None:
        """Update which environments await an action."""
        if waiting is not None:
            self._is_ready[waiting] = False
        if ready is not None:
            self._is_ready[ready] = True
        ids = np.flatnonzero(self._is_ready)
        self.ready = self.all_ids if len(ids) == self.n else ids

    def _lose_lives(self, lives: NDArray[Any], frame: Obs, env_ids: Ids) -> NDArray[np.bool_]:
        """Return which environments lost a life [K]; their stacks restart, as does the buffer's episode."""
        has_lost: NDArray[np.bool_] = lives < self._lives[env_ids]
        self._lives[env_ids] = lives
        if self.stack > 1 and any_true(has_lost):
            rows = np.flatnonzero(has_lost)
            self.obs = put_rows(self.obs, env_ids[rows], self._first_stacks(rows_of(frame, rows)))
        return has_lost

    # ---- the start of episodes ----

    def _start_episodes(self, env_ids: Ids, options: Options | list[Options], *, is_reset: bool = False) -> None:
        """Begin the next episode of environments [K], and others where episodes are lost."""
        each = options if isinstance(options, list) else [options] * (self.n // self.group_size)
        self._current.begin(env_ids)
        self._played.begin(env_ids, self._own(each, env_ids))
        lost = self._backend.lost.errors
        working = np.setdiff1d(env_ids, list(lost)) if lost else env_ids
        if len(working):
            self._start_some(working, each, is_reset=is_reset and len(working) == self.n)
        for row in list(self._backend.lost.errors):
            if row % self.group_size == 0:
                self._start_another(np.arange(row, row + self.group_size), each)

    def _own(self, options: list[Options], env_ids: Ids) -> list[Options]:
        """Return the options of environments [K] among those of all, or of all groups."""
        return [options[index] for index in (env_ids // self.group_size).tolist()]

    def _start_another(self, rows: Ids, options: list[Options]) -> None:
        """Begin an episode in place of a lost one, in as many attempts as the backend allows."""
        while rows[0] in self._backend.lost.errors:
            self._start_some(rows, options, is_reset=False)
            if rows[0] in self._backend.lost.errors:
                self.episodes[rows] += 1  # another seed, should this one cause the error

    def _start_some(self, env_ids: Ids, options: list[Options], *, is_reset: bool) -> None:
        """Begin the next episode of environments [K]."""
        own = self._own(options, env_ids)
        seeds = self._current.seeds_of(env_ids) if is_reset or self._backend.seeds_episodes else []
        begun: Begun | None = None
        try:
            begun = self._backend.reset(seeds, own) if is_reset else self._backend.begin(env_ids, seeds, own)
        except Failure as failure:
            raise self._error_of(failure, self._current.describe) from failure.__cause__
        if begun is not None:
            for failed in begun.failures.values():
                self._backend.lose(self._error_of(failed, self._current.describe))
            if len(begun.env_ids) < len(env_ids):  # nothing of the last episode is left where a member is missing
                self.obs = put_rows(self.obs, env_ids, zeros_of(self.observation_space, len(env_ids)))
            self._receive_first_obs(begun)
            if lost := self._backend.lost.errors:
                self._failed_starts.append({row: lost[row] for row in env_ids.tolist() if row in lost})
        if begun is None or self.agents or self.ready is not self.all_ids:  # a member may be missing at first
            self._update_ready(waiting=env_ids, ready=None if begun is None else begun.env_ids)

    def _receive_first_obs(self, begun: Begun) -> None:
        """Put the first observations of episodes into `obs`."""
        started = time.perf_counter()
        begun, (frame, lives) = self._checked(begun, self._validator.check_first, self._current.describe)
        if lives is not None:
            self._lives[begun.env_ids] = lives
        first = self._first_stacks(frame) if self.stack > 1 else frame
        self._put(first, begun.env_ids)
        self.spent.obs += time.perf_counter() - started

    def _first_stacks(self, frame: Obs) -> Obs:
        """Return the stacks [K, stack, ...] at the first frames [K, ...] of episodes."""

        def stacked(leaf: NDArray[Any]) -> NDArray[Any]:
            stacks = np.repeat(leaf[:, None], self.stack, axis=1)
            if self.pad == "zero":
                stacks[:, :-1] = 0
            return stacks

        return _map_frames(stacked, frame)

    # ---- failures ----

    def _checked(self, rows: _Rows, check: Callable[..., _Result], *args: Any) -> tuple[_Rows, _Result]:
        """Return the valid rows, without those of environments whose data is invalid and whose episode is lost."""
        while True:
            try:
                return rows, check(rows, *args)
            except BadEnvDataError as error:
                rows = rows.without(self._backend.lose(error))

    def explain_no_action(self, error: NoLegalActionError) -> NoLegalActionError:
        """Return an error that names the step and the remedy, or the given one if it names no environment."""
        if error.env_id is None:
            return error
        return NoLegalActionError(
            f"env {error.env_id} allows no action: its action_mask is all False, at "
            f"{self._current.describe(error.env_id)}. {self._backend.no_action_remedy}",
            env_id=error.env_id,
        )

    def _error_of(self, failure: Failure, describe: Callable[[int], str]) -> EnvError:
        """Return a backend's failure as an error that names the environment, its episode, step and action."""
        env_id = failure.env_id
        if env_id is None:
            text = f"{self.name}: {failure.what}"
        else:
            text = f"env {env_id} {failure.what}, at {describe(env_id)}"
        error = failure.kind(text, env_id=env_id)
        error.__cause__ = failure.__cause__
        return error


class EpisodesState(NamedTuple):
    """The current episodes of K environments; see `Envs.episodes_state`."""

    obs: Obs  # [K, ...]
    lives: NDArray[np.int64]  # [K]
    episodes: NDArray[np.int64]  # [K], their numbers
    root: int  # of the seeds
    options: Options | list[Options]  # of the next resets


class CurrentEpisodes:
    """The current episode of each of N environments: its number, its steps so far, its seed.

    Args:
        n: number of environments.
        seed: root of all seeds; None: a fresh one.
        agents: names of the rows of a group.

    Attributes:
        root: of all seeds.
        is_seeded: whether the root was given.
        first: index of the first environment, by which episodes are seeded.
        number: of each environment's current episode [N], -1 before the first.
    """

    def __init__(self, n: int, seed: int | None, agents: Sequence[str]) -> None:
        self.root = seeding.fresh_root() if seed is None else seed
        self.is_seeded = seed is not None
        self.first = 0
        self.number = np.full(n, -1, np.int64)
        self._n_vector_steps = 0
        self._began = np.zeros(n, np.int64)  # [N], vector steps before the current episode
        self._n_missed = np.zeros(n, np.int64)  # [N], vector steps since then in which it did not act
        self._agents, self._group_size = agents, max(1, len(agents))
        self._n_restarts = 0  # of the numbers

    def seed(self, root: int) -> None:
        """Seed the episodes that begin from now on."""
        self.root, self.is_seeded = root, True

    def restart(self, root: int, number: int | NDArray[np.int64] = -1) -> None:
        """Seed the episodes after these numbers, which may have been counted before."""
        self.seed(root)
        self.number[:] = number
        self._n_restarts += 1

    @property
    def keys(self) -> NDArray[np.int64]:
        """A number for each environment's current episode [N] that no other has, despite restarts."""
        return self.number + (self._n_restarts << 40)

    def begin(self, env_ids: Ids) -> None:
        """Count the next episode of these environments [K]."""
        self.number[env_ids] += 1
        self._began[env_ids] = self._n_vector_steps
        self._n_missed[env_ids] = 0

    def count_step(self, env_ids: Ids) -> None:
        """Count a step of these environments [K]."""
        self._n_vector_steps += 1
        if len(env_ids) < len(self._n_missed):
            self._n_missed += 1
            self._n_missed[env_ids] -= 1

    def n_steps(self, env_id: int) -> int:
        """Return the steps so far of an environment's current episode."""
        return int(self._n_vector_steps - self._began[env_id] - self._n_missed[env_id])

    def seeds_of(self, env_ids: Ids) -> list[int]:
        """Return the seeds [K] of current episodes, from (root, environment, episode); a group shares one."""
        size = self._group_size
        return [seeding.episode_seed(self.root, self.first + i // size, int(self.number[i])) for i in env_ids.tolist()]

    def describe(self, env_id: int, acted: _Acted | None = None) -> str:
        """Name an environment's episode, step, action and seed, which suffice to reproduce an error."""
        (seed,) = self.seeds_of(np.array([env_id]))
        group, member = divmod(env_id, self._group_size)
        who = f" of agent {self._agents[member]!r} in game {group}" if self._agents else ""
        own = [] if acted is None else list(acted[0][acted[1] == env_id])  # empty if it acted in an earlier step
        action = f" (action {own[0]})" if own else ""
        return f"episode {self.number[env_id]} step {self.n_steps(env_id)}{who}{action}, episode seed {seed}"


# ---- stacks of frames, and rows of N observations ----


def shift(stacked: Obs, frame: Obs) -> Obs:
    """Append one frame [K, ...] to stacks [K, stack, ...], dropping the oldest."""
    return _map_frames(lambda old, new: np.concatenate([old[:, 1:], new[:, None]], axis=1), stacked, frame)


def _map_frames(fn: Callable[..., NDArray[Any]], obs: Obs, *others: Obs) -> Obs:
    """Apply `fn` to the leaves that are stacked: all but the mask, which comes from the last tree."""
    if isinstance(obs, dict):
        children = {key: (child, *(other[key] for other in others)) for key, child in obs.items()}
        return {key: trees[-1] if key == ACTION_MASK else _map_frames(fn, *trees) for key, trees in children.items()}
    if isinstance(obs, tuple):
        return tuple(_map_frames(fn, *trees) for trees in zip(obs, *others, strict=True))
    return fn(obs, *others)


def rows_of(obs: Obs, env_ids: Ids) -> Obs:
    """Return rows [K, ...] of leaves [N, ...]."""
    return tree.map_tree(lambda leaf: leaf.take(env_ids, axis=0), obs)


def put_rows(obs: Obs, env_ids: Ids, rows: Obs) -> Obs:
    """Return a copy of leaves [N, ...] with rows [K, ...] replaced."""

    def put(leaf: NDArray[Any], new: NDArray[Any]) -> NDArray[Any]:
        copy = leaf.copy()
        copy[env_ids] = new
        return copy

    return tree.map_tree(put, obs, rows)
