"""Optimizers of torch and of a user, schedules for them, and what updates by them give."""

import functools
from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler

from tests.helpers.learning import batch_of


class Signs(torch.optim.Optimizer):
    """Move by the sign of an average of the gradients, as a user's own class."""

    def __init__(self, params: Any, lr: float = 1e-3, decay: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "decay": decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # no closure is evaluated
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    average = self.state[parameter].setdefault("average", torch.zeros_like(parameter))
                    average.lerp_(parameter.grad, 1 - group["decay"])
                    parameter.sub_(group["lr"] * average.sign())


def without_decay_of_biases(params: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Decay weights only, and move biases with half the learning rate."""
    groups = [
        {"params": [p for p in params if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in params if p.dim() == 1], "lr": 5e-3},
    ]
    return torch.optim.AdamW(groups, lr=1e-2)


SGD = functools.partial(torch.optim.SGD, lr=1e-2, momentum=0.9, nesterov=True)
ADAMW = functools.partial(torch.optim.AdamW, lr=1e-2, weight_decay=0.1)


def updated(policy: Any, steps: range) -> list[float]:
    """Update with random batches, and return the metric lr of each update."""
    lrs = []
    for step in steps:
        policy.update(batch_of(8, seed=step), step=step)
        lrs.append(policy.read_metrics()["lr"])
    return lrs


COSINE = functools.partial(lr_scheduler.CosineAnnealingLR, T_max=10)
