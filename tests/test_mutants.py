"""Faults a run could have outside the buffer, each with the check that must notice it (the buffer's: tests/buffer)."""

from functools import partial

import pytest

from tests.collector import test_collector
from tests.helpers.faults import Fault, assert_noticed
from tests.policy import test_dqn, test_dqn_update, test_exploration, test_meter
from tests.policy.host import test_q_learning
from tests.trainer import test_offpolicy
from trainkit import DQNPolicy, EpsilonGreedy
from trainkit.collector.episodes import EpisodeGoal
from trainkit.policy.host.passes import HostQNetwork
from trainkit.policy.host.q_learning import HostLearner
from trainkit.policy.meter import Meter
from trainkit.trainer.intervals import Credit

MUTANTS = {
    "weights dropped": Fault(
        owner=DQNPolicy,
        function="_learn",
        old="(rows.weight * per_row).mean()",
        new="per_row.mean()",
        check=lambda: test_dqn_update.TestWeights().test_multiply_huber_losses(),
    ),
    "weights dropped by hand": Fault(
        owner=HostLearner,
        function="__call__",
        old="slope * (batch.weight / len(batch))[:, None]",
        new="slope / len(batch)",
        check=lambda: test_q_learning.test_an_update_is_torchs({}),
    ),
    "the mean over actions has no slope": Fault(
        owner=HostQNetwork,
        function="backward",
        old="slope - share * of_all[:, None]",
        new="slope",
        check=lambda: test_q_learning.test_an_update_is_torchs({"dueling": True}),
    ),
    "one coin for the vector": Fault(
        owner=EpsilonGreedy,
        function="choose",
        old="rng.random(2 * n_rows)",
        new="rng.random(2).repeat(n_rows)",
        check=test_exploration.test_every_row_has_a_coin_of_its_own,
    ),
    "only the last update's statistics": Fault(
        owner=Meter,
        function="add",
        old="self._sums.get(name, 0.0) + float(scalar)",
        new="float(scalar) * (self._count + 1)",
        check=test_meter.test_means_are_over_everything_added_since_the_last_read,
    ),
    "noise off while collecting": Fault(
        owner=DQNPolicy,
        function="action_values",
        old="if explore else None",
        new="if False else None",
        check=lambda: test_dqn.TestNoise().test_exploring_does_draw(),
    ),
    "quota by finish order": Fault(
        owner=EpisodeGoal,
        function="finish",
        old="self.quota[env_ids // self._n_agents] -= 1",
        new="for _ in env_ids: self.quota[self.quota.argmax()] -= 1",
        check=test_collector.test_short_episodes_do_not_count_more_than_long_ones,
    ),
    "credit rounded": Fault(
        owner=Credit,
        function="add",
        old="self._n_steps += n_steps",
        new="self._n_steps += round(n_steps * self._updates / self._per_steps) * self._per_steps // self._updates",
        check=partial(test_offpolicy.test_updates_per_step_are_exact_over_the_run, 0.3, 300, 5),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_fault_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_noticed(MUTANTS[name], monkeypatch)
