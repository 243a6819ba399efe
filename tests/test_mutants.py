"""Faults a run could have outside the buffer, each with the check that must notice it (the buffer's: tests/buffer)."""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.collector import test_collector
from tests.helpers.faults import Fault, assert_noticed, replaced, rewritten
from tests.nets import test_networks
from tests.policy import test_dqn, test_dqn_update, test_exploration, test_update_result
from tests.trainer import test_offpolicy
from trainkit import DQNPolicy, EpsilonGreedy
from trainkit.collector.collect_request import EpisodeQuota
from trainkit.nets.networks import ActionHeads
from trainkit.policy.update_result import MeanMetrics
from trainkit.trainer.batches import PendingUpdates


def weights_of_one(update: Any) -> Any:
    def faulty(policy: DQNPolicy, batch: Any, *, step: int) -> Any:
        return update(policy, replace(batch, weight=np.ones_like(batch.weight)), step=step)

    return faulty


def mean_advantage_without_gradient(forward: Any) -> Any:
    def faulty(heads: ActionHeads, x: Any, *given: Any) -> Any:
        true = forward(heads, x, *given)
        if heads.state_value is None:
            return true
        sums = heads.state_value(x).view(-1, 1, heads.width) + heads.advantage(x).view(-1, heads.n_actions, heads.width)
        return true.detach() + sums - sums.detach()

    return faulty


class OneDraw:
    """A generator whose arrays are one number again and again."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def random(self, size: int) -> Any:
        return np.full(size, self._rng.random())


def one_coin(choose: Any) -> Any:
    return lambda exploration, *given, rng, **options: choose(exploration, *given, rng=OneDraw(rng), **options)


def all_before_forgotten(add_to_sums: Any) -> Any:
    def faulty(meter: MeanMetrics, *given: Any, **options: Any) -> Any:
        meter.read()
        return add_to_sums(meter, *given, **options)

    return faulty


def never_exploring(values: Any) -> Any:
    return lambda policy, obs, state, *, explore=False: values(policy, obs, state)


def any_environments_quota(_: Any) -> Any:
    def faulty(quota: EpisodeQuota, env_ids: Any) -> Any:
        for _ in env_ids:
            quota.left[quota.left.argmax()] -= 1
        return quota.unfilled(env_ids)

    return faulty


def rounded(init: Any) -> Any:
    return lambda pending, ratio: init(pending, 1 / round(1 / ratio))


MUTANTS = {
    "weights dropped from the loss": Fault(
        plant=replaced(DQNPolicy, "update", weights_of_one),
        check=lambda: test_dqn_update.TestWeights().test_multiply_huber_losses(),
    ),
    "weights dropped from the gradient": Fault(
        plant=replaced(DQNPolicy, "update", weights_of_one),
        check=lambda: test_dqn_update.TestWeights().test_multiply_each_rows_gradient(by_torch=True),
    ),
    "the mean over actions has no gradient": Fault(
        plant=replaced(ActionHeads, "forward", mean_advantage_without_gradient),
        check=lambda: test_networks.TestDueling().test_raising_one_action_lowers_the_others_advantages(),
    ),
    "one coin for the vector": Fault(
        plant=replaced(EpsilonGreedy, "choose", one_coin),
        check=test_exploration.test_every_row_has_a_coin_of_its_own,
    ),
    "only the last update's statistics": Fault(
        plant=replaced(MeanMetrics, "add_to_sums", all_before_forgotten),
        check=test_update_result.test_means_are_over_everything_added_since_the_last_read,
    ),
    "noise off while collecting": Fault(
        plant=replaced(DQNPolicy, "_values", never_exploring),
        check=lambda: test_dqn.TestNoise().test_exploring_does_draw(),
    ),
    "quota by finish order": Fault(
        plant=replaced(EpisodeQuota, "finish", any_environments_quota),
        check=test_collector.test_short_episodes_do_not_count_more_than_long_ones,
    ),
    "pending updates rounded": Fault(
        plant=replaced(PendingUpdates, "__init__", rounded),
        check=partial(test_offpolicy.test_updates_per_step_are_exact_over_the_run, 0.3, 120, 5),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_fault_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_noticed(MUTANTS[name], monkeypatch)


# ---- how a fault is planted ----

PLAIN = "class Loss:\n    def of(self, rows):\n        return rows.weight * rows.loss\n"
MOVED = """
def weighted(batch):
    per_row = [
        batch . weight  # formatted in another way, in another function, of another name
        * batch.loss
        for _ in range(1)]
    return per_row[0]
"""
TWICE = "def weighted(rows):\n    return rows.weight * rows.loss + rows.weight * rows.loss\n"


@pytest.fixture
def source(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import a module that is written like this."""
    path = tmp_path / "weighting.py"
    path.write_text(request.param)
    module = ModuleType("weighting")
    module.__file__ = str(path)
    exec(compile(request.param, str(path), "exec"), vars(module))  # noqa: S102 - our own source
    monkeypatch.setitem(sys.modules, "weighting", module)
    return module


class Rows:
    weight, loss = 3, 2


@pytest.mark.parametrize("source", [PLAIN, MOVED], indirect=True, ids=["plain", "moved"])
def test_an_expression_is_rewritten_wherever_it_is_and_for_everyone(
    source: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    weighted = source.Loss().of if hasattr(source, "Loss") else source.weighted
    assert weighted(Rows) == 6
    rewritten(source, "$rows.weight * $rows.loss", "$rows.loss")(monkeypatch)
    assert weighted(Rows) == 2
    monkeypatch.undo()
    assert weighted(Rows) == 6


@pytest.mark.parametrize("source", [PLAIN, TWICE], indirect=True, ids=["not there", "twice"])
def test_a_fault_that_has_no_place_or_two_says_so(source: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    find = "$rows.loss * $rows.weight" if hasattr(source, "Loss") else "$rows.weight * $rows.loss"
    with pytest.raises(AssertionError, match=r"must match once in weighting, matched [02] times"):
        rewritten(source, find, "$rows.loss")(monkeypatch)
