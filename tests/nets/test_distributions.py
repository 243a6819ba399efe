"""Distributions of actions: their numbers by hand and by torch's own, their draws counted."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from tests.helpers.engine import engines
from tests.helpers.learning import Spaces, parameters_of
from tests.helpers.rollouts import played
from tests.nets.families import NARROW, SPACES, Actor, generator, numbers_for
from trainkit import A2CPolicy, ConfigError, PPOPolicy, ReinforcePolicy, SpaceMismatchError
from trainkit.engine.engine import EngineName
from trainkit.nets.distributions import Distribution, Gaussian, SquashedGaussian, distribution_for

N_DRAWS = 20_000
LOG = math.log


def sampled(family: Distribution, numbers: Tensor, legal: Tensor | None = None, seed: int = 0) -> Tensor:
    """Draw an action of each row's distribution."""
    return family.sample(numbers, legal, family.draw_noise(len(numbers), generator(seed)))


def draw(space: spaces.Space[Any], numbers: list[float], legal: list[int] | None = None) -> Tensor:
    """Draw many actions of one row's distribution."""
    mask = None if legal is None else torch.tensor([legal]).bool().expand(N_DRAWS, -1)
    return sampled(distribution_for(space), torch.tensor([numbers]).expand(N_DRAWS, -1), mask)


def assert_is_frequency(hits: Tensor, probability: float) -> None:
    """Check a count within four standard deviations of the binomial."""
    spread = math.sqrt(N_DRAWS * probability * (1 - probability))
    assert abs(int(hits.sum()) - N_DRAWS * probability) <= 4 * spread


def torch_reference(space: spaces.Space[Any], family: Any, numbers: Tensor) -> torch.distributions.Distribution:
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
        for actions in (sampled(family, numbers), family.mode(numbers, None)):
            assert actions.shape == (50, *space.shape)
            if isinstance(space, spaces.Discrete):  # actions count from 0, whatever the space starts with
                assert set(actions.tolist()) <= {0, 1, 2}
            elif not isinstance(space, spaces.Box):
                assert all(space.contains(action.numpy().astype(space.dtype)) for action in actions)

    def test_gives_one_log_probability_and_one_entropy_per_row(self, space: spaces.Space[Any]) -> None:
        family = distribution_for(space)
        numbers = numbers_for(family, 4)
        action = sampled(family, numbers)
        assert family.log_prob(numbers, action, None).shape == (4,)
        assert family.entropy(numbers, None).shape == (4,)

    def test_its_mode_is_at_least_as_likely_as_anything_drawn(self, space: spaces.Space[Any]) -> None:
        family = distribution_for(space)
        numbers = numbers_for(family, 200)
        best = family.log_prob(numbers, family.mode(numbers, None), None)
        drawn = family.log_prob(numbers, sampled(family, numbers), None)
        assert (best >= drawn).all()
        assert (best > drawn).any()

    def test_the_same_generator_draws_the_same_and_another_does_not(self, space: spaces.Space[Any]) -> None:
        family = distribution_for(space)
        numbers = numbers_for(family, 50)
        one, same, other = (sampled(family, numbers, seed=seed) for seed in (0, 0, 1))
        assert torch.equal(one, same)
        assert not torch.equal(one, other)

    def test_entropy_is_the_mean_of_minus_the_log_probability(self, space: spaces.Space[Any]) -> None:
        family = distribution_for(space)
        numbers = numbers_for(family, 1).expand(N_DRAWS, -1)
        log_prob = family.log_prob(numbers, sampled(family, numbers), None).detach()
        spread = 4 * float(log_prob.std()) / math.sqrt(N_DRAWS)
        assert float(-log_prob.mean()) == pytest.approx(family.entropy(numbers, None)[0].item(), abs=spread)

    def test_log_probability_and_entropy_are_torchs(self, space: spaces.Space[Any]) -> None:
        family = distribution_for(space)
        numbers = numbers_for(family, 6)
        action = sampled(family, numbers)
        if isinstance(space, spaces.MultiDiscrete):
            digits = (action - torch.as_tensor(space.start)).flatten(1)
            places = torch.split(numbers, space.nvec.ravel().tolist(), dim=1)
            references = [torch.distributions.Categorical(logits=own) for own in places]
            log_prob = sum(reference.log_prob(digits[:, d]) for d, reference in enumerate(references))
            entropy = sum(reference.entropy() for reference in references)
        else:
            reference = torch_reference(space, family, numbers)
            own = action if isinstance(space, spaces.Discrete) else action.flatten(1).float()
            log_prob, entropy = reference.log_prob(own), reference.entropy()
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
        derivatives = [-(LOG(1 / 3) + entropy) / 3, -2 * (LOG(2 / 3) + entropy) / 3, 0.0]
        torch.testing.assert_close(numbers.grad, torch.tensor([derivatives, [0.0, 0.0, 0.0]], dtype=torch.float64))

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
        actions = sampled(family, torch.tensor([[1.0, 5.0]]).expand(N_DRAWS, -1)).detach()
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


# ---- acting, by either engine ----


def assert_fits(counts: NDArray[Any], probability: NDArray[Any]) -> None:
    """Check counts by chi-square, within five deviations of what chance gives."""
    assert counts.sum() == N_DRAWS
    expected = N_DRAWS * probability
    freedom = len(counts) - 1
    assert ((counts - expected) ** 2 / expected).sum() <= freedom + 5 * math.sqrt(2 * freedom)


def assert_uniform(share: Tensor) -> None:
    """Check numbers in 0..1 by chi-square of 20 bins."""
    assert_fits(np.histogram(share.numpy(), 20, (0.0, 1.0))[0], np.full(20, 1 / 20))


def draws_of(engine: EngineName, family: Any, numbers: list[float], legal: list[bool] | None = None) -> Tensor:
    """Draw many actions of one row's distribution."""
    mask = None if legal is None else torch.tensor([legal]).repeat(N_DRAWS, 1)
    rows = torch.tensor([numbers]).repeat(N_DRAWS, 1)
    return torch.from_numpy(Actor(family, engine).act(rows, mask, family.draw_noise(N_DRAWS, generator()))[0])


@pytest.fixture(params=engines("torch", "numpy"))
def engine(request: pytest.FixtureRequest) -> Any:
    return request.param


class TestActing:
    @pytest.mark.parametrize("explore", [False, True])
    def test_a_mask_counts(self, explore: bool, engine: Any) -> None:
        family = distribution_for(spaces.Discrete(5))
        numbers = numbers_for(family, 400)
        legal = np.random.default_rng(1).random((400, 5)) < 0.4
        legal[np.arange(400), np.arange(400) % 5] = True
        mask = torch.from_numpy(legal)
        noise = family.draw_noise(400, generator()) if explore else None
        action, log_prob = Actor(family, engine).act(numbers, mask, noise)
        assert legal[np.arange(400), action].all()
        expected = family.log_prob(numbers, torch.from_numpy(action), mask)
        np.testing.assert_allclose(log_prob, expected, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("legal", [[True] * 4, [False, True, True, False]])
    def test_a_choice_fits_the_softmax(self, legal: list[bool], engine: Any) -> None:
        drawn = draws_of(engine, distribution_for(spaces.Discrete(4)), [LOG(1), LOG(2), LOG(5), LOG(2)], legal)
        odds = np.array([1, 2, 5, 2]) * legal
        counts = np.bincount(drawn.numpy(), minlength=4)
        assert (counts[odds == 0] == 0).all()
        assert_fits(counts[odds > 0], odds[odds > 0] / odds.sum())

    @pytest.mark.parametrize("extreme", [1e-16, 40.0])  # about the least and the most that torch draws
    def test_an_extreme_draw_is_a_legal_action(self, extreme: float, engine: Any) -> None:
        family = distribution_for(spaces.Discrete(4))
        logits = 10.0 * torch.randn(2_000, 4, generator=generator())
        legal, noise = torch.tensor([[False, True, True, False]]).repeat(2_000, 1), torch.full((2_000, 4), extreme)
        action, _ = Actor(family, engine).act(logits, legal, noise)
        assert set(action.tolist()) == {1, 2}

    def test_several_choices_fit_each_places_softmax(self, engine: Any) -> None:
        family = distribution_for(spaces.MultiDiscrete([2, 3], start=[7, -1]))
        drawn = draws_of(engine, family, [LOG(1), LOG(3), LOG(1), LOG(2), LOG(5)]).numpy() - [7, -1]
        joint = np.outer([1 / 4, 3 / 4], [1 / 8, 2 / 8, 5 / 8])
        assert_fits(np.bincount(drawn @ [3, 1], minlength=6), joint.ravel())

    def test_coins_fit_the_sigmoid(self, engine: Any) -> None:
        drawn = draws_of(engine, distribution_for(spaces.MultiBinary(2)), [LOG(3), LOG(1 / 4)]).numpy()
        joint = np.outer([1 / 4, 3 / 4], [4 / 5, 1 / 5])
        assert_fits(np.bincount(drawn @ [2, 1], minlength=4), joint.ravel())

    def test_deviates_fit_the_normal(self, engine: Any) -> None:
        drawn = draws_of(engine, Gaussian(NARROW, log_std=LOG(2)), [1.0, 5.0])
        for place, mean in enumerate((1.0, 5.0)):
            assert_uniform(torch.distributions.Normal(mean, 2.0).cdf(drawn[:, place]))
        assert abs(float(np.corrcoef(drawn.T)[0, 1])) <= 4 / math.sqrt(N_DRAWS)

    @pytest.mark.parametrize("log_std", [-0.5, None], ids=["own deviations", "deviations of the network"])
    def test_squashed_deviates_fit_the_normal(self, log_std: float | None, engine: Any) -> None:
        outputs = [0.3, -0.2] if log_std is not None else [0.3, -0.2, -0.5, -0.5]
        u = draws_of(engine, SquashedGaussian(NARROW, log_std=log_std), outputs).atanh()
        for place, mean in enumerate((0.3, -0.2)):
            assert_uniform(torch.distributions.Normal(mean, math.exp(-0.5)).cdf(u[:, place]))

    def test_a_gaussian_acts_by_the_deviations_as_they_are_now(self, engine: Any) -> None:
        family = Gaussian(NARROW)
        actor, numbers, noise = Actor(family, engine), torch.zeros(8, 2), family.draw_noise(8, generator())
        before, _ = actor.act(numbers, None, noise)
        family.log_std = nn.Parameter(torch.full((2,), LOG(10)))
        after, _ = actor.act(numbers, None, noise)
        np.testing.assert_allclose(after, 10 * before, rtol=1e-6)


# ---- the squashed normal distribution ----


N_SQUASHED = 20_000
WIDE = spaces.Box(np.array([-2.0, 10.0], np.float32), np.array([4.0, 11.0], np.float32))
UNEVEN = spaces.Box(-3.0, 5.0, (2, 2), np.float32)


def squashed_generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def squashed_numbers_for(family: SquashedGaussian, n_rows: int) -> Tensor:
    """Draw numbers [B, width], so small that float32 says actions from the bounds."""
    return 0.5 * torch.randn(n_rows, family.width, generator=squashed_generator(1))


def counterpart_of(family: SquashedGaussian, numbers: Tensor) -> torch.distributions.Distribution:
    """Build torch's own, of actions [B, D] in policy units: the tanh of a normal."""
    mean, log_std = numbers.double(), family.log_std
    if log_std is None:
        mean, log_std = mean.chunk(2, dim=1)
        log_std = log_std.clamp(-20, 2)
    maps = [torch.distributions.TanhTransform(cache_size=1)]
    normal = torch.distributions.Normal(mean, log_std.double().exp().expand_as(mean))
    return torch.distributions.Independent(torch.distributions.TransformedDistribution(normal, maps), 1)


class TestDensity:
    def test_by_hand_at_the_middle(self) -> None:
        family = SquashedGaussian(spaces.Box(-3.0, 5.0, (1,)), log_std=math.log(2))
        # u = 0 lies half a deviation of 2 from the mean 1; there tanh has derivative 1
        expected = -0.5 * 0.5**2 - math.log(2) - 0.5 * math.log(2 * math.pi)
        assert family.log_prob(torch.tensor([[1.0]]), torch.tensor([[0.0]]), None).item() == pytest.approx(expected)

    @pytest.mark.parametrize("log_std", [-0.5, None], ids=["own deviations", "given deviations"])
    @pytest.mark.parametrize("space", [WIDE, UNEVEN], ids=["two places", "2 x 2"])
    def test_is_torchs(self, space: spaces.Box, log_std: float | None) -> None:
        family = SquashedGaussian(space, log_std=log_std)
        numbers = squashed_numbers_for(family, 50)
        action = sampled(family, numbers)
        expected = counterpart_of(family, numbers).log_prob(action.flatten(1).double())
        torch.testing.assert_close(family.log_prob(numbers, action, None).double(), expected, rtol=1e-3, atol=1e-3)

    @pytest.mark.parametrize(("mean", "log_std"), [(0.0, 0.0), (0.7, -1.0), (-1.0, 0.2)])
    def test_integrates_to_1_over_all_units_and_to_the_entropy(self, mean: float, log_std: float) -> None:
        family = SquashedGaussian(spaces.Box(-2.0, 1.0, (1,), np.float64), log_std=log_std).double()
        u = torch.linspace(-7.0, 7.0, 20_001, dtype=torch.float64)  # even steps in u reach near to the bounds
        action = u.tanh().unsqueeze(1)
        numbers = torch.full((len(action), 1), mean, dtype=torch.float64)
        log_p = family.log_prob(numbers, action, None).detach()
        width = 1.0 - u.tanh().square()  # da = (1 - tanh(u)**2) du
        mass = torch.trapezoid(log_p.exp() * width, u).item()
        entropy = -torch.trapezoid(log_p.exp() * log_p * width, u).item()
        assert mass == pytest.approx(1.0, abs=1e-4)
        assert family.entropy(numbers[:1], None).item() == pytest.approx(entropy, abs=1e-3)

    @pytest.mark.parametrize("log_std", [-3.0, -0.5, 1.0])
    def test_entropy_is_the_mean_of_minus_the_log_probability(self, log_std: float) -> None:
        family = SquashedGaussian(WIDE, log_std=log_std)
        numbers = torch.tensor([[0.3, -1.2]]).expand(N_SQUASHED, -1)
        log_prob = family.log_prob(numbers, sampled(family, numbers), None).detach()
        spread = 4 * float(log_prob.std()) / math.sqrt(N_SQUASHED)
        assert float(-log_prob.mean()) == pytest.approx(family.entropy(numbers, None)[0].item(), abs=spread)

    def test_the_gradient_of_entropy_is_its_numerical_derivative(self) -> None:
        family = SquashedGaussian(WIDE, log_std=None).double()
        numbers = torch.tensor([[0.4, -1.0, 0.2, -0.3]], dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda x: family.entropy(x, None), (numbers,))

    def test_is_finite_and_has_a_finite_gradient_at_the_very_bounds(self) -> None:
        family = SquashedGaussian(UNEVEN)
        numbers = torch.zeros(2, 4, requires_grad=True)
        log_prob = family.log_prob(numbers, torch.tensor([-1.0, 1.0]).view(2, 1, 1).expand(2, 2, 2), None)
        log_prob.sum().backward()
        assert torch.isfinite(log_prob).all()
        assert numbers.grad is not None
        assert torch.isfinite(numbers.grad).all()


class TestActions:
    @pytest.mark.parametrize("space", [WIDE, UNEVEN, spaces.Box(999.0, 1000.0, (1,))], ids=str)
    @pytest.mark.parametrize("mean", [-50.0, 0.0, 50.0])
    def test_are_units_in_the_shape_of_the_space(self, space: spaces.Box, mean: float) -> None:
        family = SquashedGaussian(space)
        numbers = torch.full((200, family.width), mean)
        for action in (sampled(family, numbers), family.mode(numbers, None)):
            assert action.shape == (200, *space.shape)
            assert (action.abs() <= 1.0).all()
            assert torch.isfinite(family.log_prob(numbers, action, None)).all()

    def test_mode_is_the_median_and_half_of_all_draws_lie_on_either_side(self) -> None:
        family = SquashedGaussian(WIDE, log_std=0.3)
        numbers = torch.tensor([[0.5, -0.7]]).expand(N_SQUASHED, -1)
        expected = torch.tensor([math.tanh(0.5), math.tanh(-0.7)])
        torch.testing.assert_close(family.mode(numbers, None)[0], expected)
        above = (sampled(family, numbers) > expected).double().mean(dim=0)
        np.testing.assert_allclose(above, 0.5, atol=4 * 0.5 / math.sqrt(N_SQUASHED))

    def test_the_same_generator_draws_the_same_and_another_does_not(self) -> None:
        family = SquashedGaussian(WIDE)
        numbers = squashed_numbers_for(family, 50)
        one, same, other = (sampled(family, numbers, seed=seed) for seed in (0, 0, 1))
        assert torch.equal(one, same)
        assert not torch.equal(one, other)


class TestDraw:
    @pytest.mark.parametrize("log_std", [0.2, None], ids=["own deviations", "given deviations"])
    def test_is_the_action_and_its_density(self, log_std: float | None) -> None:
        family = SquashedGaussian(WIDE, log_std=log_std).double()
        numbers, noise = squashed_numbers_for(family, 30).double(), torch.linspace(-1.0, 1.0, 60).view(30, 2).double()
        unit, log_prob = family.draw(numbers, noise)
        torch.testing.assert_close(log_prob, family.log_prob(numbers, unit, None))

    def test_has_the_gradients_of_its_equation(self) -> None:
        family = SquashedGaussian(WIDE, log_std=None).double()
        numbers = torch.tensor([[0.4, -1.0, 0.2, -0.3]], dtype=torch.float64, requires_grad=True)
        noise = torch.tensor([[0.5, -1.5]], dtype=torch.float64)
        assert torch.autograd.gradcheck(lambda x: family.draw(x, noise), (numbers,))

    def test_stays_finite_however_far_out(self) -> None:
        family = SquashedGaussian(WIDE, log_std=None)
        numbers = torch.tensor([[1e4, -1e4, 0.0, 0.0], [0.0, 0.0, 1e4, -1e4]], requires_grad=True)
        unit, log_prob = family.draw(numbers, torch.ones(2, 2))
        (unit.sum() + log_prob.sum()).backward()
        assert torch.isfinite(log_prob).all()
        assert numbers.grad is not None
        assert torch.isfinite(numbers.grad).all()

    def test_given_deviations_stay_within_their_range(self) -> None:
        family = SquashedGaussian(WIDE, log_std=None)
        wild, kept = torch.tensor([[0.0, 0.0, 9.0, -90.0]]), torch.tensor([[0.0, 0.0, 2.0, -20.0]])
        noise = torch.tensor([[0.1, 0.2]])
        for mine, theirs in zip(family.draw(wild, noise), family.draw(kept, noise), strict=True):
            assert torch.equal(mine, theirs)


BOXES: list[Any] = [
    pytest.param(spaces.Box(-1.0, np.inf, (2,)), "has an unbounded dimension", id="half-bounded"),
    pytest.param(spaces.Box(-np.inf, np.inf, (2,)), "has an unbounded dimension", id="unbounded"),
    pytest.param(spaces.Box(0, 9, (2,), np.int32), "needs actions in a Box of float32 or float64", id="integers"),
    pytest.param(spaces.Box(-1, 1, (2,), np.float16), "needs actions in a Box of float32 or float64", id="float16"),
    pytest.param(spaces.Discrete(2), "needs actions in a Box of float32 or float64", id="Discrete"),
    pytest.param(
        spaces.Box(np.array([0.0, 1.0], np.float32), np.array([1.0, 1.0], np.float32)),
        "are equal in a dimension",
        id="equal bounds",
    ),
]


@pytest.mark.parametrize(("space", "message"), BOXES)
def test_a_space_without_two_bounds_is_refused_by_name(space: Any, message: str) -> None:
    with pytest.raises(SpaceMismatchError, match=f"SquashedGaussian .*{message}"):
        SquashedGaussian(space)


@pytest.mark.parametrize("family", [Gaussian, SquashedGaussian])
def test_a_start_that_is_no_number_is_refused(family: Any) -> None:
    with pytest.raises(ConfigError, match=rf"{family.__name__}.log_std must be in \(-inf, inf\), got nan"):
        family(WIDE, log_std=math.nan)


# ---- on-policy learners ----

EVERY_BOX: list[Any] = [
    pytest.param(spaces.Box(-2.0, 2.0, (1,)), id="bounded"),
    pytest.param(spaces.Box(-1.0, np.inf, (2,)), id="half-bounded"),
    pytest.param(spaces.Box(-np.inf, np.inf, (2,)), id="unbounded"),
    pytest.param(spaces.Box(-1.0, 1.0, (2,), np.float64), id="float64"),
]


def made(kind: Any = PPOPolicy, space: Any = WIDE, **options: Any) -> Any:
    parts: dict[str, Any] = {"hidden": (8,), "device": "cpu", "seed": 0}
    return kind.for_envs(Spaces(action_space=space), **parts | options)


def farthest_from_1(policy: Any, space: Any) -> float:
    """Return how far the logarithm of a first ratio is from 0, of a fresh rollout."""
    rollout = played(policy, Spaces().observation_space)
    assert rollout.action.dtype == space.dtype
    rows = policy._rows(rollout)
    with torch.no_grad():
        numbers, _ = policy.network(rows.features)
        log_prob = policy.distribution.log_prob(numbers, rows.action, None)
    assert log_prob.dtype == torch.float32
    return float((log_prob - rows.log_prob).abs().max())


class TestOnpolicy:
    @pytest.mark.parametrize("space", EVERY_BOX)
    def test_unsquashed_actions_are_learned_in_every_box(self, space: Any) -> None:
        policy = made(space=space)
        assert type(policy.distribution) is Gaussian
        assert farthest_from_1(policy, space) < 1e-5

    @pytest.mark.parametrize("space", [WIDE, UNEVEN, spaces.Box(-1.0, 1.0, (2,), np.float64)], ids=str)
    @pytest.mark.parametrize("kind", [PPOPolicy, A2CPolicy, ReinforcePolicy])
    def test_squashed_actions_have_the_log_prob_of_their_draw(self, kind: Any, space: Any) -> None:
        policy = made(kind, space, action_bound_method="tanh", log_std=1.5)  # wide: many actions near the bounds
        assert type(policy.distribution) is SquashedGaussian
        assert farthest_from_1(policy, space) < 1e-4

    def test_the_log_probability_stored_is_that_of_the_action_stored_to_the_last_bit(self) -> None:
        policy = made(action_bound_method="tanh", log_std=1.5, engine="torch")
        obs = np.random.default_rng(0).normal(size=(500, 4)).astype(np.float32)
        output = policy.act(obs, explore=True)
        with torch.no_grad():
            numbers, _ = policy.network(torch.from_numpy(obs))
            again = policy.distribution.log_prob(numbers, torch.from_numpy(output.extras["policy_action"]), None)
        np.testing.assert_array_equal(output.extras["log_prob"], again)

    def test_they_learn_with_an_entropy_bonus(self) -> None:
        policy = made(action_bound_method="tanh", entropy_weight=0.1)
        before = parameters_of(policy)
        list(policy.learn(played(policy, Spaces().observation_space), step=0))
        after = parameters_of(policy)
        assert (before["distribution.log_std"] != after["distribution.log_std"]).all()
        assert all(np.isfinite(list(policy.read_metrics().values())))

    def test_deviations_start_at_the_given_value(self) -> None:
        for how in ("clip", "tanh"):
            assert made(action_bound_method=how).distribution.log_std.tolist() == [0, 0]
            assert made(action_bound_method=how, log_std=-2).distribution.log_std.tolist() == [-2, -2]

    @pytest.mark.parametrize("option", [{"action_bound_method": "tanh"}, {"log_std": 0.0}])
    def test_what_discrete_actions_have_no_use_for_is_refused(self, option: Any) -> None:
        with pytest.raises(SpaceMismatchError, match="action_bound_method='tanh' and log_std are for actions in a Box"):
            made(space=spaces.Discrete(2), **option)

    def test_a_given_distribution_is_used_and_a_bound_method_with_it_rejected(self) -> None:
        own = SquashedGaussian(WIDE, log_std=None)
        policy = made(distribution=own)
        assert policy.distribution is own
        assert policy.network.actor.layers[0].out_features == 4
        with pytest.raises(
            ConfigError, match="was given distribution, and action_bound_method or log_std too: give one"
        ):
            made(distribution=own, action_bound_method="tanh")

    def test_unbounded_actions_cannot_be_squashed(self) -> None:
        with pytest.raises(SpaceMismatchError, match="has an unbounded dimension"):
            made(space=spaces.Box(-np.inf, np.inf, (2,)), action_bound_method="tanh")


@pytest.mark.parametrize("dtype", [np.int32, np.float16])
def test_a_box_of_numbers_too_coarse_is_refused(dtype: Any) -> None:
    with pytest.raises(SpaceMismatchError, match="there is no distribution of actions for Box"):
        distribution_for(spaces.Box(0, 9, (2,), dtype))
