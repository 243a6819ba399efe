"""Digests of training runs: the same for the same run, others for another, and what differs is named."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from tests.digests.comparison import NOT_THERE, differences
from tests.digests.outcome import Digest, unordered
from tests.digests.runs import RUNS
from tests.extensions.numpy_engine.numpy_passes import note_numpy_passes
from trainkit import DQNPolicy

pytestmark = pytest.mark.no_cover  # runs of whole trainers, whose lines other tests cover

BY_TORCH = "double-dueling-normalized", "sac-fixed-temperature", "a2c", "r2d2", "two-q-learners"


def digest(name: str, seed: int = 1) -> Digest:
    return RUNS[name].play(seed).digest()


def test_two_runs_have_one_digest_and_another_seed_has_another() -> None:
    first, again, other = digest("prioritized-3-step"), digest("prioritized-3-step"), digest("prioritized-3-step", 2)
    assert first == again
    assert first.whole == again.whole
    different, note = differences(first, other)
    assert different
    assert note.startswith("; weights; moments; rows; statistics ")
    assert "update/loss" in note


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_the_same_twice(name: str) -> None:
    assert differences(digest(name), digest(name)) == (False, "")


RESUMED = "numpy-rainbow", "sac-lstm", "ppo-box-normalized", "dqn-overlap", "ppo-simulator", "cql-mixed-prioritized"


def resumable(name: str) -> Any:
    """Return a case that is slow but for a sample."""
    return pytest.param(name, marks=[] if name in RESUMED else [pytest.mark.slow])


@pytest.mark.parametrize("name", [resumable(name) for name in RUNS])
def test_a_run_that_is_resumed_in_the_middle_has_the_digest_of_the_whole(name: str) -> None:
    assert differences(*RUNS[name].resumed_and_whole()) == (False, "")


@pytest.mark.parametrize("name", BY_TORCH)
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
    assert differences("cannot be made: no", old) == (True, "; here: cannot be made: no")


def test_a_renamed_statistic_is_compared_under_its_new_name() -> None:
    old = Digest(weights="1", moments="2", rows="3", statistics={"update/loss": "4"})
    new = dataclasses.replace(old, statistics={"update/td_loss": "4"})
    assert differences(new, old, {"update/loss": "update/td_loss"}) == (False, "")
    other = dataclasses.replace(old, statistics={"update/td_loss": "5"})
    assert differences(other, old, {"update/loss": "update/td_loss"}) == (True, "; statistics update/td_loss")


def test_a_run_that_is_new_is_no_difference_and_one_that_is_gone_is() -> None:
    one = Digest(weights="1", moments="2", rows="3", statistics={})
    assert differences(one, NOT_THERE) == (False, f"; there: {NOT_THERE}")
    assert differences(NOT_THERE, one) == (True, f"; here: {NOT_THERE}")


def test_names_and_order_of_arrays_do_not_count_and_shapes_do() -> None:
    one, other = np.zeros((2, 3)), np.ones(3)
    assert unordered({"a": one, "b": [other]}) == unordered([other, {"c": one}])
    assert unordered([one]) != unordered([one.T])


def test_every_algorithm_and_every_way_to_train_has_a_run() -> None:
    words = set(" ".join(RUNS).replace("-", " ").split())
    algorithms = "dqn c51 qr iqn munchausen rainbow drqn r2d2 vdn bcq cql bc sac ppo mappo a2c reinforce"
    ways = "numpy lstm gru transformer self turns two simulator overlap rounds late async actors fragments mixed"
    spaces = "masks multi box nested hybrid grid stack processors"
    assert set(f"{algorithms} {ways} {spaces}".split()) <= words
