"""How good a policy is: the same episodes every time, on environments of their own, without exploring."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Real
from typing import Any, Literal

from trainkit.collector import Collector
from trainkit.collector.episodes import LONGEST_EPISODE
from trainkit.core import seeding
from trainkit.core.errors import Checks, ConfigError, refuse_unknown
from trainkit.core.protocols import Policy
from trainkit.core.signatures import checked
from trainkit.core.stats import CollectStats
from trainkit.envs import make_envs
from trainkit.envs.make import EnvSpec, borrowed_envs, has_own_number

_OF_COLLECT = ("n_step", "n_episode", "explore", "random", "step", "seed", "max_episode_steps")

EvaluationFn = Callable[[Callable[..., CollectStats]], Mapping[str, float]]


@checked
class Evaluation:
    """Evaluate a policy now and then, on the same seeds each time (common random numbers); at a run's end, always.

    Args:
        collector: without a buffer, with environments of its own.
        duration: how much is played: episodes, a fixed quota per environment, or steps in all.
        duration_unit: "episodes" or "steps". Of steps, only the episodes that finish within them are judged, which
            favours short ones; and what one evaluation goes over is taken off the next.
        every: how much is trained from one evaluation to the next.
        unit: of it; "env_steps" and "updates" evaluate in the middle of epochs, too.
        at_start: evaluate before the first step as well.
        explore: whether the policy explores.
        seed: root of the episodes; None takes the trainer's.
        max_episode_steps: truncates episodes that reach this length, so that an evaluation ends although an environment
            has no time limit, or a policy that walks in a circle. They count with their return so far; `n_cut_episodes`
            says how many they were, and the log does once. None: 30,000, or the environments' own limit where that is
            longer. A duration in steps needs no such limit, and has none.
        fn: instead of `duration`, how to evaluate. It is called with a function that plays: `play(n_episode=5)` takes
            what `Collector.collect` takes and returns its `CollectStats`. The numbers that `fn` returns are shown as
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
        checks = Checks("Evaluation")
        checks.integer("duration", duration, low=1)
        checks.integer("every", every, low=1)
        checks.flag("explore", explore)
        checks.one_of("duration_unit", duration_unit, ["episodes", "steps"])
        checks.one_of("unit", unit, ["epochs", "env_steps", "updates"])
        if seed is not None:
            checks.integer("seed", seed, low=0)
        if max_episode_steps is not None:
            checks.integer("max_episode_steps", max_episode_steps, low=1)
        fits = isinstance(collector, Collector)
        checks.require(fits, f".collector must be a Collector, got {type(collector).__name__}")
        has_buffer = fits and collector.buffer is not None
        checks.require(not has_buffer, ".collector must have no buffer: an evaluation stores nothing")
        checks.require(fn is None or callable(fn), f".fn must be callable, got {fn!r}")
        checks.done()
        self.collector = collector
        self.numbers: dict[str, float] = {}  # of `fn`, the last time
        self._fn = fn
        own_limit = collector.envs.max_episode_steps or 0
        self.max_episode_steps = max_episode_steps or max(LONGEST_EPISODE, own_limit)
        self.every, self.unit, self.at_start = every, unit, at_start
        self.duration, self.duration_unit = duration, duration_unit
        self._explore = explore
        self._is_open = False  # whether the collector's last collect is ours
        self._before: dict[str, Any] = {}  # the collector, when it began
        self._streams: dict[str, Any] = {}  # of exploring, where it was interrupted
        self.is_seeded = seed is not None
        self.root = seeding.fresh_root() if seed is None else seed

    def seed(self, root: int) -> None:
        """Take the root of the episodes' seeds."""
        self.root = root
        self.is_seeded = True

    @property
    def is_interrupted(self) -> bool:
        """Whether an evaluation was left unfinished by an exception."""
        return self._is_open and self.collector.is_interrupted

    def state_dict(self) -> dict[str, Any]:
        """Return what the next evaluation begins with: one that was interrupted will be played again."""
        begins = self._before if self.is_interrupted else self.collector.state_dict(with_running=False)
        return {"root": self.root, "collector": begins}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what was saved."""
        self.seed(state["root"])
        self.collector.load_state_dict(state["collector"])
        self._is_open = False

    def forget(self) -> None:
        """Let the next evaluation begin anew, whatever interrupted the last."""
        self._is_open = False

    def run(self, step: int, *, fresh: int | None = None) -> CollectStats:
        """Evaluate, or go on with an evaluation that was interrupted; `fresh` numbers a draw of other seeds."""
        seed = self.root if fresh is None else seeding.derive(self.root, "fresh", fresh)
        with self._own_streams(seed):
            stats = self.collector.resume() if self.is_interrupted else self._play(step, seed)
        self._is_open = False
        return stats

    def _play(self, step: int, seed: int) -> CollectStats:
        """Play from fresh episodes on."""
        self._before = self.collector.state_dict(with_running=False)
        if self._fn is not None:
            return self._play_by(self._fn, step, seed)
        asked: dict[str, Any] = {"explore": self._explore, "step": step}
        if self.duration_unit == "episodes":
            self._is_open = True
            limit = self.max_episode_steps
            return self.collector.collect(n_episode=self.duration, seed=seed, max_episode_steps=limit, **asked)
        self.collector.reset(seed=seed)
        self._is_open = True
        return self.collector.collect(n_step=self.duration, **asked)

    def _play_by(self, fn: EvaluationFn, step: int, seed: int) -> CollectStats:
        """Let a function say what is played; what interrupts it lets it begin anew."""
        played: list[CollectStats] = []

        def play(**asked: Any) -> CollectStats:
            refuse_unknown("Evaluation.fn's play", asked, _OF_COLLECT)
            n_step, n_episode = asked.pop("n_step", None), asked.pop("n_episode", None)
            own = asked.pop("seed", seeding.derive(seed, "play", len(played)))
            asked = {"explore": None, "step": step} | asked
            if asked["explore"] is None:
                asked["explore"] = self._explore
            if n_step is not None:
                self.collector.reset(seed=own)
                played.append(self.collector.collect(n_step=n_step, n_episode=n_episode, **asked))
            else:
                asked.setdefault("max_episode_steps", self.max_episode_steps)
                played.append(self.collector.collect(n_episode=n_episode, seed=own, **asked))
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
    def _own_streams(self, seed: int) -> Iterator[None]:
        """Let exploring draw from random streams of the evaluation's own, so that training stays as without it."""
        if not self._explore and self._fn is None:  # `play` may be told to explore
            yield
            return
        policy = self.collector.policy
        trainings = policy.streams_state()
        if self.is_interrupted:
            policy.load_streams_state(self._streams)
        else:
            policy.start_streams(seed)
        try:
            yield
        finally:
            self._streams = policy.streams_state()
            policy.load_streams_state(trainings)


@checked
def evaluate(
    policy: Policy,
    env: EnvSpec,
    *,
    n_episode: int = 10,
    n_envs: int | None = None,
    explore: bool = False,
    seed: int | None = None,
    max_episode_steps: int | None = None,
    **env_options: Any,
) -> CollectStats:
    """Let a policy play episodes of its own and tell how it fared.

    Args:
        policy: any policy.
        env: as in `make_envs`, whose further options are `env_options`. An `Envs` or a vector environment stays open,
            and must have no other owner, such as a training collector.
        n_episode: episodes in all, a fixed quota per environment.
        n_envs: environments to play in; default: as many as `env` says itself, else as episodes, at most 16.
        explore: whether the policy explores.
        seed: root of the episodes; None draws one.
        max_episode_steps: truncates episodes there, and replaces an id's own limit. None: only those that reach 30,000
            steps, or the environments' own limit where that is longer; see `Evaluation`.
    """
    known = [*inspect.signature(evaluate).parameters, *inspect.signature(make_envs).parameters]
    refuse_unknown("evaluate", env_options, known)
    checks = Checks("evaluate")
    checks.integer("n_episode", n_episode, low=1)
    if max_episode_steps is not None:
        checks.integer("max_episode_steps", max_episode_steps, low=1)
    checks.done()
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
