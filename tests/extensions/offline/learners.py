"""The policies of offline learning, for the tests of what holds of every policy."""

from typing import Any

import numpy as np
from gymnasium import spaces

import trainkit as tk
from tests.helpers.learning import THREE_ACTIONS

BOX = spaces.Box(-2.0, 2.0, (2,), np.float32)
LEARNERS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "bcq": (tk.DiscreteBCQPolicy, THREE_ACTIONS, {"threshold": 0.2}),
    "bc": (tk.BCPolicy, THREE_ACTIONS, {}),
    "bc of a Box": (tk.BCPolicy, BOX, {}),
    "bc by mse": (tk.BCPolicy, BOX, {"loss": "mse"}),
}
TD_LEARNERS = {"bcq": (tk.DiscreteBCQPolicy, {})}
EXTRAS: dict[str, dict[str, tuple[int, ...]]] = {  # shapes of what `predict` returns with an action
    "bcq": {"q_values": (3,), "action_prob": ()},
    "bc": {"probability": (3,), "action_prob": ()},
    "bc of a Box": {"numbers": (2,)},
    "bc by mse": {"numbers": (2,)},
}
