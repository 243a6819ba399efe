"""Resets of networks: when they come, what they draw again, and what stays."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import trainkit as tk
from tests.helpers.engine import engines
from tests.helpers.learning import FOUR_NUMBERS, Spaces
from tests.helpers.sac import PUSH, rows
from trainkit.callbacks import NetworkResets

NETWORKS = {
    "plain": {},
    "layer norm": {"norm": "layer"},
    "batch norm": {"networks": tk.policy.BatchNormNetworks(), "critic_pass": tk.policy.JointPass()},
}


def made(engine: str = "torch", **options: Any) -> tk.ActorCriticPolicy:
    return tk.ActorCriticPolicy.for_envs(
        Spaces(FOUR_NUMBERS, PUSH), hidden=(8,), seed=1, device="cpu", engine=engine, **options
    )


def tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def trained(callback: Any, *, max_epoch: int = 1, **options: Any) -> Any:
    how: dict[str, Any] = {"hidden": (8,), "capacity": 500, "batch_size": 8, "learning_starts": 20, "zoo": False}
    how |= {"n_envs": 1, "step_per_epoch": 50, "evaluation": None, "seed": 3}
    return tk.presets.sac("Pendulum-v1", callbacks=callback, max_epoch=max_epoch, **how | options)


@pytest.mark.parametrize("engine", engines("torch", "numpy"))
@pytest.mark.parametrize("kind", NETWORKS)
def test_everything_that_was_learned_is_as_at_a_start(kind: str, engine: Any) -> None:
    policy = made(engine, **NETWORKS[kind])
    started = {name: tensors(step.module) for name, step in policy.gradient_steps.items()}
    for step in range(5):
        policy.update(rows(seed=step), step=step)
    for name in policy.gradient_steps:
        policy.reinitialize(name)
    for name, step in policy.gradient_steps.items():
        for path, tensor in step.module.state_dict().items():
            before = started[name][path]
            if "weight" in path and before.std() > 0:  # drawn, of the same distribution
                assert not torch.equal(tensor, before)
                assert tensor.std() == pytest.approx(before.std().item(), rel=0.5)
            elif "bias" not in path or not before.any():  # scales, shifts, statistics, the temperature
                assert torch.equal(tensor, before)
        assert step.state_dict()["state"] == {}
    target = policy.target_critics
    assert target is not None
    for own, followed in zip(target.state_dict().values(), policy.critics.state_dict().values(), strict=True):
        assert torch.equal(own, followed)
    assert policy.n_updates == 5
    policy.update(rows(), step=6)
    assert np.isfinite(policy.read_metrics()["critic_loss"])


def test_moments_start_anew() -> None:
    """The first step of Adam after a reset has the size of the learning rate, whatever the gradients were before."""
    policy = made(lr=1e-3)
    for step in range(20):
        policy.update(rows(seed=step), step=step)
    policy.reinitialize("critic")
    before = tensors(policy.critics)
    policy.update(rows(seed=30), step=30)
    moved = [(tensor - before[name]).abs().max().item() for name, tensor in policy.critics.state_dict().items()]
    assert moved == pytest.approx([1e-3] * len(moved), rel=1e-2)


def test_they_come_after_so_many_updates_and_the_buffer_stays() -> None:
    seen: list[tuple[int, bool]] = []

    class Watch(tk.Callback):
        def on_update_end(self, trainer: Any) -> None:
            state = trainer.policy.gradient_steps["critic"].state_dict()["state"]
            seen.append((trainer.policy.n_updates, state == {}))

    trainer = trained([NetworkResets(10, ["critic"]), Watch()])
    (result,) = trainer
    assert result.stats["custom/resets"] == 3
    assert [n_updates for n_updates, is_reset in seen if is_reset] == [10, 20, 30]
    assert len(trainer.buffer) == 50
    assert trainer.policy.gradient_steps["actor"].state_dict()["state"] != {}


def test_a_run_saved_between_resets_resumes_to_the_bit(tmp_path: Path) -> None:
    first = trained(NetworkResets(40), max_epoch=4)
    next(first)
    resumed = trained(NetworkResets(40), max_epoch=4, resume_from=first.save(tmp_path / "saved"))
    for trainer in (first, resumed):
        trainer.train_collector.reset()
        trainer.run()
    own, theirs = (trainer.policy.state_dict() for trainer in (first, resumed))
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in own.items())


def test_q_learners_are_reset_too() -> None:
    trainer = tk.presets.dqn("CartPole-v1", seed=1, max_epoch=1, step_per_epoch=200, learning_starts=50, zoo=False,
                             evaluation=None, callbacks=NetworkResets(20))  # fmt: skip
    trainer.run()
    assert trainer.policy.n_updates > 20


def test_a_step_that_does_not_exist_is_refused() -> None:
    with pytest.raises(
        tk.ConfigError, match=r"NetworkResets\.names must name gradient steps of SACPolicy, got 'crtic'"
    ):
        trained(NetworkResets(10, ["crtic"]))
    with pytest.raises(tk.ConfigError, match=r"NetworkResets\.every must be a whole number >= 1, got 0"):
        NetworkResets(0)


def test_networks_that_cannot_be_drawn_are_refused() -> None:
    network = tk.nets.weights.new_linear(4, 2)
    policy = tk.DQNPolicy(network, action_space=Spaces().action_space, device="cpu")
    with pytest.raises(tk.ConfigError, match=r"DQNPolicy\.reinitialize\('network'\) cannot draw .*weight again: make"):
        policy.reinitialize("network")
