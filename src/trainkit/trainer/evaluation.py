"""Evaluation: how a policy is evaluated, when a run does so, and which score was the best."""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal

from trainkit.collector import Collector
from trainkit.collector.episodes import LONGEST_EPISODE
from trainkit.core import seeding
from trainkit.core.errors import Checks, ConfigError, reject_unknown
from trainkit.core.protocols import Policy, Simulator
from trainkit.core.signatures import checked
from trainkit.core.stats import NO_COLLECT, CollectStats
from trainkit.envs import make_envs
from trainkit.envs.make import EnvSpec, borrowed_envs, has_own_number
from trainkit.simulators import SimulatorVectorEnv
from trainkit.trainer.callbacks.base import Dispatcher, n_periods
from trainkit.trainer.greedy_episodes import GreedyEpisodes
from trainkit.trainer.metrics import Stopwatch

if TYPE_CHECKING:
    from trainkit.trainer.base import Trainer

_COLLECT_OPTIONS = ("n_step", "n_episode", "explore", "random", "step", "seed", "max_episode_steps")

EvaluationFn = Callable[[Callable[..., CollectStats]], Mapping[str, float]]


@checked
class Evaluation:
    """A periodic evaluation on the same seeds each time (common random numbers); a run always ends with one.

    Args:
        collector: without a buffer, with environments of its own.
        duration: how much is played: episodes, a fixed quota per environment, or steps in all.
        duration_unit: "episodes" or "steps". Of steps, only the episodes that finish within them count, which favors
            short ones; steps in excess of one evaluation are subtracted from the next.
        every: how much is trained from one evaluation to the next.
        unit: of it; "env_steps" and "updates" evaluate in the middle of epochs, too.
        at_start: evaluate before the first step as well.
        explore: whether the policy explores.
        seed: root of the episodes; None takes the trainer's.
        max_episode_steps: truncates episodes that reach this length, so that an evaluation ends although an environment
            has no time limit or a policy never finishes. They count with their return so far; `n_cut_episodes` is their
            number, and a warning is logged once. None: 30,000, or the environments' own limit where that is longer. A
            duration in steps needs no such limit, and has none.
        fn: instead of `duration`, how to evaluate. It is called with a function that plays: `play(n_episode=5)` has the
            options of `Collector.collect` and returns its `CollectStats`. The numbers that `fn` returns are logged as
            `custom/test/name`; the evaluation's statistics, and its score, are of all that was played.
    """

    def __init__(
        self,
        collector: Collector,
        *,
        duration: int = 10,
        duration_unit: Literal["episodes", "steps"] = "episodes",
        every: int = 1,
        unit: Literal["epochs", "env_steps", "updates"] = "epochs",
        at_start: bool = False,
        explore: bool = False,
        seed: int | None = None,
        max_episode_steps: int | None = None,
        fn: EvaluationFn | None = None,
    ) -> None:
        with Checks("Evaluation") as checks:
            checks.integer("duration", duration, low=1)
            checks.integer("every", every, low=1)
            checks.flag("explore", explore)
            checks.one_of("duration_unit", duration_unit, ["episodes", "steps"])
            checks.one_of("unit", unit, ["epochs", "env_steps", "updates"])
            checks.integer("seed", seed, low=0, optional=True)
            checks.integer("max_episode_steps", max_episode_steps, low=1, optional=True)
            fits = isinstance(collector, Collector)
            checks.require(fits, f".collector must be a Collector, got {type(collector).__name__}")
            has_buffer = fits and collector.buffer is not None
            checks.require(not has_buffer, ".collector must have no buffer: an evaluation stores nothing")
            checks.require(fn is None or callable(fn), f".fn must be callable, got {fn!r}")
        self.collector = collector
        self.numbers: dict[str, float] = {}  # of `fn`, the last time
        self._fn = fn
        own_limit = collector.envs.max_episode_steps or 0
        self.max_episode_steps = max_episode_steps or max(LONGEST_EPISODE, own_limit)
        self.every, self.unit, self.at_start = every, unit, at_start
        self.duration, self.duration_unit = duration, duration_unit
        self._explore = explore
        self._is_started = False  # whether the collector's last collect is this evaluation's
        self._before: dict[str, Any] = {}  # the collector's state at its start
        self._streams: dict[str, Any] = {}  # of exploration, at an interruption
        self._greedy: GreedyEpisodes | None = None  # of the last evaluation, if it was greedy
        self.is_seeded = seed is not None
        self.root = seeding.fresh_root() if seed is None else seed

    def seed(self, root: int) -> None:
        """Set the root of the episodes' seeds."""
        self.root = root
        self.is_seeded = True

    @property
    def is_interrupted(self) -> bool:
        """Whether an evaluation was left unfinished by an exception."""
        return self._is_started and self.collector.is_interrupted

    def state_dict(self) -> dict[str, Any]:
        """Return the state at the start of the next evaluation: an interrupted one is repeated."""
        start = self._before if self.is_interrupted else self.collector.state_dict(with_running=False)
        return {"root": self.root, "collector": start}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        self.seed(state["root"])
        self.collector.load_state_dict(state["collector"])
        self._is_started = False

    def discard_interrupted(self) -> None:
        """Discard an interrupted evaluation: the next one starts from the beginning."""
        self._is_started = False

    def run(self, step: int, *, fresh: int | None = None) -> CollectStats:
        """Evaluate, or resume an interrupted evaluation; `fresh` numbers a set of seeds never used before."""
        seed = self.root if fresh is None else seeding.derive(self.root, "fresh", fresh)
        with self._own_streams(seed), self._recording():
            stats = self.collector.resume() if self.is_interrupted else self._play(step, seed)
        self._is_started = False
        return stats if self._greedy is None else replace(stats, **self._greedy.summaries())

    def _play(self, step: int, seed: int) -> CollectStats:
        """Play from newly reset episodes."""
        self._before = self.collector.state_dict(with_running=False)
        if self._fn is not None:
            return self._play_custom(self._fn, step, seed)
        options: dict[str, Any] = {"explore": self._explore, "step": step}
        if self.duration_unit == "episodes":
            self._is_started = True
            limit = self.max_episode_steps
            return self.collector.collect(n_episode=self.duration, seed=seed, max_episode_steps=limit, **options)
        self.collector.reset(seed=seed)
        self._is_started = True
        return self.collector.collect(n_step=self.duration, **options)

    def _play_custom(self, fn: EvaluationFn, step: int, seed: int) -> CollectStats:
        """Run a custom evaluation function; after an interruption it is called again from the start."""
        played: list[CollectStats] = []

        def play(**options: Any) -> CollectStats:
            reject_unknown("Evaluation.fn's play", options, _COLLECT_OPTIONS)
            n_step, n_episode = options.pop("n_step", None), options.pop("n_episode", None)
            own_seed = options.pop("seed", seeding.derive(seed, "play", len(played)))
            options = {"explore": None, "step": step} | options
            if options["explore"] is None:
                options["explore"] = self._explore
            if n_step is not None:
                self.collector.reset(seed=own_seed)
                played.append(self.collector.collect(n_step=n_step, n_episode=n_episode, **options))
            else:
                options.setdefault("max_episode_steps", self.max_episode_steps)
                played.append(self.collector.collect(n_episode=n_episode, seed=own_seed, **options))
            return played[-1]

        numbers: object = fn(play)
        if not isinstance(numbers, Mapping):
            raise ConfigError(f"Evaluation.fn must return a dict of numbers, got {numbers!r}")
        for name, number in numbers.items():
            if not isinstance(number, (Real, type(None))):
                raise ConfigError(f"Evaluation.fn must return numbers, or None for none, got {number!r} for {name!r}")
        self.numbers = {str(name): float(number) for name, number in numbers.items() if number is not None}
        return CollectStats.merge(played)

    @contextmanager
    def _recording(self) -> Iterator[None]:
        """Record the episodes, if all are greedy, and of environments with one agent."""
        if not self.is_interrupted:
            envs, is_greedy = self.collector.envs, not self._explore and self._fn is None
            recorded = is_greedy and envs.n_agents == 1
            self._greedy = GreedyEpisodes(self.collector.policy, envs.n) if recorded else None
        recorders = [] if self._greedy is None else [self._greedy]
        self.collector.recorders += recorders
        try:
            yield
        finally:
            for recorder in recorders:
                self.collector.recorders.remove(recorder)

    @contextmanager
    def _own_streams(self, seed: int) -> Iterator[None]:
        """Use the evaluation's own random streams for exploration, so that evaluation does not change training."""
        if not self._explore and self._fn is None:  # `play` may explore
            yield
            return
        policy = self.collector.policy
        training_streams = policy.streams_state()
        if self.is_interrupted:
            policy.load_streams_state(self._streams)
        else:
            policy.start_streams(seed)
        try:
            yield
        finally:
            self._streams = policy.streams_state()
            policy.load_streams_state(training_streams)


_SAVED = ("best_score", "best_epoch", "best_env_step", "best_std", "_n_confirmed", "_n_periods")


class EvaluationSchedule:
    """When a run evaluates its policy, and the best score so far. An interrupted evaluation is resumed, not repeated.

    Args:
        evaluation: how to evaluate; None where a run has no evaluations.
        score_fn: from an evaluation to its score, None for none; default: its mean return.
        callbacks: receive its events.
        stopwatch: times it.
        between_steps: called before every vector step; may interrupt.
    """

    def __init__(
        self,
        evaluation: Evaluation | None,
        score_fn: Callable[[CollectStats], float | None] | None,
        callbacks: Dispatcher,
        stopwatch: Stopwatch,
        between_steps: Callable[[], None],
    ) -> None:
        self.evaluation = evaluation
        self._score_fn = score_fn
        self._callbacks, self._stopwatch, self._between_steps = callbacks, stopwatch, between_steps
        self.reset()

    def reset(self) -> None:
        """Forget all evaluations."""
        self.best_score: float | None = None
        self.best_epoch: int | None = None
        self.best_env_step: int | None = None
        self.best_std: float | None = None  # of its returns
        self.last_test = NO_COLLECT
        self._n_confirmed = 0  # evaluations on fresh seeds
        self.looks_solved = False  # training episodes passed `stop_fn` (`test_in_train`)
        self._n_periods: int | None = None  # whole periods of the evaluation's unit, at the last; None before any
        self.start_epoch()

    def start_epoch(self) -> None:
        """Forget the evaluations of the epoch before."""
        self.epoch_test = NO_COLLECT  # the epoch's last
        self.epoch_score: float | None = None
        self.unreported = NO_COLLECT  # the evaluation that is in no report yet
        self.allow_another()

    def allow_another(self) -> None:
        """Allow `evaluate` another evaluation in this epoch."""
        if self.evaluation is not None:
            self.evaluation.discard_interrupted()  # of another epoch, or of a run before `reset`
        self._is_evaluated = self._is_delivered = False  # whether it was played, and all its events were fired

    def is_due(self, trainer: "Trainer", *, at_end: bool = False, is_last: bool = False) -> bool:
        """Return whether to evaluate now, in the middle or at the end of an epoch; the last epoch ends with one."""
        evaluation = self.evaluation
        if evaluation is None:
            return False
        if (is_last if at_end else self.looks_solved) or (self._n_periods is None and evaluation.at_start):
            return True
        if evaluation.unit == "epochs":
            return at_end and trainer.epoch % evaluation.every == 0
        return n_periods(trainer, evaluation.unit, evaluation.every) > (self._n_periods or 0)

    def evaluate(self, trainer: "Trainer") -> None:
        """Evaluate, or resume an interrupted evaluation, without repeating completed parts."""
        if not self._is_delivered:
            self._evaluate(trainer)
        self.looks_solved = False

    def _evaluate(self, trainer: "Trainer") -> None:
        evaluation = self._required()
        if not self._is_evaluated:
            if not evaluation.is_interrupted:
                self._callbacks.fire("on_evaluate_start", trainer)
            self.epoch_test = self.unreported = self._run(trainer.clock)
            self.epoch_score = self.score(self.epoch_test)
            self._n_periods = n_periods(trainer, evaluation.unit, evaluation.every)
            for name, number in evaluation.numbers.items():
                trainer.log(f"test/{name}", number, "last")
            self._is_evaluated = True
            if self._is_best(self.epoch_score, self.epoch_test, trainer):
                self._callbacks.fire("on_best", trainer, self.epoch_test)
        self._is_delivered = True
        self._callbacks.fire("on_evaluate_end", trainer, self.epoch_test)

    def evaluate_now(self, step: int) -> CollectStats:
        """Evaluate without firing callbacks or updating the best score."""
        evaluation = self._required()
        evaluation.discard_interrupted()  # it is played again when the run continues
        evaluation.collector.between_steps = None
        with self._without_episode_events(evaluation):
            self.last_test = evaluation.run(step)
        return self.last_test

    def confirm(self, step: int) -> CollectStats:
        """Evaluate on seeds never used before, without events of its episodes."""
        with self._without_episode_events(self._required()):
            stats = self._run(step, fresh=self._n_confirmed)
        self._n_confirmed += 1
        return stats

    def score(self, stats: CollectStats) -> float | None:
        """Return the score of collected episodes, None if there are none."""
        if self._score_fn is None:
            return stats.returns.mean
        score: Any = self._score_fn(stats)
        try:
            return None if score is None else float(score)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"compute_score_fn must return a number or None, got {score!r}") from error

    def state_dict(self) -> dict[str, Any]:
        """Return the best and the last evaluation, and the state from which the next evaluation starts."""
        saved = {name: getattr(self, name) for name in _SAVED}
        last_test = None if self.last_test.is_empty else self.last_test.to_plain()
        evaluation = None if self.evaluation is None else self.evaluation.state_dict()
        return saved | {"last_test": last_test, "evaluation": evaluation}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        for name in _SAVED:
            setattr(self, name, state.get(name))  # an older checkpoint lacks `best_std`
        last_test = state["last_test"]
        self.last_test = NO_COLLECT if last_test is None else CollectStats.from_plain(last_test)
        if self.evaluation is not None and state["evaluation"] is not None:
            self.evaluation.load_state_dict(state["evaluation"])

    def _required(self) -> Evaluation:
        if self.evaluation is None:
            raise ConfigError("there is nothing to evaluate in: give the trainer a test_collector or an evaluation")
        return self.evaluation

    def _run(self, step: int, *, fresh: int | None = None) -> CollectStats:
        evaluation = self._required()
        evaluation.collector.between_steps = self._between_steps
        with self._stopwatch.measure("evaluate"):
            self.last_test = evaluation.run(step, fresh=fresh)
        return self.last_test

    @staticmethod
    @contextmanager
    def _without_episode_events(evaluation: Evaluation) -> Iterator[None]:
        events, evaluation.collector.events = evaluation.collector.events, None
        try:
            yield
        finally:
            evaluation.collector.events = events

    def _is_best(self, score: float | None, stats: CollectStats, trainer: "Trainer") -> bool:
        """Record a score if it is the best so far; ties keep the first, and a missing score is never the best."""
        if score is None or math.isnan(score) or (self.best_score is not None and score <= self.best_score):
            return False
        self.best_score, self.best_epoch, self.best_env_step = score, trainer.epoch, trainer.clock
        self.best_std = stats.returns.std
        return True


@checked
def evaluate(
    policy: Policy,
    env: EnvSpec | Simulator,
    *,
    n_episode: int = 10,
    n_envs: int | None = None,
    explore: bool = False,
    seed: int | None = None,
    max_episode_steps: int | None = None,
    **env_options: Any,
) -> CollectStats:
    """Evaluate a policy on new episodes and return their statistics.

    Args:
        policy: any policy.
        env: as in `make_envs`, whose further options are `env_options`, or a simulator. An `Envs`, a vector environment
            or a simulator stays open, and must have no other owner, such as a training collector.
        n_episode: episodes in all, a fixed quota per environment.
        n_envs: environments to play in; default: the number that `env` has itself, else that of episodes, at most 16.
        explore: whether the policy explores.
        seed: root of the episodes; None draws one.
        max_episode_steps: truncates episodes at this length, and replaces an id's own limit. None: only those that
            reach 30,000 steps, or the environments' own limit where that is longer; see `Evaluation`.
    """
    known = [*inspect.signature(evaluate).parameters, *inspect.signature(make_envs).parameters]
    reject_unknown("evaluate", env_options, known)
    with Checks("evaluate") as checks:
        checks.integer("n_episode", n_episode, low=1)
        checks.integer("max_episode_steps", max_episode_steps, low=1, optional=True)
    if isinstance(env, Simulator):
        env = SimulatorVectorEnv(env)
    if n_envs is None:
        n_envs = 1 if has_own_number(env) else min(n_episode, 16)
    if isinstance(env, str):
        env_options["max_episode_steps"] = max_episode_steps
    with borrowed_envs(env, n_envs, **{"in_evaluation": True, **env_options}) as envs:
        collector = Collector(policy, envs)
        try:
            evaluation = Evaluation(
                collector, duration=n_episode, explore=explore, seed=seed, max_episode_steps=max_episode_steps
            )
            return evaluation.run(policy.last_step)
        finally:
            collector.release()
