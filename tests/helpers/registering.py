"""A package that registers its ids when it is imported, as ale-py does."""

from typing import Any

import gymnasium as gym
from gymnasium.vector import AutoresetMode

from tests.helpers.scripted_env import ScriptedEnv, ScriptedVectorEnv

MADE: list["Stacking"] = []


class Stacking(ScriptedVectorEnv):
    """Stack frames by itself, unless requested single ones."""

    def __init__(self, num_envs: int, stack_num: int = 4, mode: Any = AutoresetMode.SAME_STEP) -> None:
        super().__init__(mode)
        self.num_envs = num_envs
        self.single_observation_space = gym.spaces.Box(0, 1, (stack_num, 3))
        self.n_closed = 0
        MADE.append(self)

    def close(self, **arguments: Any) -> None:
        self.n_closed += 1


gym.register("Told/Alone-v0", entry_point=ScriptedEnv)
gym.register("Told/Stacking-v0", entry_point=ScriptedEnv, vector_entry_point=Stacking)
