"""What a buffer will take of the machine's memory, asked before it is claimed.

Memory that is promised is not memory that is there: Linux hands out columns of zeros for free and takes them back by
killing the process, hours later, when they have filled.
"""

from trainkit.buffer.layout import row_nbytes
from trainkit.buffer.samplers import Sampler
from trainkit.core import tree
from trainkit.core.data import RowSpec
from trainkit.core.errors import ConfigError
from trainkit.core.reading import memory_left


def bytes_needed(capacity: int, spec: RowSpec, sampler: Sampler) -> int:
    """Return what rings and sampler take, but for final observations, which come as episodes end."""
    stack: int = max(leaf.stack for leaf in tree.leaves(spec.obs))
    n_rows = spec.n_envs * (-(-capacity // spec.n_envs) + stack)
    return n_rows * row_nbytes(spec) + sampler.bytes_for(n_rows)


def refuse_too_large(subject: str, capacity: int, spec: RowSpec, sampler: Sampler) -> None:
    """Refuse a buffer that is larger than the memory that is left; where nobody can tell, nothing is refused."""
    needed, left = bytes_needed(capacity, spec, sampler), memory_left()
    if left is None or needed <= left:
        return
    raise ConfigError(
        f"{subject} of {capacity:,} transitions needs {needed:,} bytes ({needed / 1e9:.1f} GB), and {left:,} "
        f"({left / 1e9:.1f} GB) are left: lower the capacity to {int(capacity * 0.9 * left / needed):,}, store smaller "
        "observations (uint8 images, single frames by stack=), or free memory"
    )
