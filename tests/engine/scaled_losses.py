"""A policy whose loss is multiplied by numbers that change from update to update."""

from typing import Any

import numpy as np
import pytest

import trainkit as tk
from tests.helpers.learning import Spaces, batch_of


class Scaled(tk.DQNPolicy):
    """Multiply the loss by a number on a schedule, a fixed one and a weight per row."""

    def loss_inputs(self, n_rows: int, *, step: int) -> Any:
        own = {"growing": 1 + step, "half": np.float32(0.5), "of_rows": np.linspace(0, 1, n_rows, dtype=np.float32)}
        return super().loss_inputs(n_rows, step=step) | own

    def loss(self, rows: tk.engine.TensorBatch) -> tk.engine.Loss:
        loss = super().loss(rows)
        scale = rows.inputs["growing"] * rows.inputs["half"] * rows.inputs["of_rows"]
        return tk.engine.Loss(loss.per_row * scale, loss.priority, metrics={"growing": rows.inputs["growing"]})


def check_that_numbers_arrays_and_tensors_reach_the_loss(engine: Any) -> None:
    plain = tk.DQNPolicy.for_envs(Spaces(), hidden=(8,), noisy=True, device="cpu", seed=0, engine="torch", lr=0.0)
    policy = Scaled.for_envs(Spaces(), hidden=(8,), noisy=True, device="cpu", seed=0, engine=engine, lr=0.0)
    batch = batch_of(16)
    scaled = batch_of(16, weight=batch.weight * np.linspace(0, 1, 16, dtype=np.float32) / 2)
    for step in range(4):
        plain.update(scaled, step=step)
        policy.update(batch, step=step)
        growing = policy.read_metrics()
        assert growing["growing"] == 1 + step
        assert growing["loss"] == pytest.approx((1 + step) * plain.read_metrics()["loss"], rel=1e-4)
    assert policy.engine.name == engine
