"""The collector: drives a policy through environments and hands every real step to a buffer."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit.collector.columns import ExtraColumns
from trainkit.collector.episodes import EpisodeGoal, Episodes, Goal, RewardMetric, StepGoal, Tally
from trainkit.collector.events import Watch
from trainkit.collector.overlap import Meanwhile
from trainkit.collector.resuming import Resumable
from trainkit.core import seeding
from trainkit.core.arrays import any_true
from trainkit.core.data import ACTION_PROB, ActOutput, ArraySpec, Obs, RowSpec, Transition
from trainkit.core.errors import Checks, ConfigError, EnvError, NoLegalActionError
from trainkit.core.protocols import NormalActor, Policy, Recorder, Store
from trainkit.core.signatures import checked
from trainkit.core.spaces import array_specs, random_actions, random_probability
from trainkit.core.stats import NO_VALUES, CollectStats, html_table
from trainkit.envs.agents import whole_games
from trainkit.envs.backends import Ids
from trainkit.envs.envs import Envs, VectorStep, rows_of
from trainkit.envs.ownership import Use
from trainkit.envs.recovery import left

_log = logging.getLogger(__name__)

_OpenStep = tuple[Obs, Ids, ActOutput, VectorStep]  # observations before it, who acted, what they did, what came of it


@checked
class Collector(Resumable):
    """Bind a policy, environments and a buffer, and fill the buffer step by step.

    Construction checks that the three fit and has the buffer claim its memory, so that every misfit fails here.
    Without a buffer nothing is stored: that is a collector for evaluation.

    Args:
        policy: chooses the actions.
        envs: from `make_envs`. The collector becomes their one owner, until it is released or garbage collected.
        buffer: receives every real step; the transition's arrays are borrowed until the next step.
        observe: whether the policy's running statistics learn from the steps; default: where there is a buffer, so
            that evaluation changes nothing.
        reward_metric: turns the returns [episodes] of episodes that finished into what statistics show.
        seed: root of the random actions of `collect(random=True)`, and of the episodes of environments that have no
            seed. None: random actions follow the environments' seed, so that a collector made of a seeded policy and
            seeded environments repeats its steps; a trainer replaces it by a stream of its own seed.
        extra_columns: {name: default}, stored with every row besides the policy's columns: the value of the step's info
            under that key, or the default, whose dtype and shape the column has, where there is none. Callbacks may
            change them by `buffer.rewrite(slots, name=values)`; `Policy.columns` brings them to updates.

    Attributes:
        env_step: the clock: steps ever stored (without a buffer: ever made), warm-up included.
        between_steps: called before every vector step when set; what it raises leaves everything whole, and
            `resume` goes on.
        meanwhile: called once in every vector step when set, where they can (processes, ale-py) while environments
            step, and so without asking them for anything. What it raises comes when they have stepped; the step is
            stored when `resume` has called it again, for the rest.
        recorders: hear every transition and every cut, buffer or not.
        watch: hears of every event in the life of an episode, when set; what it raises leaves everything whole, too.
    """

    def __init__(
        self,
        policy: Policy,
        envs: Envs,
        buffer: Store | None = None,
        *,
        observe: bool | None = None,
        reward_metric: RewardMetric | None = None,
        seed: int | None = None,
        extra_columns: Mapping[str, Any] | None = None,
    ) -> None:
        checks = Checks("Collector")
        if seed is not None:
            checks.integer("seed", seed, low=0)
        known = reward_metric is None or callable(reward_metric)
        checks.require(known, f".reward_metric must be callable, got {reward_metric!r}")
        is_stored = buffer is not None or not extra_columns
        checks.require(is_stored, ".extra_columns needs a buffer to store them in: Collector(policy, envs, buffer)")
        checks.done()
        self._extra_columns = ExtraColumns("Collector", extra_columns, policy.extras_spec) if extra_columns else None
        policy.check_spaces(envs.observation_space, envs.action_space)
        self.policy = policy
        envs.ownership.claim(self)
        if buffer is not None:
            obs_specs, action_specs = array_specs(envs.frame_space, envs.stack), array_specs(envs.action_space)
            spec = RowSpec(n_envs=envs.n, obs=obs_specs, action=action_specs, extras=self.extras_spec)
            try:
                buffer.bind(spec)
            except BaseException:
                envs.ownership.release(self)
                raise
        self.envs = envs
        self.buffer = buffer
        self._observes = policy.observes and (buffer is not None if observe is None else observe)
        self.env_step = 0
        self.between_steps: Callable[[], None] | None = None
        self.meanwhile: Callable[[], None] | None = None
        self._at_work = Meanwhile()
        self.recorders: list[Recorder] = []
        self.watch: Watch | None = None
        self.is_seeded = False
        self._rng = seeding.generator(envs.root, "collector")  # of random actions
        if seed is not None:
            self.seed(seed)
        self._episodes = Episodes(envs.n, reward_metric, envs.agents)
        self._starts = np.ones(envs.n, np.bool_)  # [N], whether the next action is an episode's first
        self._state: Any = None  # the policy's own
        self._open_step: _OpenStep | None = None  # whose overlapped work raised and is not done
        self._goal: Goal = StepGoal(0)
        self._options: dict[str, Any] = {"explore": True, "random": False, "step": None, "seed": None}
        self._std_reader = policy if isinstance(policy, NormalActor) else None
        self._tally = Tally()
        self._is_open = False  # whether a collect has not returned yet
        self._has_told_of_cut = False  # of an episode that reached `max_episode_steps`
        self._needs_reset = True
        self._to_begin = envs.all_ids[:0]  # whose next episode has not begun yet

    def _repr_html_(self) -> str:
        rows = {"policy": type(self.policy).__name__, "environments": self.envs, "buffer": self.buffer}
        mean = self._episodes.recent_returns.mean
        rows |= {"env_step": self.env_step, "n_episode": self.n_episode, "mean of the last returns": mean}
        return html_table(type(self).__name__, rows.items())

    @property
    def n_episode(self) -> int:
        """Episodes ever finished."""
        return self._episodes.n_finished

    @property
    def extras_spec(self) -> dict[str, ArraySpec]:
        """Columns stored with every row besides the usual ones: the policy's, and `extra_columns`."""
        own = {} if self._extra_columns is None else self._extra_columns.spec
        return {**self.policy.extras_spec, **own}

    @property
    def collected_slots(self) -> NDArray[np.int64]:
        """The buffer's names of the rows that the last collect stored, or the one that runs, in their order."""
        return np.concatenate([np.zeros(0, np.int64), *self._tally.slots])

    @property
    def open_ids(self) -> Ids:
        """Environments in the middle of an episode, as the next collect of steps finds them."""
        return self.envs.all_ids[:0] if self._needs_reset else np.flatnonzero(~self._starts)

    def use_reward_metric(self, metric: RewardMetric) -> None:
        """Let statistics show `metric(returns [episodes])` of the episodes that finish from now on."""
        self._episodes.metric = metric

    def seed(self, root: int) -> None:
        """Give environments that have no seed yet, and random actions, streams of this root."""
        self._rng = seeding.generator(root, "collector")
        self.is_seeded = True
        if not self.envs.is_seeded:
            self.envs.seed(seeding.derive(root, "envs"))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Cut what is open and begin an episode everywhere; a seed repeats the same episodes."""
        use = Use(self)
        try:
            self.envs.ownership.enter(use)
            self._reset(seed, options)
        finally:
            self.envs.ownership.leave(use)

    def _reset(self, seed: int | None, options: dict[str, Any] | None = None) -> None:
        self._finish_step()
        self._break_off(self.envs.all_ids)
        self._needs_reset = True  # until the reset has succeeded
        self._to_begin = self.envs.all_ids[:0]
        if self.watch is not None:
            self.watch.created(self.envs.all_ids)
            self.watch.deliver()
        self.envs.reset(seed=seed, options=options)
        self._episodes.begin(self.envs.all_ids)
        self._starts = np.ones(self.envs.n, np.bool_)
        self._state = None
        self._needs_reset = False
        self._tell_of_start(self.envs.all_ids)

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
            n_step: steps in all environments together. Ends with the vector step that reaches it; what is over is
                taken off the next call.
            n_episode: episodes in all, a fixed quota per environment (10 on 4: 3, 3, 2, 2). Cuts what is open and
                resets first.
            explore: whether the policy explores. None: it does if the steps are stored, in a buffer or by a recorder
                (training, recording a dataset); otherwise it does not (evaluation).
            random: act uniformly at random among the legal actions, without calling the policy. The actions follow
                the collector's seed (see `Collector`).
            step: the environment step that schedules see; default: this collector's clock.
            seed: of the reset that `n_episode` begins with: the same episodes each time.
            max_episode_steps: with `n_episode`, truncate episodes that reach this length, as a time limit does; they
                are counted as any other, and in `n_cut_episodes`. None waits for their end.
            render: seconds from one picture to the next, at least: call every environment's `render` after each vector
                step. They must be made with env_kwargs={"render_mode": "human"}. None renders nothing.

        Raises:
            EnvError: an environment failed; what was stored is whole, and the next collect begins with a reset.
            BusyError: another thread, or a callback further up in this one, is collecting.
        """
        if n_step is not None and n_episode is None:
            name, count = "n_step", n_step
        elif n_episode is not None and n_step is None:
            name, count = "n_episode", n_episode
        else:
            given = {"n_step": n_step, "n_episode": n_episode}
            raise ConfigError(f"Collector.collect needs exactly one of n_step and n_episode, got {given}")
        if type(count) is not int or count < 1 or max_episode_steps is not None or render is not None:
            _check_counts(name, count, max_episode_steps, render)
        for option, flag in (("explore", explore), ("random", random)):
            if not isinstance(flag, (bool, np.bool_)) and not (option == "explore" and flag is None):
                rule = "must be True, False or None" if option == "explore" else "must be True or False"
                raise ConfigError(f"Collector.collect.{option} {rule}, got {flag!r}")
        if explore is None:
            explore = self.buffer is not None or len(self.recorders) > 0
        if random and set(self.policy.extras_spec) - {ACTION_PROB}:
            raise ConfigError(
                f"Collector.collect(random=True) cannot fill the columns {sorted(self.policy.extras_spec)} that "
                f"{type(self.policy).__name__} stores with each step: let the policy explore instead"
            )
        if seed is not None and n_episode is None:
            raise ConfigError("Collector.collect(seed=) seeds the reset that n_episode begins with: use reset(seed=)")
        use = Use(self)
        try:
            self.envs.ownership.enter(use)
            self._options = {"explore": bool(explore), "random": random, "step": step, "seed": seed}
            self._options |= {"max_episode_steps": max_episode_steps, "render": render}
            if render is not None:
                self._check_render_mode()
            self._episodes.limit_changed()
            self._tally = Tally()
            if self._std_reader is not None:
                self._std_reader.read_action_std()  # of actions asked for outside of a collect
            if name == "n_episode" or (isinstance(self._goal, EpisodeGoal) and self.is_interrupted):
                self._needs_reset = True  # a quota given up half-way leaves environments at an episode's end
            if name == "n_step":
                self._goal = StepGoal(self._owed + int(count))
            else:
                self._goal = EpisodeGoal(int(count), self.envs.n, self.envs.n_agents)
            self._is_open = True
            return self._reach_goal()
        finally:
            self.envs.ownership.leave(use)

    @property
    def n_vector_steps_left(self) -> int:
        """Vector steps until a collect of steps that runs, or was interrupted, has its number; 0 without one."""
        return -(-self._owed // self.envs.n) if self._is_open else 0

    @property
    def is_interrupted(self) -> bool:
        """Whether a collect was left unfinished by an exception."""
        return self._is_open

    def resume(self) -> CollectStats:
        """Go on with a collect that an exception interrupted; the statistics are of all of it."""
        use = Use(self)
        try:
            self.envs.ownership.enter(use)
            return self._reach_goal()
        finally:
            self.envs.ownership.leave(use)

    def _reach_goal(self) -> CollectStats:
        """Step until the goal is reached."""
        began, spent = time.perf_counter(), self.envs.spent
        before = spent.obs, spent.action, spent.render
        try:
            if self._open_step is not None:
                with self._working() as meanwhile:
                    meanwhile.work and meanwhile.work()
                self._finish_step()
            if self._needs_reset and not self._goal.is_reached:
                self._reset(self._options["seed"])
                self._options["seed"] = None  # should a later reset be needed, not the same episodes again
                rendering = spent.render - before[2]  # by callbacks
                self._tally.env_seconds += time.perf_counter() - began - rendering
            self._settle()
            pause_s, shown = self._options.get("render"), began
            while not self._goal.is_reached:
                if self.between_steps is not None:
                    self.between_steps()
                with self._working() as meanwhile:
                    self._vector_step(self._tally, meanwhile)
                self._settle()
                if pause_s is not None:
                    shown = self._show(shown + pause_s)
        finally:
            self._tally.seconds += time.perf_counter() - began
            self._tally.obs_seconds += spent.obs - before[0]
            self._tally.action_seconds += spent.action - before[1]
            self._tally.render_seconds += spent.render - before[2]
        self._is_open = False
        self._needs_reset |= isinstance(self._goal, EpisodeGoal)
        std = NO_VALUES if self._std_reader is None else self._std_reader.read_action_std()
        return self._tally.stats(self._episodes.recent_returns, std)

    def _check_render_mode(self) -> None:
        """Raise a ConfigError where environments do not render for a person to see."""
        modes = set(self.envs.call("render_mode"))
        if modes != {"human"}:
            had = ", ".join(map(repr, sorted(modes, key=str)))
            raise ConfigError(
                f"Collector.collect(render=) needs environments made with env_kwargs={{'render_mode': 'human'}}, "
                f"{self.envs.name} has {had}; Envs.render and RecordVideo give arrays"
            )

    def _show(self, due: float) -> float:
        """Render every environment, not before a time by `time.perf_counter`, and return the time it is then."""
        time.sleep(max(0.0, due - time.perf_counter()))
        self.envs.call("render")
        return time.perf_counter()

    @property
    def is_mid_step(self) -> bool:
        """Whether environments made a step that is not stored yet, because the work overlapped with it raised.

        `resume` calls `meanwhile` again for the rest of that work and then stores the step, so that updates and rows
        come in the order of a run in which nothing raised.
        """
        return self._open_step is not None

    def finish_step(self) -> None:
        """Store a step that waits for the rest of its overlapped work, without doing that work."""
        if self._open_step is None or self._at_work.is_at_work:
            return
        use = Use(self)
        try:
            self.envs.ownership.enter(use)
            self._finish_step()
        finally:
            self.envs.ownership.leave(use)

    def _finish_step(self) -> None:
        if self._open_step is not None:
            step, self._open_step = self._open_step, None
            self._needs_reset = True  # should it fail
            self._store_step(self._tally, *step)
            self._settle()

    def release(self) -> None:
        """Give the environments up, open, to another owner; open episodes end here, and this collector is done."""
        if self.envs.ownership.owner is self:
            self.finish_step()
            self._break_off(self.envs.all_ids)
            self._needs_reset = True
            self.envs.ownership.release(self)

    def close(self) -> None:
        """Close the environments; a later collect raises a ConfigError."""
        self._open_step = None
        self.envs.close()

    def _working(self) -> Meanwhile:
        """Return what overlaps with a step, ready to be entered."""
        self._at_work.call, self._at_work.tally = self.meanwhile, self._tally
        return self._at_work

    @property
    def _owed(self) -> int:
        """Steps to be made up for, negative where the last collect went over."""
        return self._goal.owed if isinstance(self._goal, StepGoal) else 0

    def _vector_step(self, tally: Tally, meanwhile: Meanwhile) -> None:
        """Act, step, store: one action in every environment that awaits one."""
        clock, envs = time.perf_counter, self.envs
        env_ids = self._goal.open(envs.ready)
        n_rows = len(env_ids)  # 0 where every environment is being reset by its next step
        obs = envs.obs if n_rows == envs.n else rows_of(envs.obs, env_ids)
        began = clock()
        try:
            output = self._act(obs, env_ids)
        except NoLegalActionError as error:
            raise self.envs.explain_no_action(error) from error.__cause__
        acted = clock()
        self._needs_reset = True  # should anything fail before the step is whole
        outcome = envs.step(output.action, env_ids, meanwhile.work)
        tally.act_seconds += acted - began
        tally.env_seconds += clock() - acted - meanwhile.seconds
        if meanwhile.has_failed:  # it raises on leaving; rows added before the rest of it would change what it draws
            self._open_step, self._needs_reset = (obs, env_ids, output, outcome), False
        else:
            self._store_step(tally, obs, env_ids, output, outcome)

    def _store_step(self, tally: Tally, obs: Obs, env_ids: Ids, output: ActOutput, outcome: VectorStep) -> None:
        """Store what a vector step gave, and count it."""
        clock, envs, n_rows = time.perf_counter, self.envs, len(env_ids)
        stepped = clock()
        if outcome.failed:
            obs, output = left(env_ids, outcome.env_ids, obs, output)
            env_ids, n_rows = outcome.env_ids, len(outcome.env_ids)
            self._starts = self._starts.copy()  # the policy was given it as it was
        limit = self._options.get("max_episode_steps")
        if limit is not None and n_rows:
            outcome = self._limited(outcome, limit, tally)
        transition: Transition | None = None
        slots: NDArray[np.int64] | None = None
        if n_rows and (self.buffer is not None or self._observes or self.recorders or self.watch is not None):
            made = outcome.reward, outcome.next_obs, outcome.terminated, outcome.truncated
            extras = output.extras
            if self._extra_columns is not None:
                extras = {**extras, **self._extra_columns.read(outcome.infos, env_ids)}
            transition = Transition(obs, output.action, *made, env_ids, extras)
            if self.buffer is not None:
                slots = self.buffer.add(transition)
                tally.slots.append(slots)
            if self._observes:
                self.policy.observe(transition)
        tally.store_seconds += clock() - stepped
        tally.n_step += n_rows
        tally.n_vector_step += 1
        self.env_step += n_rows
        self._state = output.state
        # A lost life and an agent that leaves end the learner's episode alone; games that are over begin below.
        if n_rows == envs.n:
            self._starts = outcome.ended.copy()
        else:
            self._starts[env_ids] = outcome.ended
        self._goal.step(n_rows)
        self._episodes.step(env_ids, outcome.reward)
        if outcome.late_rewards:
            self._episodes.add_rewards(outcome.late_rewards)
        if transition is not None:
            for recorder in self.recorders:  # when all is counted, and before the arrays are another step's
                recorder.add(transition)
            if self.watch is not None:
                self.watch.stepped(transition, outcome.infos, slots, outcome.late_rewards)
        if any_true(outcome.over):
            self._end_episodes(whole_games(env_ids[outcome.over], envs.n_agents), tally)
        if outcome.failed:
            self._lose_episodes(outcome.failed)
        self._needs_reset = False

    def _act(self, obs: Obs, env_ids: Ids) -> ActOutput:
        if self._options["random"] or len(env_ids) == 0:
            action = random_actions(self.envs.action_space, obs, len(env_ids), self._rng, env_ids)
            names = self.policy.extras_spec if self._options["random"] else ()
            told = {name: random_probability(self.envs.action_space, obs, len(env_ids)) for name in names}
            return ActOutput(action, told, self._state)
        step = self._options["step"]
        return self.policy.act(
            obs,
            step=self.env_step if step is None else step,
            explore=self._options["explore"],
            state=self._state,
            starts=self._starts if len(env_ids) == self.envs.n else self._starts[env_ids],
            env_ids=env_ids,
        )

    def _limited(self, outcome: VectorStep, limit: int, tally: Tally) -> VectorStep:
        """Truncate the episodes that reach a length with this step."""
        env_ids = outcome.env_ids
        at_limit = self._episodes.reach(limit, env_ids)
        if at_limit is None:
            return outcome
        cut = at_limit & ~outcome.over
        games = np.unique(env_ids[cut] // self.envs.n_agents)
        if not len(games):
            return outcome
        tally.n_cut_episodes += len(games)
        can_go_on = self.envs.takes_options  # else environments reset themselves, at their own episodes' ends only
        if not can_go_on and isinstance(self._goal, EpisodeGoal):
            self._goal.give_up(env_ids[cut])
        if not self._has_told_of_cut:
            self._has_told_of_cut = True
            _log.warning(
                "%s: an episode (env %d) is truncated at max_episode_steps=%s, and counts with its return so far; "
                "n_cut_episodes counts such episodes%s",
                *(self.envs.name, games[0], f"{limit:,}"),
                "" if can_go_on else "; no other follows there, as the vector environment resets itself only",
            )
        flags = {name: getattr(outcome, name) | cut for name in ("truncated", "ended", "over")}
        return outcome._replace(**flags)

    def _end_episodes(self, env_ids: Ids, tally: Tally) -> None:
        """Write finished episodes down, and note where the next ones shall begin."""
        played = self._episodes.finish(env_ids, tally)
        self._starts[env_ids] = True
        self._to_begin = self._goal.finish(env_ids)
        if self.watch is not None:
            self.watch.ended(played)
            self.watch.created(self._to_begin)

    def _break_off(self, env_ids: Ids, *, drops: bool = False) -> None:
        """Have all who follow episodes end the open ones here, or take them back."""
        for keeper in [*([] if self.buffer is None else [self.buffer]), *self.recorders]:
            (keeper.drop if drops else keeper.cut)(env_ids)
        if self._observes:
            self.policy.cut(env_ids)

    def _lose_episodes(self, lost: Mapping[int, EnvError]) -> None:
        """Give up the open episodes of environments that failed, and note that their next ones shall begin."""
        env_ids = np.array(sorted(lost))
        self._break_off(env_ids, drops=self.envs.restarts.drops)
        self._episodes.begin(env_ids)
        self._starts[env_ids] = True
        self._tally.n_faulty_episodes += len(env_ids)
        self._to_begin = np.union1d(self._to_begin, env_ids)
        if self.watch is not None:
            self.watch.failed(lost)

    def _settle(self) -> None:
        """Tell what happened in a step that is whole, and begin the episodes that follow it.

        A listener may raise at any point: what is not told or begun yet is when this is called again.
        """
        if self.watch is not None:
            self.watch.deliver()
        if not len(self._to_begin):
            return
        began = time.perf_counter()
        self._needs_reset = True  # should it fail
        self.envs.begin(self._to_begin)
        self._needs_reset = False
        begun, self._to_begin = self._to_begin, self._to_begin[:0]
        self._tally.env_seconds += time.perf_counter() - began
        self._tell_of_start(begun)

    def _tell_of_start(self, env_ids: Ids) -> None:
        """Count the environments that were made anew, and tell of them and of the episodes that have begun."""
        remade = self.envs.restarts.take_remade()
        self._tally.n_env_restarts += len(remade)
        self._tally.n_faulty_episodes += self.envs.restarts.take_failed_resets()
        if self.watch is not None:
            self.watch.remade(self.envs, remade)
            self.watch.started(env_ids, self.envs.obs)
            self.watch.deliver()


def _check_counts(name: str, count: object, max_episode_steps: object, render: object) -> None:
    """Raise `ConfigError` for numbers that `collect` cannot use."""
    checks = Checks("Collector.collect")
    checks.integer(name, count, low=1)
    if max_episode_steps is not None:
        checks.integer("max_episode_steps", max_episode_steps, low=1)
        rule = ".max_episode_steps has no effect on n_step: give it to make_envs"
        checks.require(name == "n_episode", rule)
    if render is not None:
        checks.number("render", render, low=0)
    checks.done()
