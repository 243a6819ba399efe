"""A gradient step that takes itself on a loss, as an engine takes it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.testing import assert_close

from tests.helpers.learning import parameters_of
from trainkit import Adam, Clip, TorchOptimizer
from trainkit.core.schedules import as_schedule
from trainkit.engine.gradient_step import GradientStep, Taken, denormals_flushed


class TorchStep(GradientStep):
    """A gradient step by torch, without an engine."""

    def __call__(self, loss: Callable[[], Any], *, step: int) -> Taken:
        """Take one step on a loss, which returns the scalar to minimize, or (the scalar, more)."""
        with denormals_flushed(self.flush_denormals):
            with self.differentiation():
                result = loss()
                value, more = result if isinstance(result, tuple) else (result, ())
                self.differentiate(value)
            return self.apply(value.detach(), more, step=step)


Loss = Callable[[nn.Module, int], Tensor]


def square_loss(net: nn.Module, i: int) -> Tensor:
    """Return a loss of a different batch at every step, now small, now large."""
    generator = torch.Generator().manual_seed(i)
    x, y = torch.randn(16, 4, generator=generator), torch.randn(16, 3, generator=generator)
    dtype = next(net.parameters()).dtype
    return (net(x.to(dtype)) - (1 + i % 5) * y.to(dtype)).square().mean()


class Ours:
    """A network and the gradient step under test."""

    def __init__(
        self, net: nn.Module, optimizer: Adam | TorchOptimizer, clip: Clip | None = None, **options: Any
    ) -> None:
        self.net = net
        self.step = TorchStep(net, optimizer, clip, **options)

    def train(self, steps: range, loss: Loss = square_loss) -> list[float]:
        """Take steps and return the gradient's norm of each."""
        return [float(self.step(lambda i=i: loss(self.net, i), step=i).norm) for i in steps]


class Reference:
    """The same by torch: `zero_grad`, `backward`, a clip, `torch.optim.Adam.step`."""

    def __init__(self, net: nn.Module, adam: Adam, clip: Clip | None = None) -> None:
        self.net, self.clip = net, clip
        self.lr = as_schedule("Adam", "lr", adam.lr, low=0)
        options = {"betas": adam.betas, "eps": adam.eps, "weight_decay": adam.weight_decay}
        self.optimizer = torch.optim.Adam(net.parameters(), **options)

    def train(self, steps: range, loss: Loss = square_loss) -> list[float]:
        norms = []
        for i in steps:
            self.optimizer.zero_grad()
            loss(self.net, i).backward()
            moved = [parameter for parameter in self.net.parameters() if parameter.grad is not None]
            norms.append(float(torch.nn.utils.get_total_norm([parameter.grad for parameter in moved])))
            if self.clip is not None:
                self._clip(moved)
            self.optimizer.param_groups[0]["lr"] = self.lr(i)
            self.optimizer.step()
        return norms

    def _clip(self, moved: list[nn.Parameter]) -> None:
        assert self.clip is not None
        if self.clip.by == "value":
            torch.nn.utils.clip_grad_value_(moved, self.clip.limit)
            return
        groups = [moved] if self.clip.by == "global_norm" else [[parameter] for parameter in moved]
        for group in groups:
            torch.nn.utils.clip_grad_norm_(group, self.clip.limit)


def assert_nets_close(one: nn.Module, other: nn.Module) -> None:
    assert_close(parameters_of(one), parameters_of(other), rtol=1e-4, atol=1e-5)
