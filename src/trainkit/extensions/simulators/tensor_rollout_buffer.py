"""The rollout of a simulator's environments, in columns on the device."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainkit.core import tree
from trainkit.core.data import POLICY_ACTION, ArraySpec, Horizon, Obs, RewardRule
from trainkit.core.errors import ConfigError, EmptyBufferError
from trainkit.core.files import decoding
from trainkit.core.names import did_you_mean
from trainkit.core.spaces import array_specs
from trainkit.extensions.simulators.tensor_envs import TensorEnvs, TensorStep
from trainkit.policy.advantages import TensorRollout


class TensorRolloutBuffer:
    """Store the steps of N environments in order, in columns [T, N] on their device: a `RolloutBuffer` of tensors.

    It also holds the observations to act on next: policies act on this copy, as a simulator may overwrite its own.

    Args:
        envs: whose steps are stored.
        extras_spec: of the columns that the policy stores with each step.
    """

    def __init__(self, envs: TensorEnvs, extras_spec: Mapping[str, ArraySpec]) -> None:
        self._n_envs, self._device = envs.n, envs.device
        flag, number = (ArraySpec(shape=(), dtype=np.dtype(kind)) for kind in (np.bool_, np.float32))
        obs = array_specs(envs.observation_space)
        self._specs: dict[str, Any] = {
            "obs": obs,  # [T + 1, N, ...]
            "final_obs": obs,  # true where `ended`
            "action": array_specs(envs.action_space),
            "reward": number,
            "terminated": flag,
            "truncated": flag,
            "ended": flag,  # terminated, truncated or cut
            "extras": dict(extras_spec),
        }
        self._n_steps = self._capacity = 0  # T so far, and allocated
        self._columns = self._allocated(0)

    def __len__(self) -> int:
        return self._n_steps * self._n_envs

    def __repr__(self) -> str:
        return f"TensorRolloutBuffer({len(self):,} rows, {self.nbytes:,} bytes on {self._device})"

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return sum(leaf.nbytes for leaf in tree.leaves(self._columns))

    @property
    def columns(self) -> tuple[str, ...]:
        """The names that `read(columns=)` accepts."""
        return ("terminated", "truncated", *self._specs["extras"])

    @property
    def obs(self) -> Obs:
        """The observations to act on next, [N, ...]."""
        return tree.map_tree(lambda column: column[self._n_steps], self._columns["obs"])

    def reserve(self, n_steps: int) -> None:
        """Allocate memory for this many more steps."""
        if self._n_steps + n_steps > self._capacity:
            filled, self._capacity = self._filled(), self._n_steps + n_steps
            self._columns = self._allocated(self._capacity)
            _write(self._columns, filled)

    def start(self, obs: Obs) -> None:
        """Set the observations to act on next."""
        _write(self.obs, obs)

    def add(self, action: Tensor, extras: Mapping[str, Tensor], step: TensorStep) -> None:
        """Add one step of every environment, for which memory was reserved."""
        rows = {**step._asdict(), "action": action, "ended": step.over, "extras": extras}
        obs = rows.pop("obs")
        _write({name: _at(self._columns[name], self._n_steps) for name in rows}, rows)
        self._n_steps += 1
        self.start(obs)

    def cut(self) -> None:
        """End the open episodes here; their last rows bootstrap from the observations to act on next."""
        if self._n_steps == 0:
            return
        final_obs, ended = (_at(self._columns[name], self._n_steps - 1) for name in ("final_obs", "ended"))
        for final, follows in zip(tree.leaves(final_obs), tree.leaves(self.obs), strict=True):
            final.copy_(torch.where(ended.view(-1, *[1] * (final.dim() - 1)), final, follows))
        ended.fill_(True)

    def read(self, horizon: Horizon | None = None, columns: Sequence[str] = ()) -> TensorRollout:
        """Cut the open episodes and return all rows; waits for the device once, to count the ends of episodes.

        Args:
            horizon: its rule shapes the rewards.
            columns: names, of `columns`, of those to return in `extras`.

        Raises:
            EmptyBufferError: there are none.
            ConfigError: the rule is a function, or a column is unknown.
        """
        if self._n_steps == 0:
            raise EmptyBufferError("TensorRolloutBuffer is empty: collect before learning")
        self.cut()
        own = _at(self._columns, slice(self._n_steps))
        for name in columns:
            if name not in self.columns:
                raise ConfigError(
                    f"TensorRolloutBuffer has no column {name!r}, only {list(self.columns)}"
                    f"{did_you_mean(name, self.columns)}"
                )
        by_row = tree.map_tree(lambda column: column.flatten(0, 1), own)
        last_rows = (by_row["ended"] & ~by_row["terminated"]).nonzero().squeeze(1)
        stored = by_row["extras"]
        return TensorRollout(
            obs=by_row["obs"],
            action=stored.get(POLICY_ACTION, by_row["action"]),
            log_prob=stored["log_prob"],
            reward=shaped(None if horizon is None else horizon.reward, own["reward"]),
            value=own["extras"]["value"],
            terminated=own["terminated"],
            ended=own["ended"],
            last_rows=last_rows,
            last_obs=_at(by_row["final_obs"], last_rows),
            extras={name: stored[name] if name in stored else by_row[name] for name in columns},
        )

    def find_invalid(self, n_steps: int) -> dict[str, Tensor]:
        """Return by column where the last `n_steps` steps first have a number that is not finite: t * N + n, else -1.

        t counts from the first of these steps; observations have one more row, those to act on next.
        """
        recent = slice(self._n_steps - n_steps, self._n_steps)
        columns = _at(self._columns, recent)
        columns["obs"] = _at(self._columns["obs"], slice(recent.start, recent.stop + 1))
        ended = columns["ended"].flatten()
        is_finite = {name: _finite_rows(columns[name]) for name in ("obs", "final_obs", "reward", "extras")}
        is_finite["final_obs"] |= ~ended
        return {name: torch.where(rows.all(), -1, rows.byte().argmin()) for name, rows in is_finite.items()}

    def clear(self) -> None:
        """Remove every row; open episodes continue in the next rollout."""
        if self._n_steps:
            obs, self._n_steps = self.obs, 0
            self.start(obs)

    def metrics(self, step: int) -> dict[str, float]:
        """Return no metrics: the buffer is empty between rollouts."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return all rows, in tensors."""
        return {"columns": tree.to_plain(tree.map_tree(torch.clone, self._filled()))} if self._n_steps else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the rows of a buffer of the same environments and policy.

        Raises:
            CheckpointError: they are of other ones.
        """
        self._n_steps = 0
        if not state:
            return
        with decoding("a saved state", "a TensorRolloutBuffer of these rows", remedy="make the run as it was"):
            saved = tree.from_plain(state["columns"])
            n_steps = len(saved["reward"])
            self.reserve(n_steps)
            _write(self._columns, saved)
            self._n_steps = n_steps

    def _filled(self) -> dict[str, Any]:
        """Return the columns as far as they were written."""
        obs = _at(self._columns["obs"], slice(self._n_steps + 1))
        return {**_at(self._columns, slice(self._n_steps)), "obs": obs}

    def _allocated(self, capacity: int) -> dict[str, Any]:
        def column(spec: ArraySpec, n_steps: int) -> Tensor:
            dtype = torch.as_tensor(np.empty(0, spec.dtype)).dtype
            return torch.zeros((n_steps, self._n_envs, *spec.shape), dtype=dtype, device=self._device)

        return {
            name: tree.map_tree(lambda spec, n=capacity + (name == "obs"): column(spec, n), specs)
            for name, specs in self._specs.items()
        }


def shaped(rule: RewardRule | None, reward: Tensor) -> Tensor:
    """Apply the rule of a horizon to rewards.

    Raises:
        ConfigError: it is a function, which would need arrays.
    """
    if callable(rule):
        raise ConfigError(
            f"Horizon.reward of tensors must be None, 'sign', a clip (lo, hi) or a scale, got {rule!r}: compute the "
            "reward in the simulator's `step`"
        )
    if rule is None:
        return reward
    if isinstance(rule, tuple):
        return reward.clamp(*rule)
    return reward.sign() if isinstance(rule, str) else reward * rule


def _at(columns: Any, index: Any) -> Any:
    """Index every column of a tree."""
    return tree.map_tree(lambda column: column[index], columns)


def _write(columns: Any, rows: Any) -> None:
    """Copy a tree of rows into a tree of columns, or of parts of them, of the same shapes."""
    tree.map_tree(lambda column, leaf: column[: len(leaf)].copy_(leaf), columns, rows)


def _finite_rows(columns: Any) -> Tensor:
    """Return where all numbers of a row are finite, [T * N], for a tree of columns [T, N, ...]."""
    leaves = tree.leaves(columns)
    is_finite = torch.ones(leaves[0].shape[:2], dtype=torch.bool, device=leaves[0].device).flatten()
    for leaf in leaves:
        if leaf.is_floating_point():
            is_finite &= leaf.isfinite().view(len(is_finite), -1).all(dim=1)
    return is_finite
