"""The prioritised replay buffer: the same rows, drawn by how much there is to learn from them."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trainkit.buffer.heads import Rows
from trainkit.buffer.replay import ReplayBuffer
from trainkit.buffer.samplers import Prioritized
from trainkit.core.protocols import EnvSpaces, FrameStore
from trainkit.core.schedules import Scheduled, to_plain
from trainkit.core.signatures import checked


@checked
class PrioritizedReplayBuffer(ReplayBuffer):
    """Draw rows in proportion to (priority + eps)**alpha (Schaul et al., 2016).

    Args:
        capacity: transitions in all.
        alpha: how much priority counts, in [0, 1]; 0 is uniform.
        beta: exponent of the importance weights, in [0, 1]; a number, knots or a schedule of the environment step.
        eps: added to every priority, so that none is drawn never.
        normalize: divide weights by the largest of the "batch" (default: Dopamine, ChainerRL) or of the "buffer"
            (the paper), where one row of priority 0 can scale all others to almost nothing.
        draw: "stratified" (the paper) or "iid".
        n_envs: as in `ReplayBuffer`.
        stack: as in `ReplayBuffer`.
        spaces: as in `ReplayBuffer`.
        frames: as in `ReplayBuffer`.
        seed: as in `ReplayBuffer`.
    """

    prioritized: bool = True

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
        self._sampler: Prioritized = Prioritized(alpha, beta, eps, normalize, draw)

    def priorities(self) -> NDArray[np.float64]:
        """Look at all rows, environment by environment from the oldest, and return their priorities [size]."""
        return np.empty(0) if self._bound is None else self._sampler.priority(self._all_rows)

    def probabilities(self) -> NDArray[np.float64]:
        """Look at all rows as `priorities` does, and return how likely each is to be drawn next [size]."""
        if len(self) == 0:
            return np.empty(0)
        mass: NDArray[np.float64] = self._sampler.mass(self._all_rows)
        mass /= mass.sum()
        return mass

    def weights(self, step: int = 0) -> NDArray[np.float64]:
        """Look at all rows as `priorities` does, and return their importance weights [size], over the largest."""
        if len(self) == 0:
            return np.empty(0)
        weight: NDArray[np.float64] = self._sampler.weight(self._all_rows, step)
        weight /= weight.max()
        return weight

    @property
    def _all_rows(self) -> Rows:
        return self._rings.live_row(np.arange(len(self)))

    def _options(self) -> dict[str, Any]:
        sampler = self._sampler
        named = {"alpha": sampler.alpha, "eps": sampler.eps, "normalize": sampler.normalize, "draw": sampler.how}
        return super()._options() | named | {"beta": to_plain(sampler.beta)}
