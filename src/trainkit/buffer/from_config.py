"""A replay buffer made of plain values, as configuration files have them."""

import inspect
from collections.abc import Mapping
from typing import Any

from trainkit.buffer.prioritized import PrioritizedReplayBuffer
from trainkit.buffer.replay import ReplayBuffer
from trainkit.core.errors import ConfigError, nearest, refuse_unknown
from trainkit.core.signatures import checked

_TYPES: dict[str, type[ReplayBuffer]] = {kind.__name__: kind for kind in (ReplayBuffer, PrioritizedReplayBuffer)}


@checked
def buffer_from_config(config: Mapping[str, Any], *, default: Mapping[str, Any] | None = None) -> ReplayBuffer:
    """Make a replay buffer of `{"type": "PrioritizedReplayBuffer", "capacity": 100_000, "alpha": 0.5}`.

    Args:
        config: the type, and arguments of its constructor by name. The type is "ReplayBuffer",
            "PrioritizedReplayBuffer", or a subclass of theirs (the class itself, not a name of it).
        default: what `config` overrides. As in RLlib, a config of the same type, or of none, is merged into it, and one
            of another type replaces all of it.

    Raises:
        ConfigError: the type is unknown, an argument is missing, unknown or cannot work.
    """
    subject = "buffer_from_config"
    base = {} if default is None else dict(default)
    for given in (config, base):
        if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
            raise ConfigError(f"{subject} needs a dict {{'type': ..., 'capacity': ..., ...}}, got {given!r}")
    kind = _type_of(config["type"] if "type" in config else base.get("type", "ReplayBuffer"))
    is_same = bool(base) and kind is _type_of(base.get("type", "ReplayBuffer"))
    options = {**base, **config} if is_same else dict(config)
    options.pop("type", None)
    known = inspect.signature(kind).parameters
    refuse_unknown(f"{subject}: {kind.__name__}", options, known)
    missing = [name for name, one in known.items() if one.default is one.empty and name not in options]
    if missing:
        replaced = ": a config of another type replaces the default, which is not merged into it" if base else ""
        raise ConfigError(f"{subject}: {kind.__name__} needs {', '.join(missing)}, got {sorted(options)}{replaced}")
    return kind(**options)


def _type_of(named: object) -> type[ReplayBuffer]:
    """Return the class that a config names."""
    if isinstance(named, type) and issubclass(named, ReplayBuffer):
        return named
    if not isinstance(named, str) or named not in _TYPES:
        known = list(_TYPES)
        raise ConfigError(
            f"buffer_from_config: type must be one of {known} or a subclass, got {named!r}{nearest(named, known)}"
        )
    return _TYPES[named]
