"""Parts show as tables in notebooks, at any moment of their lives, and ask nothing of the device."""

from typing import Any

import pytest
import torch

import trainkit as tk
from tests.trainer.toys import make_onpolicy_trainer, make_trainer


def test_a_run_before_during_and_after(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(test=True)
    assert trainer.train_collector is not None
    for _ in range(2):
        with monkeypatch.context() as patch:
            for name in ("cpu", "item", "tolist", "numpy"):  # what waits for a device
                patch.setattr(torch.Tensor, name, None)
            result = [part._repr_html_() for part in (trainer, trainer.policy, trainer.buffer, trainer.train_collector)]
        titles = ("OffpolicyTrainer", "DQNPolicy", "PrioritizedReplayBuffer", "Collector")
        for html, title in zip(result, titles, strict=True):
            assert html.startswith(f"<table><caption>{title}")
        trainer.run()
    assert "<td>n_updates</td><td>35</td>" in trainer.policy._repr_html_()
    assert "<td>env_step</td><td>72</td>" in trainer.train_collector._repr_html_()


def test_on_policy_parts() -> None:
    trainer = make_onpolicy_trainer()
    assert "RolloutBuffer(0 rows" in trainer.buffer._repr_html_()
    assert "PPOPolicy" in trainer.policy._repr_html_()


def test_parts_that_know_nothing_yet() -> None:
    parts: list[Any] = [
        tk.ReplayBuffer(5),
        tk.PrioritizedReplayBuffer(5),
        tk.RolloutBuffer(),
        tk.MixedBuffer({tk.ReplayBuffer(5): 1.0}),
        tk.DQNPolicy(tk.nets.QNetwork((2,), 2), device="cpu"),
        tk.RandomPolicy(tk.make_envs("CartPole-v1", 1).action_space),
    ]
    for part in parts:
        assert f"<caption>{type(part).__name__}" in part._repr_html_()


def test_what_a_table_says_is_escaped() -> None:
    envs = tk.make_envs(lambda: __import__("gymnasium").make("CartPole-v1"), 1)
    result = tk.Collector(tk.RandomPolicy(envs.action_space), envs)._repr_html_()
    assert "<lambda>" not in result
    assert "&lt;lambda&gt;" in result
