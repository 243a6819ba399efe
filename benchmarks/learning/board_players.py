"""Scripted players of PettingZoo's board games: a perfect one of tic-tac-toe, and one of Connect Four that looks ahead.

An observation is the board [K, ..., 2] of the agent that moves, whose own stones are in the first plane.
"""

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

LINES = [*((i, i + 1, i + 2) for i in (0, 3, 6)), *((i, i + 3, i + 6) for i in range(3)), (0, 4, 8), (2, 4, 6)]
N_ROWS, N_COLUMNS = 6, 7


class PerfectTicTacToe:
    """Draw uniformly from the moves that minimax finds to be best.

    Args:
        seed: of the draws.
    """

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def __call__(self, obs: Any) -> NDArray[np.int64]:
        """Return a move [K] for each board."""
        boards = np.asarray(obs["observation"]).reshape(-1, 9, 2)
        return np.array([self._rng.choice(best_moves(*map(tuple, board.T.tolist()))) for board in boards])


@cache
def best_moves(own: tuple[int, ...], other: tuple[int, ...]) -> list[int]:
    """Return the moves of the largest value for the player with `own` stones."""
    values = {move: -value_of(other, _with(own, move)) for move in range(9) if not own[move] + other[move]}
    return [move for move, value in values.items() if value == max(values.values())]


@cache
def value_of(own: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Return the result of perfect play, 1 where the player who is to move wins."""
    if any(all(other[cell] for cell in line) for line in LINES):
        return -1
    return max((-value_of(other, _with(own, move)) for move in range(9) if not own[move] + other[move]), default=0)


def _with(stones: tuple[int, ...], move: int) -> tuple[int, ...]:
    return (*stones[:move], 1, *stones[move + 1 :])


class TwoPlyConnectFour:
    """Win at once, else block a win at once, else move at random.

    Args:
        seed: of the random moves.
    """

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def __call__(self, obs: Any) -> NDArray[np.int64]:
        """Return a column [K] for each board."""
        boards, masks = np.asarray(obs["observation"]), np.asarray(obs["action_mask"])
        return np.array([self._column(board, mask) for board, mask in zip(boards, masks, strict=True)])

    def _column(self, board: NDArray[Any], mask: NDArray[Any]) -> int:
        free = np.flatnonzero(mask).tolist()
        occupied = board.any(axis=2)
        for stones in (board[:, :, 0], board[:, :, 1]):
            for column in free:
                if _has_four(stones, N_ROWS - 1 - int(occupied[:, column].sum()), column):
                    return int(column)
        return int(self._rng.choice(free))


def _has_four(stones: NDArray[Any], row: int, column: int) -> bool:
    """Return whether a stone placed here completes a line of four."""
    for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
        length = 1
        for sign in (1, -1):
            i, j = row + sign * down, column + sign * right
            while 0 <= i < N_ROWS and 0 <= j < N_COLUMNS and stones[i, j]:
                length, i, j = length + 1, i + sign * down, j + sign * right
        if length >= 4:
            return True
    return False
