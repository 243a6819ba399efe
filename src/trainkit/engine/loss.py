"""What losses are given and return: rows on the device, a loss per row, and the scalar to minimize."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from trainkit.core import tree
from trainkit.core.data import ACTION_MASK
from trainkit.core.errors import ConfigError

RESERVED_METRICS = frozenset(
    {"loss", "smoothed_loss", "grad_norm", "lr", "skipped", "step", "priority", "replay_ratio"}
    | {"weight_mean", "effective_share", "target_followed", "target_updates", "last_target_update"}
)


@dataclass(frozen=True, slots=True)
class Max:
    """A metric: the largest number of rows [B, ...]."""

    of_rows: Tensor


@dataclass(frozen=True, slots=True)
class Min:
    """A metric: the smallest number of rows [B, ...]."""

    of_rows: Tensor


class Reduction:
    """Reduction of a loss and its metrics from rows [B] to the buffer's samples; here each row is a sample."""

    def __call__(self, loss: "Loss") -> "Loss":
        """Return the loss of what was sampled, with scalar metrics."""
        priority = None if loss.priority is None else self.priorities(loss.priority)
        metrics = {name: self.metric(metric) for name, metric in loss.metrics.items()}
        return replace(loss, per_row=self.losses(loss.per_row), priority=priority, metrics=metrics)

    def metric(self, metric: "Metric") -> Tensor:
        """Return a scalar."""
        if isinstance(metric, Max):
            return self.largest(metric.of_rows)
        if isinstance(metric, Min):
            return self.smallest(metric.of_rows)
        return self.mean(metric) if metric.dim() else metric

    def losses(self, per_row: Tensor) -> Tensor:
        """Return the losses of what was sampled, whose mean is the mean over real rows."""
        return per_row

    def priorities(self, priority: Tensor) -> Tensor:
        """Return the priorities of what was sampled."""
        return priority

    def mean(self, column: Tensor) -> Tensor:
        """Return the mean over real rows."""
        return column.mean()

    def largest(self, column: Tensor) -> Tensor:
        """Return the largest of real rows."""
        return column.max()

    def smallest(self, column: Tensor) -> Tensor:
        """Return the smallest of real rows."""
        return column.min()


ROWS = Reduction()


class Columns(NamedTuple):
    """B rows as an update is given them: arrays, and on the device tensors, of which `tensor_batch` makes rows."""

    obs: Any
    action: Any  # [B, ...]
    reward: Any  # [B]
    discount: Any  # [B]
    next_obs: Any
    weight: Any  # [B]
    extras: dict[str, Any]  # {column: [B, ...]}


class TensorBatch(NamedTuple):
    """B rows on the device, observations as features.

    Of a policy whose networks carry a state, observations are handles that an encoder resolves:
    `self.network(rows.obs)` has passed over what came before.

    Attributes:
        obs: features [B, ...], as networks take them: what `preprocess` made of observations.
        action: [B] of a Discrete space, from 0, else [B, ...]; of a Box in the units of the space, which
            `self.action_scale.to_unit(rows.action)` converts to policy units.
        reward: [B], the sum of the window's rewards, discounted.
        discount: [B], gamma ** m after m real steps, and 0 after a termination: the target is
            `rows.reward + rows.discount * value(rows.next_obs)`.
        next_obs: features [B, ...] after the window.
        weight: importance weights [B] of each row, or of what `reduce` reduces rows to; the engine applies them.
        legal: [B, A], the mask of obs; None without one.
        next_legal: [B, A], the mask of next_obs.
        extras: {column: [B, ...]}, those that the policy's `columns` names.
        inputs: what the policy's `loss_inputs` and `loss_noise` returned, and the outputs of the step that this one
            reads.
        reduce: to the loss of what the buffer sampled.
    """

    obs: Any
    action: Tensor
    reward: Tensor
    discount: Tensor
    next_obs: Any
    weight: Tensor
    legal: Tensor | None
    next_legal: Tensor | None
    extras: Mapping[str, Tensor] = MappingProxyType({})
    inputs: Any = MappingProxyType({})
    reduce: Reduction = ROWS


def tensor_batch(columns: Columns, preprocess: nn.Module) -> TensorBatch:
    """Return the rows of columns on the device.

    A next observation whose mask allows no action counts as the end of its episode, so its discount is 0.
    """
    obs, action, reward, discount, next_obs, weight, extras = columns
    legal, next_legal = legal_mask(obs), legal_mask(next_obs)
    if next_legal is not None:
        discount = discount * next_legal.any(dim=1)
    with torch.no_grad():
        obs, next_obs = preprocess(obs), preprocess(next_obs)
    action = action if action.is_floating_point() else action.long()
    return TensorBatch(obs, action, reward, discount, next_obs, weight, legal, next_legal, extras)


def blank_row(obs: Any, extras: Mapping[str, Tensor]) -> Columns:
    """Return the columns of one row on the device, whose observation and next observation are blank [1, ...]."""
    zero = torch.zeros(1, device=tree.first_leaf(obs).device, dtype=torch.float32)
    return Columns(obs, zero.long(), zero, zero, obs, zero, dict(extras))


def legal_mask(obs: Any) -> Tensor | None:
    """Return the mask [B, A] in an observation of tensors, None where there is none."""
    return obs[ACTION_MASK] != 0 if isinstance(obs, dict) and ACTION_MASK in obs else None


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss of B rows, without gradients but for `per_row`.

    Attributes:
        per_row: [B]. The engine minimizes the mean of `rows.weight * per_row`, of `per_row` where rows have no weight.
        priority: [B], for a prioritized buffer; None where there is none.
        metrics: for dashboards by name, not those of `RESERVED_METRICS`, each averaged over the updates that have it;
            a CUDA graph reports those of the update that it recorded. Scalars, or columns [B, ...], which are averaged
            over rows as the loss is, or `Max` and `Min` of columns.
        outputs: tensors by name that later gradient steps of the same update read in `rows.inputs`.
    """

    per_row: Tensor
    priority: Tensor | None = None
    metrics: "Mapping[str, Metric]" = field(default_factory=dict)
    outputs: Mapping[str, Tensor] = field(default_factory=dict)


Metric = Tensor | Max | Min


@dataclass(slots=True, eq=False)
class Objective:
    """What a gradient step minimizes: the mean of a loss per row, weighted by importance.

    Attributes:
        name: of the gradient step.
        loss: rows -> `Loss`.
        to_rows: (columns on the device, inputs, frames, module) -> rows; see `Policy.rows`.
        module: whose parameters the step moves.
        frames: the images that columns of indices refer to.
        with_weights: add metrics of the weights: their mean, and the effective sample size,
            (sum w)^2 / sum w^2, as a share of B.
    """

    name: str
    loss: Callable[[Any], Loss]
    to_rows: Callable[[Any, Any, Any, nn.Module | None], Any]
    module: nn.Module | None = None
    frames: Any = None
    with_weights: bool = False

    def rows(self, given: Any) -> Any:
        """Return the rows of (columns, inputs) on the device, without gradients."""
        columns, inputs = given
        return self.to_rows(columns, inputs, self.frames, self.module)

    def evaluate(self, given: Any) -> dict[str, Any]:
        """Return the results for (columns, inputs) on the device: those of the call, for their rows."""
        return self(self.rows(given))

    def __call__(self, rows: Any) -> dict[str, Any]:
        """Return the scalar to minimize as "loss", and the loss's "priority", "metrics" and "outputs", if it has any.

        Raises:
            ConfigError: the loss returned no `Loss`, or one of other shapes.
        """
        result, weight = self.loss(rows), rows.weight
        _check(getattr(self.loss, "__qualname__", "a loss"), result, len(rows.action))
        result = rows.reduce(result)
        value = result.per_row.mean() if weight is None else (weight * result.per_row).mean()
        metrics = dict(result.metrics)
        if self.with_weights and weight is not None:
            metrics |= weight_metrics(weight)
        results: dict[str, Any] = {"loss": value, "metrics": _detached(metrics), "outputs": _detached(result.outputs)}
        if result.priority is not None:
            results["priority"] = result.priority.detach()
        return results


@dataclass(frozen=True, slots=True)
class OwnObjective:
    """What a gradient step of a policy's own `update` minimizes; torch differentiates it, whatever the engine.

    Attributes:
        loss: returns the scalar to minimize, or (the scalar, what else the caller of `minimize` gets).
    """

    loss: Callable[[], Any]
    name: None = None  # a recording could not be found again

    def rows(self, given: Any) -> Any:
        """Return what `minimize` was given: nothing."""
        return given

    def evaluate(self, given: Any) -> dict[str, Any]:
        """Return the results."""
        return self(given)

    def __call__(self, rows: Any) -> dict[str, Any]:
        """Return the scalar to minimize as "loss", and the rest as "other"."""
        result = self.loss()
        value, other = result if isinstance(result, tuple) else (result, ())
        return {"loss": value, "other": other}


def _check(subject: str, result: Loss, n_rows: int) -> None:
    """Raise `ConfigError` unless a value is a loss per row."""
    if not isinstance(result, Loss):
        raise ConfigError(f"{subject} must return a Loss, got {type(result).__name__}: return Loss(per_row)")
    given = result.per_row.shape
    if given != (n_rows,):
        raise ConfigError(
            f"{subject} must return a loss per row, [B] = [{n_rows}], got {list(given)}: the mean over rows is the "
            "engine's"
        )
    if result.priority is not None and result.priority.shape != given:
        raise ConfigError(f"{subject} must return a priority per row, {list(given)}, got {list(result.priority.shape)}")
    if reserved := RESERVED_METRICS & result.metrics.keys():
        raise ConfigError(f"{subject}: the metrics {', '.join(sorted(reserved))} are the policy's own: rename yours")
    for name, metric in result.metrics.items():
        column = metric.of_rows if isinstance(metric, (Max, Min)) else metric
        if not isinstance(column, Tensor) or (column.dim() and len(column) != n_rows):
            got = list(column.shape) if isinstance(column, Tensor) else type(column).__name__
            raise ConfigError(
                f"{subject}: the metric {name!r} must be a scalar tensor, or a column [B, ...] of {n_rows} rows, whose "
                f"mean is taken, got {got}: give its mean"
            )


def _detached(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach() for name, tensor in tensors.items()}


def weight_metrics(weight: Tensor) -> dict[str, Tensor]:
    """Return metrics of importance weights [B]."""
    mean = weight.mean()
    return {"weight_mean": mean, "effective_share": mean.square() / weight.square().mean()}
