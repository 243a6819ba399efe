"""Auxiliary losses: a term per row on an encoder's features, trained along with a policy's own loss."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from trainkit.core.errors import ConfigError
from trainkit.engine.loss import Loss
from trainkit.nets.networks import PlainModule

Auxiliary = Callable[[Tensor, Any], Tensor]  # (features [B, F], rows) -> [B]; a module is one


class AuxiliaryLoss:
    """A loss plus an auxiliary term of the features that its encoder gives for the rows' observations.

    Where the loss encodes these observations alone, the features are those that it computed; else the encoder is called
    again, as with a `CriticPass` that adds the next observations. Metrics have the term's mean as `auxiliary`.

    Args:
        loss: rows -> `Loss`.
        auxiliary: (features [B, F] in float32, rows) -> [B].
        encoder: features of observations -> [B, F].
    """

    def __init__(self, loss: Callable[[Any], Loss], auxiliary: Auxiliary, encoder: nn.Module) -> None:
        self.loss, self.auxiliary, self.encoder = loss, auxiliary, encoder
        self.__qualname__ = getattr(loss, "__qualname__", "a loss")

    def __call__(self, rows: Any) -> Loss:
        result, features = self._loss_and_features(rows)
        term = self.auxiliary(features.float(), rows)
        if not isinstance(term, Tensor) or term.shape != result.per_row.shape:
            got = list(term.shape) if isinstance(term, Tensor) else type(term).__name__
            raise ConfigError(
                f"auxiliary must return a loss per row, [B] = {list(result.per_row.shape)}, got {got}: the mean over "
                "rows is the engine's"
            )
        metrics = {**result.metrics, "auxiliary": term}
        return replace(result, per_row=result.per_row + term, metrics=metrics)

    def _loss_and_features(self, rows: Any) -> tuple[Loss, Tensor]:
        """Return the loss, and the features [B, F] that it computed of the rows' observations."""
        if torch.compiler.is_compiling():  # which cannot trace hooks, and merges equal forward passes
            return self.loss(rows), self.encoder(rows.obs)
        outputs: list[Tensor] = []
        has_gradient = torch.is_grad_enabled()

        def note(module: nn.Module, given: tuple[Any, ...], output: Tensor) -> None:
            if given[0] is rows.obs and torch.is_grad_enabled() is has_gradient:
                outputs.append(output)

        hook = self.encoder.register_forward_hook(note)
        try:
            result = self.loss(rows)
        finally:
            hook.remove()
        return result, outputs[0] if outputs else self.encoder(rows.obs)


def takes_features_and_rows(auxiliary: object) -> bool:
    """Return whether an object can be called with features and rows."""
    if not callable(auxiliary):
        return False
    try:
        inspect.signature(auxiliary.forward if isinstance(auxiliary, nn.Module) else auxiliary).bind(None, None)
    except TypeError:
        return False
    except ValueError:  # built in, without a signature
        return True
    return True


def encoder_of(policy: str, network: nn.Module) -> nn.Module:
    """Return the encoder of a network for the auxiliary loss of a policy.

    Raises:
        ConfigError: the network has none, or one without parameters.
    """
    encoder = getattr(network.module if isinstance(network, PlainModule) else network, "encoder", None)
    if not isinstance(encoder, nn.Module):
        raise ConfigError(
            f"{policy}.auxiliary needs the features of an encoder: make the policy by for_envs, or give "
            f"{type(network).__name__} a module `encoder` that maps the network's input to [B, F]"
        )
    if next(encoder.parameters(), None) is None:
        raise ConfigError(
            f"{policy}.auxiliary has no effect: the encoder of its {type(network).__name__} has no parameters, as "
            "vectors are not encoded without hidden layers: give encoder= a module of your own, or its class"
        )
    return encoder
