"""Episodes that run: vector steps on their way to whole episodes, environment by environment."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit import tree
from trainkit.buffer.shards import Header
from trainkit.data import ArraySpec, RecordedEpisode, Transition
from trainkit.spaces import array_specs

_ROOM = 128  # steps of an episode to begin with; doubled when one is longer


class OpenEpisodes:
    """Gather the steps of N environments; `add` and `cut` return the episodes that thereby ended.

    Args:
        header: of the dataset that the episodes go into.
        n_envs: N.
        begun: environments in the middle of an episode, of which nothing is kept until the next begins.
    """

    def __init__(self, header: Header, n_envs: int, begun: NDArray[np.intp]) -> None:
        self._n_envs, self._room = n_envs, _ROOM
        self._obs_specs: list[ArraySpec] = tree.leaves(array_specs(header.observation_space, header.stack))
        # [N * (room + 1), ...]: an observation per step and the newest after it
        self._obs = tree.map_tree(self._column, array_specs(header.observation_space))
        self._action = self._column(array_specs(header.action_space))
        self._reward = np.zeros(n_envs * (self._room + 1), np.float64)
        self._extras = {name: self._column(spec) for name, spec in header.extras.items()}
        self._steps = np.zeros(n_envs, np.int64)  # [N], of the open episode; 0: none is open
        self._waits = np.zeros(n_envs, np.bool_)  # [N], for the next episode to begin
        self._waits[begun] = True

    def add(self, step: Transition) -> list[RecordedEpisode]:
        """Take K steps in and return the episodes they ended."""
        if np.count_nonzero(self._waits):
            kept = ~self._waits[step.env_ids]
            self._waits[step.env_ids[step.terminated | step.truncated]] = False
            step = step.at(kept)
        envs = step.env_ids
        t = self._steps[envs]
        if t.max(initial=0) == self._room:
            self._grow()
        rows = envs * (self._room + 1) + t
        given = zip(tree.leaves(step.obs), tree.leaves(step.next_obs), strict=True)
        for column, spec, (obs, next_obs) in zip(tree.leaves(self._obs), self._obs_specs, given, strict=True):
            column[rows] = obs[:, -1] if spec.stack > 1 else obs
            column[rows + 1] = next_obs[:, -1] if spec.stack > 1 else next_obs
        self._action[rows] = step.action
        self._reward[rows] = step.reward
        for name, column in self._extras.items():
            column[rows] = step.extras[name]
        self._steps[envs] = t + 1
        ended = step.terminated | step.truncated
        if not np.count_nonzero(ended):
            return []
        flags = zip(envs[ended], step.terminated[ended], step.truncated[ended], strict=True)
        return [self._take(env, bool(terminated), bool(truncated)) for env, terminated, truncated in flags]

    def cut(self, env_ids: NDArray[np.intp]) -> list[RecordedEpisode]:
        """End the open episodes here without a flag, and return them; the next step begins one."""
        self._waits[env_ids] = False
        return [self._take(env, False, False) for env in env_ids if self._steps[env] > 0]

    def drop(self, env_ids: NDArray[np.intp]) -> None:
        """Forget the open episodes of these environments; the next step begins one."""
        self._waits[env_ids] = False
        self._steps[env_ids] = 0

    def _take(self, env: int, terminated: bool, truncated: bool) -> RecordedEpisode:
        """Copy an environment's episode out."""
        n_steps, self._steps[env] = int(self._steps[env]), 0
        first = env * (self._room + 1)
        last = first + n_steps
        return RecordedEpisode(
            obs=tree.map_tree(lambda column: column[first : last + 1].copy(), self._obs),
            action=self._action[first:last].copy(),
            reward=self._reward[first:last].copy(),
            terminated=terminated,
            truncated=truncated,
            extras={name: column[first:last].copy() for name, column in self._extras.items()},
        )

    def _column(self, spec: ArraySpec) -> NDArray[Any]:
        return np.zeros((self._n_envs * (self._room + 1), *spec.shape), spec.dtype)

    def _grow(self) -> None:
        """Double the room; rare, so that a step costs the same however long an episode is."""

        def doubled(column: NDArray[Any]) -> NDArray[Any]:
            by_env = column.reshape(self._n_envs, -1, *column.shape[1:])
            return np.concatenate([by_env, np.zeros_like(by_env[:, 1:])], axis=1).reshape(-1, *column.shape[1:])

        self._room *= 2
        self._obs = tree.map_tree(doubled, self._obs)
        self._action, self._reward = doubled(self._action), doubled(self._reward)
        self._extras = {name: doubled(column) for name, column in self._extras.items()}
