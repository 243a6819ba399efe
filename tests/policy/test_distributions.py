"""Distributions of actions: their numbers by hand and by torch's own, their draws counted."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from trainkit.errors import SpaceMismatchError
from trainkit.policy.distributions import Distribution, Gaussian, distribution_for

N_DRAWS = 20_000
LOG = math.log
SPACES: list[Any] = [
    pytest.param(spaces.Discrete(3, start=5), id="Discrete"),
    pytest.param(spaces.MultiDiscrete([2, 3], start=[7, -1]), id="MultiDiscrete"),
    pytest.param(spaces.MultiDiscrete([[2, 3], [4, 2]]), id="MultiDiscrete 2 x 2"),
    pytest.param(spaces.MultiBinary(3), id="MultiBinary"),
    pytest.param(spaces.MultiBinary([2, 2]), id="MultiBinary 2 x 2"),
    pytest.param(spaces.Box(-1, 1, (3,)), id="Box"),
    pytest.param(spaces.Box(-1, 1, (2, 2)), id="Box 2 x 2"),
]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def numbers_for(family: Distribution, n_rows: int) -> Tensor:
    """Draw numbers [B, width]."""
    return torch.randn(n_rows, family.width, generator=generator(1))


def draw(space: spaces.Space[Any], numbers: list[float], legal: list[int] | None = None) -> Tensor:
    """Draw many actions of one row's distribution."""
    mask = None if legal is None else torch.tensor([legal]).bool().expand(N_DRAWS, -1)
    return distribution_for(space).sample(torch.tensor([numbers]).expand(N_DRAWS, -1), mask, generator())


def assert_is_frequency(hits: Tensor, probability: float) -> None:
    """Check a count within four standard deviations of the binomial."""
    spread = math.sqrt(N_DRAWS * probability * (1 - probability))
    assert abs(int(hits.sum()) - N_DRAWS * probability) <= 4 * spread


def torch_twin(space: spaces.Space[Any], family: Any, numbers: Tensor) -> torch.distributions.Distribution:
    """Build torch's own distribution, of actions [B, D] counted from 0."""
    if isinstance(space, spaces.Discrete):
        return torch.distributions.Categorical(logits=numbers)
    if isinstance(space, spaces.MultiBinary):
        return torch.distributions.Independent(torch.distributions.Bernoulli(logits=numbers), 1)
    normal = torch.distributions.Normal(numbers, family.log_std.exp().expand_as(numbers))
    return torch.distributions.Independent(normal, 1)


@pytest.mark.parametrize("space", SPACES)
class TestEveryFamily:
    def test_gives_actions_of_the_space_in_its_shape(self, space: spaces.Space[Any]) -> None:
        family = distribution_for(space)
        numbers = numbers_for(family, 50)
        for actions in (family.sample(numbers, None, generator()), family.mode(numbers, None)):
            assert actions.shape == (50, *space.shape)
            if isinstance(space, spaces.Discrete):  # actions count from 0, whatever the space starts with
                assert set(actions.tolist()) <= {0, 1, 2}
            elif not isinstance(space, spaces.Box):
                assert all(space.contains(action.numpy().astype(space.dtype)) for action in actions)

    def test_gives_one_log_probability_and_one_entropy_per_row(self, space: spaces.Space[Any]) -> None:
        family = distribution_for(space)
        numbers = numbers_for(family, 4)
        action = family.sample(numbers, None, generator())
        assert family.log_prob(numbers, action, None).shape == (4,)
        assert family.entropy(numbers, None).shape == (4,)

    def test_its_mode_is_at_least_as_likely_as_anything_drawn(self, space: spaces.Space[Any]) -> None:
        family = distribution_for(space)
        numbers = numbers_for(family, 200)
        best = family.log_prob(numbers, family.mode(numbers, None), None)
        drawn = family.log_prob(numbers, family.sample(numbers, None, generator()), None)
        assert (best >= drawn).all()
        assert (best > drawn).any()

    def test_the_same_generator_draws_the_same_and_another_does_not(self, space: spaces.Space[Any]) -> None:
        family = distribution_for(space)
        numbers = numbers_for(family, 50)
        one, same, other = (family.sample(numbers, None, generator(seed)) for seed in (0, 0, 1))
        assert torch.equal(one, same)
        assert not torch.equal(one, other)

    def test_entropy_is_the_mean_of_minus_the_log_probability(self, space: spaces.Space[Any]) -> None:
        family = distribution_for(space)
        numbers = numbers_for(family, 1).expand(N_DRAWS, -1)
        log_prob = family.log_prob(numbers, family.sample(numbers, None, generator()), None).detach()
        spread = 4 * float(log_prob.std()) / math.sqrt(N_DRAWS)
        assert float(-log_prob.mean()) == pytest.approx(family.entropy(numbers, None)[0].item(), abs=spread)

    def test_log_probability_and_entropy_are_torchs(self, space: spaces.Space[Any]) -> None:
        family = distribution_for(space)
        numbers = numbers_for(family, 6)
        action = family.sample(numbers, None, generator())
        if isinstance(space, spaces.MultiDiscrete):
            digits = (action - torch.as_tensor(space.start)).flatten(1)
            places = torch.split(numbers, space.nvec.ravel().tolist(), dim=1)
            twins = [torch.distributions.Categorical(logits=own) for own in places]
            log_prob = sum(twin.log_prob(digits[:, d]) for d, twin in enumerate(twins))
            entropy = sum(twin.entropy() for twin in twins)
        else:
            twin = torch_twin(space, family, numbers)
            own = action if isinstance(space, spaces.Discrete) else action.flatten(1).float()
            log_prob, entropy = twin.log_prob(own), twin.entropy()
        torch.testing.assert_close(family.log_prob(numbers, action, None), log_prob)
        torch.testing.assert_close(family.entropy(numbers, None), entropy)


class TestCategorical:
    space = spaces.Discrete(3)
    logits = torch.tensor([[LOG(1), LOG(2), LOG(5)]])

    def test_by_hand(self) -> None:
        family = distribution_for(self.space)
        p = [1 / 8, 2 / 8, 5 / 8]
        for action in range(3):
            assert family.log_prob(self.logits, torch.tensor([action]), None).item() == pytest.approx(LOG(p[action]))
        assert family.entropy(self.logits, None).item() == pytest.approx(-sum(x * LOG(x) for x in p))
        assert family.mode(self.logits, None).tolist() == [2]

    def test_draws_as_often_as_the_softmax_says(self) -> None:
        actions = draw(self.space, [LOG(1), LOG(2), LOG(5)])
        for action, probability in enumerate([1 / 8, 2 / 8, 5 / 8]):
            assert_is_frequency(actions == action, probability)

    def test_what_is_illegal_is_never_drawn_and_the_rest_share_its_part(self) -> None:
        actions = draw(self.space, [LOG(1), LOG(2), 50.0], legal=[1, 1, 0])
        assert_is_frequency(actions == 0, 1 / 3)
        assert_is_frequency(actions == 1, 2 / 3)

    def test_masks_are_row_by_row(self) -> None:
        family = distribution_for(self.space)
        numbers, legal = self.logits.expand(2, -1), torch.tensor([[True, True, False], [True, False, True]])
        action = torch.tensor([1, 2])
        assert family.mode(numbers, legal).tolist() == [1, 2]
        expected = torch.tensor([LOG(2 / 3), LOG(5 / 6)])
        torch.testing.assert_close(family.log_prob(numbers, action, legal), expected)
        odds = [[1 / 3, 2 / 3], [1 / 6, 5 / 6]]
        entropies = torch.tensor([-sum(x * LOG(x) for x in row) for row in odds])
        torch.testing.assert_close(family.entropy(numbers, legal), entropies)

    def test_an_illegal_action_has_probability_0(self) -> None:
        family = distribution_for(self.space)
        log_prob = family.log_prob(self.logits, torch.tensor([2]), torch.tensor([[True, True, False]]))
        assert log_prob.item() == -math.inf

    def test_a_single_legal_action_is_certain(self) -> None:
        family = distribution_for(self.space)
        legal = torch.tensor([[False, True, False]])
        assert family.log_prob(self.logits, torch.tensor([1]), legal).item() == 0
        assert family.entropy(self.logits, legal).item() == 0

    def test_entropys_gradient_is_finite_under_a_mask_and_0_where_illegal(self) -> None:
        family = distribution_for(self.space)
        numbers = self.logits.double().expand(2, -1).clone().requires_grad_(True)
        legal = torch.tensor([[True, True, False], [False, True, False]])
        family.entropy(numbers, legal).sum().backward()
        assert numbers.grad is not None
        # dH / dlogit_i = -p_i (log p_i + H), of p = (1/3, 2/3); where one action is certain nothing moves
        entropy = -(LOG(1 / 3) / 3 + 2 * LOG(2 / 3) / 3)
        slopes = [-(LOG(1 / 3) + entropy) / 3, -2 * (LOG(2 / 3) + entropy) / 3, 0.0]
        torch.testing.assert_close(numbers.grad, torch.tensor([slopes, [0.0, 0.0, 0.0]], dtype=torch.float64))

    def test_log_probabilitys_gradient_is_finite_under_a_mask(self) -> None:
        family = distribution_for(self.space)
        numbers = self.logits.double().clone().requires_grad_(True)
        family.log_prob(numbers, torch.tensor([1]), torch.tensor([[True, True, False]])).sum().backward()
        assert numbers.grad is not None
        torch.testing.assert_close(numbers.grad, torch.tensor([[-1 / 3, 1 / 3, 0]], dtype=torch.float64))

    def test_huge_logits_stay_finite(self) -> None:
        family = distribution_for(self.space)
        numbers = torch.tensor([[1e4, -1e4, 0.0]], requires_grad=True)
        entropy = family.entropy(numbers, None).sum()
        entropy.backward()
        assert entropy.item() == 0
        assert numbers.grad is not None
        assert torch.isfinite(numbers.grad).all()


class TestMultiCategorical:
    space = spaces.MultiDiscrete([2, 3], start=[7, -1])
    logits = torch.tensor([[LOG(1), LOG(3), LOG(1), LOG(2), LOG(5)]])

    def test_places_count_from_their_start_and_are_independent(self) -> None:
        family = distribution_for(self.space)
        assert family.mode(self.logits, None).tolist() == [[8, 1]]
        log_prob = family.log_prob(self.logits, torch.tensor([[7, 0]]), None)
        assert log_prob.item() == pytest.approx(LOG(1 / 4) + LOG(2 / 8))
        odds = [1 / 4, 3 / 4, 1 / 8, 2 / 8, 5 / 8]
        assert family.entropy(self.logits, None).item() == pytest.approx(-sum(x * LOG(x) for x in odds))

    def test_draws_as_often_as_each_places_softmax_says(self) -> None:
        actions = draw(self.space, self.logits[0].tolist())
        assert_is_frequency(actions[:, 0] == 8, 3 / 4)
        assert_is_frequency(actions[:, 1] == 1, 5 / 8)
        assert_is_frequency((actions == torch.tensor([8, 1])).all(dim=1), 15 / 32)


class TestBernoulli:
    space = spaces.MultiBinary(2)
    logits = torch.tensor([[LOG(3), LOG(1 / 4)]])  # 1 with 3/4 and 1/5

    def test_by_hand(self) -> None:
        family = distribution_for(self.space)
        assert family.mode(self.logits, None).tolist() == [[1, 0]]
        both = family.log_prob(self.logits, torch.tensor([[1, 1]], dtype=torch.int8), None)
        assert both.item() == pytest.approx(LOG(3 / 4) + LOG(1 / 5))
        odds = [1 / 4, 3 / 4, 1 / 5, 4 / 5]
        assert family.entropy(self.logits, None).item() == pytest.approx(-sum(x * LOG(x) for x in odds))

    def test_draws_independent_coins(self) -> None:
        actions = draw(self.space, self.logits[0].tolist())
        assert actions.dtype == torch.int8
        assert_is_frequency(actions[:, 0], 3 / 4)
        assert_is_frequency(actions[:, 1], 1 / 5)
        assert_is_frequency(actions.all(dim=1), 3 / 20)


class TestGaussian:
    def test_by_hand(self) -> None:
        family = Gaussian(spaces.Box(-1, 1, (2,)), log_std=LOG(2))
        mean = torch.tensor([[1.0, 5.0]])
        assert family.mode(mean, None).tolist() == [[1, 5]]
        one_off = family.log_prob(mean, torch.tensor([[3.0, 5.0]]), None)  # one deviation of 2 away, and on the mean
        assert one_off.item() == pytest.approx(-0.5 - 2 * LOG(2) - LOG(2 * math.pi))
        assert family.entropy(mean, None).item() == pytest.approx(2 * LOG(2) + LOG(2 * math.pi * math.e))

    def test_draws_have_the_mean_and_the_deviation(self) -> None:
        family = Gaussian(spaces.Box(-1, 1, (2,)), log_std=LOG(2))
        actions = family.sample(torch.tensor([[1.0, 5.0]]).expand(N_DRAWS, -1), None, generator()).detach()
        bound = 4 * 2 / math.sqrt(N_DRAWS)
        np.testing.assert_allclose(actions.mean(dim=0), [1, 5], atol=bound)
        np.testing.assert_allclose(actions.std(dim=0), [2, 2], atol=bound / math.sqrt(2))
        correlation = float(np.corrcoef(actions.T)[0, 1])
        assert abs(correlation) <= 4 / math.sqrt(N_DRAWS)

    def test_each_place_has_a_deviation_of_its_own_that_learns(self) -> None:
        family = Gaussian(spaces.Box(-1, 1, (2, 2)))
        assert family.log_std.shape == (4,)
        family.entropy(torch.zeros(3, 4), None).sum().backward()
        assert family.log_std.grad is not None
        assert family.log_std.grad.tolist() == [3, 3, 3, 3]


@pytest.mark.parametrize(
    "space", [spaces.Box(0, 9, (2,), np.int32), spaces.Text(3), spaces.Dict({"a": spaces.Discrete(2)})]
)
def test_a_space_without_a_distribution_is_refused_by_name(space: spaces.Space[Any]) -> None:
    with pytest.raises(SpaceMismatchError, match=f"no distribution of actions for {type(space).__name__}"):
        distribution_for(space)
