"""Policies by the numpy engine and by torch, which must act and learn alike."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from tests.extensions.numpy_engine.numpy_passes import note_numpy_passes
from tests.helpers.learning import (
    FOUR_NUMBERS,
    parameters_of,
)
from trainkit import (
    Policy,
)

TWO_NUMBERS = spaces.Box(-1.0, 1.0, (2,), np.float32)


def gradients_of(policy: Policy) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}


def learn_alike(
    mine: Policy, theirs: Policy, batches: list[Any], *, rtol: float = 1e-4, atol: float = 1e-5, n_passes: int = 1
) -> None:
    """Take the same updates by numpy and by torch."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        passes: list[int] = []
        note_numpy_passes(monkeypatch, lambda: passes.append(1))
        for step, batch in enumerate(batches):
            one, other = mine.update(batch, step=step), theirs.update(batch, step=step)
            if other.priority is not None:
                np.testing.assert_allclose(one.read_priority(), other.read_priority(), rtol=2 * rtol, atol=atol)
            if step == 0:
                torch.testing.assert_close(gradients_of(mine), gradients_of(theirs), rtol=1e-4, atol=1e-6)
    assert len(passes) == n_passes * len(batches)
    torch.testing.assert_close(parameters_of(mine), parameters_of(theirs), rtol=rtol, atol=atol)
    metrics, expected = mine.read_metrics(), theirs.read_metrics()
    assert metrics == {
        name: pytest.approx(number, rel=10 * rtol, abs=atol, nan_ok=True) for name, number in expected.items()
    }


NESTED = spaces.Dict({"place": spaces.Discrete(5), "speed": FOUR_NUMBERS, "action_mask": spaces.MultiBinary(3)})
