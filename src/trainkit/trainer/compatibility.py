"""Compatibility: whether policy, collectors, buffer and stored rows fit together, and a seed for each that has none."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from trainkit.buffer.storage import FrameStore
from trainkit.collector import Collector
from trainkit.core import seeding, tree
from trainkit.core.data import Transition, not_random
from trainkit.core.errors import Checks, ConfigError, SpaceMismatchError
from trainkit.core.extensions import Entry, table
from trainkit.core.names import did_you_mean
from trainkit.core.protocols import (
    Buffer,
    Dataset,
    Learner,
    OffpolicyTrainee,
    OnpolicyTrainee,
    RoundBuffer,
    Seedable,
    StepCollector,
    Trainee,
)
from trainkit.core.spaces import StructuredHybrid, array_specs, legal_actions

_log = logging.getLogger(__name__)

_TRAINEE_MEMBERS = (
    "observation_space",
    "action_space",
    "horizon",
    "columns",
    "n_updates",
    "check_divergence",
    "read_metrics",
    "training_state",
    "load_training_state",
)


# ---- the parts of any run ----


def check_parts(
    trainer: str,
    policy: Trainee,
    learning_method: str,
    collectors: Mapping[str, StepCollector | None],
    learners: Sequence[Learner],
) -> None:
    """Raise a `ConfigError` unless the policies can learn from their buffers, and all collectors have the policy."""
    for learner in learners:
        subject = f"{trainer}.policy" + (f"[{learner.name!r}]" if learner.name else "")
        methods = getattr(learner.policy, "learning_methods", {learning_method})
        missing = [name for name in (learning_method, *_TRAINEE_MEMBERS) if not hasattr(learner.policy, name)]
        if learning_method not in methods and learning_method not in missing:
            missing.insert(0, learning_method)
        if missing:
            raise ConfigError(f"{subject} must learn, but {type(learner.policy).__name__} has no {', '.join(missing)}")
    given = {name: collector for name, collector in collectors.items() if collector is not None}
    for name, collector in given.items():
        if collector.policy is not policy:
            raise ConfigError(f"{trainer}.{name} acts with another policy than the trainer's: give both the same")
    if len(given) == 2:
        train, test = ((one.envs.observation_space, one.envs.action_space) for one in given.values())
        if train != test:
            raise ConfigError(f"{trainer}: training environments have spaces {train}, evaluation's {test}")
    for learner in learners:
        _check_columns(trainer, learner.policy, learner.buffer.columns)
        _check_device(learner.policy, learner.buffer)


def _check_columns(trainer: str, policy: OffpolicyTrainee | OnpolicyTrainee, known: Sequence[str]) -> None:
    """Raise a `ConfigError` if the policy's updates read columns that the buffer does not have."""
    columns = policy.columns
    subject = f"{trainer}.policy: {type(policy).__name__}.columns"
    if isinstance(columns, str) or not all(isinstance(name, str) for name in columns):
        raise ConfigError(f"{subject} must be a sequence of names such as ('t', 'log_prob'), got {columns!r}")
    for name in columns:
        if name not in known:
            kinds = [kind.__name__ for kind in map(Entry.load, table("BUFFERS").values()) if name in kind.own_columns]
            stored = "store it by the policy's extras_spec or Collector(extra_columns=)"
            remedy = f"use a {kinds[0]}" if kinds else stored
            raise ConfigError(
                f"{subject} names {name!r}, which the buffer does not have, only {list(known)}: {remedy}"
                f"{did_you_mean(name, known)}"
            )


def _check_device(policy: object, buffer: object) -> None:
    """Raise a `ConfigError` if the buffer keeps its images on another device than the policy's."""
    store = getattr(buffer, "frames", None)
    if isinstance(store, FrameStore):
        stored, expected = str(store.device), str(getattr(policy, "device", store.device))
        if stored != expected:
            raise ConfigError(
                f"{type(buffer).__name__}.frames are on {stored}, {type(policy).__name__} is on {expected}: give both "
                "the same device"
            )


def fill_seeds(root: int, parts: Mapping[str, Seedable | None]) -> None:
    """Seed every part that has no seed from a stream of the root, by its name."""
    for name, part in parts.items():
        if part is None or part.is_seeded:
            continue
        if isinstance(part, Collector) and part.buffer is not None and part.env_step > 0 and not part.envs.is_seeded:
            _log.warning(
                "the training collector made %d steps before the trainer's seed could reach its environments: "
                "give make_envs a seed to repeat them",
                part.env_step,
            )
        part.seed(seeding.derive(root, name))


# ---- a replay buffer and how it is sampled ----


def check_replay(checks: Checks, buffer: Buffer, batch_size: int | None, refresh: object, per_round: object) -> None:
    """Note a problem if the buffer does not support the batch size or the order of updates."""
    if batch_size is None:
        checks.require(
            per_round == 1,
            " draws the batches of a round by a number of rows per update, and batch_size=None is the whole buffer: "
            "give batch_size",
        )
    elif checks.integer("batch_size", batch_size, low=1):
        checks.require(
            batch_size <= buffer.capacity,
            f".batch_size {batch_size} is larger than the buffer's capacity {buffer.capacity}: "
            "lower it or raise the capacity",
        )
    checks.one_of("refresh_priorities", refresh, ["update", "late", "round"])
    if not checks.integer("updates_per_round", per_round, low=1):
        return
    has_rounds = refresh == "round"
    checks.require(
        has_rounds == (per_round != 1),
        f".updates_per_round above 1 goes with refresh_priorities='round' and with no other, got {per_round} and "
        f"{refresh!r}: 16 is a good number",
    )
    rule = f".refresh_priorities 'late' needs a prioritized buffer, {type(buffer).__name__} is not: leave it out"
    checks.require(refresh != "late" or buffer.prioritized, rule)
    if has_rounds and not isinstance(buffer, RoundBuffer):
        name = type(buffer).__name__
        checks.require(False, f".refresh_priorities 'round' needs a buffer with sample_round, {name} has none")


def check_length(trainer: str, count: object, current: int | None, *, of: Literal["step", "episode"] = "step") -> None:
    """Raise a `ConfigError` for a length of collects; `current` is None where they are counted otherwise."""
    with Checks(trainer) as checks:
        checks.integer(f"{of}_per_collect", count, low=1)
        other = "episode" if of == "step" else "step"
        rule = f".{of}_per_collect has no effect, as collects are counted by {other}s: assign {other}_per_collect"
        checks.require(current is not None, rule)


def check_warmup(checks: Checks, policy: Trainee, warmup: object) -> None:
    """Note a problem if the warm-up cannot fill the columns that the policy stores."""
    if checks.one_of("warmup", warmup, ["policy", "random"]) and warmup == "random":
        unfilled = not_random(policy.extras_spec)
        checks.require(
            not unfilled,
            f".warmup 'random' cannot fill the columns {unfilled} that {type(policy).__name__} stores: use 'policy'",
        )


# ---- a dataset ----


def check_dataset(trainer: str, policy: Trainee, dataset: Dataset) -> None:
    """Check that a policy has spaces, and that it can learn from every stored row.

    Raises:
        SpaceMismatchError: observations or actions are of another structure, shape, type or range.
        ConfigError: a number is not finite, or an action was illegal when it was taken.
    """
    observation_space, action_space = policy.observation_space, policy.action_space
    if observation_space is None or action_space is None:
        raise ConfigError(
            f"{trainer}.policy must know its spaces, since there is no environment to read them from: give "
            f"{type(policy).__name__} observation_space and action_space, or make a test_collector first"
        )
    policy.check_spaces(observation_space, action_space)
    for rows in dataset.transitions():
        _check_rows(f"{trainer}.buffer", observation_space, action_space, rows)


def _check_rows(name: str, observation_space: Space[Any], action_space: Space[Any], rows: Transition) -> None:
    _check_observations(name, observation_space, rows)
    _check_actions(name, action_space, rows.action)
    for column, values in _columns(rows):
        is_finite = _is_finite(values)
        if not is_finite.all():
            row = int(np.argmin(is_finite))
            raise ConfigError(
                f"{name} must hold finite numbers, but {column} of environment {rows.env_ids[row]} is {values[row]} "
                f"in {int((~is_finite).sum())} or more rows: fix the dataset or leave them out"
            )
    legal = legal_actions(rows.obs)
    if legal is not None and not legal[np.arange(len(rows.reward)), rows.action].all():
        raise ConfigError(f"{name} has actions that were illegal by the mask of their own row: fix the dataset")


def _check_observations(name: str, space: Space[Any], rows: Transition) -> None:
    """Check observations against the space, leaf by leaf."""
    expected = {path: (leaf.shape, leaf.dtype.name) for path, leaf in tree.named_leaves(array_specs(space))}
    for column, obs in (("obs", rows.obs), ("next_obs", rows.next_obs)):
        stored = {path: (leaf.shape[1:], leaf.dtype.name) for path, leaf in tree.named_leaves(obs)}
        if stored != expected:
            raise SpaceMismatchError(
                f"{name} has {column} of {_words(stored)}, the policy's observation space {_words(expected)}: "
                "make one fit the other"
            )


def _check_actions(name: str, space: Space[Any], action: NDArray[Any]) -> None:
    """Check the shape, the kind of number and the range of actions."""
    is_integer = not isinstance(space, (spaces.Box, StructuredHybrid))
    fits = action.shape[1:] == space.shape and (action.dtype.kind in "iub") == is_integer
    if fits and is_integer:
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
    """Return the smallest and the largest action; stored Discrete actions count from 0, whatever the space's start."""
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
    """Return whether all of each row is finite [K]."""
    if values.dtype.kind not in "fc":
        return np.ones(len(values), np.bool_)
    is_finite: NDArray[np.bool_] = np.isfinite(values).reshape(len(values), -1).all(axis=1)
    return is_finite


def _words(leaves: dict[str, tuple[tuple[int, ...], str]]) -> str:
    return ", ".join(f"{path} {kind}{list(shape)}".strip() for path, (shape, kind) in leaves.items())
