"""From words to a trainer: settings as text, how a run was made as a record, and the trainer made of it again."""

import ast
import shlex
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from trainkit.buffer import load_dataset
from trainkit.errors import ConfigError, nearest
from trainkit.presets import PRESETS, OfflinePreset
from trainkit.runs import RunFolder
from trainkit.schedules import Linear
from trainkit.trainer import Trainer

_OURS = {"seed": "--seed", "logger": "--logdir", "checkpoint": "--checkpoint-every", "resume_from": "--resume"}
_WORDS: dict[str, Any] = {"true": True, "false": False, "none": None, "null": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a run is made: all that repeats it. Settings are texts, as in `--set`."""

    preset: str
    env: str | None
    seed: int
    data: str | None = None  # of offline presets: files of a dataset
    settings: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            raise ConfigError(
                f"no preset is called {self.preset!r}{nearest(self.preset, PRESETS)}: see trainkit presets"
            )
        for name, option in _OURS.items():
            if name in self.settings:
                raise ConfigError(f"--set {name} is the command's own: use {option}")
        is_offline = isinstance(PRESETS[self.preset], OfflinePreset)
        if is_offline and self.data is None:
            raise ConfigError(f"{self.preset} learns from a dataset: give --data, files that DatasetWriter wrote")
        if not is_offline and self.data is not None:
            raise ConfigError(f"{self.preset} learns from an environment: leave --data out")
        if not is_offline and self.env is None:
            raise ConfigError(f"{self.preset} needs an environment: trainkit train {self.preset} CartPole-v1")

    @classmethod
    def of(cls, run: RunFolder) -> "Recipe":
        """Read how a run was made."""
        if not run.config:
            raise ConfigError(f"{run.path} has no config.json: only runs of `trainkit train` can be made again")
        try:
            return cls(**{name: run.config[name] for name in cls.__dataclass_fields__})
        except (KeyError, TypeError) as error:
            raise ConfigError(f"{run.path}/config.json is not what `trainkit train` wrote: {error!r}") from error

    @property
    def command(self) -> str:
        """The shell's line that repeats the run."""
        words = ["trainkit", "train", self.preset, *([self.env] if self.env else []), "--seed", str(self.seed)]
        words += ["--data", self.data] if self.data else []
        for name, text in self.settings.items():
            words += ["--set", f"{name}={text}"]
        return shlex.join(words)

    @property
    def values(self) -> dict[str, Any]:
        """The settings, read."""
        return {name: value_of(text) for name, text in self.settings.items()}

    def trainer(self, **options: Any) -> Trainer:
        """Make the trainer; `options` are those that a recipe does not name: where to write, what to go on from."""
        preset, overrides = PRESETS[self.preset], {**self.values, **options}
        made: Trainer
        if isinstance(preset, OfflinePreset):
            assert self.data is not None, "refused without"
            made = preset(load_dataset(self.data), self.env, seed=self.seed, **overrides)
        else:
            made = preset(self.env, seed=self.seed, **overrides)
        return made

    def to_plain(self) -> dict[str, Any]:
        """Describe it for config.json, with the command, the versions and the time."""
        versions = {name: _version(name) for name in ("trainkit", "torch", "gymnasium", "numpy")}
        began = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        return {**asdict(self), "command": self.command, "versions": versions, "began": began}


def settings_of(file: Path | None, words: Sequence[str]) -> dict[str, str]:
    """Return the settings of a TOML file and of `name=value` words, which count more, as texts."""
    settings: dict[str, str] = {}
    if file is not None:
        try:
            told = tomllib.loads(file.read_text())
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{file} is no TOML: {error}") from error
        settings |= {name: value if isinstance(value, str) else repr(value) for name, value in told.items()}
    for word in words:
        name, equals, text = word.partition("=")
        if not (equals and name.isidentifier()):
            raise ConfigError(f"--set needs name=value, got {word!r}")
        settings[name] = text
    return settings


def value_of(text: str) -> Any:
    """Read a setting: a Python literal, true, false or none, Linear(start, end, share), or else a word."""
    word = text.strip()
    if word.lower() in _WORDS:
        return _WORDS[word.lower()]
    try:
        tree = ast.parse(word, mode="eval").body
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == "Linear":
            return Linear(*map(ast.literal_eval, tree.args))
        return ast.literal_eval(tree)
    except (SyntaxError, ValueError, TypeError):
        return word


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
