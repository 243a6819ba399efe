"""Prioritized experience replay: rows with large TD errors are sampled more often."""

import inspect
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trainkit.buffer.replay import ReplayBuffer
from trainkit.buffer.rings import Rows
from trainkit.buffer.samplers import PrioritizedSampler
from trainkit.buffer.storage import FrameStore
from trainkit.core.errors import ConfigError, reject_unknown
from trainkit.core.extensions import table
from trainkit.core.names import did_you_mean
from trainkit.core.protocols import EnvSpaces
from trainkit.core.schedules import Schedule, Scheduled
from trainkit.core.signatures import checked


@checked
class PrioritizedReplayBuffer(ReplayBuffer):
    """Sample rows in proportion to (priority + eps)**alpha (Schaul et al., 2016).

    The masses are in `samplers.PrioritizedSampler`; `update_priorities` is in `ReplayBuffer`.

    Args:
        capacity: transitions in all.
        alpha: how much priority counts, in [0, 1]; 0 is uniform.
        beta: exponent of the importance weights, in [0, 1]; a number, knots or a schedule of the environment step.
        eps: added to every priority, so that every row can be sampled.
        normalize: divide weights by the largest of the "batch" (default: Dopamine, ChainerRL) or of the "buffer"
            (the paper), where one row of priority 0 can scale all others to almost nothing.
        draw: "stratified" (the paper) or "iid".
        n_envs: as in `ReplayBuffer`.
        stack: as in `ReplayBuffer`.
        spaces: as in `ReplayBuffer`.
        frames: as in `ReplayBuffer`.
        seed: as in `ReplayBuffer`.
    """

    sampler: PrioritizedSampler

    def __init__(
        self,
        capacity: int,
        *,
        alpha: float = 0.6,
        beta: Scheduled = 0.4,
        eps: float = 1e-6,
        normalize: Literal["batch", "buffer"] = "batch",
        draw: Literal["stratified", "iid"] = "stratified",
        n_envs: int | None = None,
        stack: int = 1,
        spaces: EnvSpaces | None = None,
        frames: FrameStore | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(capacity, n_envs=n_envs, stack=stack, spaces=spaces, frames=frames, seed=seed)
        self.sampler = PrioritizedSampler(alpha, beta, eps, normalize, draw)

    @property
    def prioritized(self) -> bool:
        """Whether `update_priorities` has any effect: it has."""
        return True

    @property
    def alpha(self) -> float:
        """How much priority counts."""
        return self.sampler.alpha

    @property
    def beta(self) -> Schedule:
        """The exponent of the importance weights; a number, knots or a schedule may be assigned at any time."""
        return self.sampler.beta

    @beta.setter
    def beta(self, beta: Scheduled) -> None:
        self.sampler.beta = beta

    @property
    def eps(self) -> float:
        """What is added to every priority."""
        return self.sampler.eps

    @property
    def normalize(self) -> Literal["batch", "buffer"]:
        """What has the largest weight that weights are divided by."""
        return self.sampler.normalize

    @property
    def draw(self) -> Literal["stratified", "iid"]:
        """How rows are drawn."""
        return self.sampler.mode

    def priorities(self) -> NDArray[np.float64]:
        """Return the priorities of all rows [size], environment by environment from the oldest."""
        return np.empty(0) if self._bound is None else self.sampler.priority(self._all_rows)

    def probabilities(self) -> NDArray[np.float64]:
        """Return the probability of each row to be sampled next [size], in the order of `priorities`."""
        if len(self) == 0:
            return np.empty(0)
        mass: NDArray[np.float64] = self.sampler.mass(self._all_rows)
        mass /= mass.sum()
        return mass

    def weights(self, step: int = 0) -> NDArray[np.float64]:
        """Return the importance weights of all rows [size], divided by the largest, in the order of `priorities`."""
        if len(self) == 0:
            return np.empty(0)
        weight: NDArray[np.float64] = self.sampler.weight(self._all_rows, step)
        weight /= weight.max()
        return weight

    @property
    def _all_rows(self) -> Rows:
        return self._storage.rings.live_rows(np.arange(len(self)))


_TYPES: dict[str, type[ReplayBuffer]] = {kind.__name__: kind for kind in (ReplayBuffer, PrioritizedReplayBuffer)}


@checked
def buffer_from_config(config: Mapping[str, Any], *, default: Mapping[str, Any] | None = None) -> ReplayBuffer:
    """Make a replay buffer from `{"type": "PrioritizedReplayBuffer", "capacity": 100_000, "alpha": 0.5}`.

    Args:
        config: the type, and arguments of its constructor by name. The type is "ReplayBuffer",
            "PrioritizedReplayBuffer", one that an extension adds, or a subclass of theirs (the
            class itself, not a name of it).
        default: what `config` overrides. As in RLlib, a config of the same type, or of none, is merged into it, and one
            of another type replaces all of it.

    Raises:
        ConfigError: the type is unknown, or an argument is missing, unknown or invalid.
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
    reject_unknown(f"{subject}: {kind.__name__}", options, known)
    missing = [name for name, one in known.items() if one.default is one.empty and name not in options]
    if missing:
        replaced = ": a config of another type replaces the default, which is not merged into it" if base else ""
        raise ConfigError(f"{subject}: {kind.__name__} needs {', '.join(missing)}, got {sorted(options)}{replaced}")
    return kind(**options)


def _type_of(named: object) -> type[ReplayBuffer]:
    """Return the class that a config names."""
    if isinstance(named, type) and issubclass(named, ReplayBuffer):
        return named
    others = table("BUFFERS")
    if not isinstance(named, str) or named not in {**_TYPES, **others}:
        known = [*_TYPES, *others]
        raise ConfigError(
            f"buffer_from_config: type must be one of {known} or a subclass, got {named!r}{did_you_mean(named, known)}"
        )
    kind: type[ReplayBuffer] = _TYPES[named] if named in _TYPES else others[named].load()
    return kind
