"""Value parts: losses, projection and priorities against hand-worked numbers and a slow algorithm 1."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from torch import Tensor
from torch.testing import assert_close

from tests.helpers.learning import algorithm_1
from trainkit import CategoricalValue, ConfigError, ExpectedValue
from trainkit.engine.loss import ROWS


def column(*numbers: float) -> Tensor:
    """Write numbers as [B, 1]."""
    return torch.tensor(numbers).unsqueeze(1)


def logits(*rows: list[float]) -> Tensor:
    """Write probabilities [B, W] as logits."""
    return torch.tensor(rows).log()


def certain(atom: int, atoms: int) -> Tensor:
    """Write [1, W] logits of a return that is sure."""
    return torch.nn.functional.one_hot(torch.tensor([atom]), atoms).float().log().clamp(min=-1e4)


class TestExpectedValue:
    def test_huber_is_half_the_square_up_to_delta_and_a_line_beyond(self) -> None:
        loss, priority = ExpectedValue("huber").loss(column(0.5, 3.0, 1.0, 0.0), column(1.0, 1.0, 2.0, -10.0))

        assert_close(loss, torch.tensor([0.125, 1.5, 0.5, 9.5]))  # td 0.5, -2, 1, -10
        assert_close(priority, torch.tensor([0.5, 2.0, 1.0, 10.0]))

    def test_huber_bends_at_delta(self) -> None:
        loss, _ = ExpectedValue("huber", delta=2.0).loss(column(0.0, 0.0), column(1.5, 3.0))

        assert_close(loss, torch.tensor([1.125, 4.0]))  # 1.5**2 / 2, 2 * (3 - 1)

    def test_mse_is_the_whole_square(self) -> None:
        loss, priority = ExpectedValue("mse").loss(column(0.5, 3.0), column(1.0, 0.0))

        assert_close(loss, torch.tensor([0.25, 9.0]))
        assert_close(priority, torch.tensor([0.5, 3.0]))

    def test_huber_is_the_default(self) -> None:
        loss, _ = ExpectedValue().loss(column(0.0), column(10.0))

        assert loss.item() == 9.5

    def test_target_is_reward_plus_discounted_next_value(self) -> None:
        td_target = ExpectedValue().target(column(10.0, -4.0), torch.tensor([1.0, 2.0]), torch.tensor([0.9, 0.25]))

        assert_close(td_target, column(10.0, 1.0))

    @pytest.mark.parametrize("after", [math.inf, -math.inf, math.nan, 1e38])
    def test_target_at_discount_0_is_the_reward_whatever_comes_after(self, after: float) -> None:
        td_target = ExpectedValue().target(column(after), torch.tensor([3.0]), torch.tensor([0.0]))

        assert td_target.item() == 3.0

    def test_mean_is_the_number_itself(self) -> None:
        numbers = torch.arange(6.0).view(2, 3, 1)

        assert_close(ExpectedValue().mean(numbers), torch.tensor([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]))

    def test_priority_carries_no_gradient(self) -> None:
        chosen = column(1.0).requires_grad_()

        assert not ExpectedValue().loss(chosen, column(0.0))[1].requires_grad

    def test_shows_the_mean_absolute_td(self) -> None:
        shown = ExpectedValue().metrics(column(1.0, 2.0), column(0.0, 5.0), column(0, 0), torch.ones(2), torch.ones(2))

        assert {name: ROWS.metric(value).item() for name, value in shown.items()} == {
            "td_abs_mean": 2.0,
            "td_abs_max": 3.0,
        }


class TestProjection:
    """The support is 0, 1, 2, 3, 4, so a return's place among the atoms is the return itself."""

    value = CategoricalValue(5, 0.0, 4.0)

    def target(self, after: Tensor, reward: float, discount: float) -> list[float]:
        rewards, discounts = torch.full((len(after),), reward), torch.full((len(after),), discount)
        return [round(mass, 6) for mass in self.value.target(after, rewards, discounts)[0].tolist()]

    def test_gives_a_return_on_an_atom_all_mass_there(self) -> None:
        assert self.target(certain(3, 5), 0.5, 0.5) == [0, 0, 1, 0, 0]  # 0.5 + 0.5 * 3 = 2

    def test_splits_a_return_between_its_neighbours_by_nearness(self) -> None:
        assert self.target(certain(3, 5), 0.25, 1.0) == [0, 0, 0, 0.75, 0.25]  # 3.25

    def test_clips_above_to_the_last_atom(self) -> None:
        assert self.target(certain(3, 5), 1.5, 1.0) == [0, 0, 0, 0, 1]

    def test_clips_below_to_the_first_atom(self) -> None:
        assert self.target(certain(1, 5), -7.0, 1.0) == [1, 0, 0, 0, 0]

    def test_reaches_both_ends_exactly(self) -> None:
        assert self.target(certain(0, 5), 0.0, 1.0) == [1, 0, 0, 0, 0]
        assert self.target(certain(4, 5), 0.0, 1.0) == [0, 0, 0, 0, 1]

    def test_puts_all_mass_at_the_reward_after_a_termination(self) -> None:
        assert self.target(logits([0.1, 0.2, 0.3, 0.2, 0.2]), 1.25, 0.0) == [0, 0.75, 0.25, 0, 0]

    def test_adds_up_the_shares_of_many_atoms(self) -> None:
        # Returns 0.5, 1, 1.5, 2, 2.5 with masses 0.2, 0.4, 0.2, 0.1, 0.1:
        # atom 0 gets 0.1, atom 1 0.1 + 0.4 + 0.1, atom 2 0.1 + 0.1 + 0.05, atom 3 0.05.
        assert self.target(logits([0.2, 0.4, 0.2, 0.1, 0.1]), 0.5, 0.5) == [0.1, 0.6, 0.25, 0.05, 0]

    def test_moves_every_row_by_its_own_reward_and_discount(self) -> None:
        after = certain(2, 5).expand(3, 5)
        td_target = self.value.target(after, torch.tensor([1.0, 0.0, 2.5]), torch.tensor([1.0, 0.5, 0.0]))

        assert_close(td_target, torch.tensor([[0, 0, 0, 1, 0], [0, 1, 0, 0, 0], [0, 0, 0.5, 0.5, 0]]).float())

    @pytest.mark.parametrize("after", [math.inf, -math.inf, math.nan])
    def test_ignores_what_comes_after_a_termination_even_if_it_is_not_finite(self, after: float) -> None:
        assert self.target(torch.full((1, 5), after), 3.0, 0.0) == [0, 0, 0, 1, 0]

    @pytest.mark.parametrize("atoms", [2, 11, 49, 51, 101])
    @pytest.mark.parametrize("v_max", [0.1, 0.7, 1.1, 10.0, 99.9])
    def test_keeps_all_mass_when_rounding_would_go_past_the_last_atom(self, atoms: int, v_max: float) -> None:
        value = CategoricalValue(atoms, -v_max / 3, v_max)
        after = torch.linspace(-1, 1, atoms).expand(4, atoms)
        td_target = value.target(after, torch.tensor([v_max, 0.0, 1e6, -1e6]), torch.tensor([0.0, 1.0, 1.0, 1.0]))

        assert (td_target >= 0).all()
        assert_close(td_target.sum(dim=1), torch.ones(4))
        assert_close(td_target[:, -1], torch.tensor([1.0, after.softmax(1)[0, -1].item(), 1.0, 0.0]), rtol=0, atol=2e-5)
        assert_close(td_target[3, 0].item(), 1.0)


@given(
    atoms=st.integers(2, 21),
    v_min=st.floats(-20, 20),
    width=st.floats(0.5, 40),
    rewards=st.lists(st.one_of(st.floats(-30, 30), st.sampled_from([0.0, 1.0, -1.0])), min_size=1, max_size=4),
    discount=st.sampled_from([0.0, 0.5, 0.9, 0.99**3, 1.0]),
    seed=st.integers(0, 1000),
)
def test_projection_equals_algorithm_1(
    atoms: int, v_min: float, width: float, rewards: list[float], discount: float, seed: int
) -> None:
    value = CategoricalValue(atoms, v_min, v_min + width)
    after = torch.from_numpy(np.random.default_rng(seed).normal(0, 2, (len(rewards), atoms)).astype(np.float32))

    td_target = value.target(after, torch.tensor(rewards), torch.full((len(rewards),), discount))

    support = np.linspace(v_min, v_min + width, atoms)
    slow = [
        algorithm_1(p, support, reward, discount) for p, reward in zip(after.double().softmax(1), rewards, strict=True)
    ]
    assert_allclose(td_target.numpy(), slow, rtol=0, atol=2e-4)  # float32 knows an atom's place to about 1e-5 here


class TestCategoricalLoss:
    def test_is_the_cross_entropy_to_the_target(self) -> None:
        td_target = torch.tensor([[1.0, 0.0], [0.25, 0.75]])
        loss, _ = CategoricalValue(2, 0.0, 1.0).loss(logits([0.5, 0.5], [0.25, 0.75]), td_target)

        assert_close(loss, torch.tensor([math.log(2), -0.25 * math.log(0.25) - 0.75 * math.log(0.75)]))

    def test_has_the_gradient_softmax_minus_target(self) -> None:
        chosen = logits([0.2, 0.3, 0.5]).requires_grad_()
        loss, _ = CategoricalValue(3, 0.0, 1.0).loss(chosen, torch.tensor([[0.6, 0.4, 0.0]]))
        loss.sum().backward()

        assert chosen.grad is not None
        assert_close(chosen.grad, torch.tensor([[-0.4, -0.1, 0.5]]))

    def test_priority_is_the_divergence_from_the_target(self) -> None:
        td_target = torch.tensor([[1.0, 0.0], [0.25, 0.75]])
        _, priority = CategoricalValue(2, 0.0, 1.0).loss(logits([0.5, 0.5], [0.5, 0.5]), td_target)

        assert_close(priority, torch.tensor([math.log(2), 0.25 * math.log(0.5) + 0.75 * math.log(1.5)]))

    def test_priority_vanishes_at_the_optimum_and_is_never_negative(self) -> None:
        generator = torch.Generator().manual_seed(0)
        chosen = torch.randn(1000, 11, generator=generator)
        _, priority = CategoricalValue(11, 0.0, 1.0).loss(chosen, chosen.softmax(dim=1))

        assert_close(priority, torch.zeros(1000), rtol=0, atol=1e-6)
        assert (priority >= 0).all()

    def test_priority_on_request_is_the_cross_entropy_which_stays_at_the_optimum(self) -> None:
        loss, priority = CategoricalValue(2, 0.0, 1.0, priority="ce").loss(
            logits([0.5, 0.5]), torch.tensor([[0.5, 0.5]])
        )

        assert_close(priority, torch.tensor([math.log(2)]))
        assert_close(loss, priority)

    def test_priority_carries_no_gradient(self) -> None:
        chosen = logits([0.5, 0.5]).requires_grad_()

        assert not CategoricalValue(2, 0.0, 1.0).loss(chosen, torch.tensor([[1.0, 0.0]]))[1].requires_grad

    def test_stays_finite_for_a_target_the_network_thinks_impossible(self) -> None:
        loss, priority = CategoricalValue(2, 0.0, 1.0).loss(torch.tensor([[1e4, -1e4]]), torch.tensor([[0.0, 1.0]]))

        assert_close(loss, torch.tensor([2e4]))
        assert_close(priority, torch.tensor([2e4]))


class TestCategoricalMeans:
    def test_mean_is_the_expected_atom(self) -> None:
        numbers = logits([0.25, 0.75], [1 / 2, 1 / 2]).view(1, 2, 2)  # [B, A, W]

        assert_close(CategoricalValue(2, 0.0, 4.0).mean(numbers), torch.tensor([[3.0, 2.0]]))

    def test_support_is_even_and_reaches_both_ends(self) -> None:
        assert CategoricalValue(5, -1.0, 1.0).support.tolist() == [-1.0, -0.5, 0.0, 0.5, 1.0]

    def test_default_is_an_automatic_support_of_the_papers_51_returns(self) -> None:
        assert CategoricalValue().arguments() == {"atoms": 51, "v_min": None, "v_max": None, "priority": "kl"}

    @pytest.mark.parametrize(
        ("reward", "discount", "share"),
        [(0.5, 1.0, 0.25), (-0.5, 1.0, 0.5), (0.0, 1.0, 0.0), (1.5, 1.0, 0.5), (2.5, 0.0, 1.0), (2.0, 0.0, 0.0)],
    )
    def test_clipped_share_is_the_mass_moved_beyond_the_support(
        self, reward: float, discount: float, share: float
    ) -> None:
        after = logits([0.5, 0.25, 0.25])  # on 0, 1, 2
        shown = CategoricalValue(3, 0.0, 2.0).metrics(
            after, after.exp(), after, torch.tensor([reward]), torch.tensor([discount])
        )

        assert shown["clipped_share"].item() == pytest.approx(share)

    @pytest.mark.parametrize("sign", [1, -1])
    def test_clipped_share_is_none_where_only_rounding_goes_beyond(self, sign: int) -> None:
        bound = 0.3 / (1 - 0.97)  # of returns, when rewards are at most 0.3: in float32, 0.3 + 0.97 * 10 > 10
        after = torch.zeros(1, 51)
        shown = CategoricalValue(51, -bound, bound).metrics(
            after, after.softmax(1), after, torch.tensor([0.3 * sign]), torch.tensor([0.97])
        )

        assert shown["clipped_share"].item() == 0.0

    def test_clipped_share_ignores_what_comes_after_a_termination(self) -> None:
        after = torch.full((1, 3), math.nan)
        td_target = torch.tensor([[0.0, 1.0, 0.0]])
        shown = CategoricalValue(3, 0.0, 2.0).metrics(td_target, td_target, after, torch.ones(1), torch.zeros(1))

        assert shown["clipped_share"].item() == 0.0

    def test_td_abs_mean_is_of_the_means(self) -> None:
        chosen, td_target = logits([0.25, 0.75], [0.5, 0.5]), torch.tensor([[0.0, 1.0], [1.0, 0.0]])  # means 3, 2; 4, 0
        shown = CategoricalValue(2, 0.0, 4.0).metrics(chosen, td_target, chosen, torch.zeros(2), torch.ones(2))

        assert ROWS.metric(shown["td_abs_mean"]).item() == pytest.approx(1.5)
        assert ROWS.metric(shown["td_abs_max"]).item() == pytest.approx(2.0)

    def test_value_entropy_is_that_of_the_predicted_distribution_in_nats(self) -> None:
        chosen = torch.tensor([[0.0, 0.0, 0.0], [0.0, math.log(3.0), -200.0]])  # uniform; 1/4, 3/4 and next to 0
        shown = CategoricalValue(3, 0.0, 2.0).metrics(chosen, chosen, chosen, torch.zeros(2), torch.ones(2))

        second = 0.25 * math.log(4.0) + 0.75 * math.log(4.0 / 3.0)
        assert ROWS.metric(shown["value_entropy"]).item() == pytest.approx((math.log(3.0) + second) / 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: ExpectedValue("hubert"),
            "loss must be one of ['huber', 'mse', 'half_mse'], got 'hubert', did you",
        ),
        (lambda: ExpectedValue(delta=0), "ExpectedValue.delta must be in (0, inf), got 0"),
        (lambda: ExpectedValue(delta=math.nan), "ExpectedValue.delta must be in (0, inf), got nan"),
        (lambda: CategoricalValue(1), "CategoricalValue.atoms must be a whole number >= 2, got 1"),
        (lambda: CategoricalValue(51.0), "CategoricalValue.atoms must be a whole number >= 2, got 51.0"),
        (lambda: CategoricalValue(True), "CategoricalValue.atoms must be a whole number >= 2, got True"),
        (lambda: CategoricalValue(5, 1, 1), "CategoricalValue needs v_min < v_max, got 1 and 1"),
        (lambda: CategoricalValue(5, 0, math.inf), "CategoricalValue.v_max must be in (-inf, inf), got inf"),
        (lambda: CategoricalValue(priority="lk"), "CategoricalValue.priority must be one of ['kl', 'ce'], got 'lk'"),
    ],
)
def test_wrong_input_is_refused_by_name_and_rule(make: Any, message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        make()

    assert message in str(refusal.value)


def test_everything_wrong_with_a_value_part_is_said_at_once() -> None:
    with pytest.raises(ConfigError) as refusal:
        CategoricalValue(0, 2.0, 1.0, priority="x")

    assert str(refusal.value).count("CategoricalValue") == 3
