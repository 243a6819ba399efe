"""What on-policy learners share: acting, dealing a rollout out in batches, what follows a row, and bad numbers."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from tests.helpers.engine import engines
from tests.helpers.learning import FOUR_NUMBERS, MASKED, assert_same, is_legal, observations, parameters_of
from tests.helpers.rollouts import PLACE, Table, ended_rows, made, played
from trainkit import A2CPolicy, Adam, ConfigError, Horizon, PPOPolicy, ReinforcePolicy
from trainkit.buffer import Rollout
from trainkit.core.errors import NoLegalActionError, SpaceMismatchError
from trainkit.engine.loss import Loss
from trainkit.errors import DivergedError
from trainkit.policy.advantages import RolloutRows

KINDS = [PPOPolicy, A2CPolicy, ReinforcePolicy]
MIXED = spaces.Dict({"where": FOUR_NUMBERS, "what": spaces.Tuple((spaces.Discrete(3), spaces.MultiBinary(2)))})


def looked_up(n_rows: int, **options: Any) -> tuple[PPOPolicy, Table]:
    """Make a policy of a table with as many places as rows, which torch calls at every update."""
    network = Table(np.zeros((n_rows, 2)), [0.0] * n_rows)
    own = {
        "action_space": spaces.Discrete(2),
        "observation_space": PLACE,
        "device": "cpu",
        "seed": 0,
        "engine": "torch",
    }
    return PPOPolicy(network, **own | options), network


def single_rows(n_rows: int, **columns: Any) -> Rollout:
    own: dict[str, Any] = {"reward": range(n_rows), "value": [0.0] * n_rows, "log_prob": [np.log(0.5)] * n_rows}
    return ended_rows(**own | {"action": [0] * n_rows} | columns)


# ---- acting ----


class TestActing:
    @pytest.mark.parametrize("kind", KINDS)
    def test_stores_the_log_probability_and_the_value_of_what_it_did(self, kind: Any) -> None:
        policy = made(kind)
        obs = observations(FOUR_NUMBERS, 20)
        output = policy.act(obs, explore=True)
        numbers, value = policy.network(torch.from_numpy(obs))
        log_prob = torch.log_softmax(numbers, dim=1)[torch.arange(20), torch.from_numpy(output.action)]
        np.testing.assert_allclose(output.extras["log_prob"], log_prob.detach().numpy(), atol=1e-6)
        np.testing.assert_allclose(output.extras["value"], value.detach().numpy(), atol=1e-6)
        for name, spec in policy.extras_spec.items():
            assert (output.extras[name].shape, output.extras[name].dtype) == ((20,), spec.dtype)

    def test_without_exploring_it_takes_the_mode_and_draws_nothing(self) -> None:
        policy = made()
        before, noise = policy.streams_state(), policy.generator.get_state()
        obs = observations(FOUR_NUMBERS, 20)
        numbers, _ = policy.network(torch.from_numpy(obs))
        np.testing.assert_array_equal(policy.act(obs).action, numbers.argmax(dim=1))
        assert_same(policy.streams_state(), before)
        policy.act(obs, explore=True)
        assert not torch.equal(policy.generator.get_state(), noise)

    @pytest.mark.parametrize("explore", [False, True])
    def test_acts_legally_and_gives_the_masked_log_probability(self, explore: bool) -> None:
        policy = made(space=MASKED)
        obs = observations(MASKED, 200)
        output = policy.act(obs, explore=explore)
        mask = obs["action_mask"]
        assert is_legal(output.action, mask)
        single = mask.sum(axis=1) == 1
        assert single.any()
        np.testing.assert_array_equal(output.extras["log_prob"][single], 0)
        assert (output.extras["log_prob"][~single] < 0).all()

    def test_an_empty_mask_is_refused(self) -> None:
        obs = observations(MASKED, 3)
        obs["action_mask"][1] = 0
        with pytest.raises(NoLegalActionError):
            made(space=MASKED).act(obs, env_ids=np.array([4, 5, 6]))

    @pytest.mark.parametrize("which", ["actor", "critic"])
    def test_an_error_of_weights_that_are_not_finite_names_environment_and_step(self, which: str) -> None:
        policy = made()
        with torch.no_grad():
            for parameter in getattr(policy.network, which).parameters():
                parameter.fill_(torch.nan)
        with pytest.raises(DivergedError, match=r"PPOPolicy gives \[.*\] for env 7 at step 55"):
            policy.act(observations(FOUR_NUMBERS, 2), step=55, env_ids=np.array([7, 9]))

    def test_the_error_names_the_environment_with_the_bad_row(self) -> None:
        obs = observations(FOUR_NUMBERS, 3)
        obs[1, 2] = np.nan
        with pytest.raises(DivergedError, match="for env 8 at step 0"):
            made().act(obs, explore=True, env_ids=np.array([7, 8, 9]))


# ---- batches ----


@pytest.mark.parametrize(
    ("n_rows", "batch_size", "sizes"),
    [
        (10, None, [10]),
        (10, 5, [5, 5]),
        (10, 4, [5, 5]),  # 2.5 batches round to 2
        (10, 3, [4, 3, 3]),
        (10, 6, [5, 5]),
        (10, 100, [10]),
        (10, 9, [10]),
        (7, 1, [1] * 7),
        (1, 1, [1]),
        (16, 3, [4, 3, 3, 3, 3]),
    ],
)
def test_every_row_is_in_one_batch_per_repeat_and_batches_are_equal_give_or_take_a_row(
    n_rows: int, batch_size: int | None, sizes: list[int]
) -> None:
    policy, network = looked_up(n_rows)
    results = list(policy.learn(single_rows(n_rows), step=0, batch_size=batch_size, repeat=3))
    assert len(results) == len(network.requested) == 3 * len(sizes) == policy.n_updates
    for i in range(3):
        batches = network.requested[i * len(sizes) : (i + 1) * len(sizes)]
        assert sorted(map(len, batches), reverse=True) == sizes
        assert sorted(row for batch in batches for row in batch) == list(range(n_rows))


def test_each_repeat_deals_the_rows_in_another_order() -> None:
    policy, network = looked_up(20)
    list(policy.learn(single_rows(20), step=0, repeat=4))
    assert len({tuple(requested) for requested in network.requested}) == 4
    assert list(range(20)) not in network.requested


@pytest.mark.parametrize("n_batches", [1, 2, 3, 7])
def test_all_of_an_epochs_batches_at_once_are_as_one_by_one(n_batches: int) -> None:
    column = torch.randn(7, generator=torch.Generator().manual_seed(0))
    rows = RolloutRows(column, None, column, column, column, 3 * column + 5, column)
    for whole, own in zip(rows.normalized_in(n_batches).split(n_batches), rows.split(n_batches), strict=True):
        expected = (own.advantage - own.advantage.mean()) / (own.advantage.std(correction=0) + 1e-8)
        torch.testing.assert_close(whole.advantage, expected, rtol=1e-6, atol=1e-6)
        assert torch.equal(whole.action, own.action)


def test_an_update_is_taken_when_requested() -> None:
    policy, _ = looked_up(4)
    updates = policy.learn(single_rows(4), step=9, batch_size=2, repeat=2)
    assert policy.n_updates == 0
    assert [policy.n_updates for _ in updates] == [1, 2, 3, 4]
    assert policy.last_step == 9


class Ratio(PPOPolicy):
    """Show how far a ratio of a batch is from 1."""

    def loss(self, rows: RolloutRows) -> Loss:
        result = super().loss(rows)
        with torch.no_grad():
            numbers, _ = self.network(rows.features)
            ratio = (self.distribution.log_prob(numbers, rows.action, rows.legal) - rows.log_prob).exp()
        return replace(result, metrics={**result.metrics, "farthest": (ratio - 1.0).abs().max()})


@pytest.mark.one_of_each
@pytest.mark.parametrize(
    ("space", "action_space"),
    [(one, spaces.Discrete(3)) for one in (FOUR_NUMBERS, MASKED, MIXED)] + [(FOUR_NUMBERS, spaces.Box(-1, 1, (2,)))],
    ids=["vector", "masked", "nested", "box"],
)
@pytest.mark.parametrize("batch_size", [1, 7, 64, None])
@pytest.mark.parametrize("n_rows", [[20, 12, 20], [50, 30, 48]], ids=["few rows", "many rows"])
@pytest.mark.parametrize("engine", engines("torch", "numpy"))
def test_the_first_batchs_ratio_is_1(
    space: Any, action_space: Any, batch_size: int | None, n_rows: list[int], engine: Any
) -> None:
    policy = made(Ratio, space, action_space, hidden=(64, 64), engine=engine)
    next(iter(policy.learn(played(policy, space, n_rows), step=0, batch_size=batch_size)))
    # the network sees other rows next to it than when it acted, which moves the last bits of a product
    assert policy.read_metrics()["farthest"] <= 1e-6


# ---- what follows a row ----


class Spy(A2CPolicy):
    """Keep what advantages were estimated from, and the rows learned from."""

    def _advantages(self, reward: Tensor, value: Tensor, next_value: Tensor, *flags: Tensor) -> Tensor:
        self.seen = (reward, value, next_value, *flags)
        return super()._advantages(reward, value, next_value, *flags)

    def loss(self, rows: RolloutRows) -> Loss:
        self.learned_from = rows
        return super().loss(rows)


def spied() -> tuple[Spy, Rollout]:
    """Learn from environment 0: rows 0, 1 truncated, row 2 cut; environment 1: row 0 terminated, row 1 cut."""
    network = Table(np.zeros((60, 2)), list(range(60)))
    parts: dict[str, Any] = {"device": "cpu", "seed": 0, "engine": "torch", "horizon": Horizon(gamma=0.5), "lam": 0.5}
    policy = Spy(network, action_space=spaces.Discrete(2), **parts)
    rollout = Rollout(
        obs=np.array([[[0], [10]], [[1], [11]], [[2], [99]]], np.float32),
        action=np.array([[0, 1], [1, 0], [0, 7]]),
        reward=np.array([[1, 10], [2, 20], [4, np.nan]], np.float32),
        terminated=np.array([[False, True], [False, False], [False, True]]),
        ended=np.array([[False, True], [True, True], [True, False]]),
        n_rows=np.array([3, 2]),
        last_rows=np.array([2, 4, 3]),
        last_obs=np.array([[40], [50], [30]], np.float32),
        extras={
            "value": np.array([[100, 110], [101, 111], [102, np.nan]], np.float32),
            "log_prob": np.zeros((3, 2), np.float32),
        },
    )
    list(policy.learn(rollout, step=0))
    return policy, rollout


class TestWhatFollows:
    def test_is_the_stored_value_within_an_episode_and_the_critics_at_its_end(self) -> None:
        policy, _ = spied()
        _, _, next_value, terminated, ended = policy.seen
        assert next_value[:, 0].tolist() == [101, 40, 50]  # the critic's value of observation i is i
        assert next_value[1, 1] == 30
        assert terminated[:2].tolist() == [[False, True], [False, False]]
        assert ended.tolist() == [[False, True], [True, True], [True, True]]  # where there is no row, too

    def test_advantages_and_returns_reach_their_rows_and_no_others(self) -> None:
        policy, _ = spied()
        rows = policy.learned_from
        # td of environment 0: 1 + 101/2 - 100, 2 + 40/2 - 101, 4 + 50/2 - 102; each next one counts a quarter
        tds = [1 + 50.5 - 100, 2 + 20 - 101, 4 + 25 - 102]
        advantages = {0: tds[0] + tds[1] / 4, 1: tds[1], 2: tds[2], 10: 10 - 110, 11: 20 + 15 - 111}
        actions = {0: 0, 1: 1, 2: 0, 10: 1, 11: 0}
        values = {0: 100, 1: 101, 2: 102, 10: 110, 11: 111}
        places = rows.features[:, 0].int().tolist()
        assert sorted(places) == [0, 1, 2, 10, 11]
        assert dict(zip(places, rows.advantage.tolist(), strict=True)) == advantages
        assert dict(zip(places, rows.action.tolist(), strict=True)) == actions
        assert dict(zip(places, rows.value.tolist(), strict=True)) == values
        returns = {place: advantages[place] + values[place] for place in advantages}
        assert dict(zip(places, rows.returns.tolist(), strict=True)) == returns

    def test_a_rollout_is_not_written_to(self) -> None:
        _, rollout = spied()
        assert rollout.extras["value"][:2].tolist() == [[100, 110], [101, 111]]
        assert rollout.reward[:2].tolist() == [[1, 10], [2, 20]]
        assert rollout.ended[2].tolist() == [True, False]


# ---- bad numbers ----


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (kind, what)
        for kind in KINDS
        for what in ("reward", "observation", "last observation", "parameters")
        if (kind, what) != (ReinforcePolicy, "last observation")  # which it does not read: nothing follows a cut
    ],
)
def test_a_loss_that_is_not_finite_is_an_error_and_moves_no_weight(kind: Any, what: str) -> None:
    policy = made(kind)
    rollout = played(policy, FOUR_NUMBERS)
    if what == "parameters":
        with torch.no_grad():
            next(policy.network.actor.parameters()).fill_(torch.nan)
    else:
        array = {"reward": rollout.reward, "observation": rollout.obs, "last observation": rollout.last_obs}[what]
        array[0] = np.nan
    before = parameters_of(policy)
    with pytest.raises(DivergedError, match=rf"{kind.__name__}: update 1 at step 5 .* was not taken"):
        list(policy.learn(rollout, step=5))
    after = parameters_of(policy)
    for name, parameter in before.items():
        torch.testing.assert_close(after[name], parameter, rtol=0, atol=0, equal_nan=True)
    assert policy.n_updates == 0


# ---- seeds ----


def test_a_seed_repeats_a_run_and_another_does_not() -> None:
    states = []
    for seed in (0, 0, 1):
        policy = made(seed=seed)
        list(policy.learn(played(policy, FOUR_NUMBERS), step=0, batch_size=4, repeat=2))
        states.append(policy.training_state())
    assert_same(states[0], states[1])
    assert not torch.equal(*(next(iter(state["weights"].values())) for state in states[1:]))


def test_a_saved_policy_continues_to_the_same_bits() -> None:
    one, two = made(seed=0), made(seed=1)
    list(one.learn(played(one, FOUR_NUMBERS), step=3, batch_size=4))
    two.load_training_state(one.training_state())
    for policy in (one, two, one, two):  # twice: in its first calls the engine of a loaded policy records them again
        list(policy.learn(played(policy, FOUR_NUMBERS, seed=5), step=6, batch_size=4))
    assert_same(one.training_state(), two.training_state())


# ---- wrong arguments ----


def test_wrong_parts_are_refused_by_name() -> None:
    network = Table(np.zeros((2, 2)), [0.0] * 2)
    parts: dict[str, Any] = {"action_space": spaces.Discrete(2), "device": "cpu"}
    with pytest.raises(ConfigError, match=r"PPOPolicy.horizon.n_step must be 1, got 3: lam says how far to look"):
        PPOPolicy(network, horizon=Horizon(3), **parts)
    with pytest.raises(SpaceMismatchError, match="no distribution of actions for Text"):
        PPOPolicy(network, action_space=spaces.Text(3), device="cpu")
    with pytest.raises(ConfigError, match=r"ActorCriticNetwork.hidden sizes must be .*, got 0"):
        made(hidden=(0,))
    with pytest.raises(ConfigError, match="unknown option 'clip_ration'"):
        made(clip_ration=0.1)


def test_spaces_the_network_cannot_see_or_act_in_are_refused() -> None:
    policy = made(observation_space=None, action_space=spaces.Discrete(3))
    with pytest.raises(SpaceMismatchError, match="PPOPolicy's network cannot take an observation of"):
        policy.check_spaces(spaces.Box(0, 1, (5,), np.float32), spaces.Discrete(3))
    wide = PPOPolicy(Table(np.zeros((1, 5)), [0.0]), action_space=spaces.Discrete(2), device="cpu", optimizer=Adam())
    with pytest.raises(
        SpaceMismatchError,
        match=r"gives {'outputs': \(1, 5\), 'value': \(1,\)}.*{'outputs': \(1, 2\)",
    ):
        wide.check_spaces(PLACE, spaces.Discrete(2))
