"""What a run tells about itself: frozen records whose attribute path is the tag of a dashboard."""

import html
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np

from trainkit.errors import nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Five numbers about a list that was not empty; an empty list has no summary, it is None."""

    mean: float
    std: float  # population
    min: float
    max: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> "Summary | None":
        """Summarise a list of numbers in float64."""
        numbers = [*values]
        count = len(numbers)
        if count == 0:
            return None
        if count == 1:  # so it is where a collect is one vector step, if an episode ended at all
            one = float(numbers[0])
            return cls(mean=one, std=one - one, min=one, max=one, count=1)  # nan of what is not finite
        array = np.fromiter(numbers, np.float64, count)
        mean = float(np.add.reduce(array)) / count
        apart = array - mean
        variance = float(apart.dot(apart)) / count
        low, high = float(np.minimum.reduce(array)), float(np.maximum.reduce(array))
        return cls(mean=mean, std=math.sqrt(variance), min=low, max=high, count=count)

    @classmethod
    def merge(cls, parts: "Iterable[Summary | None]") -> "Summary | None":
        """Summarise the union of the lists behind several summaries, exactly (Chan et al., 1979)."""
        known = [part for part in parts if part is not None]
        if not known:
            return None
        count = sum(part.count for part in known)
        mean = sum(part.mean * part.count for part in known) / count
        spread = sum(part.count * (part.std**2 + (part.mean - mean) ** 2) for part in known)
        low, high = min(part.min for part in known), max(part.max for part in known)
        return cls(mean=mean, std=math.sqrt(spread / count), min=low, max=high, count=count)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectStats:
    """What a collector did in one `collect`, or in all of an interval.

    Returns and lengths are of episodes *finished* here, over their whole life; None when none finished.
    The four `_ms` are milliseconds per vector step and add up to all of it.
    """

    n_step: int  # rows: real steps, summed over environments
    n_episode: int  # episodes finished
    returns: Summary | None  # undiscounted
    lengths: Summary | None  # steps
    durations: Summary | None  # seconds
    recent_returns: Summary | None  # the last 100 episodes, whenever they finished
    seconds: float
    n_vector_step: int
    n_faulty_episodes: int
    n_env_restarts: int
    env_ms: float | None
    act_ms: float | None
    store_ms: float | None
    other_ms: float | None
    agents: Mapping[str, Summary] = field(default_factory=dict)  # {name: returns}, where several share a game

    def to_plain(self) -> dict[str, Any]:
        """Return it in values that JSON keeps."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "CollectStats":
        """Read what `to_plain` returned."""
        others = {name: one for name, one in plain.items() if name != "agents"}
        read: dict[str, Any] = {name: Summary(**x) if isinstance(x, dict) else x for name, x in others.items()}
        return cls(**read, agents={name: Summary(**one) for name, one in plain["agents"].items()})

    @classmethod
    def merge(cls, parts: "Sequence[CollectStats]") -> "CollectStats | None":
        """Tell several collects as one; None when there were none."""
        if not parts:
            return None
        steps = sum(part.n_vector_step for part in parts)

        def mean_ms(name: str) -> float | None:
            total = sum((getattr(part, name) or 0.0) * part.n_vector_step for part in parts)
            return total / steps if steps else None

        return cls(
            n_step=sum(part.n_step for part in parts),
            n_episode=sum(part.n_episode for part in parts),
            returns=Summary.merge(part.returns for part in parts),
            lengths=Summary.merge(part.lengths for part in parts),
            durations=Summary.merge(part.durations for part in parts),
            recent_returns=parts[-1].recent_returns,
            seconds=sum(part.seconds for part in parts),
            n_vector_step=steps,
            n_faulty_episodes=sum(part.n_faulty_episodes for part in parts),
            n_env_restarts=sum(part.n_env_restarts for part in parts),
            env_ms=mean_ms("env_ms"),
            act_ms=mean_ms("act_ms"),
            store_ms=mean_ms("store_ms"),
            other_ms=mean_ms("other_ms"),
            agents={
                name: summary
                for name in dict.fromkeys(name for part in parts for name in part.agents)
                if (summary := Summary.merge(part.agents.get(name) for part in parts))
            },
        )


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
    priorities: float | None = None  # of the update's share, reading and writing what batches taught


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochStats:
    """One interval of a run. `stats["test/returns/mean"]` reads one number; what did not happen is None."""

    train: CollectStats | None
    test: CollectStats | None
    update: Mapping[str, float] = field(default_factory=dict)  # means over all updates of the interval
    explore: Mapping[str, float] = field(default_factory=dict)
    buffer: Mapping[str, float] = field(default_factory=dict)
    custom: Mapping[str, float] = field(default_factory=dict)  # what `Trainer.log` was told
    time: TimeStats

    def __getitem__(self, tag: str) -> float | None:
        value: Any = self
        names = tag.split("/")
        for position, name in enumerate(names):
            if value is None:
                return None
            if isinstance(value, Mapping):
                rest = "/".join(names[position:])
                if rest in value or name not in value:
                    return value.get(rest)
                value = value[name]
                continue
            known = [item.name for item in fields(value)] if is_dataclass(value) else []
            if name not in known:
                raise KeyError(f"no statistic {tag!r}: {name!r} is not known here{nearest(name, known)}")
            value = getattr(value, name)
        return value  # type: ignore[no-any-return]  # a leaf of a statistics record is a number or None

    def _repr_html_(self) -> str:
        return html_table("epoch", scalars(self).items())


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """Where a run stands."""

    epoch: int
    env_step: int
    gradient_step: int
    n_episode: int
    best_score: float | None
    best_epoch: int | None
    best_env_step: int | None  # offline: updates
    last_test: CollectStats | None
    seconds: float
    stop_reason: str | None  # None while the run goes on
    run_dir: str | None

    def _repr_html_(self) -> str:
        rows = [(item.name, getattr(self, item.name)) for item in fields(self) if item.name != "last_test"]
        return html_table("run", rows)


def scalars(stats: object, prefix: str = "") -> dict[str, float]:
    """Flatten a statistics record to `{tag: number}`; what is None is left out, as is a summary's count."""
    return dict(_walk(stats, prefix))


def _walk(value: object, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        children: Iterable[tuple[str, object]] = value.items()
    elif is_dataclass(value):
        children = [(item.name, getattr(value, item.name)) for item in fields(value)]
    else:
        if value is not None:
            yield path, value  # type: ignore[misc]  # a leaf of a statistics record is a number
        return
    for name, child in children:
        if not (isinstance(value, Summary) and name == "count"):
            yield from _walk(child, f"{path}/{name}" if path else str(name))


def is_tag(tag: str) -> bool:
    """Whether `EpochStats` may have a number by this name."""
    group, *names = tag.split("/")
    if group in ("update", "explore", "buffer", "custom") or (group in ("train", "test") and names[:1] == ["agents"]):
        return len(names) > 0  # whoever trains gives the names
    collected = {item.name: "Summary" in str(item.type) for item in fields(CollectStats)}
    if group in ("train", "test") and names and collected.get(names[0]):
        return len(names) == 2 and names[1] in {item.name for item in fields(Summary)}
    known = {"train": collected, "test": collected, "time": {item.name for item in fields(TimeStats)}}
    return len(names) == 1 and names[0] in known.get(group, ())


def html_table(title: str, rows: Iterable[tuple[str, object]]) -> str:
    """Render name and value pairs as a small table for notebooks."""

    def cell(value: object) -> str:
        return html.escape(f"{value:.5g}" if isinstance(value, float) else str(value))

    body = "".join(f"<tr><td>{html.escape(name)}</td><td>{cell(value)}</td></tr>" for name, value in rows)
    return f"<table><caption>{html.escape(title)}</caption>{body}</table>"
