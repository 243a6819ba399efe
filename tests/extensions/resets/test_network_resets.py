"""Resets of networks: when they come, what they draw again, and what stays."""

from pathlib import Path
from typing import Any

import pytest
import torch

import trainkit as tk
from tests.extensions.resets.forgetting import check_that_resets_forget, made, tensors
from tests.helpers.engine import engines
from tests.helpers.learning import Spaces
from tests.helpers.sac import rows
from trainkit.callbacks import NetworkResets


def trained(callback: Any, *, max_epoch: int = 1, **options: Any) -> Any:
    how: dict[str, Any] = {"hidden": (8,), "capacity": 500, "batch_size": 8, "learning_starts": 20, "zoo": False}
    how |= {"n_envs": 1, "step_per_epoch": 50, "evaluation": None, "seed": 3}
    return tk.presets.sac("Pendulum-v1", callbacks=callback, max_epoch=max_epoch, **how | options)


@pytest.mark.parametrize("engine", engines("torch", "numpy"))
@pytest.mark.parametrize("norm", [None, "layer", "rms"])
def test_everything_that_was_learned_is_as_at_a_start(norm: Any, engine: Any) -> None:
    check_that_resets_forget(made(engine, norm=norm))


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


def test_networks_that_cannot_be_drawn_are_refused_before_the_run() -> None:
    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = tk.nets.weights.new_linear(4, 2)

        def forward(self, features: Any, action: Any) -> Any:
            return self.layer(torch.cat([features, action], dim=1))

    envs = tk.make_envs("Pendulum-v1", 1)
    policy = tk.ActorCriticPolicy(tk.nets.ActorNetwork((3,), 2), Plain(), action_space=envs.action_space)
    collector = tk.Collector(policy, envs, tk.ReplayBuffer(100))
    with pytest.raises(tk.ConfigError, match=r"reinitialize\('critic'\) cannot draw layer.weight again: make Plain a"):
        tk.OffpolicyTrainer(
            policy, collector, callbacks=NetworkResets(1_000), batch_size=8, max_epoch=1, step_per_epoch=50
        ).run()
    assert policy.n_updates == 0


def test_no_names_are_refused() -> None:
    with pytest.raises(tk.ConfigError, match=r"NetworkResets.names must be a list of gradient steps .* got \[\]"):
        NetworkResets(10, [])


def test_networks_that_cannot_be_drawn_are_refused() -> None:
    network = tk.nets.weights.new_linear(4, 2)
    policy = tk.DQNPolicy(network, action_space=Spaces().action_space, device="cpu")
    with pytest.raises(tk.ConfigError, match=r"DQNPolicy\.reinitialize\('network'\) cannot draw .*weight again: make"):
        policy.reinitialize("network")
