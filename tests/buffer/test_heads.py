"""Heads go where an array of rows goes, in step or not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainkit.buffer.heads import Heads, one_by_one

MOVES = st.lists(st.tuples(st.sampled_from(["all", "some", "back"]), st.integers(1, 7)), max_size=20)


@given(n_envs=st.integers(1, 3), n_steps=st.integers(2, 5), moves=MOVES)
def test_heads_are_an_array_of_rows_that_knows_when_they_lie_side_by_side(
    n_envs: int, n_steps: int, moves: list[tuple[str, int]]
) -> None:
    n_rows, envs = n_envs * n_steps, np.arange(n_envs)
    heads, rows = Heads(n_envs, n_rows), np.arange(n_envs)
    for kind, which in moves:
        before = heads.rows
        kept = before.copy()
        if kind == "all":
            rows = (rows + n_envs) % n_rows
            heads.go_on(heads.side_by_side(1) if heads.are_in_step else rows)
        else:
            some = envs[[which >> env & 1 == 1 for env in range(n_envs)]]
            rows = rows.copy()
            rows[some] = (rows[some] + (n_envs if kind == "some" else -n_envs)) % n_rows
            heads.move(some, rows[some])
        np.testing.assert_array_equal(heads.rows, rows)
        np.testing.assert_array_equal(before, kept)  # what was read stays as it was
        assert heads.are_in_step == (rows == rows[0] + envs).all()
        if heads.are_in_step:
            for ahead in (-n_steps, -1, 0, 1, n_steps):
                np.testing.assert_array_equal(
                    one_by_one(heads.side_by_side(ahead)), (rows[0] + ahead * n_envs) % n_rows + envs
                )


@pytest.mark.parametrize("rows", [slice(3, 6), np.array([3, 4, 5])])
def test_rows_are_told_one_by_one_however_they_lie(rows: slice | np.ndarray) -> None:
    np.testing.assert_array_equal(one_by_one(rows), [3, 4, 5])
