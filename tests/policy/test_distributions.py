"""Distributions of actions: their numbers by hand and by torch's own, their draws counted."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from trainkit.errors import SpaceMismatchError
from trainkit.policy.distributions import Distribution, Gaussian, HostDistribution, distribution_for
from trainkit.policy.squashed import SquashedGaussian

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


@pytest.mark.parametrize("space", [spaces.Box(0, 9, (2,), np.int32), spaces.Text(3)])
def test_a_space_without_a_distribution_is_refused_by_name(space: spaces.Space[Any]) -> None:
    with pytest.raises(SpaceMismatchError, match=f"no distribution of actions for {type(space).__name__}"):
        distribution_for(space)


# ---- acting in numpy ----

NARROW = spaces.Box(np.array([-2.0, 10.0], np.float32), np.array([4.0, 11.0], np.float32))
FAMILIES: list[Any] = [
    *(pytest.param(lambda space=one.values[0]: distribution_for(space), id=one.id) for one in SPACES),
    pytest.param(lambda: Gaussian(NARROW, log_std=-1.0), id="Box of other deviations"),
    pytest.param(lambda: SquashedGaussian(NARROW, log_std=-0.5), id="squashed"),
    pytest.param(lambda: SquashedGaussian(NARROW, log_std=None), id="squashed, deviations told"),
]


def assert_fits(counts: NDArray[Any], probability: NDArray[Any]) -> None:
    """Check counts by chi-square, within five deviations of what chance gives."""
    assert counts.sum() == N_DRAWS
    expected = N_DRAWS * probability
    freedom = len(counts) - 1
    assert ((counts - expected) ** 2 / expected).sum() <= freedom + 5 * math.sqrt(2 * freedom)


def assert_uniform(share: Tensor) -> None:
    """Check numbers in 0..1 by chi-square of 20 bins."""
    assert_fits(np.histogram(share.numpy(), 20, (0.0, 1.0))[0], np.full(20, 1 / 20))


def host_draws(family: Any, numbers: Tensor, legal: list[bool] | None = None) -> Tensor:
    """Draw many actions of one row's distribution in numpy."""
    mask = None if legal is None else np.tile(legal, (N_DRAWS, 1))
    rows = np.tile(numbers.numpy().astype(np.float32), (N_DRAWS, 1))
    return torch.from_numpy(family.host_act(rows, mask, np.random.default_rng(0))[0])


class TestInNumpy:
    @pytest.mark.parametrize("explore", [False, True])
    @pytest.mark.parametrize("make", FAMILIES)
    def test_actions_and_log_probabilities_are_like_torchs(self, make: Any, explore: bool) -> None:
        family = make()
        numbers = numbers_for(family, 64)
        action, log_prob = family.host_act(numbers.numpy(), None, np.random.default_rng(0) if explore else None)
        theirs = family.sample(numbers, None, generator()).detach()
        assert (action.shape, torch.from_numpy(action).dtype) == (tuple(theirs.shape), theirs.dtype)
        assert (log_prob.shape, log_prob.dtype) == ((64,), np.float32)
        expected = family.log_prob(numbers, torch.from_numpy(action), None).detach().numpy()
        np.testing.assert_allclose(log_prob, expected, rtol=1e-6, atol=1e-6)
        if not explore:
            np.testing.assert_allclose(action, family.mode(numbers, None).numpy(), rtol=1e-6)

    @pytest.mark.parametrize("make", FAMILIES)
    def test_the_same_generator_draws_the_same_and_another_does_not(self, make: Any) -> None:
        family = make()
        numbers = numbers_for(family, 64).numpy()
        one, same, other = (family.host_act(numbers, None, np.random.default_rng(seed))[0] for seed in (0, 0, 1))
        np.testing.assert_array_equal(one, same)
        assert (one != other).any()

    @pytest.mark.parametrize("explore", [False, True])
    def test_a_mask_counts_like_torchs(self, explore: bool) -> None:
        family = distribution_for(spaces.Discrete(5))
        numbers = numbers_for(family, 400)
        legal = np.random.default_rng(1).random((400, 5)) < 0.4
        legal[np.arange(400), np.arange(400) % 5] = True
        rng = np.random.default_rng(0) if explore else None
        action, log_prob = family.host_act(numbers.numpy(), legal, rng)
        assert legal[np.arange(400), action].all()
        mask = torch.from_numpy(legal)
        expected = family.log_prob(numbers, torch.from_numpy(action), mask)
        np.testing.assert_allclose(log_prob, expected, rtol=1e-6, atol=1e-6)
        if not explore:
            np.testing.assert_array_equal(action, family.mode(numbers, mask))

    @pytest.mark.parametrize("legal", [[True] * 4, [False, True, True, False]])
    def test_a_choice_fits_the_softmax(self, legal: list[bool]) -> None:
        drawn = host_draws(distribution_for(spaces.Discrete(4)), torch.tensor([LOG(1), LOG(2), LOG(5), LOG(2)]), legal)
        odds = np.array([1, 2, 5, 2]) * legal
        counts = np.bincount(drawn.numpy(), minlength=4)
        assert (counts[odds == 0] == 0).all()
        assert_fits(counts[odds > 0], odds[odds > 0] / odds.sum())

    def test_a_draw_at_either_end_is_a_legal_action(self) -> None:
        class Ends:
            """Draw the least and the largest number there is below 1."""

            def random(self, n: int) -> NDArray[np.float64]:
                return np.resize([0.0, 1.0 - 2.0**-53], n)

        family: Any = distribution_for(spaces.Discrete(4))
        logits = np.random.default_rng(0).normal(size=(2_000, 4)).astype(np.float32)
        action, _ = family.host_act(logits, np.array([[False, True, True, False]] * 2_000), Ends())
        np.testing.assert_array_equal(action, np.resize([1, 2], 2_000))

    def test_several_choices_fit_each_places_softmax(self) -> None:
        family = distribution_for(spaces.MultiDiscrete([2, 3], start=[7, -1]))
        logits = torch.tensor([LOG(1), LOG(3), LOG(1), LOG(2), LOG(5)])
        drawn = host_draws(family, logits).numpy() - [7, -1]
        joint = np.outer([1 / 4, 3 / 4], [1 / 8, 2 / 8, 5 / 8])
        assert_fits(np.bincount(drawn @ [3, 1], minlength=6), joint.ravel())

    def test_coins_fit_the_sigmoid(self) -> None:
        drawn = host_draws(distribution_for(spaces.MultiBinary(2)), torch.tensor([LOG(3), LOG(1 / 4)])).numpy()
        joint = np.outer([1 / 4, 3 / 4], [4 / 5, 1 / 5])
        assert_fits(np.bincount(drawn @ [2, 1], minlength=4), joint.ravel())

    def test_deviates_fit_the_normal(self) -> None:
        family = Gaussian(NARROW, log_std=LOG(2))
        drawn = host_draws(family, torch.tensor([1.0, 5.0]))
        for place, mean in enumerate((1.0, 5.0)):
            assert_uniform(torch.distributions.Normal(mean, 2.0).cdf(drawn[:, place]))
        assert abs(float(np.corrcoef(drawn.T)[0, 1])) <= 4 / math.sqrt(N_DRAWS)

    @pytest.mark.parametrize("log_std", [-0.5, None], ids=["own deviations", "told deviations"])
    def test_squashed_deviates_fit_the_normal(self, log_std: float | None) -> None:
        family = SquashedGaussian(NARROW, log_std=log_std)
        told = [0.3, -0.2] if log_std is not None else [0.3, -0.2, -0.5, -0.5]
        drawn = host_draws(family, torch.tensor(told))
        u = drawn.atanh()
        for place, mean in enumerate((0.3, -0.2)):
            assert_uniform(torch.distributions.Normal(mean, math.exp(-0.5)).cdf(u[:, place]))

    def test_a_gaussian_acts_by_the_deviations_as_they_are_now(self) -> None:
        family = Gaussian(NARROW)
        numbers = np.zeros((8, 2), np.float32)
        before, _ = family.host_act(numbers, None, np.random.default_rng(0))
        family.log_std = torch.nn.Parameter(torch.full((2,), LOG(10)))
        after, _ = family.host_act(numbers, None, np.random.default_rng(0))
        np.testing.assert_allclose(after, 10 * before, rtol=1e-6)

    def test_every_family_of_ours_has_this_form(self) -> None:
        assert all(isinstance(one.values[0](), HostDistribution) for one in FAMILIES)
