"""What a run's checkpoint holds, and how a run goes on from one."""

import json
import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trainkit.collector import Collector
from trainkit.core import checkpoint as checkpoints
from trainkit.core.errors import CheckpointError, Checks, ConfigError
from trainkit.core.protocols import Store, Trainee
from trainkit.core.reading import decoding
from trainkit.core.spaces import space_to_plain
from trainkit.loggers.logger import Loggers
from trainkit.trainer.callbacks.base import Hooks
from trainkit.trainer.callbacks.checkpointing import Checkpoint
from trainkit.trainer.intervals import Stopwatch
from trainkit.trainer.judge import Judge
from trainkit.trainer.n_threads import Threads
from trainkit.trainer.options import Options
from trainkit.trainer.reports import Reports

if TYPE_CHECKING:
    from trainkit.trainer.base import Trainer

_log = logging.getLogger(__name__)

_SAME = ("trainer", "policy", "buffer", "env", "n_envs")  # settings a checkpoint must share with who goes on from it
_FREE = (*_SAME, "seed", "max_epoch")  # what may differ, or is told about by itself
_OFF = {"overlap": False}  # what an older checkpoint knows nothing of
_LATER_COUNTERS = ("_n_skipped", "_timed_from", "_epoch_clock", "_epoch_seconds")  # older checkpoints have none
_COUNTERS = ("seed", "epoch", "_origin", "_is_in_epoch", "_seems_solved")
_LIMITS = ("max_epoch", "max_env_step", "max_seconds")
_PROGRESS = (
    *("epoch", "env_step", "gradient_step", "n_episode", "best_score", "best_epoch", "best_env_step"),
    *("seconds", "stop_reason", "run_dir"),
)


class Resumable:
    """What of a trainer is saved, and comes back."""

    policy: Trainee
    train_collector: Collector | None
    buffer: Store
    judge: Judge
    seed: int
    epoch: int  # the one that runs, or ran last
    stop_reason: str | None  # None while the run goes on
    _hooks: Hooks
    _reports: Reports
    _watch: Stopwatch
    _threads: Threads
    _checkpoints: list[Checkpoint]
    _options: Options
    _logger: Loggers
    _former_logs: list[str | None]  # of the checkpoint gone on from

    def save(
        self,
        path: str | Path,
        *,
        include: Collection[str] | None = None,
        exclude: Collection[str] = (),
        at: Literal["now", "episode_end"] = "now",
    ) -> Path:
        """Write everything there is to go on from into a folder, whole or not at all.

        Args:
            path: of the folder; a checkpoint there is replaced.
            include: of "policy", "buffer", "collector" and "trainer", those to write; None is all.
            exclude: those to leave out.
            at: "episode_end" ends the episodes that run, here as well as where it is loaded: then both go on the same
                even where environments cannot play their episodes again.
        """
        checks = Checks("Trainer.save")
        checks.one_of("at", at, ["now", "episode_end"])
        checks.done()
        self._make_whole()
        if at == "episode_end" and self.train_collector is not None:
            self.train_collector.begin_anew()
        parts = self._parts()
        chosen = _chosen("save", parts, include, exclude)
        written = checkpoints.save_checkpoint(path, {name: parts[name]() for name in chosen}, self._about())
        self._hooks.fire("on_checkpoint_saved", self._as_trainer, written)
        return written

    def load(self, path: str | Path, *, include: Collection[str] | None = None, exclude: Collection[str] = ()) -> None:
        """Go on from a folder that `save` of the same kind of trainer wrote, or from the newest checkpoint in one.

        Episodes that ran are played again from their seeds and actions; where that leads elsewhere, they are cut in
        the buffer and others begin. What was set otherwise when it was saved is told in one warning.

        Raises:
            CheckpointError: it is damaged, or of another kind of run.
        """
        folder = newest(path)
        names = _chosen("load", self._parts(), include, exclude)
        manifest, own = checkpoints.read_manifest(folder), self._about()
        remedy = "take an older checkpoint, or make the run as it was"
        with decoding(folder, "a checkpoint of this run", remedy=remedy):
            _refuse_others(folder, manifest, own)
        with checkpoints.open_checkpoint(folder, names, lazy=("buffer",)) as components:
            lacking = [name for name in names if name not in components]
            if lacking and lacking != ["buffer"]:
                raise CheckpointError(
                    f"{folder} was saved without {', '.join(lacking)}: load it with exclude={lacking}"
                )
            if lacking:
                _log.warning("%s was saved without its buffer: the run goes on with none of the rows it had", folder)
            elif "buffer" in components and any(not own.with_buffer for own in self._checkpoints):
                _log.warning("%s has a buffer, which is taken over; this run's own checkpoints leave it out", folder)
            with decoding(folder, "a checkpoint of this run", remedy=remedy):
                _tell_changes(folder, manifest, own)
                self._load_components(components)
            if lacking:
                self._lose_rows()
        _tell_machine(folder, manifest, own)
        self._former_logs = manifest.get("logs", [])
        self._logger.purge(self._as_trainer.clock)
        self._hooks.fire("on_checkpoint_loaded", self._as_trainer, folder)

    def _load_components(self, components: Mapping[str, Any]) -> None:
        if "policy" in components:  # first: it refuses other networks before it changes
            self.policy.load_training_state(components["policy"])
        if "buffer" in components:
            self.buffer.load_state_dict(components["buffer"])
        if "collector" in components and self.train_collector is not None:
            self.train_collector.load_state_dict(components["collector"])
        if "trainer" in components:
            self._as_trainer.reset()
            self.load_state_dict(components["trainer"])

    def resume(self, place: str | Path, seed: int | None = None) -> None:
        """Go on from a checkpoint; "auto" is the newest whole one of this run's own folder, if there is one.

        Args:
            place: of it.
            seed: what was asked for, told about where the checkpoint has another.
        """
        if place == "auto":
            self._resume_own()
        else:
            self.load(place)
        if seed is not None and seed != self.seed:
            _log.warning("the run goes on with its own seed %d, not with %d", self.seed, seed)

    @property
    def goes_on_by_itself(self) -> bool:
        """Whether another, made as this one was, goes on from its last checkpoint."""
        return self._options.resume_from == "auto"  # which is refused without a checkpoint

    def _resume_own(self) -> None:
        if not self._checkpoints:
            raise ConfigError('resume_from="auto" needs checkpoint=, the folder that this run saves to')
        own = self._checkpoints[0].folder
        found = checkpoints.find_checkpoints(own)
        for folder in found:
            problem = checkpoints.damage(folder)
            if problem is None:
                self.load(folder)
                _log.info("going on from %s, epoch %d", folder, self.epoch)
                return
            _log.warning("%s; trying the one before", problem)
        if found:
            raise CheckpointError(f"no checkpoint in {own} is whole: remove them to begin anew")
        _log.info("%s holds no checkpoint: the run begins anew", own)

    def state_dict(self) -> dict[str, Any]:
        """Return the counters, what judge and callbacks know, and what was logged; parts have states of their own.

        Limits are not among them: a run that ended at one may go on when it is given another.
        """
        counters = {name: getattr(self, name) for name in (*_COUNTERS, *_LATER_COUNTERS)}
        reason = None if self.stop_reason in _LIMITS else self.stop_reason
        return counters | {
            "stop_reason": reason,
            "seconds": self._watch.settle(),
            "parts": dict(self._watch.parts),
            "judge": self.judge.state_dict(),
            "hooks": self._hooks.state_dict(),
            "reports": self._reports.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over saved counters."""
        for name in (*_COUNTERS, "stop_reason"):
            setattr(self, name, state[name])
        for name in _LATER_COUNTERS:
            if name in state:
                value = state[name]
                setattr(self, name, tuple(value) if isinstance(value, list) else value)
        self._watch.seconds = state["seconds"]
        self._watch.parts.update(state.get("parts", {}))
        self.judge.load_state_dict(state["judge"])
        self._hooks.load_state_dict(state["hooks"])
        self._reports.load_state_dict(state["reports"])

    def _make_whole(self) -> None:
        """Bring the run to a moment that can be saved."""

    def _lose_rows(self) -> None:
        """Go on although the rows that were learnt from are gone."""

    def _save_now(self) -> None:
        for checkpoint in self._checkpoints:
            checkpoint.save(self._as_trainer)

    def _parts(self) -> dict[str, Callable[[], Any]]:
        """Name what makes each component."""
        parts = {
            "policy": self.policy.training_state,
            "buffer": self.buffer.state_dict,
            "trainer": self.state_dict,
        }
        if self.train_collector is not None:
            parts["collector"] = self.train_collector.state_dict
        return parts

    def _about(self) -> dict[str, Any]:
        """Tell what a checkpoint is of: where it learnt, how, and how far it got; in plain values."""
        policy, info = self.policy, self._as_trainer.info
        spaces = {"observation_space": policy.observation_space, "action_space": policy.action_space}
        told = {
            "settings": self._as_trainer.settings(),
            "spaces": {name: None if space is None else space_to_plain(space) for name, space in spaces.items()},
            "policy": policy.recipe,
            "logs": self._logger.folders,
            "machine": self._machine(),
            "envs": {} if self.train_collector is None else self.train_collector.envs.made_with,
            "progress": {name: getattr(info, name) for name in _PROGRESS},
        }
        plain: dict[str, Any] = json.loads(json.dumps(told, default=str))  # as it comes back from a file
        return plain

    def _machine(self) -> dict[str, Any]:
        """Describe what the bits of a run depend on beside its settings."""
        device, engine = getattr(self.policy, "device", None), getattr(self.policy, "engine", None)
        return {
            "threads": self._threads.count,
            "device": None if device is None else str(device),
            "engine": None if engine is None else engine.wanted,
            **checkpoints.processor(),
        }

    @property
    def _as_trainer(self) -> "Trainer":
        return self  # type: ignore[return-value]  # the one subclass


def newest(path: str | Path) -> Path:
    """Return the checkpoint at a place, or the newest of several in it."""
    found = checkpoints.find_checkpoints(path)
    if not found:
        raise CheckpointError(f"{path} holds no readable checkpoint: name a folder that a run saved to")
    return found[0]


def _chosen(
    verb: str, parts: Mapping[str, Any], include: Collection[str] | None, exclude: Collection[str]
) -> list[str]:
    checks = Checks(f"Trainer.{verb}")
    for option, names in (("include", include or ()), ("exclude", exclude)):
        is_listed = not isinstance(names, str)
        checks.require(is_listed, f".{option} must be a list of names, got {names!r}: give [{names!r}]")
        for name in names if is_listed else ():
            checks.one_of(option, name, parts)
    checks.done()
    return [name for name in parts if (include is None or name in include) and name not in exclude]


def _refuse_others(folder: Path, manifest: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Refuse the checkpoint of another kind of run, saying all that differs."""
    saved, here = ({**dict.fromkeys(_SAME), **told.get("settings", {})} for told in (manifest, own))
    pairs = [(name, saved[name], here[name]) for name in _SAME]
    pairs += [(name, manifest.get("spaces", {}).get(name), own["spaces"][name]) for name in own["spaces"]]
    wrong = [
        f"{folder} was saved with {name} {theirs!r}, this run has {mine!r}: make it as it was"
        for name, theirs, mine in pairs
        if theirs != mine
    ]
    if wrong:
        raise CheckpointError("\n".join(wrong))


def _tell_changes(folder: Path, manifest: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Warn once of everything that was set otherwise, and once of other versions."""
    others = [
        f"{package} {saved_one} -> {own_one}"
        for package, own_one in checkpoints.versions().items()
        if (saved_one := manifest.get("versions", {}).get(package)) != own_one
    ]
    if others:
        _log.warning("%s was saved by other versions, the bits may differ: %s", folder, ", ".join(others))
    saved, here = (
        {**told["settings"], **{f"policy.{name}": value for name, value in _arguments(told["policy"]).items()}}
        for told in (manifest, own)
    )
    changes = [
        f"{name} {_as_code(theirs)} -> {_as_code(mine)}"
        for name in sorted(saved | here)
        if name not in _FREE and saved.get(name, _OFF.get(name)) != here.get(name)
        for theirs, mine in [_without_the_same(saved.get(name), here.get(name))]
    ]
    for name, value in _changed(manifest, own, "envs"):
        changes.append(f"{name} of the environments {value}")
    if changes:
        _log.warning("the run goes on from %s with other settings: %s", folder, ", ".join(changes))


def _tell_machine(folder: Path, manifest: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Warn where sums may be taken in another order: on another machine than the saved run's, and on any GPU."""
    changes = [f"{name} {value}" for name, value in _changed(manifest, own, "machine")]
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
    """List (name, "before -> now") of what differs; what an older checkpoint does not say counts as the same."""
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


def _arguments(recipe: Mapping[str, Any] | None) -> dict[str, Any]:
    return {} if recipe is None else dict(recipe["arguments"])


def _without_the_same(theirs: Any, mine: Any) -> tuple[Any, Any]:
    """Return two settings; of two parts of the same kind only the arguments that differ."""
    if not (_is_part(theirs) and _is_part(mine) and theirs["part"] == mine["part"]):
        return theirs, mine
    left: tuple[dict[str, Any], dict[str, Any]] = {}, {}
    for name in theirs["of"] | mine["of"]:
        pair = [part["of"].get(name) for part in (theirs, mine)]
        if pair[0] != pair[1]:
            left[0][name], left[1][name] = _without_the_same(*pair)
    return {"part": theirs["part"], "of": left[0]}, {"part": mine["part"], "of": left[1]}


def _as_code(plain: Any) -> str:
    """Write a setting as it is given in code, a part with its arguments."""
    if isinstance(plain, list):
        return f"[{', '.join(map(_as_code, plain))}]"
    if not _is_part(plain):
        return repr(plain)
    arguments = [f"{name}={_as_code(value)}" for name, value in plain["of"].items()]
    return f"{plain['part']}({', '.join(arguments)})"


def _is_part(plain: Any) -> bool:
    return isinstance(plain, dict) and plain.keys() == {"part", "of"}
