"""Returns of any size: h and its inverse by hand, and every value of returns that is learned through them."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from trainkit import ConfigError, ExpectedValue, ImplicitQuantileValue, QuantileValue
from trainkit.policy.values import squash, unsquash

EPS = 1e-3


def h(x: float, eps: float = EPS) -> float:
    """Return h(x) as Pohlen et al. (2018) write it, in float64."""
    return math.copysign(math.sqrt(abs(x) + 1) - 1, x) + eps * x


def doubles(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


@pytest.mark.parametrize("eps", [1e-3, 1e-2, 0.5])
def test_h_by_hand(eps: float) -> None:
    x = doubles(0, 3, -3, 8, -8, 99, -99)  # roots of 1, 4, 4, 9, 9, 100, 100

    assert_close(squash(x, eps), doubles(0, 1, -1, 2, -2, 9, -9) + eps * x)


@pytest.mark.parametrize("eps", [1e-3, 1e-2, 0.5])
def test_the_inverse_by_hand(eps: float) -> None:
    y = doubles(0, 1 + 3 * eps, -1 - 3 * eps, 2 + 8 * eps, -2 - 8 * eps, 9 + 99 * eps)

    assert_close(unsquash(y, eps), doubles(0, 3, -3, 8, -8, 99), rtol=1e-9, atol=1e-9)


@given(size=st.floats(-6, 6), sign=st.sampled_from([-1.0, 1.0]), eps=st.sampled_from([1e-3, 1e-2, 1.0]))
def test_one_undoes_the_other_at_any_size_in_float64(size: float, sign: float, eps: float) -> None:
    x = doubles(sign * 10.0**size)

    assert_close(squash(x, eps).item(), h(x.item(), eps), rtol=1e-6, atol=0)
    assert_close(unsquash(squash(x, eps), eps), x, rtol=1e-5, atol=0)


@given(size=st.floats(-6, 6), sign=st.sampled_from([-1.0, 1.0]), eps=st.sampled_from([1e-3, 1e-2, 1.0]))
def test_one_undoes_the_other_at_any_size_in_float32(size: float, sign: float, eps: float) -> None:
    x = torch.tensor([sign * 10.0**size])

    assert_close(squash(x, eps).item(), h(x.item(), eps), rtol=1e-5, atol=0)
    assert_close(unsquash(squash(x, eps), eps), x, rtol=1e-5, atol=0)


def test_both_grow_and_are_odd() -> None:
    x = torch.logspace(-6, 6, 400, dtype=torch.float64)
    for way in (squash, unsquash):
        assert (way(x, EPS).diff() > 0).all()
        assert_close(way(-x, EPS), -way(x, EPS), rtol=0, atol=0)


class TestExpectedValue:
    value = ExpectedValue(rescale=EPS)

    def test_target_is_h_of_the_return_in_its_own_units(self) -> None:
        # h^-1(h(8)) = 8: rewards 2 and -1, discounts 0.5 and 0.25 make 6 and 1.
        after = torch.tensor([[h(8.0)], [h(8.0)]])
        td_target = self.value.target(after, torch.tensor([2.0, -1.0]), torch.tensor([0.5, 0.25]))

        assert_close(td_target, torch.tensor([[h(6.0)], [h(1.0)]]), rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("after", [math.inf, -math.inf, math.nan, 3e38])
    def test_target_at_discount_0_is_h_of_the_reward_whatever_comes_after(self, after: float) -> None:
        td_target = self.value.target(torch.tensor([[after]]), torch.tensor([3.0]), torch.tensor([0.0]))

        assert td_target.item() == pytest.approx(1.003)

    def test_mean_is_in_units_of_return(self) -> None:
        numbers = torch.tensor([[[1.003], [-2.008]]])  # [B, A, W]

        assert_close(self.value.mean(numbers), torch.tensor([[3.0, -8.0]]), rtol=1e-5, atol=1e-5)

    def test_loss_and_priority_are_between_numbers(self) -> None:
        loss, priority = self.value.loss(torch.tensor([[0.0]]), torch.tensor([[0.5]]))

        assert (loss.item(), priority.item()) == (0.125, 0.5)

    def test_shown_differences_are_in_units_of_return(self) -> None:
        one = torch.ones(1)
        chosen, td_target = torch.tensor([[1.003]]), torch.tensor([[2.008]])  # 3 and 8

        assert self.value.metrics(chosen, td_target, td_target, one, one)["td_abs_mean"].item() == pytest.approx(
            5, rel=1e-4
        )


@pytest.mark.parametrize("value", [QuantileValue(2, rescale=EPS), ImplicitQuantileValue(2, rescale=EPS)])
class TestQuantiles:
    def test_mean_is_of_the_returns_and_not_of_the_numbers(self, value: Any) -> None:
        numbers = torch.tensor([[[0.0, h(8.0)]]])  # returns 0 and 8

        assert value.mean(numbers).item() == pytest.approx(4.0, rel=1e-4)

    def test_target_is_taken_quantile_by_quantile(self, value: Any) -> None:
        td_target = value.target(torch.tensor([[h(-3.0), h(99.0)]]), torch.tensor([1.0]), torch.tensor([0.5]))

        assert_close(td_target, torch.tensor([[h(-0.5), h(50.5)]]), rtol=1e-4, atol=1e-5)


def test_large_and_small_returns_are_printed_distinctly() -> None:
    value = ExpectedValue(rescale=EPS)
    reward = torch.tensor([1e6, 1e-3])
    td_target = value.target(torch.zeros(2, 1), reward, torch.ones(2))

    assert td_target[0].item() == pytest.approx(math.sqrt(1e6 + 1) - 1 + 1000)
    np.testing.assert_allclose(value.mean(td_target), reward, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("rescale", [0, -1e-3, math.inf, math.nan, True, "1e-3"])
def test_a_rescale_that_cannot_work_is_refused(rescale: Any) -> None:
    with pytest.raises(ConfigError) as refusal:
        ExpectedValue(rescale=rescale)

    assert f"ExpectedValue.rescale must be in (0, inf), got {rescale!r}" in str(refusal.value)
