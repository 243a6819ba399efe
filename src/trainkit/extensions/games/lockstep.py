"""Replay in lockstep: a batch has the rows of all agents of a game that were stored in the same step."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit.buffer.nstep import Windows
from trainkit.buffer.replay import ReplayBuffer
from trainkit.buffer.rings import Rows
from trainkit.buffer.samplers import UniformSampler
from trainkit.buffer.storage import FrameStore
from trainkit.core.data import Horizon, RowSpec
from trainkit.core.errors import Checks, ConfigError
from trainkit.core.protocols import EnvSpaces
from trainkit.core.signatures import checked

MOMENT = "moment"  # the column: equal for the rows of a game that one step stored


class LockstepSampler(UniformSampler):
    """Sample rows uniformly, each with the rows of the other agents of its game that were added in the same step.

    Rows [M * A] are those of M moments one after the other, in the order of the agents. In place of an agent without a
    row at that moment stands the sampled row once more, with weight 0.

    Args:
        n_agents: A.
    """

    def __init__(self, n_agents: int) -> None:
        self.n_agents = n_agents

    def draw(
        self, batch_size: int, step: int, rng: np.random.Generator, n_batches: int = 1
    ) -> tuple[Rows, NDArray[np.float32]]:
        n_moments = max(batch_size // self.n_agents, 1) * n_batches
        drawn, _ = super().draw(n_moments, step, rng)
        rows = self._of_all_agents(drawn)
        weight = self.is_present(rows).astype(np.float32)
        return rows.ravel(), weight.ravel()

    def is_present(self, rows: Rows) -> NDArray[np.bool_]:
        """Return which of the rows [M, A] of moments are those of the agent in their column."""
        present: NDArray[np.bool_] = rows % self._storage.rings.n_rings % self.n_agents == np.arange(self.n_agents)
        return present

    def _of_all_agents(self, drawn: Rows) -> Rows:
        """Return the rows [M, A] of the moments of sampled rows [M], found by bisection: stamps rise in each ring."""
        rings, stamp = self._storage.rings, self._storage.records.stamp
        first = drawn % rings.n_rings // self.n_agents * self.n_agents
        ring = first[:, None] + np.arange(self.n_agents)
        wanted = stamp[drawn][:, None]
        newest, count = rings.after(rings.cursors[ring], -1), rings.count[ring]
        low, high = np.zeros_like(count), np.maximum(count - 1, 0)  # steps back from the newest row
        while (low < high).any():
            middle = (low + high) // 2
            is_later = stamp[rings.after(newest, -middle)] > wanted
            low, high = np.where(is_later, middle + 1, low), np.where(is_later, high, middle)
        found = rings.after(newest, -low)
        rows: Rows = np.where((count > 0) & (stamp[found] == wanted), found, drawn[:, None])
        return rows


@checked
class LockstepReplayBuffer(ReplayBuffer):
    """Keep the last `capacity` transitions, and sample those of all agents of a game at the same moment together.

    A batch of B has B / `n_agents` moments, rounded down, one after the other, each with a row of every agent in their
    order. A moment is drawn as often as agents acted in it; the row of an agent that did not act is a copy of another
    with weight 0. The column "moment" [B] is equal for rows of one moment, as `VDNBackup` needs it.

    Args:
        capacity: transitions in all.
        n_agents: agents of a game, `envs.n_agents`, or those that a policy of a `MultiAgentPolicy` controls.
        n_envs, stack, spaces, frames, seed: as in `ReplayBuffer`.
    """

    own_columns = (MOMENT,)
    sampler: LockstepSampler

    def __init__(
        self,
        capacity: int,
        *,
        n_agents: int,
        n_envs: int | None = None,
        stack: int = 1,
        spaces: EnvSpaces | None = None,
        frames: FrameStore | None = None,
        seed: int | None = None,
    ) -> None:
        with Checks("LockstepReplayBuffer") as checks:
            checks.integer("n_agents", n_agents, low=1)
        super().__init__(capacity, n_envs=n_envs, stack=stack, spaces=spaces, frames=frames, seed=seed)
        self.n_agents = n_agents
        self.sampler = LockstepSampler(n_agents)

    def bind(self, spec: RowSpec) -> None:
        """Allocate all memory for rows of this spec.

        Raises:
            ConfigError: its environments are not those of whole games.
        """
        n_agents = self.n_agents
        if spec.n_envs % n_agents:
            raise ConfigError(
                f"LockstepReplayBuffer.n_agents is {n_agents}, and rows come from {spec.n_envs} environments, which "
                "are not whole games of that many agents: give envs.n_agents"
            )
        super().bind(spec)

    def _column(self, name: str, rows: Rows, windows: Windows, horizon: Horizon, step: int) -> NDArray[Any]:
        if name != MOMENT:
            return super()._column(name, rows, windows, horizon, step)
        n_agents = self.n_agents
        if len(rows) == len(np.unique(rows)):  # no moment twice, as where a batch is all rows
            n_rings = self._storage.rings.n_rings
            moment: NDArray[np.int64] = self._storage.records.stamp[rows] * n_rings + rows % n_rings // n_agents
            return moment
        present = self.sampler.is_present(rows.reshape(-1, n_agents))
        own = np.arange(len(rows)).reshape(present.shape)
        moments: NDArray[np.int64] = np.where(present, own[:, :1] + present.argmax(axis=1)[:, None], own)
        return moments.ravel()
