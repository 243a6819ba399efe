"""Rewriting recorded episodes while they are read: other rewards, relabeled actions, returns to go."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from gymnasium import Space

from trainkit.buffer.recorded import Block, BlockCheck
from trainkit.core import tree
from trainkit.core.data import RecordedEpisode
from trainkit.core.errors import ConfigError

EpisodeFn = Callable[[RecordedEpisode], RecordedEpisode]


def rewritten(
    blocks: Iterable[Block],
    episode_fn: EpisodeFn | None,
    observation_space: Space[Any] | None,
    action_space: Space[Any] | None,
) -> Iterator[Block]:
    """Yield the blocks, or with `episode_fn` what it returns for each episode in them, validated.

    Raises:
        ConfigError: it raises, or its result has other shapes or types, or a value that cannot be learned from.
    """
    if episode_fn is None:
        yield from blocks
        return
    check = BlockCheck("episode_fn", observation_space, action_space, ConfigError)
    for episode in _episodes(blocks):
        try:
            changed = episode_fn(episode)
        except Exception as error:
            what = f"{type(error).__name__} for an episode of {len(episode)} steps: {error}"
            raise ConfigError(f"episode_fn raised {what}") from error
        _check_like(episode, changed)
        block = _as_block(changed)
        check.block(block, 0)
        yield block


def _episodes(blocks: Iterable[Block]) -> Iterator[RecordedEpisode]:
    """Divide consecutive rows into their episodes."""
    parts: list[tuple[Any, ...]] = []  # obs, action, reward and extras of the episode so far
    for block in blocks:
        begin = 0
        for number, last in enumerate(block.last_rows.tolist()):
            parts.append(_rows(block, begin, last + 1))
            final = tree.map_tree(lambda leaf, at=number: leaf[at : at + 1], block.last_obs)
            obs, action, reward, extras = tree.map_tree(lambda *leaves: np.concatenate(leaves), *parts)
            yield RecordedEpisode(
                obs=tree.map_tree(lambda *leaves: np.concatenate(leaves), obs, final),
                action=action,
                reward=reward,
                terminated=bool(block.terminated[last]),
                truncated=bool(block.truncated[last]),
                extras=extras,
            )
            begin, parts = last + 1, []
        if begin < len(block.reward):
            parts.append(_rows(block, begin, len(block.reward)))


def _rows(block: Block, begin: int, end: int) -> tuple[Any, ...]:
    columns = block.obs, block.action, block.reward, dict(block.extras)
    rows: tuple[Any, ...] = tree.map_tree(lambda column: column[begin:end], columns)
    return rows


def _as_block(episode: RecordedEpisode) -> Block:
    """Return the rows of one episode."""
    n_rows = len(episode)
    is_last = np.arange(n_rows) == n_rows - 1
    return Block(
        obs=tree.map_tree(lambda leaf: leaf[:-1], episode.obs),
        action=episode.action,
        reward=episode.reward,
        terminated=is_last & episode.terminated,
        truncated=is_last & episode.truncated,
        last_rows=np.array([n_rows - 1]),
        last_obs=tree.map_tree(lambda leaf: leaf[-1:], episode.obs),
        extras=episode.extras,
    )


def _check_like(episode: RecordedEpisode, changed: object) -> None:
    """Raise a `ConfigError` unless a rewritten episode has the columns of the one that was read."""
    if not isinstance(changed, RecordedEpisode):
        raise ConfigError(
            f"episode_fn must return a RecordedEpisode, got {changed!r:.80}: dataclasses.replace(episode, reward=...) "
            "makes one"
        )
    own, theirs = (
        {path: (leaf.dtype.name, leaf.shape) for path, leaf in tree.named_leaves(_columns(one))}
        for one in (episode, changed)
    )
    if own != theirs:
        path = next(path for path in {**own, **theirs} if own.get(path) != theirs.get(path))
        raise ConfigError(
            f"episode_fn must keep the columns, shapes and types of the episode: {path} is {theirs.get(path)}, "
            f"not {own.get(path)}"
        )


def _columns(episode: RecordedEpisode) -> dict[str, Any]:
    columns = {"obs": episode.obs, "action": episode.action, "reward": episode.reward, "extras": dict(episode.extras)}
    converted: dict[str, Any] = tree.map_tree(np.asarray, columns)
    return converted
