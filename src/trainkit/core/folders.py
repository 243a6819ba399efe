"""Folders that runs write to: each has one owner at a time, and a new run never overwrites another's files.

A lock file in the folder is held with `flock` as long as its owner lives: the kernel releases it when the process ends,
however it ends, so a killed run blocks no other run. Where a file system has no such locks (some network file
systems, Windows) the lock file's text says who the owner is, a process of this machine that no longer runs counts as
gone, and a warning says that another machine's cannot be seen.
"""

import contextlib
import gc
import json
import logging
import os
import secrets
import socket
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from trainkit.core.errors import CheckpointError, Checks, ConfigError
from trainkit.core.files import check_local

_log = logging.getLogger(__name__)

CHECKPOINT = "checkpoint"  # the folder of checkpoints in the folder of a run

Existing = Callable[[Path], Sequence[Path]]


@dataclass(slots=True)
class _Lock:
    """A lock file that this process holds, and its users."""

    opened: int  # a file descriptor
    made: list[Path]  # folders that were made for it, the outermost first
    owners: set[int] = field(default_factory=set)


_held: dict[Path, _Lock] = {}


class FolderClaim:
    """The use of one folder for one purpose, by one owner.

    Args:
        subject: names the owner in messages, such as "Checkpoint.folder".
        folder: need not exist.
        purpose: names the lock file, so that a run may log and save in the same folder.
        existing: lists what a former run left in the folder that this owner would replace or remove; None for an owner
            that replaces nothing, of which a process may have several.
    """

    def __init__(self, subject: str, folder: Path, purpose: str, existing: Existing | None = None) -> None:
        self._subject, self.folder, self._existing = subject, folder, existing
        self._file = f".{purpose}.lock"
        self._lock_path: Path | None = None  # while it is held
        self._release: Callable[[], object] = lambda: None

    def take(self, *, continues: bool) -> None:
        """Take the folder, making it if it is missing.

        Args:
            continues: whether this is the run that wrote to the folder before, resumed. It takes the folder over from
                another owner in the same process, whose next write then raises.

        Raises:
            ConfigError: the folder cannot be written, another run uses it, or a fresh run would replace what is in it.
        """
        try:
            found = () if continues or self._existing is None else self._existing(self.folder)
        except OSError as error:
            raise ConfigError(f"{self._subject} {self.folder} cannot be read ({error}): name another folder") from error
        if found:
            raise ConfigError(
                f"{self._subject} {self.folder} already holds {found[0].name} of another run: name another folder, or "
                "remove it if it is not needed; resume_from= continues that run"
            )
        self._acquire(takes_over=continues)

    def hold(self) -> None:
        """Check before a write that the folder is still this owner's; claim it again after a release.

        Raises:
            CheckpointError: it has another owner now, or cannot be written.
        """
        if self._lock_path is not None and id(self) in _owners_of(self._lock_path):
            return
        try:
            self._acquire(takes_over=False)
        except ConfigError as error:
            raise CheckpointError(str(error)) from error.__cause__

    def release(self) -> None:
        """Release the folder; a second call has no effect."""
        self._release()
        self._lock_path = None

    def _acquire(self, *, takes_over: bool) -> None:
        try:
            made = _make_folders(self.folder)
            path = self.folder.resolve() / self._file
            if path in _held and not takes_over and self._existing is not None and _owners_of(path) - {id(self)}:
                gc.collect()  # an unused trainer may hold it until it is collected
                if path in _held:
                    raise ConfigError(
                        f"{self._subject} {self.folder} belongs to another trainer of this process: close() that one, "
                        "or name another folder"
                    )
            lock = _held.get(path)
            if lock is None:
                lock = _held[path] = _Lock(_opened(path, f"{self._subject} {self.folder}"), made)
        except OSError as error:
            raise ConfigError(
                f"{self._subject} {self.folder} cannot be written ({error.strerror or error}): name another folder"
            ) from error
        if self._existing is not None:
            lock.owners.clear()
        lock.owners.add(id(self))
        self._lock_path = path
        self._release = weakref.finalize(self, _release, path, id(self), os.getpid())


@runtime_checkable
class OwnsFolder(Protocol):
    """A callback with a folder of its own, which its trainer claims and releases."""

    claim: FolderClaim


def check_folder(checks: Checks, folder: Path) -> None:
    """Note a problem if `.folder`, which need not exist, cannot be written to."""
    check_local(folder)
    if checks.require(not folder.is_file(), f".folder {folder} is a file: name a folder"):
        problem = _why_not_writable(folder)
        checks.require(problem is None, f".folder {folder} cannot be written ({problem}): name another folder")


def _why_not_writable(folder: Path) -> str | None:
    nearest = folder
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    probe = nearest / f".trainkit-{secrets.token_hex(4)}"
    try:
        probe.open("xb").close()
        probe.unlink()
    except OSError as error:
        return error.strerror or str(error)
    return None


def _make_folders(folder: Path) -> list[Path]:
    """Make a folder and those above it; return those that were missing, the outermost first."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return missing[::-1]


def _owners_of(path: Path) -> set[int]:
    return _held[path].owners if path in _held else set()


def _opened(path: Path, subject: str) -> int:
    """Open and lock a lock file, and write its owner into it."""
    while True:
        opened = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
        try:
            _lock(opened, path, subject)
            if _is_at(opened, path):
                break
        except BaseException:
            os.close(opened)
            raise
        os.close(opened)  # its former owner removed it at this moment: it locks nothing
    owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
    os.ftruncate(opened, 0)
    os.lseek(opened, 0, os.SEEK_SET)
    os.write(opened, json.dumps(owner).encode())
    return opened


def _is_at(opened: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(opened), path.stat())
    except FileNotFoundError:
        return False


def _lock(opened: int, path: Path, subject: str) -> None:
    """Lock an open file; on file systems without locks, its text decides whether it is in use."""
    owner = _owner(opened)
    in_use = ConfigError(
        f"{subject} is in use by {_in_words(owner)}: wait until that run ends, or stop it, or name another folder"
    )
    try:
        import fcntl
    except ImportError:  # Windows
        reason = "not supported on this system"
    else:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise in_use from None
        except OSError as error:
            reason = str(error.strerror)
        else:
            return
    if owner.get("host") == socket.gethostname() and _is_running(owner.get("pid")):
        raise in_use
    _log.warning(
        "%s cannot be locked (%s): make sure that no run on another machine writes to %s", subject, reason, path.parent
    )


def _owner(opened: int) -> dict[str, Any]:
    """Return the owner named in a lock file, empty if it names none."""
    try:
        os.lseek(opened, 0, os.SEEK_SET)
        owner = json.loads(os.read(opened, 1_000))
    except (OSError, ValueError, RecursionError):
        return {}
    return owner if isinstance(owner, dict) else {}


def _in_words(owner: dict[str, Any]) -> str:
    if not owner:
        return "another process"
    return f"process {owner.get('pid')} on {owner.get('host')} since {owner.get('since')}"


def _is_running(pid: object) -> bool:
    if not isinstance(pid, int) or pid <= 0 or pid == os.getpid() or os.name == "nt":
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _release(path: Path, owner: int, process: int) -> None:
    """Remove one owner of a lock; without owners remove the lock, its file, and empty folders made for it."""
    lock = _held.get(path)
    if lock is None or process != os.getpid() or owner not in lock.owners:
        return
    lock.owners.discard(owner)
    if lock.owners:
        return
    del _held[path]
    with contextlib.suppress(OSError):
        path.unlink()
    with contextlib.suppress(OSError):
        os.close(lock.opened)
    with contextlib.suppress(OSError):
        for folder in reversed(lock.made):
            folder.rmdir()


def _forget_in_child() -> None:
    """In a forked process, close the locks of the parent, which keeps them."""
    for lock in _held.values():
        with contextlib.suppress(OSError):
            os.close(lock.opened)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
