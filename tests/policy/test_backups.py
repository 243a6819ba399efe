"""Backups: who chooses the next action, who judges it, and that only legal ones count."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from trainkit import CategoricalValue, DoubleBackup, ExpectedValue, MaxBackup, Prediction
from trainkit.policy.backups import Network, best_action, pick
from trainkit.policy.device import TensorBatch

ONLINE = [[1.0, 5.0, 2.0], [0.0, -1.0, 7.0]]  # [B, A]
TARGET = [[10.0, 20.0, 30.0], [-3.0, -1.0, -2.0]]
LEGAL = [[True, False, True], [True, True, False]]


def table(numbers: Any) -> Network:
    """Make a network that says the same numbers [B, A] or [B, A, W] whatever it sees."""
    tensor = torch.tensor(numbers)
    return lambda features, legal: Prediction(tensor if tensor.dim() == 3 else tensor.unsqueeze(2))


def batch(next_legal: list[list[bool]] | None = None) -> TensorBatch:
    """Make two rows of which a backup should read the next observation, its mask and the reward."""
    none, two = torch.empty(0), torch.zeros(2)
    legal = None if next_legal is None else torch.tensor(next_legal)
    return TensorBatch(none, two.long(), torch.tensor([1.0, -1.0]), two, none, two, None, legal)


def values(backup: Any, *, next_legal: list[list[bool]] | None = None) -> list[float]:
    after, _ = backup(table(ONLINE), table(TARGET), batch(next_legal), ExpectedValue())
    return after.squeeze(1).tolist()


def test_max_takes_the_targets_largest_value() -> None:
    assert values(MaxBackup()) == [30, -1]


def test_max_takes_the_largest_legal_value() -> None:
    assert values(MaxBackup(), next_legal=[[True, True, False], [False, False, True]]) == [20, -2]


def test_double_lets_the_online_network_choose_and_the_target_judge() -> None:
    assert values(DoubleBackup()) == [20, -2]  # not 30 and -1, the target's own choice; not 5 and 7, online's own word


def test_double_chooses_among_legal_actions_only() -> None:
    assert values(DoubleBackup(), next_legal=LEGAL) == [30, -3]


# Over the support 0, 1: action 0 is sure of 0 for the online network, action 1 of 1; for the target it is the reverse.
SURE_0, SURE_1 = [9.0, -9.0], [-9.0, 9.0]


def distributions(backup: Any, next_legal: list[list[bool]] | None = None) -> Tensor:
    online, target = table([[SURE_0, SURE_1]] * 2), table([[SURE_1, SURE_0]] * 2)
    after, _ = backup(online, target, batch(next_legal), CategoricalValue(2, 0.0, 1.0))
    return after


def test_max_takes_the_targets_distribution_of_the_largest_mean() -> None:
    assert distributions(MaxBackup()).tolist() == [SURE_1, SURE_1]


def test_double_lets_online_means_choose_and_takes_the_targets_distribution() -> None:
    assert distributions(DoubleBackup()).tolist() == [SURE_0, SURE_0]


def test_masks_hold_for_distributions_too() -> None:
    next_legal = [[False, True], [True, False]]

    assert distributions(MaxBackup(), next_legal).tolist() == [SURE_0, SURE_1]
    assert distributions(DoubleBackup(), next_legal).tolist() == [SURE_0, SURE_1]


@pytest.mark.parametrize("backup", [MaxBackup(), DoubleBackup()])
def test_the_reward_is_left_as_it_is(backup: Any) -> None:
    _, reward = backup(table(ONLINE), table(TARGET), batch(), ExpectedValue())

    assert reward.tolist() == [1, -1]


@pytest.mark.parametrize("backup", [MaxBackup(), DoubleBackup()])
def test_networks_are_shown_the_next_observation_and_its_mask(backup: Any) -> None:
    seen: list[Any] = []

    def network(features: Any, legal: Tensor | None) -> Prediction:
        seen.append((features, legal))
        return Prediction(torch.zeros(2, 3, 1))

    rows = batch(LEGAL)._replace(obs="now", next_obs="next")
    backup(network, network, rows, ExpectedValue())

    assert [features for features, _ in seen] == ["next"] * len(seen)
    assert all(legal is rows.next_legal for _, legal in seen)
    assert seen


def test_best_action_is_the_first_of_equals() -> None:
    assert best_action(torch.tensor([[1.0, 3.0, 3.0]]), None).tolist() == [1]


def test_best_action_is_legal_even_if_all_legal_values_are_very_low() -> None:
    assert best_action(torch.tensor([[0.0, -3e38, 1.0]]), torch.tensor([[False, True, False]])).tolist() == [1]


def test_pick_takes_each_rows_own_action() -> None:
    numbers = torch.arange(12).view(2, 3, 2)  # [B, A, W]

    assert_close(pick(numbers, torch.tensor([2, 0])), torch.tensor([[4, 5], [6, 7]]))
