"""Ranks with environments that are restarted, with resets, and with batch normalization."""

import json
from pathlib import Path
from typing import Any

import pytest

import trainkit as tk
from tests.extensions.ranks.torchrun import run_ranks


@pytest.mark.usefixtures("single_rank")
def test_environments_whose_rows_may_be_dropped_are_rejected() -> None:
    with pytest.raises(tk.ConfigError, match="every step must give a row of each environment"):
        tk.presets.dqn(
            "CartPole-v1", seed=3, hidden=(8,), zoo=False, verbose=False, env_options={"on_error": "restart"}
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [("sac", {"resets": 20}), ("crossq", {"critic_hidden": [32]}), ("crossq", {"engine": "torch", "resets": 20})],
)
def test_weights_that_are_drawn_again_and_running_statistics_are_equal(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    found, output = run_ranks("weights", tmp_path, name, json.dumps(options))
    assert len(found) == 2, output
    assert found[0]["n_updates"] == found[1]["n_updates"] > 60
    assert found[0]["digest"] == found[1]["digest"]
