"""The conservative penalty: by hand, with masks and weights, on every value part, and what it does to the unseen."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests.helpers.engine import torch_only
from tests.helpers.learning import MASKED, NEVER, batch_of, echo, made
from trainkit import (
    CategoricalValue,
    ConfigError,
    ConservativePenalty,
    DQNPolicy,
    ExpectedValue,
    HLGaussValue,
    ImplicitQuantileValue,
    QuantileValue,
)
from trainkit.engine.loss import objective

LN3 = math.log(3.0)


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
        rows = policy.tensors(batch)._replace(inputs=policy.loss_inputs(2, step=0))
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
