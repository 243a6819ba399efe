"""What a batch brings along: columns by name, and the parts of a round that was drawn at once."""

from typing import Any

from numpy.typing import NDArray

from trainkit import tree
from trainkit.buffer.nstep import Windows
from trainkit.buffer.storage import Rings, Rows
from trainkit.data import TransitionBatch
from trainkit.errors import ConfigError, nearest


def read_column(owner: str, name: str, rings: Rings, rows: Rows, windows: Windows) -> NDArray[Any]:
    """Return a column [B, ...] of rows or of their windows; refuse a name that is none, but for `owner`'s own."""
    if name == "n":
        return windows.n_steps
    if name == "env_id":
        return rows % rings.n_envs
    stored = {
        "t": rings.age,
        "episode": rings.episode,
        "terminated": rings.terminated,
        "truncated": rings.truncated,
        **rings.extras,
    }
    if name not in stored:
        known = ["n", "env_id", "weight", *stored]
        raise ConfigError(f"{owner} has no column {name!r}, only {known}{nearest(name, known)}")
    column: NDArray[Any] = stored[name][rows]
    return column


def cut_up(drawn: TransitionBatch, n_batches: int) -> list[TransitionBatch]:
    """Return equal parts of what was drawn, one after the other; their arrays are views."""
    if n_batches == 1:
        return [drawn]
    size = len(drawn) // n_batches

    def part(own: slice) -> TransitionBatch:
        return TransitionBatch(
            obs=tree.map_tree(lambda leaf: leaf[own], drawn.obs),
            action=drawn.action[own],
            reward=drawn.reward[own],
            discount=drawn.discount[own],
            next_obs=tree.map_tree(lambda leaf: leaf[own], drawn.next_obs),
            weight=drawn.weight[own],
            slots=drawn.slots[own],
            extras={name: column[own] for name, column in drawn.extras.items()},
        )

    return [part(slice(begin, begin + size)) for begin in range(0, len(drawn), size)]
