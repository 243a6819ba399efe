"""Recorded episodes back into a replay buffer: from files of our own, and from Minari."""

import glob
import importlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from trainkit import tree
from trainkit.buffer.replay import ReplayBuffer
from trainkit.buffer.shards import Header, Recording, read_shard
from trainkit.data import RecordedEpisode
from trainkit.errors import ConfigError, MissingExtraError, SpaceMismatchError
from trainkit.protocols import EnvSpaces
from trainkit.spaces import check_spaces

Paths = str | Path | Sequence[str | Path]


def load_dataset(
    path: Paths, *, into: type[ReplayBuffer] = ReplayBuffer, envs: EnvSpaces | None = None, **options: Any
) -> ReplayBuffer:
    """Read files that `DatasetWriter` wrote into a buffer of as many rows.

    All files are read and checked before the buffer is made; that takes about four times their size in memory.

    Args:
        path: a file, a folder of them, a glob, or a list of these; files are read in the order of their names.
        into: the class of the buffer, such as `PrioritizedReplayBuffer`.
        envs: environments, or anything with their spaces, that the files must be of.
        options: of the buffer: capacity, seed, alpha ...

    Raises:
        CheckpointError: a file is damaged, or no dataset.
        SpaceMismatchError: the files do not agree with each other or with `envs`.
    """
    found = _files(path)
    shards = [(file, *read_shard(file)) for file in found]
    first, header, _ = shards[0]
    problems = [f"{file}: {text}, as in {first}" for file, own, _ in shards[1:] for text in header.misfits(own)]
    if envs is not None:
        own, theirs = header.spaces, envs
        for name in ("observation_space", "action_space"):
            here, there = getattr(own, name), getattr(theirs, name)
            if here != there:
                problems.append(f"{first}: {name} is {here}, the environments' is {there}")
    if problems:
        raise SpaceMismatchError("\n".join(["load_dataset cannot join these files, load them apart:", *problems]))
    return _buffer(into, header, [recording for _, _, recording in shards], options)


def from_minari(dataset: Any, *, into: type[ReplayBuffer] = ReplayBuffer, **options: Any) -> ReplayBuffer:
    """Read a Minari dataset into a buffer of as many rows; nothing is downloaded.

    Args:
        dataset: the id of a local dataset, a folder that has one, or a `minari.MinariDataset`.
        into: the class of the buffer.
        options: of the buffer: capacity, seed, alpha ...

    Raises:
        MissingExtraError: Minari is not installed.
        ConfigError: there is no such dataset, or nothing in it.
    """
    dataset = _open_minari(dataset)
    observation_space, action_space = dataset.observation_space, dataset.action_space
    check_spaces(observation_space, action_space)
    first_action = 0
    if isinstance(action_space, spaces.Discrete):  # as `Envs` does: actions count from 0
        first_action = int(action_space.start)
        action_space = spaces.Discrete(int(action_space.n))
    name = str(dataset.id)
    header = Header(env=name, observation_space=observation_space, action_space=action_space, extras={})
    episodes = [_minari_episode(name, one, first_action) for one in dataset.iterate_episodes()]
    if not episodes:
        raise ConfigError(f"from_minari: {name} has no episode")
    recording = Recording.of(header, episodes)
    problem = recording.problem(header)
    if problem is not None:
        raise ConfigError(f"from_minari: {name} does not hold what it says: {problem}")
    return _buffer(into, header, [recording], options)


def _buffer(
    into: type[ReplayBuffer], header: Header, recordings: Sequence[Recording], options: dict[str, Any]
) -> ReplayBuffer:
    """Make a buffer of recordings, one row per step."""
    whole = Recording.joined(recordings)
    n_steps = len(whole.reward)
    last = np.cumsum(whole.length) - 1  # [E]
    episode = np.repeat(np.arange(len(last)), whole.length)  # [T]
    here = np.arange(n_steps) + episode  # each episode has one more observation than steps
    terminated, truncated, ends = np.zeros((3, n_steps), np.bool_)
    terminated[last], truncated[last], ends[last] = whole.terminated, whole.truncated, True
    return into.from_arrays(
        obs=tree.map_tree(lambda leaf: leaf[here], whole.obs),
        action=whole.action,
        reward=whole.reward,
        next_obs=tree.map_tree(lambda leaf: leaf[here + 1], whole.obs),
        terminated=terminated,
        truncated=truncated,
        ends=ends,
        extras=whole.extras,
        **{"stack": header.stack, "spaces": header.spaces, **options},
    )


def _files(path: Paths) -> list[Path]:
    """List the files that a path, folder, glob or list of them names, sorted by name; refuse to find none."""
    if isinstance(path, str | Path):
        place = Path(path)
        if place.is_dir():
            found: Iterable[Path] = place.glob("*.npz")
        elif glob.has_magic(str(path)) and not place.exists():
            found = map(Path, glob.glob(str(path)))
        else:
            return [place]  # reading it says what is wrong
    else:
        found = [file for one in path for file in _files(one)]
    files = sorted({file.resolve(): file for file in found}.values())
    if not files:
        raise ConfigError(f"load_dataset found no file in {path!r}: name files, a folder or a glob of DatasetWriter's")
    return files


def _open_minari(dataset: Any) -> Any:
    try:
        minari = importlib.import_module("minari")
    except ImportError as error:
        raise MissingExtraError(f"from_minari needs minari ({error}): pip install trainkit[minari]") from error
    if isinstance(dataset, minari.MinariDataset):
        return dataset
    folder = Path(dataset)
    try:
        if folder.is_dir():
            return minari.MinariDataset(folder / "data" if (folder / "data").is_dir() else folder)
        return minari.load_dataset(str(dataset))
    except (OSError, ValueError, LookupError) as error:
        raise ConfigError(
            f"from_minari cannot open {dataset!r} ({error}): give a local id, the folder of one, or a MinariDataset"
        ) from error


def _minari_episode(name: str, one: Any, first_action: int) -> RecordedEpisode:
    if len(one.rewards) == 0:
        raise ConfigError(f"from_minari: episode {one.id} of {name} has no step")
    ended = np.asarray(one.terminations, np.bool_) | np.asarray(one.truncations, np.bool_)
    if ended[:-1].any():
        raise ConfigError(f"from_minari: episode {one.id} of {name} goes on after it ended: it is not one episode")
    return RecordedEpisode(
        obs=one.observations,
        action=np.asarray(one.actions) - first_action if first_action else np.asarray(one.actions),
        reward=np.asarray(one.rewards, np.float64),
        terminated=bool(one.terminations[-1]),
        truncated=bool(one.truncations[-1]),
        extras={},
    )
