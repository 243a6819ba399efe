"""The random policy: uniform, legal, from a generator of its own."""

from typing import Any

import numpy as np
import pytest
from gymnasium import Space, spaces
from numpy.typing import NDArray

from trainkit import ConfigError, RandomPolicy
from trainkit.errors import NoLegalActionError


def actions(space: Space[Any], n_rows: int, *, mask: Any = None, seed: int = 0, **options: Any) -> NDArray[Any]:
    obs: Any = np.zeros((n_rows, 2), np.float32)
    if mask is not None:
        obs = {"obs": obs, "action_mask": np.broadcast_to(np.asarray(mask), (n_rows, len(mask)))}
    return RandomPolicy(space, seed=seed).act(obs, **options).action


def test_discrete_actions_are_uniform() -> None:
    counts = np.bincount(actions(spaces.Discrete(4), 40_000), minlength=4)

    np.testing.assert_allclose(counts, 10_000, atol=5 * np.sqrt(40_000 * 3 / 16))


def test_every_row_draws_for_itself() -> None:
    assert len(set(actions(spaces.Discrete(4), 100).tolist())) == 4


@pytest.mark.parametrize("dtype", [np.int8, np.bool_, np.float32])
def test_masked_actions_are_uniform_over_the_legal_ones(dtype: Any) -> None:
    chosen = actions(spaces.Discrete(4), 30_000, mask=np.array([1, 0, 1, 1], dtype))
    counts = np.bincount(chosen, minlength=4)

    assert counts[1] == 0
    np.testing.assert_allclose(counts[[0, 2, 3]], 10_000, atol=5 * np.sqrt(30_000 * 2 / 9))


def test_explore_makes_no_difference() -> None:
    one, other = (actions(spaces.Discrete(4), 100, explore=explore) for explore in (False, True))

    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "space",
    [
        spaces.MultiDiscrete([2, 3], start=[5, -1]),
        spaces.MultiBinary(3),
        spaces.Box(-1.0, 2.0, (2,), np.float32),
        spaces.Box(np.array([-np.inf, 0.0]), np.array([np.inf, np.inf]), dtype=np.float64),
        spaces.Box(0, 255, (2,), np.uint8),
    ],
    ids=str,
)
def test_actions_of_any_space_lie_in_it(space: Space[Any]) -> None:
    chosen = actions(space, 50)

    assert chosen.shape == (50, *space.shape)
    assert all(space.contains(action) for action in chosen)


def test_the_state_is_handed_back() -> None:
    assert RandomPolicy(spaces.Discrete(2), seed=0).act(np.zeros((1, 2)), state="mine").state == "mine"


def test_the_same_seed_gives_the_same_actions_and_another_others() -> None:
    first, second, other = (actions(spaces.Discrete(4), 100, seed=seed) for seed in (1, 1, 2))

    np.testing.assert_array_equal(first, second)
    assert (first != other).any()


def test_seeding_starts_over() -> None:
    policy = RandomPolicy(spaces.Discrete(4), seed=1)
    first = policy.act(np.zeros((100, 2))).action
    second = policy.act(np.zeros((100, 2))).action
    policy.seed(1)

    np.testing.assert_array_equal(policy.act(np.zeros((100, 2))).action, first)
    assert (first != second).any()


def test_without_a_seed_two_policies_differ() -> None:
    one, other = (RandomPolicy(spaces.Discrete(4)).act(np.zeros((100, 2))).action for _ in range(2))

    assert (one != other).any()


def test_a_mask_that_allows_nothing_is_the_environments_fault() -> None:
    with pytest.raises(NoLegalActionError, match="env 0 allows no action"):
        actions(spaces.Discrete(2), 1, mask=np.zeros(2, np.int8))


def test_the_environment_that_allows_nothing_is_named() -> None:
    with pytest.raises(NoLegalActionError, match="env 7 allows no action"):
        actions(spaces.Discrete(2), 1, mask=np.zeros(2, np.int8), env_ids=np.array([7]))


def test_actions_of_a_dict_are_flat_rows() -> None:
    rows = actions(spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Discrete(3, start=5)}), 1_000)
    assert [sorted(set(column)) for column in rows.T.tolist()] == [[0, 1], [5, 6, 7]]


def test_a_space_of_no_arrays_is_refused() -> None:
    with pytest.raises(ConfigError, match="need a Discrete, MultiDiscrete, MultiBinary or Box space, got Text"):
        actions(spaces.Text(2), 1)
