"""Evaluation: how a policy is evaluated."""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from trainkit.collector import Collector
from trainkit.collector.episodes import LONGEST_EPISODE
from trainkit.core import seeding
from trainkit.core.errors import Checks, ConfigError, reject_unknown
from trainkit.core.names import did_you_mean
from trainkit.core.protocols import ActingPolicy
from trainkit.core.signatures import checked
from trainkit.core.stats import CollectStats
from trainkit.envs import make_envs
from trainkit.envs.envs_config import EnvSpec
from trainkit.envs.make import borrowed_envs, has_own_number, resolved
from trainkit.trainer.film import Filmed, check_video_path, find_ffmpeg
from trainkit.trainer.greedy_episodes import GreedyEpisodes

_COLLECT_OPTIONS = ("n_step", "n_episode", "explore", "random", "step", "seed", "max_episode_steps")


class Played(NamedTuple):
    """The result of an evaluation in a worker: statistics, the numbers of `fn`, and the state after it."""

    stats: CollectStats
    numbers: dict[str, float]
    state: dict[str, Any]


class EvaluationWorker(Protocol):
    """A worker that plays an evaluation while training continues, one request at a time."""

    def start(self) -> None:
        """Start the worker, if it has not started."""
        ...

    def packed(self, policy: Any) -> bytes:
        """Return a policy serialized for the worker; raise `ConfigError` if it cannot be."""
        ...

    def unpacked(self, policy: bytes) -> Any:
        """Return the copy of a serialized policy, on the CPU."""
        ...

    def request(self, policy: bytes, step: int, state: dict[str, Any], fresh: int | None) -> None:
        """Play with a packed policy, from the state of the evaluation; `fresh` is as in `Evaluation.run`."""
        ...

    def receive(self, between_polls: Callable[[], None]) -> Played:
        """Wait for the answer; `between_polls` is called several times a second, and may interrupt."""
        ...

    def close(self) -> None:
        """End the worker; the next request starts another one."""
        ...


EvaluationFn = Callable[[Callable[..., CollectStats]], Mapping[str, float]]


@checked
class Evaluation:
    """A periodic evaluation on the same seeds each time (common random numbers); a run always ends with one.

    Args:
        collector: without a buffer, with environments of its own. None: the `test_collector` of the trainer, or that
            of a preset.
        duration: how much is played: episodes, a fixed quota per environment, or steps in all. None is 10, or the
            trainer's `episode_per_test`. "auto", of a `BackgroundEvaluation`: an episode of each environment again and
            again until training reaches the next evaluation, at least once.
        duration_unit: "episodes" or "steps". Of steps, only the episodes that finish within them count, which favors
            short ones; steps in excess of one evaluation are subtracted from the next.
        every: how much is trained from one evaluation to the next.
        unit: of it; "env_steps" and "updates" evaluate in the middle of epochs, too.
        at_start: evaluate before the first step as well.
        explore: whether the policy explores, and so samples its actions. None: if `exploration` is given.
        exploration: how it explores here, such as `EpsilonGreedy(0.001)` or `SoftQ(0.1)`, in place of its own.
        overrides: {name: value}, further attributes of the policy that have another value here.
        seed: root of the episodes; None takes the trainer's.
        max_episode_steps: truncates episodes that reach this length, so that an evaluation ends although an environment
            has no time limit or a policy never finishes. They count with their return so far; `n_cut_episodes` is their
            number, and a warning is logged once. None: 30,000, or the environments' own limit where that is longer. A
            duration in steps needs no such limit, and has none.
        fn: instead of `duration`, how to evaluate. It is called with a function that plays: `play(n_episode=5)` has the
            options of `Collector.collect` and returns its `CollectStats`. The numbers that `fn` returns are logged as
            `custom/test/name`; the evaluation's statistics, and its score, are of all that was played.
    """

    plays_here: ClassVar[bool] = True  # in this process, before training continues

    def __init__(
        self,
        collector: Collector | None = None,
        *,
        duration: int | Literal["auto"] | None = None,
        duration_unit: Literal["episodes", "steps"] = "episodes",
        every: int = 1,
        unit: Literal["epochs", "env_steps", "updates"] = "epochs",
        at_start: bool = False,
        explore: bool | None = None,
        exploration: Any = None,
        overrides: Mapping[str, Any] | None = None,
        seed: int | None = None,
        max_episode_steps: int | None = None,
        fn: EvaluationFn | None = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in ("self", "collector", "seed")}
        self.options: dict[str, Any] = given  # for a copy: every option but the seed, which `seed` may replace
        with Checks("Evaluation") as checks:
            _check_collector(checks, collector)
            _check_duration(checks, duration, duration_unit, fn, may_be_auto=not self.plays_here)
            _check_acting(checks, explore, exploration, overrides)
            checks.integer("every", every, low=1)
            checks.one_of("unit", unit, ["epochs", "env_steps", "updates"])
            checks.integer("seed", seed, low=0, optional=True)
            checks.integer("max_episode_steps", max_episode_steps, low=1, optional=True)
            checks.require(fn is None or callable(fn), f".fn must be callable, got {fn!r}")
        self._collector = collector
        self.numbers: dict[str, float] = {}  # of `fn`, the last time
        self._fn = fn
        own_limit = 0 if collector is None else collector.envs.max_episode_steps or 0
        self.max_episode_steps = max_episode_steps or max(LONGEST_EPISODE, own_limit)
        self.every, self.unit, self.at_start = every, unit, at_start
        self.duration, self.duration_unit = 10 if duration is None else duration, duration_unit
        self.is_over: Callable[[], bool] = lambda: True  # of a duration "auto", called after every round
        self._explore = exploration is not None if explore is None else explore
        self._overrides = {**(overrides or {}), **({} if exploration is None else {"exploration": exploration})}
        if collector is not None:
            self._check_overrides(collector.policy)
        self._is_started = False  # whether the collector's last collect is this evaluation's
        self._before: dict[str, Any] = {}  # the collector's state at its start
        self._streams: dict[str, Any] = {}  # of exploration, at an interruption
        self._greedy: GreedyEpisodes | None = None  # of the last evaluation, if it was greedy
        self.is_seeded = seed is not None
        self.root = seeding.fresh_root() if seed is None else seed

    def __repr__(self) -> str:
        own = inspect.signature(Evaluation).parameters
        given = [f"{name}={value!r}" for name, value in self.options.items() if value is not own[name].default]
        return f"{type(self).__name__}({', '.join([*([repr(self._collector)] if self.has_collector else []), *given])})"

    @property
    def collector(self) -> Collector:
        """The collector that plays."""
        if self._collector is None:
            raise ConfigError("Evaluation has no collector: give one, or give the trainer a test_collector")
        return self._collector

    @property
    def has_collector(self) -> bool:
        """Whether a collector was given."""
        return self._collector is not None

    def changed(self, collector: Collector | None = None, **changes: Any) -> "Evaluation":
        """Return a copy with this collector and some options changed; it has the same seed unless it gets one."""
        changes.setdefault("seed", self.root if self.is_seeded else None)
        return type(self)(collector, **{**self.options, **changes})

    def worker(self) -> EvaluationWorker | None:
        """Return what plays it elsewhere; None: it plays here."""
        return None

    def _check_overrides(self, policy: Any) -> None:
        """Raise a `ConfigError` for attributes that the policy does not have."""
        for name in self._overrides:
            if not hasattr(policy, name):
                option = "exploration" if name == "exploration" else "overrides"
                known = [own for own in dir(policy) if not own.startswith("_")]
                hint = did_you_mean(name, known)
                raise ConfigError(f"Evaluation.{option}: {type(policy).__name__} has no attribute {name!r}{hint}")

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
        with self._overridden(), self._own_streams(seed), self._recording():
            stats = self.collector.resume() if self.is_interrupted else self._play(step, seed)
        self._is_started = False
        return stats if self._greedy is None else replace(stats, **self._greedy.summaries())

    def log_numbers(self, log: Callable[..., None]) -> None:
        """Log the numbers of `fn`, of the last time, by a function like `Trainer.log`."""
        for name, number in self.numbers.items():
            log(f"test/{name}", number, "last")

    def _play(self, step: int, seed: int) -> CollectStats:
        """Play from newly reset episodes."""
        self._before = self.collector.state_dict(with_running=False)
        if self._fn is not None:
            return self._play_custom(self._fn, step, seed)
        options: dict[str, Any] = {"explore": self._explore, "step": step}
        if self.duration == "auto":
            return self._play_rounds(seed, options)
        assert isinstance(self.duration, int), "the only other one is played in rounds"
        if self.duration_unit == "episodes":
            self._is_started = True
            limit = self.max_episode_steps
            return self.collector.collect(n_episode=self.duration, seed=seed, max_episode_steps=limit, **options)
        self.collector.reset(seed=seed)
        self._is_started = True
        return self.collector.collect(n_step=self.duration, **options)

    def _play_rounds(self, seed: int, options: Mapping[str, Any]) -> CollectStats:
        """Play an episode of each environment again and again, each time to the end, until the time is over."""
        played: list[CollectStats] = []
        envs = self.collector.envs
        while not played or not self.is_over():
            own_seed = seeding.derive(seed, "round", len(played)) if played else seed
            limit = self.max_episode_steps
            n_episode = envs.n // envs.group_size
            played.append(
                self.collector.collect(n_episode=n_episode, seed=own_seed, max_episode_steps=limit, **options)
            )
        return CollectStats.merge(played)

    @contextmanager
    def _overridden(self) -> Iterator[None]:
        """Set the policy's attributes that have another value in evaluation, and restore them afterwards."""
        policy: Any = self.collector.policy
        training = {name: getattr(policy, name) for name in self._overrides}
        try:
            for name, value in self._overrides.items():
                setattr(policy, name, value)
            yield
        finally:
            for name, value in training.items():
                setattr(policy, name, value)

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
        """Record the episodes, if all are greedy, and of rows that are each alone."""
        if not self.is_interrupted:
            envs, is_greedy = self.collector.envs, not self._explore and self._fn is None
            recorded = is_greedy and envs.group_size == 1
            policy = self.collector.policy
            has_state = getattr(policy, "state_size", 0) > 0
            states = (lambda: self.collector.policy_state) if has_state else None
            self._greedy = GreedyEpisodes(policy, envs.n, states) if recorded else None
        recorders = [] if self._greedy is None else [self._greedy]
        self.collector.recorders += recorders
        try:
            yield
        finally:
            for recorder in recorders:
                self.collector.recorders.remove(recorder)

    @contextmanager
    def _own_streams(self, seed: int) -> Iterator[None]:
        """Use the evaluation's own random streams for random actions, so that evaluation does not change training."""
        policy = self.collector.policy
        is_random = self._explore or self._fn is not None or getattr(policy, "is_random", False)  # `play` may explore
        if not is_random:
            yield
            return
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


def _check_collector(checks: Checks, collector: object) -> None:
    """Report what cannot play an evaluation."""
    fits = collector is None or isinstance(collector, Collector)
    checks.require(fits, f".collector must be a Collector, got {type(collector).__name__}")
    has_buffer = isinstance(collector, Collector) and collector.buffer is not None
    checks.require(not has_buffer, ".collector must have no buffer: an evaluation stores nothing")


def _check_duration(checks: Checks, duration: object, duration_unit: object, fn: object, *, may_be_auto: bool) -> None:
    """Note a duration that cannot work."""
    checks.one_of("duration_unit", duration_unit, ["episodes", "steps"])
    if duration != "auto":
        checks.integer("duration", duration, low=1, optional=True)
        return
    checks.require(may_be_auto, '.duration "auto" ends with the training alongside: give a BackgroundEvaluation')
    fits = duration_unit == "episodes" and fn is None
    checks.require(fits, '.duration "auto" counts episodes, without fn: leave out duration_unit and fn')


def _check_acting(checks: Checks, explore: object, exploration: object, overrides: object) -> None:
    """Note settings of the policy during an evaluation that cannot work."""
    checks.require(explore is None or isinstance(explore, bool), f".explore must be True or False, got {explore!r}")
    has_effect = exploration is None or explore is not False
    checks.require(has_effect, ".exploration has no effect with explore=False: leave one out")
    is_mapping = overrides is None or (isinstance(overrides, Mapping) and "exploration" not in overrides)
    rule = ".overrides must be {name: value} of attributes of the policy, exploration= apart"
    checks.require(is_mapping, f"{rule}, got {overrides!r}")


@checked
def evaluate(
    policy: ActingPolicy,
    env: EnvSpec,
    *,
    n_episode: int = 10,
    n_envs: int | None = None,
    explore: bool = False,
    seed: int | None = None,
    max_episode_steps: int | None = None,
    video: str | Path | None = None,
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
        video: a file that ends in .mp4, for all episodes one after the other, or a folder for a video of each,
            `episode-000.mp4` and so on; needs the extra `video`.
    """
    known = [*inspect.signature(evaluate).parameters, *inspect.signature(make_envs).parameters]
    reject_unknown("evaluate", env_options, known)
    with Checks("evaluate") as checks:
        checks.integer("n_episode", n_episode, low=1)
        checks.integer("max_episode_steps", max_episode_steps, low=1, optional=True)
    env = resolved(env)
    if video is not None:
        n_envs, env_options = 1, _filmed(env, env_options, Path(video))
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


def _filmed(env: EnvSpec, options: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return options of `make_envs` that also render the episodes into a video, or one of each."""
    check_video_path("evaluate.video", path)
    if has_own_number(env):
        raise ConfigError("evaluate(video=) makes its environment: give an id, a class or a factory")
    find_ffmpeg()
    return {
        **options,
        "env_kwargs": {"render_mode": "rgb_array", **options.get("env_kwargs", {})},
        "wrappers": (*options.get("wrappers", ()), functools.partial(Filmed, path=path)),
    }
