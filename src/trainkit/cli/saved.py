"""What a command finds at a path: the policy of a run or a checkpoint, and the environments that it was evaluated in.

A run of `trainkit train` says these in its config.json, every other run in the manifest of its checkpoints. Both may be
of unknown origin: see `trainkit.cli.run_config`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainkit.cli.run_config import RunConfig, check_env_options, saved_env, saved_env_options
from trainkit.core.checkpoint import MANIFEST, find_checkpoints, folder_of_checkpoints, newest, read_manifest
from trainkit.core.config import short
from trainkit.core.errors import ConfigError
from trainkit.envs.factories import is_registered
from trainkit.loggers.runs import NUMBERS, RunFolder
from trainkit.presets.base import MAIN, RANDOM

_BEST = "best"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPolicy:
    """A policy in a folder.

    Attributes:
        where: as it was named.
        path: of its checkpoint.
        manifest: of the checkpoint.
        evaluation: the environments, of the manifest; where that has none, of the newest checkpoint of the same run.
        config: of a run of `trainkit train`; None of others.
    """

    where: Path
    path: Path
    manifest: Mapping[str, Any]
    evaluation: Mapping[str, Any]
    config: RunConfig | None

    @classmethod
    def find(cls, where: Path, *, best: bool) -> "SavedPolicy":
        """Return the newest or the best policy of a run, of a folder of checkpoints, or that in a checkpoint.

        Raises:
            ConfigError: there is none.
        """
        is_run = (where / NUMBERS).is_file()
        if not is_run and not find_checkpoints(where):
            RunFolder.read(where)  # which raises
        run = RunFolder.read(where) if is_run else None
        config = RunConfig.of(run) if run is not None and run.config else None
        folder = folder_of_checkpoints(where)
        if best and run is None and (folder / MANIFEST).is_file():
            raise ConfigError(f"--best is of a run, and {where} is one checkpoint or policy: leave it out")
        if best and not (folder / _BEST / MANIFEST).is_file():
            raise ConfigError(f"{where} has no best policy: it needs evaluations and a Checkpoint, leave --best out")
        if run is not None and config is None and not find_checkpoints(where):
            raise ConfigError(f"{where} has the log of a run and no checkpoint{_elsewhere(run)}")
        path = folder / _BEST if best else newest(folder)
        manifests = [read_manifest(one) for one in (path, *find_checkpoints(folder)[:1])]
        evaluation: Mapping[str, Any] = next((own["evaluation"] for own in manifests if own.get("evaluation")), {})
        return cls(where=where, path=path, manifest=manifests[0], evaluation=evaluation, config=config)

    @property
    def names(self) -> list[str]:
        """The names of its policies, where they are several."""
        components = self.manifest["components"]
        return [name.removeprefix("policy/") for name in components if name.startswith("policy/")]

    @property
    def plays_itself(self) -> bool:
        """Whether it learned by self-play, so that there are several policies."""
        return {MAIN, RANDOM} <= {*self.names}

    @property
    def name(self) -> str | None:
        """The name of the policy that learned, where it learned by self-play."""
        return MAIN if self.plays_itself else None

    @property
    def trained(self) -> str:
        """What was trained, and for how long; a policy that was saved without its run does not know that."""
        settings, progress = self.manifest.get("settings", {}), self.manifest.get("progress", {})
        kind = settings.get("policy", "a policy") if self.config is None else self.config.preset
        counts = [progress.get(name) for name in ("env_step", "gradient_step")]
        steps, updates = (count if isinstance(count, int) else 0 for count in counts)
        how_long = f"{steps:,} steps" if steps else f"{updates:,} updates" if progress else "an unknown number of steps"
        return f"{kind} after {how_long}"

    def env(self) -> str:
        """Return the environment that it was evaluated in.

        Raises:
            ConfigError: it is not known, or no id that is registered already.
        """
        if self.config is not None:
            return saved_env(self.config, self.where)
        env, unknown = self.evaluation.get("env"), self.evaluation.get("unknown", [])
        if env is not None and unknown:
            raise ConfigError(
                f"{self.where} was evaluated in {short(env)} with {short(unknown)}, which no file can hold: name "
                f"module.Class of an environment like it with --env, or in Python {self._in_python()}"
            )
        if env is None:
            config = self.manifest.get("policy") or {}
            hint = config.get("env") or self.manifest.get("settings", {}).get("env")
            text = f", such as --env {hint}" if isinstance(hint, str) and is_registered(hint) else ""
            raise ConfigError(
                f"{self.where} does not say in which environment it was evaluated: name its id or module.Class with "
                f"--env{text}, or in Python {self._in_python()}"
            )
        if not isinstance(env, str) or not is_registered(env):
            raise ConfigError(
                f"{self.path / MANIFEST} names the environment {short(env)}, which is not an id in Gymnasium's "
                "registry; code that a file names is never imported or called: if you trust it, give the environment "
                "yourself with --env"
            )
        return env

    def env_options(self, *, env_kwargs: dict[str, Any] | None) -> dict[str, Any]:
        """Return the options of make_envs that it was evaluated with.

        Args:
            env_kwargs: from the command line, instead of those in the file.

        Raises:
            ConfigError: the file has more than plain values.
        """
        if self.config is not None:
            return saved_env_options(self.config, self.where, env_kwargs=env_kwargs)
        options = self.evaluation.get("env_options", {})
        if isinstance(options, dict) and env_kwargs is not None:
            options = {name: value for name, value in options.items() if name != "env_kwargs"}
        check_env_options(options, f"{self.path / MANIFEST}: env_options")
        return {**options} if env_kwargs is None else {**options, "env_kwargs": env_kwargs}

    def _in_python(self) -> str:
        return f"tk.evaluate(tk.load_policy({str(self.where)!r}), env) plays with it"


def _elsewhere(run: RunFolder) -> str:
    """Say where the checkpoints of a run are, as far as its log does."""
    folder = run.settings.get("callbacks/Checkpoint/folder")
    if isinstance(folder, str):
        return f", which it saved to {short(folder)}: name that folder"
    return f": a run saves to the folder that checkpoint= names, such as checkpoint={str(run.path / 'checkpoint')!r}"
