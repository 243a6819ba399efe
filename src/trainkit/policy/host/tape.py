"""What a pass through layers leaves for the way back, and the memory that it is done in."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


class Tape:
    """Keep what each layer's forward pass leaves, which its backward pass takes off the end, and room for arrays.

    Arrays of a few hundred KB that are made anew at each update cost as much again: the system takes them back and
    clears them each time. So they are kept, and given out again once the tape was rewound.
    """

    def __init__(self) -> None:
        self._left: list[tuple[Any, ...]] = []
        self._kept: dict[tuple[int, ...], list[Array]] = {}
        self._n_given: dict[tuple[int, ...], int] = {}  # of those of each shape

    def __len__(self) -> int:
        return len(self._left)

    def rewind(self) -> "Tape":
        """Begin another update; arrays of shapes that the last one had no use for are forgotten."""
        self._kept = {shape: self._kept[shape] for shape in self._n_given}
        self._n_given.clear()
        self._left.clear()
        return self

    def room(self, *shape: int) -> Array:
        """Return an array of some shape that nobody else is given until the tape is rewound, its numbers whatever."""
        n_given, kept = self._n_given.get(shape, 0), self._kept.setdefault(shape, [])
        if n_given == len(kept):
            kept.append(np.empty(shape, np.float32))
        self._n_given[shape] = n_given + 1
        return kept[n_given]

    def append(self, *left: Any) -> None:
        """Leave something for the way back."""
        self._left.append(left)

    def pop(self) -> tuple[Any, ...]:
        """Take what was left last."""
        return self._left.pop()
