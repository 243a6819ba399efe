"""Datasets streamed from disk: of recorded files larger than memory, a random part at a time is in a shuffle buffer."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from trainkit.buffer.recorded import Block
from trainkit.buffer.replay import ReplayBuffer
from trainkit.core import seeding
from trainkit.core.data import Allocate, Horizon, RecordedEpisode, Transition, TransitionBatch
from trainkit.core.errors import BusyError, CheckpointError, Checks, ConfigError
from trainkit.core.protocols import EnvSpaces
from trainkit.core.signatures import checked
from trainkit.core.spaces import HasSpaces, Spaces
from trainkit.extensions.offline.format import ANY_SIZE, Header, Shard, shard_blocks
from trainkit.extensions.offline.loading import Paths, check_spaces_of, find_files, read_shards
from trainkit.extensions.offline.minari import is_minari, is_minari_id, open_minari
from trainkit.extensions.offline.rewriting import EpisodeFn, rewritten

_PIECES = 8  # that a shuffle buffer holds at least: runs of episodes from random positions


_Read = TypeVar("_Read")


class Source(Protocol):
    """Recorded episodes of which any can be read."""

    @property
    def name(self) -> str:
        """The file or folder."""
        ...

    @property
    def header(self) -> Header:
        """What all episodes share."""
        ...

    @property
    def length(self) -> NDArray[np.int64]:
        """Steps of each episode [E]."""
        ...

    def blocks(self, ranges: Iterable[tuple[int, int]]) -> Iterator[Block]:
        """Read the episodes of these ranges (first, end), ascending."""
        ...


@dataclass(frozen=True, slots=True)
class ShardSource:
    """The episodes of a file of `DatasetWriter`."""

    shard: Shard

    @property
    def name(self) -> str:
        return str(self.shard.path)

    @property
    def header(self) -> Header:
        return self.shard.header

    @property
    def length(self) -> NDArray[np.int64]:
        return self.shard.length

    def blocks(self, ranges: Iterable[tuple[int, int]]) -> Iterator[Block]:
        return shard_blocks(self.shard, ranges)


@dataclass(frozen=True, slots=True)
class MinariSource:
    """The episodes of a Minari dataset, which is opened to read some."""

    name: str
    header: Header
    length: NDArray[np.int64]
    max_bytes: int

    def blocks(self, ranges: Iterable[tuple[int, int]]) -> Iterator[Block]:
        with open_minari(self.name, self.max_bytes) as episodes:
            yield from episodes.blocks(ranges)


class _Piece(NamedTuple):
    """Consecutive episodes of one source."""

    source: int
    first: int
    end: int
    n_rows: int


@checked
def stream_dataset(
    path: Paths,
    *,
    shuffle_rows: int = 100_000,
    envs: EnvSpaces | None = None,
    episode_fn: EpisodeFn | None = None,
    seed: int | None = None,
) -> "StreamedDataset":
    """Open recorded files to learn from them without loading them; only `shuffle_rows` rows are in memory.

    All headers are read and checked now, the rows when they are needed. See `StreamedDataset`.

    Args:
        path: files of `DatasetWriter` or a Minari dataset, as in `load_dataset`.
        shuffle_rows: rows in memory, at least twice those of the longest episode.
        envs: environments, or an object with their spaces, that the files must match.
        episode_fn: as in `load_dataset`; called whenever an episode is read.
        seed: root of the order and the draws; None takes the trainer's.

    Raises:
        CheckpointError: a file is damaged or no dataset.
        SpaceMismatchError: the files do not agree with each other or with `envs`.
        MissingExtraError: an HDF5 file needs h5py.
    """
    return StreamedDataset(_open_sources(path, envs), shuffle_rows=shuffle_rows, episode_fn=episode_fn, seed=seed)


def _open_sources(path: Paths, envs: EnvSpaces | None) -> list[Source]:
    if isinstance(path, str | Path) and (is_minari(path) or is_minari_id(path)):
        with open_minari(path, ANY_SIZE) as episodes:
            header, length = episodes.header, episodes.length
        check_spaces_of(Path(path), header, envs)
        return [MinariSource(str(path), header, length, ANY_SIZE)]
    return [ShardSource(shard) for shard in read_shards(find_files(path), envs, None, in_parts=True)]


@checked
class StreamedDataset(HasSpaces):
    """Recorded episodes for an `OfflineTrainer`, of which a random part is in memory: the shuffle buffer.

    The episodes are divided into pieces: consecutive ones of a file, an eighth of the shuffle buffer or one episode. A
    pass visits all pieces in a random order. As many as fit fill the shuffle buffer, batches are sampled from it
    uniformly, with replacement, until as many rows were sampled as it holds, and then the next pieces replace all of
    them. So every row is equally probable in every pass, and n-step windows and frame stacks are those of
    `load_dataset`. Where all rows fit, they are read once.

    The order is a function of the seed and the number of the pass. A checkpoint holds the position in it instead of the
    rows, which a resumed run reads again: it continues with the same bits.

    Args:
        sources: of the episodes.
        shuffle_rows: rows in memory.
        episode_fn: see `stream_dataset`.
        seed: root of the order and the draws; None takes the trainer's.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        shuffle_rows: int,
        episode_fn: EpisodeFn | None = None,
        seed: int | None = None,
    ) -> None:
        with Checks("stream_dataset") as checks:
            checks.require(
                episode_fn is None or callable(episode_fn), f".episode_fn must be callable, got {episode_fn!r}"
            )
            checks.integer("shuffle_rows", shuffle_rows, low=2)
            checks.integer("seed", seed, low=0, optional=True)
        self._sources = list(sources)
        lengths = [source.length for source in self._sources]
        longest = max(int(length.max()) for length in lengths)
        self._n_rows, self._n_episodes = sum(int(length.sum()) for length in lengths), sum(map(len, lengths))
        if shuffle_rows < min(2 * longest, self._n_rows):
            raise ConfigError(
                f"stream_dataset.shuffle_rows is {shuffle_rows:,}, and the longest episode has {longest:,} steps: "
                f"give at least {min(2 * longest, self._n_rows):,}"
            )
        self._shuffle_rows, self._episode_fn = int(shuffle_rows), episode_fn
        self._pieces = _divide(lengths, max(longest, shuffle_rows // _PIECES))
        header = self._sources[0].header
        self._spaces: Spaces = header.spaces
        self._window = ReplayBuffer(min(shuffle_rows, self._n_rows), n_envs=1, stack=header.stack, spaces=header.spaces)
        self._window.bind(header.row_spec(header.stack))
        self._in_window: list[int] = []  # pieces that are in memory, ascending
        self._is_scanned = False  # by `transitions` or `episodes`, which use the memory
        self.seed(seeding.fresh_root() if seed is None else seed)
        self._is_seeded = seed is not None

    def __len__(self) -> int:
        return self._n_rows

    def __repr__(self) -> str:
        rows = f"{self._n_rows:,} transitions of {self._n_episodes:,} episodes in {len(self._sources)} files"
        return f"StreamedDataset({rows}, {self._window.capacity:,} in memory, {self.nbytes:,} bytes)"

    @property
    def shuffle_rows(self) -> int:
        """Rows in memory; another number needs `stream_dataset(..., shuffle_rows=)`."""
        return self._shuffle_rows

    @property
    def prioritized(self) -> bool:
        """Whether `update_priorities` has any effect: it has none."""
        return False

    @property
    def is_seeded(self) -> bool:
        """Whether there is a seed; `seed(root)` sets one."""
        return self._is_seeded

    @property
    def nbytes(self) -> int:
        """Bytes of the shuffle buffer."""
        return self._window.nbytes

    @property
    def columns(self) -> tuple[str, ...]:
        """The names that `sample(columns=)` accepts."""
        return self._window.columns

    def seed(self, root: int) -> None:
        """Start the first pass of this root seed's order."""
        self._root, self._is_seeded = root, True
        self._window.seed(root)
        self._pass = self._position = self._n_chosen = 0  # pieces before those in memory, and of those in memory
        self._n_left = self._n_sampled = 0  # rows to sample from those in memory, and sampled ever

    def sample(
        self, batch_size: int | None, *, horizon: Horizon | None = None, step: int = 0, columns: Sequence[str] = ()
    ) -> TransitionBatch:
        """Sample B rows of those in memory, after reading the next ones where it is time; see `ReplayBuffer.sample`.

        Raises:
            CheckpointError: a file is damaged, missing, or not what it was.
            ConfigError: `batch_size` is None: the rows are not all in memory.
            BusyError: a loop over `transitions()` or `episodes()` is not finished.
        """
        with Checks("StreamedDataset.sample") as checks:
            checks.integer("batch_size", batch_size, low=1)
        if self._is_scanned:
            raise BusyError("StreamedDataset.sample: transitions() or episodes() is using the memory: finish that loop")
        if self._n_left <= 0:
            self._choose_next()
        self._read_chosen()
        n_rows = int(batch_size or 0)
        self._n_left -= n_rows
        self._n_sampled += n_rows
        return self._window.sample(n_rows, horizon=horizon, step=step, columns=columns)

    def update_priorities(self, slots: NDArray[np.int64], priority: NDArray[Any]) -> None:
        """Has no effect: rows are sampled uniformly."""

    def use_batch_memory(self, allocate: Allocate | None) -> None:
        """Write the observations of the next batches to arrays that this function makes; None: to numpy's."""
        self._window.use_batch_memory(allocate)

    def transitions(self, n_rows: int = 10_000) -> Iterator[Transition]:
        """Read all rows once, in order, and yield `n_rows` at a time or fewer."""
        return self._scan(lambda window: window.transitions(n_rows))

    def episodes(self) -> Iterator[RecordedEpisode]:
        """Read all episodes once, in order."""
        return self._scan(lambda window: window.episodes())

    def return_range(self, horizon: Horizon) -> tuple[float, float]:
        """Return the smallest and the largest of 0, all n-step rewards and all returns-to-go of the rows."""
        lows, highs = zip(*self._scan(lambda window: iter([window.return_range(horizon)])), strict=True)
        return min(lows), max(highs)

    def metrics(self, step: int) -> dict[str, float]:
        """Return the number of rows and episodes, and how often a row was sampled on average."""
        passes = self._n_sampled / self._n_rows
        return {"size": float(self._n_rows), "n_episodes": float(self._n_episodes), "passes": passes}

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the order of the pieces, and the generator; no rows."""
        return {
            "kind": type(self).__name__,
            "pieces": self._fingerprint(),
            "root": self._root,
            "pass": self._pass,
            "position": self._position,
            "n_chosen": self._n_chosen,
            "n_left": self._n_left,
            "n_sampled": self._n_sampled,
            "rng": self._window.rng.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved position; the rows are read with the next batch.

        Raises:
            CheckpointError: it was saved of other files, or with another `shuffle_rows`.
        """
        if (state["kind"], state["pieces"]) != (type(self).__name__, self._fingerprint()):
            raise CheckpointError(
                f"a {state['kind']} of other episodes was saved, or with other shuffle_rows than "
                f"{self.shuffle_rows:,}: stream_dataset the same files as before"
            )
        self._root, self._pass = state["root"], state["pass"]
        self._position, self._n_chosen = state["position"], state["n_chosen"]
        self._n_left, self._n_sampled = state["n_left"], state["n_sampled"]
        self._window.rng.bit_generator.state = state["rng"]

    # ---- reading ----

    def _choose_next(self) -> None:
        """Choose the next pieces, and the number of rows to sample from them."""
        self._position += self._n_chosen
        if self._position == len(self._pieces):
            self._pass, self._position = self._pass + 1, 0
        sizes = [self._pieces[index].n_rows for index in self._order()[self._position :]]
        self._n_chosen = _n_first(sizes, self._window.capacity)
        self._n_left += sum(sizes[: self._n_chosen])

    def _order(self) -> NDArray[np.int64]:
        """Return the order of the pieces in this pass."""
        return seeding.generator(self._root, "pieces", self._pass).permutation(len(self._pieces))

    def _read_chosen(self) -> None:
        """Read the chosen pieces, unless they are in memory."""
        chosen = sorted(self._order()[self._position : self._position + self._n_chosen].tolist())
        if chosen != self._in_window:
            self._read(chosen)

    def _read(self, chosen: list[int]) -> None:
        """Fill the memory with these pieces, which ascend."""
        self._in_window = []  # should it fail
        pieces = [self._pieces[index] for index in chosen]
        ends = np.concatenate([self._ends_of(piece) for piece in pieces])
        ranges: dict[int, list[tuple[int, int]]] = {}
        for piece in pieces:
            ranges.setdefault(piece.source, []).append((piece.first, piece.end))
        header = self._sources[0].header
        read = chain.from_iterable(self._sources[source].blocks(own) for source, own in ranges.items())
        blocks = rewritten(read, self._episode_fn, header.observation_space, header.action_space)
        self._window.refill(ends, blocks)
        self._in_window = chosen

    def _ends_of(self, piece: _Piece) -> NDArray[np.bool_]:
        ends = np.zeros(piece.n_rows, np.bool_)
        ends[np.cumsum(self._sources[piece.source].length[piece.first : piece.end]) - 1] = True
        return ends

    def _scan(self, read: Callable[[ReplayBuffer], Iterator[_Read]]) -> Iterator[_Read]:
        """Read all pieces in order, as many at a time as fit, and yield what `read` yields of them."""
        if self._is_scanned:
            raise BusyError("StreamedDataset: one loop over transitions() or episodes() at a time")
        self._is_scanned, first = True, 0
        try:
            while first < len(self._pieces):
                n_pieces = _n_first([piece.n_rows for piece in self._pieces[first:]], self._window.capacity)
                self._read(list(range(first, first + n_pieces)))
                yield from read(self._window)
                first += n_pieces
        finally:
            self._is_scanned = False

    def _fingerprint(self) -> str:
        """Return a digest of what the order depends on."""
        lengths = b"/".join(source.length.astype(np.int64).tobytes() for source in self._sources)
        return hashlib.blake2b(lengths + str(self.shuffle_rows).encode(), digest_size=16).hexdigest()


def _divide(lengths: Sequence[NDArray[np.int64]], n_rows: int) -> list[_Piece]:
    """Divide the episodes of each source into pieces of at most this many rows, which is at least the longest one."""
    pieces = []
    for source, length in enumerate(lengths):
        after = np.cumsum(length)
        borders = [0]
        while borders[-1] < len(length):
            before = after[borders[-1] - 1] if borders[-1] else 0
            borders.append(int(np.searchsorted(after, before + n_rows, side="right")))
        pieces += [_Piece(source, *pair, int(length[slice(*pair)].sum())) for pair in pairwise(borders)]
    return pieces


def _n_first(sizes: Sequence[int], capacity: int) -> int:
    """Return how many of the first pieces to read at once: about equal shares of the rest, each within the capacity."""
    total = sum(sizes)
    share = total if total <= capacity else total / -(-total // (capacity - max(sizes)))
    after = np.cumsum(sizes)
    return min(int(np.searchsorted(after, share)) + 1, len(sizes))
