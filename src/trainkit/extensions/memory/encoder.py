"""`RecurrentEncoder`: an encoder with a memory behind its last layer."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from trainkit.core import tree
from trainkit.core.errors import Checks
from trainkit.extensions.memory.memories import make_memory
from trainkit.extensions.memory.recurrence import Recall, RecurrentMemory
from trainkit.extensions.memory.sequences import sequences_for
from trainkit.nets.encoders import Recurrent, StatefulEncoder


class RecurrentEncoder(StatefulEncoder):
    """An encoder and a memory behind its last layer.

    Args:
        shapes, hidden, how: as in `Encoder`.
        recurrent: "lstm", "gru", "transformer", or a function of its number of inputs that returns a `Memory`.

    Attributes:
        part: the part of a policy's state [B, S] that is this memory's.
    """

    def __init__(self, shapes: Any, hidden: Any, *layers: Any, recurrent: Recurrent, **how: Any) -> None:
        super().__init__(shapes, hidden, *layers, **how)
        self.memory = make_memory(recurrent, self.n_features)
        self.n_features, self.part = self.memory.n_features, slice(0, self.memory.state_size)

    @staticmethod
    def network_state(encoders: Sequence[StatefulEncoder], *, policy: str, sequences: object, learns_from: str) -> Any:
        """Return the `RecurrentMemory` of a policy's encoders, and give each its part of the state.

        Raises:
            ConfigError: an encoder is of another kind, or the sequences are not for where batches are from.
        """
        own = [encoder for encoder in encoders if isinstance(encoder, RecurrentEncoder)]
        with Checks(policy) as checks:
            checks.require(len(own) == len(encoders), " has encoders with states of two kinds: give networks one kind")
        chosen = sequences_for(policy, sequences, learns_from)
        lay_out_states(own)
        return RecurrentMemory(own, chosen)

    def forward(self, features: Any) -> Tensor:
        """Return outputs [B, F] of features [B, ...], those at an episode's start, or of features to recall."""
        if isinstance(features, Recall):
            return features.recall(self)
        x = self.encode(features)
        return self.memory.step(x, x.new_zeros(len(x), self.memory.state_size))[0]

    def unroll(self, features: Any, state: Tensor, starts: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the memory's outputs [T, B, F] and last states [B, S] of features [T, B, ...]; see `Memory`."""
        shape = tree.first_leaf(features).shape[:2]
        encoded = self.encode(tree.map_tree(lambda leaf: leaf.flatten(0, 1), features))
        outputs: tuple[Tensor, Tensor] = self.memory(encoded.view(*shape, -1), state, starts)
        return outputs


def lay_out_states(encoders: Sequence[RecurrentEncoder]) -> None:
    """Give each encoder its part of a state, one after the other."""
    start = 0
    for encoder in encoders:
        encoder.part = slice(start, start + encoder.memory.state_size)
        start = encoder.part.stop
