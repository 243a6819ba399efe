"""A check that a reset leaves nothing of what was learned."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import trainkit as tk
from tests.helpers.learning import FOUR_NUMBERS, Spaces
from tests.helpers.sac import PUSH, rows


def made(engine: Any = "torch", **options: Any) -> tk.ActorCriticPolicy:
    """Return a small actor-critic."""
    options |= {"hidden": (8,), "seed": 1, "device": "cpu"}
    return tk.ActorCriticPolicy.for_envs(Spaces(FOUR_NUMBERS, PUSH), engine=engine, **options)


def tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return copies of a module's tensors by name."""
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def check_that_resets_forget(policy: tk.ActorCriticPolicy) -> None:
    """Fail unless, after some updates, drawn weights are others, and all else is as before the first one."""
    started = {name: tensors(step.module) for name, step in policy.gradient_steps.items()}
    for step in range(5):
        policy.update(rows(seed=step), step=step)
    for name in policy.gradient_steps:
        policy.reinitialize(name)
    for name, gradient_step in policy.gradient_steps.items():
        for path, tensor in gradient_step.module.state_dict().items():
            before = started[name][path]
            if "weight" in path and before.std() > 0:  # drawn, of the same distribution
                assert not torch.equal(tensor, before)
                assert tensor.std() == pytest.approx(before.std().item(), rel=0.5)
            elif "bias" not in path or not before.any():  # scales, shifts, statistics, the temperature
                assert torch.equal(tensor, before)
        assert gradient_step.state_dict()["state"] == {}
    target = policy.target_critics
    assert target is not None
    for own, followed in zip(target.state_dict().values(), policy.critics.state_dict().values(), strict=True):
        assert torch.equal(own, followed)
    assert policy.n_updates == 5
    policy.update(rows(), step=6)
    assert np.isfinite(policy.read_metrics()["critic_loss"])
