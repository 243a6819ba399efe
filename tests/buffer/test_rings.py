"""Ring buffers without data: cursors, live rows and evictions are those of one list per ring."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from trainkit.buffer.rings import Rings, rows_of_block

MOVES = st.lists(st.tuples(st.sampled_from(["all", "some", "rewind"]), st.integers(1, 7)), max_size=20)


@given(n_rings=st.integers(1, 3), capacity=st.integers(3, 12), n_spare=st.integers(1, 3), moves=MOVES)
@settings(max_examples=50)
def test_cursors_and_live_rows_are_those_of_one_list_per_ring(
    n_rings: int, capacity: int, n_spare: int, moves: list[tuple[str, int]]
) -> None:
    rings = Rings(n_rings, capacity, n_spare)
    limits = [capacity // n_rings + (ring < capacity % n_rings) for ring in range(n_rings)]
    length = max(limits) + n_spare
    assert rings.n_rows == n_rings * length
    position = [0] * n_rings
    live: list[list[int]] = [[] for _ in range(n_rings)]  # rows from the oldest
    for kind, which in moves:
        before, kept = rings.cursors, rings.cursors.copy()
        if kind == "rewind":
            ring = which % n_rings
            n_rows = min(which, len(live[ring]))
            expected = live[ring][len(live[ring]) - n_rows :]
            del live[ring][len(live[ring]) - n_rows :]
            position[ring] -= n_rows
            assert rings.rewind(ring, n_rows).tolist() == expected
        else:
            envs = [ring for ring in range(n_rings) if kind == "all" or which >> ring & 1]
            evicted = []
            for ring in envs:
                live[ring].append(position[ring] % length * n_rings + ring)
                position[ring] += 1
                if len(live[ring]) > limits[ring]:
                    evicted.append(live[ring].pop(0))
            pushed = rings.push(None if kind == "all" else np.array(envs, np.int64))
            assert ([] if pushed is None else rows_of_block(pushed).tolist()) == evicted
        assert_array_equal(before, kept)  # what was read stays as it was
        assert rings.cursors.tolist() == [position[ring] % length * n_rings + ring for ring in range(n_rings)]
        assert rings.count.tolist() == [len(rows) for rows in live]
        assert rings.n_live == sum(map(len, live))
        assert rings.live_rows(np.arange(rings.n_live)).tolist() == [row for rows in live for row in rows]
        assert [rings.rows_of(ring).tolist() for ring in range(n_rings)] == live
        assert rings.is_aligned == (len({at % length for at in position}) == 1)
        block = rings.heads(None)
        assert isinstance(block, slice) == rings.is_aligned
        assert_array_equal(np.arange(rings.n_rows)[block], rings.cursors)
