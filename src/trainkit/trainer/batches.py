"""Batches of a replay buffer: drawn as the policy learns from them, and saved in checkpoints."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from trainkit.core import tree
from trainkit.core.data import SequenceBatch, TransitionBatch
from trainkit.core.errors import Checks
from trainkit.core.protocols import Learner, SampledStore, SequenceBuffer

Batch = TransitionBatch | SequenceBatch
_TREES = "obs", "next_obs", "observations"  # fields that are trees


def draw_batch(policy: Learner, buffer: SampledStore, batch_size: int | None, *, step: int) -> Batch:
    """Sample rows, of a recurrent policy sequences; None samples every row once."""
    sequences, horizon, columns = policy.sequences, policy.horizon, policy.columns
    if sequences is None:
        return buffer.sample(batch_size, horizon=horizon, step=step, columns=columns)
    assert isinstance(buffer, SequenceBuffer), "`check_sequences` rejects other buffers"
    assert batch_size is not None, "`check_sequences` rejects it"
    length, burn_in = sequences.length, sequences.burn_in
    return buffer.sample_sequences(
        batch_size, length=length, burn_in=burn_in, horizon=horizon, step=step, columns=columns
    )


def check_sequences(
    checks: Checks, policy: Learner, buffer: SampledStore, batch_size: int | None, per_round: int = 1
) -> None:
    """Note a problem if a recurrent policy cannot learn from this buffer in this way."""
    if policy.sequences is None:
        return
    kind = type(buffer).__name__
    checks.require(
        isinstance(buffer, SequenceBuffer),
        f": {type(policy).__name__} is recurrent, and {kind} has no sample_sequences: use a ReplayBuffer",
    )
    checks.require(
        batch_size is not None, ".batch_size is the number of sequences of a recurrent policy, got None: give one"
    )
    checks.require(
        per_round == 1, f".updates_per_round draws rows, and the policy is recurrent: leave it at 1, got {per_round}"
    )


def batch_to_plain(batch: Batch) -> dict[str, Any]:
    """Return a batch as values that a checkpoint can contain."""
    plain = {one.name: getattr(batch, one.name) for one in fields(batch)}
    trees = {name: tree.to_plain(tree.map_tree(np.asarray, plain[name])) for name in _TREES if name in plain}
    return plain | trees


def batch_from_plain(plain: Mapping[str, Any]) -> Batch:
    """Return the batch of a checkpoint."""
    given = {**plain, **{name: tree.from_plain(plain[name]) for name in _TREES if name in plain}}
    return SequenceBatch(**given) if "observations" in given else TransitionBatch(**given)
