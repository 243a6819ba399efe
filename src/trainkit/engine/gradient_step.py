"""The one room that turns a loss into a step: gradients, clip, guard, Adam.

Parameters that get gradients are kept as views of one flat tensor, and so are their gradients and moments: one norm,
one fused Adam call, one `zero_`, however many layers there are (`segments`). That is nobody else's matter: a module's
parameters stay its own, and whoever replaces them (`.to`, `deepcopy`, `load_state_dict(assign=True)`, `zero_grad`) is
noticed at the next step, which lays them out anew and takes the moments along.
"""

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from trainkit.core.errors import CheckpointError, Checks, ConfigError
from trainkit.core.parts import Part
from trainkit.core.schedules import Schedule, Scheduled, as_schedule
from trainkit.core.signatures import checked
from trainkit.engine.compiling import Closure, LossGraph, ask
from trainkit.engine.segments import Place, Segment, parts_of, places_of

Scalar = Tensor | float  # on a device, or a plain number already
ClipBy = Literal["global_norm", "norm", "value"]


@checked
@dataclass(frozen=True, slots=True)
class Adam(Part):
    """Specify Adam (Kingma & Ba, 2015, whose numbers are the defaults); `lr` may be a schedule of the step."""

    lr: Scheduled = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        checks = Checks("Adam")
        two = isinstance(self.betas, Sequence) and len(self.betas) == 2
        if checks.require(two, f".betas must be two numbers, got {self.betas!r}"):
            for beta in self.betas:
                checks.number("betas", beta, low=0, high=1)
                checks.require(beta != 1, ".betas must be below 1, got 1")
        checks.number("eps", self.eps, low=0, above_low=True)
        checks.number("weight_decay", self.weight_decay, low=0)
        checks.gather(lambda: as_schedule("Adam", "lr", self.lr, low=0))
        checks.done()


@checked
@dataclass(frozen=True, slots=True)
class Clip(Part):
    """Specify a gradient clip: of all gradients' norm together, of each parameter's norm, or of each number."""

    limit: float
    by: ClipBy = "global_norm"

    def __post_init__(self) -> None:
        checks = Checks("Clip")
        checks.number("limit", self.limit, low=0, above_low=True)
        checks.one_of("by", self.by, ["global_norm", "norm", "value"])
        checks.done()


class Taken(NamedTuple):
    """What came of one step, on the device; on the CPU in plain numbers."""

    loss: Scalar  # before it
    norm: Scalar  # the gradient's, before the clip
    skipped: Scalar  # 1.0 where it was not taken, else 0.0
    shown: Any  # what the loss returned besides


class GradientStep:
    """Minimise a loss by Adam, with what `Adam` and `torch.nn.utils.clip_grad_norm_` compute, in fewer calls.

    A step whose loss or gradient is not finite is not taken: parameters, moments and step counts stay as they are.

    Args:
        module: whose parameters to move; one that never gets a gradient never moves.
        optimizer: Adam's numbers.
        clip: None clips nothing.
        flush_denormals: let numbers below 1e-38 count as 0 within the step on the CPU, where they are slow; this
            changes the last bits.
        loss: rows -> `Loss`, where an engine executes it; None where each call brings its own.
        compile: compute loss and gradients in one compiled graph from the second step on. A parameter without a
            gradient at the first step never moves then.
        recorded: calls will be recorded and played back, so no number is looked at, and the learning rate is that of
            the last `prepare`.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: Adam,
        clip: Clip | None = None,
        *,
        flush_denormals: bool = True,
        loss: Callable[[Any], Any] | None = None,
        compile: bool = False,
        recorded: bool = False,
    ) -> None:
        check_parameters(module)
        self.loss = loss
        self.optimizer = optimizer
        self.clip = clip
        self.flush_denormals = flush_denormals
        self._lr: Schedule = as_schedule("Adam", "lr", optimizer.lr, low=0)
        self.module = module
        self._places: list[Place] = []
        self._segments: list[Segment] = []  # one, and one more for each set of parameters that came to move later
        self._at_rest: dict[int, dict[str, Tensor]] = {}  # moments of those that do not learn now
        self._look_at_places()
        self._scale = torch.ones(
            (), dtype=torch.float32
        )  # what gradients on the CPU are divided by, where they are clipped
        self.use(compile=compile, recorded=recorded)

    def use(self, *, compile: bool = False, recorded: bool = False) -> None:
        """Compute the next steps in a compiled graph, or as calls that are recorded, as the constructor's words say."""
        device = self._places[0].parameter.device if self._places else torch.device("cpu")
        self._graph = LossGraph(self.module) if compile else None
        self._rate_there = self._lr(0)
        self._rate = (
            torch.full((), self._rate_there, device=device, dtype=torch.float32) if recorded else None
        )  # where recorded calls read it

    def lr(self, step: int) -> float:
        """Return the learning rate at an environment step."""
        return self._lr(step)

    def prepare(self, step: int) -> None:
        """Write the learning rate of an environment step where recorded calls read it."""
        rate = self._lr(step)
        if self._rate is not None and rate != self._rate_there:
            self._rate.fill_(rate)
            self._rate_there = rate

    def __call__(self, loss: Closure, *, step: int) -> Taken:
        """Take one step down `loss`, which is called once, or in a graph was once."""
        if torch.is_inference_mode_enabled():
            raise ConfigError(
                f"{type(self.module).__name__} cannot learn inside torch.inference_mode(), whose tensors have no "
                "gradients: leave it before the update; torch.no_grad() is allowed"
            )
        with self.denormals_flushed():
            value, metrics = self._descend(loss)
            return self._step(value, metrics, self._lr(step) if self._rate is None else self._rate)

    def move(self, loss: float, outputs: Any, *, step: int) -> Taken:
        """Take one step along the gradients that there are, on the CPU."""
        return self._step(loss, outputs, self._lr(step))

    def denormals_flushed(self) -> "_DenormalsFlushed":
        """Return the context in which a step is computed."""
        return _DenormalsFlushed(self.flush_denormals)

    @property
    def layout(self) -> object:
        """What is replaced whenever the gradients are laid out elsewhere."""
        return self._segments

    @property
    def learning(self) -> list[nn.Parameter]:
        """The module's parameters that require gradients."""
        return [parameter for parameter in self.module.parameters() if parameter.requires_grad]

    def set_gradients(self, gradients: Sequence[Tensor | None]) -> None:
        """Give each parameter of `learning` its gradient, laying them out where they are not; None is no gradient."""
        pairs = [pair for pair in zip(self.learning, gradients, strict=True) if pair[1] is not None]
        if self._is_laid_out():
            moments: Mapping[int, Mapping[str, Tensor]] = self._moments()
            is_there = all(parameter.grad is not None for parameter, _ in pairs)
        else:
            moments, is_there = self._look_at_places(), False
        if not is_there:
            for place in self._places:
                place.parameter.grad = None
            for parameter, gradient in pairs:
                parameter.grad = gradient
            self._lay_out(moments)
            return
        self.zero_gradients()
        for parameter, gradient in pairs:
            parameter.grad.copy_(gradient)  # type: ignore[union-attr,arg-type]  # both are there

    def zero_gradients(self) -> None:
        """Set all gradients to 0."""
        for segment in self._segments:
            segment.gradient.zero_()

    def _descend(self, loss: Closure) -> tuple[Tensor, Any]:
        """Compute the gradients, and lay out the parameters that get some where they are not."""
        if not self._is_laid_out():
            moments = self._look_at_places()
            for place in self._places:
                place.parameter.grad = None
            value, shown = self._backward(loss)
            self._lay_out(moments)
            return value, shown
        segments = self._segments
        if self._graph is not None:
            layouts = [segment.layout for segment in segments]
            return self._graph(loss, layouts, [one.flat for one in segments], [one.gradient for one in segments])
        self.zero_gradients()
        value, shown = self._backward(loss)
        if self._has_newcomer():
            self._lay_out(self._moments())
        return value, shown

    def _backward(self, loss: Closure) -> tuple[Tensor, Any]:
        """Return (loss, what else it returned) and leave the gradients with the parameters, inside no_grad() too."""
        with contextlib.nullcontext() if torch.is_grad_enabled() else torch.enable_grad():
            value, shown = ask(loss)
        learning = self.learning
        if learning and value.requires_grad:
            value.backward(inputs=learning)  # type: ignore[no-untyped-call]  # torch's own
        if all(parameter.grad is None for parameter in learning) or not value.requires_grad:
            raise ConfigError(
                f"the loss of {type(self.module).__name__} has no gradient, as no parameter that it depends on has "
                "requires_grad=True: unfreeze one with requires_grad_(True), or do not update"
            )
        return value.detach(), shown

    def state_dict(self) -> dict[str, Any]:
        """Return the moments in the form of `torch.optim.Adam.state_dict()`."""
        group = {"lr": self._lr(0), "betas": self.optimizer.betas, "eps": self.optimizer.eps}
        group |= {"weight_decay": self.optimizer.weight_decay, "params": list(range(len(self._places)))}
        return {"state": self._moments(), "param_groups": [group]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over moments, ours or `torch.optim.Adam`'s for the same parameters; the numbers stay as constructed.

        Raises:
            CheckpointError: they are of parameters of other shapes.
        """
        self._look_at_places()
        for i, moment in state["state"].items():
            if i >= len(self._places) or moment["exp_avg"].shape != self._places[i].parameter.shape:
                raise CheckpointError(
                    f"GradientStep cannot take moments {tuple(moment['exp_avg'].shape)} for parameter {i} of "
                    f"{[tuple(place.parameter.shape) for place in self._places]}: they are of another module"
                )
        for place in self._places:
            place.parameter.grad = None
        self._lay_out(state["state"])

    def _step(self, value: Scalar, shown: Any, lr: Scalar) -> Taken:
        """Clip, and move unless loss or gradient is not finite."""
        clip = self.clip
        limit = math.inf if clip is None or clip.by != "global_norm" else clip.limit
        skipped: Tensor | None = None
        scale: Tensor | None = None
        looks = self._segments[0].flat.is_cpu and self._rate is None  # which costs less there than calculating with it
        if looks:
            here = math.sqrt(sum(segment.square_norm() for segment in self._segments))
            taken = Taken(float(value), here, 0.0, shown)
            if not math.isfinite(here + taken.loss):
                return taken._replace(skipped=1.0)
            if here + 1e-6 > limit:
                scale = self._scale.fill_((here + 1e-6) / limit)
        else:
            norm = torch.linalg.vector_norm(torch.stack([one.gradient.norm() for one in self._segments]))
            skipped = ((norm + value) * 0.0).ne(0.0).to(torch.float32)  # nan and infinity times 0 are nan
            taken = Taken(value, norm, skipped, shown)
            if limit < math.inf:
                scale = ((norm + 1e-6) / limit).clamp_(min=1.0)
        if clip is not None and clip.by != "global_norm":
            for segment in self._segments:
                (segment.clip_numbers if clip.by == "value" else segment.clip_norms)(clip.limit)
        self._adam(lr, scale, skipped)
        return taken

    def _adam(self, lr: Scalar, scale: Tensor | None, skipped: Tensor | None) -> None:
        """Move by gradients / scale, on a device unless skipped."""
        segments, adam = self._segments, self.optimizer
        for segment in segments:
            segment.count_step(skipped)
        torch._fused_adam_(
            [segment.flat for segment in segments],
            [segment.gradient for segment in segments],
            [segment.mean for segment in segments],
            [segment.square for segment in segments],
            [],
            [segment.count for segment in segments],
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

    def _is_laid_out(self) -> bool:
        """Whether every parameter is the module's own and the view of a segment that was made of it."""
        for owner, name, child in self._parts:
            if owner.get(name) is not child:
                return False
        for parameter, learns in self._learning:
            if parameter.requires_grad is not learns:
                return False
        return bool(self._segments) and all(segment.is_live() for segment in self._segments)

    def _look_at_places(self) -> dict[int, Mapping[str, Tensor]]:
        """Find the parameters to move where they are now, and return the moments of those that were there before.

        What must stay as it is for that to stay true is noted.
        """
        before = {self._places[i].path: moment for i, moment in self._moments().items()}
        self._places = places_of(self.module)
        self._parts = parts_of(self.module)
        self._learning = [(parameter, parameter.requires_grad) for parameter in self.module.parameters()]
        sizes = {path: moment["exp_avg"].shape for path, moment in before.items()}
        return {i: before[p.path] for i, p in enumerate(self._places) if sizes.get(p.path) == p.parameter.shape}

    def _has_newcomer(self) -> bool:
        """Whether a parameter outside all segments has got its first gradient."""
        n_moved = sum(len(segment.indices) for segment in self._segments)
        return n_moved < len(self._places) and n_moved < sum(p.parameter.grad is not None for p in self._places)

    def _moments(self) -> dict[int, dict[str, Tensor]]:
        """Return {parameter's index: step, exp_avg, exp_avg_sq}, of those at rest too."""
        return self._at_rest | {i: moment for segment in self._segments for i, moment in segment.moments()}

    def _lay_out(self, moments: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Make segments of the parameters that move, those together that have taken as many steps."""
        groups: dict[float, list[int]] = {}
        learns = [place.parameter.requires_grad for place in self._places]
        self._at_rest = {i: dict(moment) for i, moment in moments.items() if not learns[i]}
        for i, place in enumerate(self._places):
            if learns[i] and (i in moments or place.parameter.grad is not None):
                groups.setdefault(float(moments[i]["step"]) if i in moments else 0.0, []).append(i)
        self._segments = [Segment(self._places, indices, moments, count) for count, indices in groups.items()]


def check_parameters(module: nn.Module) -> None:
    """Raise `ConfigError` where parameters cannot be trained: float64 layers of torch's own, or without gradients.

    A module of the user's may have another dtype than float32, as its `forward` can cast what it is given.
    """
    casts = any(not type(part).__module__.startswith(("torch.", "trainkit.")) for part in module.modules())
    for name, parameter in module.named_parameters():
        if parameter.dtype == torch.float64 and (not casts or torch.get_default_dtype() == torch.float64):
            raise ConfigError(
                f"{type(module).__name__}.{name} must be float32, which policies compute in, got {parameter.dtype}: "
                "call float() on the module, or torch.set_default_dtype(torch.float32) before making it"
            )
        if parameter.is_inference():
            raise ConfigError(
                f"{type(module).__name__}.{name} was made inside torch.inference_mode(), so it can never have a "
                "gradient: make the module outside of it"
            )


class _DenormalsFlushed:
    """Within it denormals count as 0 on this thread, if that is wanted."""

    __slots__ = ("_is_wanted", "_was_flushed")

    def __init__(self, is_wanted: bool) -> None:
        self._is_wanted = is_wanted

    def __enter__(self) -> None:
        if self._is_wanted:
            self._was_flushed = _DENORMAL * 1.0 == 0.0  # the processor's switch, which torch does not tell
            torch.set_flush_denormal(True)

    def __exit__(self, *error: object) -> None:
        if self._is_wanted:
            torch.set_flush_denormal(self._was_flushed)


_DENORMAL = 5e-324  # 0 as soon as anything is done with it where denormals are flushed
