"""Whether rows that were recorded elsewhere are what a policy can learn from."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from trainkit.core import tree
from trainkit.core.data import Transition
from trainkit.core.errors import ConfigError, SpaceMismatchError
from trainkit.core.protocols import Trainee
from trainkit.core.spaces import array_specs, legal_actions
from trainkit.core.structured_actions import StructuredHybrid


def refuse_spaces(trainer: str, policy: Trainee) -> None:
    """Refuse a policy that was not told its spaces, or whose parts do not fit them."""
    observation_space, action_space = policy.observation_space, policy.action_space
    if observation_space is None or action_space is None:
        raise ConfigError(
            f"{trainer}.policy must know its spaces, since no environment tells them: give {type(policy).__name__} "
            "observation_space and action_space, or make a test_collector first"
        )
    policy.check_spaces(observation_space, action_space)


def refuse_rows(trainer: str, policy: Trainee, rows: Transition) -> None:
    """Refuse rows of other spaces than the policy's, and rows that no policy should learn from.

    Raises:
        SpaceMismatchError: observations or actions are of another structure, shape, type or range.
        ConfigError: a number is not finite, or an action was illegal when it was taken.
    """
    assert policy.observation_space is not None, "refused before"
    assert policy.action_space is not None, "refused before"
    name = f"{trainer}.buffer"
    _refuse_other_obs(name, policy.observation_space, rows)
    _refuse_other_actions(name, policy.action_space, rows.action)
    for column, values in _columns(rows):
        is_fine = _is_finite(values)
        if not is_fine.all():
            row = int(np.argmin(is_fine))
            raise ConfigError(
                f"{name} must hold finite numbers, but {column} of environment {rows.env_ids[row]} is {values[row]} "
                f"in {int((~is_fine).sum())} or more rows: mend the dataset or leave them out"
            )
    legal = legal_actions(rows.obs)
    if legal is not None and not legal[np.arange(len(rows.reward)), rows.action].all():
        raise ConfigError(f"{name} has actions that were illegal by the mask of their own row: mend the dataset")


def _refuse_other_obs(name: str, space: Space[Any], rows: Transition) -> None:
    """Refuse observations that are not as the space says, leaf by leaf."""
    told = {path: (leaf.shape, leaf.dtype.name) for path, leaf in tree.named_leaves(array_specs(space))}
    for column, obs in (("obs", rows.obs), ("next_obs", rows.next_obs)):
        stored = {path: (leaf.shape[1:], leaf.dtype.name) for path, leaf in tree.named_leaves(obs)}
        if stored != told:
            raise SpaceMismatchError(
                f"{name} has {column} of {_words(stored)}, the policy's observation space {_words(told)}: "
                "make one fit the other"
            )


def _refuse_other_actions(name: str, space: Space[Any], action: NDArray[Any]) -> None:
    """Refuse actions of another shape, of another kind of number, or beyond the last."""
    is_whole = not isinstance(space, (spaces.Box, StructuredHybrid))
    fits = action.shape[1:] == space.shape and (action.dtype.kind in "iub") == is_whole
    if fits and is_whole:
        low, high = _bounds(space)
        fits = bool(((action >= low) & (action <= high)).all())
    if fits and isinstance(space, StructuredHybrid):
        fits = not space.invalid_choices(action).any()
    if not fits:
        raise SpaceMismatchError(
            f"{name} has actions {action.dtype.name}{list(action.shape[1:])} in [{action.min()}, {action.max()}], "
            f"the policy's action space is {space}: make one fit the other"
        )


def _bounds(space: Space[Any]) -> tuple[Any, Any]:
    """Return the least and the largest action; a Discrete one counts from 0, wherever the environment's does."""
    if isinstance(space, spaces.Discrete):
        return 0, space.n - 1
    return (space.start, space.start + space.nvec - 1) if isinstance(space, spaces.MultiDiscrete) else (0, 1)


def _columns(rows: Transition) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield (name, column [K, ...])."""
    for name, obs in (("obs", rows.obs), ("next_obs", rows.next_obs)):
        for path, leaf in tree.named_leaves(obs):
            yield f"{name} {path}".rstrip(), leaf
    yield "action", rows.action
    yield "reward", rows.reward
    yield from rows.extras.items()


def _is_finite(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Tell of each row whether all of it is finite [K]."""
    if values.dtype.kind not in "fc":
        return np.ones(len(values), np.bool_)
    is_fine: NDArray[np.bool_] = np.isfinite(values).reshape(len(values), -1).all(axis=1)
    return is_fine


def _words(leaves: dict[str, tuple[tuple[int, ...], str]]) -> str:
    return ", ".join(f"{path} {kind}{list(shape)}".strip() for path, (shape, kind) in leaves.items())
