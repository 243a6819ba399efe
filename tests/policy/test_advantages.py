"""Advantages and returns: worked by hand, and against a loop over each environment by itself."""

from collections.abc import Sequence

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

from trainkit.policy import discounted_returns, gae
from trainkit.policy.advantages import normalized


def column(numbers: Sequence[float]) -> Tensor:
    """Make one environment's rows [T, 1]."""
    return torch.tensor(numbers, dtype=torch.float64).unsqueeze(1)


def flags(*at: int, n: int) -> Tensor:
    """Make [T, 1] flags that are up at some rows."""
    up = torch.zeros(n, 1, dtype=torch.bool)
    up[list(at)] = True
    return up


def advantages(*, terminated: Tensor, truncated: Tensor, next_value: Sequence[float], lam: float = 0.5) -> list[float]:
    """Estimate for rewards 1, 10, 100, values 2, 4, 8 and gamma 1/2."""
    estimate = gae(
        column([1, 10, 100]), column([2, 4, 8]), column(next_value), terminated, truncated, gamma=0.5, lam=lam
    )
    return estimate.squeeze(1).tolist()


class TestGae:
    def test_an_open_end_keeps_its_next_value(self) -> None:
        # td: 1 + 4/2 - 2 = 1, 10 + 8/2 - 4 = 10, 100 + 16/2 - 8 = 100; each next one counts a quarter.
        cut = advantages(terminated=flags(n=3), truncated=flags(2, n=3), next_value=[4, 8, 16])
        assert cut == [1 + (10 + 100 / 4) / 4, 10 + 100 / 4, 100]

    def test_the_last_row_ends_whether_it_is_flagged_or_not(self) -> None:
        unflagged = advantages(terminated=flags(n=3), truncated=flags(n=3), next_value=[4, 8, 16])
        assert unflagged == [9.75, 35, 100]

    def test_a_termination_drops_the_next_value_and_all_that_follows(self) -> None:
        ended = advantages(terminated=flags(1, n=3), truncated=flags(n=3), next_value=[4, 8, 16])
        assert ended == [1 + (10 - 4) / 4, 10 - 4, 100]

    def test_a_truncation_keeps_the_next_value_and_drops_all_that_follows(self) -> None:
        ended = advantages(terminated=flags(n=3), truncated=flags(1, n=3), next_value=[4, 20, 16])
        assert ended == [1 + (10 + 20 / 2 - 4) / 4, 10 + 20 / 2 - 4, 100]

    def test_with_both_flags_the_termination_wins(self) -> None:
        ended = advantages(terminated=flags(1, n=3), truncated=flags(1, n=3), next_value=[4, 8, 16])
        assert ended == [1 + (10 - 4) / 4, 10 - 4, 100]

    @pytest.mark.parametrize("nonsense", [float("inf"), float("-inf"), float("nan")])
    def test_a_next_value_after_a_termination_counts_nothing_whatever_it_is(self, nonsense: float) -> None:
        ended = advantages(terminated=flags(1, n=3), truncated=flags(n=3), next_value=[4, nonsense, 16])
        assert ended == [2.5, 6, 100]

    @pytest.mark.parametrize("nonsense", [float("inf"), float("nan")])
    @pytest.mark.parametrize("way", ["terminated", "truncated"])
    def test_what_is_not_finite_after_an_episodes_end_stays_there(self, nonsense: float, way: str) -> None:
        up, down = flags(0, n=2), flags(n=2)
        ended = {"terminated": (up, down), "truncated": (down, up)}[way]
        own, rest = gae(column([1, nonsense]), column([2, 4]), column([0, 0]), *ended, gamma=0.5, lam=0.5)
        assert own.item() == -1
        assert not torch.isfinite(rest)

    @pytest.mark.parametrize("end", range(9))
    def test_however_many_bad_rows_follow_an_end_none_is_seen_before_it(self, end: int) -> None:
        reward = column([10.0**i if i <= end else float("nan") for i in range(9)])
        zero, none = column([0.0] * 9), flags(n=9)
        own = gae(reward, zero, zero, none, flags(end, n=9), gamma=1.0, lam=0.5).squeeze(1)
        expected = [sum(10.0**i / 2 ** (i - first) for i in range(first, end + 1)) for first in range(end + 1)]
        assert own[: end + 1].tolist() == pytest.approx(expected)

    def test_lambda_0_is_the_one_step_advantage(self) -> None:
        one_step = advantages(terminated=flags(n=3), truncated=flags(2, n=3), next_value=[4, 8, 16], lam=0)
        assert one_step == [1, 10, 100]

    def test_lambda_1_is_the_whole_return_less_the_value(self) -> None:
        whole = advantages(terminated=flags(n=3), truncated=flags(2, n=3), next_value=[4, 8, 16], lam=1)
        returns = [1 + 10 / 2 + 100 / 4 + 16 / 8, 10 + 100 / 2 + 16 / 4, 100 + 16 / 2]
        assert whole == [returns[0] - 2, returns[1] - 4, returns[2] - 8]

    def test_environments_do_not_touch_each_other(self) -> None:
        reward = torch.tensor([[1.0, 1000.0], [10.0, 2000.0]])
        none = torch.zeros(2, 2)
        terminated = torch.tensor([[False, True], [True, False]])
        together = gae(reward, none, none, terminated, terminated, gamma=0.5, lam=1.0)
        assert together.tolist() == [[6, 1000], [10, 2000]]


class TestDiscountedReturns:
    def test_add_up_to_the_termination(self) -> None:
        nothing = flags(n=3)
        returns = discounted_returns(column([1, 10, 100]), column([7, 7, 7]), flags(1, n=3), nothing, gamma=0.5)
        assert returns.squeeze(1).tolist() == [1 + 10 / 2, 10, 100]

    def test_where_a_row_was_cut_off_its_next_value_follows(self) -> None:
        cut = flags(1, 2, n=3)
        returns = discounted_returns(column([1, 10, 100]), column([7, 8, 16]), flags(n=3), cut, gamma=0.5)
        assert returns.squeeze(1).tolist() == [1 + 10 / 2 + 8 / 4, 10 + 8 / 2, 100 + 16 / 2]

    def test_with_both_flags_the_termination_wins(self) -> None:
        both = flags(2, n=3)
        returns = discounted_returns(column([1, 10, 100]), column([7, 8, float("nan")]), both, both, gamma=0.5)
        assert returns.squeeze(1).tolist() == [31, 60, 100]

    @pytest.mark.parametrize("nonsense", [float("inf"), float("nan")])
    def test_a_next_value_inside_an_episode_counts_nothing_whatever_it_is(self, nonsense: float) -> None:
        values = column([nonsense, 8, nonsense])
        returns = discounted_returns(column([1, 10, 100]), values, flags(2, n=3), flags(1, n=3), gamma=0.5)
        assert returns.squeeze(1).tolist() == [8, 14, 100]


Row = tuple[float, float, float, bool, bool]
numbers = st.floats(-100, 100, width=32)
rows = st.tuples(numbers, numbers, numbers, st.booleans(), st.booleans())


def slow_gae(episode: Sequence[Row], gamma: float, lam: float) -> list[float]:
    """Write down every row's sum, to where its episode ends."""
    estimates = []
    for first in range(len(episode)):
        total, power = 0.0, 1.0
        for reward, value, next_value, terminated, truncated in episode[first:]:
            total += power * (reward - value + (0.0 if terminated else gamma * next_value))
            power *= gamma * lam
            if terminated or truncated:
                break
        estimates.append(total)
    return estimates


def slow_returns(episode: Sequence[Row], gamma: float) -> list[float]:
    """Write down every row's return; at the last row nothing follows unless it was cut off."""
    estimates = []
    for first in range(len(episode)):
        total, power = 0.0, 1.0
        for reward, _, next_value, terminated, truncated in episode[first:]:
            total += power * reward
            power *= gamma
            if terminated or truncated:
                total += 0.0 if terminated else power * next_value
                break
        estimates.append(total)
    return estimates


@given(
    st.integers(1, 9).flatmap(
        lambda n: st.lists(st.lists(rows, min_size=n, max_size=n), min_size=1, max_size=4)  # [N][T]
    ),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_both_are_what_a_loop_over_each_environment_gives(data: list[list[Row]], gamma: float, lam: float) -> None:
    reward, value, next_value = (
        torch.tensor([[row[i] for row in env] for env in data], dtype=torch.float64).T for i in range(3)
    )
    terminated, truncated = (torch.tensor([[row[i] for row in env] for env in data]).T for i in (3, 4))

    advantage = gae(reward, value, next_value, terminated, truncated, gamma=gamma, lam=lam)
    returns = discounted_returns(reward, next_value, terminated, truncated, gamma=gamma)

    for n, env in enumerate(data):
        torch.testing.assert_close(advantage[:, n], torch.tensor(slow_gae(env, gamma, lam), dtype=torch.float64))
        torch.testing.assert_close(returns[:, n], torch.tensor(slow_returns(env, gamma), dtype=torch.float64))


class TestNormalized:
    def test_gives_mean_0_and_population_deviation_1(self) -> None:
        torch.testing.assert_close(normalized(torch.tensor([1.0, 3.0])), torch.tensor([-1.0, 1.0]))

    def test_each_row_of_several_is_a_batch_of_its_own(self) -> None:
        both = normalized(torch.tensor([[1.0, 3.0], [50.0, 10.0]]))
        torch.testing.assert_close(both, torch.tensor([[-1.0, 1.0], [1.0, -1.0]]))

    @pytest.mark.parametrize("advantage", [[7.0], [2.0, 2.0, 2.0], [0.0]])
    def test_of_one_row_or_equal_ones_is_0(self, advantage: Sequence[float]) -> None:
        assert normalized(torch.tensor(advantage)).tolist() == [0.0] * len(advantage)
