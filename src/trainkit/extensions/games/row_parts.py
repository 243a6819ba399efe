"""The rows of single policies among those of a collector, from which each policy's own buffer allocates its memory."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit.core.data import RowSpec, Transition

# The column with the number of the policy that acted.
PLAYED_BY = "played_by"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPart:
    """The rows of one policy among those of a collector."""

    number: int  # of the policy, in the column `PLAYED_BY`
    env_ids: NDArray[np.intp]  # [n_envs], the rows that it may ever control, ascending
    spec: RowSpec  # of them, with the columns that the policy stores
    own_rows: Callable[[Transition], Transition]  # turns rows of the collector into the policy's own
    clock: Any  # its `env_step` is the step of the policy's schedules


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedRowSpec(RowSpec):
    """The spec of rows of several policies, and which of them are one policy's."""

    part_of: Callable[..., RowPart] = field(compare=False, repr=False)  # (name, all_rows=)
