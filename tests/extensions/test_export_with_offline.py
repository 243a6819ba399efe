"""Files of policies that imitate."""

from pathlib import Path
from typing import Any

import pytest
from gymnasium import spaces

import trainkit as tk
from tests.extensions.export.exported_files import BOX, MASKED, VECTOR, check_files, make


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "observation_space", "action_space", "words"),
    [
        (tk.DiscreteBCQPolicy, MASKED, spaces.Discrete(4), {}),
        (tk.BCPolicy, VECTOR, spaces.Discrete(3), {}),
        (tk.BCPolicy, VECTOR, BOX, {"loss": "mse"}),
    ],
)
def test_every_policy_that_imitates_can_be_written(
    kind: Any, observation_space: Any, action_space: Any, words: Any, tmp_path: Path
) -> None:
    check_files(make(kind, observation_space, action_space, **words), tmp_path)
