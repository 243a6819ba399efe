"""A policy that stores columns with its actions and names them for its updates."""

from typing import Any

import numpy as np
from numpy.testing import assert_array_equal

import trainkit as tk
from tests.trainer.toys import Walk
from trainkit.core.data import ActOutput, ArraySpec, TransitionBatch

DOUBLED = ArraySpec(shape=(2,), dtype=np.dtype(np.float32))


class Doubling(tk.DQNPolicy):
    """Store twice the observation with every action, and remember every batch of an update."""

    columns = ("doubled", "t")

    def __init__(self, *parts: Any, **words: Any) -> None:
        super().__init__(*parts, **words)
        self._extras_spec = {"doubled": DOUBLED}
        self.batches: list[TransitionBatch] = []

    def act(self, obs: Any, **how: Any) -> ActOutput:
        action = self.rng.integers(0, 2, len(obs)) if how.get("explore") else np.zeros(len(obs), np.int64)
        return ActOutput(action, {"doubled": 2 * obs}, None)

    def update(self, batch: TransitionBatch, *, step: int) -> Any:
        self.batches.append(batch.copy())
        return super().update(batch, step=step)


def parts(buffer: Any, kind: type[Doubling] = Doubling) -> tuple[Doubling, tk.Collector]:
    envs = tk.make_envs(Walk, 2, seed=1)
    policy = kind.for_envs(envs, hidden=(8,), device="cpu")
    return policy, tk.Collector(policy, envs, buffer)


def options(**more: Any) -> dict[str, Any]:
    own = {"max_epoch": 1, "step_per_epoch": 40, "batch_size": 8, "seed": 1, "verbose": False, "show_progress": False}
    return {**own, **more}


def assert_columns_are_of_their_rows(policy: Doubling) -> None:
    assert len(policy.batches) > 10
    for batch in policy.batches:
        assert set(batch.extras) == {"doubled", "t"}
        assert_array_equal(batch.extras["doubled"], 2 * batch.obs)
        assert_array_equal(batch.extras["t"], batch.obs[:, 1])  # the walk's clock
