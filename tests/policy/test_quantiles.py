"""Quantiles: the loss by hand and against three loops, what minimizes it, and where fractions come from."""

import inspect
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from trainkit import ConfigError, ImplicitQuantileValue, QuantileValue
from trainkit.engine.loss import ROWS
from trainkit.policy.values import DrawnFractions, midpoints, quantile_huber


def row(*numbers: float) -> Tensor:
    """Write numbers as [1, W]."""
    return torch.tensor([numbers], dtype=torch.float32)


def loss_of(chosen: float, td_target: float, fraction: float, kappa: float) -> float:
    loss, _ = quantile_huber(row(chosen), row(td_target), row(fraction), kappa)
    return loss.item()


def triple_loop(
    chosen: list[list[float]], td_target: list[list[float]], fractions: list[list[float]], kappa: float
) -> tuple[list[float], list[float]]:
    """Return losses and priorities as equations 9 and 10 read, one number at a time."""
    losses, priorities = [], []
    for own, theirs, at in zip(chosen, td_target, fractions, strict=True):
        loss = distance = 0.0
        for theta, tau in zip(own, at, strict=True):
            mean = 0.0
            for target in theirs:
                td = target - theta
                share = abs(tau - (1.0 if td < 0 else 0.0))
                if kappa == 0:
                    size = abs(td)
                elif abs(td) <= kappa:
                    size = td * td / 2 / kappa
                else:
                    size = abs(td) - kappa / 2
                mean += share * size / len(theirs)
                distance += abs(td) / len(theirs) / len(own)
            loss += mean
        losses.append(loss)
        priorities.append(distance)
    return losses, priorities


class TestLoss:
    @pytest.mark.parametrize(
        ("td_target", "fraction", "kappa", "loss"),
        [
            (0.5, 0.9, 1.0, 0.9 * 0.125),  # 0.5**2 / 2
            (-0.5, 0.9, 1.0, 0.1 * 0.125),
            (1.0, 0.9, 1.0, 0.9 * 0.5),  # the bend itself
            (3.0, 0.9, 1.0, 0.9 * 2.5),  # 3 - 1/2
            (-3.0, 0.9, 1.0, 0.1 * 2.5),
            (1.0, 0.9, 2.0, 0.9 * 0.25),  # 1**2 / 2 / 2
            (3.0, 0.9, 2.0, 0.9 * 2.0),  # 2 * (3 - 1) / 2
            (3.0, 0.9, 0.0, 0.9 * 3.0),
            (-3.0, 0.9, 0.0, 0.1 * 3.0),
            (0.25, 0.5, 0.0, 0.125),
        ],
    )
    def test_of_one_quantile_and_one_target(self, td_target: float, fraction: float, kappa: float, loss: float) -> None:
        assert loss_of(0.0, td_target, fraction, kappa) == pytest.approx(loss)

    @pytest.mark.parametrize("kappa", [0.0, 0.5, 1.0])
    def test_is_zero_where_the_target_is_reached(self, kappa: float) -> None:
        chosen = torch.full((2, 5), 3.0, requires_grad=True)
        loss, priority = quantile_huber(chosen, torch.full((2, 7), 3.0), midpoints(5), kappa)
        loss.sum().backward()

        assert loss.tolist() == [0, 0]
        assert priority.tolist() == [0, 0]
        assert chosen.grad is not None
        assert not chosen.grad.any()

    def test_is_the_sum_over_quantiles_of_the_mean_over_targets(self) -> None:
        # Own 0 at 0.25: td 2, 0, -4 cost 0.25 * 2, 0, 0.75 * 4. Own 1 at 0.75: td 1, -1, -5 cost 0.75, 0.25, 0.25 * 5.
        loss, priority = quantile_huber(row(0, 1), row(2, 0, -4), row(0.25, 0.75), 0.0)

        assert loss.tolist() == pytest.approx([(0.5 + 3.0 + 0.75 + 0.25 + 1.25) / 3])
        assert priority.tolist() == pytest.approx([(2 + 0 + 4 + 1 + 1 + 5) / 6])

    def test_takes_fractions_of_every_row_or_one_row_of_them_for_all(self) -> None:
        chosen, td_target = row(0.0).expand(2, 1), row(1.0).expand(2, 1)

        assert quantile_huber(chosen, td_target, torch.tensor([[0.25], [0.5]]), 0.0)[0].tolist() == [0.25, 0.5]
        assert quantile_huber(chosen, td_target, torch.tensor([[0.25]]), 0.0)[0].tolist() == [0.25, 0.25]

    def test_gradient_is_the_share_within_the_line_and_shrinks_within_the_bend(self) -> None:
        # d loss / d chosen = -share * clip(td / kappa, -1, 1): -0.9 * 1, 0.1 * 1, -0.9 * 0.5
        for td_target, derivative in ((3.0, -0.9), (-3.0, 0.1), (0.5, -0.45)):
            chosen = row(0.0).requires_grad_()
            quantile_huber(chosen, row(td_target), row(0.9), 1.0)[0].sum().backward()
            assert chosen.grad is not None
            assert chosen.grad.item() == pytest.approx(derivative)

    def test_priority_carries_no_gradient(self) -> None:
        assert not quantile_huber(row(0.0).requires_grad_(), row(1.0), row(0.5), 1.0)[1].requires_grad


def pairs(chosen: Tensor, target: Tensor, fractions: Tensor, kappa: float) -> tuple[Tensor, Tensor]:
    """Compute loss and priority from the table [B, W, W'] of all pairs, in float64."""
    td = target.double().unsqueeze(1) - chosen.double().unsqueeze(2)
    size = functional.huber_loss(td, torch.zeros_like(td), reduction="none", delta=kappa) / kappa if kappa else td.abs()
    share = (fractions.double().unsqueeze(2) - (td.detach() < 0).double()).abs()
    return (share * size).mean(dim=2).sum(dim=1), td.detach().abs().mean(dim=(1, 2))


def assert_equals_pairs(chosen: Tensor, target: Tensor, fractions: Tensor, kappa: float) -> None:
    """Compare loss, priority and gradient with the pairs', relative to the largest in the batch."""
    spread = float(torch.cat([chosen, target], dim=1).double().std())
    rounding = 1e-14 * (1.0 + spread / (kappa or 1.0))  # of float64, where gradients add up to 0
    results = []
    for compute in (quantile_huber, pairs):
        leaf = chosen.clone().requires_grad_()
        loss, priority = compute(leaf, target, fractions, kappa)
        (grad,) = torch.autograd.grad(loss.sum(), leaf)
        results.append((loss, priority, grad))
    for fast, slow in zip(*results, strict=True):
        largest = float(slow.detach().abs().max())
        np.testing.assert_allclose(fast.detach(), slow.detach(), rtol=0, atol=2e-7 * largest + rounding)


KAPPAS = [0.0, 0.3, 1.0]


class TestWithoutPairs:
    """The loss is computed from sorted targets: the numbers are those of all pairs."""

    @given(
        shape=st.tuples(st.integers(1, 4), st.integers(1, 40), st.integers(1, 40)),
        kappa=st.sampled_from([*KAPPAS, 20.0]),
        scale=st.sampled_from([1e-3, 1.0, 30.0, 1e4]),
        center=st.sampled_from([0.0, -3.0, 1e4]),
        n_decimals=st.sampled_from([0, 1, 7]),
        fractions_per_row=st.booleans(),
        seed=st.integers(0, 2**20),
    )
    @example(  # differences of one unit in the last place, and a mean that float64 rounds
        shape=(1, 1, 5), kappa=0.3, scale=1e-3, center=1e4, n_decimals=0, fractions_per_row=False, seed=0
    )  # fmt: skip
    def test_equals_pairs(
        self,
        shape: tuple[int, int, int],
        kappa: float,
        scale: float,
        center: float,
        n_decimals: int,
        fractions_per_row: bool,
        seed: int,
    ) -> None:
        n_rows, width, target_width = shape
        rng = np.random.default_rng(seed)

        def numbers(n: int) -> Tensor:
            rounded = rng.normal(size=(n_rows, n)).round(n_decimals)  # with few decimals many are equal
            return torch.tensor(center + scale * rounded, dtype=torch.float32)

        fractions = torch.tensor(rng.random((n_rows, width)), dtype=torch.float32)
        at = fractions if fractions_per_row else midpoints(width)
        assert_equals_pairs(numbers(width), numbers(target_width), at, kappa)

    @pytest.mark.parametrize("kappa", KAPPAS)
    def test_one_target_far_from_the_others_costs_no_accuracy(self, kappa: float) -> None:
        chosen, target = torch.linspace(-1, 1, 32).unsqueeze(0), torch.linspace(-2, 1, 32).unsqueeze(0)
        for far in (-1e6, 1e6):
            target[0, 3] = far
            grads = []
            for compute in (quantile_huber, pairs):
                leaf = chosen.clone().requires_grad_()
                grads.append(torch.autograd.grad(compute(leaf, target, midpoints(32), kappa)[0].sum(), leaf)[0])
            np.testing.assert_allclose(*grads, rtol=0, atol=1e-7)

    def test_a_target_that_is_met_has_no_gradient_at_kappa_0(self) -> None:
        chosen = row(1, 1, 5).requires_grad_()
        quantile_huber(chosen, row(1, 2, 1, 0), row(0.25, 0.75, 0.5), 0.0)[0].sum().backward()

        # Below 1 lies 0, above it 2, of 4: (1 - f) / 4 - f / 4. All lie below 5.
        assert chosen.grad is not None
        assert chosen.grad.tolist() == [[0.125, -0.125, 0.5]]

    @pytest.mark.parametrize("kappa", KAPPAS)
    @pytest.mark.parametrize("where", ["chosen", "target"])
    @pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
    def test_a_row_with_a_non_finite_number_has_a_non_finite_loss(
        self, number: float, where: str, kappa: float
    ) -> None:
        tables = {"chosen": torch.tensor([[0.0, 1, 2], [3, 4, 5]]), "target": torch.tensor([[2.0, 1], [1, 0]])}
        tables[where][0, 1] = number
        loss, priority = quantile_huber(tables["chosen"], tables["target"], midpoints(3), kappa)

        assert torch.isfinite(loss).tolist() == [False, True]
        assert torch.isfinite(priority).tolist() == [False, True]

    def test_tensors_of_any_strides_are_taken(self) -> None:
        chosen, target = torch.linspace(-2, 2, 20).view(5, 4).T, torch.linspace(3, -2, 24).view(6, 4).T
        assert_equals_pairs(chosen, target, midpoints(5), 1.0)
        assert_equals_pairs(chosen[:, :1].expand(4, 5), target[:1].expand(4, 6), midpoints(5), 1.0)

    def test_no_table_of_all_pairs_is_built(self) -> None:
        class Largest(TorchDispatchMode):
            size = 0

            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                result = func(*args, **(kwargs or {}))
                for one in result if isinstance(result, tuple) else (result,):
                    self.size = max(self.size, one.numel())
                return result

        chosen, target = torch.zeros(2, 50, requires_grad=True), torch.ones(2, 60)
        with Largest() as largest:
            quantile_huber(chosen, target, midpoints(50), 1.0)[0].sum().backward()
        assert largest.size <= 2 * 61  # [B, W' + 1]


NUMBER = st.one_of(st.floats(-5, 5, width=32), st.sampled_from([0.0, 1.0, -1.0]))


@given(
    widths=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    n_rows=st.integers(1, 3),
    kappa=st.sampled_from([0.0, 0.5, 1.0, 2.5]),
    data=st.data(),
)
def test_loss_and_priority_equal_three_loops(
    widths: tuple[int, int], n_rows: int, kappa: float, data: st.DataObject
) -> None:
    def table(numbers: Any, width: int) -> list[list[float]]:
        one = st.lists(numbers, min_size=width, max_size=width)
        return data.draw(st.lists(one, min_size=n_rows, max_size=n_rows))

    chosen, td_target = table(NUMBER, widths[0]), table(NUMBER, widths[1])
    fractions = table(st.floats(0.0078125, 0.9921875, width=32), widths[0])
    loss, priority = quantile_huber(*(torch.tensor(numbers) for numbers in (chosen, td_target, fractions)), kappa)
    slow_loss, slow_priority = triple_loop(chosen, td_target, fractions, kappa)

    np.testing.assert_allclose(loss, slow_loss, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(priority, slow_priority, rtol=1e-4, atol=1e-5)


def descend(value: QuantileValue, goals: Tensor, n_steps: int = 500) -> list[float]:
    """Walk down the loss towards a fixed set of goals, the steps shrinking to nothing."""
    numbers = torch.full((1, value.width), 5.0, requires_grad=True)
    for i in range(n_steps):
        (derivative,) = torch.autograd.grad(value.loss(numbers, goals)[0].sum(), numbers)
        with torch.no_grad():
            numbers -= (1 - i / n_steps) * derivative
    return numbers[0].tolist()


def test_the_minimizer_is_the_quantiles_of_the_targets() -> None:
    # 0 with probability 0.3, 1 with 0.4, 10 with 0.3: cumulated 0.3, 0.7, 1; asked at 1/8, 3/8, 5/8, 7/8.
    goals = row(*[0.0] * 3, *[1.0] * 4, *[10.0] * 3)

    assert descend(QuantileValue(4, kappa=0.0), goals) == pytest.approx([0, 1, 1, 10], abs=0.02)


def test_the_minimizer_of_a_sure_return_is_that_return_everywhere() -> None:
    assert descend(QuantileValue(3), row(2.0)) == pytest.approx([2, 2, 2], abs=0.01)


class TestQuantileValue:
    def test_fractions_are_the_middles_of_equal_parts(self) -> None:
        assert midpoints(4).tolist() == [[0.125, 0.375, 0.625, 0.875]]
        assert midpoints(1).tolist() == [[0.5]]
        assert_close(QuantileValue(5).fractions, row(0.1, 0.3, 0.5, 0.7, 0.9))

    def test_loss_is_at_its_fractions(self) -> None:
        # Fractions 1/4, 3/4; td 2 for both: 0.25 * 1.5 + 0.75 * 1.5.
        assert QuantileValue(2).loss(row(0, 0), row(2, 2))[0].item() == pytest.approx(1.5)
        # td -2 for the first, 2 for the second: 0.75 * 1.5 + 0.75 * 1.5.
        assert QuantileValue(2).loss(row(4, 0), row(2, 2))[0].item() == pytest.approx(2.25)

    def test_kappa_is_handed_on(self) -> None:
        assert QuantileValue(1, kappa=0.0).loss(row(0.0), row(0.5))[0].item() == 0.25
        assert QuantileValue(1, kappa=2.0).loss(row(0.0), row(1.0))[0].item() == 0.125

    def test_mean_is_the_mean_of_the_quantiles(self) -> None:
        numbers = torch.tensor([[[0.0, 1.0, 5.0], [-1.0, 0.0, 1.0]]])  # [B, A, W]

        assert QuantileValue(3).mean(numbers).tolist() == [[2, 0]]

    def test_target_is_reward_plus_discounted_next_quantile_by_quantile(self) -> None:
        td_target = QuantileValue(2).target(
            torch.tensor([[0.0, 10], [4, 8]]), torch.tensor([1.0, 2]), torch.tensor([0.5, 0])
        )

        assert td_target.tolist() == [[1, 6], [2, 2]]

    @pytest.mark.parametrize("after", [math.inf, -math.inf, math.nan])
    def test_target_at_discount_0_is_the_reward_whatever_comes_after(self, after: float) -> None:
        td_target = QuantileValue(2).target(row(after, 1.0), torch.tensor([3.0]), torch.tensor([0.0]))

        assert td_target.tolist() == [[3, 3]]

    def test_shows_the_mean_absolute_difference_of_means(self) -> None:
        one = torch.ones(2)
        chosen, td_target = torch.tensor([[0.0, 2], [1, 1]]), torch.tensor([[2.0, 4], [0, 0]])  # means 1, 1; 3, 0
        shown = QuantileValue(2).metrics(chosen, td_target, td_target, one, one)

        assert {name: ROWS.metric(number).item() for name, number in shown.items()} == {
            "td_abs_mean": 1.5,
            "td_abs_max": 2.0,
        }

    def test_defaults_are_the_papers(self) -> None:
        value = QuantileValue()

        assert (value.width, value.kappa, value.rescale) == (200, 1.0, None)

    def test_draws_no_fractions(self) -> None:
        assert not isinstance(QuantileValue(), DrawnFractions)


class TestImplicitQuantileValue:
    value = ImplicitQuantileValue(5, target_quantiles=7, acting_quantiles=4)

    def drawn(self, rows: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
        return self.value.draw(rows, torch.Generator().manual_seed(seed))

    def test_draws_for_every_row_and_for_both_networks(self) -> None:
        mine, theirs = self.drawn()

        assert (mine.shape, theirs.shape) == ((3, 5), (3, 7))
        assert len(torch.cat([mine, theirs], dim=1).unique()) == 3 * 12

    def test_draws_uniformly_between_0_and_1(self) -> None:
        both = torch.cat(self.drawn(20_000), dim=1)

        assert ((both >= 0) & (both < 1)).all()
        counts = torch.histc(both, bins=10, min=0.0, max=1.0)
        np.testing.assert_allclose(counts, 24_000, atol=5 * math.sqrt(240_000 * 0.09))

    def test_draws_from_the_given_generator_alone(self) -> None:
        (one, _), (same, _), (other, _) = self.drawn(), self.drawn(), self.drawn(seed=1)

        assert_close(one, same, rtol=0, atol=0)
        assert (one != other).all()

    def test_acts_at_midpoints(self) -> None:
        assert self.value.acting_fractions.tolist() == [[0.125, 0.375, 0.625, 0.875]]

    def test_the_loss_is_at_the_given_fractions(self) -> None:
        loss, priority = self.value.loss(row(0, 0), row(2, 2), row(0.9, 0.3))

        assert loss.item() == pytest.approx((0.9 + 0.3) * 1.5)
        assert priority.item() == 2

    def test_defaults_are_the_papers(self) -> None:
        value = ImplicitQuantileValue()

        assert (value.width, value.target_quantiles, value.kappa) == (64, 64, 1.0)
        assert value.acting_fractions.shape == (1, 32)

    def test_is_known_by_what_it_has_on_every_python(self) -> None:
        assert isinstance(self.value, DrawnFractions)
        for name in ("acting_fractions", "draw", "loss"):  # from Python 3.12 on, isinstance looks no further than this
            inspect.getattr_static(self.value, name)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: QuantileValue(0), "QuantileValue.quantiles must be a whole number >= 1, got 0"),
        (lambda: QuantileValue(True), "QuantileValue.quantiles must be a whole number >= 1, got True"),
        (lambda: QuantileValue(kappa=-1), "QuantileValue.kappa must be in [0, inf), got -1"),
        (lambda: QuantileValue(kappa=math.inf), "QuantileValue.kappa must be in [0, inf), got inf"),
        (lambda: QuantileValue(rescale=0), "QuantileValue.rescale must be in (0, inf), got 0"),
        (lambda: ImplicitQuantileValue(0), "ImplicitQuantileValue.quantiles must be a whole number >= 1, got 0"),
        (
            lambda: ImplicitQuantileValue(target_quantiles=2.0),
            "ImplicitQuantileValue.target_quantiles must be a whole number >= 1, got 2.0",
        ),
        (
            lambda: ImplicitQuantileValue(acting_quantiles=0),
            "ImplicitQuantileValue.acting_quantiles must be a whole number >= 1, got 0",
        ),
        (lambda: ImplicitQuantileValue(rescale=-1), "ImplicitQuantileValue.rescale must be in (0, inf), got -1"),
    ],
)
def test_wrong_input_is_refused_by_name_and_rule(make: Any, message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        make()

    assert message in str(refusal.value)


def test_everything_wrong_with_implicit_quantiles_is_said_at_once() -> None:
    with pytest.raises(ConfigError) as refusal:
        ImplicitQuantileValue(0, target_quantiles=0, acting_quantiles=0, kappa=-1)

    assert str(refusal.value).count("ImplicitQuantileValue.") == 4
