"""Policies by the numpy engine and by torch, which must act and learn alike."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from tests.extensions.numpy_engine.numpy_passes import note_numpy_passes
from tests.helpers.learning import (
    FOUR_NUMBERS,
    Spaces,
    assert_same,
    observations,
    parameters_of,
)
from trainkit import (
    DQNPolicy,
    Policy,
)
from trainkit.engine.device import CPU, to_device

IMAGES = spaces.Box(0, 255, (2, 40, 36), np.uint8)
CHOICES = spaces.MultiDiscrete([2, 3], start=[1, 5])


def pair(kind: Any, space: Any, action_space: Any, options: dict[str, Any]) -> tuple[Any, Any]:
    """Make equal policies for numpy and for torch, which have observed the same."""
    at = Spaces(space) if action_space is None else Spaces(space, action_space)
    own = {"hidden": (8,), "device": "cpu", "seed": 1} | options
    both = kind.for_envs(at, engine="numpy", **own), kind.for_envs(at, engine="torch", **own)
    for policy in both if options.get("normalize_obs") else ():
        policy.preprocess.observe(to_device(observations(space, 50), CPU))
        policy.preprocess.fold()
    return both


def assert_act_alike(mine: Policy, theirs: Policy, obs: Any, *, explore: bool) -> None:
    """Compare what two policies do by equal streams, and what they do it by."""
    for policy in (mine, theirs):
        policy.start_streams(5)
    one, other = mine.act(obs, explore=explore, step=10**6), theirs.act(obs, explore=explore, step=10**6)
    assert one.action.dtype == other.action.dtype
    np.testing.assert_allclose(one.action, other.action, rtol=1e-4, atol=1e-5)
    assert one.extras.keys() == other.extras.keys()
    for name, column in one.extras.items():
        assert column.dtype == other.extras[name].dtype
        np.testing.assert_allclose(column, other.extras[name], rtol=1e-3, atol=1e-4)
    if isinstance(mine, DQNPolicy):
        for policy in (mine, theirs):
            policy.start_streams(6)
        q, expected = (policy.action_values(obs, explore=explore) for policy in (mine, theirs))
        assert q.dtype == expected.dtype == np.float32
        np.testing.assert_allclose(q, expected, rtol=1e-4, atol=1e-5)
    assert_same(mine.generator.get_state(), theirs.generator.get_state())


def check_that_policies_act_alike(kind: Any, space: Any, action_space: Any, options: Any) -> None:
    mine, theirs = pair(kind, space, action_space, options)
    sizes = (5, 1, 64, 65, 5) if space is not IMAGES else (3, 1)
    for n_rows in sizes:
        obs = observations(space, n_rows, seed=n_rows)
        before = copy.deepcopy(obs)
        for explore in (False, True):
            assert_act_alike(mine, theirs, obs, explore=explore)
        assert_same(obs, before)


TWO_NUMBERS = spaces.Box(-1.0, 1.0, (2,), np.float32)


def gradients_of(policy: Policy) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}


def learn_alike(
    mine: Policy, theirs: Policy, batches: list[Any], *, rtol: float = 1e-4, atol: float = 1e-5, n_passes: int = 1
) -> None:
    """Take the same updates by numpy and by torch."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        passes: list[int] = []
        note_numpy_passes(monkeypatch, lambda: passes.append(1))
        for step, batch in enumerate(batches):
            one, other = mine.update(batch, step=step), theirs.update(batch, step=step)
            if other.priority is not None:
                np.testing.assert_allclose(one.read_priority(), other.read_priority(), rtol=2 * rtol, atol=atol)
            if step == 0:
                torch.testing.assert_close(gradients_of(mine), gradients_of(theirs), rtol=1e-4, atol=1e-6)
    assert len(passes) == n_passes * len(batches)
    torch.testing.assert_close(parameters_of(mine), parameters_of(theirs), rtol=rtol, atol=atol)
    metrics, expected = mine.read_metrics(), theirs.read_metrics()
    assert metrics == {
        name: pytest.approx(number, rel=10 * rtol, abs=atol, nan_ok=True) for name, number in expected.items()
    }


NESTED = spaces.Dict({"place": spaces.Discrete(5), "speed": FOUR_NUMBERS, "action_mask": spaces.MultiBinary(3)})
