"""Numbers that change from update to update reach a loss by `loss_inputs`, whatever executes it."""

from typing import Any

import pytest
import torch

from tests.engine.scaled_losses import Scaled, check_that_numbers_arrays_and_tensors_reach_the_loss
from tests.helpers.engine import engines
from tests.helpers.learning import Spaces


@pytest.mark.parametrize("engine", engines("torch", "numpy"))
def test_numbers_arrays_and_tensors_reach_the_loss(engine: Any) -> None:
    check_that_numbers_arrays_and_tensors_reach_the_loss(engine)


def test_spaces_are_checked_with_own_inputs_and_nothing_is_drawn() -> None:
    policy = Scaled.for_envs(Spaces(), hidden=(8,), noisy=True, device="cpu", seed=0)
    before = policy.generator.get_state()
    policy.check_spaces(*Spaces())
    assert torch.equal(policy.generator.get_state(), before)
