"""Gradient steps: how gradients become a step. Check, clip, update rule, and what follows it.

An engine computes the gradients of a loss, and then calls `GradientStep.apply`: `Engine.minimize` computes them by
`GradientStep.differentiate`, which is torch's autograd, `NumpyEngine.minimize` by a recorded program.

On the CPU, parameters that get gradients are kept as views of one tensor (`parameter_storage`), and so are their
gradients and Adam's moments (`update_rules`): one norm and one fused Adam call, however many layers there are. A
module's parameters stay its own: where they were replaced (`.to`, `deepcopy`, `load_state_dict(assign=True)`,
`zero_grad`), the next step lays them out again and keeps the optimizer's state.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from trainkit.core.config import Part
from trainkit.core.errors import CheckpointError, Checks, ConfigError
from trainkit.core.schedules import Schedule
from trainkit.core.signatures import checked
from trainkit.engine.device import convolutions_timed
from trainkit.engine.optimizers import OptimizerSpec, as_spec
from trainkit.engine.parameter_storage import ParameterGroup, group_of, lay_out
from trainkit.engine.process_group import ONE_PROCESS, ProcessGroup
from trainkit.engine.update_rules import State, rule_for

Scalar = Tensor | float  # on a device, or a plain number already
Parameters = Mapping[str, Tensor]  # by their paths in a module
_N_WARM_UPS = 3  # steps in which cuDNN looks for the fastest convolutions
ClipBy = Literal["global_norm", "norm", "value"]


_LARGEST, _SMALLEST_LIMIT = torch.finfo(torch.float32).max, torch.finfo(torch.float32).tiny


@checked
@dataclass(frozen=True, slots=True)
class Clip(Part):
    """Specify a gradient clip: by the global norm, by each parameter's norm, or by value."""

    limit: float
    by: ClipBy = "global_norm"

    def __post_init__(self) -> None:
        with Checks("Clip") as checks:
            if checks.number("limit", self.limit, low=0, above_low=True):
                rule = f".limit must be a normal number of float32, {_SMALLEST_LIMIT:g} or more, got {self.limit:g}"
                checks.require(self.limit >= _SMALLEST_LIMIT, rule)
            checks.one_of("by", self.by, ["global_norm", "norm", "value"])


class Taken(NamedTuple):
    """Outcome of one step, on the device; on the CPU in Python numbers."""

    loss: Scalar  # before it
    norm: Scalar  # the gradient's, before the clip
    skipped: Scalar  # 1.0 where it was not taken, else 0.0
    results: Any  # what the loss returned in addition


class GradientStep:
    """Move parameters along gradients: as a torch optimizer and `clip_grad_norm_`, for Adam and AdamW in fewer calls.

    A step whose loss or gradient is not finite is not taken: parameters and the optimizer's state stay as they are.

    Args:
        module: whose parameters to move; one that never gets a gradient never moves, and after its first gradient a
            missing one counts as 0.
        optimizer: `Adam`, `TorchOptimizer`, or a factory of a torch optimizer.
        clip: None clips nothing.
        flush_denormals: let numbers below 1e-38 count as 0 within the step on the CPU, where they are slow; this
            changes the last bits.
        loss: rows -> `Loss`, where an engine executes it; None where each call brings its own.
        every: the step is part of each update whose number, from 1, is a multiple of it.
        after: what parameters become after each step that was taken, {path: parameter} -> {path: new value} of those
            that change, such as a projection of weights; it writes nothing in place.
        reads: the name of an earlier step whose outputs the loss reads in `rows.inputs`.
        training: whether the module is in training mode while its loss is computed; all others are in evaluation mode.

    Attributes:
        optimizer: as given; a factory as `TorchOptimizer`.
        groups: parameters that move; a new list wherever they are laid out again.
        moving: the parameters of all groups.
        process_group: the processes that average their gradients. May be set.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: OptimizerSpec,
        clip: Clip | None = None,
        *,
        flush_denormals: bool = True,
        loss: Callable[[Any], Any] | None = None,
        every: int = 1,
        after: Callable[[Parameters], Parameters] | None = None,
        reads: str | None = None,
        training: bool = True,
    ) -> None:
        with Checks("GradientStep") as checks:
            checks.integer("every", every, low=1)
        check_parameters(module)
        if after is not None:
            _check_after(module, after)
        self.module, self.loss = module, loss
        self.optimizer, self.clip, self.flush_denormals = as_spec(optimizer), clip, flush_denormals
        self.every, self.after, self.reads, self.training = every, after, reads, training
        self.groups: list[ParameterGroup] = []  # for Adam one more for each set of parameters that came to move later
        self.moving: set[nn.Parameter] = set()
        self._named = list(module.named_parameters())
        lay_out(self.trainable)  # now, as moving them later invalidates what was recorded with them
        self._rule = rule_for(self.optimizer, [parameter for _, parameter in self._named])
        self._remember_structure()
        self.process_group: ProcessGroup = ONE_PROCESS
        self._n_warm_ups = 0  # steps so far, up to `_N_WARM_UPS`

    @property
    def not_recordable(self) -> str | None:
        """Why a CUDA graph cannot record steps; None where it can."""
        return self.process_group.not_recordable or self._rule.not_recordable

    @property
    def counts(self) -> list[Tensor]:
        """How many steps each group has taken, for Adam; other tensors where its state was laid out again."""
        return self._rule.counts

    def lr(self, step: int) -> float:
        """Return the learning rate of an update at an environment step, of the first group of parameters."""
        return self._rule.rate(step)

    def use_lr(self, lr: Schedule) -> None:
        """Take the next steps at another learning rate, a schedule of the environment step."""
        self.optimizer = replace(self.optimizer, lr=lr)
        self._rule.use_lr(lr)

    def advance(self) -> None:
        """Step the torch scheduler of the learning rate, if there is one; once per update of a policy."""
        if self._rule.rate.scheduler is not None:
            self._rule.advance()

    # ---- one step ----

    def apply(self, loss: Scalar, outputs: Any, *, step: int, lr: Tensor | None = None) -> Taken:
        """Clip the computed gradients and take one step along them, unless loss or gradients are not finite.

        To clip by the global norm, the update rule divides the gradients: in Adam's fused call, no pass more.

        With a learning rate `lr` on the device no number is read on the CPU, so that the step can be recorded.
        """
        groups, clip = self.groups, self.clip
        self.process_group.average(groups, loss)
        limit = clip.limit if clip is not None and clip.by == "global_norm" else math.inf
        scale: Tensor | None = None  # what gradients are divided by
        skipped: Tensor | None = None
        if groups[0].members[0].is_cpu and lr is None:
            norm = math.sqrt(sum(group.square_norm() for group in groups))
            taken = Taken(float(loss), norm, 0.0, outputs)
            if not math.isfinite(norm + taken.loss):
                return taken._replace(skipped=1.0)
            if norm + 1e-6 > limit:
                scale = torch.full((), min((norm + 1e-6) / limit, _LARGEST), dtype=torch.float32)
        else:  # without reading a number, for which the CPU would wait
            norms = torch._foreach_norm([gradient for group in groups for gradient in group.gradients])
            total = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
            product = torch.lerp(total, torch.as_tensor(loss), 0.0)  # nan where one of the two is not finite
            skipped = torch.ne(product, product, out=torch.empty_like(total))
            taken = Taken(loss, total, skipped, outputs)
            if limit < math.inf:
                scale = ((total + 1e-6) / limit).clamp_(min=1.0)
        if clip is not None and clip.by != "global_norm":
            for group in groups:
                (group.clip_values if clip.by == "value" else group.clip_norms)(clip.limit)
        self._rule.step(step, scale=scale, skipped=skipped, lr=lr)
        return taken

    @torch.no_grad()
    def assign(self, values: Parameters, skipped: Scalar) -> None:
        """Assign the values that `after` returned to parameters, unless the step was skipped on the device."""
        parameters = dict(self._named)
        for path, value in values.items():
            parameter = parameters[path]
            parameter.copy_(torch.where(skipped > 0, parameter, value) if isinstance(skipped, Tensor) else value)

    def _warm_up(self) -> contextlib.AbstractContextManager[None]:
        """Return a context for the next step in which cuDNN times convolutions, if it is one of the first."""
        if self._n_warm_ups == _N_WARM_UPS or not self._named:
            return contextlib.nullcontext()
        self._n_warm_ups += 1
        return convolutions_timed(self._named[0][1].device)

    # ---- gradients ----

    @property
    def trainable(self) -> list[nn.Parameter]:
        """The module's parameters that require gradients."""
        return [parameter for parameter in self.module.parameters() if parameter.requires_grad]

    def zero_gradients(self) -> None:
        """Set all gradients to 0."""
        for group in self.groups:
            torch._foreach_zero_(group.gradients)

    def set_gradients(self, gradients: Mapping[nn.Parameter, Tensor]) -> None:
        """Set the gradients of the parameters that have one, and lay out parameters that are not laid out yet."""
        is_current = self.is_laid_out
        if is_current and gradients.keys() <= self.moving:
            for group in self.groups:
                group.set_gradients(gradients)
            return
        if not is_current:
            self._find_parameters()
        for _, parameter in self._named:
            parameter.grad = gradients.get(parameter)
        self._lay_out()

    @contextlib.contextmanager
    def differentiation(self) -> Iterator[None]:
        """Return a context in which torch computes a loss, and `differentiate` its gradients; in no_grad(), too."""
        if torch.is_inference_mode_enabled():
            raise ConfigError(
                f"{type(self.module).__name__} cannot learn inside torch.inference_mode(), whose tensors have no "
                "gradients: leave it before the update; torch.no_grad() is allowed"
            )
        with self._warm_up(), torch.enable_grad():
            yield

    def differentiate(self, value: Tensor) -> None:
        """Set the gradients of a loss."""
        trainable, gradients = self.trainable, dict[nn.Parameter, Tensor]()
        if trainable and value.requires_grad:
            gradients = present(trainable, torch.autograd.grad(value, trainable, allow_unused=True))
        if not gradients:
            raise ConfigError(
                f"the loss of {type(self.module).__name__} has no gradient, as no parameter that it depends on has "
                "requires_grad=True: unfreeze one with requires_grad_(True), or do not update"
            )
        self.set_gradients(gradients)
        for parameter in gradients:
            if parameter._post_accumulate_grad_hooks:  # which autograd calls in backward() only
                for hook in parameter._post_accumulate_grad_hooks.values():
                    hook(parameter)

    # ---- storage ----

    @torch.no_grad()
    def map_moments(self, parameters: Iterable[nn.Parameter], linear: Callable[[Tensor], Tensor]) -> None:
        """Adapt the optimizer's state of parameters whose gradients g are linear(g) from now on.

        Moments m become linear(m). Second moments v, those of which no element is negative, become linear(sqrt(v))^2,
        the largest that linear(g) can have.
        """
        chosen, state = set(parameters), self._rule.state()
        for i, (_, parameter) in enumerate(self._named):
            for moment in state.get(i, {}).values() if parameter in chosen else ():
                if isinstance(moment, Tensor) and moment.shape == parameter.shape:
                    is_second = bool((moment >= 0).all())
                    moment.copy_(linear(moment.sqrt()).square() if is_second else linear(moment))

    def forget(self) -> None:
        """Clear the optimizer's state; its learning rate stays where its schedule is."""
        self.load_state_dict({**self.state_dict(), "state": {}})

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state by parameter, in the form of `torch.optim.Optimizer.state_dict()`.

        In addition "optimizer", the name of its class if it is not Adam, and "scheduler", a torch scheduler's state.
        """
        rule = self._rule
        groups = [{"lr": self.lr(0), **group} for group in rule.options()]
        groups[0]["params"] = list(range(len(self._named)))
        name = {} if rule.name == "Adam" else {"optimizer": rule.name}
        return {"state": rule.state(), "param_groups": groups, **name, **rule.rate.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the optimizer's state, ours or that of torch's for the same parameters.

        Hyperparameters stay as constructed, except those that a torch scheduler changes.

        Raises:
            CheckpointError: it is of parameters of other shapes, or of another optimizer or scheduler.
        """
        name = state.get("optimizer", self._rule.name if self._rule.is_adam else "Adam")
        if name != self._rule.name:
            raise CheckpointError(
                f"GradientStep cannot take the state of {name}, as its optimizer is {self._rule.name}: give the "
                "optimizer= that it was saved with, or load the weights alone with load_weights"
            )
        self._named = list(self.module.named_parameters())
        self._remember_structure()
        self._rule.adopt([parameter for _, parameter in self._named], state["state"])
        self._rule.rate.load_state_dict(state)
        for _, parameter in self._named:
            parameter.grad = None
        self._lay_out()

    @property
    def is_laid_out(self) -> bool:
        """Whether the module has the parameters that were laid out, and all are views of their groups."""
        if sum(map(len, self._tables)) != len(self._children):
            return False
        for table, name, child in self._children:
            if table.get(name) is not child:
                return False
        for parameter, requires_grad in self._requires_grad:
            if parameter.requires_grad is not requires_grad:
                return False
        return bool(self.groups) and all(group.is_current() for group in self.groups)

    def _find_parameters(self) -> None:
        """Find the module's current parameters; those with the path and shape of earlier ones keep their state."""
        before, kinds, state = self._named, self._kinds, self._rule.state()
        self._named = list(self.module.named_parameters())
        self._remember_structure()
        if [id(p) for _, p in before] == [id(p) for _, p in self._named] and kinds == self._kinds:
            return
        own = {path: (kinds[i][0], state[i]) for i, (path, _) in enumerate(before) if i in state}  # with the shapes
        kept: dict[int, State] = {}
        for i, (path, parameter) in enumerate(self._named):
            shape, of_path = own.get(path, (None, {}))
            if shape == parameter.shape:
                kept[i] = of_path
        self._rule.adopt([parameter for _, parameter in self._named], kept)

    def _remember_structure(self) -> None:
        """Remember the module's children and parameters, to notice changes."""
        self._tables: list[dict[str, Any]] = [
            table for part in self.module.modules() for table in (part._modules, part._parameters)
        ]
        self._children = [(table, name, child) for table in self._tables for name, child in table.items()]
        self._requires_grad = [(parameter, parameter.requires_grad) for _, parameter in self._named]
        self._kinds = [(parameter.shape, parameter.dtype, parameter.device) for _, parameter in self._named]

    def _lay_out(self) -> None:
        """Lay out the parameters that require gradients, and have one or have had one."""
        state = self._rule.state()
        moving = [i for i, (_, p) in enumerate(self._named) if p.requires_grad and (i in state or p.grad is not None)]
        self.groups = [group_of(self._named, indices) for indices in self._rule.partition(moving)]
        self._rule.lay_out(self.groups)
        self.moving = {parameter for group in self.groups for parameter in group.members}


def present(parameters: Iterable[nn.Parameter], gradients: Iterable[Tensor | None]) -> dict[nn.Parameter, Tensor]:
    """Return the gradients by parameter, without those that are None."""
    return {p: gradient for p, gradient in zip(parameters, gradients, strict=True) if gradient is not None}


def _check_after(module: nn.Module, after: Callable[[Parameters], Parameters]) -> None:
    """Raise `ConfigError` unless a function of parameters returns new values of some of them."""
    given = {path: parameter.detach().clone() for path, parameter in module.named_parameters()}
    before = {path: tensor.clone() for path, tensor in given.items()}
    with torch.no_grad():
        values = after(given)
    name = getattr(after, "__qualname__", type(after).__name__)
    rule = "GradientStep.after must return new values of parameters by their paths"
    if not isinstance(values, Mapping):
        raise ConfigError(f"{rule}, got {type(values).__name__} from {name}")
    for path, value in values.items():
        if path not in before:
            raise ConfigError(f"{rule}, got {path!r} from {name}: it has {', '.join(before)}")
        if value.shape != before[path].shape:
            shapes = list(value.shape), list(before[path].shape)
            raise ConfigError(f"{rule}, got {shapes[0]} for {path} of {shapes[1]} from {name}")
    if changed := [path for path, tensor in given.items() if not torch.equal(tensor, before[path])]:
        raise ConfigError(
            f"{rule} and write nothing in place, but {name} wrote to {', '.join(changed)}: return new tensors"
        )


def check_parameters(module: nn.Module) -> None:
    """Raise `ConfigError` for parameters that cannot be trained: float64 ones, or ones without gradients.

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


class denormals_flushed:  # noqa: N801 - a context manager, as `contextlib.suppress`
    """Treat denormal numbers as 0 on this thread in the block, if that is wanted."""

    __slots__ = ("_is_wanted", "_was_flushed")

    def __init__(self, is_wanted: bool) -> None:
        self._is_wanted = is_wanted

    def __enter__(self) -> None:
        if self._is_wanted:
            self._was_flushed = _DENORMAL * 1.0 == 0.0  # torch has no function that reads the processor's mode
            torch.set_flush_denormal(True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_wanted:
            torch.set_flush_denormal(self._was_flushed)


_DENORMAL = 5e-324  # any product with it is 0 where denormals are flushed
