"""SAC learns a real task, seeded, to a score random play is far from."""

import pytest

import trainkit as tk


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"buffer": "prioritized", "n_step": 3}], ids=["plain", "prioritized, 3 steps"])
def test_sac_swings_the_pendulum_up(more: dict[str, object]) -> None:
    trainer = tk.presets.sac("Pendulum-v1", seed=0, max_epoch=1, step_per_epoch=10_000, verbose=False, **more)
    with trainer:
        result = next(trainer)
    returns = result.stats["test/returns/mean"]
    assert returns is not None
    assert returns >= -250  # random play gets about -1,200
