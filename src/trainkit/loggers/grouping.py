"""Groups of runs that differ only in seed and task, with short labels of what differs between the groups."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from trainkit.core.config import from_plain, from_text, to_shell
from trainkit.core.errors import ConfigError
from trainkit.core.files import decoding
from trainkit.loggers.runs import NUMBERS, RunFolder

_MOST = 3  # settings in a label, if fewer do not distinguish the groups
_LONGEST_VALUE, _LONGEST_MAKER = 18, 32  # characters
_UNKNOWN = ""  # text of a setting that is not known

Settings = dict[str, str]  # {name: text}


def grouped(runs: Sequence[RunFolder]) -> dict[str, list[RunFolder]]:
    """Group runs that differ only in seed and task.

    The label has the preset, if there are several, and the settings that differ between its runs. Of more than three
    it has enough to distinguish the groups, and the number of the others: "lr=0.001 +2". Long values are shortened.
    A setting that a run was not given has the value of its preset's table, if the run's config.json has it; else it is
    left out. Runs that the shell did not make are distinguished by their folders: `mine/seed1` and `mine/seed2` are of
    `mine`.
    """
    given: dict[str, set[str]] = {}  # {preset or folder: names of settings that any of its runs was given}
    for run in runs:
        given.setdefault(_maker(run), set()).update(run.config.get("settings", {}))
    groups: dict[str, list[tuple[Settings, list[RunFolder]]]] = {}  # {preset or folder: settings of its groups}
    for run in runs:
        settings = _effective(run, given[_maker(run)])
        own = groups.setdefault(_maker(run), [])
        same = next((members for theirs, members in own if theirs == settings), None)
        if same is None:
            own.append((settings, [run]))
        else:
            same.append(run)
    makers = dict(zip(groups, _shortened([*groups], _LONGEST_MAKER), strict=True))
    labelled: dict[str, list[RunFolder]] = {}
    for maker, own in groups.items():
        for words, (_, members) in zip(_differences([settings for settings, _ in own]), own, strict=True):
            shown = [] if len(groups) == 1 and words else [makers[maker]]
            labelled[" ".join([*shown, *words])] = members
    return labelled


def newest_of_each_seed(
    groups: Mapping[str, Sequence[RunFolder]], note: Callable[[str], object]
) -> dict[str, list[RunFolder]]:
    """Return {label: runs} with only the newest run of each task and seed: repeating a seed is no new sample.

    Runs without a known seed all count. `note` is called with a line about those that are left out.
    """
    chosen: dict[str, list[RunFolder]] = {}
    for label, own in groups.items():
        newest: dict[object, RunFolder] = {}
        for run in sorted(own, key=_last_started):
            newest[run.path if run.seed is None else (run.task, run.seed)] = run
        chosen[label] = [run for run in own if run in newest.values()]
        if old := [str(run.path) for run in own if run not in newest.values()]:
            note(f"{label}: a seed counts once, by its newest run; skipped: {', '.join(old)}")
    return chosen


def _last_started(run: RunFolder) -> tuple[float, float]:
    """Return the times, in seconds, at which a run last started or resumed and at which it last logged."""
    logged = (run.path / NUMBERS).stat().st_mtime
    try:
        return datetime.fromisoformat(run.config["began"]).timestamp(), logged
    except (KeyError, TypeError, ValueError, OverflowError, OSError):  # not made by the shell
        return logged, logged


def _differences(groups: Sequence[Settings]) -> list[list[str]]:
    """Return the words `name=value` that distinguish each group from the others."""
    names = sorted({name for settings in groups for name in settings})
    texts = {name: [settings.get(name, _UNKNOWN) for settings in groups] for name in names}
    apart = {name: own for name, own in texts.items() if len({*own}) > 1}
    chosen = [*apart] if len(apart) <= _MOST else _distinguishing(apart)
    columns = [
        [text and f"{_last(name, chosen)}={text}" for text in _shortened(apart[name], _LONGEST_VALUE)]
        for name in chosen
    ]
    if len(chosen) < len(apart):
        columns.append([f"+{len(apart) - len(chosen)}"] * len(groups))
    return (
        [[word for word in words if word] for words in zip(*columns, strict=True)] if columns else [[] for _ in groups]
    )


def _distinguishing(apart: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a few of the settings that together distinguish all groups; of equally good ones the shortest."""
    chosen: list[str] = []
    n_groups = len({*zip(*apart.values(), strict=True)})

    def n_distinct(name: str) -> int:
        return len({*zip(*(apart[one] for one in (*chosen, name)), strict=True)})

    while not chosen or n_distinct(chosen[-1]) < n_groups:
        left = [name for name in apart if name not in chosen]
        chosen.append(max(left, key=lambda name: (n_distinct(name), -max(map(len, apart[name])))))
    return chosen


def _effective(run: RunFolder, names: set[str]) -> Settings:
    """Return the texts of settings: as the run was given them, else as its preset's table had them."""
    settings, table = run.config.get("settings", {}), run.config.get("complete", {})
    left: dict[str, Any] = {}
    for name in table.keys() & names - settings.keys():
        with suppress(ConfigError), decoding(run.path, "a setting", error=ConfigError):
            left[name] = from_plain(table[name])
    return dict(_flat({**left, **settings}))


def _flat(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each setting with its text, those in dicts by dotted names."""
    for name, value in settings.items():
        parsed = from_text(value) if isinstance(value, str) else value
        if isinstance(parsed, Mapping) and parsed:
            yield from _flat({f"{name}.{key}": child for key, child in parsed.items()})
        else:
            text = to_shell(parsed)
            yield name, re.sub(r"[\s()\[\]]|,\)$", "", text) if isinstance(parsed, (tuple, list)) else text


def _last(name: str, names: Sequence[str]) -> str:
    """Return the last part of a dotted name, or all of it if that is ambiguous."""
    last = name.rpartition(".")[2]
    return name if sum(one.rpartition(".")[2] == last for one in names) > 1 else last


def _shortened(texts: Sequence[str], length: int) -> list[str]:
    """Shorten texts in the middle to `length` characters, or more if different texts would become the same."""
    short = [text if len(text) <= length else f"{text[: length - 8]}..{text[-6:]}" for text in texts]
    return short if len({*short}) == len({*texts}) else _shortened(texts, 2 * length)


def _maker(run: RunFolder) -> str:
    """Return the preset of a run, else the name of its folder, or of the folder above a seed's."""
    path = run.path.resolve()
    return str(
        run.config.get("preset") or (path.parent.name if re.fullmatch(r"seed_?\d+(_\d+)?", path.name) else path.name)
    )
