"""Optimizers as they are specified: Adam, or any optimizer of torch, and a learning rate or torch scheduler."""

import functools
import inspect
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from trainkit.core.config import Part
from trainkit.core.errors import CheckpointError, Checks, ConfigError
from trainkit.core.schedules import Linear, Schedule, as_schedule
from trainkit.core.signatures import checked

OptimizerFactory = Callable[[list[nn.Parameter]], Optimizer]
# A number, knots, a schedule of the environment step, or optimizer -> torch scheduler. One type of both functions, so
# that type checkers infer those of lambdas.
LearningRate = float | Sequence[tuple[int, float]] | Callable[[Any], float | LRScheduler]


@checked
@dataclass(frozen=True, slots=True, repr=False)
class Adam(Part):
    """Specify Adam (Kingma & Ba, 2015, whose numbers are the defaults).

    Attributes:
        lr: learning rate; a number, knots or a schedule of the environment step; or a factory of a torch scheduler,
            such as `lambda optimizer: CosineAnnealingLR(optimizer, 1_000)`, which starts at 1e-3; in a preset also a
            `Linear`.
        betas, eps, weight_decay: as in `torch.optim.Adam`.
    """

    lr: LearningRate | Linear = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        with Checks("Adam") as checks:
            two = isinstance(self.betas, Sequence) and len(self.betas) == 2
            if checks.require(two, f".betas must be two numbers, got {self.betas!r}"):
                for beta in self.betas:
                    checks.number("betas", beta, low=0, high=1)
                    checks.require(beta != 1, ".betas must be below 1, got 1")
            checks.number("eps", self.eps, low=0, above_low=True)
            checks.number("weight_decay", self.weight_decay, low=0)
            with checks.gather():
                learning_rate("Adam", self.lr.over(1) if isinstance(self.lr, Linear) else self.lr)

    def make(self, parameters: list[nn.Parameter]) -> Optimizer:
        """Return torch's Adam for these parameters."""
        start = 1e-3 if has_scheduler(self.lr) else as_schedule("Adam", "lr", self.lr, low=0)(0)
        return torch.optim.Adam(parameters, **{**asdict(self), "lr": start})


@checked
@dataclass(frozen=True, slots=True)
class TorchOptimizer(Part):
    """Specify an optimizer by a factory, and its learning rate; a factory alone stands for `TorchOptimizer(factory)`.

    Attributes:
        factory: list of parameters -> `torch.optim.Optimizer`: a class such as `torch.optim.AdamW`, a
            `functools.partial` of one, or a function. All parameters must be in its groups.
        lr: as in `Adam`; a torch scheduler starts at the factory's own learning rates. None leaves these as they are.
    """

    factory: OptimizerFactory
    lr: LearningRate | None = None

    def __post_init__(self) -> None:
        with Checks("optimizer") as checks:
            if isinstance(self.factory, Optimizer):
                kind = type(self.factory).__name__
                remedy = f"give {kind}, or functools.partial({kind}, ...), which is called with those of the policy"
                checks.require(False, f"={kind}(...) has parameters already: {remedy}")
            else:
                rule = "must be Adam(...), TorchOptimizer(...) or a factory such as torch.optim.AdamW"
                checks.require(callable(self.factory), f" {rule}, got {self.factory!r}")
            if self.lr is not None and not callable(self.lr):
                with checks.gather():
                    learning_rate("TorchOptimizer", self.lr)

    def make(self, parameters: list[nn.Parameter]) -> Optimizer:
        """Return the factory's optimizer of these parameters.

        Raises:
            ConfigError: the factory raises, or returns something else, or an optimizer of other parameters.
        """
        subject = f"optimizer={_name_of(self.factory)}"
        try:
            made: object = self.factory(parameters)
        except Exception as error:
            raise ConfigError(
                f"{subject} raised {type(error).__name__}: {error}: give a class such as torch.optim.AdamW, a "
                "functools.partial of one, or a function, which is called with a list of parameters"
            ) from error
        with Checks(subject) as checks:
            if checks.require(isinstance(made, Optimizer), f" must return a torch.optim.Optimizer, got {made!r}"):
                assert isinstance(made, Optimizer), "checked"
                _check_made(checks, made, parameters)
        assert isinstance(made, Optimizer), "checked"
        return made


OptimizerSpec = Adam | TorchOptimizer | OptimizerFactory


def as_spec(optimizer: OptimizerSpec) -> Adam | TorchOptimizer:
    """Return a factory as a `TorchOptimizer`, and a specification unchanged."""
    return optimizer if isinstance(optimizer, (Adam, TorchOptimizer)) else TorchOptimizer(optimizer)


def spec_with_lr(optimizer: OptimizerSpec | None, default: Adam, lr: LearningRate) -> Adam | TorchOptimizer:
    """Return the optimizer for the arguments `optimizer` and `lr` of a policy.

    A number or schedule is for Adam, and for a factory that sets no learning rate: a class, or a `functools.partial` of
    one without `lr`. A torch scheduler is for every factory.

    Args:
        optimizer: None is Adam.
        default: Adam if `optimizer` is None, whose `lr` is where a torch scheduler starts.
        lr: as in `Adam`.
    """
    if isinstance(optimizer, (Adam, TorchOptimizer)):
        return optimizer
    if not has_scheduler(lr):
        if optimizer is None:
            return Adam(lr, default.betas, default.eps, default.weight_decay)
        return TorchOptimizer(optimizer, None if _sets_lr(optimizer) else lr)
    factory: Any = torch.optim.Adam if optimizer is None else optimizer
    if not _sets_lr(factory):
        own = asdict(default) if optimizer is None else {}
        factory = functools.partial(factory, **{**own, "lr": as_schedule("Adam", "lr", default.lr, low=0)(0)})
    return TorchOptimizer(factory, lr)


def ignores_lr(optimizer: OptimizerSpec | None, lr: LearningRate) -> bool:
    """Return whether the argument `lr` of a policy has no effect on its `optimizer`; see `spec_with_lr`."""
    if optimizer is None or isinstance(optimizer, (Adam, TorchOptimizer)):
        return optimizer is not None
    return _sets_lr(optimizer) and not has_scheduler(lr)


def _sets_lr(factory: OptimizerFactory) -> bool:
    """Return whether a factory sets its learning rate: a class does not, a partial of one only by the option `lr`."""
    if isinstance(factory, functools.partial):
        return "lr" in factory.keywords or _sets_lr(factory.func)
    return not isinstance(factory, type)


def _check_made(checks: Checks, made: Optimizer, parameters: list[nn.Parameter]) -> None:
    """Check the optimizer of a factory: its parameters, its groups, and that its step needs nothing."""
    of_groups = [id(parameter) for group in made.param_groups for parameter in group["params"]]
    n_missing = len({*map(id, parameters)} - {*of_groups})
    n_foreign = len({*of_groups} - {*map(id, parameters)})
    checks.require(
        n_missing == 0,
        f" leaves out {n_missing} of {len(parameters)} parameters: give it all, and freeze those that must not move by "
        "requires_grad_(False)",
    )
    checks.require(n_foreign == 0, f" has {n_foreign} parameters of others: give it those that it is called with")
    has_lr = all("lr" in group for group in made.param_groups)
    checks.require(has_lr, " has groups without 'lr': store the learning rate in each group")
    needed = _required(made.step)
    checks.require(
        not needed,
        f" needs {', '.join(needed)} for a step, but gradients are computed once per update: choose another, such as "
        "Adam",
    )


def _required(function: Callable[..., Any]) -> list[str]:
    """Return the names of the parameters without a default."""
    parameters = inspect.signature(function).parameters.values()
    named = [one for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    return [one.name for one in named if one.default is one.empty]


def _name_of(factory: object) -> str:
    """Name a factory in an error."""
    if isinstance(factory, functools.partial):
        return _name_of(factory.func)
    return getattr(factory, "__name__", type(factory).__name__)


# ---- learning rates ----


def has_scheduler(lr: object) -> bool:
    """Return whether a learning rate is a factory of a torch scheduler, and not a schedule of the environment step."""
    if not callable(lr):
        return False
    try:
        lr(0)
    except Exception:  # noqa: BLE001  # `learning_rate` reports it
        scheduler, error = _scheduler(lr, None)
        return scheduler is not None or (error is not None and _needs_optimizer(lr))
    return False


def learning_rate(owner: str, lr: object, optimizer: Optimizer | None = None) -> Schedule | LRScheduler:
    """Return a number, knots or function of the step as a schedule, or the torch scheduler that a factory makes.

    Args:
        owner: whose option it is, for errors.
        lr: as in `Adam`.
        optimizer: of the scheduler; None tries the factory with another one.

    Raises:
        ConfigError: it is neither, or its scheduler cannot be stepped once per update.
    """
    if not callable(lr):
        if isinstance(lr, LRScheduler):
            raise ConfigError(
                f"{owner}.lr {type(lr).__name__}(...) has an optimizer already: give a function of the optimizer, such "
                f"as functools.partial(torch.optim.lr_scheduler.{type(lr).__name__}, ...)"
            )
        return as_schedule(owner, "lr", lr, low=0)
    try:
        lr(0)
    except Exception as of_step:
        scheduler, of_optimizer = _scheduler(lr, optimizer)
        if scheduler is not None:
            _check_scheduler(owner, scheduler)
            return scheduler
        if of_optimizer is not None and _needs_optimizer(lr):
            raise ConfigError(
                f"{owner}.lr={_name_of(lr)} must return a torch scheduler for an optimizer, and raised "
                f"{type(of_optimizer).__name__}: {of_optimizer}"
            ) from of_step
    return as_schedule(owner, "lr", lr, low=0)


def _needs_optimizer(function: Callable[..., Any]) -> bool:
    """Return whether a function has a parameter `optimizer`."""
    return "optimizer" in inspect.signature(function).parameters


def _scheduler(factory: Callable[..., Any], optimizer: Optimizer | None) -> tuple[LRScheduler | None, Exception | None]:
    """Return the scheduler of a factory, or the error that it raised; neither if it returns something else."""
    if optimizer is None:
        optimizer = torch.optim.Adam([nn.Parameter(torch.zeros(()))])
    try:
        made: object = factory(optimizer)
    except Exception as error:  # noqa: BLE001  # of the user's function; its caller reports it
        return None, error
    return (made, None) if isinstance(made, LRScheduler) else (None, None)


def _check_scheduler(owner: str, scheduler: LRScheduler) -> None:
    """Raise `ConfigError` for a scheduler whose step needs arguments."""
    needed = _required(scheduler.step)
    if needed:
        raise ConfigError(
            f"{owner}.lr: {type(scheduler).__name__} needs {', '.join(needed)} for a step, but schedulers are stepped "
            "once per update without any: choose another, or a schedule of the environment step"
        )


class Rate:
    """The learning rate in use: a schedule of the environment step, a torch scheduler, or the optimizer's own.

    Args:
        owner: whose option `lr` is, for errors.
        lr: as in `TorchOptimizer`.
        optimizer: whose groups have the learning rate; None if `lr` is a schedule.
    """

    def __init__(self, owner: str, lr: LearningRate | Linear | None, optimizer: Optimizer | None) -> None:
        made = None if lr is None else learning_rate(owner, lr, optimizer)
        self.scheduler = made if isinstance(made, LRScheduler) else None
        self._schedule: Schedule | None = None if isinstance(made, LRScheduler) else made
        self._optimizer = optimizer
        if self._schedule is not None and optimizer is not None:
            own = [float(group["lr"]) for group in optimizer.param_groups]
            if len({*own}) > 1:
                raise ConfigError(
                    f"{owner}.lr would set the learning rates {own} of the groups of parameters to one: leave it out, "
                    "or give a factory of a torch scheduler, which scales each"
                )

    def __call__(self, step: int) -> float:
        """Return the learning rate at an environment step, of the first group if there are several."""
        if self._schedule is not None:
            return self._schedule(step)
        assert self._optimizer is not None, "there is no other learning rate"
        return float(self._optimizer.param_groups[0]["lr"])

    def set(self, step: int) -> None:
        """Set the learning rate of all groups where it is a schedule."""
        if self._schedule is not None and self._optimizer is not None:
            lr = self._schedule(step)
            for group in self._optimizer.param_groups:
                group["lr"] = lr

    def advance(self) -> None:
        """Step the scheduler, if there is one, after an update."""
        if self.scheduler is None:
            return
        with warnings.catch_warnings():  # about the order at a first update whose step was skipped
            warnings.filterwarnings("ignore", ".*optimizer.step()")
            self.scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        """Return the scheduler's state and the options of the groups, which it changes; empty without a scheduler."""
        if self.scheduler is None or self._optimizer is None:
            return {}
        groups = [options_of(group) for group in self._optimizer.param_groups]
        return {"scheduler": self.scheduler.state_dict(), "options": groups}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue a saved scheduler; one that is not in the state starts at the beginning.

        Raises:
            CheckpointError: it is of another scheduler.
        """
        if self.scheduler is None or self._optimizer is None or "scheduler" not in state:
            return
        saved, groups = state["scheduler"], state["options"]
        own = self.scheduler.state_dict()
        have = [options_of(group) for group in self._optimizer.param_groups]
        fits = saved.keys() == own.keys() and [group.keys() for group in groups] == [group.keys() for group in have]
        if not fits or not all(math.isfinite(group["lr"]) for group in groups):
            raise CheckpointError(
                f"the checkpoint's learning rate is of another scheduler than {type(self.scheduler).__name__}: give "
                "the lr= that it was saved with, or load the policy's weights alone with load_weights"
            )
        self.scheduler.load_state_dict(saved)
        for group, options in zip(self._optimizer.param_groups, groups, strict=True):
            group.update(options)


def options_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a group of parameters."""
    return {name: value for name, value in group.items() if name not in ("params", "param_names")}
