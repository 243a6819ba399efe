"""Minari datasets: folders of `metadata.json` and `main_data.hdf5`, read with h5py alone; nothing is executed.

    metadata.json                  total_episodes, dataset_id, data_format, spaces as strings of JSON, jpeg_encoding
    episode_0/observations         [T + 1, ...], the true final observation included
    episode_0/actions              [T, ...]
    episode_0/rewards, terminations, truncations     [T]

A Dict space is a group of datasets by its keys, a Tuple one of `_index_0`, `_index_1` ... Infos are not read.
"""

import io
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from trainkit.buffer.recorded import Block, BlockCheck, Column, block_ranges, row_bytes
from trainkit.core import tree
from trainkit.core.data import ArraySpec
from trainkit.core.errors import CheckpointError, ConfigError
from trainkit.core.extras import import_extra
from trainkit.core.files import check_declared, decoding, parse_json, read_json
from trainkit.core.spaces import array_specs, check_spaces, flat_actions, space_from_plain, structure_of
from trainkit.extensions.offline.format import Header
from trainkit.extensions.offline.hdf5 import H5Column, open_hdf5

_METADATA, _DATA = "metadata.json", "main_data.hdf5"
_REMEDY = "give a local id, the folder of one, or a MinariDataset; `minari download ID` gets one"
_REWARD = ArraySpec(shape=(), dtype=np.dtype(np.float64))
_FLAG = ArraySpec(shape=(), dtype=np.dtype(np.bool_))
_ID = re.compile(r"(?:[\w-]+/)*[\w-]+-v\d+")
_IMAGE_SIDE = 32  # Minari compresses images that are at least as high and as wide


@dataclass(frozen=True, slots=True, kw_only=True)
class _Episode:
    """The columns of one episode of T steps; rows are read later."""

    number: int
    obs: Any  # a tree of columns [T + 1, ...]
    action: Any  # a tree of columns [T, ...]
    reward: Column  # [T]
    terminated: Column  # [T]
    truncated: Column  # [T]


class MinariEpisodes:
    """Recorded episodes, their sizes and types checked against their spaces; rows are read later.

    Args:
        source: name of the dataset, for errors.
        env: name of the environment.
        observation_space, action_space: of one environment.
        episodes: returns all episodes in order, each time it is called.
        max_bytes: largest size of all rows; None is half of the free memory.

    Attributes:
        header: what all episodes share.
        length: steps of each episode [E].
    """

    def __init__(
        self,
        source: str,
        env: str,
        observation_space: Space[Any],
        action_space: Space[Any],
        episodes: Callable[[], Iterable[_Episode]],
        max_bytes: int | None,
    ) -> None:
        check_spaces(observation_space, action_space)
        self._source, self._episodes = source, episodes
        self._obs_specs, self._action_specs = array_specs(observation_space), array_specs(action_space)
        flat = flat_actions(action_space)
        self._structure = structure_of(flat)
        self.header = Header(env=env, observation_space=observation_space, action_space=flat, extras={})
        self._check = BlockCheck(source, observation_space, flat, CheckpointError)
        lengths, n_bytes = [], 0
        with decoding(source, "episodes"):
            for one in episodes():
                lengths.append(len(one.reward))
                n_bytes += self._check_columns(one, lengths[-1])
        if not lengths:
            raise ConfigError(f"{source} has no episode")
        check_declared(source, n_bytes, max_bytes)
        self.length = np.array(lengths)

    @property
    def ends(self) -> NDArray[np.bool_]:
        """Which rows are their episode's last [T]."""
        ends = np.zeros(self.length.sum(), np.bool_)
        ends[np.cumsum(self.length) - 1] = True
        return ends

    def blocks(self, ranges: Iterable[tuple[int, int]] | None = None) -> Iterator[Block]:
        """Read rows in order, block by block, in the types of the spaces, and validate them.

        Args:
            ranges: (first, end) of the episodes to read, ascending, by their position; None reads all.

        Raises:
            ConfigError: an episode continues after it ended.
            CheckpointError: a value cannot be learned from, or the file is damaged.
        """
        first = 0
        wanted = None if ranges is None else {position for pair in ranges for position in range(*pair)}
        with decoding(self._source, "episodes"):
            for position, one in enumerate(self._episodes()):
                n_steps = len(one.reward)
                if wanted is not None and position not in wanted:
                    first += n_steps
                    continue
                for begin, end in block_ranges(n_steps, row_bytes((one.obs, one.action, one.reward))):
                    block = self._block(one, begin, end, n_steps, first + begin)
                    self._check.block(block, first + begin)
                    yield block
                first += n_steps

    def _block(self, one: _Episode, begin: int, end: int, n_steps: int, first: int) -> Block:
        """Read rows [begin, end) of an episode; `first` is the index of the first one among all rows."""
        is_last, n_rows = end == n_steps, end - begin
        obs = tree.map_tree(
            lambda spec, column: self._converted(one, spec, column[begin : end + is_last]), self._obs_specs, one.obs
        )
        actions = tree.map_tree(
            lambda spec, column: self._converted(one, spec, column[begin:end]), self._action_specs, one.action
        )
        if self._structure is not None:
            actions = self._structure.pack(actions)
        terminated = self._check.flags("terminations", np.asarray(one.terminated[begin:end]), first)
        truncated = self._check.flags("truncations", np.asarray(one.truncated[begin:end]), first)
        if (terminated | truncated)[: n_rows - is_last].any():
            raise ConfigError(f"{self._source}: episode {one.number} continues after it ended: it is not one episode")
        return Block(
            obs=tree.map_tree(lambda leaf: leaf[:n_rows], obs),
            action=actions,
            reward=self._converted(one, _REWARD, one.reward[begin:end]),
            terminated=terminated,
            truncated=truncated,
            last_rows=np.arange(n_rows - is_last, n_rows),
            last_obs=tree.map_tree(lambda leaf: leaf[n_rows:], obs),
            extras={},
        )

    def _check_columns(self, one: _Episode, n_steps: int) -> int:
        """Return the bytes of an episode; raise if its columns do not match its spaces."""
        if n_steps == 0:
            raise ConfigError(f"{self._source}: episode {one.number} has no step")
        n_bytes = 0

        def check(spec: ArraySpec, column: Any, n_rows: int) -> None:
            nonlocal n_bytes
            shape, kind = tuple(getattr(column, "shape", ())), getattr(column, "dtype", np.dtype(object))
            if shape != (n_rows, *spec.shape) or kind.kind not in "biuf":
                raise CheckpointError(
                    f"{self._source}: episode {one.number} has {kind} {shape}, and its space says {spec.dtype} "
                    f"{(n_rows, *spec.shape)}: record it again"
                )
            n_bytes += math.prod(shape) * max(kind.itemsize, spec.dtype.itemsize)

        tree.map_tree(lambda spec, column: check(spec, column, n_steps + 1), self._obs_specs, one.obs)
        tree.map_tree(lambda spec, column: check(spec, column, n_steps), self._action_specs, one.action)
        check(_REWARD, one.reward, n_steps)
        check(_FLAG, one.terminated, n_steps)
        check(_FLAG, one.truncated, n_steps)
        return n_bytes

    def _converted(self, one: _Episode, spec: ArraySpec, rows: Any) -> NDArray[Any]:
        """Return rows in the type of their space; raise if that type cannot represent a value."""
        found = np.asarray(rows)
        with np.errstate(all="ignore"):  # non-finite values raise later
            converted = found.astype(spec.dtype, copy=False)
        if spec.dtype.kind != "f" and not np.can_cast(found.dtype, spec.dtype) and (converted != found).any():
            raise CheckpointError(
                f"{self._source}: episode {one.number} has values of {found.dtype} that its space's type {spec.dtype} "
                "does not have: record it again"
            )
        return converted


def is_minari(path: str | Path) -> bool:
    """Return whether a path is the folder of a Minari dataset."""
    folder = _data_folder(Path(path))
    return os.path.exists(folder / _METADATA) and os.path.exists(folder / _DATA)


def is_minari_id(path: str | Path) -> bool:
    """Return whether a path is no file or folder, and has the form of a Minari dataset's id, `namespace/name-v0`."""
    return _ID.fullmatch(str(path)) is not None and not os.path.exists(path)


@contextmanager
def open_minari(dataset: Any, max_bytes: int | None) -> Iterator[MinariEpisodes]:
    """Open a Minari dataset: the id of a local one, its folder, or a `minari.MinariDataset`.

    Raises:
        MissingExtraError: a package that it needs is not installed.
        ConfigError: there is no such dataset, or nothing in it.
        CheckpointError: its files are damaged or too large.
    """
    minari: Any = sys.modules.get("minari")
    if minari is not None and isinstance(dataset, minari.MinariDataset):
        with _open_object(dataset, max_bytes) as episodes:
            yield episodes
        return
    folder = _find_folder(dataset)
    about = _read_metadata(folder)
    with decoding(folder / _METADATA, "a Minari dataset"):
        observation_space, action_space = (_space(folder, about, f"{name}_space") for name in ("observation", "action"))
        total, env = about.get("total_episodes"), about.get("dataset_id", folder.name)
        if type(total) is not int or total < 0 or not isinstance(env, str):
            raise ValueError(f"total_episodes is {total!r:.80}, dataset_id {env!r:.80}")
    is_jpeg = bool(about.get("jpeg_encoding", True))
    with _open_folder(folder, env, observation_space, action_space, range(total), is_jpeg, max_bytes) as episodes:
        yield episodes


@contextmanager
def _open_object(dataset: Any, max_bytes: int | None) -> Iterator[MinariEpisodes]:
    """Open a `minari.MinariDataset`; formats other than HDF5 are read by Minari."""
    spaces_of = dataset.observation_space, dataset.action_space
    storage = dataset.storage
    if getattr(storage, "FORMAT", None) == "hdf5":
        numbers, is_jpeg = map(int, dataset.episode_indices), bool(getattr(storage, "jpeg_encoding", True))
        folder = Path(storage.data_path)
        with _open_folder(folder, str(dataset.id), *spaces_of, list(numbers), is_jpeg, max_bytes) as episodes:
            yield episodes
        return

    def read() -> Iterator[_Episode]:
        for one in dataset.iterate_episodes():
            yield _Episode(
                number=int(one.id),
                obs=one.observations,
                action=one.actions,
                reward=np.asarray(one.rewards),
                terminated=np.asarray(one.terminations),
                truncated=np.asarray(one.truncations),
            )

    yield MinariEpisodes(f"from_minari: {dataset.id}", str(dataset.id), *spaces_of, read, max_bytes)


@contextmanager
def _open_folder(
    folder: Path,
    env: str,
    observation_space: Space[Any],
    action_space: Space[Any],
    numbers: Iterable[int],
    is_jpeg: bool,
    max_bytes: int | None,
) -> Iterator[MinariEpisodes]:
    """Open episodes of these numbers in a folder's HDF5 file."""
    path = folder / _DATA
    check_spaces(observation_space, action_space)
    with open_hdf5(path, max_bytes=max_bytes, ignored=_is_info) as (columns, _):
        found = []
        for number in numbers:
            name = f"episode_{number}"
            if f"{name}/rewards" not in columns:
                raise CheckpointError(
                    f"{path} has no {name}/rewards, and {_METADATA} names that episode: it is damaged"
                )
            found.append(
                _Episode(
                    number=number,
                    obs=_tree(columns, f"{name}/observations", observation_space, is_jpeg),
                    action=_tree(columns, f"{name}/actions", action_space, is_jpeg),
                    reward=_per_step(path, columns, f"{name}/rewards"),
                    terminated=_per_step(path, columns, f"{name}/terminations"),
                    truncated=_per_step(path, columns, f"{name}/truncations"),
                )
            )
        source = f"from_minari: {folder}"
        yield MinariEpisodes(source, env, observation_space, action_space, lambda: found, max_bytes)


def _is_info(name: str) -> bool:
    parts = name.split("/")
    return len(parts) == 2 and parts[1] == "infos"


def _per_step(path: Path, columns: Mapping[str, H5Column], name: str) -> H5Column:
    """Return a column that must have one number per step."""
    column = columns.get(name)
    if column is None or len(column.shape) != 1:
        shape = "missing" if column is None else f"of shape {column.shape}"
        raise CheckpointError(f"{path}: {name} must have one number per step and is {shape}: record it again")
    return column


def _tree(columns: Mapping[str, H5Column], name: str, space: Space[Any], is_jpeg: bool) -> Any:
    """Return the columns of a space as a tree, None for those that are missing."""
    if isinstance(space, spaces.Dict):
        return {key: _tree(columns, f"{name}/{key}", child, is_jpeg) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        children = enumerate(space.spaces)
        return tuple(_tree(columns, f"{name}/_index_{number}", child, is_jpeg) for number, child in children)
    column = columns.get(name)
    if column is not None and is_jpeg and _is_image(space) and _has_bytes(column):
        return _Images(column, space.shape or ())
    return column


def _has_bytes(column: H5Column) -> bool:
    """Return whether rows are bytes, of one length or of various ones."""
    return (column.dtype, len(column.shape)) in ((np.dtype(np.uint8), 2), (np.dtype(object), 1))


def _is_image(space: Space[Any]) -> bool:
    """Return whether Minari stores the rows of a space as JPEG."""
    return (
        isinstance(space, spaces.Box)
        and len(space.shape) in (2, 3)
        and min(space.shape[:2]) >= _IMAGE_SIDE
        and space.dtype == np.uint8
        and bool((space.low == 0).all() and (space.high == 255).all())
    )


class _Images:
    """A column of images from a dataset whose rows are JPEG files; images of another size than the space's raise."""

    def __init__(self, column: H5Column, shape: tuple[int, ...]) -> None:
        self._column, self._shape, self.path = column, shape, column.path
        self.shape = (len(column), *shape)
        self.dtype: np.dtype[Any] = np.dtype(np.uint8)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        begin, end, _ = rows.indices(len(self))
        images = np.empty((end - begin, *self._shape), np.uint8)
        for row, image in enumerate(images, begin):
            image[:] = self._decoded(self._column[row : row + 1][0])
        return images

    def _decoded(self, content: NDArray[np.uint8]) -> NDArray[Any]:
        pillow = import_extra(f"{self.path} has images stored as JPEG and", "PIL.Image", "minari")
        with (
            decoding(self.path, "images", remedy="record it again"),
            pillow.open(io.BytesIO(content.tobytes()), formats=["JPEG"]) as image,
        ):
            if (image.height, image.width) != self._shape[:2]:
                raise ValueError(f"an image is {image.height} x {image.width}, its space says {self._shape}")
            decoded = np.asarray(image)
            if decoded.shape != self._shape:
                raise ValueError(f"an image has shape {decoded.shape}, its space says {self._shape}")
            return decoded


def _find_folder(dataset: Any) -> Path:
    """Return the folder with the files of a dataset."""
    if not isinstance(dataset, str | Path):
        raise ConfigError(f"from_minari cannot open {dataset!r:.200}: {_REMEDY}")
    folder = Path(dataset)
    if not os.path.isdir(folder):
        minari = import_extra(f"{str(dataset)!r:.200} is not a folder; as an id, from_minari", "minari", "minari")
        try:
            folder = Path(minari.storage.get_dataset_path(str(dataset)))
        except Exception as error:  # whatever it raises for an unknown name
            raise ConfigError(f"from_minari cannot open {dataset!r} ({error}): {_REMEDY}") from error
    folder = _data_folder(folder)
    if not os.path.exists(folder / _METADATA):
        raise ConfigError(f"from_minari cannot open {str(dataset)!r} ({folder / _METADATA} is missing): {_REMEDY}")
    return folder


def _data_folder(folder: Path) -> Path:
    return folder / "data" if os.path.isdir(folder / "data") else folder


def _read_metadata(folder: Path) -> dict[str, Any]:
    """Return a dataset's metadata; raise if it is in another format."""
    path = folder / _METADATA
    about = read_json(path)
    if not isinstance(about, dict):
        raise CheckpointError(f"{path} cannot be read as a Minari dataset: it must hold a JSON object; it is damaged")
    kind = about.get("data_format", "hdf5")
    if kind != "hdf5":
        raise ConfigError(f"from_minari reads Minari's HDF5 format, got {kind!r:.80} in {path}: convert the dataset")
    return about


def _space(folder: Path, about: Mapping[str, Any], name: str) -> Space[Any]:
    """Return a space that the metadata describe."""
    path, text = folder / _METADATA, about.get(name)
    if text is None:
        raise ConfigError(
            f"from_minari needs the {name} in {path}, which would have to be taken from the environment: open it with "
            "minari.MinariDataset(folder), if you trust its env_spec, and pass that"
        )
    if not isinstance(text, str):
        raise CheckpointError(f"{path} cannot be read: its {name} must be JSON in a string, got {text!r:.80}")
    return _built(parse_json(text, path), name)


def _built(plain: Any, name: str) -> Space[Any]:
    """Return a space from Minari's description; its bounds take no more memory than the description."""
    kind = plain["type"]
    if kind == "Dict":
        return spaces.Dict({key: _built(child, f"{name}[{key!r}]") for key, child in plain["subspaces"].items()})
    if kind == "Tuple":
        return spaces.Tuple([_built(child, f"{name}[{at}]") for at, child in enumerate(plain["subspaces"])])
    if kind not in ("Box", "Discrete", "MultiDiscrete", "MultiBinary"):
        raise ConfigError(
            f"from_minari: the {name} is a {kind!r:.80}, which has no fixed array of numbers per step: leave it out of "
            "the dataset"
        )
    if kind == "Box":
        for bound in ("low", "high"):
            shape = np.shape(plain[bound])
            if list(shape) != plain["shape"]:
                raise ValueError(f"{name} has bounds of shape {shape}, and says {plain['shape']!r:.80}")
    start = np.zeros_like(plain["nvec"]).tolist() if kind == "MultiDiscrete" else 0  # earlier versions leave it out
    return space_from_plain({"shape": [], "dtype": "int64", "start": start, **plain, "kind": kind})
