"""How exactly networks calculate while they learn; what they are made of is float32 always."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from trainkit.core.errors import Checks
from trainkit.nets.networks import Prediction
from trainkit.policy.backups import Network

Precision = Literal["float32", "bf16"]


def in_precision(subject: str, precision: Precision, device: torch.device) -> Callable[[Network], Network]:
    """Return what makes a network multiply in bfloat16 where that is asked for, and answer in float32 nevertheless."""
    checks = Checks(subject)
    checks.one_of("precision", precision, ["float32", "bf16"])
    checks.done()
    return _as_it_is if precision == "float32" else partial(_in_bf16, device.type)


def _as_it_is(network: Network) -> Network:
    return network


def _in_bf16(kind: str, network: Network) -> Network:
    def asked(features: Any, legal: Tensor | None) -> Prediction:
        # Weights are cast anew each time: kept from where no gradient was wanted, they would never get one.
        with torch.autocast(kind, dtype=torch.bfloat16, cache_enabled=False):
            numbers, fractions = network(features, legal)
        return Prediction(numbers.float(), fractions)

    return asked
