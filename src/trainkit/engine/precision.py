"""The precision of networks' products while they learn: float32 here, others in extensions."""

import contextlib
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import nn

from trainkit.core.errors import Checks
from trainkit.core.extensions import table

Precision = Literal["float32", "tf32", "bf16"]  # with those of trainkit's own extensions


class LearningPrecision:
    """Products in the gradient steps of a policy in float32, as torch's own switches say: the base class of precisions.

    Parameters, losses and acting are in float32 whatever the precision.

    Attributes:
        name: as options give it.
    """

    name: Precision = "float32"

    def during_step(
        self, trainable: Sequence[nn.Parameter], *, is_compiled: bool = False
    ) -> contextlib.AbstractContextManager[None]:
        """Return a context for a loss and its backward pass.

        Args:
            trainable: what the loss is differentiated by.
            is_compiled: a compiler reads the loss, and combines the casts of weights itself.
        """
        return contextlib.nullcontext()


def precision_for(policy: nn.Module, name: str, device: torch.device) -> LearningPrecision:
    """Return the precision of a policy on a device: "float32", or a name in the `PRECISIONS` of an extension.

    Raises:
        ConfigError: no extension that is there has a precision of this name.
    """
    precisions = table("PRECISIONS")
    names = ["float32", *precisions]
    with Checks(type(policy).__name__) as checks:
        if name in get_args(Precision) and name not in names:
            rule = f"must be one of {names}, got {name!r}, whose folder of trainkit/extensions is not there"
            checks.require(False, f".precision {rule}: install all of trainkit")
        else:
            checks.one_of("precision", name, names)
    if name not in precisions:
        return LearningPrecision()
    precision: LearningPrecision = precisions[name].load()(policy, device)
    return precision
