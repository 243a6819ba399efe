"""Resets of the networks of actor-critics, with the running statistics of batch normalization."""

from typing import Any

import pytest

import trainkit as tk
from tests.extensions.resets.forgetting import check_that_resets_forget, made
from tests.helpers.engine import engines


@pytest.mark.parametrize("engine", engines("torch", "numpy"))
def test_statistics_are_as_at_a_start(engine: Any) -> None:
    networks, passes = tk.policy.BatchNormNetworks(), tk.policy.JointPass()
    check_that_resets_forget(made(engine, networks=networks, critic_pass=passes))
