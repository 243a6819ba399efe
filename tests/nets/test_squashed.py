"""Squashed normal actions: densities by hand, by torch's own and by numerical integrals."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from tests.helpers.learning import Spaces, parameters_of
from tests.helpers.rollouts import played
from tests.nets.test_distributions import sampled
from trainkit import A2CPolicy, ConfigError, PPOPolicy, ReinforcePolicy, SpaceMismatchError
from trainkit.nets import SquashedGaussian
from trainkit.nets.distributions import Gaussian, distribution_for

N_DRAWS = 20_000
WIDE = spaces.Box(np.array([-2.0, 10.0], np.float32), np.array([4.0, 11.0], np.float32))
UNEVEN = spaces.Box(-3.0, 5.0, (2, 2), np.float32)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def numbers_for(family: SquashedGaussian, n_rows: int) -> Tensor:
    """Draw numbers [B, width], so small that float32 tells actions from the bounds."""
    return 0.5 * torch.randn(n_rows, family.width, generator=generator(1))


def twin_of(family: SquashedGaussian, numbers: Tensor) -> torch.distributions.Distribution:
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
        # u = 0 lies half a deviation of 2 from the mean 1; there tanh has slope 1
        expected = -0.5 * 0.5**2 - math.log(2) - 0.5 * math.log(2 * math.pi)
        assert family.log_prob(torch.tensor([[1.0]]), torch.tensor([[0.0]]), None).item() == pytest.approx(expected)

    @pytest.mark.parametrize("log_std", [-0.5, None], ids=["own deviations", "told deviations"])
    @pytest.mark.parametrize("space", [WIDE, UNEVEN], ids=["two places", "2 x 2"])
    def test_is_torchs(self, space: spaces.Box, log_std: float | None) -> None:
        family = SquashedGaussian(space, log_std=log_std)
        numbers = numbers_for(family, 50)
        action = sampled(family, numbers)
        expected = twin_of(family, numbers).log_prob(action.flatten(1).double())
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
        numbers = torch.tensor([[0.3, -1.2]]).expand(N_DRAWS, -1)
        log_prob = family.log_prob(numbers, sampled(family, numbers), None).detach()
        spread = 4 * float(log_prob.std()) / math.sqrt(N_DRAWS)
        assert float(-log_prob.mean()) == pytest.approx(family.entropy(numbers, None)[0].item(), abs=spread)

    def test_entropys_gradient_is_its_slope(self) -> None:
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
        numbers = torch.tensor([[0.5, -0.7]]).expand(N_DRAWS, -1)
        expected = torch.tensor([math.tanh(0.5), math.tanh(-0.7)])
        torch.testing.assert_close(family.mode(numbers, None)[0], expected)
        above = (sampled(family, numbers) > expected).double().mean(dim=0)
        np.testing.assert_allclose(above, 0.5, atol=4 * 0.5 / math.sqrt(N_DRAWS))

    def test_the_same_generator_draws_the_same_and_another_does_not(self) -> None:
        family = SquashedGaussian(WIDE)
        numbers = numbers_for(family, 50)
        one, same, other = (sampled(family, numbers, seed=seed) for seed in (0, 0, 1))
        assert torch.equal(one, same)
        assert not torch.equal(one, other)


class TestDraw:
    @pytest.mark.parametrize("log_std", [0.2, None], ids=["own deviations", "told deviations"])
    def test_is_the_action_and_its_density(self, log_std: float | None) -> None:
        family = SquashedGaussian(WIDE, log_std=log_std).double()
        numbers, noise = numbers_for(family, 30).double(), torch.linspace(-1.0, 1.0, 60).view(30, 2).double()
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

    def test_keeps_told_deviations_within_their_range(self) -> None:
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
    def test_unsquashed_actions_are_learnt_in_every_box(self, space: Any) -> None:
        policy = made(space=space)
        assert type(policy.distribution) is Gaussian
        assert farthest_from_1(policy, space) < 1e-5

    @pytest.mark.parametrize("space", [WIDE, UNEVEN, spaces.Box(-1.0, 1.0, (2,), np.float64)], ids=str)
    @pytest.mark.parametrize("kind", [PPOPolicy, A2CPolicy, ReinforcePolicy])
    def test_squashed_actions_are_judged_as_they_were_drawn(self, kind: Any, space: Any) -> None:
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

    def test_deviations_start_where_they_are_told(self) -> None:
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
