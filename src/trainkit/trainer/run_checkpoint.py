"""Checkpoints of a run: what they hold, how they are written, and how a run resumes from one."""

import functools
import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainkit.core import checkpoint as checkpoints
from trainkit.core.config import has_address
from trainkit.core.errors import CheckpointError, Checks
from trainkit.core.files import decoding
from trainkit.core.protocols import Component, Trainee
from trainkit.core.stats import RunInfo
from trainkit.core.versions import versions
from trainkit.policy.persistence import about_policy
from trainkit.trainer.run_record import repository

_log = logging.getLogger(__name__)

_IDENTITY = (
    "trainer",
    "policy",
    "buffer",
    "env",
    "n_envs",
    "n_ranks",
)  # settings a checkpoint must share with the resumed run
_UNCOMPARED = (*_IDENTITY, "seed", "max_epoch")  # compared elsewhere, or free to differ
_PROGRESS = (
    *("epoch", "env_step", "gradient_step", "n_episode", "best_score", "best_epoch", "best_env_step"),
    *("seconds", "stop_reason", "run_dir"),
)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A checkpoint that was loaded.

    Attributes:
        folder: of it.
        lacks_buffer: whether it has no buffer.
        keeps_progress: whether "trainer" was left out, so that the run continues its own epochs.
        logs: the folders its loggers wrote to.
    """

    folder: Path
    lacks_buffer: bool
    keeps_progress: bool
    logs: list[str | None]


class RunCheckpoint:
    """What a checkpoint of a run holds.

    Args:
        components: {name: (function that returns its state, function that restores it)}, restored in this order.
        about: describes the run, see `about_run`.
    """

    def __init__(self, components: Mapping[str, Component], about: Mapping[str, Any]) -> None:
        self._components, self.about = components, about

    def write(self, path: str | Path, include: Collection[str] | None, exclude: Collection[str]) -> Path:
        """Write the chosen components into a folder, completely or not at all."""
        states = {name: self._components[name][0]() for name in self._chosen("save", include, exclude)}
        return checkpoints.save_checkpoint(path, states, self.about)

    def read(
        self, path: str | Path, include: Collection[str] | None, exclude: Collection[str], *, keeps_buffer: bool
    ) -> Loaded:
        """Restore the chosen components from a folder, and warn once about all differences from the saved run.

        Args:
            path: of the checkpoint, or of a folder of several or of a run: then the newest.
            include: the components to restore; None is all.
            exclude: those to leave out.
            keeps_buffer: whether the run's own checkpoints have a buffer.

        Raises:
            CheckpointError: it is damaged, or of another kind of run.
        """
        folder = checkpoints.newest(path)
        names = self._chosen("load", include, exclude)
        manifest = checkpoints.read_manifest(folder)
        remedy = "take an older checkpoint, or make the run as it was"
        with decoding(folder, "a checkpoint of this run", remedy=remedy):
            _check_same_run(folder, manifest, self.about)
        with checkpoints.open_checkpoint(folder, names, lazy=("buffer",)) as states:
            missing = [name for name in names if name not in states]
            if missing and missing != ["buffer"]:
                raise CheckpointError(
                    f"{folder} was saved without {', '.join(missing)}: load it with exclude={missing}"
                )
            if missing:
                _log.warning("%s was saved without its buffer: the run continues with none of the rows it had", folder)
            elif "buffer" in states and not keeps_buffer:
                _log.warning("%s has a buffer, which is restored; this run's own checkpoints leave it out", folder)
            with decoding(folder, "a checkpoint of this run", remedy=remedy):
                _warn_of_changes(folder, manifest, self.about)
                for name, (_, restore) in self._components.items():
                    if name in states:
                        restore(states[name])
        _warn_of_machine(folder, manifest, self.about)
        return Loaded(folder, bool(missing), "trainer" not in names, manifest.get("logs", []))

    def _chosen(self, verb: str, include: Collection[str] | None, exclude: Collection[str]) -> list[str]:
        with Checks(f"Trainer.{verb}") as checks:
            for option, names in (("include", include or ()), ("exclude", exclude)):
                is_listed = not isinstance(names, str)
                checks.require(is_listed, f".{option} must be a list of names, got {names!r}: give [{names!r}]")
                for name in names if is_listed else ():
                    checks.one_of(option, name, self._components)

        def is_named(component: str, names: Collection[str]) -> bool:
            """Return whether names have a component, or what it is a part of: "policy" has "policy/main"."""
            return component in names or component.partition("/")[0] in names

        return [
            name
            for name in self._components
            if (include is None or is_named(name, include)) and not is_named(name, exclude)
        ]


def about_run(
    policy: Trainee,
    settings: Mapping[str, Any],
    info: RunInfo,
    envs: Mapping[str, Any],
    evaluation: Mapping[str, Any],
    logs: Sequence[str | None],
    threads: int | None,
) -> dict[str, Any]:
    """Describe in plain values what a run learns, its settings, its machine and its progress."""
    about = {
        **about_policy(policy),
        "settings": settings,
        "logs": logs,
        "machine": _about_machine(policy, threads),
        "git": _repository_at(str(Path.cwd())),
        "envs": envs,
        "evaluation": evaluation,
        "progress": {name: getattr(info, name) for name in _PROGRESS},
    }
    plain: dict[str, Any] = json.loads(json.dumps(about, default=str))  # as it is read from a file
    return plain


@functools.cache
def _repository_at(folder: str) -> dict[str, Any]:
    """Return what `repository` does in a folder, as it was at this process's first checkpoint there."""
    return repository()


def _about_machine(policy: Trainee, threads: int | None) -> dict[str, Any]:
    """Describe what determines the bits of a run in addition to its settings."""
    device, engine = getattr(policy, "device", None), getattr(policy, "engine", None)
    return {
        "threads": threads,
        "device": None if device is None else str(device),
        "engine": None if engine is None else engine.wanted,
        **checkpoints.processor(),
    }


def newest_intact(folder: Path) -> Path | None:
    """Return the newest undamaged checkpoint in a folder, None if there is no checkpoint.

    Raises:
        CheckpointError: all are damaged.
    """
    found = checkpoints.checkpoints_in(folder)
    for path in found:
        problem = checkpoints.damage(path)
        if problem is None:
            return path
        _log.warning("%s; trying the one before", problem)
    if found:
        raise CheckpointError(f"no checkpoint in {folder} is intact: remove them to start from the beginning")
    _log.info("%s holds no checkpoint: the run starts from the beginning", folder)
    return None


def _check_same_run(folder: Path, manifest: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raise a `CheckpointError` that lists all differences if the checkpoint is of another kind of run."""
    if "trainer" not in manifest.get("settings", {}):
        raise CheckpointError(
            f"{folder} has a policy alone, no run: give load_policy({str(folder)!r}) to a new trainer, or name a "
            "checkpoint of checkpoint= or trainer.save"
        )
    saved, here = ({**dict.fromkeys(_IDENTITY), **about.get("settings", {})} for about in (manifest, own))
    pairs = [(name, saved[name], here[name]) for name in _IDENTITY]
    pairs += [(name, manifest.get("spaces", {}).get(name), own["spaces"][name]) for name in own["spaces"]]
    problems = [
        f"{folder} was saved with {name} {before!r}, this run has {now!r}: make it as it was"
        for name, before, now in pairs
        if before != now
    ]
    if problems:
        raise CheckpointError("\n".join(problems))


def _warn_of_changes(folder: Path, manifest: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Warn once about all settings that differ, and once about other versions."""
    changed = [
        f"{package} {before} -> {now}"
        for package, now in versions().items()
        if (before := manifest.get("versions", {}).get(package)) != now
    ]
    if changed:
        _log.warning("%s was saved by other versions, the bits may differ: %s", folder, ", ".join(changed))
    saved, here = _all_settings(manifest), _all_settings(own)
    changes = []
    for name in sorted(saved | here):
        if name not in _UNCOMPARED and saved.get(name) != here.get(name):
            before, now = _differing(saved.get(name), here.get(name))
            changes.append(f"{name} {_as_code(before)} -> {_as_code(now)}")
    changes += [f"{name} of the environments {change}" for name, change in _changed(manifest, own, "envs")]
    if changes:
        _log.warning("the run continues from %s with other settings: %s", folder, ", ".join(changes))


def _all_settings(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run, and those of its policy by "policy.name", a part of a user's as code."""
    of_policy: dict[str, Any] = {}
    if about["policy"] is not None:
        of_policy = {name: {"code": text} for name, text in about["policy"]["unknown"].items() if not has_address(text)}
        of_policy |= about["policy"]["arguments"]
    return {**about["settings"], **{f"policy.{name}": value for name, value in of_policy.items()}}


def _warn_of_machine(folder: Path, manifest: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Warn if sums may be computed in another order: on a machine other than the saved run's, or on a GPU."""
    changes = [f"{name} {change}" for name, change in _changed(manifest, own, "machine")]
    if changes:
        _log.warning("%s was saved by a run on another machine, the bits may differ: %s", folder, ", ".join(changes))
    device = own["machine"]["device"]
    if device is not None and not checkpoints.is_deterministic(device):
        _log.warning(
            "the run resumed from %s may not continue with the same bits: on %s kernels may add up in another order; "
            "torch.use_deterministic_algorithms(True), called first, permits deterministic kernels only",
            *(folder, device),
        )


def _changed(manifest: Mapping[str, Any], own: Mapping[str, Any], part: str) -> list[tuple[str, str]]:
    """List (name, "before -> now") of all differences; an unknown entry of a machine counts as equal."""
    saved, here = manifest.get(part), own[part]
    if not isinstance(saved, dict):
        return []
    pairs = [(name, saved.get(name), here.get(name)) for name in sorted(saved.keys() | here.keys())]
    unknown = (None,) if part == "machine" else ()
    return [
        (name, f"{before!r} -> {now!r}")
        for name, before, now in pairs
        if before != now and not (before in unknown or now in unknown)
    ]


def _differing(before: Any, now: Any) -> tuple[Any, Any]:
    """Return two settings to show; for two parts of the same kind, only the arguments that differ."""
    if not (_is_part(before) and _is_part(now) and before["part"] == now["part"]):
        return before, now
    left: tuple[dict[str, Any], dict[str, Any]] = {}, {}
    for name in before["of"] | now["of"]:
        pair = [part["of"].get(name) for part in (before, now)]
        if pair[0] != pair[1]:
            left[0][name], left[1][name] = _differing(*pair)
    return {"part": before["part"], "of": left[0]}, {"part": now["part"], "of": left[1]}


def _as_code(plain: Any) -> str:
    """Format a setting as Python code, a part with its arguments."""
    if isinstance(plain, dict) and plain.keys() == {"code"}:
        return str(plain["code"])
    if isinstance(plain, list):
        return f"[{', '.join(map(_as_code, plain))}]"
    if not _is_part(plain):
        return repr(plain)
    arguments = [f"{name}={_as_code(value)}" for name, value in plain["of"].items()]
    return f"{plain['part']}({', '.join(arguments)})"


def _is_part(plain: Any) -> bool:
    return isinstance(plain, dict) and plain.keys() >= {"part", "of"}
