"""Backups: who chooses the next action, who evaluates it, and that only legal ones count."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from tests.helpers.engine import torch_only
from tests.helpers.learning import MASKED, NEVER, batch_of, echo, made, objective
from trainkit import (
    CategoricalValue,
    ConfigError,
    ConservativePenalty,
    DoubleBackup,
    DQNPolicy,
    ExpectedValue,
    HLGaussValue,
    ImplicitQuantileValue,
    MaxBackup,
    MunchausenBackup,
    QuantileValue,
)
from trainkit.engine.loss import TensorBatch
from trainkit.nets import Prediction
from trainkit.policy.backups import QFunction, best_action, pick

ONLINE = [[1.0, 5.0, 2.0], [0.0, -1.0, 7.0]]  # [B, A]
TARGET = [[10.0, 20.0, 30.0], [-3.0, -1.0, -2.0]]
LEGAL = [[True, False, True], [True, True, False]]


def table(numbers: Any) -> QFunction:
    """Make a network that says the same numbers [B, A] or [B, A, W] whatever it sees."""
    tensor = torch.tensor(numbers)
    return lambda features, legal: Prediction(tensor if tensor.dim() == 3 else tensor.unsqueeze(2))


def batch(next_legal: list[list[bool]] | None = None) -> TensorBatch:
    """Make two rows of which a backup should read the next observation, its mask and the reward."""
    none, two = torch.empty(0), torch.zeros(2)
    legal = None if next_legal is None else torch.tensor(next_legal)
    return TensorBatch(none, two.long(), torch.tensor([1.0, -1.0]), two, none, two, None, legal)


def values(backup: Any, *, next_legal: list[list[bool]] | None = None) -> list[float]:
    after, _ = backup(table(ONLINE), table(TARGET), batch(next_legal), ExpectedValue())
    return after.squeeze(1).tolist()


def test_max_takes_the_targets_largest_value() -> None:
    assert values(MaxBackup()) == [30, -1]


def test_max_takes_the_largest_legal_value() -> None:
    assert values(MaxBackup(), next_legal=[[True, True, False], [False, False, True]]) == [20, -2]


def test_double_selects_by_the_online_network_and_evaluates_by_the_target() -> None:
    assert values(DoubleBackup()) == [20, -2]  # not 30 and -1, the target's own choice; not 5 and 7, online's own word


def test_double_chooses_among_legal_actions_only() -> None:
    assert values(DoubleBackup(), next_legal=LEGAL) == [30, -3]


# Over the support 0, 1: action 0 is sure of 0 for the online network, action 1 of 1; for the target it is the reverse.
SURE_0, SURE_1 = [9.0, -9.0], [-9.0, 9.0]


def distributions(backup: Any, next_legal: list[list[bool]] | None = None) -> Tensor:
    online, target = table([[SURE_0, SURE_1]] * 2), table([[SURE_1, SURE_0]] * 2)
    after, _ = backup(online, target, batch(next_legal), CategoricalValue(2, 0.0, 1.0))
    return after


def test_max_takes_the_targets_distribution_of_the_largest_mean() -> None:
    assert distributions(MaxBackup()).tolist() == [SURE_1, SURE_1]


def test_double_lets_online_means_choose_and_takes_the_targets_distribution() -> None:
    assert distributions(DoubleBackup()).tolist() == [SURE_0, SURE_0]


def test_masks_hold_for_distributions_too() -> None:
    next_legal = [[False, True], [True, False]]

    assert distributions(MaxBackup(), next_legal).tolist() == [SURE_0, SURE_1]
    assert distributions(DoubleBackup(), next_legal).tolist() == [SURE_0, SURE_1]


@pytest.mark.parametrize("backup", [MaxBackup(), DoubleBackup()])
def test_the_reward_is_left_as_it_is(backup: Any) -> None:
    _, reward = backup(table(ONLINE), table(TARGET), batch(), ExpectedValue())

    assert reward.tolist() == [1, -1]


@pytest.mark.parametrize("backup", [MaxBackup(), DoubleBackup()])
def test_networks_are_shown_the_next_observation_and_its_mask(backup: Any) -> None:
    seen: list[Any] = []

    def network(features: Any, legal: Tensor | None) -> Prediction:
        seen.append((features, legal))
        return Prediction(torch.zeros(2, 3, 1))

    rows = batch(LEGAL)._replace(obs="now", next_obs="next")
    backup(network, network, rows, ExpectedValue())

    assert [features for features, _ in seen] == ["next"] * len(seen)
    assert all(legal is rows.next_legal for _, legal in seen)
    assert seen


def test_best_action_is_the_first_of_equals() -> None:
    assert best_action(torch.tensor([[1.0, 3.0, 3.0]]), None).tolist() == [1]


def test_best_action_is_legal_even_if_all_legal_values_are_very_low() -> None:
    assert best_action(torch.tensor([[0.0, -3e38, 1.0]]), torch.tensor([[False, True, False]])).tolist() == [1]


def test_pick_takes_each_rows_own_action() -> None:
    numbers = torch.arange(12).view(2, 3, 2)  # [B, A, W]

    assert_close(pick(numbers, torch.tensor([2, 0])), torch.tensor([[4, 5], [6, 7]]))


# ---- the soft backup ----

LN3, LN4 = math.log(3), math.log(4)  # values 0 and ln 3 at temperature 1: probabilities 1/4 and 3/4


def refusing(features: Any, legal: Tensor | None) -> Prediction:
    raise AssertionError("the online network has no say")


def soft(
    backup: MunchausenBackup,
    now: list[float],
    following: Any,
    *,
    action: int = 1,
    reward: float = 0.0,
    discount: float = 1.0,
    legal: list[bool] | None = None,
    next_legal: list[bool] | None = None,
    value: Any = None,
) -> tuple[list[float], float, list[float]]:
    """Return after [W], reward and target [W] of one row; the target network says `now` here and `following` next."""
    value = ExpectedValue() if value is None else value
    say = {"now": torch.tensor([now], dtype=torch.float32), "next": torch.tensor([following], dtype=torch.float32)}
    say = {when: numbers if numbers.dim() == 3 else numbers.unsqueeze(2) for when, numbers in say.items()}
    say["now"] = say["now"].expand(-1, -1, say["next"].shape[2])
    masks = [None if mask is None else torch.tensor([mask]) for mask in (legal, next_legal)]
    one = torch.ones(1)
    rows = TensorBatch("now", torch.tensor([action]), reward * one, discount * one, "next", one, masks[0], masks[1])
    after, rewards = backup(refusing, lambda features, _: Prediction(say[features]), rows, value)
    return after[0].tolist(), rewards.item(), value.target(after, rewards, rows.discount)[0].tolist()


class TestMunchausen:
    def test_follows_the_softmax_policy_with_its_entropy(self) -> None:
        # 1/4 (0 - ln 1/4) + 3/4 (ln 3 - ln 3/4) = ln 4
        after, _, _ = soft(MunchausenBackup(1.0), [0, 0], [0, LN3])

        assert after == pytest.approx([LN4])

    def test_temperature_scales_values_and_entropy_alike(self) -> None:
        # At temperature 2 the values 0 and 2 ln 3 have the same probabilities: 2 ln 4.
        after, _, _ = soft(MunchausenBackup(2.0), [0, 0], [0, 2 * LN3])

        assert after == pytest.approx([2 * LN4])

    def test_rewards_an_action_by_the_log_of_its_probability(self) -> None:
        for action, log_policy in ((1, math.log(0.75)), (0, math.log(0.25))):
            _, reward, _ = soft(MunchausenBackup(1.0, alpha=0.5, lowest=-9.0), [0, LN3], [0, 0], action=action)
            assert reward == pytest.approx(0.5 * log_policy)

    def test_the_bonus_is_in_units_of_the_temperature_and_added_to_the_reward(self) -> None:
        _, reward, _ = soft(MunchausenBackup(2.0, alpha=0.5, lowest=-9.0), [0, 2 * LN3], [0, 0], reward=10.0)

        assert reward == pytest.approx(10 + 0.5 * 2 * math.log(0.75))

    def test_the_bonus_never_falls_below_its_lowest(self) -> None:
        # ln 1/4 = -1.39 is below -1, ln 3/4 = -0.29 is not; alpha multiplies what is left.
        received = [soft(MunchausenBackup(1.0, alpha=0.5), [0, LN3], [0, 0], action=action)[1] for action in (0, 1)]

        assert received == pytest.approx([-0.5, 0.5 * math.log(0.75)])

    def test_target_discounts_the_soft_value_by_the_discount_as_given(self) -> None:
        backup = MunchausenBackup(1.0, alpha=0.5)
        _, _, td_target = soft(backup, [0, LN3], [0, LN3], reward=2.0, discount=0.9**3)

        assert td_target == pytest.approx([2 + 0.5 * math.log(0.75) + 0.729 * LN4])

    def test_alpha_0_is_soft_q_learning_without_a_bonus(self) -> None:
        assert soft(MunchausenBackup(1.0, alpha=0.0), [0, LN3], [0, LN3], action=0, reward=3.0)[1] == 3.0

    def test_illegal_next_actions_have_no_probability(self) -> None:
        after, _, _ = soft(MunchausenBackup(1.0), [0, 0, 0], [0, 99, LN3], next_legal=[True, False, True])

        assert after == pytest.approx([LN4])

    def test_illegal_actions_take_no_probability_from_the_one_that_was_taken(self) -> None:
        backup = MunchausenBackup(1.0, alpha=1.0)
        _, reward, _ = soft(backup, [0, 99, LN3], [0, 0, 0], action=2, legal=[True, False, True])

        assert reward == pytest.approx(math.log(0.75))

    def test_the_only_legal_action_is_sure_and_earns_no_bonus(self) -> None:
        only = [False, True, False]
        after, reward, _ = soft(MunchausenBackup(1.0), [5, 1, 9], [7, 4, 2], legal=only, next_legal=only)

        assert (after, reward) == ([4], 0)

    @pytest.mark.parametrize("value", [ExpectedValue(), ExpectedValue(rescale=1e-3), QuantileValue(1)])
    def test_target_is_a_number_where_no_next_action_is_legal_after_a_termination(self, value: Any) -> None:
        none = [False, False]
        backup = MunchausenBackup(1.0, alpha=0.0)
        _, _, td_target = soft(backup, [0, LN3], [0, 0], reward=3.0, discount=0.0, next_legal=none, value=value)

        assert td_target == pytest.approx([3.0 if value.rescale is None else 1.003])

    def test_illegal_values_that_are_not_finite_do_no_harm(self) -> None:
        after, _, _ = soft(MunchausenBackup(1.0), [0, 0, 0], [0, math.inf, LN3], next_legal=[True, False, True])

        assert after == pytest.approx([LN4])

    @pytest.mark.parametrize("value", [QuantileValue(2), ImplicitQuantileValue(2)])
    def test_the_sum_is_taken_quantile_by_quantile(self, value: Any) -> None:
        # Means 0 and ln 3 make 1/4 and 3/4; of quantile w: 1/4 n_0w + 3/4 n_1w + (1/4 ln 4 + 3/4 ln 4/3).
        entropy = 0.25 * LN4 + 0.75 * math.log(4 / 3)
        after, reward, _ = soft(
            MunchausenBackup(1.0, alpha=1.0), [0, LN3], [[-1.0, 1.0], [LN3 - 2, LN3 + 2]], value=value
        )

        assert after == pytest.approx([-0.25 + 0.75 * (LN3 - 2) + entropy, 0.25 + 0.75 * (LN3 + 2) + entropy])
        assert reward == pytest.approx(math.log(0.75))

    def test_rescaled_numbers_are_softened_as_returns(self) -> None:
        eps = 1e-3

        def h(x: float) -> float:
            return math.sqrt(x + 1) - 1 + eps * x

        after, reward, td_target = soft(
            MunchausenBackup(1.0, alpha=1.0),
            [0, h(LN3)],
            [0, h(LN3)],
            reward=5.0,
            discount=0.5,
            value=ExpectedValue(rescale=eps),
        )

        assert reward == pytest.approx(5 + math.log(0.75))
        assert after == pytest.approx([h(LN4)], rel=1e-5)
        assert td_target == pytest.approx([h(5 + math.log(0.75) + 0.5 * LN4)], rel=1e-5)

    @pytest.mark.parametrize("temperature", [1e-3, 1e-6])
    def test_near_temperature_0_it_is_the_largest_value(self, temperature: float) -> None:
        after, reward, _ = soft(MunchausenBackup(temperature, alpha=0.9), [0.3, 0.4], [-2.0, 1.0])

        assert after == pytest.approx([1.0], abs=1e-5)
        assert reward == pytest.approx(0.0, abs=1e-5)  # the best action is sure

    def test_near_temperature_0_the_bonus_is_the_distance_to_the_best_action(self) -> None:
        _, reward, _ = soft(MunchausenBackup(1e-4, alpha=0.5), [0.3, 0.7], [0, 0], action=0)

        assert reward == pytest.approx(-0.5 * 0.4, abs=1e-4)

    def test_large_values_do_not_overflow(self) -> None:
        after, reward, _ = soft(MunchausenBackup(0.03), [1e6, -1e6], [1e6, -1e6], action=1)

        assert after == [1e6]
        assert reward == pytest.approx(-0.9)

    def test_defaults_are_the_papers(self) -> None:
        backup = MunchausenBackup()

        assert (backup.temperature, backup.alpha, backup.lowest) == (0.03, 0.9, -1.0)

    def test_numbers_that_are_no_returns_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="MunchausenBackup adds to returns, which the outputs of CategoricalV"):
            soft(MunchausenBackup(), [0, 0], [0, 0], value=CategoricalValue(2, 0.0, 1.0))

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"temperature": 0}, "MunchausenBackup.temperature must be in (0, inf), got 0"),
            ({"temperature": math.nan}, "MunchausenBackup.temperature must be in (0, inf), got nan"),
            ({"alpha": 1.5}, "MunchausenBackup.alpha must be in [0, 1], got 1.5"),
            ({"lowest": 0.5}, "MunchausenBackup.lowest must be in (-inf, 0], got 0.5"),
        ],
    )
    def test_wrong_input_is_refused_by_name_and_rule(self, options: Any, message: str) -> None:
        with pytest.raises(ConfigError) as refusal:
            MunchausenBackup(**options)

        assert str(refusal.value) == message


# ---- penalties ----


class TestByHand:
    def test_it_is_the_log_sum_of_all_less_the_one_taken(self) -> None:
        q = torch.tensor([[0.0, LN3], [0.0, LN3], [5.0, 5.0]])  # exp: 1 and 3
        penalty = ConservativePenalty(2.0)(q, torch.tensor([0, 1, 0]), None)
        assert_close(penalty, 2.0 * torch.tensor([math.log(4.0), math.log(4.0) - LN3, math.log(2.0)]))

    def test_illegal_actions_are_not_charged_for(self) -> None:
        q = torch.tensor([[0.0, LN3, 100.0]])
        legal = torch.tensor([[True, True, False]])
        assert_close(ConservativePenalty()(q, torch.tensor([0]), legal), torch.tensor([math.log(4.0)]))
        alone = torch.tensor([[False, True, False]])
        assert_close(ConservativePenalty()(q, torch.tensor([1]), alone), torch.tensor([0.0]))

    def test_large_values_do_not_overflow(self) -> None:
        q = torch.tensor([[1e4, 0.0]])
        assert_close(ConservativePenalty()(q, torch.tensor([1]), None), torch.tensor([1e4]))

    @pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf])
    def test_a_weight_that_cannot_be_is_refused(self, weight: float) -> None:
        with pytest.raises(ConfigError, match=r"ConservativePenalty.weight must be in \[0, inf\)"):
            ConservativePenalty(weight)


class TestInTheUpdate:
    def test_the_importance_weight_multiplies_it_too(self) -> None:
        """Values are the observation; every td_target is the chosen value, so that the penalty is all of the loss."""
        obs = np.array([[0.0, LN3, 0.0], [0.0, 0.0, 0.0]], np.float32)
        chosen: dict[str, Any] = {"action": np.array([1, 0]), "reward": np.array([LN3, 0.0], np.float32)}
        chosen |= {"discount": np.zeros(2, np.float32), "weight": np.array([0.25, 2.0], np.float32)}
        batch = batch_of(2, obs=obs, next_obs=obs, **chosen)
        policy = echo(penalty=ConservativePenalty(3.0))
        rows = policy.tensors(batch)._replace(inputs=policy.loss_noise(2))
        first, second = 3.0 * (math.log(5.0) - LN3), 3.0 * LN3
        assert_close(objective(policy.loss, rows)["loss"], torch.tensor((0.25 * first + 2.0 * second) / 2))

    def test_the_update_minimizes_the_weighted_mean_of_both(self) -> None:
        weighted, plain = (made(penalty=penalty) for penalty in (ConservativePenalty(1.5), None))
        batch = batch_of(16)
        weighted.update(batch, step=0)
        plain.update(batch, step=0)
        q = plain_values(made(), batch)
        taken = q[np.arange(16), batch.action]
        penalty = 1.5 * (np.log(np.exp(q).sum(axis=1)) - taken)
        mine, theirs = weighted.read_metrics(), plain.read_metrics()
        assert mine["loss"] == pytest.approx(theirs["loss"] + (batch.weight * penalty).mean(), rel=1e-5)
        assert mine["penalty_mean"] == pytest.approx(penalty.mean(), rel=1e-5)
        assert "penalty_mean" not in theirs

    def test_priorities_are_of_the_error_alone(self) -> None:
        batch = batch_of(8)
        mine, theirs = (torch_only(made(penalty=p)).update(batch, step=0) for p in (ConservativePenalty(9.0), None))
        np.testing.assert_array_equal(mine.read_priority(), theirs.read_priority())

    def test_masked_rows_are_charged_for_legal_actions_alone(self) -> None:
        batch = batch_of(16, space=MASKED)
        policy = made(MASKED, penalty=ConservativePenalty(1.0))
        q = plain_values(policy, batch)
        q[batch.obs["action_mask"] == 0] = -np.inf
        taken = plain_values(policy, batch)[np.arange(16), batch.action]
        policy.update(batch, step=0)
        expected = (np.log(np.exp(q).sum(axis=1)) - taken).mean()
        assert policy.read_metrics()["penalty_mean"] == pytest.approx(expected, rel=1e-5)


def plain_values(policy: DQNPolicy, batch: Any) -> np.ndarray:
    return policy.action_values(batch.obs).astype(np.float64)


VALUES = [
    pytest.param(ExpectedValue(), id="expected"),
    pytest.param(ExpectedValue("mse", rescale=1e-2), id="mse rescaled"),
    pytest.param(CategoricalValue(11, -3.0, 3.0), id="categorical"),
    pytest.param(HLGaussValue(11, -3.0, 3.0), id="hl-gauss"),
    pytest.param(QuantileValue(7), id="quantile"),
    pytest.param(ImplicitQuantileValue(5, target_quantiles=6), id="implicit"),
]


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("value", VALUES)
def test_an_action_that_is_never_taken_comes_to_be_worth_less_than_the_data(value: Any) -> None:
    """All goals are 1 whatever is done, and action 2 is never done: only the penalty speaks of it."""
    rng = np.random.default_rng(0)
    values = {}
    for weight in (0.0, 1.0):
        policy = made(value=value, penalty=ConservativePenalty(weight), lr=1e-2, target=NEVER)
        for seed in range(80):
            ends = {"reward": np.ones(32, np.float32), "discount": np.zeros(32, np.float32)}
            policy.update(batch_of(32, seed=seed, action=rng.integers(2, size=32), **ends), step=0)
        values[weight] = plain_values(policy, batch_of(64, seed=999)).mean(axis=0)
    assert values[1.0][2] < values[1.0][:2].min() - 0.5
    assert values[1.0][2] < values[0.0][2]
