"""Ranks with environments that are restarted."""

import pytest

import trainkit as tk


@pytest.mark.usefixtures("single_rank")
def test_environments_whose_rows_may_be_dropped_are_rejected() -> None:
    with pytest.raises(tk.ConfigError, match="every step must give a row of each environment"):
        tk.presets.dqn(
            "CartPole-v1", seed=3, hidden=(8,), zoo=False, verbose=False, env_options={"on_error": "restart"}
        )
