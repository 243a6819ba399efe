"""Tagged environments as a simulator, to compare its rows with those of the same environments in arrays."""

from typing import Any

import numpy as np
import torch

from tests.helpers.tagged import Form, TaggedEnv
from trainkit.core import tree


class TaggedSimulator:
    """N tagged environments, reset in the step that ends their episode. It has no state to save."""

    def __init__(self, n: int, device: Any = "cpu", form: Form = "array") -> None:
        self.n, self.device = n, device
        self.envs = [TaggedEnv(env, form) for env in range(n)]
        self.observation_space, self.action_space = self.envs[0].observation_space, self.envs[0].action_space
        self.seeds: list[int] = []

    def reset(self, seed: int) -> Any:
        self.seeds.append(seed)
        return self._tensors([env.reset()[0] for env in self.envs])

    def step(self, action: torch.Tensor) -> tuple[Any, ...]:
        steps = [env.step(int(one)) for env, one in zip(self.envs, action.cpu(), strict=True)]
        final, reward, terminated, truncated, _ = zip(*steps, strict=True)
        obs = [env.reset()[0] if env.is_over else last for env, last in zip(self.envs, final, strict=True)]
        flags = (torch.tensor(column, device=self.device) for column in (terminated, truncated))
        gains = torch.tensor(reward, device=self.device, dtype=torch.float32)
        return self._tensors(obs), gains, *flags, self._tensors(list(final))

    def _tensors(self, rows: list[Any]) -> Any:
        stacked = tree.map_tree(lambda *leaves: np.stack(leaves), rows[0], *rows[1:])
        return tree.map_tree(lambda leaf: torch.from_numpy(leaf).to(self.device), stacked)
