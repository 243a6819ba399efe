"""Reading what environments return into arrays, strictly: the shapes and dtypes of the space, or a refusal."""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from trainkit.core import tree
from trainkit.core.data import ArraySpec, Obs
from trainkit.core.errors import BadEnvDataError
from trainkit.core.spaces import array_specs

_log = logging.getLogger(__name__)
_API = "trainkit speaks the Gymnasium API (>= 0.26)"

Column = Sequence[Any] | NDArray[Any]  # of one key of K infos


class RowReader:
    """Write single observations into rows, and read vectors of them.

    Every refusal is a TypeError or ValueError whose text follows "env i "; whoever knows the environment says so.

    Args:
        space: of one observation.
        tell: hears once of floats that are cast: a text with three places, for the path, the dtype and the space's.
    """

    def __init__(self, space: gym.Space[Any], tell: Callable[..., object] = _log.warning) -> None:
        self._specs = array_specs(space)
        self._lone: ArraySpec | None = self._specs if isinstance(self._specs, ArraySpec) else None
        self._tell, self._has_warned = tell, False

    def empty(self, n_rows: int) -> Obs:
        """Return room for K observations."""
        return tree.map_tree(lambda spec: np.empty((n_rows, *spec.shape), spec.dtype), self._specs)

    def write(self, rows: Obs, row: int, obs: Obs) -> None:
        """Copy one observation into its row."""
        lone = self._lone
        if lone is not None:
            fits = type(obs) is np.ndarray and obs.shape == lone.shape and obs.dtype == lone.dtype
            rows[row] = obs if fits else self._cast(lone, obs, "")
        else:
            self._write(self._specs, rows, row, obs, "")

    def rows(self, obs: Obs, n: int, env_ids: NDArray[np.intp]) -> Obs:
        """Copy K of N rows that a vector environment returned: it may write into its own arrays at the next step."""
        if self._lone is not None:
            return self._column(self._lone, obs, n, env_ids)
        return tree.map_tree(lambda spec, leaf: self._column(spec, leaf, n, env_ids), self._specs, obs)

    def unpack_step(self, result: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Take a step's five values apart."""
        if isinstance(result, tuple) and len(result) == 5:
            if isinstance(result[4], dict):
                return result
            raise TypeError(f"returned info {result[4]!r} from step, which is not a dict: {_API}")
        raise TypeError(f"returned {_kind(result)} from step, not (obs, reward, terminated, truncated, info): {_API}")

    def unpack_reset(self, result: Any) -> tuple[Any, dict[str, Any]]:
        """Take a reset's two values apart."""
        if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
            return result
        if isinstance(result, tuple) and len(result) == 2:
            raise TypeError(f"returned info {result[1]!r} from reset, which is not a dict: {_API}")
        raise TypeError(f"returned {_kind(result)} from reset, not (obs, info): {_API}")

    def reward(self, reward: Any) -> float:
        """Read a reward that is no plain float: any number, or an array of one."""
        if isinstance(reward, (int, float, np.integer, np.floating, np.bool_)):
            return float(reward)
        if isinstance(reward, np.ndarray) and reward.size == 1 and reward.dtype.kind in "biuf":
            return float(reward.reshape(()))
        raise TypeError(f"returned reward {reward!r}, which is not a number")

    def rewards(self, reward: Any, n: int) -> NDArray[np.float64]:
        """Read the rewards of N environments."""
        column = np.asarray(reward)
        if column.shape != (n,) or column.dtype.kind not in "biuf":
            raise TypeError(f"returned rewards {column.dtype} {column.shape}, not {n} numbers")
        return column.astype(np.float64, copy=False)

    def flag(self, name: str, value: Any) -> bool:
        """Read a flag that is no plain bool: numpy's, or 0 or 1."""
        if isinstance(value, (np.bool_, int, np.integer)) and value in (0, 1):
            return bool(value)
        raise TypeError(f"returned {name} = {value!r}, which is not a bool")

    def flags(self, name: str, values: Any, n: int) -> NDArray[np.bool_]:
        """Read one flag of N environments."""
        column = np.asarray(values)
        if column.shape != (n,):
            raise ValueError(f"returned {name} of shape {column.shape}, not {n} bools")
        if column.dtype != np.bool_:
            return np.array([self.flag(name, value) for value in column.tolist()], np.bool_)
        return column

    def _write(self, specs: Any, rows: Obs, row: int, obs: Obs, path: str) -> None:
        if isinstance(specs, dict):
            if not isinstance(obs, dict) or obs.keys() != specs.keys():
                got = sorted(obs) if isinstance(obs, dict) else type(obs).__name__
                raise ValueError(f"returned observation{path} with keys {got}, the space says {sorted(specs)}")
            for key, spec in specs.items():
                self._write(spec, rows[key], row, obs[key], f"{path}[{key!r}]")
        elif isinstance(specs, tuple):
            if not isinstance(obs, (tuple, list)) or len(obs) != len(specs):
                raise ValueError(f"returned observation{path} {obs!r}, the space says a tuple of {len(specs)}")
            for position, spec in enumerate(specs):
                self._write(spec, rows[position], row, obs[position], f"{path}[{position}]")
        else:
            rows[row] = self._cast(specs, obs, path)

    def _column(self, spec: ArraySpec, leaf: Any, n: int, env_ids: NDArray[np.intp]) -> NDArray[Any]:
        column = np.asarray(leaf)
        if column.shape != (n, *spec.shape):
            raise ValueError(f"returned observations of shape {column.shape}, the space says {(n, *spec.shape)}")
        if column.dtype != spec.dtype:
            column = self._cast_dtype(spec, column, "")
        return np.array(column) if len(env_ids) == n else column.take(env_ids, axis=0)

    def _cast(self, spec: ArraySpec, obs: Any, path: str) -> NDArray[Any]:
        array = np.asarray(obs)
        if array.shape != spec.shape:
            raise ValueError(f"returned observation{path} of shape {array.shape}, the space says {spec.shape}")
        return array if array.dtype == spec.dtype else self._cast_dtype(spec, array, path)

    def _cast_dtype(self, spec: ArraySpec, array: NDArray[Any], path: str) -> NDArray[Any]:
        """Bring an array to the space's dtype: floats are rounded with one warning, whole numbers must fit."""
        if array.dtype.kind not in "biuf":
            raise TypeError(f"returned observation{path} of dtype {array.dtype}, the space says {spec.dtype}")
        if spec.dtype.kind == "f":
            if array.dtype.kind == "f" and not self._has_warned:
                self._tell("observation%s is %s and is cast to the space's %s", path, array.dtype, spec.dtype)
                self._has_warned = True
            with np.errstate(over="ignore"):  # infinity is refused later, by name
                return array.astype(spec.dtype)
        with np.errstate(invalid="ignore"):
            cast = array.astype(spec.dtype)
        if not (cast == array).all():
            raise ValueError(f"returned observation{path} {array!r}, which does not fit the space's {spec.dtype}")
        return cast


def _kind(result: Any) -> str:
    """Describe what was returned instead of a tuple of a certain length; a list is no tuple to Gymnasium either."""
    if isinstance(result, tuple):
        return f"{len(result)} values"
    if isinstance(result, list):
        return f"a list of {len(result)} values"
    return type(result).__name__


class Infos(Protocol):
    """The info dicts of K rows."""

    def row(self, row: int) -> dict[str, Any]: ...

    def column(self, key: str) -> Column:
        """Return one value per row, None where it is missing."""
        ...

    def rows(self, keep: NDArray[np.bool_]) -> "Infos":
        """Return those of some rows."""
        ...


class ListInfos:
    """One dict per row, as single environments return them."""

    def __init__(self, infos: Sequence[dict[str, Any]]) -> None:
        self._infos = infos

    def row(self, row: int) -> dict[str, Any]:
        return self._infos[row]

    def column(self, key: str) -> list[Any]:
        return [info.get(key) for info in self._infos]

    def rows(self, keep: NDArray[np.bool_]) -> "ListInfos":
        return ListInfos([info for info, is_kept in zip(self._infos, keep, strict=True) if is_kept])


class VectorInfos:
    """Rows of gymnasium's dict of arrays, where `_key` marks the environments that have `key`."""

    def __init__(
        self, infos: dict[str, Any], env_ids: NDArray[np.intp], ended: NDArray[np.bool_] | None = None
    ) -> None:
        self._infos = infos
        self._env_ids = env_ids
        self._ended = ended  # [N], whose info is in "final_info" (SAME_STEP)

    def row(self, row: int) -> dict[str, Any]:
        env_id = self._env_ids[row]
        infos = self._infos
        if self._ended is not None and self._ended[env_id]:
            infos = infos.get("final_info", {})
        return _info_of(infos, env_id)

    def column(self, key: str) -> Column:
        values, marks = self._infos.get(key), self._infos.get(f"_{key}")
        if self._ended is None and isinstance(values, np.ndarray) and (marks is None or np.all(marks[self._env_ids])):
            return values[self._env_ids]
        return [self.row(row).get(key) for row in range(len(self._env_ids))]

    def rows(self, keep: NDArray[np.bool_]) -> "VectorInfos":
        return VectorInfos(self._infos, self._env_ids[keep], self._ended)


def _info_of(infos: dict[str, Any], env_id: int) -> dict[str, Any]:
    present = {}
    for key, values in infos.items():
        if key.startswith("_") or key in ("final_info", "final_obs"):
            continue
        marks = infos.get(f"_{key}")
        if marks is None or bool(np.asarray(marks)[env_id]):
            present[key] = _info_of(values, env_id) if isinstance(values, dict) else values[env_id]
    return present


def read_infos(
    rule: str,
    values: Column,
    env_ids: NDArray[np.intp],
    when: Callable[[int], str],
    *,
    shape: tuple[int, ...] = (),
    kinds: str,
) -> NDArray[Any]:
    """Read the values of one key of K infos as [K, *shape], of a dtype of these kinds; refuse the first that is not.

    Args:
        rule: what is told of a value that is refused: which key must be what.
        values: None where an info has no such key.
        env_ids: [K].
        when: tells where an environment stands.
    """
    column = _as_array(values) if len(env_ids) else np.empty((0, *shape), np.int64)
    if column.shape == (len(env_ids), *shape) and column.dtype.kind in kinds:
        return column
    must = f"{rule}, in every reset and step, got"
    for env_id, value in zip(env_ids.tolist(), map(_as_array, values), strict=True):
        if value.shape != shape or value.dtype.kind not in kinds:
            what = f"{value.dtype} {value.shape} at {when(env_id)}"
            raise BadEnvDataError(f"env {env_id}: {must} {what}", env_id=env_id)
    raise BadEnvDataError(f"{must} {values!r}")  # each may be well, but not together


def _as_array(values: Any) -> NDArray[Any]:
    """Join the values of K infos, to something empty where they differ in length."""
    if isinstance(values, np.ndarray) and values.dtype == np.object_:
        values = values.tolist()
    try:
        return np.asarray(values)
    except ValueError:
        return np.empty(0)
