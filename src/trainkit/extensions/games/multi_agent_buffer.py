"""`MultiAgentBuffer`: the rows of several policies, each in a buffer of its own."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainkit.buffer.storage import checked_slots
from trainkit.core import seeding
from trainkit.core.data import RowSpec, Transition
from trainkit.core.errors import CheckpointError, Checks, ConfigError
from trainkit.core.protocols import RowStore, Seedable
from trainkit.core.signatures import checked
from trainkit.core.stats import html_table
from trainkit.extensions.games.row_parts import PLAYED_BY, DividedRowSpec, RowPart

_N_POLICIES = 2**15  # numbers of policies in slots


class _Part:
    """One policy's buffer, and where its rows are among those of the collector."""

    def __init__(self, buffer: Any, part: RowPart, n_envs: int) -> None:
        self.buffer, self.number, self._own_rows = buffer, part.number, part.own_rows
        self.clock = part.clock
        self.position = np.full(n_envs, -1, np.intp)  # [N], of each row in the buffer; -1 for rows of others
        self.position[part.env_ids] = np.arange(len(part.env_ids))
        self._columns = tuple(part.spec.extras)
        self._widths = {name: own.shape[0] for name, own in part.spec.extras.items() if own.zero_filled}

    def add(self, transition: Transition, rows: NDArray[np.intp]) -> NDArray[np.int64]:
        """Store rows of a transition; return their slots."""
        own = self._own_rows(transition.at(rows))
        extras = {name: own.extras[name] for name in self._columns}
        for name, width in self._widths.items():  # the rows of all policies are as wide as the widest
            extras[name] = extras[name][:, :width]
        slots: NDArray[np.int64] = self.buffer.add(own._replace(env_ids=self.position[own.env_ids], extras=extras))
        return slots

    def ids(self, env_ids: ArrayLike) -> NDArray[np.intp]:
        """Return the buffer's own numbers of those rows that it has."""
        positions: NDArray[np.intp] = self.position[np.atleast_1d(np.asarray(env_ids))]
        known: NDArray[np.intp] = positions[positions >= 0]
        return known


@checked
class MultiAgentBuffer:
    """Store the rows of each policy of a `MultiAgentPolicy` in a buffer of its own.

    Rows of policies without a buffer are not stored. A policy whose agents are always the same has as many rows in its
    buffer as it has agents in all games; one whose agents change has room for every agent, as far as the mapping shows
    it in the example episodes it is called for.

    Args:
        buffers: {name of the policy: buffer}, replay buffers or rollout buffers.
        all_rows: give every buffer room for every agent, for a mapping whose first episodes do not show all.
    """

    def __init__(self, buffers: Mapping[str, Any], *, all_rows: bool = False) -> None:
        with Checks("MultiAgentBuffer") as checks:
            is_given = isinstance(buffers, Mapping)
            checks.require(is_given, f" needs a buffer for each policy that learns, {{name: buffer}}, got {buffers!r}")
            checks.flag("all_rows", all_rows)
            checks.done()
            for name, buffer in buffers.items():
                has_rows = all(hasattr(buffer, method) for method in ("bind", "add", "cut", "drop"))
                checks.require(has_rows, f".buffers[{name!r}] must be a buffer, got {buffer!r}")
            checks.require(
                len({id(buffer) for buffer in buffers.values()}) == len(buffers),
                ".buffers has the same buffer for two policies: give each its own, or let agents share one policy",
            )
        self._buffers = dict(buffers)
        self._all_rows = all_rows
        self._spec: DividedRowSpec | None = None
        self._parts: dict[int, _Part] = {}  # by the number of the policy

    def __len__(self) -> int:
        return sum(map(len, self._buffers.values()))

    def __repr__(self) -> str:
        return f"MultiAgentBuffer({', '.join(f'{name}: {own!r}' for name, own in self._buffers.items())})"

    def _repr_html_(self) -> str:
        return html_table(type(self).__name__, self._buffers.items())

    def __getitem__(self, name: str) -> Any:
        return self._buffers[name]

    @property
    def buffers(self) -> Mapping[str, Any]:
        """The buffers by the names of policies."""
        return MappingProxyType(self._buffers)

    @property
    def capacity(self) -> int:
        """Transitions in all buffers that have a capacity."""
        return sum(getattr(own, "capacity", 0) for own in self._buffers.values())

    @property
    def nbytes(self) -> int:
        """Bytes allocated by all buffers."""
        return sum(own.nbytes for own in self._buffers.values())

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns of any buffer."""
        return tuple(dict.fromkeys(name for own in self._buffers.values() for name in own.columns))

    @property
    def is_seeded(self) -> bool:
        """Whether every buffer that samples has a seed."""
        return all(own.is_seeded for own in self._buffers.values() if isinstance(own, Seedable))

    def seed(self, root: int) -> None:
        """Seed every buffer without a seed from a stream of this root, by its name."""
        for name, own in self._buffers.items():
            if isinstance(own, Seedable) and not own.is_seeded:
                own.seed(seeding.derive(root, name))

    # ---- rows ----

    def bind(self, spec: RowSpec) -> None:
        """Allocate the memory of all buffers for the rows of games.

        Raises:
            ConfigError: the rows are not of a `MultiAgentPolicy`, or it has no policy of a buffer's name.
        """
        if not isinstance(spec, DividedRowSpec):
            raise ConfigError(
                "MultiAgentBuffer stores the rows of a MultiAgentPolicy: give the collector one, or a ReplayBuffer"
            )
        self._spec = spec
        for name in self._buffers:
            self._bind(name, spec)

    def add_buffer(self, name: str, buffer: RowStore) -> None:
        """Add the buffer of a policy that was added to the `MultiAgentPolicy`, from the next step on."""
        if name in self._buffers:
            raise ConfigError(f"MultiAgentBuffer has a buffer for {name!r} already: remove_buffer it first")
        self._buffers[name] = buffer
        if self._spec is not None:
            self._bind(name, self._spec)

    def remove_buffer(self, name: str) -> Any:
        """Remove and return a policy's buffer; its later rows are not stored."""
        if name not in self._buffers:
            raise ConfigError(f"MultiAgentBuffer has no buffer for {name!r}, only {list(self._buffers)}")
        removed = self._buffers.pop(name)
        self._parts = {number: part for number, part in self._parts.items() if part.buffer is not removed}
        return removed

    def _bind(self, name: str, spec: DividedRowSpec) -> None:
        part = spec.part_of(name, all_rows=self._all_rows)
        self._buffers[name].bind(part.spec)
        self._parts[part.number] = _Part(self._buffers[name], part, spec.n_envs)

    def add(self, transition: Transition) -> NDArray[np.int64]:
        """Store each row in the buffer of the policy that acted; return the slots [K], -1 of rows not stored."""
        numbers = transition.extras[PLAYED_BY]
        slots = np.full(len(numbers), -1, np.int64)
        for number, part in self._parts.items():
            rows = np.flatnonzero(numbers == number)
            if len(rows):
                if (part.position[transition.env_ids[rows]] < 0).any():
                    self._raise_no_room(number)
                slots[rows] = part.add(transition, rows) * _N_POLICIES + number
        return slots

    def _raise_no_room(self, number: int) -> None:
        name = next(name for name, own in self._buffers.items() if own is self._parts[number].buffer)
        raise ConfigError(
            f"MultiAgentBuffer has no room for an agent that {name!r} controls now, and did not in the example "
            "episodes that policy_mapping was called for: give MultiAgentBuffer(all_rows=True)"
        )

    def cut(self, env_ids: ArrayLike) -> None:
        """End the open episodes of these rows in all buffers."""
        for part in self._parts.values():
            part.buffer.cut(part.ids(env_ids))

    def drop(self, env_ids: ArrayLike) -> int:
        """Remove the open episodes of these rows; return the number of rows removed."""
        return sum(part.buffer.drop(part.ids(env_ids)) for part in self._parts.values())

    def clear(self) -> None:
        """Discard all rows."""
        for own in self._buffers.values():
            own.clear()

    def is_stored(self, slots: ArrayLike) -> NDArray[np.bool_]:
        """Return which slots [K] still have their row."""
        given, numbers = np.divmod(checked_slots("MultiAgentBuffer", slots), _N_POLICIES)
        found = np.zeros(len(given), np.bool_)
        for number, part in self._parts.items():
            own = (numbers == number) & (given >= 0)
            found[own] = part.buffer.is_stored(given[own])
        return found

    def rewrite(self, slots: NDArray[np.int64], **columns: ArrayLike) -> None:
        """Change the rewards and stored columns of rows by name, as `ReplayBuffer.rewrite`."""
        given, numbers = np.divmod(checked_slots("MultiAgentBuffer", slots), _N_POLICIES)
        for number, part in self._parts.items():
            own = (numbers == number) & (given >= 0)
            if own.any():
                part.buffer.rewrite(np.where(own, given, -1), **columns)  # which ignores rows that it has not

    def metrics(self, step: int) -> dict[str, float]:
        """Return the metrics of all buffers by `policy/metric`, each at the clock of its policy."""
        names = {id(own): name for name, own in self._buffers.items()}
        return {
            f"{names[id(part.buffer)]}/{metric}": value
            for part in self._parts.values()
            for metric, value in part.buffer.metrics(part.clock.env_step).items()
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all buffers by policy; arrays may be views."""
        return {name: own.state_dict() for name, own in self._buffers.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the states of buffers of the same policies.

        Raises:
            CheckpointError: they are of other policies.
        """
        if set(state) != set(self._buffers):
            raise CheckpointError(
                f"the buffers of {sorted(state)} were saved, and here are those of {sorted(self._buffers)}: make the "
                "buffer as it was"
            )
        for name, own in self._buffers.items():
            own.load_state_dict(state[name])
