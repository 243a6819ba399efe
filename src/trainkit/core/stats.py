"""Statistics of a run: frozen records whose attribute path is the tag of a dashboard."""

import html
import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from trainkit.core.names import did_you_mean
from trainkit.core.signatures import checked


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Summary statistics of a list of numbers; of an empty list `count` is 0 and the others are None."""

    mean: float | None
    std: float | None  # population
    min: float | None
    max: float | None
    count: int

    @property
    def is_empty(self) -> bool:
        """Whether there were no numbers to summarize."""
        return self.count == 0

    def __str__(self) -> str:
        if self.is_empty:
            return "none"
        mean, std, low, high = (format_number(number) for number in (self.mean, self.std, self.min, self.max))
        return f"{mean} +- {std} ({low} to {high}, n = {self.count:,})"

    @classmethod
    def of(cls, values: Iterable[float]) -> "Summary":
        """Summarize a list of numbers in float64."""
        numbers = [*values]
        count = len(numbers)
        if count == 0:
            return NO_VALUES
        if count == 1:  # so it is where a collect is one vector step, if an episode ended at all
            one = float(numbers[0])
            return cls(mean=one, std=one - one, min=one, max=one, count=1)  # nan of what is not finite
        array = np.fromiter(numbers, np.float64, count)
        low, high = float(np.minimum.reduce(array)), float(np.maximum.reduce(array))
        unit = _unit(low, high)
        if unit != 1.0:
            array = array / unit
        mean = float(np.add.reduce(array)) / count
        apart = array - mean
        variance = float(apart.dot(apart)) / count
        return cls(mean=mean * unit, std=math.sqrt(variance) * unit, min=low, max=high, count=count)

    @classmethod
    def merge(cls, parts: "Iterable[Summary]") -> "Summary":
        """Summarize the union of the lists behind several summaries, exactly (Chan et al., 1979)."""
        known = [
            (part.count, part.mean, part.std, part.min, part.max)
            for part in parts
            if part.mean is not None and part.std is not None and part.min is not None and part.max is not None
        ]
        if not known:
            return NO_VALUES
        counts, means, stds, lows, highs = zip(*known, strict=True)
        count, low, high = sum(counts), min(lows), max(highs)
        unit = _unit(low, high)
        if unit != 1.0:
            means, stds = tuple(own / unit for own in means), tuple(own / unit for own in stds)
        mean = sum(own * n for own, n in zip(means, counts, strict=True)) / count
        spread = sum(n * (std**2 + (own - mean) ** 2) for own, std, n in zip(means, stds, counts, strict=True))
        return cls(mean=mean * unit, std=math.sqrt(spread / count) * unit, min=low, max=high, count=count)


_LARGE = 1e100  # numbers whose squares are summed without an overflow


def _unit(low: float, high: float) -> float:
    """Return the unit in which numbers between these can be squared: 1 but for very large ones."""
    largest = max(-low, high)
    return largest if _LARGE < largest < math.inf else 1.0


NO_VALUES = Summary(mean=None, std=None, min=None, max=None, count=0)

_MOST_PARTS = 256  # arrays kept one by one until they are summarized


class SummaryBuilder:
    """A growing list of numbers, of which the summary is kept and not the numbers."""

    def __init__(self) -> None:
        self._summary = NO_VALUES
        self._parts: list[NDArray[np.float64]] = []

    def add(self, numbers: NDArray[np.float64]) -> None:
        """Append numbers [K]; the array is kept."""
        self._parts.append(numbers)
        if len(self._parts) == _MOST_PARTS:
            self.summary()

    def summary(self) -> Summary:
        """Summarize all numbers so far."""
        if self._parts:
            self._summary = Summary.merge([self._summary, Summary.of(np.concatenate(self._parts))])
            self._parts = []
        return self._summary


def format_number(number: float | None, sign: Literal["", "+"] = "") -> str:
    """Return a number with four significant digits, or with all before the decimal point: 12,346, not 1.235e+04.

    Args:
        number: any; None is "none".
        sign: of positive numbers.
    """
    if number is None:
        return "none"
    is_long = 9_999.5 <= abs(number) < 1e7
    return f"{number:{sign},.0f}" if is_long else f"{number:{sign}.4g}"


class Numbers(dict[str, float]):
    """Numbers by name, which are printed with six significant digits; those below 1e15 without a fraction whole."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{{{', '.join(f'{name!r}: {_six_digits(number)}' for name, number in self.items())}}}"


def _six_digits(number: object) -> str:
    if not isinstance(number, float) or (number.is_integer() and abs(number) < 1e15):
        return repr(number)
    return f"{number:.6g}"


def per_second(count: int, seconds: float) -> float | None:
    """Return a rate, None if nothing was counted or no time was measured."""
    return count / seconds if count and seconds > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayerStats:
    """What one row of groups of rows, an agent of games, or one policy of several did in a collect."""

    n_step: int = 0  # in which it acted
    returns: Summary = NO_VALUES  # in the episodes that finished, of those that it took part in

    @property
    def mean(self) -> float | None:
        """The mean of the returns."""
        return self.returns.mean

    @classmethod
    def merge(cls, parts: "Iterable[PlayerStats]") -> "PlayerStats":
        """Combine several collects into one."""
        known = [*parts]
        return cls(n_step=sum(part.n_step for part in known), returns=Summary.merge(part.returns for part in known))

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "PlayerStats":
        """Return what `dataclasses.asdict` described."""
        return cls(n_step=plain["n_step"], returns=Summary(**plain["returns"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectStats:
    """Statistics of one `collect`, or of all in an interval.

    Returns and lengths are of episodes *finished* here, over their whole life; their `mean` is None when none finished.
    The `_ms` are milliseconds per vector step and add up to all of it: the policy (`act`), the environments (`env`),
    processing observations and actions (`obs`, `action`), the buffer (`store`), rendering (`render`), the rest
    (`other`). Where nothing was collected, as in `stats.test` of an epoch without an evaluation, all counts are 0 and
    `is_empty` is True.
    """

    n_step: int = 0  # rows: real steps, summed over environments
    n_episode: int = 0  # episodes finished
    returns: Summary = NO_VALUES  # undiscounted
    lengths: Summary = NO_VALUES  # steps
    durations: Summary = NO_VALUES  # seconds
    recent_returns: Summary = NO_VALUES  # the last 100 episodes, whenever they finished
    seconds: float = 0.0
    n_vector_step: int = 0
    n_faulty_episodes: int = 0
    n_env_restarts: int = 0
    n_cut_episodes: int = 0  # of the finished ones, those that an evaluation's max_episode_steps truncated
    env_ms: float | None = None
    act_ms: float | None = None
    store_ms: float | None = None
    other_ms: float | None = None
    action_std: Summary = NO_VALUES  # of the normal distributions that actions were drawn from, in policy units
    obs_ms: float | None = None
    action_ms: float | None = None
    render_ms: float | None = None
    episode_returns: tuple[float, ...] = ()  # of every episode finished, in order; these two are not logged
    episode_lengths: tuple[int, ...] = ()
    agents: Mapping[str, PlayerStats] = field(default_factory=dict)  # by the name of the row of a group
    policies: Mapping[str, PlayerStats] = field(default_factory=dict)  # by name, where several play
    processors: Mapping[str, Summary] = field(default_factory=dict)  # {name: what they logged}
    # Of greedy evaluations, and of one alone:
    start_values: Summary = NO_VALUES  # returns that a Q-learner predicts at the episodes' starts
    discounted_returns: Summary = NO_VALUES  # what followed, in the same units: discounted, of the learner's rewards
    action_gaps: Summary = NO_VALUES  # at the starts, the best action's value minus the second best's
    top_action_share: float | None = None  # of all Discrete actions, the share of the most frequent one

    def __str__(self) -> str:
        if self.is_empty:
            return "nothing collected"
        counts = f"{self.n_step:,} steps, {self.n_episode:,} episodes, {format_number(self.seconds)} s"
        return "\n".join([f"{counts} | returns {self.returns} | lengths {self.lengths}", *self.group_lines()])

    def _repr_html_(self) -> str:
        return html_table("collected", scalars(self).items())

    def group_lines(self) -> list[str]:
        """Return a line for each agent and policy, and for each summary of the processors."""
        players = [(f"{group}/{name}", own) for group in _PLAYERS for name, own in getattr(self, group).items()]
        lines = [f"{name} {own.n_step:,} steps | returns {own.returns}" for name, own in players]
        return [*lines, *(f"processors/{name} {own}" for name, own in self.processors.items())]

    @property
    def is_empty(self) -> bool:
        """Whether nothing was collected: no vector step was taken and no environment restarted."""
        return self.n_vector_step == 0 and self.n_env_restarts == 0

    @property
    def steps_per_second(self) -> float | None:
        """Rows per second, None if no step was taken."""
        return per_second(self.n_step, self.seconds)

    def to_plain(self) -> dict[str, Any]:
        """Return it in JSON-compatible values; an empty summary is None."""
        plain = {name: None if value == _PLAIN_NO_VALUES else value for name, value in asdict(self).items()}
        return plain | {name: list(getattr(self, name)) for name in _LISTS}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "CollectStats":
        """Return what `to_plain` described."""
        read: dict[str, Any] = dict(plain)
        for name in _SUMMARIES:
            read[name] = NO_VALUES if read[name] is None else Summary(**read[name])
        for name in _LISTS:
            read[name] = tuple(read[name])
        for group in _PLAYERS:
            read[group] = {name: PlayerStats.from_plain(one) for name, one in read[group].items()}
        read["processors"] = {name: Summary(**one) for name, one in read["processors"].items()}
        return cls(**read)

    @classmethod
    def merge(cls, parts: "Sequence[CollectStats]") -> "CollectStats":
        """Combine several collects into one; `NO_COLLECT` when there were none."""
        if not parts:
            return NO_COLLECT
        names = [item.name for item in fields(cls)]
        steps = sum(part.n_vector_step for part in parts)
        merged: dict[str, Any] = {
            name: sum(getattr(part, name) for part in parts) for name in names if name.startswith("n_")
        }
        merged |= {name: Summary.merge(getattr(part, name) for part in parts) for name in _SUMMARIES}
        merged |= {name: tuple(one for part in parts for one in getattr(part, name)) for name in _LISTS}
        for name in names:
            if name.endswith("_ms"):  # a mean per vector step
                total = sum((getattr(part, name) or 0.0) * part.n_vector_step for part in parts)
                merged[name] = total / steps if steps else None
        for group in _PLAYERS:
            players = {name: None for part in parts for name in getattr(part, group)}
            merged[group] = {
                name: PlayerStats.merge(getattr(part, group)[name] for part in parts if name in getattr(part, group))
                for name in players
            }
        return cls(
            **merged | {"recent_returns": parts[-1].recent_returns},
            seconds=sum(part.seconds for part in parts),
            processors=merge_groups([part.processors for part in parts]),
        )

    def steps_of(self, policy: str) -> int:
        """Return the number of steps in which a policy acted; "" is the only one."""
        return self.policies[policy].n_step if policy in self.policies else 0 if policy else self.n_step


def merge_groups(groups: "Sequence[Mapping[str, Summary]]") -> dict[str, Summary]:
    """Merge summaries by name, and leave out those that are empty."""
    names = {name: None for group in groups for name in group}
    merged = {name: Summary.merge(group.get(name, NO_VALUES) for group in groups) for name in names}
    return {name: summary for name, summary in merged.items() if not summary.is_empty}


_LISTS = ("episode_returns", "episode_lengths")
_PLAYERS = ("agents", "policies")
_NO_NUMBERS = (*_LISTS, "warnings", "episodes")  # fields without a tag
_PLAIN_NO_VALUES = asdict(NO_VALUES)
_SUMMARIES = [item.name for item in fields(CollectStats) if item.type is Summary]

NO_COLLECT = CollectStats()


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeStats:
    """Where an interval's time went; the shares collect, update, evaluate and other add up to 1."""

    seconds: float
    collect: float
    update: float
    evaluate: float
    other: float
    steps_per_second: float  # environment steps (offline: updates) over all of `seconds`
    sample: float | None = None  # of the update's share, drawing batches; None where none are drawn
    priorities: float | None = None  # of the update's share, reading priorities and writing them to the buffer

    def __str__(self) -> str:
        shares = {name: getattr(self, name) for name in ("collect", "update", "evaluate", "other")}
        parts = {name: share for name in ("sample", "priorities") if (share := getattr(self, name)) is not None}
        shown = [f"{name} {share:.1%}" for name, share in shares.items()]
        if parts:
            shown[1] += f" ({', '.join(f'{name} {share:.1%}' for name, share in parts.items())})"
        return f"{format_number(self.seconds)} s, {format_number(self.steps_per_second)} per second: {', '.join(shown)}"


NO_TIME = TimeStats(seconds=0.0, collect=0.0, update=0.0, evaluate=0.0, other=0.0, steps_per_second=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWarning:
    """Why a run does not learn: what a rule of its diagnosis found, the remedy, and in which epochs."""

    name: str  # of the rule
    message: str  # of the last of these epochs
    first_epoch: int
    last_epoch: int

    def __str__(self) -> str:
        first, last = self.first_epoch, self.last_epoch
        return f"{self.name}, {f'epoch {last}' if first == last else f'epochs {first} to {last}'}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochStats:
    """Statistics of one interval of a run. `stats["test/returns/mean"]` reads one of them; missing ones are None.

    Without an evaluation in the interval `test.is_empty` is True and `test.returns.mean` is None; `train` likewise,
    where nothing was collected. `warnings` are those of an epoch, and empty in a report within one.
    """

    train: CollectStats
    test: CollectStats
    update: Mapping[str, float] = field(default_factory=dict)  # means over all updates of the interval
    explore: Mapping[str, float] = field(default_factory=dict)
    buffer: Mapping[str, float] = field(default_factory=dict)
    custom: Mapping[str, float] = field(default_factory=dict)  # given to `Trainer.log`
    time: TimeStats
    system: Mapping[str, float] = field(default_factory=dict)  # memory and processor of this process, device memory
    warnings: Mapping[str, RunWarning] = field(default_factory=dict)  # by name; these are not logged as numbers
    episodes: Sequence[Mapping[str, float]] = ()  # given to `Trainer.log_episode`, in order; as above

    def __getitem__(self, tag: str) -> float | None:
        value: Any = self
        is_missing, names = False, tag.split("/")
        while names:
            if value is None:
                return None
            is_missing |= _is_missing(value)
            if isinstance(value, Mapping):
                keys = ["/".join(names[:n]) for n in range(len(names), 0, -1)]  # a name may contain slashes
                key = next((key for key in keys if key in value), None)
                if key is None:
                    return None
                value, names = value[key], names[key.count("/") + 1 :]
                continue
            name, *names = names
            known = [item.name for item in fields(value) if item.name not in _NO_NUMBERS] if is_dataclass(value) else []
            if name not in known:
                raise KeyError(f"no statistic {tag!r}: {name!r} is not known here{did_you_mean(name, known)}")
            value = getattr(value, name)
        return None if is_missing or _is_missing(value) else value

    if not TYPE_CHECKING:  # a checker knows the fields

        def __getattr__(self, name: str) -> Any:
            if hasattr(type(self), name):  # a property raised an AttributeError of its own: let it through
                return object.__getattribute__(self, name)
            known = [] if name.startswith("_") else [*scalars(self)]
            tags = [tag for tag in known if tag.split("/")[1:2] == [name]]
            hint = f": give stats[{tags[0]!r}]" if tags else did_you_mean(name, [item.name for item in fields(self)])
            raise AttributeError(f"EpochStats has no attribute {name!r}{hint}")

    def _ipython_key_completions_(self) -> list[str]:
        return [*scalars(self)]

    def __str__(self) -> str:
        lines = []
        for name, part in (("train", self.train), ("test", self.test)):
            if not part.is_empty:
                lines.append(f"{name:8}{part.n_step:,} steps | returns {part.returns} | lengths {part.lengths}")
                lines += [f"{'':8}{line}" for line in part.group_lines()]
        for name in ("update", "explore", "buffer", "custom", "time", "system"):
            numbers = scalars(getattr(self, name))
            if numbers:
                body = ", ".join(f"{tag}={format_number(value)}" for tag, value in numbers.items())
                body = str(self.time) if name == "time" else body
                lines.append(textwrap.fill(body, 110, initial_indent=f"{name:8}", subsequent_indent=" " * 8))
        return "\n".join([*lines, *(f"warning {one}" for one in self.warnings.values())])

    def _repr_html_(self) -> str:
        return html_table("epoch", [*scalars(self).items(), *_warning_rows(self.warnings)])


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """Progress of a run; counts and times cover the whole run, including the parts before a resume."""

    epoch: int
    env_step: int
    gradient_step: int
    n_episode: int
    best_score: float | None
    best_epoch: int | None
    best_env_step: int | None  # offline: updates
    best_return: float | None  # the mean return of the best evaluation's episodes; the score without `compute_score_fn`
    best_std: float | None  # of these returns
    last_test: CollectStats  # empty before the first evaluation
    n_test_step: int  # steps of all evaluations, second looks on fresh seeds included
    n_test_episode: int
    seconds: float  # within `next()`; the four below add up to it
    collect_seconds: float
    update_seconds: float
    evaluate_seconds: float
    other_seconds: float
    steps_per_second: float | None  # training steps (offline: updates) over `seconds`; None before the first
    collect_steps_per_second: float | None  # over `collect_seconds`
    updates_per_second: float | None  # over `update_seconds`
    stop_reason: str | None  # None while the run continues
    run_dir: str | None
    date: str  # when the trainer was made, in UTC and ISO 8601
    warnings: Mapping[str, RunWarning] = field(default_factory=dict)  # of all epochs, by name

    def __str__(self) -> str:
        best = "none yet" if self.best_score is None else f"{format_number(self.best_score)} in epoch {self.best_epoch}"
        times = {"collect": self.collect_seconds, "update": self.update_seconds, "evaluate": self.evaluate_seconds}
        parts = ", ".join(f"{name} {format_number(seconds)} s" for name, seconds in times.items())
        state = "running" if self.stop_reason is None else f"stopped by {self.stop_reason}"
        done = f"{self.env_step:,} steps, {self.gradient_step:,} updates, {self.n_episode:,} episodes"
        return "\n".join(
            [
                f"epoch   {self.epoch}: {done}",
                f"test    best {best} | last returns {self.last_test.returns}",
                f"time    {format_number(self.seconds)} s: {parts}, other {format_number(self.other_seconds)} s",
                f"state   {state}, {'not logged' if self.run_dir is None else f'logged to {self.run_dir}'}",
                *(f"warning {one}" for one in self.warnings.values()),
            ]
        )

    def _repr_html_(self) -> str:
        names = [item.name for item in fields(self) if item.name not in ("last_test", "warnings")]
        return html_table("run", [*((name, getattr(self, name)) for name in names), *_warning_rows(self.warnings)])


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The end of one of several runs.

    Attributes:
        name: of its folder, below that of all.
        seed: that its trainer was made with.
        folder: has its log, its checkpoint, and the traceback if it failed.
        info: its progress and totals; None if it failed, or did not start because of a signal.
        error: the line of its error; None if it did not fail.
    """

    name: str
    seed: int
    folder: Path
    info: RunInfo | None = None
    error: str | None = None


@checked
def scalars(stats: object, prefix: str = "") -> dict[str, float]:
    """Flatten a statistics record to `{tag: number}`.

    What is None is left out, as are a summary's count and all of a record that is empty.
    """
    return dict(_walk(stats, prefix))


def _is_missing(value: object) -> bool:
    """Return whether a statistic is missing: None, or an empty record."""
    return value is None or (isinstance(value, (Summary, CollectStats)) and value.is_empty)


def _walk(value: object, path: str) -> Iterator[tuple[str, float]]:
    if _is_missing(value):
        return
    if isinstance(value, Mapping):
        children: Iterable[tuple[str, object]] = value.items()
    elif is_dataclass(value):
        children = [(item.name, getattr(value, item.name)) for item in fields(value) if item.name not in _NO_NUMBERS]
    else:
        yield path, value  # type: ignore[misc]  # a leaf of a statistics record is a number
        return
    for name, child in children:
        tag = f"{path}/{name}" if path else str(name)
        if isinstance(child, Mapping) or is_dataclass(child):
            yield from _walk(child, tag)
        elif child is not None and not (isinstance(value, Summary) and name == "count"):
            yield tag, child  # type: ignore[misc]  # a leaf of a statistics record is a number


def is_tag(tag: str) -> bool:
    """Return whether `EpochStats` may have a number of this tag."""
    group, *names = tag.split("/")
    if group in ("update", "explore", "buffer", "custom", "system"):
        return len(names) > 0  # named by the policy or the user
    if group in ("train", "test") and names and names[0] in (*_PLAYERS, "processors"):
        return True
    collected = {item.name: item.type is Summary for item in fields(CollectStats) if item.name not in _LISTS}
    if group in ("train", "test") and names and collected.get(names[0]):
        return len(names) == 2 and names[1] in {item.name for item in fields(Summary)}
    known = {"train": collected, "test": collected, "time": {item.name for item in fields(TimeStats)}}
    return len(names) == 1 and names[0] in known.get(group, ())


def _warning_rows(warnings: Mapping[str, RunWarning]) -> list[tuple[str, object]]:
    return [(f"warning: {name}", one.message) for name, one in warnings.items()]


def html_table(title: str, rows: Iterable[tuple[str, object]]) -> str:
    """Render name and value pairs as a small table for notebooks."""

    def cell(value: object) -> str:
        return html.escape(f"{value:.5g}" if isinstance(value, float) else str(value))

    body = "".join(f"<tr><td>{html.escape(name)}</td><td>{cell(value)}</td></tr>" for name, value in rows)
    return f"<table><caption>{html.escape(title)}</caption>{body}</table>"
