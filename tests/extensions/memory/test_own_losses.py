"""A loss of a user's, written for rows, learns from sequences as well: it calls networks with observations."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

import trainkit as tk
from benchmarks.learning.memory_tasks import TMaze
from tests.helpers.engine import engines
from tests.helpers.learning import parameters_of
from trainkit.buffer import sample_sequences

MAZE = 4  # steps from the signal to the junction


class OwnDQN(tk.DQNPolicy):
    """DQN's loss, written by someone who does not know of memories."""

    def loss(self, rows: Any) -> tk.engine.Loss:
        q = self.network(rows.obs).outputs.squeeze(2).gather(1, rows.action[:, None]).squeeze(1)
        with torch.no_grad():
            after = self.target_network(rows.next_obs).outputs.squeeze(2).amax(dim=1)
            target = rows.reward + rows.discount * after
        loss = functional.smooth_l1_loss(q, target, reduction="none")
        return tk.engine.Loss(loss, (q - target).detach().abs(), {"q_mean": q})


def learner(kind: Any, recurrent: Any, **options: Any) -> tuple[Any, tk.ReplayBuffer, tk.Collector]:
    envs = tk.make_envs(lambda: TMaze(MAZE), 4)
    memory = {} if recurrent is None else {"recurrent": recurrent, "sequences": tk.Sequences(16, 0)}
    policy = kind.for_envs(envs, hidden=(32,), lr=2e-3, gamma=0.95, device="cpu", **memory, **options)
    buffer = tk.ReplayBuffer(20_000)
    return policy, buffer, tk.Collector(policy, envs, buffer)


@pytest.mark.parametrize("recurrent", [None, "lstm", "gru"])
@pytest.mark.parametrize("engine", engines("torch", "numpy"))
def test_it_takes_the_steps_of_the_built_in_loss(recurrent: Any, engine: Any) -> None:
    own, buffer, collector = learner(OwnDQN, recurrent, seed=1, engine=engine)
    collector.collect(n_step=200)
    plain, _, _ = learner(tk.DQNPolicy, recurrent, seed=1, engine=engine)
    assert_close(parameters_of(own.network), parameters_of(plain.network))
    for step in range(6):
        if recurrent is None:
            batch: Any = buffer.sample(8, horizon=own.horizon)
        else:
            batch = sample_sequences(buffer, 8, length=16, burn_in=0, horizon=own.horizon)
        mine, theirs = (policy.update(copy.deepcopy(batch), step=step) for policy in (own, plain))
        np.testing.assert_allclose(mine.read_priority(), theirs.read_priority(), rtol=1e-4, atol=1e-5)
    assert_close(parameters_of(own.network), parameters_of(plain.network), rtol=1e-4, atol=1e-5)
    assert own.read_metrics()["q_mean"] == pytest.approx(plain.read_metrics()["q_mean"], rel=1e-4, abs=1e-5)
    assert own.engine.name == engine


@pytest.mark.slow
@pytest.mark.parametrize(("recurrent", "low", "high"), [("lstm", 3.5, 4.0), (None, 0.0, 2.6)])
def test_it_learns_a_maze_that_takes_a_memory(recurrent: Any, low: float, high: float) -> None:
    """The right turn earns 4; without a memory of the signal one of two turns is right."""
    explored = tk.EpsilonGreedy([(0, 1.0), (12_000, 0.05)])
    policy, _, collector = learner(OwnDQN, recurrent, exploration=explored, target=tk.Target(400))
    how: dict[str, Any] = {"max_epoch": 1, "step_per_epoch": 24_000, "batch_size": 32, "update_per_step": 0.125}
    tk.OffpolicyTrainer(policy, collector, **how, learning_starts=500, seed=1, verbose=False, show_progress=False).run()
    mean = tk.evaluate(policy, lambda: TMaze(MAZE), n_episode=100, seed=3).returns.mean
    assert mean is not None
    assert low <= mean <= high
