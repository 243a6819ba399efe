"""Update rules: how gradients become a change of parameters, by one fused call of Adam or by an optimizer of torch."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainkit.core.errors import CheckpointError
from trainkit.core.schedules import Schedule
from trainkit.engine.optimizers import Adam, Rate, TorchOptimizer, has_scheduler, options_of
from trainkit.engine.parameter_storage import ParameterGroup

State = Mapping[str, Any]  # of one parameter, by name, such as "exp_avg"


class UpdateRule(Protocol):
    """A rule with a state per parameter, by the parameter's index among the module's.

    Attributes:
        name: of the optimizer's class.
        is_adam: whether states are those of Adam: step, exp_avg, exp_avg_sq.
        rate: its learning rate.
        not_recordable: why a CUDA graph cannot record its steps; None where it can.
    """

    name: str
    is_adam: bool
    rate: Rate
    not_recordable: str | None

    def options(self) -> list[dict[str, Any]]:
        """Return the options of each group of parameters, for checkpoints."""
        ...

    def use_lr(self, lr: Schedule) -> None:
        """Take the next steps at another learning rate."""
        ...

    def advance(self) -> None:
        """Step the scheduler of the learning rate, if there is one, after an update."""
        ...

    @property
    def counts(self) -> list[Tensor]:
        """How many steps each group has taken; other tensors where the state was laid out again."""
        ...

    def state(self) -> dict[int, State]:
        """Return the state of every parameter that has one, those without a gradient now included."""
        ...

    def adopt(self, parameters: list[nn.Parameter], state: Mapping[int, State]) -> None:
        """Continue with these parameters, in the place of all before, and their states."""
        ...

    def partition(self, indices: Sequence[int]) -> list[list[int]]:
        """Return the parameters that will move in groups that may be stored together."""
        ...

    def lay_out(self, groups: Sequence[ParameterGroup]) -> None:
        """Move the parameters of these groups from now on."""
        ...

    def step(self, step: int, *, scale: Tensor | None, skipped: Tensor | None, lr: Tensor | None) -> None:
        """Move the parameters by their gradients.

        Args:
            step: the environment step.
            scale: what gradients are divided by; None is 1.
            skipped: 1 on the device where nothing must change; None is 0.
            lr: learning rate on the device in the place of that of the environment step, for steps that are recorded.
        """
        ...


def rule_for(spec: Adam | TorchOptimizer, parameters: list[nn.Parameter]) -> UpdateRule:
    """Return the update rule of a specification: the fused one for Adam and AdamW, else torch's own."""
    if isinstance(spec, Adam) and not has_scheduler(spec.lr):
        group = {"betas": spec.betas, "eps": spec.eps, "weight_decay": spec.weight_decay}
        return FusedAdam({**group, "decoupled_weight_decay": False}, Rate("Adam", spec.lr, None))
    optimizer = spec.make(parameters)
    if not _is_plain_adam(optimizer):
        assert isinstance(spec, TorchOptimizer), "Adam is fused"
        return TorchRule(spec, optimizer, parameters)
    # A stand-in for the groups' options, which a scheduler changes; its own parameter never has a gradient.
    (group,) = optimizer.param_groups
    adam = torch.optim.AdamW if isinstance(optimizer, torch.optim.AdamW) else torch.optim.Adam
    stand_in = adam([nn.Parameter(torch.zeros(()))])
    stand_in.param_groups[0].update(options_of(group))
    rate = Rate(type(spec).__name__, spec.lr, stand_in)
    return FusedAdam(stand_in.param_groups[0], rate, type(optimizer).__name__)


def _is_plain_adam(optimizer: Optimizer) -> bool:
    """Return whether an optimizer is torch's Adam or AdamW with one group and options that the fused call knows."""
    if type(optimizer) not in (torch.optim.Adam, torch.optim.AdamW) or len(optimizer.param_groups) > 1:
        return False
    (group,) = optimizer.param_groups
    others = group["amsgrad"] or group["maximize"] or group["differentiable"]
    return not others and not any(isinstance(value, Tensor) for value in (group["lr"], *group["betas"]))


class FusedAdam:
    """Adam or AdamW: one fused call for all parameters.

    Args:
        group: options by the names of torch's: betas, eps, weight_decay, decoupled_weight_decay.
        rate: its learning rate.
        name: "Adam" or "AdamW".
    """

    is_adam = True

    def __init__(self, group: Mapping[str, Any], rate: Rate, name: str = "Adam") -> None:
        self.name, self.rate = name, rate
        self._group = group
        self._moments: list[Moments] = []  # of the groups, in their order
        self._kept: dict[int, State] = {}  # of parameters that are in no group
        self.not_recordable: str | None = None

    def options(self) -> list[dict[str, Any]]:
        """Return the options that torch's Adam has, too."""
        return [{name: self._group[name] for name in ("betas", "eps", "weight_decay")}]

    def use_lr(self, lr: Schedule) -> None:
        """Take the next steps at another learning rate."""
        self.rate = Rate(self.name, lr, None)

    def advance(self) -> None:
        """Step the scheduler of the learning rate, if there is one, after an update."""
        betas = self._group["betas"]
        self.rate.advance()
        if self._group["betas"] != betas:
            scheduler = type(self.rate.scheduler).__name__
            self.not_recordable = f"{scheduler} changes betas, which needs cycle_momentum=False to be recorded"

    @property
    def counts(self) -> list[Tensor]:
        """How many steps each group has taken; other tensors where the state was laid out again."""
        return [one.count for one in self._moments]

    def state(self) -> dict[int, State]:
        """Return {parameter's index: step, exp_avg, exp_avg_sq}."""
        return {**self._kept, **{i: moment for one in self._moments for i, moment in one.by_index()}}

    def adopt(self, parameters: list[nn.Parameter], state: Mapping[int, State]) -> None:
        """Continue with these parameters and their moments.

        Raises:
            CheckpointError: moments are of parameters of other shapes.
        """
        shapes = [tuple(parameter.shape) for parameter in parameters]
        for i, moment in state.items():
            if i >= len(shapes) or moment["exp_avg"].shape != shapes[i]:
                raise CheckpointError(
                    f"GradientStep cannot take moments {tuple(moment['exp_avg'].shape)} for parameter {i} of {shapes}: "
                    "they are of another module"
                )
        self._moments, self._kept = [], dict(state)

    def partition(self, indices: Sequence[int]) -> list[list[int]]:
        """Return groups of parameters with equal numbers of steps."""
        by_count: dict[float, list[int]] = {}
        state = self.state()
        for i in indices:
            by_count.setdefault(float(state[i]["step"]) if i in state else 0.0, []).append(i)
        return list(by_count.values())

    def lay_out(self, groups: Sequence[ParameterGroup]) -> None:
        """Lay out the moments of these groups as their parameters are."""
        state = self.state()
        self._moments = [Moments(group, state) for group in groups]
        moving = {i for group in groups for i in group.indices}
        self._kept = {i: moment for i, moment in state.items() if i not in moving}

    def step(self, step: int, *, scale: Tensor | None, skipped: Tensor | None, lr: Tensor | None) -> None:
        """Move the parameters by one fused call."""
        group = self._group
        beta1, beta2 = group["betas"]
        rate = self.rate(step) if lr is None else lr
        if lr is None and not self._moments[0].count.is_cpu:
            rate = float(np.float32(rate))  # as `lr` on the device is, so that recorded steps have the same bits
        for one in self._moments:
            one.count_step(skipped)
        (torch._fused_adamw_ if group["decoupled_weight_decay"] else torch._fused_adam_)(
            [tensor for one in self._moments for tensor in one.group.stored],
            [tensor for one in self._moments for tensor in one.group.gradients],
            [tensor for one in self._moments for tensor in one.mean],
            [tensor for one in self._moments for tensor in one.square],
            [],
            [one.count for one in self._moments for _ in one.mean],
            lr=rate,
            beta1=beta1,
            beta2=beta2,
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
            grad_scale=scale,
            found_inf=skipped,
        )


class Moments:
    """Adam's moments of a group of parameters with an equal number of steps.

    Attributes:
        group: the parameters and their gradients.
        mean, square: stored as the parameters are.
        count: steps taken.
    """

    def __init__(self, group: ParameterGroup, state: Mapping[int, State]) -> None:
        self.group = group
        first = group.indices[0]
        count = float(state[first]["step"]) if first in state else 0.0
        self.mean, self.square = ([torch.zeros_like(tensor) for tensor in group.stored] for _ in range(2))
        self.count = torch.full((), count, dtype=torch.float32, device=group.stored[0].device)
        self._count_array = self.count.numpy() if self.count.is_cpu else None
        self._views = list(zip(group.pieces(self.mean), group.pieces(self.square), strict=True))
        for i, (mean, square) in zip(group.indices, self._views, strict=True):
            if i in state:
                mean.copy_(state[i]["exp_avg"])
                square.copy_(state[i]["exp_avg_sq"])

    def count_step(self, skipped: Tensor | None) -> None:
        """Count a step, on a device unless it is skipped."""
        if self._count_array is not None and skipped is None:
            self._count_array += 1.0  # by numpy: between its calls, one into torch takes longer
        else:
            self.count.add_(1.0 if skipped is None else 1.0 - skipped)

    def by_index(self) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """Yield (parameter's index, its step, exp_avg and exp_avg_sq)."""
        for i, (mean, square) in zip(self.group.indices, self._views, strict=True):
            yield i, {"step": self.count.clone(), "exp_avg": mean, "exp_avg_sq": square}


class TorchRule:
    """An optimizer of torch, which takes its own steps on the parameters one by one.

    On a device it waits for the number that says whether to skip a step, as `torch.amp.GradScaler` does.

    Args:
        spec: makes the optimizer, again where parameters are replaced.
        optimizer: of the first parameters.
        parameters: the module's.
    """

    is_adam = False

    def __init__(self, spec: TorchOptimizer, optimizer: Optimizer, parameters: list[nn.Parameter]) -> None:
        self.name = type(optimizer).__name__
        self._spec, self._optimizer, self._parameters = spec, optimizer, parameters
        self.rate = Rate("TorchOptimizer", spec.lr, optimizer)
        self._groups: Sequence[ParameterGroup] = ()
        self.not_recordable: str | None = (
            f"the CPU has to know whether to skip a step of {self.name}, unlike one of Adam or AdamW"
        )

    def options(self) -> list[dict[str, Any]]:
        """Return the options of each group."""
        return [options_of(group) for group in self._optimizer.param_groups]

    def use_lr(self, lr: Schedule) -> None:
        """Take the next steps at another learning rate."""
        self._spec = replace(self._spec, lr=lr)
        self.rate = Rate("TorchOptimizer", lr, self._optimizer)

    def advance(self) -> None:
        """Step the scheduler of the learning rate, if there is one, after an update."""
        self.rate.advance()

    @property
    def counts(self) -> list[Tensor]:
        """No counts, which recordings depend on: its steps cannot be recorded."""
        return []

    def state(self) -> dict[int, State]:
        """Return the optimizer's state of every parameter that has one; Adagrad makes one before the first step."""
        states = [self._optimizer.state.get(parameter) for parameter in self._parameters]
        return {i: state for i, state in enumerate(states) if state and state.get("step", 1) != 0}

    def adopt(self, parameters: list[nn.Parameter], state: Mapping[int, State]) -> None:
        """Continue with these parameters and their states, which are cast to their dtypes and devices.

        Raises:
            CheckpointError: states are of parameters of other shapes.
        """
        for i in state:
            shapes = [x.shape for x in state[i].values() if isinstance(x, Tensor) and x.dim() > 0]
            if i >= len(parameters) or any(shape.numel() > parameters[i].numel() for shape in shapes):
                raise CheckpointError(
                    f"GradientStep cannot take the state of {self.name} for parameter {i} of "
                    f"{[tuple(parameter.shape) for parameter in parameters]}: it is of another module"
                )
        before = self.rate.state_dict()
        self._parameters, self._optimizer = parameters, self._spec.make(parameters)
        self.rate = Rate("TorchOptimizer", self._spec.lr, self._optimizer)
        self.rate.load_state_dict(before)
        index = {id(parameter): i for i, parameter in enumerate(parameters)}
        packed = self._optimizer.state_dict()
        order = [index[id(parameter)] for group in self._optimizer.param_groups for parameter in group["params"]]
        packed["state"] |= {at: _cloned(state[i]) for at, i in enumerate(order) if i in state}
        self._optimizer.load_state_dict(packed)

    def partition(self, indices: Sequence[int]) -> list[list[int]]:
        """Return one group."""
        return [list(indices)] if indices else []

    def lay_out(self, groups: Sequence[ParameterGroup]) -> None:
        """Scale the gradients of these groups from now on; parameters without a gradient do not move."""
        self._groups = groups

    def step(self, step: int, *, scale: Tensor | None, skipped: Tensor | None, lr: Tensor | None) -> None:
        """Move the parameters by the optimizer's own step."""
        assert lr is None, "steps cannot be recorded"
        if skipped is not None and bool(skipped):
            return
        if scale is not None:
            for group in self._groups:
                torch._foreach_div_(group.gradients, scale)
        self.rate.set(step)
        self._optimizer.step()


def _cloned(state: State) -> dict[str, Any]:
    """Copy the tensors of a parameter's state."""
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in state.items()}
