"""Data passed between packages: transitions to the buffer, batches to the policy.

Axis letters, here and everywhere: N environments, K rows, B batch, T time, A actions, W numbers per action.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from trainkit.core import tree
from trainkit.core.config import Part
from trainkit.core.errors import Checks, ConfigError, DeviceError, DivergedError
from trainkit.core.names import did_you_mean
from trainkit.core.signatures import checked
from trainkit.core.stats import EpochStats, RunInfo

# An observation: an array with a leading axis, or a dict or tuple of them (see `tree`).
Obs = Any

# The mask's place in every observation that has one: True where an action is legal.
ACTION_MASK = "action_mask"

# The column with the probability of each action when it was taken, in (0, 1], where a policy stores it.
ACTION_PROB = "action_prob"

# The column with the values of all actions that each action was chosen by, where a policy stores them.
Q_VALUES = "q_values"

# The column with each action as an on-policy learner drew it, in policy units, before it is mapped to a Box.
POLICY_ACTION = "policy_action"


class Transition(NamedTuple):
    """K rows of one vector step; `next_obs` is the true successor, never an autoreset's.

    A NamedTuple only because one is made per vector step; read it by name.
    """

    obs: Obs  # [K, ...]
    action: NDArray[Any]  # [K, ...], as the policy gave it, of a Box in the units of the space
    reward: NDArray[np.float64]  # [K]
    next_obs: Obs  # [K, ...]
    terminated: NDArray[np.bool_]  # [K], no future: the bootstrap is dropped
    truncated: NDArray[np.bool_]  # [K], cut by a limit: the bootstrap stays
    env_ids: NDArray[np.intp]  # [K], distinct, rising
    extras: Mapping[str, NDArray[Any]]  # {name: [K, ...]}, as in the policy's `extras_spec`

    def at(self, rows: NDArray[Any] | slice) -> "Transition":
        """Return a subset of the rows, by a mask, indices or a slice."""
        columns = tuple(self._replace(extras=dict(self.extras)))
        return Transition(*tree.map_tree(lambda column: column[rows], columns))


class ActOutput(NamedTuple):
    """A policy's output for K observations.

    Attributes:
        action: an array [K, ...]; of a Box in the units of the space and inside it.
        extras: {column: [K, ...]}, stored with the step, as the policy's `extras_spec` says: log_prob, value; often {}.
        state: passed to the next `act`, opaque to the caller; None of a policy that carries none.
    """

    action: NDArray[Any]
    extras: Mapping[str, NDArray[Any]]
    state: Any


def check_act_output(policy: object, output: object) -> None:
    """Raise `ConfigError` unless what a policy's `act` returned is an `ActOutput` with an array of actions."""
    subject = f"{type(policy).__name__}.act"
    if not isinstance(output, ActOutput):
        got = type(output).__name__
        raise ConfigError(f"{subject} must return an ActOutput, got {got}: return ActOutput(action, extras, state)")
    if not isinstance(output.action, np.ndarray):
        got = type(output.action).__name__
        raise ConfigError(f"{subject} must return actions in a numpy array [K, ...], got {got}: convert them")


Allocate = Callable[[tuple[int, ...], np.dtype[Any]], NDArray[Any]]  # (shape, dtype) -> an uninitialized array


class Frames(Protocol):
    """Images stored on a device, by index."""

    shape: tuple[int, ...]  # of one
    n_written: int  # grows with every write, so that a `Lookup` knows whether its images were overwritten
    blank: int  # index of an image of zeros

    def write(self, indices: NDArray[np.int64], column: NDArray[np.uint8], rows: NDArray[np.int64]) -> None:
        """Copy rows of a column to these indices; the column may be changed as soon as this returns."""
        ...

    def read(self, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Wait for the device and return the images at these indices."""
        ...

    def gather(self, indices: Any) -> Any:
        """Return, on the device, the images at indices that are on the device."""
        ...

    def release(self) -> None:
        """Free the memory."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Lookup:
    """References to B images, or stacks of them, on a device: a leaf of observations.

    `np.asarray` brings them here, and so do an index, a copy and a pickle. It is good until a batch is drawn from a
    buffer that was written to since.
    """

    frames: Frames
    indices: NDArray[np.int64]  # [B] or [B, stack]
    n_written: int  # `frames.n_written` as it was when this was drawn

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array of images that it refers to."""
        return (*self.indices.shape, *self.frames.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the array of images that it refers to."""
        return np.dtype(np.uint8)

    @property
    def ndim(self) -> int:
        """The number of axes of the array of images that it refers to."""
        return len(self.shape)

    def valid_indices(self) -> NDArray[np.int64]:
        """Return the indices; raise if their images may have been overwritten.

        Raises:
            DeviceError: rows were written there since this was drawn.
        """
        if self.n_written != self.frames.n_written:
            raise DeviceError(
                "images that lie on a device can be read until a later batch is drawn, and newer ones may have "
                "replaced them: learn from a batch before the next sample, or keep it by batch.copy()"
            )
        return self.indices

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self.frames.read(self.valid_indices()).astype(self.dtype if dtype is None else dtype, copy=False)

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[NDArray[Any]]:
        return iter(np.asarray(self))

    def __getitem__(self, key: Any) -> Any:
        return np.asarray(self)[key]

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"images that lie on a device have no {name!r}: np.asarray(leaf) or batch.copy() makes arrays of them"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return np.array, (np.asarray(self),)


_FIELDS_ELSEWHERE = {
    "act": "action",
    "done": "discount, which is 0 where the window ended in a termination",
    "indices": "slots",
    "indexes": "slots",
    "info": "extras, with the columns of Collector(extra_columns=)",
    "n": "len(batch)",
    "obs_next": "next_obs",
    "returns": "reward, the discounted sum of the window",
    "rew": "reward",
    "terminated": "discount, which is 0 where the window ended in a termination",
    "truncated": "discount: a truncated window keeps its bootstrap",
    "weights": "weight",
}


def _no_field(batch: object, name: str) -> str:
    """Return the message for an attribute that a batch does not have."""
    extras = [*getattr(batch, "extras", {})] if name != "extras" else []
    if name in extras:
        hint = f": it is batch.extras[{name!r}]"
    elif name in _FIELDS_ELSEWHERE:
        hint = f": use {_FIELDS_ELSEWHERE[name]}"
    else:
        hint = "" if name.startswith("_") else did_you_mean(name, [own for own in dir(type(batch)) if own[0] != "_"])
    return f"{type(batch).__name__} has no attribute {name!r}{hint}"


def shapes_of(data: Any) -> str:
    """Return a dataclass as text, with the shapes and types of its arrays instead of their numbers."""
    shown = []
    for item in fields(data):
        value = getattr(data, item.name)
        value = dict(value) if isinstance(value, Mapping) else value
        for path, leaf in tree.named_leaves({item.name: value}):
            is_array = isinstance(leaf, np.ndarray)
            shown.append(f"{path} {leaf.dtype} {list(leaf.shape)}" if is_array else f"{path}={leaf!r}")
    return f"{type(data).__name__}({', '.join(shown)})"


class Batch(Protocol):
    """What one update learns from, as a policy draws it: a `TransitionBatch`, or another dataclass of B samples.

    A sample is what a buffer draws and gives a priority: a row, or several that are learned from together.

    Attributes:
        obs_fields: names of the fields that have observations.
    """

    obs_fields: ClassVar[tuple[str, ...]]

    @property
    def obs(self) -> Obs: ...

    @property
    def next_obs(self) -> Obs: ...

    @property
    def action(self) -> NDArray[Any]: ...

    @property
    def reward(self) -> NDArray[np.float32]: ...

    @property
    def discount(self) -> NDArray[np.float32]: ...

    @property
    def weight(self) -> NDArray[np.float32]:
        """The importance weights [B]."""
        ...

    @property
    def slots(self) -> NDArray[np.int64]:
        """The names of the rows that were drawn [B], for `update_priorities`."""
        ...

    @property
    def extras(self) -> Mapping[str, NDArray[Any]]:
        """The requested columns."""
        ...

    @property
    def n_rows(self) -> int:
        """The number of rows to learn from."""
        ...

    def __len__(self) -> int:
        """Return B."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TransitionBatch:
    """B rows to learn from. Arrays are valid until the second next `sample`, a `Lookup` until the next one.

    `copy()` keeps them, in arrays. A device may read them for some time after an update: do not write to them then.
    """

    obs_fields: ClassVar[tuple[str, ...]] = "obs", "next_obs"
    obs: Obs  # [B, ...]
    action: NDArray[Any]  # [B, ...]
    reward: NDArray[np.float32]  # [B], the discounted sum of the window's rewards
    discount: NDArray[np.float32]  # [B], gamma**m after m real steps, 0 when the window ended in termination
    next_obs: Obs  # [B, ...], the observation after the window's last step
    weight: NDArray[np.float32]  # [B], importance weights; ones where rows were drawn uniformly
    slots: NDArray[np.int64]  # [B], the rows' names, for `update_priorities`
    extras: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # {column: [B, ...]}, those requested

    def __repr__(self) -> str:
        return shapes_of(self)

    def __len__(self) -> int:
        return len(self.reward)

    if not TYPE_CHECKING:  # a checker knows the fields

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(_no_field(self, name))

    @property
    def n_rows(self) -> int:
        """The number of rows to learn from, B."""
        return len(self.reward)

    def copy(self) -> "TransitionBatch":
        """Return a copy that owns its arrays."""
        return replace(
            self,
            obs=tree.map_tree(np.copy, self.obs),
            action=self.action.copy(),
            reward=self.reward.copy(),
            discount=self.discount.copy(),
            weight=self.weight.copy(),
            slots=self.slots.copy(),
            next_obs=tree.map_tree(np.copy, self.next_obs),
            extras={name: column.copy() for name, column in self.extras.items()},
        )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Rollout:
    """All rows of one collect, in order: environment n has exactly the rows (t, n) with t < n_rows[n].

    Arrays are borrowed until the buffer is written to again.
    """

    obs: Obs  # [T, N, ...]
    action: NDArray[Any]  # [T, N, ...]
    reward: NDArray[np.float32]  # [T, N]
    terminated: NDArray[np.bool_]  # [T, N], no future: nothing to bootstrap from
    ended: NDArray[np.bool_]  # [T, N], terminated, truncated or cut: the next row is no successor
    n_rows: NDArray[np.int64]  # [N]
    last_rows: NDArray[np.int64]  # [E], t * N + n of the rows that ended without termination
    last_obs: Obs  # [E, ...], the true observations after them, to bootstrap from
    extras: Mapping[str, NDArray[Any]]  # {name: [T, N, ...]}, as the policy stored them

    def __repr__(self) -> str:
        return shapes_of(self)

    def __len__(self) -> int:
        return int(self.n_rows.sum())

    @property
    def is_row(self) -> NDArray[np.bool_]:
        """Which positions [T, N] have a row."""
        is_row: NDArray[np.bool_] = np.arange(len(self.reward))[:, None] < self.n_rows
        return is_row


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RecordedEpisode:
    """One episode of T steps from its start; an episode with neither flag was cut by the recording."""

    obs: Obs  # [T + 1, ...], the last is the true final observation
    action: NDArray[Any]  # [T, ...]
    reward: NDArray[np.float64]  # [T]
    terminated: bool
    truncated: bool
    extras: Mapping[str, NDArray[Any]]  # {name: [T, ...]}
    agent: int = 0  # the index of its row in a group

    def __repr__(self) -> str:
        return shapes_of(self)

    def __len__(self) -> int:
        return len(self.reward)


@checked
class ReturnScale(Part):
    """Divide rewards by the deviation of the discounted return so far, and clip them.

    Each environment's running return is R = gamma * R + reward, restarted with every episode; the deviation is the
    population's over all R ever seen (Engstrom et al., 2020, "Implementation matters in deep policy gradients").
    Rewards are stored unscaled and scaled on read, by the newest deviation. The mean is not subtracted: signs are kept.

    Args:
        gamma: discount per step of the running return.
        clip: largest size of a scaled reward.
    """

    def __init__(self, gamma: float = 0.99, *, clip: float = 10.0) -> None:
        with Checks("ReturnScale") as checks:
            checks.number("gamma", gamma, low=0, high=1)
            checks.number("clip", clip, low=0, above_low=True)
        self.gamma, self.clip = gamma, clip
        self._running = np.zeros(0)  # [N], R of each environment
        self._count, self._mean, self._square = 0, 0.0, 0.0  # of all R: count, mean, summed squared deviation

    def __repr__(self) -> str:
        return f"ReturnScale({self.gamma})"

    @property
    def deviation(self) -> float:
        """The divisor of rewards; 1 before any were observed."""
        return float(np.sqrt(self._square / self._count + 1e-8)) if self._count else 1.0

    def __call__(self, columns: Mapping[str, Any]) -> NDArray[np.float64]:
        """Return the scaled rewards of rows [...]."""
        scaled: NDArray[np.float64] = np.clip(columns["reward"] / self.deviation, -self.clip, self.clip)
        return scaled

    @property
    def n_observed(self) -> int:
        """Number of rewards observed."""
        return self._count

    def observe(self, reward: NDArray[np.float64], ended: NDArray[np.bool_], env_ids: NDArray[np.intp]) -> None:
        """Add one step [K] of distinct environments."""
        if len(reward) == 0:
            return
        n_envs = int(env_ids.max()) + 1
        if n_envs > len(self._running):
            self._running = np.concatenate([self._running, np.zeros(n_envs - len(self._running))])
        with np.errstate(over="ignore"):  # which the statistics reject
            returns = self.gamma * self._running[env_ids] + reward
        self._merge_returns(returns)
        self._running[env_ids] = np.where(ended, 0.0, returns)

    def cut(self, env_ids: NDArray[np.intp]) -> None:
        """Restart the running returns of these environments, whose episodes were cut."""
        self._running[env_ids[env_ids < len(self._running)]] = 0.0

    def study(self, rewards: Sequence[NDArray[np.float64]]) -> None:
        """Add complete episodes, each given by its rewards [T]."""
        longest_first = sorted(rewards, key=len, reverse=True)
        lengths = np.array([len(one) for one in longest_first])
        running = np.zeros(len(lengths))
        for t in range(lengths.max(initial=0)):
            n_running = int(np.searchsorted(-lengths, -t))  # those longer than t come first
            running[:n_running] *= self.gamma
            running[:n_running] += [one[t] for one in longest_first[:n_running]]
            self._merge_returns(running[:n_running])

    def merge(self, other: "ReturnScale") -> None:
        """Merge all returns that another scale has observed, with exactly the result of observing them here.

        Running returns of its environments are not taken over. `other` stays as it is; merge it once only.
        """
        if other is self or other.gamma != self.gamma:
            raise ConfigError(
                f"ReturnScale.merge needs another scale of gamma {self.gamma}, got "
                f"{'itself' if other is self else other.gamma}"
            )
        self._add(other._count, other._mean, other._square)

    def _merge_returns(self, returns: NDArray[np.float64]) -> None:
        """Merge returns [K] into the moments.

        Raises:
            DivergedError: the squares of returns are beyond float64.
        """
        with np.errstate(over="ignore", invalid="ignore"):  # checked next
            mean = float(returns.mean())
            self._add(len(returns), mean, float(np.square(returns - mean).sum()))
        if not math.isfinite(self._square):
            raise DivergedError(
                f"ReturnScale: returns up to {np.abs(returns).max():g} are too large for their standard deviation, "
                "whose square float64 cannot hold: scale rewards in the environment, by a wrapper or a processor"
            )

    def _add(self, n_rows: int, mean: float, square: float) -> None:
        """Merge the moments of other returns (Chan et al., 1979)."""
        if n_rows == 0:
            return
        apart, total = mean - self._mean, self._count + n_rows
        self._square += square + apart * apart * self._count * n_rows / total
        self._mean += apart * n_rows / total
        self._count = total

    def state_dict(self) -> dict[str, Any]:
        """Return the statistics and the running returns."""
        return {"moments": [self._count, self._mean, self._square], "running": self._running.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load saved statistics."""
        self._count, self._mean, self._square = state["moments"]
        self._running = np.array(state["running"], np.float64)


RewardRule = Literal["sign", "return_scale"] | tuple[float, float] | float | Callable[[Mapping[str, Any]], NDArray[Any]]


_LONGEST_WINDOW = 100_000  # steps: those of each sampled row are in memory


@checked
@dataclass(frozen=True, slots=True)
class Horizon(Part):
    """The return that a policy learns from; the buffer computes it on read.

    Args:
        n_step: real steps per window, or a closed range (lo, hi) drawn for every row.
        gamma: discount per step, in [0, 1].
        reward: applied to each row's reward *before* the sum: "sign", a clip (lo, hi), a scale, or a function
            of columns `{"reward": [n, B], "action": [n, B], ...}` giving [n, B]: the windows of a replay buffer,
            all rows of a rollout as [1, B]. None keeps it. There are obs, next_obs, action, reward, terminated,
            truncated, t (steps since the episode began) and the policy's own.
            "return_scale" divides by the running deviation of the return: a policy makes a `ReturnScale` of it.
    """

    n_step: int | tuple[int, int] = 1
    gamma: float = 0.99
    reward: RewardRule | None = None

    def __post_init__(self) -> None:
        with Checks("Horizon") as checks:
            if isinstance(self.n_step, tuple):
                if checks.require(len(self.n_step) == 2, f".n_step must be (lo, hi), got {self.n_step}"):
                    lo, hi = self.n_step
                    checks.integer("n_step", lo, low=1)
                    checks.integer("n_step", hi, low=lo, high=_LONGEST_WINDOW)
            else:
                checks.integer("n_step", self.n_step, low=1, high=_LONGEST_WINDOW)
            checks.number("gamma", self.gamma, low=0, high=1)
            rule = self.reward
            if isinstance(rule, tuple):
                ordered = len(rule) == 2 and rule[0] < rule[1]
                checks.require(ordered, f".reward as a clip must be (lo, hi) with lo < hi, got {rule}")
            elif isinstance(rule, str):
                rules = '"sign", "return_scale", a clip (lo, hi), a factor or a function of columns'
                names = ("sign", "return_scale")
                hint = did_you_mean(rule, names)
                checks.require(rule in names, f".reward must be {rules}, got {rule!r}{hint}")
            elif isinstance(rule, list):
                checks.require(False, f".reward as a clip must be a tuple, got {rule}: write {tuple(rule)}")
            elif rule is not None and not callable(rule):
                checks.number("reward", rule)

    @property
    def longest(self) -> int:
        """Maximum number of steps in one window."""
        return self.n_step[1] if isinstance(self.n_step, tuple) else self.n_step

    @property
    def return_scale(self) -> ReturnScale | None:
        """The reward rule if it is a `ReturnScale`, else None."""
        return self.reward if isinstance(self.reward, ReturnScale) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArraySpec:
    """Describe one column of rows: a row's shape (one frame where stacked), its dtype, its frames per stack.

    Attributes:
        zero_filled: of a column that a policy stores: whether zeros stand for what it would have stored, where actions
            are random, and behind its vectors where another policy of the same environments has wider ones.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    stack: int = 1
    zero_filled: bool = field(default=False, compare=False)

    @classmethod
    def of(cls, rows: NDArray[Any], stack: int = 1) -> "ArraySpec":
        """Return the spec of an array of rows [K, ...], or [K, stack, ...] if stacked."""
        return cls(shape=rows.shape[2 if stack > 1 else 1 :], dtype=rows.dtype, stack=stack)


# Columns of every replay buffer, by name: those of a row itself, and those of what a batch reads from it on.
ROW_COLUMNS = ("env_id", "t", "episode", "terminated", "truncated")
WINDOW_COLUMNS = ("n", "return_to_go", "weight")
_INT32, _INT64, _BOOL, _FLOAT32 = (
    ArraySpec(shape=(), dtype=np.dtype(kind)) for kind in (np.int32, np.int64, np.bool_, np.float32)
)
COLUMN_SPECS = {
    "env_id": _INT64,
    "t": _INT32,
    "episode": _INT32,
    "terminated": _BOOL,
    "truncated": _BOOL,
    "n": _INT64,
    "return_to_go": _FLOAT32,
    "weight": ArraySpec(shape=(), dtype=np.dtype(np.float64)),
}


def not_random(columns: Mapping[str, ArraySpec]) -> list[str]:
    """Return the names of columns that a policy stores and that random actions cannot fill."""
    return sorted(name for name, spec in columns.items() if name != ACTION_PROB and not spec.zero_filled)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSpec:
    """The spec of the rows that a collector will add, from which a buffer allocates its memory."""

    n_envs: int
    obs: Any  # a tree of ArraySpec
    action: ArraySpec
    extras: Mapping[str, ArraySpec]
    pad: str = "repeat"  # of stacks: what stands before an episode's first frame, that frame or "zero"

    def to_plain(self) -> dict[str, Any]:
        """Describe the spec in JSON-compatible values; a node of the tree becomes [kind, content]."""
        extras = {name: _plain_node(spec) for name, spec in self.extras.items()}
        action, pad = _plain_node(self.action), {} if self.pad == "repeat" else {"pad": self.pad}
        return {"n_envs": self.n_envs, "obs": _plain_node(self.obs), "action": action, "extras": extras, **pad}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "RowSpec":
        """Return what `to_plain` described."""
        extras = {name: _read_specs(item) for name, item in plain["extras"].items()}
        obs, action = _read_specs(plain["obs"]), _read_specs(plain["action"])
        return cls(n_envs=plain["n_envs"], obs=obs, action=action, extras=extras, pad=plain.get("pad", "repeat"))


def _plain_node(node: Any) -> list[Any]:
    if isinstance(node, dict):
        return ["dict", {key: _plain_node(child) for key, child in node.items()}]
    if isinstance(node, tuple):
        return ["tuple", [_plain_node(child) for child in node]]
    return ["array", [list(node.shape), node.dtype.str, node.stack]]


def _read_specs(plain: Sequence[Any]) -> Any:
    """Return the tree of specs that `_plain_node` described."""
    return tree.map_tree(
        lambda leaf: ArraySpec(shape=tuple(leaf[0]), dtype=np.dtype(leaf[1]), stack=leaf[2]), tree.from_plain(plain)
    )


class EpochResult(NamedTuple):
    """What a trainer yields: unpack it, or read its attributes."""

    epoch: int
    stats: EpochStats
    info: RunInfo

    def __str__(self) -> str:
        return f"{self.stats}\n{self.info}"


def is_finite(array: NDArray[Any]) -> bool:
    """Return whether an array has no nan or infinity."""
    return 0 not in np.isfinite(array).tobytes()


def any_true(flags: NDArray[np.bool_]) -> bool:
    """Return whether any flag is set."""
    return 1 in flags.tobytes()


def all_or(rows: NDArray[np.intp], n: int) -> NDArray[np.intp] | slice:
    """Return ascending rows [K] of N, all of them as a slice, which numpy reads and writes faster."""
    return slice(None) if len(rows) == n else rows


def add_at(array: NDArray[Any], rows: NDArray[np.intp] | slice, amount: Any) -> None:
    """Add to different rows of an array in place: `array[rows] += amount`, which takes longer for a slice."""
    if isinstance(rows, slice):
        part = array[rows]
        part += amount
    else:
        array[rows] += amount
