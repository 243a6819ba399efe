"""Memories with parameter noise, which has none of their states."""

import pytest

import trainkit as tk
from tests.helpers.learning import FOUR_NUMBERS, Spaces


def test_a_memory_does_not_fit_parameter_noise() -> None:
    with pytest.raises(tk.ConfigError, match="ParameterNoise has no recurrent state: use another exploration"):
        tk.DQNPolicy.for_envs(Spaces(FOUR_NUMBERS), exploration=tk.ParameterNoise(0.5), hidden=(8,), recurrent="gru")
