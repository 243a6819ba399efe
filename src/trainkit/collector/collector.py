"""The collector: drives a policy through environments and hands every real step to a buffer."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit import seeding
from trainkit.arrays import any_true
from trainkit.collector.agents import whole_games
from trainkit.collector.backends import Ids
from trainkit.collector.envs import Envs
from trainkit.collector.episodes import EpisodeGoal, Episodes, Goal, RewardMetric, StepGoal, Tally
from trainkit.collector.meanwhile import Meanwhile
from trainkit.collector.restarts import left
from trainkit.collector.resuming import Resumable
from trainkit.collector.stacks import rows_of
from trainkit.collector.watching import Watch
from trainkit.data import ACTION_PROB, ActOutput, Obs, RowSpec, Transition
from trainkit.errors import Checks, ConfigError, EnvError
from trainkit.protocols import Policy, Recorder, Store
from trainkit.spaces import array_specs, random_actions, random_probability
from trainkit.stats import CollectStats, html_table


class Collector(Resumable):
    """Bind a policy, environments and a buffer, and fill the buffer step by step.

    Construction checks that the three fit and has the buffer claim its memory, so that every misfit fails here.
    Without a buffer nothing is stored: that is a collector for evaluation.

    Args:
        policy: chooses the actions.
        envs: from `make_envs`; a collector has them to itself.
        buffer: receives every real step; the transition's arrays are borrowed until the next step.
        observe: whether the policy's running statistics learn from the steps; default: where there is a buffer, so
            that evaluation changes nothing.
        reward_metric: turns the returns [episodes] of episodes that finished into what statistics show.

    Attributes:
        env_step: the clock: steps ever stored (without a buffer: ever made), warm-up included.
        between_steps: called before every vector step when set; what it raises leaves everything whole, and
            `resume` goes on.
        meanwhile: called once in every vector step when set, where they can (processes, ale-py) while environments
            step, and so without asking them for anything; what it raises comes when the step is whole.
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
    ) -> None:
        checks = Checks("Collector")
        known = reward_metric is None or callable(reward_metric)
        checks.require(known, f".reward_metric must be callable, got {reward_metric!r}")
        checks.done()
        policy.check_spaces(envs.observation_space, envs.action_space)
        if buffer is not None:
            obs_specs, action_specs = array_specs(envs.frame_space, envs.stack), array_specs(envs.action_space)
            buffer.bind(RowSpec(n_envs=envs.n, obs=obs_specs, action=action_specs, extras=dict(policy.extras_spec)))
        self.policy = policy
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
        self._rng = seeding.generator(seeding.fresh_root(), "collector")  # of random actions
        self._episodes = Episodes(envs.n, reward_metric, envs.agents)
        self._starts = np.ones(envs.n, np.bool_)  # [N], whether the next action is an episode's first
        self._state: Any = None  # the policy's own
        self._goal: Goal = StepGoal(0)
        self._options: dict[str, Any] = {"explore": True, "random": False, "step": None, "seed": None}
        self._tally = Tally()
        self._is_open = False  # whether a collect has not returned yet
        self._needs_reset = True
        self._to_begin = envs.all_ids[:0]  # whose next episode has not begun yet

    def _repr_html_(self) -> str:
        recent = self._episodes.recent_returns
        rows = {"policy": type(self.policy).__name__, "environments": self.envs, "buffer": self.buffer}
        mean = None if recent is None else recent.mean
        rows |= {"env_step": self.env_step, "n_episode": self.n_episode, "mean of the last returns": mean}
        return html_table(type(self).__name__, rows.items())

    @property
    def n_episode(self) -> int:
        """Episodes ever finished."""
        return self._episodes.n_finished

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
        explore: bool = True,
        random: bool = False,
        step: int | None = None,
        seed: int | None = None,
    ) -> CollectStats:
        """Collect a number of steps or of episodes, exactly one of the two.

        Args:
            n_step: steps in all environments together. Ends with the vector step that reaches it; what is over is
                taken off the next call.
            n_episode: episodes in all, a fixed quota per environment (10 on 4: 3, 3, 2, 2). Cuts what is open and
                resets first.
            explore: let the policy explore.
            random: act uniformly at random among the legal actions instead of asking the policy.
            step: the environment step that schedules see; default: this collector's clock.
            seed: of the reset that `n_episode` begins with: the same episodes each time.

        Raises:
            EnvError: an environment failed; what was stored is whole, and the next collect begins with a reset.
        """
        if n_step is not None and n_episode is None:
            name, count = "n_step", n_step
        elif n_episode is not None and n_step is None:
            name, count = "n_episode", n_episode
        else:
            given = {"n_step": n_step, "n_episode": n_episode}
            raise ConfigError(f"Collector.collect needs exactly one of n_step and n_episode, got {given}")
        checks = Checks("Collector.collect")
        checks.integer(name, count, low=1)
        checks.done()
        if random and set(self.policy.extras_spec) - {ACTION_PROB}:
            raise ConfigError(
                f"Collector.collect(random=True) cannot fill the columns {sorted(self.policy.extras_spec)} that "
                f"{type(self.policy).__name__} stores with each step: let the policy explore instead"
            )
        if seed is not None and n_episode is None:
            raise ConfigError("Collector.collect(seed=) seeds the reset that n_episode begins with: use reset(seed=)")
        self._options = {"explore": explore, "random": random, "step": step, "seed": seed}
        self._tally = Tally()
        if name == "n_episode" or (isinstance(self._goal, EpisodeGoal) and self.is_interrupted):
            self._needs_reset = True  # a quota given up half-way leaves environments at an episode's end
        if name == "n_step":
            self._goal = StepGoal(self._owed + int(count))
        else:
            self._goal = EpisodeGoal(int(count), self.envs.n, self.envs.n_agents)
        self._is_open = True
        return self.resume()

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
        began = time.perf_counter()
        try:
            if self._needs_reset and not self._goal.is_reached:
                self.reset(seed=self._options["seed"])
                self._options["seed"] = None  # should a later reset be needed, not the same episodes again
                self._tally.env_seconds += time.perf_counter() - began
            self._settle()
            meanwhile = self._at_work
            while not self._goal.is_reached:
                if self.between_steps is not None:
                    self.between_steps()
                meanwhile.call, meanwhile.tally = self.meanwhile, self._tally
                with meanwhile:
                    self._vector_step(self._tally, meanwhile)
                self._settle()
        finally:
            self._tally.seconds += time.perf_counter() - began
        self._is_open = False
        self._needs_reset |= isinstance(self._goal, EpisodeGoal)
        return self._tally.stats(self._episodes.recent_returns)

    def close(self) -> None:
        """Close the environments."""
        self.envs.close()

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
        output = self._act(obs, env_ids)
        acted = clock()
        self._needs_reset = True  # should anything fail before the step is whole
        outcome = envs.step(output.action, env_ids, meanwhile.work)
        stepped = clock()
        if outcome.lost:
            obs, output = left(env_ids, outcome.env_ids, obs, output)
            env_ids, n_rows = outcome.env_ids, len(outcome.env_ids)
            self._starts = self._starts.copy()  # the policy was given it as it was
        transition: Transition | None = None
        slots: NDArray[np.int64] | None = None
        if n_rows and (self.buffer is not None or self._observes or self.recorders or self.watch is not None):
            made = outcome.reward, outcome.next_obs, outcome.terminated, outcome.truncated
            transition = Transition(obs, output.action, *made, env_ids, output.extras)
            slots = None if self.buffer is None else self.buffer.add(transition)
            if self._observes:
                self.policy.observe(transition)
        tally.act_seconds += acted - began
        tally.env_seconds += stepped - acted - meanwhile.seconds
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
        if transition is not None:
            for recorder in self.recorders:  # when all is counted, and before the arrays are another step's
                recorder.add(transition)
            if self.watch is not None:
                self.watch.stepped(transition, outcome.infos, slots)
        if any_true(outcome.over):
            self._end_episodes(whole_games(env_ids[outcome.over], envs.n_agents), tally)
        if outcome.lost:
            self._lose_episodes(outcome.lost)
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
        if self.watch is not None:
            self.watch.remade(self.envs, remade)
            self.watch.started(env_ids, self.envs.obs)
            self.watch.deliver()
