"""The memory this process may still allocate, by the machine and by its control groups."""

from collections.abc import Iterator
from pathlib import Path

_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
_NO_LIMIT = 2**62  # what cgroups of version 1 say where there is none, or more


def memory_left() -> int | None:
    """Return the bytes this process may still take, by the machine and by the control groups it is in."""
    known = [_available(), *(_left_in(group) for group in _groups())]
    return min((number for number in known if number is not None), default=None)


def _available() -> int | None:
    """Return what the kernel could hand out without swapping."""
    fields = _fields(_PROC / "meminfo")
    return fields["MemAvailable"] * 1024 if "MemAvailable" in fields else None


def _left_in(group: Path) -> int | None:
    """Return what is left of a control group's limit, of either version; None where it has none."""
    for limit, usage, cache in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        most, taken = _number(group / limit), _number(group / usage)
        if most is not None and taken is not None and most < _NO_LIMIT:
            return max(most - taken + _fields(group / "memory.stat").get(cache, 0), 0)
    return None


def _groups() -> Iterator[Path]:
    """Yield the folders of this process's memory groups and of all they are in."""
    for line in _text(_PROC / "self/cgroup").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers in ("", "memory"):
            root = _CGROUPS / controllers
            inside = root / path.lstrip("/")
            yield from (group for group in (inside, *inside.parents) if group.is_relative_to(root))


def _fields(path: Path) -> dict[str, int]:
    """Read a file of names and numbers, line by line."""
    words = [line.replace(":", " ").split() for line in _text(path).splitlines()]
    return {line[0]: int(line[1]) for line in words if len(line) > 1 and line[1].isdecimal()}


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
