"""The one room that turns a loss into a step: gradients, clip, guard, Adam.

Parameters that get gradients are kept as views of one flat tensor, and so are their gradients and moments: one norm,
one fused Adam call, one `zero_`, however many layers there are. That is private to this file: a module's parameters
stay its own, and whoever replaces them (`.to`, `deepcopy`, `load_state_dict(assign=True)`, `zero_grad`) is noticed at
the next step, which lays them out anew and takes the moments along.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from trainkit.errors import Checks
from trainkit.schedules import Schedule, Scheduled, as_schedule

ClipBy = Literal["global_norm", "norm", "value"]


@dataclass(frozen=True, slots=True)
class Adam:
    """Specify Adam (Kingma & Ba, 2015, whose numbers are the defaults); `lr` may be a schedule of the step."""

    lr: Scheduled = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        checks = Checks("Adam")
        if checks.require(len(self.betas) == 2, f".betas must be two numbers, got {self.betas!r}"):
            for beta in self.betas:
                checks.number("betas", beta, low=0, high=1)
                checks.require(beta != 1, ".betas must be below 1, got 1")
        checks.number("eps", self.eps, low=0, above_low=True)
        checks.number("weight_decay", self.weight_decay, low=0)
        checks.done()
        as_schedule("Adam", "lr", self.lr, low=0)


@dataclass(frozen=True, slots=True)
class Clip:
    """Specify a gradient clip: of all gradients' norm together, of each parameter's norm, or of each number."""

    limit: float
    by: ClipBy = "global_norm"

    def __post_init__(self) -> None:
        checks = Checks("Clip")
        checks.number("limit", self.limit, low=0, above_low=True)
        checks.one_of("by", self.by, ["global_norm", "norm", "value"])
        checks.done()


class GradientStep:
    """Minimise a loss by Adam, with what `Adam` and `torch.nn.utils.clip_grad_norm_` compute, in fewer calls.

    A step whose gradient is not finite is not taken: parameters, moments and step count stay as they are.

    Args:
        parameters: those to move; one that never gets a gradient never moves.
        optimizer: Adam's numbers.
        clip: None clips nothing.
        flush_denormals: let numbers below 1e-38 count as 0 within the step on the CPU, where they are slow; this
            changes the last bits.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        optimizer: Adam,
        clip: Clip | None = None,
        *,
        flush_denormals: bool = True,
    ) -> None:
        self.optimizer = optimizer
        self.clip = clip
        self.flush_denormals = flush_denormals
        self._lr: Schedule = as_schedule("Adam", "lr", optimizer.lr, low=0)
        self._parameters = [p for p in parameters if p.requires_grad]
        self._segment: _Segment | None = None

    def lr(self, step: int) -> float:
        """Return the learning rate at an environment step."""
        return self._lr(step)

    def __call__(self, loss: Callable[[], Tensor], *, step: int) -> tuple[Tensor, Tensor]:
        """Take one step down `loss`, which is called once.

        Returns:
            (the gradient's norm before the clip, whether the step was *not* taken: 0.0 or 1.0), both on the device.
        """
        with _denormals_flushed(self.flush_denormals):
            segment = self._segment
            if segment is not None and segment.is_live():
                segment.gradient.zero_()
                loss().backward()  # type: ignore[no-untyped-call]  # torch's own
                if segment.has_stray_gradient():
                    segment = self._claim()
            else:
                for parameter in self._parameters:
                    parameter.grad = None
                loss().backward()  # type: ignore[no-untyped-call]  # torch's own
                segment = self._claim()
            return segment.step(self.optimizer, self.clip, self._lr(step))

    def state_dict(self) -> dict[str, Any]:
        """Return the moments in the form of `torch.optim.Adam.state_dict()`."""
        state = {} if self._segment is None else self._segment.moments()
        group = {"lr": self._lr(0), "betas": self.optimizer.betas, "eps": self.optimizer.eps}
        group |= {"weight_decay": self.optimizer.weight_decay, "params": list(range(len(self._parameters)))}
        return {"state": state, "param_groups": [group]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over moments, ours or `torch.optim.Adam`'s for the same parameters; the numbers stay as constructed."""
        moments: dict[int, dict[str, Tensor]] = state["state"]
        self._segment = _Segment(self._parameters, sorted(moments), moments) if moments else None

    def _claim(self) -> "_Segment":
        """Lay out flat the parameters that have a gradient or had one before."""
        moments = {} if self._segment is None else self._segment.moments()
        moved = [i for i, p in enumerate(self._parameters) if p.grad is not None or i in moments]
        self._segment = _Segment(self._parameters, moved, moments)
        return self._segment


class _Segment:
    """The flat layout of some of the parameters: each is a view of one piece of every tensor here."""

    def __init__(
        self, parameters: Sequence[nn.Parameter], moved: Sequence[int], moments: Mapping[int, Mapping[str, Tensor]]
    ) -> None:
        self._indices = list(moved)
        self._moved = [parameters[i] for i in moved]
        self._strays = [p for i, p in enumerate(parameters) if i not in set(moved)]
        sizes = [p.numel() for p in self._moved]
        first = self._moved[0]
        if any(p.dtype != first.dtype or p.device != first.device for p in self._moved):
            raise TypeError("parameters of one optimizer must share dtype and device")
        self.flat = torch.empty(sum(sizes), dtype=first.dtype, device=first.device)
        self.gradient = torch.zeros_like(self.flat)
        self.mean = torch.zeros_like(self.flat)  # Adam's first moment
        self.square = torch.zeros_like(self.flat)  # Adam's second moment
        steps = [moments[i]["step"] for i in moved if i in moments]
        count = float(max(steps)) if steps else 0.0
        self.count = torch.tensor(count, dtype=torch.float32, device=first.device)  # steps taken
        self._views: list[tuple[Tensor, Tensor, Tensor]] = []  # of gradient, mean and square, in a parameter's shape
        with torch.no_grad():
            columns = (self.flat, self.gradient, self.mean, self.square)
            pieces = zip(*(torch.split(column, sizes) for column in columns), strict=True)
            for i, parameter, (flat, *others) in zip(moved, self._moved, pieces, strict=True):
                gradient, mean, square = (other.view_as(parameter) for other in others)
                flat.copy_(parameter.reshape(-1))
                if parameter.grad is not None:
                    gradient.copy_(parameter.grad)
                if i in moments:
                    mean.copy_(moments[i]["exp_avg"])
                    square.copy_(moments[i]["exp_avg_sq"])
                parameter.data = flat.view_as(parameter)
                parameter.grad = gradient
                self._views.append((gradient, mean, square))
        self._bounds = self._moved[0].data_ptr(), self._moved[-1].data_ptr()

    def is_live(self) -> bool:
        """Whether the parameters still are the views made here."""
        first, last = self._moved[0], self._moved[-1]
        views = self._views
        return (
            (first.data_ptr(), last.data_ptr()) == self._bounds
            and first.grad is views[0][0]
            and last.grad is views[-1][0]
        )

    def has_stray_gradient(self) -> bool:
        """Whether a parameter outside has got a gradient for the first time."""
        return any(p.grad is not None for p in self._strays)

    def step(self, adam: Adam, clip: Clip | None, lr: float) -> tuple[Tensor, Tensor]:
        """Clip, and move unless the gradient is not finite."""
        with torch.no_grad():
            norm = torch.linalg.vector_norm(self.gradient)
            skipped = (norm * 0.0).ne(0.0).to(torch.float32)  # nan and infinity times 0 are nan
            scale = None
            if clip is not None:
                if clip.by == "global_norm":
                    scale = ((norm + 1e-6) / clip.limit).clamp_(min=1.0)
                elif clip.by == "value":
                    self.gradient.clamp_(-clip.limit, clip.limit)
                else:
                    for gradient, _, _ in self._views:
                        own = torch.linalg.vector_norm(gradient)
                        gradient.mul_((clip.limit / (own + 1e-6)).clamp_(max=1.0))
            self.count.add_(1.0 - skipped)
            torch._fused_adam_(
                [self.flat],
                [self.gradient],
                [self.mean],
                [self.square],
                [],
                [self.count],
                lr=lr,
                beta1=adam.betas[0],
                beta2=adam.betas[1],
                weight_decay=adam.weight_decay,
                eps=adam.eps,
                amsgrad=False,
                maximize=False,
                grad_scale=scale,
                found_inf=skipped,
            )
        return norm, skipped

    def moments(self) -> dict[int, dict[str, Tensor]]:
        """Return {parameter's index: step, exp_avg, exp_avg_sq}."""
        pairs = zip(self._indices, self._views, strict=True)
        return {i: {"step": self.count, "exp_avg": mean, "exp_avg_sq": square} for i, (_, mean, square) in pairs}


@contextmanager
def _denormals_flushed(wanted: bool) -> Iterator[None]:
    """Flush denormals on this thread for a while."""
    if not wanted:
        yield
        return
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
