"""Columns stored with every row in addition to the policy's: filled from the step's info, or with a default."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit.core.data import COLUMN_SPECS, ArraySpec
from trainkit.core.errors import BadEnvDataError, Checks
from trainkit.envs.backends import Infos

_NAMES = {"obs", "action", "reward", "next_obs", *COLUMN_SPECS}  # that rows have anyway
_KINDS = {"b": "b", "i": "biu", "u": "biu", "f": "biuf"}  # of values that a column of a kind takes


class ExtraColumns:
    """Read columns [K, ...] from the infos of a vector step; a default fills in where an info has no such key.

    Args:
        owner: for messages.
        defaults: {key of the info: value where it is missing}; its dtype and shape are the column's.
        of_policy: names of the columns that the policy stores.
    """

    def __init__(self, owner: str, defaults: Mapping[str, Any], of_policy: Collection[str]) -> None:
        with Checks(owner) as checks:
            is_mapping = isinstance(defaults, Mapping) and all(isinstance(name, str) for name in defaults)
            checks.require(is_mapping, f".extra_columns must be {{name: default value}}, got {defaults!r}")
            checks.done()
            self._defaults: dict[str, NDArray[Any]] = {name: np.asarray(default) for name, default in defaults.items()}
            for name, default in self._defaults.items():
                is_free = name not in _NAMES and name not in of_policy
                checks.require(is_free, f".extra_columns: every row has a column {name!r} already, choose another name")
                is_number = default.dtype.kind in _KINDS
                problem = f".extra_columns[{name!r}] must be a number or an array of numbers, got {defaults[name]!r}"
                checks.require(is_number, problem)

    @property
    def spec(self) -> dict[str, ArraySpec]:
        """Return the spec of each column."""
        return {name: ArraySpec(shape=own.shape, dtype=own.dtype) for name, own in self._defaults.items()}

    def read(self, infos: Infos, env_ids: NDArray[np.intp]) -> dict[str, NDArray[Any]]:
        """Return the columns [K, ...] of K rows.

        Raises:
            BadEnvDataError: a value is not of its column's shape and kind.
        """
        return {name: self._column(name, default, infos, env_ids) for name, default in self._defaults.items()}

    def _column(self, name: str, default: NDArray[Any], infos: Infos, env_ids: NDArray[np.intp]) -> NDArray[Any]:
        column = np.empty((len(env_ids), *default.shape), default.dtype)
        values = infos.column(name)
        kinds = _KINDS[default.dtype.kind]
        if isinstance(values, np.ndarray) and values.shape == column.shape and values.dtype.kind in kinds:
            column[:] = values
            return column
        for row, value in enumerate(values):
            array = default if value is None else np.asarray(value)
            if array.shape != default.shape or array.dtype.kind not in kinds:
                env_id = int(env_ids[row])
                raise BadEnvDataError(
                    f"env {env_id}: info[{name!r}] must be {default.dtype}{list(default.shape)} as "
                    f"Collector.extra_columns says, got {value!r}: change the default, or leave the column out",
                    env_id=env_id,
                )
            column[row] = array
        return column
