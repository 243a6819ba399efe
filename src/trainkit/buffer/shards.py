"""Files of whole recorded episodes: npz archives that say themselves what is in them.

meta                      JSON: format, versions, env id, spaces of one frame, stack, the policy's columns
length [E]                steps of each episode
terminated, truncated [E] how it ended; where neither is set, it was cut by who recorded it
obs [T + E, ...]          of every step, and after each episode's last step its true final observation; one array
per leaf: obs.position, obs.camera.0
action, reward [T, ...]   in time order, the episodes end to end; rewards as the environment gave them
extra.NAME [T, ...]       the policy's columns: extra.action_prob
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from trainkit import files, tree
from trainkit.data import ArraySpec, Obs, RecordedEpisode
from trainkit.errors import CheckpointError, ConfigError
from trainkit.spaces import Spaces, array_specs, check_spaces, stacked_space

FORMAT = 1
_KIND = "trainkit dataset"
_PER_EPISODE = ("length", "terminated", "truncated")


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What all episodes of a dataset share."""

    env: str
    observation_space: Space[Any]  # of one frame
    action_space: Space[Any]
    stack: int = 1
    extras: Mapping[str, ArraySpec]

    @property
    def spaces(self) -> Spaces:
        """The spaces as a policy sees them, stacked."""
        observation_space = stacked_space(self.observation_space, self.stack)
        return Spaces(observation_space=observation_space, action_space=self.action_space)

    def misfits(self, other: "Header") -> list[str]:
        """Say in what another dataset's rows are not of this kind; where they come from does not matter."""
        names = ("observation_space", "action_space", "stack", "extras")
        pairs = [(name, getattr(self, name), getattr(other, name)) for name in names]
        return [f"{name} is {theirs}, not {own}" for name, own, theirs in pairs if own != theirs]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """E whole episodes of T steps in all, end to end."""

    obs: Obs  # [T + E, ...], single frames
    action: NDArray[Any]  # [T, ...]
    reward: NDArray[np.float64]  # [T]
    extras: Mapping[str, NDArray[Any]]  # {name: [T, ...]}
    length: NDArray[np.int64]  # [E]
    terminated: NDArray[np.bool_]  # [E]
    truncated: NDArray[np.bool_]  # [E]

    @classmethod
    def of(cls, header: Header, episodes: Sequence[RecordedEpisode]) -> "Recording":
        """Lay episodes end to end, in the types that the header's spaces have."""
        action = array_specs(header.action_space)

        def joined(spec: ArraySpec, *parts: NDArray[Any]) -> NDArray[Any]:
            return np.concatenate([np.asarray(part, spec.dtype) for part in parts])

        return cls(
            obs=tree.map_tree(joined, array_specs(header.observation_space), *(one.obs for one in episodes)),
            action=joined(action, *(one.action for one in episodes)),
            reward=np.concatenate([np.asarray(one.reward, np.float64) for one in episodes]),
            extras={
                name: joined(spec, *(one.extras[name] for one in episodes)) for name, spec in header.extras.items()
            },
            length=np.array([len(one) for one in episodes], np.int64),
            terminated=np.array([one.terminated for one in episodes], np.bool_),
            truncated=np.array([one.truncated for one in episodes], np.bool_),
        )

    @classmethod
    def joined(cls, parts: Sequence["Recording"]) -> "Recording":
        """Lay recordings of one kind end to end."""
        if len(parts) == 1:
            return parts[0]
        names = ("action", "reward", *_PER_EPISODE)
        columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
        extras = {name: np.concatenate([part.extras[name] for part in parts]) for name in parts[0].extras}
        obs = tree.map_tree(lambda *leaves: np.concatenate(leaves), *(part.obs for part in parts))
        return cls(obs=obs, extras=extras, **columns)

    def problem(self, header: Header) -> str | None:
        """Say what is wrong with the columns, None where nothing is."""
        n_steps, n_episodes = int(self.length.sum()), len(self.length)
        if n_episodes == 0 or self.length.min() < 1:
            return "it has no episode, or one of no step"
        wanted = {"action": (array_specs(header.action_space), n_steps), "reward": (_FLOAT, n_steps)}
        wanted |= dict.fromkeys(("terminated", "truncated"), (_FLAG, n_episodes))
        given = {name: getattr(self, name) for name in wanted}
        for path, spec in tree.named_leaves(array_specs(header.observation_space)):
            wanted[_dotted("obs", path)] = spec, n_steps + n_episodes
        given |= {_dotted("obs", path): leaf for path, leaf in tree.named_leaves(self.obs)}
        wanted |= {f"extra.{name}": (spec, n_steps) for name, spec in header.extras.items()}
        given |= {f"extra.{name}": column for name, column in self.extras.items()}
        for name, (spec, n_rows) in wanted.items():
            column = given[name]
            if (column.shape, column.dtype) != ((n_rows, *spec.shape), spec.dtype):
                return f"{name} is {column.dtype} {column.shape}, the rest says {spec.dtype} {(n_rows, *spec.shape)}"
        if not np.isfinite(self.reward).all():
            return "a reward is not finite"
        space = header.action_space
        if isinstance(space, spaces.Discrete) and not ((self.action >= 0) & (self.action < space.n)).all():
            return f"an action is outside {space}"
        return None


_FLOAT, _FLAG = (ArraySpec(shape=(), dtype=np.dtype(kind)) for kind in (np.float64, np.bool_))


def write_shard(path: Path, header: Header, episodes: Sequence[RecordedEpisode], *, compress: bool = False) -> None:
    """Write whole episodes as one file, whole or not at all; a file that is there raises FileExistsError."""
    recording = Recording.of(header, episodes)
    meta = {
        "kind": _KIND,
        "format": FORMAT,
        "versions": {package: _version(package) for package in ("trainkit", "numpy", "gymnasium")},
        "env": header.env,
        "spaces": Spaces(observation_space=header.observation_space, action_space=header.action_space).to_plain(),
        "stack": header.stack,
        "extras": {name: [list(spec.shape), spec.dtype.str] for name, spec in header.extras.items()},
    }
    columns = {"meta": np.array(json.dumps(meta)), "action": recording.action, "reward": recording.reward}
    columns |= {name: getattr(recording, name) for name in _PER_EPISODE}
    columns |= {_dotted("obs", path): leaf for path, leaf in tree.named_leaves(recording.obs)}
    columns |= {f"extra.{name}": column for name, column in recording.extras.items()}
    files.save_new_arrays(path, columns, compress=compress)


def read_shard(path: Path) -> tuple[Header, Recording]:
    """Read one file.

    Raises:
        CheckpointError: it is missing, damaged, no dataset, of a newer format, or does not hold what it says.
    """
    columns = files.load_arrays(path)
    try:
        meta = json.loads(str(columns["meta"]))
        kind, number = meta["kind"], meta["format"]
    except (LookupError, TypeError, ValueError):
        kind, number, meta = None, 0, {}
    if kind != _KIND:
        raise CheckpointError(f"{path} is no dataset of trainkit: DatasetWriter writes them")
    if number > FORMAT:
        raise CheckpointError(
            f"{path} has dataset format {number}, this trainkit reads up to {FORMAT}: install a newer trainkit"
        )
    try:
        header = _header(meta)
        leaves = dict(tree.named_leaves(array_specs(header.observation_space)))
        paths = iter([columns[_dotted("obs", path)] for path in leaves])
        recording = Recording(
            obs=_filled(array_specs(header.observation_space), paths),
            extras={name: columns[f"extra.{name}"] for name in header.extras},
            **{name: columns[name] for name in ("action", "reward", *_PER_EPISODE)},
        )
        problem = recording.problem(header)
    except (LookupError, TypeError, ValueError, AttributeError, AssertionError, ConfigError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise CheckpointError(f"{path} does not hold what it says ({problem}): record it again") from error
    if problem is not None:
        raise CheckpointError(f"{path} does not hold what it says ({problem}): record it again")
    return header, recording


def _header(meta: Mapping[str, Any]) -> Header:
    own = Spaces.from_plain(meta["spaces"])
    check_spaces(own.observation_space, own.action_space)
    extras = {
        name: ArraySpec(shape=tuple(shape), dtype=np.dtype(dtype)) for name, (shape, dtype) in meta["extras"].items()
    }
    return Header(
        env=str(meta["env"]),
        observation_space=own.observation_space,
        action_space=own.action_space,
        stack=int(meta["stack"]),
        extras=extras,
    )


def _filled(specs: Any, leaves: Any) -> Obs:
    """Put leaves, in the order of `named_leaves`, into a tree."""
    if isinstance(specs, dict):
        filled = {key: _filled(specs[key], leaves) for key in sorted(specs)}
        return {key: filled[key] for key in specs}
    if isinstance(specs, tuple):
        return tuple(_filled(child, leaves) for child in specs)
    return next(leaves)


def _dotted(name: str, path: str) -> str:
    return f"{name}.{path}" if path else name


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
