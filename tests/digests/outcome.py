"""What a run leaves behind, made in one piece or resumed from a checkpoint in its middle, and the digest of it."""

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

import trainkit as tk
from tests.digests.worlds import Tape

Epochs = Mapping[int, Mapping[str, float]]  # {epoch: {tag: number}}
Engine = Literal["torch", "numpy", "auto"]


class World:
    """The arguments that all trainers of one run have, and the tapes of its environments.

    Attributes:
        engine: of its policies.
    """

    def __init__(self, seed: int, engine: Engine, callbacks: Sequence[tk.Callback] = ()) -> None:
        self.engine = engine
        self.tapes: list[Tape] = []
        self._seed, self._callbacks = seed, callbacks

    def tape(self) -> Tape:
        """Return a tape for another environment."""
        self.tapes.append(Tape())
        return self.tapes[-1]

    def options(self, *callbacks: tk.Callback) -> dict[str, Any]:
        """Return the options of a trainer, with these callbacks first."""
        everyone = [*callbacks, *self._callbacks]
        return {"max_epoch": 3, "seed": self._seed, "verbose": False, "show_progress": False, "callbacks": everyone}


class LeftError(Exception):
    """The run was saved, and is left."""


class Leave(tk.Callback):
    """Save a run into a folder when an update or a collect has ended `n` times, and leave it."""

    def __init__(self, folder: Path, event: Literal["update", "collect"], n: int) -> None:
        self._folder, self._event, self._n = folder, event, n

    def on_update_end(self, trainer: tk.Trainer) -> None:
        self._count("update", trainer)

    def on_collect_end(self, trainer: tk.Trainer, stats: tk.CollectStats) -> None:
        self._count("collect", trainer)

    def _count(self, event: str, trainer: tk.Trainer) -> None:
        if event == self._event:
            self._n -= 1
            if self._n == 0:
                trainer.save(self._folder)
                raise LeftError


@dataclass(frozen=True, kw_only=True)
class Run:
    """How a run is made, and where in its middle it is saved to be resumed.

    Attributes:
        make: from a world to a trainer.
        leave: after the n-th update or collect, in the middle of an epoch.
        engine: of its policies.
    """

    make: Callable[[World], Any]
    leave: tuple[Literal["update", "collect"], int]
    engine: Engine = "torch"

    def world(self, seed: int, callbacks: Sequence[tk.Callback] = ()) -> World:
        """Return a world for one trainer."""
        return World(seed, self.engine, callbacks)

    def play(self, seed: int = 1) -> "Outcome":
        """Train to the end."""
        world = self.world(seed)
        with one_thread(), self.make(world) as trainer:
            epochs = {epoch: numbers(stats) for epoch, stats, _ in trainer}
            return outcome(trainer, epochs, world.tapes)

    def play_in_two(self, seed: int = 1) -> "Outcome":
        """Train to the middle of an epoch, and to the end by another trainer, which a checkpoint is loaded into."""
        epochs: dict[int, Mapping[str, float]] = {}
        with one_thread(), tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "save"
            world = self.world(seed, [Leave(place, *self.leave)])
            with self.make(world) as trainer:
                try:
                    epochs.update((epoch, numbers(stats)) for epoch, stats, _ in trainer)
                except LeftError:
                    before = world.tapes
                else:
                    raise ValueError(f"the run has ended before {self.leave[0]} {self.leave[1]}")
            world = self.world(seed)
            with self.make(world) as trainer:
                trainer.load(place)
                left_in = len(epochs) + 1
                epochs.update((epoch, numbers(stats)) for epoch, stats, _ in trainer)
                for tape, first in zip(world.tapes, before, strict=True):
                    tape.prepend(first)
                return replace(outcome(trainer, epochs, world.tapes), left_in=left_in)

    def resumed_and_whole(self, seed: int = 1) -> tuple["Digest", "Digest"]:
        """Return the digests of the run in two pieces and in one, of what both can say."""
        resumed = self.play_in_two(seed)
        return resumed.digest(resumed.left_in), self.play(seed).digest(resumed.left_in)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute in one thread."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(n_threads)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run left behind; of all but the statistics, digests.

    Attributes:
        left_in: the epoch in which it was saved and resumed.
    """

    weights: str
    moments: str
    rows: str
    epochs: Epochs
    left_in: int | None = None

    def digest(self, left_in: int | None = None) -> "Digest":
        """Return a sha256 of each part, without what the epoch `left_in` says of its collects.

        These statistics of a resumed run are of the rest of the epoch.
        """
        tags = sorted(set().union(*self.epochs.values()))
        received = {
            tag: [
                repr(epoch.get(tag)).encode()
                for number, epoch in sorted(self.epochs.items())
                if not (number == left_in and is_of_collects(tag))
            ]
            for tag in tags
        }
        statistics = {tag: sha256(*texts) for tag, texts in received.items()}
        return Digest(weights=self.weights, moments=self.moments, rows=self.rows, statistics=statistics)


def is_of_collects(tag: str) -> bool:
    """Return whether a statistic says of the collects of an epoch."""
    return tag.startswith("train/") or tag.endswith("/replay_ratio")


@dataclass(frozen=True, kw_only=True)
class Digest:
    """What a run left behind: a sha256 of each part, and of each statistic."""

    weights: str
    moments: str
    rows: str
    statistics: Mapping[str, str]

    @property
    def whole(self) -> str:
        """One sha256 of everything."""
        return sha256(json.dumps(vars(self), sort_keys=True).encode())


def outcome(trainer: Any, epochs: Epochs, tapes: Sequence[Tape]) -> Outcome:
    """Return what a trainer, the tapes of its environments and its epochs hold."""
    return Outcome(
        weights=unordered(trainer.policy.get_weights()),
        moments=unordered(list(moments(trainer.policy.training_state()))),
        rows=sha256(*(hashlib.sha256(tape.read()).digest() for tape in tapes), *stored(trainer.buffer)),
        epochs=epochs,
    )


def moments(state: Any) -> Iterator[Any]:
    """Yield the states of all optimizers within the state of one policy or several."""
    if isinstance(state, Mapping):
        for name, own in state.items():
            yield from [own] if name == "optimizers" else moments(own)


def stored(buffer: Any) -> Iterator[bytes]:
    """Yield digests of the rows in a replay buffer, or in those of several policies; a rollout is gone."""
    if isinstance(buffer, tk.MultiAgentBuffer):
        for own in buffer.buffers.values():
            yield from stored(own)
    elif isinstance(buffer, (tk.ReplayBuffer, tk.MixedBuffer)):
        for row in buffer.transitions():
            columns = row.obs, row.action, row.reward, row.next_obs, row.terminated, row.truncated
            yield from tensors(list(columns))


def numbers(stats: Any) -> dict[str, float]:
    """Return an epoch's numbers except those that a clock gave."""
    clocks = ("time/", "system/", "train/durations", "test/durations")
    ends = ("_ms", "seconds", "_per_second")
    return {tag: float(x) for tag, x in tk.scalars(stats).items() if not (tag.startswith(clocks) or tag.endswith(ends))}


def unordered(state: Any) -> str:
    """Digest the arrays of a nested state, whatever they are called and in whatever order they are."""
    return sha256(*sorted(tensors(state)))


def tensors(state: Any) -> Iterator[bytes]:
    """Yield the digests of all arrays in a nested state, each with its shape and dtype."""
    if isinstance(state, Mapping):
        for child in state.values():
            yield from tensors(child)
    elif isinstance(state, (list, tuple)):
        for child in state:
            yield from tensors(child)
    elif isinstance(state, (np.ndarray, torch.Tensor)):
        array = np.ascontiguousarray(state)
        yield bytes.fromhex(sha256(f"{array.dtype} {np.shape(state)}".encode(), array.tobytes()))


def sha256(*parts: bytes) -> str:
    """Return the sha256 of all parts, one after another."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(part)
    return whole.hexdigest()
