"""Losses of a user's own with operations that torch accepts, on the default engine."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import trainkit as tk
from trainkit.engine import Loss, TensorBatch

TERMS: dict[str, Callable[[TensorBatch], torch.Tensor]] = {
    "xlogy of a number": lambda rows: torch.special.xlogy(2.0, rows.obs.abs() + 1.0).sum(1),
    "round of integers": lambda rows: rows.action.round().float(),
    "any of bytes": lambda rows: (rows.obs > 0).to(torch.uint8).any(1).float(),
    "all of bytes": lambda rows: (rows.obs > 0).to(torch.uint8).all(1).float(),
    "logsumexp of integers": lambda rows: torch.stack([rows.action, rows.action], 1).logsumexp(1),
    "a negative power of integers": lambda rows: (2**-rows.action).float(),
}


class OwnLoss(tk.DQNPolicy):
    """A DQN whose loss of each row is scaled by a term."""

    def __init__(self, *args: Any, term: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self.term = term

    def loss(self, batch: TensorBatch, /) -> Loss:
        own = super().loss(batch)
        return Loss(own.per_row * (1.0 + TERMS[self.term](batch)), own.priority, own.metrics)


def weights(term: str, engine: Any) -> dict[str, Any]:
    envs = tk.make_envs("CartPole-v1", 2, seed=1)
    policy = OwnLoss.for_envs(envs, term=term, hidden=(8,), seed=1, engine=engine, device="cpu")
    buffer = tk.ReplayBuffer(200, seed=1)
    tk.Collector(policy, envs, buffer, seed=1).collect(n_step=100)
    for step in range(8):
        policy.update(buffer.sample(16, horizon=policy.horizon), step=step)
    return policy.get_weights()


@pytest.mark.parametrize("term", TERMS)
def test_an_own_loss_trains_on_the_default_engine_as_by_torch(term: str) -> None:
    ours, torchs = weights(term, "auto"), weights(term, "torch")
    for name, array in torchs.items():
        np.testing.assert_allclose(ours[name], array, rtol=1e-4, atol=1e-5)
