"""Writing episodes: vector steps are gathered into complete episodes and written to numbered files."""

import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit.core import tree
from trainkit.core.data import ArraySpec, RecordedEpisode, Transition, any_true
from trainkit.core.errors import CheckpointError
from trainkit.core.spaces import array_specs
from trainkit.extensions.offline.format import Header, write_shard

_NAME = re.compile(r"episodes-(\d+)\.(npz|hdf5)")
_N_STEPS = 128  # vector steps, the initial capacity of `OpenEpisodes`


class EpisodeWriter:
    """A recorder of environments that writes complete episodes to numbered files in a folder.

    Args:
        folder: created when the first file is written; files that are there are never overwritten.
        max_bytes: where the next file begins; only a single episode makes a larger one. Before compression.
        compress: whether to compress the files.
        suffix: "npz" or "hdf5".

    Attributes:
        files: those written, in order.
    """

    def __init__(self, folder: Path, *, max_bytes: int, compress: bool, suffix: str) -> None:
        self.files: list[Path] = []
        self._folder, self._max_bytes, self._compress, self._suffix = folder, max_bytes, compress, suffix
        self._header: Header
        self._open: OpenEpisodes
        self._ended: list[tuple[RecordedEpisode, int]] = []  # whole and not written yet, each with its bytes
        self._n_bytes = 0  # of those

    def start(self, header: Header, n_envs: int, open_ids: NDArray[np.intp]) -> None:
        """Start recording N environments; running episodes are left out, since their first steps are missing."""
        self._header = header
        self._open = OpenEpisodes(header, n_envs, open_ids)

    def stop(self, env_ids: NDArray[np.intp], *, keeps_open: bool) -> None:
        """End the open episodes, and write or drop them."""
        open_episodes = self._open.cut(env_ids)
        self._keep(open_episodes if keeps_open else [])

    def add(self, transition: Transition) -> None:
        """Record K steps."""
        self._keep(self._open.add(transition))

    def cut(self, env_ids: NDArray[np.intp]) -> None:
        """End the open episodes of these environments here."""
        self._keep(self._open.cut(env_ids))

    def drop(self, env_ids: NDArray[np.intp]) -> None:
        """Drop the open episodes of these environments, which failed."""
        self._open.drop(env_ids)

    def flush(self) -> None:
        """Write all complete episodes."""
        if self._ended:
            self._write(len(self._ended))

    def _keep(self, episodes: list[RecordedEpisode]) -> None:
        """Keep complete episodes, and write as many files as they fill; if that fails the episodes are kept."""
        for episode in episodes:
            arrays = [*tree.leaves(episode.obs), episode.action, episode.reward, *episode.extras.values()]
            self._ended.append((episode, sum(array.nbytes for array in arrays)))
            self._n_bytes += self._ended[-1][1]
        while self._n_bytes > self._max_bytes and len(self._ended) > 1:
            up_to = np.cumsum([n_bytes for _, n_bytes in self._ended])
            self._write(max(1, int(np.searchsorted(up_to, self._max_bytes, side="right"))))

    def _write(self, n_episodes: int) -> None:
        """Write the first episodes kept as the next file."""
        number = self._next_number()
        while True:
            path = self._folder / f"episodes-{number:06d}.{self._suffix}"
            try:
                episodes = [episode for episode, _ in self._ended[:n_episodes]]
                write_shard(path, self._header, episodes, compress=self._compress)
                break
            except FileExistsError:  # another writer was faster
                number += 1
            except OSError as error:
                raise CheckpointError(f"DatasetWriter cannot write {path}: {error}; its episodes are kept") from error
        self.files.append(path)
        self._n_bytes -= sum(n_bytes for _, n_bytes in self._ended[:n_episodes])
        del self._ended[:n_episodes]

    def _next_number(self) -> int:
        names = [_NAME.fullmatch(file.name) for file in self._folder.iterdir()] if self._folder.is_dir() else []
        return max((int(match[1]) + 1 for match in names if match), default=0)


class OpenEpisodes:
    """The steps of N environments in their running episodes; `add` and `cut` return the episodes that end.

    A vector step is one row of every column, written at once; an environment that takes no part in it leaves a gap
    there, which its episode skips.

    Args:
        header: of the dataset that the episodes go into.
        n_envs: N.
        open_ids: environments in the middle of an episode, of which nothing is kept until the next begins.
    """

    def __init__(self, header: Header, n_envs: int, open_ids: NDArray[np.intp]) -> None:
        self._n_envs, self._n_agents, self._capacity = n_envs, max(1, len(header.agents)), _N_STEPS
        self._obs_specs: list[ArraySpec] = tree.leaves(array_specs(header.observation_space, header.stack))
        # [capacity + 1, N, ...]: an observation per step and the newest after it
        self._obs = tree.map_tree(self._column, array_specs(header.observation_space))
        self._action = self._column(array_specs(header.action_space))
        self._reward = np.zeros((self._capacity + 1, n_envs), np.float64)
        self._extras = {name: self._column(spec) for name, spec in header.extras.items()}
        self._gaps = np.zeros((self._capacity + 1, n_envs), np.bool_)  # where an environment takes no part in a row
        self._n_steps = 0  # the row of the next vector step
        self._first = np.zeros(n_envs, np.int64)  # [N], the open episode has no row before this one
        self._waiting = set(open_ids.tolist())  # environments, for their next episode to begin

    def add(self, step: Transition) -> list[RecordedEpisode]:
        """Add K steps and return the episodes they ended."""
        if self._waiting:
            kept = np.array([env not in self._waiting for env in step.env_ids.tolist()], np.bool_)
            self._waiting.difference_update(step.env_ids[step.terminated | step.truncated].tolist())
            step = step.at(kept)
        if self._n_steps == self._capacity:
            self._compact()
        envs = step.env_ids
        here: Any = self._n_steps
        after: Any = self._n_steps + 1
        if len(envs) < self._n_envs:
            self._gaps[here] = True
            here, after = (here, envs), (after, envs)
            self._gaps[here] = False
        leaves = zip(tree.leaves(step.obs), tree.leaves(step.next_obs), strict=True)
        for column, spec, (obs, next_obs) in zip(tree.leaves(self._obs), self._obs_specs, leaves, strict=True):
            column[here] = obs[:, -1] if spec.stack > 1 else obs
            column[after] = next_obs[:, -1] if spec.stack > 1 else next_obs
        self._action[here] = step.action
        self._reward[here] = step.reward
        for name, column in self._extras.items():
            column[here] = step.extras[name]
        self._n_steps += 1
        ended = step.terminated | step.truncated
        if not any_true(ended):
            return []
        flags = zip(envs[ended], step.terminated[ended], step.truncated[ended], strict=True)
        return [self._take(env, bool(terminated), bool(truncated)) for env, terminated, truncated in flags]

    def cut(self, env_ids: NDArray[np.intp]) -> list[RecordedEpisode]:
        """End the open episodes here without a flag, and return them; the next step starts a new one."""
        self._waiting.difference_update(env_ids.tolist())
        n_steps = self._n_steps
        return [
            self._take(env, False, False) for env in env_ids if not self._gaps[self._first[env] : n_steps, env].all()
        ]

    def drop(self, env_ids: NDArray[np.intp]) -> None:
        """Drop the open episodes of these environments; the next step starts a new one."""
        self._waiting.difference_update(env_ids.tolist())
        self._first[env_ids] = self._n_steps

    def _take(self, env: int, terminated: bool, truncated: bool) -> RecordedEpisode:
        """Remove and return an environment's episode: views of columns that are written once, copies of others."""
        first, n_steps = int(self._first[env]), self._n_steps
        gaps = self._gaps[first:n_steps, env]
        rows: Any = slice(first, n_steps)
        with_last: Any = slice(first, n_steps + 1)
        if any_true(gaps):
            rows = first + np.flatnonzero(~gaps)
            with_last = np.append(rows, rows[-1] + 1)
        self._first[env] = n_steps
        return RecordedEpisode(
            obs=tree.map_tree(lambda column: column[with_last, env].copy(), self._obs),
            action=self._action[rows, env],
            reward=self._reward[rows, env],
            terminated=terminated,
            truncated=truncated,
            extras={name: column[rows, env] for name, column in self._extras.items()},
            agent=int(env) % self._n_agents,
        )

    def _column(self, spec: ArraySpec) -> NDArray[Any]:
        return np.zeros((self._capacity + 1, self._n_envs, *spec.shape), spec.dtype)

    def _compact(self) -> None:
        """Move the open episodes to the front of new columns, with twice the capacity if they fill most of it."""
        is_open = ~self._gaps[: self._n_steps] & (np.arange(self._n_steps)[:, None] >= self._first)  # [capacity, N]
        n_kept = self._n_steps - int(np.append(is_open.any(axis=1), True).argmax())
        n_removed = self._n_steps - n_kept
        if n_kept > 3 * self._capacity // 4:
            self._capacity *= 2

        def moved(column: NDArray[Any]) -> NDArray[Any]:
            new = np.zeros((self._capacity + 1, *column.shape[1:]), column.dtype)
            new[: n_kept + 1] = column[n_removed : self._n_steps + 1]
            return new

        self._obs = tree.map_tree(moved, self._obs)
        self._action, self._reward, self._gaps = moved(self._action), moved(self._reward), moved(self._gaps)
        self._extras = {name: moved(column) for name, column in self._extras.items()}
        self._first = np.maximum(self._first - n_removed, 0)
        self._n_steps = n_kept
