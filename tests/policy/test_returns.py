"""The distribution of the return that a Q-learner gives each action, to be looked at."""

from typing import Any

import numpy as np
import torch
from numpy.testing import assert_allclose
from torch import nn

import trainkit as tk


class Says(nn.Module):
    """Give every observation the same numbers [A, W]."""

    def __init__(self, numbers: list[list[float]]) -> None:
        super().__init__()
        self.numbers = nn.Parameter(torch.tensor(numbers))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.numbers.expand(len(obs), *self.numbers.shape)


def distribution(numbers: list[list[float]], value: Any, n_rows: int = 2) -> tuple[Any, Any]:
    policy = tk.DQNPolicy(Says(numbers), value=value, device="cpu")
    return policy.return_distribution(np.zeros((n_rows, 3), np.float32))


def test_logits_become_probabilities_of_the_supports_returns() -> None:
    returns, probability = distribution([[0.0, 0.0, 0.0], [0.0, np.log(2), 0.0]], tk.CategoricalValue(3, -1.0, 1.0))
    assert returns.shape == probability.shape == (2, 2, 3)
    assert_allclose(returns[1, 0], [-1.0, 0.0, 1.0])
    assert_allclose(probability[1], [[1 / 3] * 3, [1 / 4, 1 / 2, 1 / 4]], rtol=1e-6)


def test_quantiles_are_equally_likely_and_rise() -> None:
    returns, probability = distribution([[3.0, 1.0], [5.0, 7.0]], tk.QuantileValue(2))
    assert_allclose(returns[0], [[1.0, 3.0], [5.0, 7.0]])
    assert_allclose(probability, 0.5)


def test_rescaled_numbers_are_logged_as_returns() -> None:
    value = tk.ExpectedValue(rescale=1e-3)
    numbers = value.outputs(torch.tensor(1_000.0)).item()
    returns, probability = distribution([[numbers]], value, n_rows=1)
    assert_allclose(returns, [[[1_000.0]]], rtol=1e-4)
    assert_allclose(probability, 1.0)


def test_a_value_without_a_distribution_has_one_certain_return() -> None:
    class Largest:
        width = 2

        def mean(self, numbers: torch.Tensor) -> torch.Tensor:
            return numbers.amax(dim=-1)

    returns, probability = distribution([[0.0, 1.0], [3.0, 2.0]], Largest(), n_rows=1)
    assert_allclose(returns, [[[1.0], [3.0]]], rtol=1e-6)
    assert_allclose(probability, 1.0)
