"""Updates of policies of all kinds by two engines: the same batches, and what is compared of them."""

from typing import Any

import numpy as np
import pytest
from torch.testing import assert_close

from tests.helpers.learning import FOUR_NUMBERS, MASKED, PARTS, batch_of, parameters_of
from trainkit import A2CPolicy, Clip, ConservativePenalty, ExpectedValue, Policy, PPOPolicy, ReinforcePolicy

MORE_PARTS = [
    *PARTS,
    pytest.param({"penalty": ConservativePenalty(0.5), "space": MASKED}, id="conservative, masked"),
    pytest.param({"value": ExpectedValue("mse"), "max_grad_norm": 0.1, "n_step": 3}, id="mse, clipped"),
    pytest.param({"clip": Clip(0.01, by="norm"), "dueling": True, "space": MASKED}, id="clipped one by one, masked"),
]


ON_POLICY = [
    pytest.param(PPOPolicy, FOUR_NUMBERS, {}, id="ppo"),
    pytest.param(PPOPolicy, MASKED, {"entropy_weight": 0.1, "clip_value": 0.2}, id="ppo masked"),
    pytest.param(PPOPolicy, FOUR_NUMBERS, {"entropy_weight": [(0, 0.1), (9, 0.0)], "clip_ratio": [(0, 0.3), (9, 0.1)]},
                 id="ppo scheduled"),
    pytest.param(A2CPolicy, MASKED, {"entropy_weight": [(0, 0.1), (9, 0.0)]}, id="a2c"),
    pytest.param(ReinforcePolicy, FOUR_NUMBERS, {"normalize_obs": True}, id="reinforce"),
]  # fmt: skip


def learn_alike(compiled: Policy, plain: Policy, batches: Any, start: int = 0) -> None:
    """Take the same updates, and compare what comes of each, and in the end all parameters."""
    for step, batch in enumerate(batches, start):
        mine, theirs = compiled.update(batch, step=step), plain.update(batch, step=step)  # type: ignore[attr-defined]
        if theirs.priority is not None:
            np.testing.assert_allclose(mine.read_priority(), theirs.read_priority(), rtol=1e-4, atol=1e-5)
    assert_close(parameters_of(compiled), parameters_of(plain), rtol=1e-4, atol=1e-5)
    mine, theirs = compiled.read_metrics(), plain.read_metrics()
    assert list(mine) == list(theirs)
    assert mine == {name: pytest.approx(number, rel=1e-4, abs=1e-5) for name, number in theirs.items()}


def batches(n: int, space: Any = None, *, n_rows: int = 16) -> list[Any]:
    return [batch_of(n_rows, seed=seed, **({} if space is None else {"space": space})) for seed in range(n)]
