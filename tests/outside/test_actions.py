"""Actions of several parts: what Q-learners say of many combinations."""

import logging
from typing import Any

import pytest
from gymnasium import spaces

import trainkit as tk
from tests.helpers.learning import FOUR_NUMBERS, Spaces


@pytest.mark.parametrize(("nvec", "is_many"), [([11, 11, 11], True), ([4, 4], False)])
def test_many_joint_actions_are_said_to_be_learned_by_part_by_ppo(
    nvec: Any, is_many: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "trainkit"):
        tk.DQNPolicy.for_envs(Spaces(FOUR_NUMBERS, spaces.MultiDiscrete(nvec)), hidden=(8,), device="cpu", seed=0)
    text = "gives each of the 1,331 joint actions of MultiDiscrete([11 11 11]) an output"
    assert (text in caplog.text) == is_many
    assert ("ppo and a2c learn each part by itself" in caplog.text) == is_many
