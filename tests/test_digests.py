"""Digests of training runs: the same for the same run, others for another, and what differs is named."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from tests import digests
from tests.digests import Digest, differences, digest, unordered
from tests.helpers.engine import note_numpy_passes
from trainkit import DQNPolicy

pytestmark = pytest.mark.no_cover  # runs of whole trainers, whose lines other tests cover


def test_two_runs_have_one_digest_and_another_seed_has_another() -> None:
    first, again, other = digest("prioritized-3-step"), digest("prioritized-3-step"), digest("prioritized-3-step", 2)
    assert first == again
    assert first.whole == again.whole
    different, note = differences(first, other)
    assert different
    assert note.startswith("; weights; moments; rows; statistics ")
    assert "update/loss" in note


@pytest.mark.parametrize("name", ["double-dueling-normalized", "sac-fixed-temperature", "a2c"])
def test_runs_act_and_learn_by_torch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []
    note_numpy_passes(monkeypatch, lambda: passes.append(1))
    digest(name)
    assert not passes


def test_a_change_of_the_last_bit_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    before, update = digest("dqn"), DQNPolicy.update

    def nudged(policy: Any, batch: Any, *, step: int) -> Any:
        reward = np.nextafter(batch.reward, np.float32(9.0)) if policy.n_updates >= 265 else batch.reward
        return update(policy, dataclasses.replace(batch, reward=reward), step=step)

    monkeypatch.setattr(DQNPolicy, "update", nudged)
    different, note = differences(digest("dqn"), before)
    assert different
    assert note.startswith("; weights; moments; statistics ")  # of the last updates: the rows were played before


def test_a_statistic_that_is_new_is_no_difference_and_one_that_is_gone_is() -> None:
    old = Digest(weights="1", moments="2", rows="3", statistics={"update/loss": "4", "update/lr": "5"})
    new = dataclasses.replace(old, statistics={**old.statistics, "update/q_mean": "6"})
    assert differences(old, old) == (False, "")
    assert differences(new, old) == (False, "; new statistics update/q_mean")
    assert differences(old, new) == (True, "; statistics gone update/q_mean")
    assert differences("cannot be made: no", old) == (True, "; here it cannot be made: no")


def test_names_and_order_of_arrays_do_not_count_and_shapes_do() -> None:
    one, other = np.zeros((2, 3)), np.ones(3)
    assert unordered({"a": one, "b": [other]}) == unordered([other, {"c": one}])
    assert unordered([one]) != unordered([one.T])


def test_every_algorithm_has_a_run() -> None:
    words = " ".join(digests.RUNS).split("-")
    kinds = {"dqn", "c51", "qr", "iqn", "munchausen", "rainbow", "bcq", "cql", "bc", "sac", "ppo", "a2c", "reinforce"}
    assert kinds <= set(" ".join(words).split())
