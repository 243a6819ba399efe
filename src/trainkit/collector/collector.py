"""The collector: steps environments with a policy and stores every real step in a buffer."""

import copy
import logging
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from trainkit.collector.collect_request import CollectOptions, EpisodeQuota, Quota, StepQuota, saved_quota
from trainkit.collector.columns import ExtraColumns
from trainkit.collector.episodes import Episodes, RewardMetric, Tally
from trainkit.collector.events import EpisodeEvents
from trainkit.collector.grouped_episodes import GroupedEpisodes
from trainkit.collector.kept_rows import CollectedRows, OpenRows
from trainkit.collector.replayed_episodes import play_again
from trainkit.collector.single_behavior import SingleBehavior
from trainkit.core import seeding, tree, user_code
from trainkit.core.assignments import fixed_options
from trainkit.core.data import ActOutput, ArraySpec, Obs, RowSpec, Transition, all_or, any_true, not_random
from trainkit.core.errors import BusyError, Checks, ConfigError, NoLegalActionError
from trainkit.core.policy_use import PolicyUse
from trainkit.core.protocols import ActingPolicy, BehaviorPolicy, Deliver, Recorder, RowStore
from trainkit.core.signatures import checked
from trainkit.core.spaces import array_specs, random_actions, random_probability
from trainkit.core.stats import NO_VALUES, CollectStats, html_table, merge_groups
from trainkit.envs.backends import Ids, Lost, whole_groups
from trainkit.envs.envs import Envs, VectorStep, rows_of
from trainkit.envs.fingerprints import in_words

_log = logging.getLogger(__name__)

_OpenStep = tuple[Obs, Ids, ActOutput, VectorStep]  # observations, environments that acted, actions and outcome


class Overlap:
    """Work overlapped with one `env.step`; its time is recorded separately and its exceptions are deferred.

    Attributes:
        seconds: that the work took.
        is_running: whether it is running, so that environments may be in the middle of a step.
        error: that it raised, which leaving the context raises.
    """

    def __init__(self, work: Callable[[], None], tally: Tally) -> None:
        self._work, self._tally = work, tally
        self.seconds = 0.0
        self.is_running = False
        self.error: BaseException | None = None

    def run(self) -> None:
        """Do the work; raise nothing."""
        started = time.perf_counter()
        self.is_running = True
        try:
            with user_code.running():
                self._work()
        except BaseException as error:  # noqa: BLE001  # raised on leaving
            self.error = error
        self.is_running = False
        self.seconds = time.perf_counter() - started
        self._tally.seconds -= self.seconds

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        own, self.error = self.error, None
        if own is None:
            return
        if error is None or (isinstance(error, Exception) and not isinstance(own, Exception)):  # Ctrl-C comes first
            raise own
        error.add_note(f"and the work overlapped with the step raised {own!r}")


@checked
@fixed_options("count_steps_by", "extra_columns", "observe", "recent_episodes")
class Collector:
    """Bind a policy, environments and a buffer, and fill the buffer step by step.

    Construction checks that the three match and has the buffer allocate its memory, so that every mismatch fails here.
    Without a buffer nothing is stored: that is a collector for evaluation.

    Args:
        policy: chooses the actions.
        envs: from `make_envs`. The collector becomes their only owner, until it is released or garbage collected.
        buffer: receives every real step; the transition's arrays are borrowed until the next step.
        observe: whether the policy's running statistics are updated by the steps; default: where there is a buffer, so
            that evaluation changes nothing.
        reward_metric: maps the returns [episodes] of finished episodes to those reported in statistics.
        seed: root of the random actions of `collect(random=True)`, and of the episodes of environments that have no
            seed. None: random actions follow the environments' seed, so that a collector made of a seeded policy and
            seeded environments repeats its steps; a trainer replaces it by a stream of its own seed.
        extra_columns: {name: default}, stored with every row in addition to the policy's columns: the value of the
            step's info under that key, or the default, whose dtype and shape the column has, where there is none.
            Callbacks may change them by `buffer.rewrite(slots, name=values)`; `Policy.columns` requests them for
            updates.
        count_steps_by: what the clock and `n_step` count of rows in groups, such as a game's agents: "agent_steps",
            rows, or "env_steps", steps of groups.
        recent_episodes: number of the last finished episodes whose returns `recent_returns` summarizes.

    Attributes:
        between_steps: called before every vector step when set; after an exception of it everything is whole, and
            `resume` continues.
        overlap: called once in every vector step when set, where possible (processes, ale-py) while environments
            step, and so without calling them. Its exceptions are raised when they have stepped; the step is stored
            when `resume` has called it again, for the rest.
        recorders: receive every transition and every cut, with or without a buffer.
        events: receives every event in the life of an episode, when set; after an exception of it everything is
            whole, too.
    """

    def __init__(
        self,
        policy: ActingPolicy,
        envs: Envs,
        buffer: RowStore | None = None,
        *,
        observe: bool | None = None,
        reward_metric: RewardMetric | None = None,
        seed: int | None = None,
        extra_columns: Mapping[str, Any] | None = None,
        count_steps_by: Literal["agent_steps", "env_steps"] = "agent_steps",
        recent_episodes: int = 100,
    ) -> None:
        with Checks("Collector") as checks:
            checks.integer("recent_episodes", recent_episodes, low=1)
            checks.integer("seed", seed, low=0, optional=True)
            checks.one_of("count_steps_by", count_steps_by, ["agent_steps", "env_steps"])
            has_effect = count_steps_by == "agent_steps" or len(envs.agents) > 0
            checks.require(has_effect, ".count_steps_by is for games of several agents: leave it out")
            is_metric = reward_metric is None or callable(reward_metric)
            checks.require(is_metric, f".reward_metric must be callable, got {reward_metric!r}")
            is_stored = buffer is not None or not extra_columns
            checks.require(is_stored, ".extra_columns needs a buffer to store them in: Collector(policy, envs, buffer)")
        self._extra_columns = ExtraColumns("Collector", extra_columns, policy.extras_spec) if extra_columns else None
        policy.check_spaces(envs.observation_space, envs.action_space)
        self._policy = policy
        self._policy_use = PolicyUse(policy)
        self._rows_per_step = envs.group_size if count_steps_by == "env_steps" else 1  # at most; of one environment
        self._envs = envs
        self._behavior = self._behavior_for(policy, in_evaluation=buffer is None)
        envs.ownership.claim(self)
        if buffer is not None:
            self._bind(buffer)
        envs.use_players(self._behavior.players)
        self._buffer = buffer
        self._observes = policy.observes and (buffer is not None if observe is None else observe)
        self._env_step = 0
        self.between_steps: Callable[[], None] | None = None
        self.overlap: Callable[[], None] | None = None
        self._interrupt: Callable[[], None] | None = None
        self._most_updates: Callable[[int], int] | None = None
        self._current_overlap: Overlap | None = None
        self.recorders: list[Recorder] = []
        self.events: EpisodeEvents | None = None
        self._is_seeded = False
        self._rng = seeding.generator(envs.root, "collector")  # of random actions
        if seed is not None:
            self.seed(seed)
        self._n_recent = recent_episodes
        self._episodes = self._new_episodes(reward_metric)
        self._starts = np.ones(envs.n, np.bool_)  # [N], whether the next action is an episode's first
        self._state: Any = None  # the policy's own
        self._open_rows = OpenRows(envs.n)
        self._open_step: _OpenStep | None = None  # whose overlapped work raised and is not finished
        self._quota: Quota = StepQuota(0)  # what is left of the current collect
        self._options = CollectOptions()
        self._tally = Tally()
        self._is_interrupted = False
        self._needs_reset = True
        self._to_begin = envs.all_ids[:0]  # whose next episode has not begun yet
        self._rebuilt: Sequence[int] = ()  # environments made again since their reset

    def _behavior_for(self, policy: ActingPolicy, *, in_evaluation: bool) -> BehaviorPolicy:
        """Return what acts for a policy in the environments."""
        envs = self._envs
        elsewhere = None if in_evaluation else envs.behavior(policy, weakref.proxy(self))
        own = policy.behavior_for(envs, in_evaluation=in_evaluation, rows_per_step=self._rows_per_step)
        return elsewhere or own or SingleBehavior(policy, envs.n, envs.action_space)

    def _bind(self, buffer: RowStore) -> None:
        """Have the buffer allocate memory for the rows; release the environments if it cannot."""
        envs = self._envs
        obs_specs, action_specs = array_specs(envs.frame_space, envs.stack), array_specs(envs.action_space)
        spec = RowSpec(n_envs=envs.n, obs=obs_specs, action=action_specs, extras=self.extras_spec, pad=envs.pad)
        try:
            buffer.bind(self._behavior.row_spec(spec))
        except BaseException:
            envs.ownership.release(self)
            raise

    def __repr__(self) -> str:
        done = f"{self._env_step:,} steps, {self.n_episode:,} episodes"
        return f"Collector({type(self._policy).__name__}, {self._envs!r}, {self._buffer!r}, {done})"

    def _repr_html_(self) -> str:
        rows = {"policy": type(self._policy).__name__, "environments": self._envs, "buffer": self._buffer}
        mean = self._episodes.recent_returns.mean
        rows |= {"env_step": self._env_step, "n_episode": self.n_episode, "mean of the last returns": mean}
        return html_table(type(self).__name__, rows.items())

    def _new_episodes(self, metric: RewardMetric | None) -> Episodes:
        envs = self._envs
        if envs.agents:
            return GroupedEpisodes(envs.n, metric, self._n_recent, envs.agents, self._behavior.last_players)
        return Episodes(envs.n, metric, self._n_recent, envs.soft_horizon)

    def player(self, env_id: int) -> str:
        """Return the name of the policy that controls a row; "" of an only policy."""
        return self._behavior.players(np.array([env_id]))[0]

    @property
    def policy(self) -> ActingPolicy:
        """What chooses the actions; another one needs another collector."""
        return self._policy

    @property
    def envs(self) -> Envs:
        """The environments; `rebuild_envs` makes them again with other arguments."""
        return self._envs

    @property
    def buffer(self) -> RowStore | None:
        """What stores every real step; None for a collector for evaluation. Another one needs another collector."""
        return self._buffer

    @property
    def env_step(self) -> int:
        """The clock: steps ever stored (without a buffer: ever made), warm-up included; `restart()` starts it over."""
        return self._env_step

    @property
    def is_seeded(self) -> bool:
        """Whether there is a seed; `seed(root)` sets one."""
        return self._is_seeded

    @property
    def counts_episodes(self) -> bool:
        """True: a collect may end after a number of episodes."""
        return True

    @property
    def single_env_ids(self) -> Sequence[int]:
        """The ids of all environments."""
        return range(self._envs.n)

    @checked
    def subscribe(self, deliver: Deliver, events: Sequence[str], *, in_evaluation: bool) -> None:
        """Deliver these events of episodes from now on, in place of former ones; none where there are no events."""
        self.events = None
        if events:
            self.events = EpisodeEvents(
                self._envs.n,
                deliver,
                events,
                in_evaluation=in_evaluation,
                agents=self._envs.agents,
                player=self.player,
            )

    @property
    def is_interrupted(self) -> bool:
        """Whether a collect has not returned, as it raised or still runs; `resume()` continues one that raised."""
        return self._is_interrupted

    @property
    def n_episode(self) -> int:
        """Total number of finished episodes."""
        return self._episodes.n_finished

    @property
    def agent_steps(self) -> dict[str, int]:
        """{name of a row of a group: number of steps ever in which it acted}; empty where each row is alone."""
        return self._episodes.steps_of_agents()

    @property
    def extras_spec(self) -> dict[str, ArraySpec]:
        """Columns stored with every row in addition to the usual ones: the policy's, and `extra_columns`."""
        own = {} if self._extra_columns is None else self._extra_columns.spec
        return {**self._behavior.extras_spec, **own}

    @property
    def collected_slots(self) -> NDArray[np.int64]:
        """The buffer's slots of the rows that the last collect stored, or the current one, in their order."""
        return np.concatenate([np.zeros(0, np.int64), *self._tally.slots])

    @property
    def policy_state(self) -> Any:
        """What the policy carries from step to step, such as states of all environments [N, S]; None if nothing."""
        return self._state

    @property
    def open_ids(self) -> Ids:
        """Environments in the middle of an episode that the next collect of steps continues."""
        return self._envs.all_ids[:0] if self._needs_reset else np.flatnonzero(~self._starts)

    @property
    def n_vector_steps_left(self) -> int:
        """Vector steps left in the current or interrupted collect of steps; 0 if there is none."""
        is_open = self._is_interrupted and isinstance(self._quota, StepQuota)
        return -(-self._quota.n_left * self._rows_per_step // self._envs.n) if is_open else 0

    def interrupt_with(self, check: Callable[[], None] | None) -> None:
        """Call `check`, which only ever raises, before every vector step, ahead of `between_steps`; None: no longer.

        For what drives the collector: a trainer sets its own for each of its collects.
        """
        self._interrupt = check

    def expect_updates(self, most_updates: Callable[[int], int] | None) -> None:
        """Let a trainer say how many updates the current collect may lead to; None: not known.

        Args:
            most_updates: returns the most updates that collects may call for up to the one that reaches a number of
                rows, counted from the start of the current one.
        """
        self._most_updates = most_updates

    def most_updates_before(self, n_steps: int) -> int | None:
        """Return the most updates that may be performed before the last of the next n vector steps is stored.

        None where that is not known; the next one is that of the current collect.
        """
        rows = self._tally.n_step + (n_steps - 1) * self._envs.n
        return None if self._most_updates is None else self._most_updates(rows)

    @property
    def acts_here(self) -> bool:
        """Whether each action is chosen here, when it is to be sent; else it may have been elsewhere, and before."""
        return self._behavior.acts_here

    @property
    def max_lag(self) -> int:
        """The updates that the weights which act may be behind when a row is stored."""
        return self._behavior.max_lag

    @property
    def is_mid_step(self) -> bool:
        """Whether a step of the environments is not stored yet, because the work overlapped with it raised.

        `resume` calls `overlap` again for the rest of that work and then stores the step, so that updates and rows
        come in the order of a run in which nothing raised.
        """
        return self._open_step is not None

    @property
    def reward_metric(self) -> RewardMetric | None:
        """What the reported returns of episodes come from, None for themselves; `use_reward_metric(fn)` changes it."""
        return self._episodes.metric

    def use_reward_metric(self, metric: RewardMetric) -> None:
        """Use `metric(returns [episodes])` for the reported returns of episodes that finish from now on."""
        self._episodes.metric = metric

    def seed(self, root: int) -> None:
        """Seed the random actions, and environments without a seed, with streams of this root."""
        self._rng = seeding.generator(root, "collector")
        self._is_seeded = True
        if not self._envs.is_seeded:
            self._envs.seed(seeding.derive(root, "envs"))

    @checked
    def release(self) -> None:
        """Release the open environments to another owner; open episodes end, and this collector is closed."""
        if self._envs.ownership.owner is self:
            self.finish_step()
            self._end_open_episodes(self._envs.all_ids)
            self._needs_reset = True
            self._envs.ownership.release(self)

    def close(self) -> None:
        """Close the environments; a later collect raises a ConfigError."""
        self._open_step = None
        self._envs.close()

    # ---- collecting ----

    @checked
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Cut the open episodes and reset every environment; equal seeds give equal episodes."""
        self._envs.ownership.during(self, self._reset, seed, options)

    @checked
    def restart(self) -> None:
        """Start again from step 0: discard the counts and a collect that was interrupted, and cut the open episodes.

        Statistics of episodes start again, too. The next collect resets every environment, to new episodes.
        """
        self.finish_step()
        if not self._needs_reset:
            self._end_open_episodes(self._envs.all_ids)
        self.require_reset()
        self._env_step = 0
        self._is_interrupted, self._quota = False, StepQuota(0)
        self._episodes = self._new_episodes(self._episodes.metric)
        self._tally = Tally()

    def rebuild_envs(self, env_kwargs: Mapping[str, Any]) -> None:
        """Make every environment again, with other arguments of its constructor or factory, as `Envs.rebuild`.

        The next collect cuts the open episodes and resets every environment. A run that is resumed makes its
        environments with the arguments that `make_envs` is given then: give the last ones.

        Raises:
            ConfigError, EnvError: as `Envs.rebuild`; all stay as they were.
            BusyError: this collector is collecting.
        """

        def rebuild() -> None:
            self._finish_step()
            self._envs.rebuild(env_kwargs)
            self._rebuilt = () if self._envs.obs is None else self.single_env_ids  # none where none was reset

        self._envs.ownership.during(self, rebuild)
        self.require_reset()

    def require_reset(self) -> None:
        """Make the next collect cut the open episodes and reset every environment."""
        self._needs_reset = True

    def collect(
        self,
        *,
        n_step: int | None = None,
        n_episode: int | None = None,
        explore: bool | None = None,
        random: bool = False,
        step: int | None = None,
        seed: int | None = None,
        max_episode_steps: int | None = None,
        render: float | None = None,
    ) -> CollectStats:
        """Collect a number of steps or of episodes, exactly one of the two.

        Args:
            n_step: steps in all environments together. Ends with the vector step that reaches it; the excess is
                subtracted from the next call.
            n_episode: episodes in all, a fixed quota per environment (10 on 4: 3, 3, 2, 2). Cuts open episodes and
                resets first.
            explore: whether the policy explores. None: it does if the steps are stored, in a buffer or by a recorder
                (training, recording a dataset); otherwise it does not (evaluation).
            random: act uniformly at random among the legal actions, without calling the policy. The actions follow
                the collector's seed (see `Collector`).
            step: the environment step that schedules see; default: this collector's clock.
            seed: of the reset that `n_episode` begins with: the same episodes each time.
            max_episode_steps: with `n_episode`, truncate episodes that reach this length, as a time limit does; they
                are counted as any other, and in `n_cut_episodes`. None waits for their end.
            render: least seconds from one frame to the next: call every environment's `render` after each vector
                step. They must be made with env_kwargs={"render_mode": "human"}. None renders nothing.

        Raises:
            EnvError: an environment failed; what was stored is whole, and the next collect begins with a reset.
            BusyError: another thread, or a callback of this collect, is collecting; or another thread trains or plays
                with the policy.
        """
        if explore is None:
            explore = self._buffer is not None or len(self.recorders) > 0
        options = CollectOptions(explore, random, step, seed, max_episode_steps, render)

        def collect() -> CollectStats:
            self._start(n_step, n_episode, options)
            return self._run()

        return self._during(collect)

    @checked
    def stream(
        self, n_step: int, *, explore: bool | None = None, random: bool = False, step: int | None = None
    ) -> Iterator[Transition]:
        """Collect without end, and yield copies of the rows of one `collect(n_step=)` after the other.

        Rows are in the order of their vector steps, then of their environments, each with its true successor; they are
        stored in the buffer, too, if there is one. Between two batches the collector may be reset, released or used
        otherwise. Rows of an episode in which an environment failed are left out, unless an earlier batch had them.

        Args:
            n_step: steps per batch, in all environments together; a batch ends with the vector step that reaches it,
                and the excess is subtracted from the next.
            explore: whether the policy explores; None: it does.
            random, step: as in `collect`.

        Raises:
            ConfigError: an option is invalid.
            EnvError, BusyError: as `collect`, from the batch in which it happens; the stream is over then.
        """
        with Checks("Collector.stream") as checks:
            checks.integer("n_step", n_step, low=1)
        return self._batches(int(n_step), explore is None or explore, random, step)

    def _batches(self, n_step: int, explore: bool, random: bool, step: int | None) -> Iterator[Transition]:
        """Yield the rows of one collect after the other."""
        while True:
            collected = CollectedRows()
            self.recorders.append(collected)
            try:
                self.collect(n_step=n_step, explore=explore, random=random, step=step)
            finally:
                self.recorders.remove(collected)
            rows = collected.rows()
            if rows is not None:  # the last collect may have made all of these steps
                yield rows

    @checked
    def resume(self) -> CollectStats:
        """Continue a collect that an exception interrupted; the statistics cover all of it."""
        return self._during(self._run)

    def _during(self, work: Callable[[], CollectStats]) -> CollectStats:
        """Return the result of work that uses the environments and the policy."""

        def with_policy() -> CollectStats:
            with self._policy_use.by_this_thread(), user_code.known():
                return work()

        return self._envs.ownership.during(self, with_policy)

    def finish_step(self) -> None:
        """Store a step whose overlapped work was interrupted, without doing the rest of that work."""
        if self._open_step is None or self._is_overlapping:
            return
        self._envs.ownership.during(self, self._finish_step)

    def _start(self, n_step: int | None, n_episode: int | None, options: CollectOptions) -> None:
        """Check the request of a collect, and start counting."""
        options.check(n_step, n_episode)
        if options.random and not_random(self._policy.extras_spec):
            raise ConfigError(
                f"Collector.collect(random=True) cannot fill the columns {sorted(self._policy.extras_spec)} that "
                f"{type(self._policy).__name__} stores with each step: let the policy explore instead"
            )
        if options.render is not None:
            self._check_render_mode()
        self._options = options
        self._tally = Tally(agent_steps=self._episodes.agent_steps, policy_steps=self._episodes.policy_steps)
        if self._behavior.normal is not None:
            self._behavior.normal.read_action_std()  # of actions outside of a collect
        self._envs.take_metrics()  # as above
        if n_episode is not None or (isinstance(self._quota, EpisodeQuota) and self._is_interrupted):
            self._needs_reset = True  # an interrupted quota leaves environments at an episode's end
        if n_step is not None:
            excess = self._quota.n_left if isinstance(self._quota, StepQuota) else 0
            self._quota = StepQuota(int(n_step) + excess)
        elif n_episode is not None:
            self._quota = EpisodeQuota(int(n_episode), self._envs.n, self._envs.group_size)
        self._is_interrupted = True

    def _check_render_mode(self) -> None:
        """Raise a ConfigError unless the environments render on screen."""
        modes = set(self._envs.call("render_mode"))
        if modes != {"human"}:
            had = ", ".join(map(repr, sorted(modes, key=str)))
            raise ConfigError(
                f"Collector.collect(render=) needs environments made with env_kwargs={{'render_mode': 'human'}}, "
                f"{self._envs.name} has {had}; Envs.render and RecordVideo give arrays"
            )

    @property
    def _is_overlapping(self) -> bool:
        return self._current_overlap is not None and self._current_overlap.is_running

    def _run(self) -> CollectStats:
        """Step until the requested number of steps or episodes is reached."""
        started, spent = time.perf_counter(), self._envs.spent
        before = spent.obs, spent.action, spent.render
        try:
            if self._open_step is not None:
                self._resume_step()
            if self._needs_reset and self._quota.n_left > 0:
                self._reset(self._options.seed)
                self._options = replace(self._options, seed=None)  # a later reset must not repeat these episodes
                rendering = spent.render - before[2]  # by callbacks
                self._tally.env_seconds += time.perf_counter() - started - rendering
            self._begin_episodes()
            shown = started
            while self._quota.n_left > 0:
                if self._interrupt is not None:
                    self._interrupt()
                if self.between_steps is not None:
                    with user_code.running():
                        self.between_steps()
                if self.overlap is None:
                    self._vector_step(None)
                else:
                    with self._new_overlap(self.overlap) as overlap:
                        self._vector_step(overlap)
                self._begin_episodes()
                if self._options.render is not None:
                    shown = self._show(shown + self._options.render)
        finally:
            self._tally.seconds += time.perf_counter() - started
            self._tally.obs_seconds += spent.obs - before[0]
            self._tally.action_seconds += spent.action - before[1]
            self._tally.render_seconds += spent.render - before[2]
            if logged := self._envs.take_metrics():
                self._tally.processors = merge_groups([self._tally.processors, logged])
        self._is_interrupted = False
        self._needs_reset |= isinstance(self._quota, EpisodeQuota)
        std = NO_VALUES if self._behavior.normal is None else self._behavior.normal.read_action_std()
        return self._tally.stats(self._episodes.recent_returns, std, self._episodes.players(self._tally))

    def _show(self, due: float) -> float:
        """Wait until a time of `time.perf_counter`, render every environment, and return the current time."""
        time.sleep(max(0.0, due - time.perf_counter()))
        self._envs.call("render")
        return time.perf_counter()

    def _new_overlap(self, work: Callable[[], None]) -> Overlap:
        self._current_overlap = Overlap(work, self._tally)
        return self._current_overlap

    def _resume_step(self) -> None:
        """Do the rest of the work overlapped with an open step, then store the step."""
        if self.overlap is not None:
            with self._new_overlap(self.overlap) as overlap:
                overlap.run()
        self._finish_step()

    def _finish_step(self) -> None:
        """Store an open step, if there is one."""
        if self._open_step is not None:
            step, self._open_step = self._open_step, None
            self._needs_reset = True  # should it fail
            self._store_step(*step)
            self._begin_episodes()

    def _vector_step(self, overlap: Overlap | None) -> None:
        """Act in every environment that awaits an action, step it, and store the rows that this completes."""
        obs_of_all, env_ids = self._envs.obs, self._quota.unfilled(self._envs.ready)  # a step replaces `obs`
        obs = obs_of_all if len(env_ids) == self._envs.n else rows_of(obs_of_all, env_ids)
        output = self._act(obs, env_ids)
        self._needs_reset = True  # should anything fail before the step is whole
        outcome = self._step_envs(output.action, env_ids, overlap)
        if outcome.env_ids is not env_ids:
            self._open_rows.put(env_ids, output)
            obs, output = rows_of(obs_of_all, outcome.env_ids), self._open_rows.complete(outcome.env_ids, output.state)
        if overlap is not None and overlap.error is not None:  # raised on leaving; rows stored before the rest of the
            self._open_step, self._needs_reset = (obs, env_ids, output, outcome), False  # work would change its draws
        else:
            self._store_step(obs, env_ids, output, outcome)

    def _act(self, obs: Obs, env_ids: Ids) -> ActOutput:
        """Return the actions of environments [K]: the policy's, or random ones."""
        started, options = time.perf_counter(), self._options
        try:
            if options.random or len(env_ids) == 0:  # 0 where every environment is being reset by its next step
                output = self._act_at_random(obs, env_ids)
            else:
                output = self._behavior.acts.act(
                    obs,
                    step=self._env_step if options.step is None else options.step,
                    explore=options.explore,
                    state=self._state,
                    starts=self._starts[all_or(env_ids, self._envs.n)],
                    env_ids=env_ids,
                )
        except NoLegalActionError as error:
            raise self._envs.explain_no_action(error) from error.__cause__
        self._tally.act_seconds += time.perf_counter() - started
        return output

    def _step_envs(self, action: NDArray[Any], env_ids: Ids, overlap: Overlap | None) -> VectorStep:
        """Step environments [K], and do the overlapped work, whose time is not the environments'."""
        started = time.perf_counter()
        outcome = self._envs.step(action, env_ids, None if overlap is None else overlap.run)
        self._tally.env_seconds += time.perf_counter() - started - (0.0 if overlap is None else overlap.seconds)
        return outcome

    def _act_at_random(self, obs: Obs, env_ids: Ids) -> ActOutput:
        """Return uniformly random legal actions, with the columns that the policy would return."""
        space, n_rows = self._envs.action_space, len(env_ids)
        action = random_actions(space, obs, n_rows, self._rng, env_ids)
        extras = dict(self._behavior.row_extras(env_ids))
        if self._options.random:
            for name, spec in self._policy.extras_spec.items():
                zero = np.zeros((n_rows, *spec.shape), spec.dtype)
                extras[name] = zero if spec.zero_filled else random_probability(space, obs, n_rows)
        return ActOutput(action, extras, self._state)

    def _store_step(self, obs: Obs, acted: Ids, output: ActOutput, outcome: VectorStep) -> None:
        """Store the rows that a vector step completed, count them, and report them."""
        started = time.perf_counter()
        if self._options.max_episode_steps is not None and len(outcome.env_ids):
            outcome = self._truncate_at(self._options.max_episode_steps, outcome)
        if self._envs.truncate_at_soft_horizon and (limit := self._envs.soft_horizon) is not None:
            cut = self._episodes.will_reach(limit, outcome.env_ids) & ~outcome.over
            outcome = outcome._replace(truncated=outcome.truncated | cut, ended=outcome.ended | cut)
        transition, slots = self._store(obs, output, outcome)
        self._tally.store_seconds += time.perf_counter() - started
        self._count(acted, output, outcome)
        if transition is not None:
            for recorder in self.recorders:  # when all is counted, and before the arrays are another step's
                with user_code.running():
                    recorder.add(transition)
            if self.events is not None:
                self.events.stepped(transition, outcome.infos, slots, outcome.late_rewards)
        if self.events is not None and outcome.begun is not None:
            self.events.started(outcome.begun, self._envs.obs)
        if any_true(outcome.over):
            self._end_episodes(whole_groups(outcome.env_ids[outcome.over], self._envs.group_size))
        if self._envs.soft_horizon is not None:
            self._count_at_soft_horizon(outcome.env_ids[~outcome.over])
        if outcome.lost.errors:
            self._end_lost_episodes(outcome.lost)
        self._needs_reset = False

    def _store(
        self, obs: Obs, output: ActOutput, outcome: VectorStep
    ) -> tuple[Transition | None, NDArray[np.int64] | None]:
        """Store completed rows; return them, None where nothing receives them, and their slots in the buffer."""
        env_ids, extras = outcome.env_ids, output.extras
        has_receiver = self._buffer is not None or self._observes or self.recorders or self.events is not None
        if not (has_receiver and len(env_ids)):
            return None, None
        if self._extra_columns is not None:
            extras = {**extras, **self._extra_columns.read(outcome.infos, env_ids)}
        made = outcome.reward, outcome.next_obs, outcome.terminated, outcome.truncated
        transition = Transition(obs, output.action, *made, env_ids, extras)
        slots: NDArray[np.int64] | None = None
        if self._buffer is not None:
            slots = self._buffer.add(transition)
            self._tally.slots.append(slots)
        if self._observes:
            self._policy.observe(transition)
        return transition, slots

    def _count(self, acted: Ids, output: ActOutput, outcome: VectorStep) -> None:
        """Count a step of `acted`, and the rows that it completed."""
        env_ids, tally = outcome.env_ids, self._tally
        n_counted = len(env_ids) if self._rows_per_step == 1 else len(np.unique(acted // self._rows_per_step))
        tally.n_step += len(env_ids)
        tally.n_vector_step += 1
        self._env_step += n_counted
        self._quota.count_steps(n_counted)
        self._state = output.state
        # A lost life and a row that leaves its group end the learner's episode alone; groups that are over begin later.
        self._starts = self._starts.copy()  # the policy may keep the array it was given
        if acted is not env_ids:
            self._starts[acted] = False
        self._starts[env_ids] = outcome.ended
        self._episodes.step(env_ids, outcome.reward, outcome.late_rewards, acted)

    # ---- the ends and starts of episodes ----

    def _reset(self, seed: int | None, options: dict[str, Any] | None = None) -> None:
        self._finish_step()
        self._end_open_episodes(self._envs.all_ids)
        self._needs_reset = True  # until the reset has succeeded
        self._to_begin = self._envs.all_ids[:0]
        rebuilt, self._rebuilt = self._rebuilt, ()
        if self.events is not None:
            self.events.rebuilt(self._envs, rebuilt)
            self.events.created(self._envs.all_ids)
            self.events.deliver()
        self._envs.reset(seed=seed, options=options)
        self._episodes.start(self._envs.all_ids)
        self._starts = np.ones(self._envs.n, np.bool_)
        self._state = None
        self._needs_reset = False
        self._report_starts(self._envs.all_ids)

    def _truncate_at(self, limit: int, outcome: VectorStep) -> VectorStep:
        """Truncate the episodes that reach the maximal length with this step."""
        env_ids = outcome.env_ids
        cut = self._episodes.will_reach(limit, env_ids) & ~outcome.over
        if not any_true(cut):
            return outcome
        groups = np.unique(env_ids[cut] // self._envs.group_size)
        self._tally.n_cut_episodes += len(groups)
        can_continue = self._envs.takes_options  # else environments reset themselves, at their own episodes' ends only
        if not can_continue and isinstance(self._quota, EpisodeQuota):
            self._quota.end_with_current(env_ids[cut])
        self._episodes.report_cut(limit, groups[0], self._envs.name, can_continue=can_continue)
        flags = {name: getattr(outcome, name) | cut for name in ("truncated", "ended", "over")}
        return outcome._replace(**flags)

    def _end_episodes(self, env_ids: Ids) -> None:
        """Count finished episodes, and record which environments start a new one."""
        played = self._episodes.finish(env_ids, self._tally)
        self._starts[env_ids] = True
        self._to_begin = self._quota.finish(env_ids)
        if self.events is not None:
            self.events.ended(played)
            self.events.created(self._to_begin)

    def _count_at_soft_horizon(self, env_ids: Ids) -> None:
        """Count the episodes of `env_ids` at the soft horizon; rows, policy and environments do not know of it."""
        reached = self._episodes.at_soft_horizon(env_ids)
        if not len(reached):
            return
        self._episodes.finish(reached, self._tally, continues=True)
        again = self._quota.finish(reached)
        if self.events is not None:
            self.events.ended(reached)
            self.events.created(again)
            self.events.started(again, self._envs.obs)

    def _end_open_episodes(self, env_ids: Ids, *, drop: bool = False) -> None:
        """Cut (or drop) the open episodes in the buffer, the recorders and the policy."""
        for store in [*([] if self._buffer is None else [self._buffer]), *self.recorders]:
            (store.drop if drop else store.cut)(env_ids)
        if self._observes:
            self._policy.cut(env_ids)
        self._episodes.close(env_ids)

    def _end_lost_episodes(self, lost: Lost) -> None:
        """End the episodes that cannot go on, and record that others start."""
        env_ids: Ids = np.array(sorted(lost.errors), np.intp)
        self._end_open_episodes(env_ids, drop=lost.are_dropped)
        self._episodes.start(env_ids)
        self._starts[env_ids] = True
        self._tally.n_faulty_episodes += len(env_ids) // self._envs.group_size
        self._to_begin = np.union1d(self._to_begin, env_ids)
        if self.events is not None:
            self.events.failed(lost.errors)

    def _begin_episodes(self) -> None:
        """Deliver the events of a completed step, and start the episodes that follow it.

        A listener may raise at any point: the next call continues there.
        """
        if self.events is not None:
            self.events.deliver()
        if not len(self._to_begin):
            return
        started = time.perf_counter()
        self._needs_reset = True  # should it fail
        self._envs.begin(self._to_begin)
        self._needs_reset = False
        begun, self._to_begin = self._to_begin, self._to_begin[:0]
        self._tally.env_seconds += time.perf_counter() - started
        self._report_starts(begun)

    def _report_starts(self, env_ids: Ids) -> None:
        """Count the environments that were replaced, and deliver the events of the episodes that have started."""
        user_code.has_run()  # in `reset`
        replaced = self._envs.take_replaced()
        self._tally.n_env_restarts += len(replaced)
        for errors in self._envs.take_failed_starts():
            self._tally.n_faulty_episodes += len(errors) // self._envs.group_size
            if self.events is not None:
                self.events.failed(errors)
        if self.events is not None:
            self.events.rebuilt(self._envs, replaced)
            ready = np.intersect1d(env_ids, self._envs.ready)  # the others start in the next step
            self.events.started(whole_groups(ready, self._envs.group_size), self._envs.obs)
            self.events.deliver()

    # ---- saving and resuming ----

    def state_dict(self, *, with_running: bool = True) -> dict[str, Any]:
        """Return counts, generators, the replay data of open episodes, and the rest of a collect; arrays may be views.

        Raises:
            BusyError: the environments are in the middle of a step.
        """
        if self._is_overlapping:
            raise BusyError(
                "a collector cannot be saved in the middle of a step, where `overlap` is called, and with "
                "overlap=True on_train_batch and on_update_end: save when it is whole, as in on_collect_end"
            )
        if self._open_step is not None:
            raise BusyError(
                "a collector cannot be saved between a step and the rest of the work overlapped with it, which raised: "
                "call resume() first, or finish_step(); Trainer.save does so"
            )
        with_running = with_running and not self._needs_reset
        return {
            "env_step": self._env_step,
            "is_interrupted": self._is_interrupted,
            "options": asdict(self._options) | {"explore": bool(self._options.explore)},
            "starts": self._starts,
            "to_start": self._to_begin,
            "quota": self._quota.state_dict(),
            "tally": self._tally.state_dict() if self._is_interrupted else {},
            "episodes": self._episodes.state_dict(),
            "envs": self._envs.state_dict(with_running=with_running),
            "open_rows": self._open_rows.state_dict() if with_running else {},
            "rng": self._rng.bit_generator.state,
            "needs_reset": not with_running,
            "state": self._state if _is_saved(self._state) else None,
            "has_state": self._state is not None and not _is_saved(self._state),
            "events": {} if self.events is None else self.events.state_dict(),
            "actor": self._behavior.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved clock, and the open episodes if they can be replayed.

        Where not, the next collect cuts them and begins others, with a warning.
        """
        self._open_step = None
        self._env_step, self._is_interrupted = state["env_step"], state["is_interrupted"]
        self._options = CollectOptions(**state["options"])
        self._starts, self._to_begin = copy.copy(state["starts"]), copy.copy(state["to_start"])
        self._state = state["state"]
        self._quota = saved_quota(state["quota"])
        self._tally = Tally.from_state(state["tally"])
        self._episodes.load_state_dict(state["episodes"])
        self._envs.load_state_dict(state["envs"])
        self._behavior.load_state_dict(state["actor"], with_running=not state["needs_reset"])
        self._rng.bit_generator.state = state["rng"]
        self._open_rows.load_state_dict(state["open_rows"])
        self._needs_reset = True
        if state["needs_reset"]:
            return
        reason: str | None = "what the policy keeps from step to step cannot be saved"
        if not state["has_state"]:
            replayed = self._envs, state["envs"], self._episodes.have_returns
            reason = self._envs.ownership.during(self, play_again, *replayed)
        if reason is not None:
            _log.warning("%s: %s; the episodes that ran are cut and others begin", self._envs.name, reason)
            return
        self._needs_reset = False
        changed = self._envs.lost_attributes(state["envs"])
        if changed:
            _log.warning(
                "%s: the run may not continue with the same bits: after the open episodes were replayed, attributes of "
                "the environments differ from those saved: %s. What an environment keeps from one episode to the next "
                "is not saved: set it in reset(), or derive it from the episode's seed",
                *(self._envs.name, in_words(changed, "game" if self._envs.agents else "env")),
            )
        if self.events is not None and state["events"]:
            self.events.load_state_dict(state["events"], self._envs.obs)


def _is_saved(state: Any) -> bool:
    """Return whether what a policy keeps from step to step can be saved: arrays, or a tree of them."""
    return state is not None and all(isinstance(leaf, np.ndarray) for leaf in tree.leaves(state))
