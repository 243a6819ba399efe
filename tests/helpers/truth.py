"""Slow, obvious truths about tagged environments, to hold stored and sampled rows against."""

from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from tests.helpers.tagged import Form, TaggedEnv, decode, is_lost, is_terminated, is_truncated, length, reward, spawn
from trainkit.core.data import Transition, TransitionBatch
from trainkit.envs import Envs, make_envs

IN_PROCESS = ["sync", *(f"SyncVectorEnv {mode.name}" for mode in AutoresetMode)]
IN_PROCESSES = ["async", *(f"AsyncVectorEnv {mode.name}" for mode in AutoresetMode)]


def tagged_envs(way: str, n: int, form: Form = "array", **options: Any) -> Envs:
    """Make N tagged environments, one of the ways above."""
    factories = [partial(TaggedEnv, env, form) for env in range(n)]
    if way in ("sync", "async"):
        return make_envs(factories, backend=way, **options)
    kind, mode = way.split()
    vector_env = {"SyncVectorEnv": SyncVectorEnv, "AsyncVectorEnv": AsyncVectorEnv}[kind]
    return make_envs(vector_env(factories, autoreset_mode=AutoresetMode[mode]), **options)


def assert_rows_are_real(rows: Transition, n_envs: int, *, counts_lives: bool = False) -> int:
    """Check that every row is a step that happened, with its true successor, none twice; return how many are open.

    A row is open when the same environment's next row is of another episode without an end between them. Where lives
    are counted, losing one terminates the row and begins another stack, and nothing else.
    """
    before, after = decode(rows.obs), decode(rows.next_obs)
    if before.ndim == 3:  # stacks: what is older than the episode is its first frame
        back = np.arange(before.shape[1])[::-1]
        newest, first = before[:, -1], np.zeros_like(before[:, :1, 2])
        if counts_lives:
            first[:, 0] = [spawn(*tag) for tag in newest[:, :3].tolist()]
        np.testing.assert_array_equal(before[..., :2], np.broadcast_to(newest[:, None, :2], (*before.shape[:2], 2)))
        np.testing.assert_array_equal(before[..., 2], np.maximum(newest[:, None, 2] - back, first))
        np.testing.assert_array_equal(
            after[:, :-1][newest[:, 2] >= len(back)], before[:, 1:][newest[:, 2] >= len(back)]
        )
        before, after = newest, after[:, -1]
    env, episode, step = before[:, :3].T
    np.testing.assert_array_equal(env, rows.env_ids)
    np.testing.assert_array_equal(after[:, :3], np.stack([env, episode, step + 1], axis=1))
    np.testing.assert_array_equal(after[:, 3], rows.action)
    np.testing.assert_array_equal(rows.reward, reward(env, episode, step))
    ends = step + 1 == length(env, episode)
    lost = is_lost(env, episode, step) & counts_lives
    np.testing.assert_array_equal(rows.terminated, ends & is_terminated(env, episode) | lost)
    np.testing.assert_array_equal(rows.truncated, ends & is_truncated(env, episode))
    n_open = 0
    for one in range(n_envs):
        here = env == one
        continues_ = ~ends[here][:-1]
        same = episode[here][1:] == episode[here][:-1]
        np.testing.assert_array_equal(step[here][1:], np.where(same, step[here][:-1] + 1, 0))
        assert (episode[here][1:] >= episode[here][:-1]).all()
        assert not (same & ~continues_).any()
        n_open += int((continues_ & ~same).sum())
    return n_open


def assert_nothing_is_missing(rows: Transition, logs: list[dict[int, list[int]]], *, has_extra_steps: bool) -> None:
    """Check that each episode was stored as its environment logged it, and none was left out.

    With `has_extra_steps` environments also made steps nothing requested: a vector environment whose quota was filled.
    """
    stored: dict[tuple[int, int], list[int]] = {}
    newest = decode(rows.obs).reshape(len(rows.action), -1, 4)[:, -1]
    for (env, episode, _, _), action in zip(newest.tolist(), rows.action.tolist(), strict=True):
        stored.setdefault((env, episode), []).append(action)
    logged = {(env, episode): log for env, logs in enumerate(logs) for episode, log in logs.items() if log}
    assert stored.items() <= logged.items() if has_extra_steps else stored == logged


def assert_batch_is_true(
    batch: TransitionBatch, logs: list[dict[int, list[int]]], n_step: int, gamma: float, *, counts_lives: bool = False
) -> None:
    """Check every sampled number against a window walked by hand through what the environments logged."""
    before, after = decode(batch.obs), decode(batch.next_obs)
    for row in range(len(batch)):
        tags = np.atleast_2d(before[row])
        env, episode, step = tags[-1, :3].tolist()
        actions = logs[env][episode]
        first = spawn(env, episode, step) if counts_lives else 0
        total, discount, position, is_alive = 0.0, 1.0, step, True
        while is_alive and position < min(step + n_step, len(actions)):
            total += discount * reward(env, episode, position)
            discount *= gamma
            is_alive = not (counts_lives and is_lost(env, episode, position))
            position += 1
        if (position == length(env, episode) and is_terminated(env, episode)) or not is_alive:
            discount = 0.0
        assert batch.action[row] == actions[step]
        assert batch.reward[row] == total
        assert batch.discount[row] == discount
        seen = frames(env, episode, step, actions, len(tags), first)
        then = frames(env, episode, position, actions, len(tags), first)
        np.testing.assert_array_equal(tags, seen)
        np.testing.assert_array_equal(np.atleast_2d(after[row]), then)


def frames(env: int, episode: int, step: int, actions: list[int], stack: int, first: int) -> NDArray[np.int64]:
    """Return the tags [stack, 4] of the last frames up to a step, the first one repeated before it."""
    steps = [max(first, step - back) for back in range(stack - 1, -1, -1)]
    return np.array([[env, episode, at, actions[at - 1] if at else -1] for at in steps])
