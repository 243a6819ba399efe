"""Distributions of actions: their numbers by hand and by torch's own, their draws counted."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from trainkit.core.errors import SpaceMismatchError
from trainkit.engine.device import CPU
from trainkit.engine.engine import Engine, EngineName
from trainkit.nets.distributions import Distribution, Gaussian, SquashedGaussian, distribution_for

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

NARROW = spaces.Box(np.array([-2.0, 10.0], np.float32), np.array([4.0, 11.0], np.float32))
FAMILIES: list[Any] = [
    *(pytest.param(lambda space=one.values[0]: distribution_for(space), id=one.id) for one in SPACES),
    pytest.param(lambda: Gaussian(NARROW, log_std=-1.0), id="Box of other deviations"),
    pytest.param(lambda: SquashedGaussian(NARROW, log_std=-0.5), id="squashed"),
    pytest.param(lambda: SquashedGaussian(NARROW, log_std=None), id="squashed, deviations of the network"),
]


class Actor(nn.Module):
    """Act by network outputs that are given, as a policy does."""

    def __init__(self, family: Any, engine: EngineName) -> None:
        super().__init__()
        self.family = family
        self.engine = Engine(self, engine, CPU)

    def forward(self, given: Any) -> dict[str, Tensor]:
        numbers, legal, noise = given
        sampled = self.family.mode(numbers, legal) if noise is None else self.family.sample(numbers, legal, noise)
        return {"action": sampled, "log_prob": self.family.log_prob(numbers, sampled, legal)}

    def act(self, numbers: Tensor, legal: Tensor | None, noise: Tensor | None) -> tuple[Any, Any]:
        answer = self.engine.call("act", self, (numbers, legal, noise))
        return answer["action"], answer["log_prob"]


def assert_fits(counts: NDArray[Any], probability: NDArray[Any]) -> None:
    """Check counts by chi-square, within five deviations of what chance gives."""
    assert counts.sum() == N_DRAWS
    expected = N_DRAWS * probability
    freedom = len(counts) - 1
    assert ((counts - expected) ** 2 / expected).sum() <= freedom + 5 * math.sqrt(2 * freedom)


def assert_uniform(share: Tensor) -> None:
    """Check numbers in 0..1 by chi-square of 20 bins."""
    assert_fits(np.histogram(share.numpy(), 20, (0.0, 1.0))[0], np.full(20, 1 / 20))


@pytest.fixture(params=["torch", "numpy"])
def engine(request: pytest.FixtureRequest) -> Any:
    return request.param


def draws_of(engine: EngineName, family: Any, numbers: list[float], legal: list[bool] | None = None) -> Tensor:
    """Draw many actions of one row's distribution."""
    mask = None if legal is None else torch.tensor([legal]).repeat(N_DRAWS, 1)
    rows = torch.tensor([numbers]).repeat(N_DRAWS, 1)
    return torch.from_numpy(Actor(family, engine).act(rows, mask, family.draw_noise(N_DRAWS, generator()))[0])


class TestActing:
    @pytest.mark.parametrize("explore", [False, True])
    @pytest.mark.parametrize("make", FAMILIES)
    def test_both_engines_act_alike_on_the_same_noise(self, make: Any, explore: bool) -> None:
        family = make()
        numbers = numbers_for(family, 64)
        noise = family.draw_noise(64, generator()) if explore else None
        (mine, my_log_prob), (theirs, their_log_prob) = (
            Actor(family, engine).act(numbers, None, noise) for engine in ("numpy", "torch")
        )
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
        assert my_log_prob.shape == (64,)
        assert my_log_prob.dtype == their_log_prob.dtype == np.float32
        np.testing.assert_allclose(
            my_log_prob, their_log_prob, rtol=1e-4, atol=1e-4
        )  # of a squashed action's own digits

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
