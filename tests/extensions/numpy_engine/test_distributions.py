"""Actions drawn by the numpy engine: those of torch on the same noise."""

from typing import Any

import numpy as np
import pytest

from tests.nets.families import FAMILIES, Actor, generator, numbers_for


@pytest.mark.parametrize("explore", [False, True])
@pytest.mark.parametrize("make", FAMILIES)
def test_both_engines_act_alike_on_the_same_noise(make: Any, explore: bool) -> None:
    family = make()
    numbers = numbers_for(family, 64)
    noise = family.draw_noise(64, generator()) if explore else None
    (mine, my_log_prob), (theirs, their_log_prob) = (
        Actor(family, engine).act(numbers, None, noise) for engine in ("numpy", "torch")
    )
    assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
    np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
    assert my_log_prob.shape == (64,)
    assert my_log_prob.dtype == their_log_prob.dtype == np.float32
    np.testing.assert_allclose(my_log_prob, their_log_prob, rtol=1e-4, atol=1e-4)  # of a squashed action's own digits
