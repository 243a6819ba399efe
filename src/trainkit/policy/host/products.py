"""Products of matrices in numpy: whole or in parts, in whose memory, on whose threads.

OpenBLAS first packs what it multiplies into an order of its own, a sixth of a small product's time. Its AVX-512
kernels spare that up to a million multiplications, unless the second matrix is turned. So where it has them, rows are
multiplied in parts that are small enough, and `layers` passes through wide layers with nothing turned. Elsewhere each
part would pack the second matrix anew.
"""

from functools import cache, lru_cache
from typing import Any

import numpy as np
import torch

from trainkit.policy.host.tape import Array, Tape
from trainkit.threads import libraries

_LARGE = 2**15  # numbers of a matrix, for which the system is asked anew each time
_MANY = 2**22  # multiplications, for which several threads are worth the wait for each other
_UNPACKED = 10**6  # multiplications, up to which nothing is packed
_MOST_PARTS, _MOST_TURNED = 32, 8  # that still pay: of rows as they lie, and of turned ones
_AVX512 = {"SkylakeX", "Cooperlake", "SapphireRapids"}  # as OpenBLAS calls its kernels


@cache
def spares_packing() -> bool:
    """Whether numpy multiplies small matrices as they lie."""
    return any(getattr(library, "architecture", "") in _AVX512 for library in libraries())


def product(x: Array, y: Array, tape: Tape) -> Array:
    """Multiply matrices [..., B, K] and [..., K, N], large ones in memory that the tape keeps."""
    n_rows, width = x.shape[-2], y.shape[-1]
    room = tape.room(*(x.shape[:-2] or y.shape[:-2]), n_rows, width) if n_rows * width >= _LARGE else None
    return multiply(x, y, room)


def turned(x: Array, tape: Tape) -> Array:
    """Return matrices [..., N, B] of [..., B, N] that lie in order, large ones in memory that the tape keeps."""
    rows = x.swapaxes(-1, -2)
    if rows.size < _LARGE:
        return np.ascontiguousarray(rows)
    room = tape.room(*rows.shape)
    np.copyto(room, rows)
    return room


def multiply(x: Array, y: Array, out: Array | None) -> Array:
    """Return a product, written to `out`, float32 that lies in order: by torch where its threads have enough to do."""
    n_rows, n_sums, width = x.shape[-2], x.shape[-1], y.shape[-1]
    if n_sums == 1:
        return np.multiply(x, y, out=out)  # a fifth of an outer product's time
    cost = n_rows * n_sums * width  # of one of a stack
    if cost <= _UNPACKED:
        return multiply_whole(x, y, out)
    if out is not None and cost >= _MANY and torch.get_num_threads() > 1:
        torch.matmul(torch.from_numpy(x), torch.from_numpy(y), out=torch.from_numpy(out))
        return out
    n_parts = _parts(n_rows, cost, _MOST_PARTS if x.flags.c_contiguous else _MOST_TURNED) if spares_packing() else 1
    if n_parts == 1 or not y.flags.c_contiguous:
        return multiply_whole(x, y, out)
    size = n_rows // n_parts
    room = None if out is None else out.reshape(*out.shape[:-2], n_parts, size, width)
    parts = x.reshape(*x.shape[:-2], n_parts, size, n_sums)
    made: Any = np.matmul(parts, y if y.ndim == 2 else y[..., None, :, :], out=room)
    whole: Array = made.reshape(*made.shape[:-3], n_rows, width) if out is None else out
    return whole


def multiply_whole(x: Array, y: Array, out: Array | None) -> Array:
    """Do what `multiply` does in one call of numpy: `matmul` for stacks, else `dot`, which begins 0.5 us sooner."""
    return np.matmul(x, y, out=out) if x.ndim > 2 or y.ndim > 2 else x.dot(y, out=out)


@lru_cache(maxsize=256)
def _parts(n_rows: int, cost: int, most: int) -> int:
    """Return in how many equal parts of the rows no part is packed; 1 where there is no such number."""
    sizes = (2**i for i in range(most.bit_length()))
    return next((n for n in sizes if n_rows % n == 0 and cost <= n * _UNPACKED), 1)
