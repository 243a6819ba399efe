"""A pretend accelerator: a torch device in ordinary memory that counts operations, copies and waits.

`pretend_device.cpp` registers it as PyTorch's PrivateUse1 backend. It is compiled once for each version of torch.
"""

import contextlib
import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from pathlib import Path
from types import FrameType, ModuleType

import torch
from torch.utils.backend_registration import rename_privateuse1_backend

from trainkit.core.errors import DeviceError

__all__ = ["DeviceCounts", "PretendDevice"]

_NAME = "pretend"
_SOURCE = Path(__file__).with_suffix(".cpp")
_TORCH = Path(torch.__file__).parent
_NOT_THE_USERS = (str(_TORCH), str(Path(contextlib.__file__)), str(Path(__file__)))


class _Event(IntEnum):
    """What the extension reports, in the order of its `enum Event`."""

    OPERATION = 0
    WAIT = 1
    TO_DEVICE = 2
    TO_DEVICE_FROM_PAGEABLE = 3
    TO_DEVICE_BLOCKING = 4
    TO_CPU = 5
    TO_CPU_BLOCKING = 6
    PIN = 7
    EVENT_WAIT = 8
    EVENT_RECORD = 9
    RACE = 10

    @property
    def words(self) -> str:
        return self.name.lower().replace("_", " ")


_TO_DEVICE = {_Event.TO_DEVICE, _Event.TO_DEVICE_FROM_PAGEABLE, _Event.TO_DEVICE_BLOCKING}
_TO_CPU = {_Event.TO_CPU, _Event.TO_CPU_BLOCKING}
_WAITS = {_Event.WAIT, _Event.TO_DEVICE_BLOCKING, _Event.TO_CPU_BLOCKING}
_REJECTED_IN_CAPTURE = _WAITS | {_Event.TO_DEVICE_FROM_PAGEABLE, _Event.PIN, _Event.EVENT_WAIT}


@dataclass(slots=True)
class DeviceCounts:
    """What a device was given to do.

    Attributes:
        operations: {name without overload, as "aten::mul": calls}; views and allocations are none.
        waits: times that the CPU waited for the device: `item()`, blocking copies, operations such as `nonzero` whose
            result has a size that the CPU must know, `synchronize()`.
        event_waits: calls of `Event.synchronize()`.
        copies_to_device, copies_to_cpu: copies in each direction, blocking or not.
        pinned_allocations: allocations of pinned memory.
        lines: {(operation, file and line of the caller): waits there}.
        log: all of it in its order: "operation aten::mul", "to device aten::copy_", "event record event 7", "event wait
            event 7", "wait aten::_local_scalar_dense".
    """

    operations: Counter[str] = field(default_factory=Counter)
    waits: int = 0
    event_waits: int = 0
    copies_to_device: int = 0
    copies_to_cpu: int = 0
    pinned_allocations: int = 0
    lines: Counter[tuple[str, str]] = field(default_factory=Counter)
    log: list[str] = field(default_factory=list)

    def _add(self, event: _Event, operation: str) -> bool:
        """Count an event, and reject none."""
        self.log.append(f"{event.words} {operation}")
        if event is _Event.OPERATION:
            self.operations[operation] += 1
        self.waits += event in _WAITS
        self.event_waits += event is _Event.EVENT_WAIT
        self.copies_to_device += event in _TO_DEVICE
        self.copies_to_cpu += event in _TO_CPU
        self.pinned_allocations += event is _Event.PIN
        if event in _WAITS:
            self.lines[operation, _line_of_the_user()] += 1
        return False


class PretendDevice:
    """An accelerator for tests on a machine that has none; make it by `PretendDevice.load()`.

    Its tensors are on the torch device "pretend:0". They lie in ordinary memory, and the CPU's kernels compute them, so
    results equal the CPU's. What fails on CUDA fails here too: operations that mix devices, and, while `capturing`,
    those that a CUDA graph cannot record. A process has one, from the first `load` on.

    Attributes:
        device: "pretend:0".
    """

    def __init__(self) -> None:
        raise DeviceError("PretendDevice is loaded once for a process: call PretendDevice.load()")

    @classmethod
    def load(cls) -> "PretendDevice":
        """Return the device; the first call on a machine compiles it, which takes about 15 seconds.

        Raises:
            DeviceError: this machine has no C++ compiler, or torch's headers do not compile, or the process has an
                accelerator or another backend that is registered as PrivateUse1.
        """
        return _loaded()

    @staticmethod
    def missing() -> str | None:
        """Return why the device cannot be loaded, None where it can be; for `pytest.mark.skipif`."""
        try:
            _loaded()
        except DeviceError as error:
            return str(error)
        return None

    device: torch.device

    @contextlib.contextmanager
    def counting(self) -> Iterator[DeviceCounts]:
        """Count the work that all threads give the device inside the block."""
        counts = DeviceCounts()
        with _listening(counts._add):
            yield counts

    @contextlib.contextmanager
    def capturing(self) -> Iterator[None]:
        """Reject inside the block what cannot be recorded in a CUDA graph, and run everything else as usual.

        Rejected are waits (`item()`, `nonzero`, `synchronize()`), copies that block or whose memory on the CPU is not
        pinned, and new pinned memory.

        Raises:
            DeviceError: at the block's end, naming the first rejected operation and the line that called it.
        """
        rejected: list[tuple[str, str]] = []

        def reject(event: _Event, operation: str) -> bool:
            if event in _REJECTED_IN_CAPTURE:
                rejected.append((f"{operation} ({event.words})", _line_of_the_user()))
            return event in _REJECTED_IN_CAPTURE

        cause: BaseException | None = None
        with _listening(reject):
            try:
                yield
            except RuntimeError as error:
                if not rejected:
                    raise
                cause = error
        if rejected:
            operation, line = rejected[0]
            raise DeviceError(f"a CUDA graph cannot record {operation}, called at {line}") from cause

    @contextlib.contextmanager
    def delaying(self) -> Iterator[None]:
        """Let copies that do not block take until the CPU waits for them, and run everything else as usual.

        Their results on the CPU are invalid until it has waited for their event, their stream or the device, by
        `item()` or by a copy that blocks: all bits are 1, which is nan in floats. A copy on a second stream reads the
        device's memory as late as events allow, so that it finds what overwrote it.

        Raises:
            DeviceError: at the block's end: memory was changed before it had been copied to the device; names the line
                that copied it.
        """
        lines: list[str] = []  # that copied to the device
        changed: list[str] = []

        def note(event: _Event, operation: str) -> bool:
            if event is _Event.TO_DEVICE:
                lines.append(_line_of_the_user())
            elif event is _Event.RACE and int(operation) >= n_before:
                changed.append(lines[int(operation) - n_before])
            return False

        library = load_library()
        with _listening(note):
            n_before = library.pretend_delay(1)  # copies to the device so far
            try:
                yield
            finally:
                library.pretend_delay(0)
        if changed:
            raise DeviceError(
                f"pinned memory was changed before its copy to the device was done, which was started at {changed[0]}: "
                "wait for an event recorded after the copy, or write to other memory"
            )


# ---- listening ----

_Listener = Callable[[_Event, str], bool]
_listeners: list[_Listener] = []
_lock = threading.RLock()


@contextlib.contextmanager
def _listening(listener: _Listener) -> Iterator[None]:
    library = load_library()
    with _lock:
        _listeners.append(listener)
        library.pretend_listen(_REPORT)
    try:
        yield
    finally:
        with _lock:
            _listeners.remove(listener)
            if not _listeners:
                library.pretend_listen(None)


def _report(event: int, operation: bytes) -> int:
    """Return how many listeners reject an event; called by the extension from any thread."""
    with _lock:
        return sum(listener(_Event(event), operation.decode()) for listener in _listeners)


_REPORT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_char_p)(_report)


def _line_of_the_user() -> str:
    """Return "file:line" of the innermost frame that is neither torch's nor ours."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_NOT_THE_USERS):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return "a backward pass"


# ---- building and loading ----


@cache
def _loaded() -> PretendDevice:
    load_library()
    device = object.__new__(PretendDevice)
    device.device = torch.device(_NAME, 0)
    return device


@cache
def load_library() -> ctypes.CDLL:
    """Register the backend with torch."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is not None:
        raise DeviceError(
            f"PretendDevice needs a process without an accelerator, as torch.accelerator is one device, got "
            f"{accelerator}: hide it, for CUDA by CUDA_VISIBLE_DEVICES=''"
        )
    registered = torch._C._get_privateuse1_backend_name()
    if registered != "privateuseone":
        raise DeviceError(
            f"PretendDevice cannot be loaded, as torch's PrivateUse1 backend is {registered!r} already: use another "
            "process"
        )
    path = build()
    rename_privateuse1_backend(_NAME)
    torch._register_device_module(_NAME, _DeviceModule(f"torch.{_NAME}"))
    library = ctypes.CDLL(str(path))
    library.pretend_listen.argtypes = [ctypes.c_void_p]
    return library


class _DeviceModule(ModuleType):
    """What torch calls by the device's name, as it calls `torch.cuda`."""

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def _is_in_bad_fork() -> bool:
        return False

    @staticmethod
    def device_count() -> int:
        return 1

    @staticmethod
    def current_device() -> int:
        return 0

    @staticmethod
    def device(device: object) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    @staticmethod
    def get_amp_supported_dtype() -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    @staticmethod
    def manual_seed_all(seed: int) -> None:
        torch.ops.pretend.manual_seed(seed)

    @staticmethod
    def get_rng_state(device: object = None) -> torch.Tensor:
        state: torch.Tensor = torch.ops.pretend.get_rng_state()
        return state

    @staticmethod
    def set_rng_state(state: torch.Tensor, device: object = None) -> None:
        torch.ops.pretend.set_rng_state(state)


def build() -> Path:
    """Return the compiled extension for this version of torch; compile it unless a process has done so before."""
    compiler = _compiler()
    key = hashlib.sha256(_SOURCE.read_bytes() + f"{torch.__version__} {_TORCH} {compiler}".encode()).hexdigest()[:16]
    folder = _cache_folder()
    path = folder / f"pretend_device_{key}.so"
    if path.exists():
        return path
    with _only_process(folder / "lock"):
        if not path.exists():
            _compile(compiler, path)
    return path


def _compiler() -> str:
    if sys.platform == "win32":
        raise DeviceError("PretendDevice needs Linux or macOS, as its build commands are theirs")
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        if name and (found := shutil.which(name)):
            return found
    raise DeviceError(
        "PretendDevice needs a C++ compiler, and there is no c++, g++ or clang++: install one, or set CXX"
    )


def _cache_folder() -> Path:
    """Return a folder of this user's, which no other user may write to."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trainkit"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except (OSError, RuntimeError):
        return Path(tempfile.mkdtemp(prefix="trainkit"))
    return folder


@contextlib.contextmanager
def _only_process(path: Path) -> Iterator[None]:
    """Wait until no other process is inside this block."""
    import fcntl

    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _compile(compiler: str, path: Path) -> None:
    linked = ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else []
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        result = Path(folder) / path.name
        abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"
        options = ["-O1", "-std=c++20", "-fPIC", "-shared", "-w", abi, *linked]
        places = [f"-I{_TORCH / 'include'}", f"-L{_TORCH / 'lib'}"]
        command = [compiler, *options, *places, str(_SOURCE), "-o", str(result), "-lc10", "-ltorch_cpu"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            errors = [line for line in done.stderr.splitlines() if "error" in line]
            raise DeviceError(f"PretendDevice did not compile by {compiler}: {(errors or [done.stderr])[0]}")
        result.replace(path)
