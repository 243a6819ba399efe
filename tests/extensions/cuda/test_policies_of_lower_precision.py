"""Policies that learn in bfloat16: nearly the same numbers, the same parameters."""

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import trainkit as tk
from tests.helpers import rollouts, sac
from tests.helpers.engine import torch_only
from tests.helpers.learning import (
    FOUR_NUMBERS,
    MASKED,
    PARTS,
    THREE_ACTIONS,
    Spaces,
    assert_same,
    batch_of,
    made,
    parameters_of,
)
from tests.helpers.of_extensions import learners_of_extensions

OF_EXTENSIONS = [kind for kind, space, _ in learners_of_extensions().values() if space is THREE_ACTIONS]
IMAGES = spaces.Box(0, 255, (4, 36, 38), np.uint8)


def learn(policy: Any, n_updates: int, space: Any) -> list[Any]:
    return [policy.update(batch_of(16, seed=i, space=space), step=i).read_priority() for i in range(n_updates)]


@pytest.mark.parametrize("parts", PARTS)
def test_learns_nearly_the_same_in_bf16_and_not_the_same(parts: dict[str, Any]) -> None:
    space = spaces.Box(-1.0, 1.0, (4,), np.float32)
    rough, exact = made(space, **parts, precision="bf16"), torch_only(made(space, **parts))
    for one, other in zip(learn(rough, 10, space), learn(exact, 10, space), strict=True):
        assert one.dtype == np.float32
        np.testing.assert_allclose(one, other, rtol=0.05, atol=0.05)
        assert (one != other).any()
    assert_moved_alike(rough, exact, made(space, **parts))


def learn_rollouts(kind: Any, action_space: Any, precision: Any) -> tuple[Any, list[float]]:
    """Learn from the same rollouts in a precision; return the policy and the losses."""
    policy, plain = (
        rollouts.made(kind, action_space=action_space, precision=one, engine="torch") for one in (precision, "float32")
    )
    played = [rollouts.played(plain, FOUR_NUMBERS, [20, 13, 7], seed=step) for step in range(2)]
    updates = chain.from_iterable(policy.learn(rollout, step=0, batch_size=20) for rollout in played)
    return policy, [policy.read_metrics()["loss"] for _ in updates]


@pytest.mark.parametrize("kind", [tk.PPOPolicy, tk.A2CPolicy])
@pytest.mark.parametrize("action_space", [THREE_ACTIONS, sac.PUSH], ids=["discrete", "box"])
def test_an_on_policy_learner_learns_nearly_the_same_in_bf16(kind: Any, action_space: Any) -> None:
    (rough, losses), (exact, expected) = (learn_rollouts(kind, action_space, one) for one in ("bf16", "float32"))
    np.testing.assert_allclose(losses, expected, rtol=0.02, atol=0.02)
    assert losses != expected
    assert_moved_alike(rough, exact, rollouts.made(kind, action_space=action_space))


def test_sac_learns_nearly_the_same_in_bf16() -> None:
    rough, exact = (sac.made(precision=precision, engine="torch") for precision in ("bf16", "float32"))
    for step in range(6):
        one, other = (policy.update(sac.rows(16, seed=step), step=step) for policy in (rough, exact))
        sizes, expected = one.read_priority(), other.read_priority()  # some of large numbers that cancel
        assert np.linalg.norm(sizes - expected) <= 0.02 * np.linalg.norm(expected)
        mine, theirs = rough.read_metrics(), exact.read_metrics()
        for name in ("critic_loss", "actor_loss", "temperature_loss", "entropy"):
            assert mine[name] == pytest.approx(theirs[name], rel=0.05, abs=0.05), name
        assert mine["critic_loss"] != theirs["critic_loss"]
    assert_moved_alike(rough, exact, sac.made())


def assert_moved_alike(rough: Any, exact: Any, start: Any) -> None:
    """Compare what two policies learned: in float32, and nearly the same."""
    before, mine, theirs = parameters_of(start), parameters_of(rough), parameters_of(exact)
    assert {tensor.dtype for tensor in mine.values()} == {torch.float32}
    for name, tensor in mine.items():
        far = (theirs[name] - before[name]).norm()
        assert (tensor - theirs[name]).norm() <= 0.25 * far, name


def test_acting_stays_exact() -> None:
    obs = batch_of(20, space=MASKED).obs
    one, other = (made(MASKED, precision=precision, engine="torch") for precision in ("bf16", "float32"))
    np.testing.assert_array_equal(one.action_values(obs), other.action_values(obs))


# ---- saved policies ----


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
@pytest.mark.parametrize("kind", [tk.DQNPolicy, tk.PPOPolicy, tk.SACPolicy, *OF_EXTENSIONS])
def test_a_policy_is_saved_with_its_precision(kind: Any, precision: Any, tmp_path: Path) -> None:
    at = Spaces(action_space=sac.PUSH) if kind is tk.SACPolicy else Spaces()
    policy = kind.for_envs(at, hidden=(8,), device="cpu", seed=0, precision=precision)
    loaded = tk.load_policy(policy.save(tmp_path / "policy"), device="cpu")
    assert loaded.precision == precision
    assert_same(loaded.get_weights(), policy.get_weights())


@pytest.mark.parametrize(("first", "second"), [("bf16", "float32"), ("float32", "bf16"), ("bf16", "tf32")])
def test_training_continues_in_another_precision(first: Any, second: Any) -> None:
    before, after = made(precision=first), made(precision=second)
    learn(before, 3, FOUR_NUMBERS)
    state = before.training_state()
    after.load_training_state(state)
    assert_same(after.training_state()["weights"], state["weights"])
    assert_same(after.training_state()["optimizers"], state["optimizers"])
    before.precision, before.engine = second, "torch"
    after.engine = "torch"
    assert_same(learn(before, 3, FOUR_NUMBERS), learn(after, 3, FOUR_NUMBERS))
    assert_same(before.get_weights(), after.get_weights())
