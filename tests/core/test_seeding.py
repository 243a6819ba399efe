"""One root seed, many streams that do not know each other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainkit.core import seeding

names = st.lists(st.text("abc", min_size=1, max_size=3) | st.integers(0, 99), min_size=1, max_size=3).map(tuple)


@given(st.integers(0, 2**63), names, names)
def test_equal_paths_agree_and_others_differ(
    root: int, one: tuple[str | int, ...], other: tuple[str | int, ...]
) -> None:
    first, second = seeding.derive(root, *one), seeding.derive(root, *other)
    assert (first == second) == (list(map(str, one)) == list(map(str, other)))
    assert 0 <= first < 2**63
    assert first != seeding.derive(root + 1, *one)


def test_seeds_are_the_same_today_as_when_they_were_first_derived() -> None:
    # printf 1/buffer | b2sum -l 64, read little end first, without its lowest bit
    assert (
        seeding.derive(1, "buffer")
        == int.from_bytes(bytes.fromhex("b111665d3fd5fa5f"), "little") // 2
        == 3458037322953722072
    )


def test_generators_of_other_names_are_independent() -> None:
    draws = np.stack([seeding.generator(7, name).standard_normal(10_000) for name in ("envs", "buffer", "policy")])
    np.testing.assert_allclose(np.corrcoef(draws), np.eye(3), atol=0.05)
    np.testing.assert_array_equal(seeding.generator(7, "envs").random(9), seeding.generator(7, "envs").random(9))


def test_every_episode_of_every_environment_has_a_seed_of_its_own() -> None:
    seeds = {seeding.episode_seed(3, env, episode) for env in range(20) for episode in range(500)}
    assert len(seeds) == 10_000
    assert all(0 <= seed < 2**32 for seed in seeds)
    assert seeding.episode_seed(3, 1, 23) != seeding.episode_seed(3, 12, 3)


def test_fresh_roots_differ() -> None:
    roots = {seeding.fresh_root() for _ in range(100)}
    assert len(roots) == 100
    assert all(0 <= root < 2**63 for root in roots)


@pytest.mark.parametrize("root", [0, 1, 2**62])
def test_a_derived_seed_is_a_fine_root(root: int) -> None:
    child = seeding.derive(root, "envs")
    assert seeding.derive(child, "envs") != child
