"""Layers that draw from torch's global generators: the seed and checkpoints cover them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import trainkit as tk
from tests.helpers.networks import drawn
from tests.outside.outcomes import digest


class Recurrent(nn.Module):
    """An encoder of torch's own recurrent layers, which have dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = nn.GRU(4, 8, num_layers=2, dropout=0.5, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.memory(x.unsqueeze(1))[0].squeeze(1)


def network(layer: Any) -> nn.Module:
    with torch.random.fork_rng([]):
        torch.manual_seed(3)  # noqa: TID251  # of layers that draw their weights from it
        return drawn(nn.Sequential(nn.Linear(4, 8), layer, nn.ReLU()))


def recurrent() -> nn.Module:
    with torch.random.fork_rng([]):
        torch.manual_seed(3)  # noqa: TID251  # of layers that draw their weights from it
        return drawn(Recurrent())


class Minimizes(tk.DQNPolicy):
    """A learner with an update of its own."""

    def update(self, batch: Any, *, step: int) -> Any:
        self.enter(training=True)
        obs = self.features(batch.obs)
        self.minimize("network", lambda: self.network(obs).outputs.square().mean(), step=step)
        return self.end_update(step=step)


SMALL: dict[str, Any] = {"max_epoch": 3, "seed": 1, "verbose": False, "device": "cpu", "evaluation": None}
ONLINE: dict[str, Any] = SMALL | {
    "zoo": False,
    "n_envs": 2,
    "step_per_epoch": 40,
    "learning_starts": 8,
    "batch_size": 8,
}


def of_minimize(seed: int = 1, **options: Any) -> tk.Trainer:
    envs = tk.make_envs("CartPole-v1", 2)
    policy = Minimizes.for_envs(envs, encoder=network(nn.Dropout(0.5)), hidden=(), device="cpu")
    own: dict[str, Any] = {"max_epoch": 3, "step_per_epoch": 40, "batch_size": 8, "verbose": False, "seed": seed}
    return tk.OffpolicyTrainer(policy, tk.Collector(policy, envs, tk.ReplayBuffer(200)), **own, **options)


def q_learner(engine: str = "auto", encoder: Any = None, **options: Any) -> tk.Trainer:
    layers = network(nn.Dropout(0.5)) if encoder is None else encoder()
    return tk.presets.dqn("CartPole-v1", network={"encoder": layers}, hidden=(), engine=engine, **ONLINE | options)


def sac(**options: Any) -> tk.Trainer:
    with torch.random.fork_rng([]):
        torch.manual_seed(3)  # noqa: TID251  # of layers that draw their weights from it
        layers = drawn(nn.Sequential(nn.Linear(3, 8), nn.AlphaDropout(0.5)))
    return tk.presets.sac("Pendulum-v1", network={"encoder": layers}, hidden=(), **ONLINE | options)


RUNS: dict[str, Any] = {
    "numpy engine": q_learner,
    "torch": lambda **options: q_learner("torch", **options),
    "layers of a GRU": lambda **options: q_learner(encoder=recurrent, **options),
    "several gradient steps": sac,
    "an update of its own": of_minimize,
}


def trained(make: Any, draws: int = 0, **options: Any) -> str:
    with make(**options) as trainer:
        for _ in trainer:
            torch.rand(draws)  # by the user
        return digest(trainer.policy.get_weights())


@pytest.mark.global_rng
@pytest.mark.parametrize("name", RUNS)
def test_one_seed_determines_a_run_with_dropout(name: str) -> None:
    first = trained(RUNS[name])
    torch.rand(7)
    assert trained(RUNS[name], draws=3) == first
    assert trained(RUNS[name], seed=2) != first


@pytest.mark.parametrize("name", RUNS)
def test_a_resumed_run_with_dropout_has_the_same_bits(name: str, tmp_path: Path) -> None:
    with RUNS[name]() as trainer:
        next(trainer)
        trainer.save(tmp_path / "saved")
        trainer.run()
        whole = trainer.policy.get_weights()
    with RUNS[name](resume_from=tmp_path / "saved") as resumed:
        resumed.run()
        again = resumed.policy.get_weights()
    for key, array in whole.items():
        np.testing.assert_array_equal(again[key], array)


@pytest.mark.parametrize("name", RUNS)
def test_updates_with_dropout_leave_the_global_generator_as_it_was(name: str) -> None:
    before = torch.get_rng_state()
    trained(RUNS[name])
    torch.testing.assert_close(torch.get_rng_state(), before)


def test_dropout_drops_in_updates() -> None:
    assert trained(q_learner) != trained(lambda **options: q_learner(encoder=lambda: network(nn.Identity()), **options))
