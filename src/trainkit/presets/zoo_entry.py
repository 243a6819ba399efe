"""An entry of the zoo: the settings of one preset for one environment, their source, and the result on fresh seeds.

An entry is the file `presets/zoo/PRESET/ENV.toml`, or `zoo/PRESET/ENV.toml` of the extension that has the preset:

    source = "rl-zoo, CartPole-v1"        # where the numbers come from, and what was changed
    source_result = 500.0                 # the mean return that the source reports, where it does
    tuning_seeds = [11, 12]               # the seeds that the settings were chosen on: never those of the result
    episodes = 100                        # greedy episodes per seed
    policy = "last"                       # or "best": the one with the best evaluation during training

    [settings]                            # as in `--config` files; every setting that matters to learning
    gamma = 0.98
    beta = "Linear(0.4, 1.0)"

    [on_accelerator]                      # what differs where the policy is on a GPU; the result is without it
    n_envs = 32

    [result]                              # written by `trainkit zoo train`
"""

import datetime
import hashlib
import re
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from trainkit.core import files
from trainkit.core.config import from_toml, to_text
from trainkit.core.errors import Checks, ConfigError
from trainkit.core.extensions import table
from trainkit.core.names import did_you_mean
from trainkit.core.signatures import mismatch
from trainkit.engine.device import is_accelerator

ZOO = Path(__file__).parent / "zoo"  # trainkit's own, to which the folders `zoo` of extensions belong, too

# The form of Gymnasium's ids, without "module:": no path leaves the folder.
_ID = re.compile(r"(?:[\w-]+/)?[\w-][\w.-]*")


@dataclass(frozen=True, kw_only=True)
class ZooResult:
    """What an entry's settings reached on seeds that they were not chosen on.

    Attributes:
        seeds: of the runs; none of the tuning seeds.
        returns: the mean return of each seed's episodes.
        mean: over the seeds.
        low: lower end of the mean's 95 % interval.
        high: its upper end.
        random: the mean return of random actions.
        steps: environment steps of each run.
        seconds: the median wall time of a run, with its evaluations.
        settings: `ZooEntry.digest` of the settings that were used.
        commit: of trainkit.
        command: what repeats it.
        date: when it was finished.
        curve: (step, mean return of the evaluations of all seeds) during training.
        weights_seed: the seed whose policy is shipped; None where there is none.
        weights_return: the mean return of the shipped policy, which is saved in half precision.
    """

    seeds: tuple[int, ...]
    returns: tuple[float, ...]
    mean: float
    low: float
    high: float
    random: float
    steps: int
    seconds: float
    settings: str
    commit: str
    command: str
    date: datetime.date
    curve: tuple[tuple[int, float], ...] = ()
    weights_seed: int | None = None
    weights_return: float | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class ZooEntry:
    """The settings of one preset for one environment; the fields are those of the file.

    Attributes:
        preset: the preset's name.
        env: the environment's id.
        source: of the settings.
        settings: differ from the preset's general table.
        on_accelerator: settings that differ from these on another device than the CPU.
        source_result: the mean return that the source reports.
        tuning_seeds: on which the settings were chosen.
        episodes: greedy episodes per seed of the result.
        policy: which policy of a run plays them, the last or the one with the best evaluation.
        result: None until `trainkit zoo train` has run with these settings.
    """

    preset: str
    env: str
    source: str
    settings: Mapping[str, Any]
    on_accelerator: Mapping[str, Any] = field(default_factory=dict)
    source_result: float | None = None
    tuning_seeds: tuple[int, ...] = ()
    episodes: int = 100
    policy: Literal["last", "best"] = "last"
    result: ZooResult | None = None
    path: Path

    def __eq__(self, other: object) -> bool:
        """Return whether all but the files are the same; parts are compared by their texts."""
        return isinstance(other, ZooEntry) and repr(replace(self, path=other.path)) == repr(other)

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def name(self) -> str:
        """The preset and the environment, such as "dqn/CartPole-v1"."""
        return f"{self.preset}/{self.env}"

    @property
    def steps(self) -> int:
        """Environment steps of a run."""
        return int(self.settings["max_epoch"]) * int(self.settings["step_per_epoch"])

    def settings_on(self, device: str) -> Mapping[str, Any]:
        """Return the settings for a device, by its name or "auto"."""
        return {**self.settings, **self.on_accelerator} if is_accelerator(device) else self.settings

    @property
    def digest(self) -> str:
        """A short hash of the settings: a result with another one is outdated."""
        texts = sorted((name, to_text(value)) for name, value in self.settings.items())
        return hashlib.sha256(repr(texts).encode()).hexdigest()[:12]

    @property
    def weights(self) -> Path:
        """The folder of the shipped policy, which may not exist."""
        return self.path.with_name(f"{self.path.name.removesuffix('.toml')}.policy")


def folder_flag(folder: Path) -> str:
    """Return what names a zoo's folder on a command line, with a space before; trainkit's own needs no name."""
    return "" if folder == ZOO else f" --folder {shlex.quote(str(folder))}"


def root_of(preset: str, folder: Path = ZOO) -> Path:
    """Return the folder that has a preset's entries, PRESET/ENV.toml: of trainkit's own, maybe an extension's `zoo`."""
    added = table("PRESETS").get(preset)
    return folder if folder != ZOO or added is None else added.folder / "zoo"


def find_entry(preset: str, env: object, folder: Path = ZOO) -> ZooEntry | None:
    """Return the entry of a preset for exactly this id, None where there is none."""
    if not isinstance(env, str) or not _ID.fullmatch(env):
        return None
    root = root_of(preset, folder)
    path = root / preset / f"{env}.toml"
    return read_entry(path, root) if path.is_file() else None


def all_entries(folder: Path = ZOO) -> list[ZooEntry]:
    """Return every entry of the zoo, ordered by environment and preset."""
    roots = {folder, *(root_of(preset, folder) for preset in table("PRESETS"))}
    entries = [read_entry(path, root) for root in roots for path in root.glob("*/**/*.toml")]
    return sorted(entries, key=lambda entry: (entry.env, entry.preset))


def read_entry(path: Path, root: Path) -> ZooEntry:
    """Read the file of an entry below a root, PRESET/ENV.toml; the preset checks its settings.

    Raises:
        ConfigError: it is not TOML, a field is missing, unknown or of another type, or the result contradicts itself.
    """
    with files.decoding(path, "TOML", remedy="correct it", error=ConfigError):
        content: dict[str, Any] = tomllib.loads(files.read_text(path, error=ConfigError))
    preset, _, env = path.relative_to(root).with_suffix("").as_posix().partition("/")
    for name in ("settings", "on_accelerator"):
        if isinstance(settings := content.get(name), dict):
            content[name] = MappingProxyType({key: from_toml(value) for key, value in settings.items()})
    if isinstance(content.get("result"), dict):
        content["result"] = _read_part(ZooResult, content["result"], f"{path}.result")
    entry = _read_part(ZooEntry, content, str(path), preset=preset, env=env, path=path)
    _check(entry)
    return entry


Part = TypeVar("Part", ZooEntry, ZooResult)


def _read_part(kind: type[Part], content: Mapping[str, Any], subject: str, **known: Any) -> Part:
    """Make a dataclass from a table of a TOML file, in which arrays stand for tuples."""
    items = {item.name: item for item in fields(kind) if item.name not in known}
    values = {name: _tuples(value) for name, value in content.items()}
    with Checks(subject) as checks:
        for name, item in items.items():
            is_there = name in values or item.default is not MISSING or item.default_factory is not MISSING
            if checks.require(is_there, f" has no {name!r}: add it") and name in values:
                problem = mismatch(values[name], item.type)
                checks.require(problem is None, f".{name} {problem}")
        for name in values:
            if name not in items:  # else the nearest name would be looked for of each
                checks.require(False, f" has an unknown field {name!r}{did_you_mean(name, items)}: remove or rename it")
    return kind(**known, **values)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _check(entry: ZooEntry) -> None:
    """Raise `ConfigError` for a result that contradicts the entry or itself."""
    with Checks(str(entry.path)) as checks:
        checks.require(bool(entry.source.strip()), '.source must say where the settings come from, got ""')
        checks.integer("episodes", entry.episodes, low=1)
        for name in ("max_epoch", "step_per_epoch"):
            checks.integer(f"settings.{name}", entry.settings.get(name), low=1)
        if (result := entry.result) is None:
            return
        tuned = sorted({*entry.tuning_seeds} & {*result.seeds})
        checks.require(not tuned, f".result.seeds must not be tuning seeds, got {tuned}: train on others")
        is_whole = len(result.seeds) == len(result.returns) > 0
        checks.require(is_whole, f".result has {len(result.returns)} returns of {len(result.seeds)} seeds")
        is_ordered = result.low <= result.mean <= result.high
        checks.require(is_ordered, f".result.mean {result.mean} is not in [{result.low}, {result.high}]")
        shipped = result.weights_seed
        is_run = shipped is None or shipped in result.seeds
        checks.require(is_run, f".result.weights_seed must be one of {[*result.seeds]}, got {shipped}")
