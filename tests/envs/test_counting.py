"""Counts of steps beside a slow twin that adds one by one."""

import numpy as np

from trainkit.envs.counting import StepCounts


def test_counts_as_a_twin_that_adds_one_by_one() -> None:
    rng, n_envs = np.random.default_rng(0), 5
    counts, twin = StepCounts(n_envs), np.zeros(n_envs, np.int64)
    for _ in range(2_000):
        env_ids = np.arange(n_envs) if rng.random() < 0.5 else np.flatnonzero(rng.random(n_envs) < 0.5)
        if rng.random() < 0.3:
            counts.begin(env_ids)
            twin[env_ids] = 0
        elif rng.random() < 0.05:
            twin = rng.integers(0, 100, n_envs)
            counts[:] = twin
        else:
            counts.add(env_ids)
            for env_id in env_ids:
                twin[env_id] += 1
        assert counts[:].tolist() == twin.tolist()
        assert counts[env_ids].tolist() == twin[env_ids].tolist()


def test_what_was_read_stays_as_it_was() -> None:
    counts = StepCounts(2)
    before = counts[:]
    counts.add(np.arange(2))

    assert before.tolist() == [0, 0]
