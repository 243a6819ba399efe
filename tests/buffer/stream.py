"""Rows without an agent: every number of a row says which environment, episode and step it is of."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trainkit.buffer import PrioritizedReplayBuffer
from trainkit.core import tree
from trainkit.core.data import ACTION_MASK, Obs, Transition

Form = Literal["array", "scalar", "pixels", "dict", "tuple", "masked", "views"]
FORMS: list[Form] = ["array", "scalar", "pixels", "dict", "tuple", "masked", "views"]

CONTINUES, TERMINATES, IS_TRUNCATED, IS_BOTH = range(4)


def frame(form: Form, env: int, episode: int, step: int) -> Obs:
    """Write where a frame is from, as one row of an observation of this form."""
    where = np.array([env, episode, step], np.float32)
    if form == "array":
        return where
    if form == "scalar":
        return np.int64(env * 1_000_000 + episode * 1_000 + step)
    if form == "pixels":
        return np.array([[[env], [episode % 256], [step % 256]]], np.uint8)
    if form == "dict":
        return {
            "where": where[:2].astype(np.int16),
            "inner": {"step": np.float64(step), "odd": np.array([step % 2 == 1])},
        }
    if form == "tuple":
        return (where.astype(np.float16), (np.uint64(step), np.array([[episode]], np.int8)))
    mask = np.arange(3) <= step % 3
    if form == "masked":
        return {"obs": where, ACTION_MASK: mask}
    seen = np.array([[env, episode % 256], [step % 256, step // 256]], np.uint8)
    return {"view": seen, "other": (where, {"mirrored": seen[:, ::-1, None]}), ACTION_MASK: mask}


def observe(form: Form, stack: int, env: int, episode: int, step: int) -> Obs:
    """Return what an environment shows: one frame, or the last `stack` of them, the first repeated before it."""
    if stack == 1:
        return frame(form, env, episode, step)
    frames = [frame(form, env, episode, max(0, step - back)) for back in range(stack - 1, -1, -1)]
    obs = tree.map_tree(lambda *leaves: np.stack(leaves), *frames)
    if isinstance(obs, dict) and ACTION_MASK in obs:
        obs[ACTION_MASK] = frames[-1][ACTION_MASK]
    return obs


def stacked(rows: Sequence[Obs]) -> Obs:
    """Put rows together along a new first axis."""
    return tree.map_tree(lambda *leaves: np.stack(leaves), *rows)


class Stream:
    """Environments whose episodes continue until they are ended."""

    def __init__(self, n_envs: int, form: Form = "array", stack: int = 1) -> None:
        self.n_envs, self.form, self.stack = n_envs, form, stack
        self.episode = [0] * n_envs
        self.step = [0] * n_envs

    def begin(self, env_ids: Sequence[int]) -> None:
        """Begin new episodes, whatever became of the last ones."""
        for env in env_ids:
            self.episode[env] += 1
            self.step[env] = 0

    def skip(self, env_ids: Sequence[int], n_steps: int) -> None:
        """Make steps that are not returned."""
        for env in env_ids:
            self.step[env] += n_steps

    def next(self, env_ids: Sequence[int] | None = None, ends: int | Sequence[int] = CONTINUES) -> Transition:
        """Make one step of these environments, default all, which ends as `ends` says."""
        ids = list(range(self.n_envs)) if env_ids is None else list(env_ids)
        how = np.broadcast_to(np.asarray(ends), len(ids))
        here = [(env, self.episode[env], self.step[env]) for env in ids]
        reward = np.array([10.0**env * (1 + step % 7) + 1000 * (episode % 5) for env, episode, step in here])
        terminated, truncated = (how & TERMINATES) > 0, (how & IS_TRUNCATED) > 0
        for env in ids:
            self.step[env] += 1
        self.begin([env for env, end in zip(ids, how, strict=True) if end])
        return Transition(
            obs=stacked([observe(self.form, self.stack, env, episode, step) for env, episode, step in here]),
            action=np.array([env + 5 * step for env, _, step in here], np.int32),
            reward=reward,
            next_obs=stacked([observe(self.form, self.stack, env, episode, step + 1) for env, episode, step in here]),
            terminated=terminated,
            truncated=truncated,
            env_ids=np.array(ids, np.intp),
            extras={
                "log_prob": np.array([-step for _, _, step in here], np.float32),
                "hidden": np.array([(env, episode) for env, episode, _ in here], np.int64),
            },
        )


def where(obs: Any) -> list[tuple[int, int, int]]:
    """Read (env, episode, step) back from observations [B, 3] or stacks of them [B, stack, 3]: of the newest frame."""
    newest = obs if obs.ndim == 2 else obs[:, -1]
    return [(int(env), int(episode), int(step)) for env, episode, step in newest]


def ranked(priorities: Sequence[float], **options: Any) -> tuple[PrioritizedReplayBuffer, NDArray[np.int64]]:
    """Fill a buffer with one environment's rows of these priorities; return it and their slots."""
    buffer, stream = PrioritizedReplayBuffer(max(16, len(priorities)), seed=1, **options), Stream(1)
    slots = np.concatenate([buffer.add(stream.next()) for _ in priorities])
    buffer.update_priorities(slots, np.array(priorities))
    return buffer, slots
