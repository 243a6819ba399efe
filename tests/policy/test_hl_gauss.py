"""Histograms of a scalar target: by hand, against math.erf, and in a Q-learner by every engine."""

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from torch import Tensor
from torch.testing import assert_close

import trainkit as tk
from tests.helpers.learning import Spaces, batch_of, made, observations
from trainkit import HLGaussValue
from trainkit.engine.loss import ROWS

TARGETS: list[Any] = ["hl_gauss", "two_hot"]


def histogram(y: float | list[float], value: HLGaussValue) -> Tensor:
    """Return the target [B, W] of rewards y at the end of an episode."""
    rewards = torch.tensor([y] if isinstance(y, float) else y)
    after = torch.full((len(rewards), value.width), math.nan)  # nothing follows
    return value.target(after, rewards, torch.zeros(len(rewards)))


def erf_histogram(y: float, value: HLGaussValue) -> list[float]:
    """Compute a histogram bin by bin from the edges, in float64."""
    width = (value.v_max - value.v_min) / value.bins
    y = min(max(y, value.v_min), value.v_max)
    edges = [value.v_min + i * width for i in range(value.bins + 1)]
    cdf = [0.5 * (1.0 + math.erf((edge - y) / (value.sigma * width * math.sqrt(2.0)))) for edge in edges]
    return [(above - below) / (cdf[-1] - cdf[0]) for below, above in itertools.pairwise(cdf)]


def two_hot(y: float, centers: list[float]) -> list[float]:
    """Share a mass of 1 between the centers around y, in float64; all to the last one beyond it."""
    mass = [0.0] * len(centers)
    width = centers[1] - centers[0]
    place = min(max((y - centers[0]) / width, 0.0), len(centers) - 1.0)
    below = min(int(place), len(centers) - 2)
    mass[below], mass[below + 1] = 1.0 - (place - below), place - below
    return mass


class TestTwoHot:
    """The bins are -0.5 ... 0.5, 0.5 ... 1.5 and so on: the centers are 0, 1, 2, 3, 4."""

    value = HLGaussValue(5, -0.5, 4.5, target="two_hot")

    @pytest.mark.parametrize(
        ("y", "expected"),
        [
            (2.0, [0, 0, 1, 0, 0]),
            (2.25, [0, 0, 0.75, 0.25, 0]),
            (2.5, [0, 0, 0.5, 0.5, 0]),
            (0.0, [1, 0, 0, 0, 0]),
            (-0.25, [1, 0, 0, 0, 0]),
            (-0.5, [1, 0, 0, 0, 0]),
            (-9.0, [1, 0, 0, 0, 0]),
            (4.0, [0, 0, 0, 0, 1]),
            (4.5, [0, 0, 0, 0, 1]),
            (1e30, [0, 0, 0, 0, 1]),
        ],
    )
    def test_by_hand(self, y: float, expected: list[float]) -> None:
        assert_close(histogram(y, self.value), torch.tensor([expected], dtype=torch.float32))

    def test_takes_the_mean_of_the_next_histogram(self) -> None:
        after = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]]).log()  # mean 2
        td_target = self.value.target(after, torch.tensor([0.75]), torch.tensor([0.25]))  # 1.25

        assert_close(td_target, torch.tensor([[0.0, 0.75, 0.25, 0.0, 0.0]]))

    def test_moves_every_row_by_its_own_reward_and_discount(self) -> None:
        after = torch.full((3, 5), 0.0)  # mean 2
        td_target = self.value.target(after, torch.tensor([1.0, 0.0, 2.5]), torch.tensor([1.0, 0.5, 0.0]))

        assert_close(td_target, torch.tensor([[0, 0, 0, 1, 0], [0, 1, 0, 0, 0], [0, 0, 0.5, 0.5, 0]]).float())


class TestHLGauss:
    value = HLGaussValue(5, -0.5, 4.5, sigma=0.75)

    def test_at_the_middle_center_by_hand(self) -> None:
        """The CDF of the normal distribution at 0.5, 1.5 and 2.5 bin widths over sigma = 0.75."""
        phi = [0.5 * math.erf(edge / 0.75 / math.sqrt(2.0)) for edge in (0.5, 1.5, 2.5)]
        assert_allclose(phi, [0.247508, 0.477250, 0.499571], atol=1e-6)  # as tables have them at 2/3, 2, 10/3
        outer, inner, middle = phi[2] - phi[1], phi[1] - phi[0], 2 * phi[0]
        expected = torch.tensor([[outer, inner, middle, inner, outer]]) / (2 * phi[2])

        assert_close(histogram(2.0, self.value), expected)

    def test_at_an_edge_both_sides_are_equal(self) -> None:
        td_target = histogram(2.5, HLGaussValue(6, -0.5, 5.5))

        assert_close(td_target, td_target.flip(1))

    def test_at_a_bound_half_of_the_normal_distribution_is_left(self) -> None:
        td_target = histogram([-0.5, 4.5], self.value)

        assert td_target[0, 0].item() == pytest.approx(math.erf(1 / 0.75 / math.sqrt(2.0)))  # within a bin width of y
        assert_close(td_target[1], td_target[0].flip(0))

    def test_beyond_a_bound_it_is_that_at_the_bound(self) -> None:
        assert_close(histogram([-7.0, 4.6, 1e30], self.value), histogram([-0.5, 4.5, 4.5], self.value))

    @pytest.mark.parametrize("y", [1.75, 2.0, 2.25])
    def test_a_sigma_near_0_leaves_the_nearest_bin_alone(self, y: float) -> None:
        assert histogram(y, HLGaussValue(5, -0.5, 4.5, sigma=1e-6)).tolist() == [[0, 0, 1, 0, 0]]

    def test_a_sigma_near_0_shares_equally_at_an_edge(self) -> None:
        assert histogram(2.5, HLGaussValue(5, -0.5, 4.5, sigma=1e-6)).tolist() == [[0, 0, 0.5, 0.5, 0]]

    def test_sigma_is_in_bin_widths(self) -> None:
        wide, narrow = (HLGaussValue(5, -0.5 * scale, 4.5 * scale) for scale in (10.0, 0.1))

        assert_close(histogram(17.5, wide), histogram(0.175, narrow))


@pytest.mark.parametrize("target", TARGETS)
@given(
    bins=st.integers(2, 101),
    v_min=st.floats(-50, 50),
    width=st.floats(0.5, 100),
    sigma=st.floats(0.05, 5.0),
    ys=st.lists(st.floats(-200, 200), min_size=1, max_size=4),
)
def test_equals_the_slow_histogram_and_has_all_mass(
    target: Any, bins: int, v_min: float, width: float, sigma: float, ys: list[float]
) -> None:
    value = HLGaussValue(bins, v_min, v_min + width, sigma=sigma, target=target)
    td_target = histogram(ys, value)

    assert (td_target >= 0).all()
    assert_close(td_target.sum(dim=1), torch.ones(len(ys)), rtol=0, atol=1e-5)
    bin_width = width / bins
    centers = [v_min + (i + 0.5) * bin_width for i in range(bins)]
    slow = [two_hot(y, centers) if target == "two_hot" else erf_histogram(y, value) for y in ys]
    rounding = 1e-6 * (abs(v_min) + width) / bin_width  # of y in float32, in bin widths
    assert_allclose(td_target.numpy(), slow, rtol=0, atol=1e-5 + 2 * rounding / min(sigma, 1.0))


@pytest.mark.parametrize("target", TARGETS)
def test_the_mean_of_the_target_is_the_td_target(target: Any) -> None:
    value = HLGaussValue(101, -10.0, 10.0, target=target)
    y = torch.linspace(-9.0, 9.0, 1001)  # more than 3 sigma from the bounds

    assert_close(value.target(y.new_zeros(1001, 101), y, torch.zeros(1001)) @ value.support, y, rtol=0, atol=1e-5)


def test_near_a_bound_the_mean_of_a_normal_target_is_shifted_inwards() -> None:
    value = HLGaussValue(101, -10.0, 10.0)
    bin_width = 20 / 101
    shift = (10.0 - (histogram(10.0, value) @ value.support).item()) / bin_width

    # The mean of half of a normal distribution, sqrt(2 / pi) sigma, and what the histogram of it adds.
    assert shift == pytest.approx(0.75 * math.sqrt(2 / math.pi), abs=0.1)
    slow = sum(p * (100 - i + 0.5) for i, p in enumerate(erf_histogram(10.0, value)))
    assert shift == pytest.approx(slow, abs=1e-4)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("after", [math.inf, -math.inf, math.nan])
def test_what_comes_after_a_termination_is_ignored(after: float, target: Any) -> None:
    value = HLGaussValue(5, -0.5, 4.5, target=target)
    rows = torch.full((1, 5), after), torch.tensor([2.0]), torch.zeros(1)

    assert_close(value.target(*rows), histogram(2.0, value))
    assert value.metrics(torch.zeros(1, 5), histogram(2.0, value), *rows)["clipped_share"].item() == 0.0


class TestLoss:
    value = HLGaussValue(3, -0.5, 2.5)

    def test_is_the_cross_entropy_whose_gradient_is_softmax_minus_target(self) -> None:
        chosen = torch.tensor([[0.2, 0.3, 0.5]]).log().requires_grad_()
        td_target = torch.tensor([[0.6, 0.4, 0.0]])
        loss, _ = self.value.loss(chosen, td_target)
        loss.sum().backward()

        assert loss.item() == pytest.approx(-0.6 * math.log(0.2) - 0.4 * math.log(0.3))
        assert chosen.grad is not None
        assert_close(chosen.grad, torch.tensor([[-0.4, -0.1, 0.5]]))

    def test_the_priority_is_the_distance_of_the_means_in_returns(self) -> None:
        chosen = torch.tensor([[0.25, 0.5, 0.25], [0.5, 0.5, 0.0]]).log().requires_grad_()  # means 1 and 0.5
        td_target = torch.tensor([[0.0, 0.25, 0.75], [0.5, 0.5, 0.0]])  # means 1.75 and 0.5
        _, priority = self.value.loss(chosen, td_target)

        assert_close(priority, torch.tensor([0.75, 0.0]))
        assert not priority.requires_grad


def test_the_defaults_are_an_automatic_support_and_the_papers_sigma() -> None:
    assert HLGaussValue().arguments() == {
        "bins": 51, "v_min": None, "v_max": None, "sigma": 0.75, "target": "hl_gauss",
    }  # fmt: skip


def test_the_expected_return_is_the_mean_of_the_centers() -> None:
    value = HLGaussValue(4, 0.0, 8.0)

    assert value.support.tolist() == [1.0, 3.0, 5.0, 7.0]
    assert_close(value.mean(torch.tensor([[[0.5, 0.0, 0.5, 0.0]]]).log()), torch.tensor([[3.0]]))


def test_metrics_are_those_of_a_categorical_value() -> None:
    value = HLGaussValue(3, -0.5, 2.5)
    chosen = torch.tensor([[1 / 3, 1 / 3, 1 / 3], [0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0]]).log()
    chosen = chosen.clamp(min=-1e4)
    td_target = torch.tensor([[0.0, 0.0, 1.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])  # td 1, 0, 1, -1
    reward = torch.tensor([2.0, 0.5, 2.6, -0.6])  # the last two lie beyond the bounds
    metrics = value.metrics(chosen, td_target, chosen, reward, torch.zeros(4))

    assert {name: ROWS.metric(metric).item() for name, metric in metrics.items()} == pytest.approx(
        {
            "td_abs_mean": 0.75,
            "td_abs_max": 1.0,
            "clipped_share": 0.5,
            "value_entropy": (math.log(3.0) + math.log(2.0)) / 4,
        }
    )


def test_a_target_that_only_rounding_moves_beyond_a_bound_is_not_counted_as_clipped() -> None:
    value = HLGaussValue(51, -10.0, 10.0)
    after = torch.zeros(1, 51)
    metrics = value.metrics(after, after.softmax(1), after, torch.tensor([10.00001]), torch.zeros(1))

    assert metrics["clipped_share"].item() == 0.0


# ---- in a Q-learner ----


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("target", TARGETS)
def test_learns_the_returns_of_single_steps(target: Any) -> None:
    """The reward is a function of the observation and nothing follows: the value is the reward."""
    policy = made(value=HLGaussValue(31, -3.0, 3.0, target=target), lr=1e-2, hidden=(32,))
    rng = np.random.default_rng(0)
    for step in range(300):
        obs = rng.uniform(-1, 1, (64, 4)).astype(np.float32)
        ends = {"reward": 2.0 * obs[:, 0], "discount": np.zeros(64, np.float32), "weight": np.ones(64, np.float32)}
        policy.update(batch_of(64, obs=obs, action=np.zeros(64, np.int64), **ends), step=step)
    obs = rng.uniform(-1, 1, (200, 4)).astype(np.float32)

    assert np.abs(policy.action_values(obs)[:, 0] - 2.0 * obs[:, 0]).mean() < 0.1


def test_a_soft_backup_is_refused() -> None:
    policy = made(value=HLGaussValue(5, -1, 1), backup=tk.MunchausenBackup())
    with pytest.raises(tk.ConfigError, match=r"MunchausenBackup adds to returns, .* of HLGaussValue are not: use Exp"):
        policy.check_spaces(*Spaces())


def test_a_policy_comes_back_from_a_file(tmp_path: Path) -> None:
    policy = made(value=HLGaussValue(7, -3.0, 4.0, sigma=0.5, target="two_hot"))
    policy.update(batch_of(8), step=0)
    loaded = tk.load_policy(policy.save(tmp_path), device="cpu")
    obs = observations(Spaces().observation_space, 9)

    assert isinstance(loaded.value, HLGaussValue)
    assert loaded.value.arguments() == {"bins": 7, "v_min": -3.0, "v_max": 4.0, "sigma": 0.5, "target": "two_hot"}
    assert_allclose(loaded.action_values(obs), policy.action_values(obs), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bins": 1}, "HLGaussValue.bins must be a whole number >= 2, got 1"),
        ({"v_min": 1, "v_max": 1}, "HLGaussValue needs v_min < v_max, got 1 and 1"),
        ({"v_max": math.inf}, "HLGaussValue.v_max must be in (-inf, inf), got inf"),
        ({"sigma": 0.0}, "HLGaussValue.sigma must be in (0, inf), got 0.0"),
        ({"target": "onehot"}, "HLGaussValue.target must be one of ['hl_gauss', 'two_hot'], got 'onehot'"),
    ],
)
def test_wrong_arguments_are_rejected_by_name_and_rule(options: Any, message: str) -> None:
    with pytest.raises(tk.ConfigError) as error:
        HLGaussValue(**options)

    assert message in str(error.value)
