"""Ownership of environments: one owner, one process, one thread at a time, never after they are closed.

Two owners of the same environments would each continue episodes that the other has reset or stepped, and store rows
that never happened. `Ownership` is the owner of one `Envs`; `claim_environment` protects the environment objects below
it, which a user may hand to two `Envs`; `OwnerProcess` those that run in other processes or in compiled code.
"""

import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from trainkit.core.errors import BusyError, ConfigError

_Result = TypeVar("_Result")
_Given = ParamSpec("_Given")
_Environments = TypeVar("_Environments", bound="Owned")

_DRIVERS: "weakref.WeakValueDictionary[int, object]" = weakref.WeakValueDictionary()  # {id of an environment: driver}


@dataclass(eq=False, slots=True)
class Use:
    """One use of environments by a thread, from `Ownership.enter` to `Ownership.leave`.

    Attributes:
        owner: that uses them; None is a direct call by user code.
        thread: that uses them.
    """

    owner: object | None = None
    thread: int = field(default_factory=threading.get_ident, init=False)


class OwnerProcess:
    """The process that made environments, and whether it is in the middle of stepping them."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._is_stepping = False

    @property
    def is_current(self) -> bool:
        """Whether this is the process, and not a fork of it."""
        return os.getpid() == self._pid

    def check(self) -> None:
        """Raise a BusyError in a fork of the process."""
        if not self.is_current:
            raise BusyError(
                "these environments belong to the process that made them, and this is a fork of it: use them there, or "
                "make_envs in this process"
            )

    def check_between_steps(self, action: str) -> None:
        """Raise a BusyError in a fork of the process, and where `overlap` calls work in the middle of a step."""
        self.check()
        if self._is_stepping:
            raise BusyError(
                f"environments cannot be {action} in the middle of a step, where `Collector.overlap` is called, and "
                "with overlap=True on_train_batch and on_update_end: wait until it is whole, as in on_collect_end"
            )

    def overlap(self, work: Callable[[], object] | None) -> None:
        """Call `work`, if there is any, in the middle of a step."""
        self._is_stepping = True
        try:
            if work is not None:
                work()
        finally:
            self._is_stepping = False


class Ownership:
    """The owner of one `Envs`, and the thread that uses it now.

    Args:
        name: of the environments, for messages.

    Attributes:
        thread: the thread between `enter` and `leave`, None outside of them.
        is_closed: whether every use is rejected.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._owner: weakref.ref[object] | None = None  # an owner that was garbage collected owns nothing
        self._uses: dict[None, Use] = {}  # at most one; `dict.setdefault` is atomic
        self.is_closed = False
        self.thread: int | None = None

    @property
    def owner(self) -> object | None:
        """The owner; None before a claim, after a release, and after the owner was garbage collected."""
        return None if self._owner is None else self._owner()

    def claim(self, owner: object) -> None:
        """Become the owner.

        Raises:
            ConfigError: they are closed, or have another owner.
        """
        if self.is_closed:
            raise self._closed_error()
        if self.owner is not None and self.owner is not owner:
            gc.collect()  # an owner that is only part of a reference cycle is gone
        if self.owner is not None and self.owner is not owner:
            raise ConfigError(
                f"{self._name} already belong to a {type(self.owner).__name__}, whose episodes another owner would mix "
                "with its own: make_envs others, or give these up first with Collector.release()"
            )
        self._owner = weakref.ref(owner)

    def release(self, owner: object) -> None:
        """Release the environments for another owner; has no effect if `owner` does not own them."""
        if self.owner is owner:
            self._owner = None

    def close(self) -> bool:
        """Reject every later use; return whether they were open."""
        was_open, self.is_closed = not self.is_closed, True
        return was_open

    def enter(self, use: Use, *, by_anyone: bool = False) -> None:
        """Begin a use. Call it inside `try`, with `leave` in `finally`: an interrupt may come at any point.

        Args:
            use: that begins.
            by_anyone: whether it need not be the owner's, as a call that steps nothing.

        Raises:
            ConfigError: they are closed, or belong to another owner.
            BusyError: they are in use, by another thread or further up in this one.
        """
        if self.is_closed:
            raise self._closed_error()
        owner = None if self._owner is None else self._owner()
        if owner is not use.owner and not by_anyone:
            if use.owner is not None:
                raise ConfigError(
                    f"this {type(use.owner).__name__} has released {self._name}: make another one for them"
                )
            raise ConfigError(
                f"{self._name} belong to a {type(owner).__name__}: use its reset and collect, or make_envs others "
                "to step by hand"
            )
        current = self._uses.setdefault(None, use)
        if current is not use:
            who = "further up in this thread" if current.thread == use.thread else "by another thread"
            raise BusyError(
                f"{self._name} are in use {who}: environments, and the collector they belong to, are for one thread "
                "and one call at a time; make_envs and a Collector for each thread"
            )
        self.thread = use.thread

    def leave(self, use: Use) -> None:
        """End a use; has no effect where `enter` raised."""
        if self._uses.get(None) is use:
            self.thread = None
            del self._uses[None]

    def during(self, owner: object | None, work: Callable[..., _Result], *args: Any, **options: Any) -> _Result:
        """Call `work` and return its result, as one use by an owner; None is user code.

        Raises:
            ConfigError, BusyError: as `enter`.
        """
        use = Use(owner)
        try:
            self.enter(use)
            return work(*args, **options)
        finally:
            self.leave(use)

    def _closed_error(self) -> ConfigError:
        return ConfigError(
            f"{self._name} are closed: make_envs again (Collector.close, Trainer.close and `with trainer:` close "
            "the environments they use)"
        )


class Owned(Protocol):
    """Environments that have an owner."""

    ownership: Ownership


def for_owner(
    method: Callable[Concatenate[_Environments, _Given], _Result],
) -> Callable[Concatenate[_Environments, _Given], _Result]:
    """Let only the thread that uses the environments call a method, or user code where they have no owner."""

    @wraps(method)
    def checked(environments: _Environments, /, *args: _Given.args, **options: _Given.kwargs) -> _Result:
        if environments.ownership.thread == threading.get_ident():
            return method(environments, *args, **options)
        return environments.ownership.during(None, method, environments, *args, **options)

    return checked


def claim_environment(environment: Any, driver: object, env_id: int | None = None) -> None:
    """Claim an environment object, wrapped or not, for one driver until `free_environments`.

    The driver must keep it alive for as long.

    Args:
        environment: single, or a vector environment.
        driver: what steps it.
        env_id: its number there, for messages.

    Raises:
        ConfigError: another driver has it, or this one has it already.
    """
    key = id(_base(environment))
    if _DRIVERS.get(key) is not None and _DRIVERS.get(key) is not driver:
        gc.collect()  # a driver that is only part of a reference cycle is gone
    other = _DRIVERS.get(key)
    if other is driver:
        raise ConfigError(
            f"make_envs: factory {env_id} returned an environment a second time: make a new one at each call"
        )
    if other is not None:
        which = "" if env_id is None else f" env {env_id},"
        raise ConfigError(
            f"make_envs:{which} {environment!r} already belongs to another Envs, whose episodes would be mixed with "
            "these: make another environment, or close that Envs first"
        )
    _DRIVERS[key] = driver


def free_environments(environments: Iterable[Any], driver: object) -> None:
    """Let others claim the environments that this driver has claimed."""
    for environment in environments:
        key = id(_base(environment))
        if _DRIVERS.get(key) is driver:
            del _DRIVERS[key]


def check_free(environment: Any, user: str) -> None:
    """Raise a ConfigError if an `Envs` drives this environment object, which `user` wants to step."""
    key = id(_base(environment))
    if _DRIVERS.get(key) is not None:
        gc.collect()
    if _DRIVERS.get(key) is not None:
        raise ConfigError(
            f"{user}: {environment!r} belongs to an Envs, whose episodes would be mixed with these: make another "
            "environment, or close that Envs first"
        )


def _base(environment: Any) -> Any:
    """Return the environment inside all wrappers."""
    return getattr(environment, "unwrapped", environment)
