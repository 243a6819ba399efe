"""What a simulator is."""

from typing import Any, Protocol, runtime_checkable

from trainkit.core.data import Obs
from trainkit.core.protocols import EnvSpaces


@runtime_checkable
class Simulator(EnvSpaces, Protocol):
    """N environments that stay on a device: tensors in, tensors out.

    All tensors are on `device`, have N rows, and may be overwritten by the next call. Optional members: `state_dict()`
    and `load_state_dict(state)`, of tensors and plain values, with which a resumed run continues with the same bits;
    `close()`.
    """

    @property
    def n(self) -> int:
        """Number of environments."""
        ...

    @property
    def device(self) -> Any:
        """The torch device, or its name."""
        ...

    def reset(self, seed: int) -> Obs:
        """Reset every environment and all random streams; return the observations [N, ...]."""
        ...

    def step(self, action: Any) -> tuple[Any, ...]:
        """Step every environment, and reset those whose episode ended, within the same step.

        Args:
            action: [N, ...].

        Returns:
            five tensors, or trees of them: obs [N, ...], to act on next, where an episode ended the first of the next;
            reward [N], float32; terminated [N] and truncated [N], bool;
            final_obs [N, ...], before any reset: read only where an episode ended.
        """
        ...
