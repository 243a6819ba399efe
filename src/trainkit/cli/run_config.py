"""Configs of runs: given on the command line, written to config.json, read again, and the trainers made from them.

A run folder may be of unknown origin. Its files are data: no class path in them is called and no module that they name
is imported. An environment is made from a file only by an id that is registered already, with plain values.
"""

import ast
import platform
import re
import shlex
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from trainkit.cli.output import print_note
from trainkit.core import files
from trainkit.core.config import from_plain, from_text, short, texts_from_toml
from trainkit.core.errors import Checks, ConfigError
from trainkit.core.names import did_you_mean
from trainkit.core.signatures import mismatch
from trainkit.core.versions import versions
from trainkit.envs.factories import is_registered
from trainkit.loggers.runs import CONFIG, RunFolder, check_config
from trainkit.presets import PRESETS
from trainkit.trainer import Trainer

OWN_OPTIONS = {
    "seed": "--seed",
    "logger": "--logdir",
    "run_name": "--name",
    "checkpoint": "--checkpoint-every",
    "resume_from": "--resume",
}
_LARGEST_CONFIG = 2**20  # bytes of a TOML file
_LARGEST_STACK = 256  # frames, of a file

# Options of make_envs that a run folder may set. The others hold functions, or are the command's own.
_FILE_OPTIONS = (
    *("backend", "stack", "pad", "mask_key", "lives_key", "env_kwargs"),
    *("max_episode_steps", "soft_horizon", "truncate_at_soft_horizon"),
    *("on_error", "max_restarts", "restart_delay_s", "failed_episodes", "faulty", "step_timeout_s", "wait_num"),
)
# Parameters of gymnasium.make and make_vec themselves, and names of an EnvSpec's fields that hold code.
_GYMNASIUMS_OWN = (
    *("id", "num_envs", "vectorization_mode", "vector_kwargs", "wrappers", "disable_env_checker"),
    *("entry_point", "vector_entry_point", "additional_wrappers"),
)
_PLAIN_WORD = re.compile(r"[\w +-]{0,200}")  # names no module, no attribute and no path


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Everything needed to repeat a run: the preset, the environment, the seed and the settings.

    Attributes:
        data: of offline presets, files of a dataset.
        shuffle_rows: rows of the data in memory, which are streamed; None loads all.
        settings: those that were given, as strings, as in `--set`.
        complete: every setting of a run to repeat, in plain values, which `settings` override; empty otherwise.
        file: the config.json that `complete` is from.
    """

    preset: str
    env: str | None
    seed: int
    data: str | None = None
    shuffle_rows: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    complete: Mapping[str, Any] = field(default_factory=dict)
    file: str | None = None

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            raise ConfigError(
                f"no preset is called {self.preset!r}{did_you_mean(self.preset, PRESETS)}: see trainkit presets"
            )
        for name, option in OWN_OPTIONS.items():
            if name in self.settings:
                raise ConfigError(f"--set {name} is the command's own: use {option}")
        is_offline = PRESETS[self.preset].learns_from_data
        if is_offline and self.data is None:
            raise ConfigError(f"{self.preset} learns from a dataset: give --data, the path of a dataset or a Minari id")
        if not is_offline and self.data is not None:
            raise ConfigError(f"{self.preset} learns from an environment: leave --data out")
        if not is_offline and self.shuffle_rows is not None:
            raise ConfigError(f"{self.preset} learns from an environment: leave --shuffle-rows out")
        if not is_offline and self.env is None:
            raise ConfigError(f"{self.preset} needs an environment: trainkit train {self.preset} CartPole-v1")

    @classmethod
    def of(cls, run: RunFolder) -> "RunConfig":
        """Return the config of a saved run.

        Raises:
            ConfigError: there is no config.json, or it does not have the fields that `trainkit train` writes.
        """
        if not run.config:
            raise ConfigError(
                f"{run.path} has no config.json: only runs of `trainkit train` can be made again; in Python "
                "tk.evaluate(tk.load_policy(checkpoint), env) plays with any saved policy"
            )
        return cls.of_content(run.path / CONFIG, run.config)

    @classmethod
    def of_content(cls, file: Path, content: Mapping[str, Any]) -> "RunConfig":
        """Return the config in a config.json with this content, whose fields have the right types."""
        names = ("preset", "env", "seed", "data", "settings")
        values = {name: content[name] for name in (*names, "shuffle_rows") if name in content}
        with Checks(str(file)) as checks:
            for item in fields(cls):
                if item.name not in names:
                    continue
                is_there = item.name in values
                if checks.require(is_there, f" has no {item.name!r}: it was not written by `trainkit train`"):
                    problem = mismatch(values[item.name], item.type)
                    checks.require(problem is None, f".{item.name} {problem}")
            checks.done()
            is_text = all(isinstance(text, str) for text in values["settings"].values())
            checks.require(is_text, ".settings must be texts")
        return cls(**values, complete=content.get("complete", {}), file=str(file))

    @property
    def command(self) -> str:
        """The shell command that repeats the run."""
        words = ["trainkit", "train", self.preset, *([self.env] if self.env else []), "--seed", str(self.seed)]
        words += ["--data", self.data] if self.data else []
        words += [] if self.shuffle_rows is None else ["--shuffle-rows", str(self.shuffle_rows)]
        words += ["--config", self.file] if self.file else []
        for name, text in self.settings.items():
            words += ["--set", f"{name}={text}"]
        return shlex.join(words)

    def given(self) -> dict[str, Any]:
        """Return the values of all settings.

        Raises:
            ConfigError: a file names what no setting can be.
        """
        given: dict[str, Any] = {}
        for name, plain in self.complete.items():
            with files.decoding(f"{self.file}: {name}", "a setting", remedy="correct it", error=ConfigError):
                given[name] = from_plain(plain)
        return with_items(given, {name: from_text(text) for name, text in self.settings.items()})

    def trainer(self, **options: Any) -> Trainer:
        """Make the trainer; `options` are those outside the config, such as the logger and what to resume."""
        preset = PRESETS[self.preset]
        try:
            data = [] if self.data is None else [preset.load_data(self.data, self.shuffle_rows)]
            made: Trainer = preset(*data, self.env, seed=self.seed, **{**self.given(), **options})
        except (MemoryError, OverflowError) as error:
            raise ConfigError(f"{self.preset} needs more memory than there is ({error}): lower a setting") from error
        return made

    def to_plain(self, trainer: Trainer) -> dict[str, Any]:
        """Return the content of config.json: how this trainer was made, the command, the versions and the time."""
        began = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        given = {name: getattr(self, name) for name in ("preset", "env", "seed", "data")}
        given |= {} if self.shuffle_rows is None else {"shuffle_rows": self.shuffle_rows}
        made = {} if trainer.config is None else dict(trainer.config)
        return {
            **given,
            "settings": dict(self.settings),
            "complete": made.get("arguments", {}),
            "command": self.command,
            "versions": {"python": platform.python_version(), **versions()},
            "began": began,
        }


def read_config(file: Path, *, env: str | None) -> RunConfig:
    """Return the config in the config.json of a run.

    Args:
        file: may be of unknown origin.
        env: the environment from the command line, instead of the file's.

    Raises:
        ConfigError: it is damaged, or names an environment that is not registered.
    """
    content = files.read_json(file, error=ConfigError)
    check_config(file, content)
    config = RunConfig.of_content(file, content)
    values = config.given()
    check_env_options(values.get("env_options", {}), f"{file}: env_options")
    again = values.get("test_env")
    for name in (config.env if env is None else env, again):
        if name is not None and name != env and not (isinstance(name, str) and is_registered(name)):
            remedy = "if you trust it, name the environment yourself: trainkit train PRESET ENV --config FILE"
            raise ConfigError(
                f"{file} names the environment {short(name)}, which is not an id in Gymnasium's registry; code that a "
                f"file names is never imported or called: {remedy}"
            )
    if not config.complete:
        print_note(f"{file} has only the settings that were given: the others have the defaults of this version")
    elif changed := {name: now for name, now in versions().items() if content.get("versions", {}).get(name) != now}:
        print_note(f"{file} was written with other versions, the bits may differ: {_changes(content, changed)}")
    return config if env is None else replace(config, env=env)


def _changes(content: Mapping[str, Any], now: Mapping[str, str | None]) -> str:
    return ", ".join(
        f"{name} {short(content.get('versions', {}).get(name))} -> {version}" for name, version in now.items()
    )


def with_items(given: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings, and others in place of some; "group.item" is one of a dict, whose others stay.

    Raises:
        ConfigError: the group is no dict.
    """
    result = dict(given)
    for name, value in sorted(settings.items(), key=lambda own: own[0].count(".")):  # a group before its items
        group, dot, item = name.partition(".")
        inner = result.get(group, {})
        if dot and not isinstance(inner, Mapping):
            raise ConfigError(f"{name} is of a dict, and {group} is {short(inner)}: give {group} as a dict")
        result[group] = with_items(inner, {item: value}) if dot else value
    return result


def read_settings(file: Path | None, words: Sequence[str]) -> dict[str, str]:
    """Return the settings of a TOML file as strings, overridden by `name=value` arguments."""
    settings: dict[str, str] = {}
    if file is not None:
        text = files.read_text(file, max_bytes=_LARGEST_CONFIG, error=ConfigError)
        with files.decoding(file, "TOML", remedy="correct it", error=ConfigError):
            values = tomllib.loads(text)
            if files.is_deeper(values, files.MAX_DEPTH):
                raise ValueError(f"nested deeper than {files.MAX_DEPTH} levels")
        settings |= texts_from_toml(values)
    for word in words:
        name, equals, text = word.partition("=")
        if not (equals and all(part.isidentifier() for part in name.split("."))):
            raise ConfigError(f"--set needs name=value, or group.item=value, got {word!r}")
        settings[name] = text
    return settings


def saved_env(config: RunConfig, where: Path) -> str:
    """Return the environment of a run folder, which must be an id that is registered already.

    Raises:
        ConfigError: the file names a class or a module, or an unknown id: only the command line may.
    """
    env = config.env
    if env is None:
        raise ConfigError(f"{where} was trained without an environment: give --env")
    if not is_registered(env):
        raise ConfigError(
            f"{where / CONFIG} names the environment {short(env)}, which is not an id in Gymnasium's registry; code "
            "that a file names is never imported or called: if you trust it, give the environment yourself with --env"
        )
    return env


def saved_env_options(config: RunConfig, where: Path, *, env_kwargs: dict[str, Any] | None) -> dict[str, Any]:
    """Return the options of make_envs that a run was evaluated with.

    Args:
        config: of the run.
        where: its folder, for messages.
        env_kwargs: from the command line, instead of those in the run folder.

    Raises:
        ConfigError: the file has more than plain values.
    """
    preset = PRESETS[config.preset]
    options: dict[str, Any] = dict(preset.settings(preset.domain_of_id(config.env)).get("env_options", {}))
    given = config.given()
    if "env_options" in given:
        options = given["env_options"]
        if not isinstance(options, dict):
            raise ConfigError(f"{where / CONFIG}: env_options must be a dict, got {short(options)}")
        if env_kwargs is not None:
            options = {name: value for name, value in options.items() if name != "env_kwargs"}
        check_env_options(options, f"{where / CONFIG}: env_options")
    if env_kwargs is not None:
        options["env_kwargs"] = env_kwargs
    return dict(preset.wrapped(options))


def parse_dict(option: str, text: str) -> dict[str, Any]:
    """Parse a dict that is written as a Python literal on the command line."""
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        value = None
    if not (isinstance(value, dict) and all(isinstance(name, str) for name in value)):
        raise ConfigError(f"{option} must be a dict as Python writes it, got {short(text)}")
    return value


def check_env_options(options: Mapping[Any, Any], subject: str) -> None:
    """Reject options of make_envs in a file that are not plain data."""
    with Checks(subject) as checks:
        checks.require(isinstance(options, Mapping), f" must be a dict, got {short(options)}")
        checks.done()
        for name in options:
            checks.require(
                name in _FILE_OPTIONS, f" may not set {short(name)} from a file; allowed: {[*_FILE_OPTIONS]}"
            )
        stack = options.get("stack", 1)
        fits = isinstance(stack, int) and 1 <= stack <= _LARGEST_STACK
        checks.require(fits, f".stack must be an integer in [1, {_LARGEST_STACK}], got {short(stack)}")
        kwargs = options.get("env_kwargs", {})
        if checks.require(isinstance(kwargs, dict), f".env_kwargs must be a dict, got {short(kwargs)}"):
            remedy = "if you trust it, give --env-kwargs on the command line"
            for name, value in kwargs.items():
                own = name in _GYMNASIUMS_OWN or (name == "render_mode" and value == "human")
                checks.require(not own, f".env_kwargs may not set {short(name)} from a file: {remedy}")
                plain = _is_plain(name) and _is_plain(value)
                checks.require(
                    plain,
                    f".env_kwargs[{short(name)}] must be numbers or plain words, which name no module and no path, got "
                    f"{short(value)}: {remedy}",
                )


def _is_plain(value: object) -> bool:
    """Return whether a value is a number, a plain string, or a collection of these."""
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_plain(name) and _is_plain(child) for name, child in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, str):
        return _PLAIN_WORD.fullmatch(value) is not None
    return value is None or isinstance(value, (bool, int, float))
